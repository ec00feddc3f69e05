/* CPU kernels of every level against double references: elementwise rows, casts, creation, reductions, index data. */
#include "kernels_check.h"

#include <float.h>

/* --- Which pairs exist: the types column is the rule --- */

static int admitted(const char *types, int dtype)
{
    static const char *const float_only[] = { "FLOAT",         "FLOAT_ONLY",    "CREATE_FLOAT",
                                              "NORM",          "NORM_BACKWARD", "RMS_NORM",
                                              "LOSS_BACKWARD", "ATTENTION",     "ATTENTION_BACKWARD",
                                              "LINEAR",        "CONV",          "RMS_NORM_BACKWARD",
                                              "LOSS" };
    if (strcmp(types, "VIEW") == 0)
        return 0;
    for (size_t i = 0; i < sizeof float_only / sizeof *float_only; i++)
        if (strcmp(types, float_only[i]) == 0)
            return is_float(dtype);
    if (strcmp(types, "MATRIX") == 0)
        return dtype == LUDA_F32 || dtype == LUDA_F64;
    if (strcmp(types, "INTEGER") == 0)
        return !is_float(dtype) && dtype != LUDA_BOOL;
    if (strcmp(types, "BITS") == 0)
        return !is_float(dtype);
    return dtype != LUDA_BOOL || (strcmp(types, "NUM") != 0 && strcmp(types, "FLOAT_NUM") != 0);
}

static void test_table(void)
{
    for (int op = 0; op < LUDA_OP_COUNT; op++)
        for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++) {
            int wanted = admitted(luda_op_get(op)->types, dtype);
            CHECK((level->kernels[op][dtype] != NULL) == wanted, "%s of %s", luda_op_get(op)->name,
                  luda_dtype_name((luda_dtype)dtype));
        }
}

/* --- Elementwise rows: the row's own expression over libm's double functions --- */

static double reference_remainder(double x, double y)
{
    return x - floor(x / y) * y;
}

static double reference_gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double reference_slope(double x)
{
    return (reference_gelu_tanh(x + 1e-5) - reference_gelu_tanh(x - 1e-5)) / 2e-5;
}

#define POW(x, y) pow(x, y)
#define REMAINDER(x, y) reference_remainder(x, y)
#define MAXIMUM(x, y) fmax(x, y)
#define MINIMUM(x, y) fmin(x, y)
#define ABS(x) fabs(x)
#define SIGN(x) ((x) == 0 ? 0 : copysign(1, x))
#define SQRT(x) sqrt(x)
#define EXP(x) exp(x)
#define LOG(x) log(x)
#define SIN(x) sin(x)
#define COS(x) cos(x)
#define TANH(x) tanh(x)
#define SIGMOID(x) (1 / (1 + exp(-(x))))
#define ERF(x) erf(x)
#define RELU(x) fmax(x, 0)
#define GELU(x) ((x)*0.5 * (1 + erf((x) / sqrt(2))))
#define GELU_TANH(x) reference_gelu_tanh(x)
#define GELU_TANH_SLOPE(x) reference_slope(x)
#define GELU_SLOPE(x) (0.5 * (1 + erf((x) / sqrt(2))) + (x)*exp(-(x) * (x) / 2) / sqrt(2 * acos(-1)))
#define SILU_SLOPE(x) ((1 + exp(-(x)) + (x)*exp(-(x))) / ((1 + exp(-(x))) * (1 + exp(-(x)))))

/* Rows of LUDA_CALL have their values from PyTorch, in Lua. */
#define LUDA_CALL(...)
#define LUDA_PLAIN(...)
#define LUDA_MAP(name, nin, nout, types, expression, ...) \
    static double reference_of_##name(double x, double y) \
    {                                                     \
        (void)y;                                          \
        return expression;                                \
    }
#include "../../kernels/ops.def"

static const struct {
    int op, nin;
    const char *sample;
    double (*reference)(double, double);
} maps[] = {
#define LUDA_CALL(...)
#define LUDA_PLAIN(...)
#define LUDA_MAP(name, nin, nout, types, expression, shape, gradient, keeps, sample, ...) \
    { LUDA_OP_##name, nin, sample, reference_of_##name },
#include "../../kernels/ops.def"
};

/* x and y have the layouts given; y is broadcast by strides of 0 where mode is 1 (a number) or 2 (a column). */
static void check_map(size_t m, int dtype, int layout, int mode, int64_t rows, int64_t columns)
{
    int positive = strstr(maps[m].sample, "positive") != NULL, whole = !is_float(dtype);
    int compare = strcmp(luda_op_get(maps[m].op)->types, "COMPARE") == 0;
    tensor x = make(dtype, layout, SHAPE(rows, columns)),
           y = make(dtype, mode ? CONTIGUOUS : LAYOUTS - 1 - layout, SHAPE(rows, columns));
    tensor out = make(compare ? LUDA_BOOL : dtype, layout == STRIDED ? STRIDED : CONTIGUOUS, SHAPE(rows, columns));
    fill(&x, positive ? 0.25 : -4, 4);
    fill(&y, positive ? 0.25 : -4, 4);
    for (int64_t i = 0; i < y.o.numel; i++) /* divisors */
        if (at(&y, i) == 0 && maps[m].nin == 2 && dtype != LUDA_BOOL)
            set(&y, i, whole ? 3 : 0.625);
    if (mode)
        y.o.stride[1] = 0;
    if (mode == 1)
        y.o.stride[0] = 0;
    luda_operand in[] = { x.o, y.o };
    luda_status status = run(maps[m].op, dtype, in, maps[m].nin, &out.o, 1, NULL);
    CHECK(status == LUDA_OK, "%s: %s", luda_op_get(maps[m].op)->name, message);
    double limit = maps[m].op == LUDA_OP_gelu_tanh_backward ? fmax(tolerance(dtype), 1e-8) : 2 * tolerance(dtype);
    int64_t bad = -1;
    for (int64_t i = 0; i < out.o.numel && bad < 0; i++) {
        double exact = maps[m].reference(at(&x, i), at(&y, i));
        if (dtype == LUDA_U8 && !compare)
            exact = (double)(uint8_t)(int64_t)exact;
        if (!close_to(at(&out, i), exact, limit))
            bad = i;
    }
    CHECK(bad < 0, "%s of %s (layout %d, mode %d): x %g y %g gives %.9g", luda_op_get(maps[m].op)->name,
          luda_dtype_name((luda_dtype)dtype), layout, mode, at(&x, bad), at(&y, bad), at(&out, bad));
    drop(&x);
    drop(&y);
    drop(&out);
}

static void test_maps(void)
{
    for (size_t m = 0; m < sizeof maps / sizeof *maps; m++)
        for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++) {
            if (!level->kernels[maps[m].op][dtype])
                continue;
            for (int layout = 0; layout < LAYOUTS; layout++)
                for (int mode = 0; mode < (maps[m].nin == 2 ? 3 : 1); mode++)
                    check_map(m, dtype, layout, mode, 5, 37);
            check_map(m, dtype, CONTIGUOUS, 0, 3, 0);
            for (int layout = 0; layout < LAYOUTS && (dtype <= LUDA_F16 || dtype == LUDA_I8); layout++)
                check_map(m, dtype, layout, 0, 270, 133); /* several slabs, and blocks of a transposed input */
        }
}

static void test_special_values(void)
{
    static const struct {
        int op;
        double x, y;
    } cases[] = {
        { LUDA_OP_exp, INFINITY, INFINITY },
        { LUDA_OP_exp, -INFINITY, 0 },
        { LUDA_OP_exp, NAN, NAN },
        { LUDA_OP_exp, 1000, INFINITY },
        { LUDA_OP_exp, -1000, 0 },
        { LUDA_OP_exp, 0, 1 },
        { LUDA_OP_log, 0, -INFINITY },
        { LUDA_OP_log, -1, NAN },
        { LUDA_OP_log, INFINITY, INFINITY },
        { LUDA_OP_log, NAN, NAN },
        { LUDA_OP_log, 1, 0 },
        { LUDA_OP_tanh, INFINITY, 1 },
        { LUDA_OP_tanh, -INFINITY, -1 },
        { LUDA_OP_tanh, NAN, NAN },
        { LUDA_OP_sigmoid, -INFINITY, 0 },
        { LUDA_OP_sigmoid, INFINITY, 1 },
        { LUDA_OP_sigmoid, NAN, NAN },
        { LUDA_OP_relu, NAN, NAN },
        { LUDA_OP_sign, NAN, NAN },
        { LUDA_OP_gelu_tanh, INFINITY, INFINITY },
        { LUDA_OP_gelu_tanh, -1e30, 0 },
        { LUDA_OP_gelu_tanh, NAN, NAN },
        { LUDA_OP_abs, -INFINITY, INFINITY },
    };
    for (int dtype = LUDA_F64; dtype <= LUDA_F32; dtype++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            tensor x = make(dtype, CONTIGUOUS, SHAPE(19)), out = make(dtype, CONTIGUOUS, SHAPE(19));
            for (int j = 0; j < 19; j++)
                set(&x, j, cases[i].x);
            run(cases[i].op, dtype, &x.o, 1, &out.o, 1, NULL);
            for (int j = 0; j < 19; j += 18)
                CHECK(close_to(at(&out, j), cases[i].y, 1e-15), "%s(%g) = %g", luda_op_get(cases[i].op)->name,
                      cases[i].x, at(&out, j));
            drop(&x);
            drop(&out);
        }
    double pairs[][3] = { { NAN, 1, NAN }, { 1, NAN, NAN }, { 2, 1, 2 }, { -INFINITY, NAN, NAN } };
    for (size_t i = 0; i < 4; i++) {
        tensor x = make(LUDA_F32, CONTIGUOUS, SHAPE(1)), y = make(LUDA_F32, CONTIGUOUS, SHAPE(1)),
               out = make(LUDA_F32, CONTIGUOUS, SHAPE(1));
        set(&x, 0, pairs[i][0]);
        set(&y, 0, pairs[i][1]);
        luda_operand in[] = { x.o, y.o };
        run(LUDA_OP_maximum, LUDA_F32, in, 2, &out.o, 1, NULL);
        CHECK(close_to(at(&out, 0), pairs[i][2], 0), "maximum gives %g", at(&out, 0));
        drop(&x);
        drop(&y);
        drop(&out);
    }
}

/* Largest error in units of the last place of float, over n values from low to high. */
static double worst_ulp(int op, double (*exact)(double), double low, double high)
{
    enum { COUNT = 200003 };
    double worst = 0;
    tensor x = make(LUDA_F32, CONTIGUOUS, SHAPE(COUNT)), out = make(LUDA_F32, CONTIGUOUS, SHAPE(COUNT));
    for (int i = 0; i < COUNT; i++)
        set(&x, i,
            op == LUDA_OP_log ? exp(low + (high - low) * i / (COUNT - 1)) : low + (high - low) * i / (COUNT - 1));
    run(op, LUDA_F32, &x.o, 1, &out.o, 1, NULL);
    for (int i = 0; i < COUNT; i++) {
        double wanted = exact(at(&x, i));
        if (wanted != 0 && fabs(wanted) <= FLT_MAX)
            worst = fmax(worst, fabs(at(&out, i) - wanted) / fmax(ldexp(1, ilogb(wanted) - 23), 0x1p-149));
    }
    drop(&x);
    drop(&out);
    return worst;
}

static double exact_gelu(double x)
{
    return 0.5 * x * erfc(-x / sqrt(2));
}

static double exact_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void test_accuracy(void)
{
    static const struct {
        int op;
        double (*exact)(double);
        double low, high;
    } ranges[] = {
        { LUDA_OP_exp, exp, -103.9, 88.72 },
        { LUDA_OP_exp, exp, -1, 1 },
        { LUDA_OP_log, log, -103, 88.7 },
        { LUDA_OP_log, log, -0.5, 0.5 },
        { LUDA_OP_tanh, tanh, -10, 10 },
        { LUDA_OP_tanh, tanh, -0.7, 0.7 },
        { LUDA_OP_sigmoid, exact_sigmoid, -103, 20 },
        { LUDA_OP_erf, erf, -4.5, 4.5 },
        { LUDA_OP_gelu, exact_gelu, -1, 9 },
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        double worst = worst_ulp(ranges[i].op, ranges[i].exact, ranges[i].low, ranges[i].high);
        CHECK(worst <= 4, "%s over %g .. %g: %.2f units", luda_op_get(ranges[i].op)->name, ranges[i].low,
              ranges[i].high, worst);
    }
}

static double exact_silu(double x)
{
    return x / (1 + exp(-x));
}

/* Over the whole range of float, both signs, in steps that visit every exponent: units of the last place, and `absolute`. */
static void test_whole_range(void)
{
    static const struct {
        int op;
        double (*exact)(double);
        double units, absolute;
    } functions[] = {
        { LUDA_OP_exp, exp, 2, 0 },
        { LUDA_OP_log, log, 3, 0 },
        { LUDA_OP_sin, sin, 3, 0 },
        { LUDA_OP_cos, cos, 3, 0 },
        { LUDA_OP_tanh, tanh, 4, 0 },
        { LUDA_OP_erf, erf, 5, 0 },
        { LUDA_OP_sigmoid, exact_sigmoid, 4, 0 },
        { LUDA_OP_silu, exact_silu, 5, 1e-36 },
        { LUDA_OP_gelu, exact_gelu, 6, 1e-36 },
    };
    enum { STEP = 20011, COUNT = (int)(0x100000000 / STEP) };
    tensor x = make(LUDA_F32, CONTIGUOUS, SHAPE(COUNT)), out = make(LUDA_F32, CONTIGUOUS, SHAPE(COUNT));
    for (int i = 0; i < COUNT; i++)
        ((uint32_t *)x.o.data)[i] = (uint32_t)i * STEP;
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        double worst = 0, where = 0;
        run(functions[f].op, LUDA_F32, &x.o, 1, &out.o, 1, NULL);
        for (int i = 0; i < COUNT; i++) {
            double wanted = functions[f].exact(at(&x, i)), got = at(&out, i), error = fabs(got - wanted);
            int special = wanted != wanted || fabs((float)wanted) > FLT_MAX;
            if (special && functions[f].op == LUDA_OP_gelu && fabs(at(&x, i)) > FLT_MAX)
                continue; /* its ends are not defined */
            if (special)
                error = got == (float)wanted || (got != got && wanted != wanted) ? 0 : INFINITY;
            else if (error <= functions[f].absolute)
                error = 0;
            else
                error /= fmax(ldexp(1, ilogb(wanted) - 23), 0x1p-149);
            if (error > worst)
                worst = error, where = at(&x, i);
        }
        CHECK(worst <= functions[f].units, "%s: %.2f units at %.9g", luda_op_get(functions[f].op)->name, worst, where);
    }
    drop(&x);
    drop(&out);
}

/* Powers: the rules of C's pow, and units of the last place on a grid of ordinary numbers. */
static void test_pow(void)
{
    static const double special[] = { 0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, 1.5, INFINITY, -INFINITY, NAN, 1e-40, 3e38, -3e38 };
    enum { SPECIAL = sizeof special / sizeof *special, GRID = 300, COUNT = SPECIAL * SPECIAL + GRID * GRID };
    tensor x = make(LUDA_F32, CONTIGUOUS, SHAPE(COUNT)), y = make(LUDA_F32, CONTIGUOUS, SHAPE(COUNT)),
           out = make(LUDA_F32, CONTIGUOUS, SHAPE(COUNT));
    for (int i = 0; i < SPECIAL * SPECIAL; i++)
        set(&x, i, special[i / SPECIAL]), set(&y, i, special[i % SPECIAL]);
    for (int i = 0; i < GRID * GRID; i++)
        set(&x, SPECIAL * SPECIAL + i, exp(-80 + 160.0 * (i / GRID) / GRID)),
            set(&y, SPECIAL * SPECIAL + i, -3 + 6.0 * (i % GRID) / GRID);
    luda_operand in[] = { x.o, y.o };
    run(LUDA_OP_pow, LUDA_F32, in, 2, &out.o, 1, NULL);
    for (int i = 0; i < COUNT; i++) {
        double wanted = pow(at(&x, i), at(&y, i)), got = at(&out, i);
        double unit = fabs(wanted) <= FLT_MAX && wanted != 0 ? fmax(ldexp(1, ilogb(wanted) - 23), 0x1p-149) : 0;
        int same = got == (float)wanted || (got != got && wanted != wanted) || fabs(got - wanted) <= unit;
        CHECK(same, "%g ^ %g is %g, not %g", at(&x, i), at(&y, i), got, wanted);
    }
    drop(&x), drop(&y), drop(&out);
}

/* --- Integers and casts --- */

static void test_integers(void)
{
    tensor x = make(LUDA_I32, CONTIGUOUS, SHAPE(3)), y = make(LUDA_I32, CONTIGUOUS, SHAPE(3)),
           out = make(LUDA_I32, CONTIGUOUS, SHAPE(3));
    int32_t *a = x.o.data, *b = y.o.data, *c = out.o.data;
    luda_operand in[] = { x.o, y.o };
    a[0] = INT32_MIN, a[1] = -7, a[2] = 7;
    b[0] = -1, b[1] = 3, b[2] = -3;
    CHECK(run(LUDA_OP_mul, LUDA_I32, in, 2, &out.o, 1, NULL) == LUDA_OK && c[0] == INT32_MIN, "%d", c[0]);
    CHECK(run(LUDA_OP_remainder, LUDA_I32, in, 2, &out.o, 1, NULL) == LUDA_OK && c[0] == 0 && c[1] == 2 && c[2] == -2,
          "%d %d %d", c[0], c[1], c[2]);
    CHECK(run(LUDA_OP_neg, LUDA_I32, in, 1, &out.o, 1, NULL) == LUDA_OK && c[0] == INT32_MIN, "%d", c[0]);
    CHECK(run(LUDA_OP_abs, LUDA_I32, in, 1, &out.o, 1, NULL) == LUDA_OK && c[0] == INT32_MIN && c[1] == 7, "%d", c[0]);
    b[1] = 0;
    c[0] = 99;
    CHECK(run(LUDA_OP_remainder, LUDA_I32, in, 2, &out.o, 1, NULL) == LUDA_EINVAL, "division by zero");
    CHECK(strstr(message, "remainder: ") && c[0] == 99, "%s", message);
    drop(&x);
    drop(&y);
    drop(&out);
}

static void check_cast(int from, double value, int to, double wanted)
{
    for (int layout = 0; layout < 2; layout++) {
        tensor x = make(from, layout, SHAPE(17)), out = make(to, CONTIGUOUS, SHAPE(17));
        for (int i = 0; i < 17; i++)
            set(&x, i, value);
        luda_attrs attrs = { .family = LUDA_ATTRS_cast, .cast = { .dtype = to } };
        CHECK(run(LUDA_OP_to, from, &x.o, 1, &out.o, 1, &attrs) == LUDA_OK, "%s", message);
        for (int i = 0; i < 17; i += 16)
            CHECK(close_to(at(&out, i), wanted, 0), "%.17g from %s to %s gives %.17g", value,
                  luda_dtype_name((luda_dtype)from), luda_dtype_name((luda_dtype)to), at(&out, i));
        drop(&x);
        drop(&out);
    }
}

static void test_casts(void)
{
    static const struct {
        uint32_t from;
        uint16_t to;
    } roundings[] = {
        { 0x3F808000, 0x3F80 }, { 0x3F818000, 0x3F82 }, { 0x3F808001, 0x3F81 },
        { 0x3F807FFF, 0x3F80 }, { 0x7F7FFFFF, 0x7F80 }, { 0x7F800001, 0x7FC0 },
        { 0xFF800001, 0xFFC0 }, { 0x80000000, 0x8000 }, { 0x00018000, 0x0002 },
    };
    static const struct {
        float from;
        uint16_t to;
    } halves[] = {
        { 65519.996f, 0x7BFF }, { 65520, 0x7C00 },      { 0x1p-24f, 0x0001 },     { 0x1p-25f, 0 },
        { 0x1.8p-25f, 0x0001 }, { 0x1.8p-24f, 0x0002 }, { 0x1.ffcp-15f, 0x0400 }, { 1.00048828125f, 0x3C00 },
        { -2, 0xC000 },         { 0x1.006p0f, 0x3C02 },
    };
    luda_attrs attrs = { .family = LUDA_ATTRS_cast };
    for (size_t i = 0; i < sizeof roundings / sizeof *roundings; i++) {
        tensor x = make(LUDA_F32, CONTIGUOUS, SHAPE(21)), out = make(LUDA_BF16, CONTIGUOUS, SHAPE(21));
        for (int j = 0; j < 21; j++)
            ((uint32_t *)x.o.data)[j] = roundings[i].from;
        run(LUDA_OP_to, LUDA_F32, &x.o, 1, &out.o, 1, &attrs);
        for (int j = 0; j < 21; j += 20)
            CHECK(((uint16_t *)out.o.data)[j] == roundings[i].to, "%08X gives %04X", roundings[i].from,
                  ((uint16_t *)out.o.data)[j]);
        drop(&x);
        drop(&out);
    }
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        tensor x = make(LUDA_F32, CONTIGUOUS, SHAPE(1)), out = make(LUDA_F16, CONTIGUOUS, SHAPE(1));
        *(float *)x.o.data = halves[i].from;
        run(LUDA_OP_to, LUDA_F32, &x.o, 1, &out.o, 1, &attrs);
        CHECK(*(uint16_t *)out.o.data == halves[i].to, "%a gives %04X", halves[i].from, *(uint16_t *)out.o.data);
        drop(&x);
        drop(&out);
    }
    for (int from = LUDA_F64; from <= LUDA_F32; from++) {
        check_cast(from, NAN, LUDA_I64, 0);
        check_cast(from, NAN, LUDA_U8, 0);
        check_cast(from, 1e30, LUDA_I64, 0x1p63);
        check_cast(from, -1e30, LUDA_I64, -0x1p63);
        check_cast(from, 1e30, LUDA_I32, 2147483647);
        check_cast(from, -INFINITY, LUDA_I32, -2147483648.0);
        check_cast(from, 300, LUDA_I8, 127);
        check_cast(from, -300, LUDA_I8, -128);
        check_cast(from, -3, LUDA_U8, 0);
        check_cast(from, 300, LUDA_U8, 255);
        check_cast(from, -2.75, LUDA_I16, -2);
        check_cast(from, 0.25, LUDA_BOOL, 1);
        check_cast(from, NAN, LUDA_BOOL, 1);
    }
    check_cast(LUDA_I32, 300, LUDA_U8, 44);
    check_cast(LUDA_I64, 40000, LUDA_I16, 40000 - 65536);
    check_cast(LUDA_I32, -1, LUDA_U8, 255);
    check_cast(LUDA_F64, 1 + 0x1p-8 + 0x1p-40, LUDA_BF16, 1 + 0x1p-7); /* by way of a float it would be 1 */
    check_cast(LUDA_I64, 0x1p60 + 0x1p52 + 0x1p8, LUDA_BF16, 0x1p60 + 0x1p53);
    check_cast(LUDA_BOOL, 1, LUDA_F16, 1);
}

/* --- Reductions --- */

static luda_attrs reduce_over(int count, int first, int second)
{
    return (luda_attrs){ .family = LUDA_ATTRS_reduce, .reduce = { .dim = { count, { first, second } } } };
}

/* [a, b, c] reduced over the dimensions of `mask`, by definition. */
static void check_reduction(int op, int dtype, int layout, int mask, int64_t a, int64_t b, int64_t c)
{
    int64_t shape[] = { a, b, c }, kept[3], sizes[3];
    int dims[3], count = 0, nkept = 0;
    for (int d = 0; d < 3; d++) {
        if (mask >> d & 1)
            dims[count++] = d;
        else
            kept[nkept++] = shape[d];
        sizes[d] = mask >> d & 1 ? 1 : shape[d];
    }
    tensor x = make(dtype, layout, 3, shape),
           out = make(op == LUDA_OP_sum && !is_float(dtype) ? LUDA_I64 : dtype, CONTIGUOUS, nkept, kept);
    fill(&x, -4, 4);
    luda_attrs attrs = { .family = LUDA_ATTRS_reduce, .reduce = { .dim = { .count = count } } };
    for (int d = 0; d < count; d++)
        attrs.reduce.dim.dim[d] = dims[d];
    CHECK(run(op, dtype, &x.o, 1, &out.o, 1, &attrs) == LUDA_OK, "%s", message);
    double *exact = calloc((size_t)out.o.numel + 1, sizeof *exact);
    char *seen = calloc((size_t)out.o.numel + 1, 1);
    for (int64_t i = 0; i < x.o.numel; i++) {
        int64_t index[] = { i / (b * c) % sizes[0], i / c % b % sizes[1], i % c % sizes[2] };
        int64_t to = (index[0] * sizes[1] + index[1]) * sizes[2] + index[2];
        double v = at(&x, i);
        if (op == LUDA_OP_sum || op == LUDA_OP_mean)
            exact[to] += v;
        else
            exact[to] = !seen[to] ? v : op == LUDA_OP_amax ? fmax(exact[to], v) : fmin(exact[to], v);
        seen[to] = 1;
    }
    int64_t bad = -1;
    for (int64_t k = 0; k < out.o.numel; k++) {
        if (op == LUDA_OP_mean)
            exact[k] /= (double)(x.o.numel / out.o.numel);
        if (!close_to(at(&out, k), exact[k], tolerance(dtype)))
            bad = k;
    }
    CHECK(bad < 0, "%s of %s, layout %d, mask %d, [%d %d %d]: %.9g, not %.9g", luda_op_get(op)->name,
          luda_dtype_name((luda_dtype)dtype), layout, mask, (int)a, (int)b, (int)c, at(&out, bad < 0 ? 0 : bad),
          exact[bad < 0 ? 0 : bad]);
    free(exact);
    free(seen);
    drop(&x);
    drop(&out);
}

static void test_reductions(void)
{
    static const int ops[] = { LUDA_OP_sum, LUDA_OP_mean, LUDA_OP_amax, LUDA_OP_amin };
    for (int o = 0; o < 4; o++)
        for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++)
            for (int mask = 1; level->kernels[ops[o]][dtype] && mask < 8; mask++)
                for (int layout = 0; layout < LAYOUTS; layout++) {
                    check_reduction(ops[o], dtype, layout, mask, 5, 7, 33);
                    if (dtype <= LUDA_F32 || dtype == LUDA_I16)
                        check_reduction(ops[o], dtype, layout, mask, 3, 301, 129);
                }
    for (int columns = 0; columns < 2; columns++) { /* a million times 0.1, as a row and as columns */
        tensor x = make(LUDA_F32, columns ? TRANSPOSED : STRIDED, SHAPE(1000000, 4)),
               out = make(LUDA_F32, CONTIGUOUS, SHAPE(4));
        for (int64_t i = 0; i < x.o.numel; i++)
            set(&x, i, 0.1f);
        luda_attrs attrs = reduce_over(1, 0, 0);
        run(LUDA_OP_sum, LUDA_F32, &x.o, 1, &out.o, 1, &attrs);
        CHECK(fabs(at(&out, 3) - 100000.0015) < 0.05, "%.4f", at(&out, 3));
        drop(&x);
        drop(&out);
    }
    tensor one = make(LUDA_BF16, CONTIGUOUS, SHAPE(1)), total = make(LUDA_BF16, CONTIGUOUS, 0, NULL);
    luda_attrs all = reduce_over(0, 0, 0);
    set(&one, 0, 1);
    one.o.shape[0] = one.o.numel = 33554432;
    one.o.stride[0] = 0;
    run(LUDA_OP_sum, LUDA_BF16, &one.o, 1, &total.o, 1, &all);
    CHECK(at(&total, 0) == 33554432, "%.1f", at(&total, 0));
    one.o.shape[0] = one.o.numel = 0;
    run(LUDA_OP_sum, LUDA_BF16, &one.o, 1, &total.o, 1, &all);
    CHECK(at(&total, 0) == 0, "an empty sum is %g", at(&total, 0));
    run(LUDA_OP_mean, LUDA_BF16, &one.o, 1, &total.o, 1, &all);
    CHECK(isnan(at(&total, 0)), "an empty mean is %g", at(&total, 0));
    drop(&one);
    drop(&total);
}

int main(void)
{
    for_each_level(test_table);
    for_each_level(test_maps);
    for_each_level(test_special_values);
    for_each_level(test_accuracy);
    for_each_level(test_whole_range);
    for_each_level(test_pow);
    for_each_level(test_integers);
    for_each_level(test_casts);
    for_each_level(test_reductions);
    return finish();
}
