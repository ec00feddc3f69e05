/*
 * The rules around a step: absent and bad gradients, clipping, layouts, halves and masters, groups, records, and what a
 * failure leaves behind.
 */
#include "optim_helpers.h"

/* --- Around a step --- */

static void absent_gradients_change_nothing(void)
{
    static const double one = 1, zero = 0;
    for (int kind = 0; kind < LUDA_OPTIM_COUNT; kind++) {
        luda_tensor *p[2] = { vector(LUDA_F32, 1, &one), vector(LUDA_F32, 1, &one) }, *g = vector(LUDA_F32, 1, &one);
        luda_tensor *nothing = vector(LUDA_F32, 1, &zero);
        double values[32], before[LUDA_OPTIM_MAX_STATES] = { 0 }, value;
        luda_gradients *gradients = NULL;
        luda_optim *optim = NULL;
        luda_optim_report report;

        choose(kind, NULL, values);
        for (int i = 0; luda_optim_option(kind, i); i++)
            if (strcmp(luda_optim_option(kind, i)->name, "momentum") == 0)
                values[i] = 0.9;
            else if (strcmp(luda_optim_option(kind, i)->name, "weight_decay") == 0)
                values[i] = 0.1;
            else if (strcmp(luda_optim_option(kind, i)->name, "use_muon") == 0)
                values[i] = 0; /* these are no matrices */
        EXPECT_OK(luda_optim_new(kind, p, 2, NULL, values, 1, NULL, &optim));
        EXPECT_OK(luda_gradients_new(&gradients));
        for (int s = 0; s < LUDA_OPTIM_MAX_STATES; s++)
            EXPECT(luda_optim_state(optim, 0, s) == NULL);
        set(gradients, p[0], g);
        set(gradients, p[1], g);
        EXPECT_OK(luda_optim_step(optim, 0.1, gradients, &report));
        EXPECT(report.updated == 2);
        value = at(p[1], 0);
        for (int s = 0; s < LUDA_OPTIM_MAX_STATES; s++)
            if (luda_optim_state_name(optim, 1, s))
                before[s] = at(luda_optim_state(optim, 1, s), 0);
        uint32_t version = luda_tensor_version(p[1]), other = luda_tensor_version(p[0]);
        EXPECT_OK(luda_gradients_set(gradients, luda_tensor_id(p[1]), NULL));
        EXPECT_OK(luda_optim_step(optim, 0.1, gradients, &report));
        EXPECT(report.updated == 1 && at(p[1], 0) == value && luda_optim_steps(optim, 1) == 1 &&
               luda_optim_steps(optim, 0) == 2);
        EXPECT(luda_tensor_version(p[1]) == version && luda_tensor_version(p[0]) > other);
        for (int s = 0; s < LUDA_OPTIM_MAX_STATES; s++)
            if (luda_optim_state_name(optim, 1, s))
                EXPECT(at(luda_optim_state(optim, 1, s), 0) == before[s]);
        step(optim, 0.1, p[1], nothing); /* a gradient of zero is one */
        EXPECT(luda_optim_steps(optim, 1) == 2 && at(p[1], 0) != value);
        luda_gradients_release(gradients);
        luda_optim_release(optim);
        luda_tensor_release(p[0]);
        luda_tensor_release(p[1]);
        luda_tensor_release(g);
        luda_tensor_release(nothing);
    }
}

static void bad_gradients_skip_the_step(void)
{
    const double bad[4][2] = { { INFINITY, 1 }, { 1, NAN }, { -INFINITY, INFINITY }, { 1, 1 } }, start[2] = { 1, -2 };
    for (int dtype = LUDA_F64; dtype <= LUDA_BF16; dtype++) {
        luda_tensor *p[2] = { vector((luda_dtype)dtype, 2, start), vector((luda_dtype)dtype, 2, start) };
        luda_optim *optim = make(LUDA_OPTIM_adam, p, 2, NULL, &(luda_optim_settings){ .max_grad_norm = 1 });
        luda_gradients *gradients = NULL;
        luda_optim_report report;
        luda_tensor *good = vector((luda_dtype)dtype, 2, bad[3]);
        EXPECT_OK(luda_gradients_new(&gradients));
        set(gradients, p[0], good);
        for (int i = 0; i < 3; i++) {
            luda_tensor *g = vector((luda_dtype)dtype, 2, bad[i]);
            set(gradients, p[1], g);
            EXPECT_OK(luda_optim_step(optim, 0.1, gradients, &report));
            EXPECT(report.skipped && report.updated == 0 && !isfinite(report.grad_norm));
            EXPECT(at(p[0], 0) == 1 && at(p[1], 1) == -2 && luda_optim_steps(optim, 0) == 0);
            EXPECT(luda_optim_state(optim, 0, 0) == NULL && luda_tensor_version(p[0]) == luda_tensor_version(p[1]));
            luda_tensor_release(g);
        }
        set(gradients, p[1], good);
        EXPECT_OK(luda_optim_step(optim, 0.1, gradients, &report));
        EXPECT(!report.skipped && luda_optim_steps(optim, 1) == 1);
        EXPECT_NEAR(report.grad_norm, 2, 1e-12);
        EXPECT_NEAR(report.clip_coef, 0.5, 1e-12);
        luda_tensor_release(good);
        luda_gradients_release(gradients);
        luda_optim_release(optim);
        luda_tensor_release(p[0]);
        luda_tensor_release(p[1]);
    }
}

/* One SGD step of rate 1 from 0: the parameter is minus the gradient that the rule saw. */
static luda_optim_report seen(luda_dtype dtype, const luda_optim_settings *settings, const double g[2], double out[2])
{
    const double zero[2] = { 0, 0 };
    luda_tensor *p = vector(dtype, 2, zero), *gradient = vector(dtype, 2, g);
    luda_optim *optim = make(LUDA_OPTIM_sgd, &p, 1, NULL, settings);
    luda_optim_report report = step(optim, 1, p, gradient);
    for (int i = 0; i < 2; i++) {
        out[i] = -at(p, i);
        EXPECT(at(gradient, i) == g[i]);
    }
    luda_optim_release(optim);
    luda_tensor_release(p);
    luda_tensor_release(gradient);
    return report;
}

static void clipping(void)
{
    const double g[2] = { 3, -4 }, zero[2] = { 0, 0 }, odd[2] = { 0.1, 0.3 }, huge[2] = { 3e200, -4e200 },
                 big[2] = { 3e38, -3e38 };
    const luda_optim_settings global = { .max_grad_norm = 1 }, each = { .clip_norm = 1 }, value = { .clip_value = 3.5 };
    const luda_optim_settings infinite = { .max_grad_norm = INFINITY },
                              scaled = { .max_grad_norm = 1, .gradient_scale = 4 };
    double out[2];

    luda_optim_report report = seen(LUDA_F64, &global, g, out);
    EXPECT_NEAR(out[0], 0.6, 1e-15);
    EXPECT_NEAR(out[1], -0.8, 1e-15);
    EXPECT(report.grad_norm == 5 && report.clip_coef == 0.2);
    report = seen(LUDA_F64, &each, g, out);
    EXPECT_NEAR(out[0], 0.6, 1e-15);
    EXPECT(report.grad_norm == 5 && report.clip_coef == 1);
    seen(LUDA_F32, &value, g, out);
    EXPECT(out[0] == 3 && out[1] == -3.5);
    report = seen(LUDA_F64, &global, zero, out);
    EXPECT(out[0] == 0 && out[1] == 0 && report.grad_norm == 0 && report.clip_coef == 1);
    seen(LUDA_F64, &global, odd, out); /* below the limit: the same bits */
    EXPECT(out[0] == 0.1 && out[1] == 0.3);
    seen(LUDA_F64, &infinite, g, out);
    EXPECT(out[0] == 3 && out[1] == -4);
    report = seen(LUDA_F64, &scaled, g, out); /* the limit is for unscaled gradients: the norm is 1.25 */
    EXPECT_NEAR(out[0], 0.6, 1e-15);
    EXPECT(report.grad_norm == 1.25 && report.clip_coef == 0.8);
    report = seen(LUDA_F64, &global, huge, out);
    EXPECT_NEAR(report.grad_norm / 5e200, 1, 1e-14);
    EXPECT_NEAR(out[0], 0.6, 1e-14);
    seen(LUDA_F32, &global, (double[]){ (float)big[0], (float)big[1] }, out);
    EXPECT_NEAR(out[0], sqrt(0.5), 1e-6);

    static const luda_optim_settings wrong[] = {
        { .max_grad_norm = -1 },      { .clip_norm = NAN },
        { .clip_value = -1 },         { .clip_norm = 1, .clip_value = 1 },
        { .gradient_scale = -1 },     { .gradient_scale = INFINITY },
        { .gradient_scale = 1e-320 }, { .max_grad_norm = 1, .clip_norm = 1 },
    };
    luda_tensor *p = vector(LUDA_F32, 2, g);
    luda_optim *optim = make(LUDA_OPTIM_sgd, &p, 1, NULL, NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EXPECT_STATUS(LUDA_EINVAL, luda_optim_set_settings(optim, &wrong[i]));
    luda_optim_release(optim);
    luda_tensor_release(p);
}

static void layouts_of_parameters_and_gradients(void)
{
    const double six[6] = { 1, -2, 3, -4, 5, -6 }, lone = 0.5;
    int64_t shape[2] = { 2, 3 };
    luda_tensor *x = vector(LUDA_F32, 6, six), *base = NULL, *turned = NULL, *one = vector(LUDA_F32, 1, &lone),
                *wide = NULL;
    EXPECT_OK(luda_reshape(x, 2, shape, &base));
    EXPECT_OK(luda_transpose(base, &(struct luda_transpose_attrs){ 0, 1 }, &turned));
    EXPECT_OK(luda_expand(one, &(struct luda_expand_attrs){ { 2, { 3, 2 } } }, &wide));
    luda_optim *optim = make(LUDA_OPTIM_sgd, &turned, 1, (choice[]){ { "momentum", 0.5 }, { 0 } }, NULL);
    step(optim, 1, turned, wide); /* a view with gaps, and a gradient of one element seen six times */
    for (int i = 0; i < 6; i++)
        EXPECT(at(x, i) == six[i] - 0.5);
    EXPECT(at(one, 0) == 0.5);
    step(optim, 1, turned, turned); /* v = 0.5 * 0.5 + x, so x - v = -0.25; its own gradient is a copy */
    for (int i = 0; i < 6; i++)
        EXPECT(at(x, i) == -0.25);
    luda_optim_release(optim);

    luda_tensor *scalar = NULL, *empty = NULL, *gradient = NULL;
    int64_t none = 0;
    EXPECT_OK(luda_tensor_scalar(2, LUDA_F64, &scalar));
    EXPECT_OK(luda_tensor_scalar(0.5, LUDA_F64, &gradient));
    EXPECT_OK(luda_tensor_new(LUDA_F32, cpu, 1, &none, &empty));
    luda_tensor *both[2] = { scalar, empty };
    optim = make(LUDA_OPTIM_adamw, both, 2, (choice[]){ { "weight_decay", 0 }, { 0 } }, NULL);
    step(optim, 0.25, scalar, gradient);
    EXPECT_NEAR(at(scalar, 0), 1.75, 1e-7);
    step(optim, 0.25, empty, empty);
    EXPECT(luda_optim_steps(optim, 1) == 1);
    luda_optim_release(optim);
    EXPECT_STATUS(LUDA_EINVAL, luda_optim_new(LUDA_OPTIM_sgd, &wide, 1, NULL, NULL, 0, NULL, &optim));
    EXPECT_STATUS(LUDA_EINVAL,
                  luda_optim_new(LUDA_OPTIM_sgd, (luda_tensor *[]){ x, x }, 2, NULL, NULL, 0, NULL, &optim));
    luda_tensor *list[] = { x, base, turned, one, wide, scalar, empty, gradient };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        luda_tensor_release(list[i]);
}

static void wrong_gradients_are_named(void)
{
    const double two[3] = { 1, 2, 3 };
    luda_tensor *p = vector(LUDA_F32, 2, two), *longer = vector(LUDA_F32, 3, two), *wide = vector(LUDA_F64, 2, two),
                *index = NULL;
    luda_tensor *other = vector(LUDA_F32, 2, two), *both[2] = { other, p };
    luda_optim *optim = make(LUDA_OPTIM_adam, both, 2, NULL, NULL);
    luda_gradients *gradients = NULL;
    char id[32];

    snprintf(id, sizeof id, "%llu", (unsigned long long)luda_tensor_id(p));
    EXPECT_OK(luda_gradients_new(&gradients));
    set(gradients, other, other);
    set(gradients, p, longer);
    EXPECT_STATUS(LUDA_ESHAPE, luda_optim_step(optim, 0.1, gradients, NULL));
    EXPECT(strstr(luda_last_error(), id) && strstr(luda_last_error(), "[3]") && strstr(luda_last_error(), "[2]"));
    set(gradients, p, wide);
    EXPECT_STATUS(LUDA_EDTYPE, luda_optim_step(optim, 0.1, gradients, NULL));
    EXPECT(strstr(luda_last_error(), id) != NULL);
    set(gradients, p, other);
    EXPECT_STATUS(LUDA_EINVAL, luda_optim_step(optim, NAN, gradients, NULL));
    EXPECT_STATUS(LUDA_EINVAL, luda_optim_step(optim, -1, gradients, NULL));
    EXPECT(at(other, 0) == 1 && luda_optim_steps(optim, 0) == 0 && luda_optim_state(optim, 0, 0) == NULL);
    EXPECT_OK(luda_tensor_new(LUDA_I32, cpu, 0, NULL, &index));
    luda_optim *refused = NULL;
    EXPECT_STATUS(LUDA_EDTYPE, luda_optim_new(LUDA_OPTIM_sgd, &index, 1, NULL, NULL, 0, NULL, &refused));
    luda_optim_release(optim);
    luda_gradients_release(gradients);
    luda_tensor *list[] = { p, longer, wide, other, index };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        luda_tensor_release(list[i]);
}

static void a_step_without_memory_changes_nothing(void)
{
    enum { LARGE = 300000 };
    static double values[LARGE];
    const double two[2] = { 1, -2 };
    luda_tensor *p[2] = { vector(LUDA_F32, 2, two), vector(LUDA_F32, LARGE, values) };
    luda_optim *optim = make(LUDA_OPTIM_adam, p, 2, NULL, NULL);
    luda_gradients *gradients = gradients_of(p[0], p[0]);
    luda_memory_info memory;

    set(gradients, p[1], p[1]);
    EXPECT_OK(luda_memory(cpu, &memory));
    EXPECT_OK(luda_set_memory_limit(cpu, memory.live + 100000));
    EXPECT_STATUS(LUDA_ENOMEM, luda_optim_step(optim, 0.1, gradients, NULL));
    EXPECT(at(p[0], 0) == 1 && luda_optim_steps(optim, 0) == 0 && luda_optim_state(optim, 0, 0) == NULL);
    EXPECT_OK(luda_set_memory_limit(cpu, 0));
    EXPECT_OK(luda_optim_step(optim, 0.1, gradients, NULL));
    EXPECT_NEAR(at(p[0], 0), 0.9, 1e-7);
    luda_gradients_release(gradients);
    luda_optim_release(optim);
    luda_tensor_release(p[0]);
    luda_tensor_release(p[1]);
}

/* --- Halves --- */

/* Rules that need memory at every step fail before they touch a state. */
static void a_later_step_without_memory_changes_nothing(void)
{
    enum { ROWS = 300, COLUMNS = 400 };
    static double values[ROWS * COLUMNS];
    const int64_t shape[2] = { ROWS, COLUMNS };
    const int kinds[] = { LUDA_OPTIM_muon, LUDA_OPTIM_lamb, LUDA_OPTIM_adafactor };

    for (int i = 0; i < ROWS * COLUMNS; i++)
        values[i] = sin(i * 0.7) + 0.1;
    for (int k = 0; k < 3; k++) {
        luda_tensor *p[2], *state;
        luda_gradients *gradients;
        luda_memory_info memory;
        EXPECT_OK(luda_gradients_new(&gradients));
        for (int i = 0; i < 2; i++) {
            EXPECT_OK(luda_tensor_new(LUDA_F32, cpu, 2, shape, &p[i]));
            EXPECT_OK(luda_tensor_write(p[i], LUDA_F64, values, ROWS * COLUMNS));
            set(gradients, p[i], p[i]);
        }
        luda_optim *optim = make(kinds[k], p, 2, NULL, NULL);
        EXPECT_OK(luda_optim_step(optim, 0.1, gradients, NULL));
        int position = kinds[k] == LUDA_OPTIM_muon ? 2 : 0;
        state = luda_optim_state(optim, 0, position);
        double value = at(p[0], 5), kept = at(state, 5);
        EXPECT_OK(luda_memory(cpu, &memory));
        EXPECT_OK(luda_set_memory_limit(cpu, memory.live + 700000));
        EXPECT_STATUS(LUDA_ENOMEM, luda_optim_step(optim, 0.1, gradients, NULL));
        EXPECT_OK(luda_set_memory_limit(cpu, 0));
        EXPECT(at(p[0], 5) == value && luda_optim_state(optim, 0, position) == state && at(state, 5) == kept);
        EXPECT(luda_optim_steps(optim, 0) == 1);
        EXPECT_OK(luda_optim_step(optim, 0.1, gradients, NULL));
        EXPECT(at(p[0], 5) != value && at(state, 5) != kept);
        luda_gradients_release(gradients);
        luda_optim_release(optim);
        luda_tensor_release(p[0]);
        luda_tensor_release(p[1]);
    }
}

static void halves_and_masters(void)
{
    const double one = 1, small = 1;
    for (int dtype = LUDA_F16; dtype <= LUDA_BF16; dtype++) {
        luda_tensor *p[2] = { vector((luda_dtype)dtype, 1, &one), vector((luda_dtype)dtype, 1, &one) };
        luda_tensor *g[2] = { vector((luda_dtype)dtype, 1, &small), vector(LUDA_F32, 1, &small) };
        luda_optim *plain = make(LUDA_OPTIM_sgd, &p[0], 1, (choice[]){ { "momentum", 0.5 }, { 0 } }, NULL);
        luda_optim *master = make(LUDA_OPTIM_sgd, &p[1], 1, NULL, &(luda_optim_settings){ .fp32_master = 1 });
        EXPECT(strcmp(luda_optim_state_name(master, 0, 4), "master") == 0 &&
               luda_optim_state_name(plain, 0, 4) == NULL);
        EXPECT(luda_optim_state_dtype(plain, 0, 0) == LUDA_F32);
        for (int t = 0; t < 64; t++) {
            step(plain, 1e-4, p[0], g[t % 2]);
            step(master, 1e-4, p[1], g[t % 2]);
        }
        /* bfloat16 has steps of 2^-8 below 1, so 1e-4 is lost each time; the master collects them */
        double right = 1 - 64e-4, unit = dtype == LUDA_F16 ? 0x1p-11 : 0x1p-8;
        EXPECT_NEAR(at(luda_optim_state(master, 0, 4), 0), right, 64 * 0x1p-25); /* 64 roundings */
        EXPECT_NEAR(at(p[1], 0), round(right / unit) * unit, 0);
        EXPECT(dtype == LUDA_F16 || at(p[0], 0) == 1);
        EXPECT(luda_tensor_dtype(luda_optim_state(plain, 0, 0)) == LUDA_F32);
        luda_optim_release(plain);
        luda_optim_release(master);
        for (int i = 0; i < 2; i++) {
            luda_tensor_release(p[i]);
            luda_tensor_release(g[i]);
        }
    }
    /* (1000, -2000) and 16 times that, clipped to 1 after the division: the same direction */
    double out[2][2];
    seen(LUDA_F16, &(luda_optim_settings){ .clip_norm = 1, .fp32_master = 1 }, (double[]){ 1000, -2000 }, out[0]);
    seen(LUDA_F16, &(luda_optim_settings){ .clip_norm = 1, .fp32_master = 1, .gradient_scale = 16 },
         (double[]){ 16000, -32000 }, out[1]);
    EXPECT(out[0][0] == out[1][0] && out[0][1] == out[1][1]);
    EXPECT_NEAR(out[0][0], 1 / sqrt(5), 1e-3);
    EXPECT_NEAR(out[0][1], -2 / sqrt(5), 1e-3);
}

/* --- Groups and records --- */

static void groups_have_their_own_options(void)
{
    const double one = 1, zero = 0;
    luda_tensor *p[3] = { vector(LUDA_F64, 1, &one), vector(LUDA_F64, 1, &one), vector(LUDA_F64, 1, &one) };
    luda_tensor *g[3] = { vector(LUDA_F64, 1, &zero), vector(LUDA_F64, 1, &zero), vector(LUDA_F64, 1, &one) };
    double values[2][16], packed[32];
    int32_t group[3] = { 0, 1, 1 }, wrong[3] = { 0, 2, 1 };
    luda_optim *optim = NULL;
    luda_gradients *gradients = NULL;
    int width = 0;

    while (luda_optim_option(LUDA_OPTIM_sgd, width))
        width++;
    choose(LUDA_OPTIM_sgd, (choice[]){ { "weight_decay", 0.5 }, { 0 } }, values[0]);
    choose(LUDA_OPTIM_sgd, (choice[]){ { "lr_scale", 0.25 }, { 0 } }, values[1]);
    memcpy(packed, values[0], (size_t)width * sizeof(double));
    memcpy(packed + width, values[1], (size_t)width * sizeof(double));
    EXPECT_STATUS(LUDA_EINDEX, luda_optim_new(LUDA_OPTIM_sgd, p, 3, wrong, packed, 2, NULL, &optim));
    EXPECT_OK(luda_optim_new(LUDA_OPTIM_sgd, p, 3, group, packed, 2, NULL, &optim));
    EXPECT_OK(luda_gradients_new(&gradients));
    for (int i = 0; i < 3; i++)
        set(gradients, p[i], g[i]);
    EXPECT_OK(luda_optim_step(optim, 0.5, gradients, NULL));
    EXPECT(at(p[0], 0) == 0.75 && at(p[1], 0) == 1 && at(p[2], 0) == 1 - 0.125);
    luda_optim_release(optim);
    luda_gradients_release(gradients);
    for (int i = 0; i < 3; i++) {
        luda_tensor_release(p[i]);
        luda_tensor_release(g[i]);
    }
}

static void states_move_to_another_optimizer(void)
{
    const double start[2] = { 1, -2 }, g[2] = { 0.3, -0.7 };
    const luda_optim_settings settings = { .fp32_master = 1 };
    const choice vectors[] = { { "use_muon", 0 }, { NULL, 0 } };
    for (int kind = 0; kind < LUDA_OPTIM_COUNT; kind++) {
        const choice *choices = kind == LUDA_OPTIM_muon ? vectors : NULL;
        luda_tensor *p = vector(LUDA_BF16, 2, start), *gradient = vector(LUDA_BF16, 2, g), *q = NULL;
        luda_optim *first = make(kind, &p, 1, choices, &settings), *second;
        for (int t = 0; t < 5; t++)
            step(first, 0.01, p, gradient);
        double now[2] = { at(p, 0), at(p, 1) };
        q = vector(LUDA_BF16, 2, now);
        second = make(kind, &q, 1, choices, &settings);
        EXPECT_OK(luda_optim_set_steps(second, 0, luda_optim_steps(first, 0)));
        for (int s = 0; s < LUDA_OPTIM_MAX_STATES; s++)
            if (luda_optim_state_name(first, 0, s))
                EXPECT_OK(luda_optim_set_state(second, 0, s, luda_optim_state(first, 0, s)));
        for (int t = 0; t < 5; t++) {
            step(first, 0.01, p, gradient);
            step(second, 0.01, q, gradient);
        }
        EXPECT(at(p, 0) == at(q, 0) && at(p, 1) == at(q, 1));
        EXPECT(memcmp(luda_tensor_data(luda_optim_state(first, 0, 4)),
                      luda_tensor_data(luda_optim_state(second, 0, 4)), 8) == 0);
        EXPECT_STATUS(LUDA_EMISMATCH, luda_optim_set_state(second, 0, 4, q));
        EXPECT_STATUS(LUDA_EINDEX, luda_optim_set_state(second, 0, 5, q));
        EXPECT_STATUS(LUDA_EINVAL, luda_optim_set_steps(second, 0, -1));
        EXPECT_OK(luda_optim_set_steps(second, 0, 0));
        EXPECT(luda_optim_state(second, 0, 4) == NULL);
        luda_optim_release(first);
        luda_optim_release(second);
        luda_tensor_release(p);
        luda_tensor_release(q);
        luda_tensor_release(gradient);
    }
}

int main(void)
{
    static void (*const tests[])(void) = {
        absent_gradients_change_nothing,
        bad_gradients_skip_the_step,
        clipping,
        layouts_of_parameters_and_gradients,
        wrong_gradients_are_named,
        a_step_without_memory_changes_nothing,
        a_later_step_without_memory_changes_nothing,
        halves_and_masters,
        groups_have_their_own_options,
        states_move_to_another_optimizer,
    };
    return run_all("optim_step_test", tests, sizeof tests / sizeof *tests);
}
