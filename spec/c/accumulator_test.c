/*
 * Sums of gradients over backward passes, clipping of gradients, a x + b y over lists.
 */
#include "optim_helpers.h"

/* --- Gradients and accumulation --- */

static void add(luda_accumulator *a, luda_tensor *parameter, luda_dtype dtype, double gradient, double weight, int as)
{
    luda_tensor *g = vector(dtype, 1, &gradient);
    luda_gradients *gradients = gradients_of(parameter, g);
    EXPECT_OK(luda_accumulator_add(a, gradients, weight, as));
    EXPECT_NEAR(at(g, 0), gradient, 0);
    luda_gradients_release(gradients);
    luda_tensor_release(g);
}

static double taken(luda_accumulator *a, luda_tensor *parameter, int mean)
{
    luda_gradients *gradients = NULL;
    EXPECT_OK(luda_accumulator_take(a, mean, &gradients));
    luda_tensor *sum = luda_gradients_get(gradients, luda_tensor_id(parameter));
    double value = sum ? at(sum, 0) : NAN;
    luda_gradients_release(gradients);
    return value;
}

static void accumulation(void)
{
    const double zero = 0;
    luda_accumulator *a = NULL;
    for (int dtype = LUDA_F16; dtype <= LUDA_BF16; dtype++) {
        luda_tensor *p = vector((luda_dtype)dtype, 1, &zero);
        EXPECT_OK(luda_accumulator_new(&p, 1, &a));
        for (int f32 = 0; f32 < 2; f32++) {
            add(a, p, (luda_dtype)dtype, 1024, 1, f32 ? LUDA_F32 : -1);
            for (int i = 0; i < 8; i++)
                add(a, p, (luda_dtype)dtype, 0.125, 1, f32 ? LUDA_F32 : -1);
            EXPECT(luda_accumulator_count(a) == 9 && luda_accumulator_weight(a) == 9);
            EXPECT(luda_tensor_dtype(luda_accumulator_sum(a, 0)) == (f32 ? LUDA_F32 : (luda_dtype)dtype));
            EXPECT(taken(a, p, 0) == (f32 ? 1025 : 1024));
            EXPECT(luda_accumulator_count(a) == 0 && luda_accumulator_sum(a, 0) == NULL);
        }
        add(a, p, (luda_dtype)dtype, 1024, 1, -1);
        for (int i = 0; i < 8; i++)
            add(a, p, (luda_dtype)dtype, 0.125, 1, LUDA_F32); /* the sum so far becomes float32 too */
        EXPECT(taken(a, p, 0) == 1025);
        luda_accumulator_release(a);
        luda_tensor_release(p);
    }
    luda_tensor *p = vector(LUDA_F32, 1, &zero), *q = vector(LUDA_F32, 1, &zero);
    luda_gradients *none = NULL;
    EXPECT_OK(luda_accumulator_new(&p, 1, &a));
    add(a, p, LUDA_F32, 3, 1, -1); /* means over 1, 3 and 0 tokens */
    add(a, p, LUDA_F32, 1, 3, -1);
    add(a, p, LUDA_F32, NAN, 0, -1);
    EXPECT(taken(a, p, 1) == 1.5);
    EXPECT_STATUS(LUDA_EINVAL, luda_accumulator_take(a, 1, &none));
    add(a, q, LUDA_F32, 3, 1, -1); /* somebody else's */
    EXPECT(isnan(taken(a, p, 0)));
    luda_gradients *wrong = gradients_of(p, p);
    EXPECT_STATUS(LUDA_EINVAL, luda_accumulator_add(a, wrong, -1, -1));
    EXPECT_STATUS(LUDA_EDTYPE, luda_accumulator_add(a, wrong, 1, LUDA_I32));
    EXPECT(luda_accumulator_count(a) == 0);
    luda_gradients_release(wrong);
    luda_accumulator_release(a);
    luda_tensor_release(p);
    luda_tensor_release(q);
}

static void accumulation_keeps_its_own_memory(void)
{
    const double lone = 0.5, zeros[3] = { 0 };
    luda_tensor *p = vector(LUDA_F32, 3, zeros), *one = vector(LUDA_F32, 1, &lone), *wide = NULL, *copy = NULL;
    luda_accumulator *a = NULL;
    EXPECT_OK(luda_expand(one, &(struct luda_expand_attrs){ { 1, { 3 } } }, &wide));
    EXPECT_OK(luda_accumulator_new(&p, 1, &a));
    luda_gradients *gradients = gradients_of(p, wide);
    EXPECT_OK(luda_accumulator_add(a, gradients, 1, -1));
    EXPECT_OK(luda_accumulator_add(a, gradients, 1, -1));
    luda_tensor *sum = luda_accumulator_sum(a, 0);
    EXPECT(at(sum, 0) == 1 && at(sum, 2) == 1 && at(one, 0) == 0.5 && !luda_tensor_same_storage(sum, one));
    EXPECT_OK(luda_contiguous(sum, &copy));
    luda_tensor *wrong = vector(LUDA_F32, 1, &lone);
    EXPECT_STATUS(LUDA_EMISMATCH, luda_accumulator_set(a, &wrong, 7, 7));
    EXPECT(luda_accumulator_count(a) == 2);
    EXPECT_OK(luda_accumulator_set(a, &copy, 7, 3.5));
    EXPECT(luda_accumulator_count(a) == 7 && luda_accumulator_weight(a) == 3.5 &&
           at(luda_accumulator_sum(a, 0), 1) == 1);
    luda_gradients_release(gradients);
    luda_accumulator_release(a);
    luda_tensor *list[] = { p, one, wide, copy, wrong };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        luda_tensor_release(list[i]);
}

static void clipping_of_gradients(void)
{
    const double v[2] = { 3, -4 };
    luda_tensor *g = vector(LUDA_F32, 2, v), *h = vector(LUDA_F32, 2, v), *k = vector(LUDA_BF16, 2, v);
    luda_gradients *gradients = gradients_of(g, g);
    double norm = 0;
    set(gradients, h, g); /* two parameters share one gradient */
    EXPECT_OK(luda_gradients_norm(gradients, &norm));
    EXPECT_NEAR(norm, sqrt(50), 1e-14);
    EXPECT_OK(luda_gradients_clip_norm(gradients, 8, &norm));
    EXPECT(luda_gradients_get(gradients, luda_tensor_id(h)) == g);
    EXPECT_OK(luda_gradients_clip_norm(gradients, sqrt(2), &norm));
    EXPECT_NEAR(norm, sqrt(50), 1e-14);
    EXPECT_NEAR(at(luda_gradients_get(gradients, luda_tensor_id(h)), 0), 0.6, 1e-7);
    EXPECT_NEAR(at(luda_gradients_get(gradients, luda_tensor_id(g)), 1), -0.8, 1e-7);
    EXPECT(at(g, 0) == 3);
    set(gradients, k, k);
    EXPECT_OK(luda_gradients_clip_value(gradients, 0.75));
    EXPECT(at(luda_gradients_get(gradients, luda_tensor_id(g)), 1) == -0.75 && at(g, 1) == -4); /* shared: a copy */
    EXPECT(luda_gradients_get(gradients, luda_tensor_id(k)) == k && at(k, 0) == 0.75 && at(k, 1) == -0.75); /* in place */
    EXPECT_STATUS(LUDA_EINVAL, luda_gradients_clip_norm(gradients, -1, NULL));
    EXPECT_STATUS(LUDA_EINVAL, luda_gradients_clip_value(gradients, 0));
    EXPECT_OK(luda_gradients_scale(gradients, 0x1p-140)); /* no number that a bfloat16 has */
    luda_tensor *scaled = luda_gradients_get(gradients, luda_tensor_id(k));
    EXPECT(luda_tensor_dtype(scaled) == LUDA_F32 && at(scaled, 0) == 0.75 * 0x1p-140 && at(k, 0) == 0.75);
    luda_gradients_release(gradients);

    luda_tensor *targets[2] = { g, k }, *sources[2] = { h, h };
    EXPECT_OK(luda_axpby(targets, sources, 2, 0.25, 0.5)); /* 0.5 * 3 + 0.25 * 3, 0.5 * -0.75 - 0.25 * 4 */
    EXPECT(at(g, 0) == 2.25 && at(k, 1) == -1.375 && at(h, 0) == 3);
    EXPECT_OK(luda_axpby(targets, sources, 1, 2, 0));
    EXPECT(at(g, 1) == -8);
    luda_tensor_release(g);
    luda_tensor_release(h);
    luda_tensor_release(k);
}

int main(void)
{
    static void (*const tests[])(void) = {
        accumulation,
        accumulation_keeps_its_own_memory,
        clipping_of_gradients,
    };
    return run_all("accumulator_test", tests, sizeof tests / sizeof *tests);
}
