/* The kernel of a step with an image: one list of odd sizes, every rule, against the same step without one. */
#include "optim_helpers.h"

#include "../../kernels/optim.h"

#include <stdbool.h>

enum { COUNT = 5, SLABS = (1 << 16) + 7, GUARD = 8 };

static const int64_t sizes[COUNT] = { 1, 63, 0, SLABS, 1025 };

/* What a list of updates works on: values, gradients and states behind one another, a guard behind every image. */
typedef struct arrays {
    float *value[COUNT], *gradient[COUNT], *state[COUNT][LUDA_OPTIM_STATES];
    uint16_t *image[COUNT];
} arrays;

static float noise(int64_t i)
{
    return (float)((int)((uint32_t)(i + 1) * 2654435761u >> 20) - 2048) / 512;
}

static void arrays_new(arrays *a)
{
    for (int k = 0; k < COUNT; k++) {
        size_t n = (size_t)sizes[k] + 1; /* starts are not aligned: the first element is left out */
        a->value[k] = malloc(n * sizeof(float));
        a->gradient[k] = malloc(n * sizeof(float));
        a->image[k] = malloc((n + GUARD) * sizeof(uint16_t));
        memset(a->image[k], 0xAB, (n + GUARD) * sizeof(uint16_t));
        for (int s = 0; s < LUDA_OPTIM_STATES; s++)
            a->state[k][s] = calloc(n, sizeof(float));
        for (size_t i = 0; i < n; i++) {
            a->value[k][i] = noise((int64_t)i * 3 + k);
            a->gradient[k][i] = noise((int64_t)i * 5 + 7 * k);
        }
    }
}

static void arrays_free(arrays *a)
{
    for (int k = 0; k < COUNT; k++) {
        free(a->value[k]);
        free(a->gradient[k]);
        free(a->image[k]);
        for (int s = 0; s < LUDA_OPTIM_STATES; s++)
            free(a->state[k][s]);
    }
}

static void run(int kind, arrays *a, int image_dtype, double factor, int64_t step)
{
    static const luda_optim_hyper hyper = { .always = 1, .momentum = 0.9, .beta1 = 0.9, .beta2 = 0.99, .beta3 = 0.95,
                                            .alpha = 0.9, .eps = 1e-8, .weight_decay = 0.1, .amsgrad = 1, .centered = 1 };
    luda_optim_update updates[COUNT] = { { .value = NULL } };
    char message[256] = "";
    int64_t start = 0;
    for (int k = 0; k < COUNT; k++) {
        luda_optim_update *u = &updates[k];
        *u = (luda_optim_update){ .span = { start, sizes[k] }, .value = a->value[k] + 1, .gradient = a->gradient[k] + 1,
                                  .dtype = LUDA_F32, .image_dtype = image_dtype, .gradient_dtype = LUDA_F32,
                                  .factor = factor, .limit = HUGE_VAL, .lr = 0.01, .step = step, .hyper = &hyper };
        u->correction[0] = 1 - pow(hyper.beta1, (double)step);
        u->correction[1] = 1 - pow(hyper.beta2, (double)step);
        u->correction[2] = 1 - pow(hyper.beta3, (double)step);
        u->adam = (luda_optim_adam){ 0.1, 0.99, 0.05, 0.02, 1.5, 1e-3 };
        u->image = image_dtype >= 0 ? a->image[k] + 1 : NULL;
        for (int s = 0; s < LUDA_OPTIM_STATES; s++)
            u->state[s] = a->state[k][s] + 1;
        start += sizes[k];
    }
    EXPECT_OK(luda__cpu_optim()->step(kind, updates, COUNT, NULL, message));
}

/* To the nearest, ties to even; the values of this test are finite. */
static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static double f16_value(uint16_t half)
{
    int exponent = half >> 10 & 31, mantissa = half & 1023;
    double size = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return half & 0x8000 ? -size : size;
}

/* Nothing is nearer than the image, and a tie is even. */
static bool is_f16_of(uint16_t half, float x)
{
    double off = fabs(f16_value(half) - (double)x), above = fabs(f16_value((uint16_t)(half + 1)) - (double)x);
    double below = half & 0x7FFF ? fabs(f16_value((uint16_t)(half - 1)) - (double)x) : HUGE_VAL;
    return (off < above && off < below) || (off <= above && off <= below && (half & 1) == 0);
}

static int wrong_images(const arrays *a, int dtype)
{
    int wrong = 0;
    for (int k = 0; k < COUNT; k++) {
        for (int64_t i = 1; i <= sizes[k]; i++)
            wrong += dtype == LUDA_BF16 ? a->image[k][i] != bf16_of(a->value[k][i]) : !is_f16_of(a->image[k][i], a->value[k][i]);
        wrong += a->image[k][0] != 0xABAB;
        for (int64_t i = sizes[k] + 1; i < sizes[k] + 1 + GUARD; i++)
            wrong += a->image[k][i] != 0xABAB;
    }
    return wrong;
}

static int differences(const arrays *a, const arrays *b)
{
    int different = 0;
    for (int k = 0; k < COUNT; k++) {
        size_t bytes = (size_t)(sizes[k] + 1) * sizeof(float);
        different += memcmp(a->value[k], b->value[k], bytes) != 0;
        for (int s = 0; s < LUDA_OPTIM_STATES; s++)
            different += memcmp(a->state[k][s], b->state[k][s], bytes) != 0;
    }
    return different;
}

static void an_image_is_the_rounded_value_and_changes_nothing_else(void)
{
    for (int kind = 0; kind < LUDA_OPTIM_COUNT; kind++)
        for (int dtype = LUDA_F16; dtype <= LUDA_BF16; dtype++)
            for (int scaled = 0; scaled < 2; scaled++) {
                arrays with, without;
                arrays_new(&with);
                arrays_new(&without);
                for (int64_t step = 1; step <= 2; step++) {
                    run(kind, &with, dtype, scaled ? 0.3 : 1, step);
                    run(kind, &without, -1, scaled ? 0.3 : 1, step);
                    EXPECT(differences(&with, &without) == 0);
                    EXPECT(wrong_images(&with, dtype) == 0);
                }
                EXPECT(with.value[3][SLABS] != noise(3 * SLABS + 3)); /* the last element was updated */
                arrays_free(&with);
                arrays_free(&without);
            }
}

/* The sum of squares over many sizes: exact for small whole numbers, whatever the order of the additions. */
static void squares_of_every_size(void)
{
    enum { MOST = 3 * (1 << 16) + 77 };
    float *x = malloc(MOST * sizeof *x);
    char message[256] = "";
    for (int i = 0; i < MOST; i++)
        x[i] = (float)(i % 7 - 3);
    for (int64_t n = 0; n < MOST; n += n < 700 ? 1 : 9973) {
        luda_optim_array pair[2] = { { { 0, n }, x, LUDA_F32 }, { { n, MOST - n }, x + n, LUDA_F32 } };
        double sums[2] = { -1, -1 }, right[2] = { 0, 0 };
        for (int64_t i = 0; i < MOST; i++)
            right[i >= n] += 4.0 * x[i] * x[i];
        EXPECT_OK(luda__cpu_optim()->squares(pair, 2, 2, sums, NULL, message));
        EXPECT(sums[0] == right[0] && sums[1] == right[1]);
    }
    free(x);
}

int main(void)
{
    static void (*const tests[])(void) = {
        an_image_is_the_rounded_value_and_changes_nothing_else,
        squares_of_every_size,
    };
    return run_all("optim_image_test", tests, sizeof tests / sizeof *tests);
}
