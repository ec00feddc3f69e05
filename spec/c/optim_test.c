/*
 * Update rules: published formulas by hand-computed sequences, and a float64 twin over many tensors.
 */
#include "optim_helpers.h"

/* --- Sequences --- */

/* Parameter (1, -2), rate 0.1, gradients (0.5, -1), (-0.25, 0.75), (1, 0.125). */
static const struct sequence {
    int kind;
    choice choices[6];
    double right[3][2];
} sequences[] = {
    { LUDA_OPTIM_sgd, { { 0 } }, { { 0.95, -1.9 }, { 0.975, -1.975 }, { 0.875, -1.9875 } } },
    { LUDA_OPTIM_sgd, { { "momentum", 0.9 }, { "dampening", 0.1 } },
      { { 0.95, -1.9 }, { 0.9275, -1.8775 }, { 0.81725, -1.8685 } } },
    { LUDA_OPTIM_sgd, { { "momentum", 0.9 }, { "nesterov", 1 }, { "weight_decay", 0.05 } },
      { { 0.8955, -1.791 }, { 0.88994275, -1.8273855 }, { 0.668016519, -1.807081788 } } },
    { LUDA_OPTIM_adam, { { "eps", 1e-5 } },
      { { 0.900002000, -1.900001000 }, { 0.873368970, -1.891068600 }, { 0.807558805, -1.890559680 } } },
    { LUDA_OPTIM_adam, { { "eps", 1e-5 }, { "weight_decay", 0.05 }, { "amsgrad", 1 } },
      { { 0.900001818, -1.900000909 }, { 0.863221044, -1.880522188 }, { 0.793603608, -1.867018726 } } },
    { LUDA_OPTIM_adamw, { { "eps", 1e-5 }, { "weight_decay", 1e-4 } },
      { { 0.899992000, -1.899981000 }, { 0.873349970, -1.891029601 }, { 0.807531071, -1.890501769 } } },
    { LUDA_OPTIM_adamw, { { "eps", 1e-5 }, { "weight_decay", 0.5 }, { "amsgrad", 1 } },
      { { 0.850002000, -1.800001000 }, { 0.780868870, -1.701068550 }, { 0.676015261, -1.615506202 } } },
    { LUDA_OPTIM_adagrad, { { "eps", 1e-5 } },
      { { 0.900002000, -1.900001000 }, { 0.944722560, -1.960000520 }, { 0.857436165, -1.969950813 } } },
    { LUDA_OPTIM_adagrad, { { "eps", 1e-5 }, { "lr_decay", 0.5 } },
      { { 0.900002000, -1.900001000 }, { 0.929815706, -1.940000680 }, { 0.886172509, -1.944975826 } } },
    { LUDA_OPTIM_rmsprop, { { "eps", 1e-5 }, { "momentum", 0.9 } },
      { { 0.000199960, -1.000099990 }, { -0.450687452, -0.702070941 }, { -1.731149279, -0.534155060 } } },
    { LUDA_OPTIM_rmsprop, { { "eps", 1e-5 }, { "centered", 1 } },
      { { -0.004835836, -0.995063185 }, { 0.444531975, -1.597055820 }, { -0.435343453, -1.697370179 } } },
    { LUDA_OPTIM_adan, { { 0 } },
      { { 0.900000002, -1.900000001 }, { 0.931590037, -1.939788138 }, { 0.887984624, -1.959329917 } } },
    { LUDA_OPTIM_adan, { { "weight_decay", 0.02 } },
      { { 0.898203595, -1.896207586 }, { 0.927937754, -1.932131460 }, { 0.882567207, -1.947777683 } } },
    { LUDA_OPTIM_adan, { { "weight_decay", 0.02 }, { "no_prox", 1 } },
      { { 0.898000002, -1.896000001 }, { 0.927794037, -1.931996138 }, { 0.882333036, -1.947673924 } } },
};

static void rules_follow_their_formulas(void)
{
    static const double start[2] = { 1, -2 }, g[3][2] = { { 0.5, -1 }, { -0.25, 0.75 }, { 1, 0.125 } };
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++) {
        const struct sequence *s = &sequences[i];
        for (int dtype = LUDA_F64; dtype <= LUDA_F32; dtype++) {
            luda_tensor *p = vector((luda_dtype)dtype, 2, start);
            luda_optim *optim = make(s->kind, &p, 1, s->choices, NULL);
            for (int t = 0; t < 3; t++) {
                luda_tensor *gradient = vector((luda_dtype)dtype, 2, g[t]);
                step(optim, 0.1, p, gradient);
                for (int k = 0; k < 2; k++) {
                    EXPECT_NEAR(at(p, k), s->right[t][k], dtype == LUDA_F64 ? 6e-10 : 1e-6);
                    EXPECT(at(gradient, k) == g[t][k]);
                }
                luda_tensor_release(gradient);
            }
            EXPECT(luda_optim_steps(optim, 0) == 3);
            luda_optim_release(optim);
            luda_tensor_release(p);
        }
    }
}

/* One parameter of one element over a few gradients. */
static void expect_path(int kind, const choice *choices, double start, double lr, int count, const double *g,
                        const double *right, double tolerance)
{
    luda_tensor *p = vector(LUDA_F64, 1, &start);
    luda_optim *optim = make(kind, &p, 1, choices, NULL);
    for (int t = 0; t < count; t++) {
        luda_tensor *gradient = vector(LUDA_F64, 1, &g[t]);
        step(optim, lr, p, gradient);
        EXPECT_NEAR(at(p, 0), right[t], tolerance);
        luda_tensor_release(gradient);
    }
    luda_optim_release(optim);
    luda_tensor_release(p);
}

static void details_of_formulas(void)
{
    const double half = 0.5, tiny = 1e-6, zero = 0, ones[3] = { 1, 1, 1 }, falling[3] = { 1, 0.1, 0.1 };
    luda_tensor *p = vector(LUDA_F64, 1, &half);
    luda_optim *optim = NULL;
    double values[32];

    /* decay before the update, epsilon after the bias correction, maximum before it */
    expect_path(LUDA_OPTIM_adamw, (choice[]){ { "weight_decay", 0.1 }, { 0 } }, 1, 0.1, 1, &half,
                (double[]){ 0.890000002 }, 1e-9);
    expect_path(LUDA_OPTIM_adamw, (choice[]){ { "weight_decay", 0 }, { 0 } }, 0, 1, 1, &tiny, (double[]){ -0.990099 },
                1e-6);
    expect_path(LUDA_OPTIM_adam, (choice[]){ { "amsgrad", 1 }, { 0 } }, 1, 0.1, 3, falling,
                (double[]){ 0.9, 0.8259, 0.7626 }, 5e-5);
    /* the first momentum is not dampened; decay needs no momentum */
    expect_path(LUDA_OPTIM_sgd, (choice[]){ { "momentum", 0.9 }, { "dampening", 0.5 }, { 0 } }, 1, 0.1, 3, ones,
                (double[]){ 0.9, 0.76, 0.584 }, 1e-12);
    expect_path(LUDA_OPTIM_sgd, (choice[]){ { "momentum", 0.9 }, { "nesterov", 1 }, { 0 } }, 1, 0.1, 3, ones,
                (double[]){ 0.81, 0.539, 0.1951 }, 1e-12);
    expect_path(LUDA_OPTIM_sgd, (choice[]){ { "weight_decay", 0.1 }, { 0 } }, 1, 0.1, 1, &zero, (double[]){ 0.99 },
                1e-12);
    /* cautious: p 1 and m 0.1*0.5 agree, so 1*(1-0.1*0.5) - 0.1; p -1 and m > 0 do not, so -1 - 0.1 */
    expect_path(LUDA_OPTIM_adamw, (choice[]){ { "weight_decay", 0.5 }, { "cautious", 1 }, { "eps", 0 }, { 0 } }, 1,
                0.1, 1, &half, (double[]){ 0.85 }, 1e-12);
    expect_path(LUDA_OPTIM_adamw, (choice[]){ { "weight_decay", 0.5 }, { "cautious", 1 }, { "eps", 0 }, { 0 } }, -1,
                0.1, 1, &half, (double[]){ -1.1 }, 1e-12);

    static const struct { int kind; choice choices[3]; } wrong[] = {
        { LUDA_OPTIM_sgd, { { "nesterov", 1 }, { "momentum", 0.9 }, { "dampening", 0.5 } } },
        { LUDA_OPTIM_sgd, { { "nesterov", 1 } } },   { LUDA_OPTIM_sgd, { { "momentum", 1 } } },
        { LUDA_OPTIM_adam, { { "beta1", 1 } } },     { LUDA_OPTIM_adam, { { "beta2", -0.1 } } },
        { LUDA_OPTIM_adam, { { "eps", NAN } } },     { LUDA_OPTIM_adamw, { { "weight_decay", -1 } } },
        { LUDA_OPTIM_adamw, { { "amsgrad", 2 } } },  { LUDA_OPTIM_rmsprop, { { "alpha", INFINITY } } },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        choice choices[4] = { wrong[i].choices[0], wrong[i].choices[1], wrong[i].choices[2], { 0 } };
        choose(wrong[i].kind, choices, values);
        EXPECT_STATUS(LUDA_EINVAL, luda_optim_new(wrong[i].kind, &p, 1, NULL, values, 1, NULL, &optim));
    }
    EXPECT_STATUS(LUDA_EINVAL, luda_optim_new(LUDA_OPTIM_COUNT, &p, 1, NULL, NULL, 0, NULL, &optim));
    EXPECT(luda_optim_name(LUDA_OPTIM_COUNT) == NULL && strcmp(luda_optim_name(LUDA_OPTIM_adamw), "adamw") == 0);
    luda_tensor_release(p);
}

static void centered_rmsprop_stays_finite(void)
{
    static const double constants[2] = { 10, 12345.678 };
    for (int i = 0; i < 2; i++) {
        double one = 1;
        luda_tensor *p = vector(LUDA_F32, 1, &one), *g = vector(LUDA_F32, 1, &constants[i]);
        luda_optim *optim = make(LUDA_OPTIM_rmsprop, &p, 1, (choice[]){ { "centered", 1 }, { 0 } }, NULL);
        int finite = 1;
        for (int t = 0; t < 2000; t++) {
            step(optim, 1e-3, p, g);
            finite = finite && isfinite(at(p, 0));
        }
        EXPECT(finite);
        luda_optim_release(optim);
        luda_tensor_release(p);
        luda_tensor_release(g);
    }
}

/* --- Many tensors against a float64 twin --- */

enum { TENSORS = 60 };

static double noise(int64_t i, int salt)
{
    uint64_t x = (uint64_t)i * 0x9E3779B97F4A7C15u + (uint64_t)salt * 0xD1B54A32D192ED03u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 32;
    return (double)(int64_t)(x >> 11 & 0xFFFFF) / 0x80000 - 1;
}

/* Sizes around those of slabs and blocks, empty, single, and many small ones. */
static int64_t size_of(int index)
{
    static const int64_t sizes[] = { 0, 1, 65536, 70001, 1023, 1025, 3 };
    return index < 7 ? sizes[index] : index * 7 % 41;
}

static void many_tensors_equal_one_by_one(void)
{
    static luda_tensor *p[2][TENSORS], *g[TENSORS];
    luda_optim *optim[2] = { NULL };
    luda_gradients *gradients = NULL;
    double worst = 0;
    int equal = 1;

    EXPECT_OK(luda_gradients_new(&gradients));
    for (int run = 0; run < 2; run++) {
        EXPECT_OK(luda_set_threads(run == 0 ? 1 : 3));
        for (int i = 0; i < TENSORS; i++) {
            int64_t n = size_of(i);
            double *values = malloc(((size_t)n + 1) * sizeof *values);
            for (int64_t k = 0; k < n; k++)
                values[k] = noise(k, i);
            p[run][i] = vector(LUDA_F32, n, values);
            for (int64_t k = 0; k < n; k++)
                values[k] = noise(k, i + 1000) * 3;
            if (run == 0)
                g[i] = vector(LUDA_F32, n, values);
            set(gradients, p[run][i], g[i]);
            free(values);
        }
        optim[run] = make(LUDA_OPTIM_adamw, p[run], TENSORS, (choice[]){ { "weight_decay", 0.1 }, { 0 } },
                          &(luda_optim_settings){ .max_grad_norm = 10 });
        for (int t = 0; t < 3; t++)
            EXPECT_OK(luda_optim_step(optim[run], 0.01, gradients, NULL));
    }
    double norm = 0;
    for (int i = 0; i < TENSORS; i++)
        for (int64_t k = 0; k < size_of(i); k++)
            norm += pow((float)(noise(k, i + 1000) * 3), 2);
    double coef = 10 / sqrt(norm);
    for (int i = 0; i < TENSORS; i++) {
        int64_t n = size_of(i);
        const float *first = luda_tensor_data(p[0][i]), *second = luda_tensor_data(p[1][i]);
        equal = equal && (n == 0 || memcmp(first, second, (size_t)n * 4) == 0);
        for (int64_t k = 0; k < n; k++) {
            double w = (float)noise(k, i), d = (float)(noise(k, i + 1000) * 3) * coef, m = 0, v = 0;
            for (int t = 1; t <= 3; t++) {
                m = 0.9 * m + 0.1 * d;
                v = 0.999 * v + 0.001 * d * d;
                w = w * (1 - 0.01 * 0.1) - 0.01 * (m / (1 - pow(0.9, t))) / (sqrt(v / (1 - pow(0.999, t))) + 1e-8);
            }
            worst = fmax(worst, fabs(w - first[k]));
        }
    }
    EXPECT(equal); /* for one thread and for three */
    EXPECT_NEAR(worst, 0, 2e-6);
    for (int i = 0; i < TENSORS; i++) {
        luda_tensor_release(g[i]);
        luda_tensor_release(p[0][i]);
        luda_tensor_release(p[1][i]);
    }
    luda_optim_release(optim[0]);
    luda_optim_release(optim[1]);
    luda_gradients_release(gradients);
}

/* What callers see of rules whose states have shapes of their own, and of options that change. */
static void shapes_and_options(void)
{
    double values[12] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };
    int64_t shape[LUDA_MAX_DIMS] = { 2, 3, 2 }, flat = 12;
    luda_tensor *p, *v = vector(LUDA_F64, flat, values), *row;
    luda_optim *optim = NULL;

    EXPECT_OK(luda_reshape(v, 3, shape, &p));
    luda_tensor *both[] = { p, v };
    EXPECT_OK(luda_optim_new(LUDA_OPTIM_adafactor, both, 2, NULL, NULL, 1, NULL, &optim));
    EXPECT(luda_optim_state_shape(optim, 0, 0, shape) == 3);
    EXPECT(shape[0] == 2 && shape[1] == 3 && shape[2] == 1);
    EXPECT(luda_optim_state_shape(optim, 0, 1, shape) == 3);
    EXPECT(shape[0] == 2 && shape[1] == 1 && shape[2] == 2);
    EXPECT(luda_optim_state_shape(optim, 0, 2, shape) == -1);
    EXPECT(luda_optim_state_shape(optim, 1, 0, shape) == -1);
    EXPECT(luda_optim_state_shape(optim, 1, 2, shape) == 1);
    EXPECT(strcmp(luda_optim_state_name(optim, 1, 2), "variance") == 0 && !luda_optim_state_name(optim, 1, 0));
    EXPECT_STATUS(LUDA_EMISMATCH, luda_optim_check_state(optim, 0, 0, p));
    EXPECT_OK(luda_tensor_new(LUDA_F64, cpu, 3, (int64_t[]){ 2, 3, 1 }, &row));
    EXPECT_OK(luda_optim_check_state(optim, 0, 0, row));
    luda_tensor_release(row);
    luda_optim_release(optim);

    EXPECT_STATUS(LUDA_ESHAPE, luda_optim_new(LUDA_OPTIM_muon, both, 2, NULL, NULL, 1, NULL, &optim));
    EXPECT(strstr(luda_last_error(), "must be a whole matrix") != NULL);
    luda_optim_settings clip = { .clip_value = 1 };
    EXPECT_STATUS(LUDA_EINVAL, luda_optim_new(LUDA_OPTIM_muon, both, 0, NULL, NULL, 1, &clip, &optim));

    EXPECT_OK(luda_optim_new(LUDA_OPTIM_sgd, &v, 1, NULL, NULL, 1, NULL, &optim));
    int scale = 0;
    while (strcmp(luda_optim_option(LUDA_OPTIM_sgd, scale)->name, "lr_scale") != 0)
        scale++;
    EXPECT_STATUS(LUDA_EINDEX, luda_optim_set_option(optim, 1, scale, 1));
    EXPECT_STATUS(LUDA_EINDEX, luda_optim_set_option(optim, 0, 99, 1));
    EXPECT_STATUS(LUDA_EINVAL, luda_optim_set_option(optim, 0, scale, -1));
    EXPECT_OK(luda_optim_set_option(optim, 0, scale, 10));
    step(optim, 0.1, v, v); /* 1 - 10 * 0.1 of each value is left */
    EXPECT_NEAR(at(v, 11), 0, 1e-15);
    luda_optim_release(optim);
    luda_tensor_release(p);
    luda_tensor_release(v);
}

int main(void)
{
    static void (*const tests[])(void) = {
        shapes_and_options,
        rules_follow_their_formulas,
        details_of_formulas,
        centered_rmsprop_stays_finite,
        many_tensors_equal_one_by_one,
    };
    return run_all("optim_test", tests, sizeof tests / sizeof *tests);
}
