/*
 * Every row of the operator table that CUDA supports, against the CPU: the samples of the rows and larger cases of our own,
 * for every element type, dense and strided. Runs on what LUDA_CUDA_PLUGIN names; the build sets the emulator.
 */
#include "check.h"

#include <stdlib.h>

enum { MOST_VALUES = 200000 };

static const luda_device cpu = { LUDA_CPU, 0 }, cuda = { LUDA_CUDA, 0 };
static double first_values[MOST_VALUES], second_values[MOST_VALUES];

/* Cases that the samples are too small for: in the same words. */
static const struct { const char *op, *sample; } larger_cases[] = {
    { "add", "any 130x33x9,33x1" },
    { "add", "any 0x3,1x3" },
    { "mul", "any 5000,5000" },
    { "sub", "any 2x1x3x1x2,4x1x3x1" },
    { "exp", "any 0" },
    { "gcd", "any 0x3,1x3" },
    { "lgamma", "any 300" },
    { "floor_divide", "nonzero 70x3,3" },
    { "fmod", "nonzero 3x70,70" },
    { "bitwise_right_shift", "any i70x3<99,i3<70" },
    { "where", "any b0x3,0x3,." },
    { "where", "any b70x31,31,70x1" },
    { "sum", "any 300x70 dim=1" },
    { "sum", "any 70x300 dim=0" },
    { "sum", "any 3x20000 dim=1" },
    { "sum", "any 9001x5 dim=0" },
    { "sum", "any 7x9x11x13 dim=0,2" },
    { "sum", "any 50000" },
    { "sum", "any 0x3 dim=0" },
    { "sum", "any 3x0 dim=0" },
    { "mean", "any 77x129 dim=0 keepdim=1" },
    { "mean", "any 2x9000 dim=1" },
    { "amax", "any 300x70 dim=1" },
    { "amin", "any 9001x5 dim=0" },
    { "amax", "any 20000" },
    { "max", "any 90x300 dim=1" },
    { "min", "any 300x90 dim=0 base=1" },
    { "take_along", "any 40x30,i40<30 dim=1" },
    { "matmul", "any 33x65,65x17" },
    { "matmul", "any 3x1x33x7,5x7x9" },
    { "matmul", "any 6x5x33,33x9" },
    { "matmul", "any 3x0,0x4" },
    { "matmul", "any 0x3,3x4" },
    { "matmul", "any 40,40x3" },
    { "matmul", "any 4x3x40,40" },
    { "softmax", "any 9x700 dim=-1" },
    { "softmax", "any 300x33 dim=0" },
    { "softmax", "any . dim=0" },
    { "log_softmax", "any 9x700 dim=-1" },
    { "log_softmax", "any 65x33x3 dim=1" },
    { "softmax_backward", "any 9x700,9x700 dim=-1" },
    { "softmax_backward", "any 70x33,70x33 dim=0" },
    { "layer_norm", "any 70x300,300,300" },
    { "layer_norm", "any 70x33" },
    { "layer_norm", "any 0x33,33,33" },
    { "layer_norm_backward", "any 150x33,150x33,150,150,33; any 3x7x300,3x7x300,3x7,3x7; any 0x5,0x5,0,0,5" },
    { "rms_norm", "any 70x300,300" },
    { "rms_norm", "any 70x33; any 0x33,33" },
    { "rms_norm_backward", "any 150x33,150x33,150,33; any 3x7x300,3x7x300,3x7; any 0x5,0x5,0,5" },
    { "index_select", "any 50x7,i200<50 dim=0" },
    { "index_select", "any 7x50x3,i3x20<50 dim=1" },
    { "index_select_backward", "any 200x7,i200<50 dim=0 size=50" },
    { "index_select_backward", "any 7x3x20x3,i3x20<5 dim=1 size=9" },
    { "gather", "any 50x7,i200x5<50 dim=0; any 3x20x9,i3x31x9<20 dim=1; any 4x3,i0x3<4 dim=0" },
    { "scatter", "any 50x7,i200x5<50,200x5 dim=0; any 3x20x9,i3x31x9<20,3x31x9 dim=1; any 4x3,i0x3<4,0x3 dim=0" },
    { "scatter_add", "any 50x7,i200x5<50,200x5 dim=0; any 3x20x9,i3x31x9<20,3x31x9 dim=1; any 400,i3000<400,3000 dim=0" },
    { "nonzero", "any b70x31; any b3x5x7; any b.; any b0x3; any 40x30" },
    { "sort", "any 7x300 dim=1; any 300x7 dim=0 descending=1; any 3x1x5 dim=1; any . dim=0; any 0x3 dim=1; any 3000 dim=0" },
    { "cummax", "any 7x300 dim=1; any 300x7 dim=0; any 5x0 dim=1; any . dim=0" },
    { "cummin", "any 7x300 dim=1; any 300x7 dim=0; any 5x0 dim=1; any . dim=0" },
    { "searchsorted", "any 300,7x90; any 300,. right=1; any 5x9,5x70 right=1 base=1; any 0,4" },
    { "linear_scan", "unit 7x300,7x300 dim=1; unit 300x7,300x7 dim=0 reverse=1; unit 0x3,0x3 dim=0; unit .,. dim=0" },
    { "cross_entropy", "any 70x300,i70<300" },
    { "cross_entropy", "any 70x33,i70<33,33 label_smoothing=0.1 reduction=1" },
    { "cross_entropy", "any 70x33,i70<33 reduction=2 ignore_index=3" },
    { "cross_entropy", "any 3x5,i3<5,5 ignore_index=2" },
    { "cross_entropy", "any 0x5,i0<5; any 0x5,i0<5 reduction=2" },
    { "cross_entropy_backward", "any .,70x300,i70<300,70; any 70,70x33,i70<33,70,33 label_smoothing=0.1 reduction=2" },
    { "cross_entropy_backward", "any .,70x33,i70<33,70,33 ignore_index=4; any .,0x33,i0<33,0" },
    { "scaled_dot_product_attention", "any 2x3x13x7,2x3x270x7,2x3x270x5; any 40x9,50x9,50x9 is_causal=1; any 50x9,40x9,40x3 is_causal=1 dropout_p=0.3" },
    { "scaled_dot_product_attention_backward", "unit 2x30x5,2x30x7,2x270x7,2x270x5,2x30x5,2x30 is_causal=1 scale=0.3" },
    { "scaled_dot_product_attention_backward", "unit 300x5,300x7,9x7,9x5,300x5,300 scale=0.3; unit 50x3,50x9,40x9,40x3,50x3,50 is_causal=1 dropout_p=0.3" },
    { "conv2d", "any 3x4x9x7,6x2x3x3,6 stride=2,1 padding=1 groups=2; any 2x3x8x9,5x3x2x3 dilation=2,3 padding=2,3; any 0x2x4x4,3x2x2x2" },
    { "conv2d", "any 2x4x5x6,4x1x3x3,4 padding=1 groups=4; any 3x7x5x5,4x7x1x1,4" },
    { "conv2d_input", "any 3x6x5x7,6x2x3x3 size=9,7 stride=2,1 padding=1 groups=2; any 3x4x5x5,4x7x1x1 size=5" },
    { "conv2d_weight", "any 3x6x5x7,3x4x9x7 size=3 stride=2,1 padding=1 groups=2; any 0x3x3x3,0x2x4x4 size=2" },
    { "max_pool2d", "any 2x3x9x11 kernel=3 stride=2 padding=1; any 2x3x9x10 kernel=3,2 stride=2 ceil_mode=1; any 0x3x4x4 kernel=2" },
    { "max_pool2d_backward", "any 9x7x1x1,i9x7x1x1<12 kernel=3,4 size=3,4 base=1" },
    { "avg_pool2d", "any 2x3x9x11 kernel=3 stride=2 padding=1; any 2x3x9x10 kernel=3,2 stride=2 padding=1 ceil_mode=1 count_include_pad=0" },
    { "avg_pool2d_backward", "any 2x3x5x6 kernel=3 stride=2 padding=1 size=9,11" },
    { "dropout", "any 70x33 p=0.3" },
    { "cat", "any 3x70x5,3x30x5 dim=1" },
    { "narrow_backward", "any 30x40 dim=1 start=5 size=200 step=3" },
};

/* --- Numbers: a small generator of its own --- */

static uint64_t state = 1;

static double uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 40) * 0x1p-24;
}

static int is_float(int dtype)
{
    return dtype <= LUDA_BF16;
}

static double value_of(const char *domain, int dtype, int64_t i, int64_t n)
{
    double x = 4 * uniform() - 2, sign = x < 0 ? -1 : 1;
    if (strcmp(domain, "positive") == 0)
        x = 0.5 + fabs(x);
    else if (strcmp(domain, "nonzero") == 0)
        x = sign * (0.3 + fabs(x));
    else if (strcmp(domain, "above") == 0)
        x = 1.1 + fabs(x);
    else if (strcmp(domain, "unit") == 0)
        x = 0.45 * x;
    else if (strcmp(domain, "distinct") == 0)
        x = (double)(i * 7 % n) * 0.25 - 1;
    if (!is_float(dtype))
        x = x < 0 ? floor(x * 5) : ceil(x * 5);
    return dtype == LUDA_U8 || dtype == LUDA_BOOL ? fabs(x) : x;
}

/* --- Inputs --- */

typedef struct shape {
    char kind; /* 'b' mask, 'i' positions, 'x' values */
    int ndim;
    int64_t size[LUDA_MAX_DIMS], numel, limit;
} shape;

/* "b2x3", "i5<4", "."; returns what follows. */
static const char *parse_shape(const char *text, shape *s)
{
    *s = (shape){ .kind = *text == 'b' || *text == 'i' ? *text++ : 'x', .numel = 1 };
    char *end = (char *)text;
    if (*text == '.')
        return text + 1;
    do {
        s->size[s->ndim] = strtoll(s->ndim ? end + 1 : text, &end, 10);
        s->numel *= s->size[s->ndim++];
    } while (*end == 'x');
    if (*end == '<')
        s->limit = strtoll(end + 1, &end, 10);
    return end;
}

/* The view of `whole` that has the shape; `whole` has the dimensions in reverse order, the last of them doubled. */
static luda_tensor *strided_view(luda_tensor *whole, const shape *s)
{
    struct luda_permute_attrs order = { { s->ndim, { 0 } } };
    struct luda_narrow_attrs half = { 0, 1, s->size[0], 2 };
    luda_tensor *turned, *view;
    for (int d = 0; d < s->ndim; d++)
        order.dims.dim[d] = s->ndim - 1 - d;
    EXPECT_OK(luda_permute(whole, &order, &turned));
    EXPECT_OK(luda_narrow(turned, &half, &view));
    luda_tensor_release(turned);
    return view;
}

static luda_tensor *on_cuda(luda_tensor *x)
{
    luda_tensor *y;
    EXPECT_OK(luda_to(x, &(struct luda_cast_attrs){ -1, cuda }, &y));
    return y;
}

static void make_input(const shape *s, const char *domain, int dtype, int base, int strided, luda_tensor **host,
                       luda_tensor **device)
{
    luda_tensor *whole;
    shape w = *s;
    strided = strided && s->ndim > 0 && s->size[0] > 0;
    if (strided) {
        for (int d = 0; d < s->ndim; d++)
            w.size[d] = s->size[s->ndim - 1 - d];
        w.size[s->ndim - 1] = 2 * s->size[0] + 1;
        w.numel = s->numel / s->size[0] * w.size[s->ndim - 1];
    }
    for (int64_t i = 0; i < w.numel; i++)
        first_values[i] = s->kind == 'b'   ? uniform() < 0.5
                          : s->kind == 'i' ? floor(uniform() * (double)s->limit) + base
                                           : value_of(domain, dtype, i, w.numel);
    int made = s->kind == 'b' ? LUDA_BOOL : s->kind == 'i' ? LUDA_I64 : dtype;
    EXPECT_OK(luda_tensor_new(made, cpu, w.ndim, w.size, &whole));
    EXPECT_OK(luda_tensor_write(whole, LUDA_F64, first_values, w.numel));
    luda_tensor *whole_device = on_cuda(whole);
    *host = whole;
    *device = whole_device;
    if (strided) {
        *host = strided_view(whole, s);
        *device = strided_view(whole_device, s);
        luda_tensor_release(whole);
        luda_tensor_release(whole_device);
    }
}

/* --- Attributes --- */

static void set_attribute(luda_attrs *attrs, const char *name, size_t length, const char *value)
{
    const luda_field_info *f;
    for (int i = 0; (f = luda_attrs_field(attrs->family, i)); i++) {
        char *at = (char *)attrs + f->offset;
        if (strlen(f->name) != length || strncmp(f->name, name, length) != 0)
            continue;
        if (strcmp(f->kind, "dims") == 0) {
            luda_dims *dims = (luda_dims *)at;
            for (char *end = (char *)value - 1; dims->count == 0 || *end == ','; dims->count++)
                dims->dim[dims->count] = (int32_t)strtol(end + 1, &end, 10);
        } else if (strcmp(f->kind, "pair") == 0) {
            char *end;
            luda_pair *pair = (luda_pair *)at;
            pair->height = strtoll(value, &end, 10);
            pair->width = *end == ',' ? strtoll(end + 1, NULL, 10) : pair->height;
        } else if (strcmp(f->kind, "shape") == 0) {
            shape s;
            parse_shape(value, &s);
            *(luda_shape *)at = (luda_shape){ .ndim = s.ndim };
            memcpy(((luda_shape *)at)->size, s.size, sizeof s.size);
        } else if (strcmp(f->kind, "number") == 0) {
            *(double *)at = strtod(value, NULL);
        } else if (f->size == 8) {
            *(int64_t *)at = strtoll(value, NULL, 10);
        } else {
            *(int32_t *)at = (int32_t)strtol(value, NULL, 10);
        }
        return;
    }
    printf("no attribute %.*s\n", (int)length, name);
    failed++;
}

/* Draws are named by seed and counter, so that both devices make the same. */
static void set_draw(luda_attrs *attrs)
{
    const luda_field_info *f;
    for (int i = 0; (f = luda_attrs_field(attrs->family, i)); i++)
        if (strcmp(f->kind, "random") == 0)
            *(luda_random *)((char *)attrs + f->offset) = (luda_random){ .seed = 77, .counter = 5 };
}

static int base_of(const luda_attrs *attrs)
{
    const luda_field_info *f;
    for (int i = 0; (f = luda_attrs_field(attrs->family, i)); i++)
        if (strcmp(f->kind, "base") == 0)
            return *(const int32_t *)((const char *)attrs + f->offset);
    return 0;
}

/* --- Comparing --- */

static double tolerance_of(int dtype)
{
    static const double tolerance[LUDA_DTYPE_COUNT] = { [LUDA_F64] = 1e-12, [LUDA_F32] = 1e-5, [LUDA_F16] = 2e-3, [LUDA_BF16] = 1.6e-2 };
    return tolerance[dtype];
}

static int same(const luda_tensor *host, const luda_tensor *device, int computed)
{
    int64_t n = luda_tensor_numel(host);
    int dtype = luda_tensor_dtype(host), ndim = luda_tensor_ndim(host);
    double tolerance = is_float(dtype) ? fmax(tolerance_of(dtype), tolerance_of(computed)) : 0;
    if (n > MOST_VALUES || dtype != (int)luda_tensor_dtype(device) || ndim != luda_tensor_ndim(device) ||
        memcmp(luda_tensor_shape(host), luda_tensor_shape(device), (size_t)ndim * 8) != 0)
        return 0;
    if (luda_tensor_read(host, LUDA_F64, first_values, n) != LUDA_OK || luda_tensor_read(device, LUDA_F64, second_values, n) != LUDA_OK)
        return 0;
    for (int64_t i = 0; i < n; i++) {
        double a = first_values[i], b = second_values[i];
        if (!(fabs(a - b) <= tolerance * (1 + fabs(a))) && a != b && !(isnan(a) && isnan(b))) {
            printf("  element %lld: %.9g on the CPU, %.9g on CUDA\n", (long long)i, a, b);
            return 0;
        }
    }
    return 1;
}

static void run_case(luda_op op, const char *sample, int dtype, int strided)
{
    const luda_op_info *info = luda_op_get(op);
    luda_tensor *host[LUDA_MAX_INPUTS] = { NULL }, *device[LUDA_MAX_INPUTS] = { NULL };
    luda_tensor *expected[LUDA_MAX_OUTPUTS], *got[LUDA_MAX_OUTPUTS];
    shape shapes[LUDA_MAX_INPUTS];
    luda_attrs attrs;
    char domain[16];
    int nin = 0, length;
    sscanf(sample, "%15s %n", domain, &length);
    const char *text = sample + length;
    text = parse_shape(text, &shapes[nin++]);
    while (*text == ',')
        text = parse_shape(text + 1, &shapes[nin++]);
    EXPECT_OK(luda_attrs_default(op, &attrs));
    set_draw(&attrs);
    while (*text == ' ') {
        const char *equals = strchr(text, '=');
        set_attribute(&attrs, text + 1, (size_t)(equals - text - 1), equals + 1);
        text = equals + strcspn(equals, " ;");
    }
    for (int i = 0; i < nin; i++)
        make_input(&shapes[i], domain, dtype, base_of(&attrs), strided, &host[i], &device[i]);
    luda_status on_host = luda_apply(op, host, nin, &attrs, expected), there = luda_apply(op, device, nin, &attrs, got);
    int good = on_host == LUDA_OK && there == LUDA_OK;
    if (!good)
        printf("  %s\n", luda_last_error());
    for (int o = 0; on_host == LUDA_OK && there == LUDA_OK && o < info->outputs; o++)
        good = good && same(expected[o], got[o], dtype);
    for (int o = 0; o < info->outputs; o++) {
        if (on_host == LUDA_OK)
            luda_tensor_release(expected[o]);
        if (there == LUDA_OK)
            luda_tensor_release(got[o]);
    }
    good ? passed++ : failed++;
    if (!good)
        printf("%s of %s%s: %.60s\n", info->name, luda_dtype_name(dtype), strided ? ", strided" : "", sample);
    for (int i = 0; i < nin; i++) {
        luda_tensor_release(host[i]);
        luda_tensor_release(device[i]);
    }
}

static void run_cases(luda_op op, const char *samples)
{
    for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++)
        if (luda_op_supported(op, dtype, cpu) && luda_op_supported(op, dtype, cuda))
            for (const char *sample = samples; sample; sample = strchr(sample, ';')) {
                sample += strspn(sample, "; ");
                run_case(op, sample, dtype, 0);
                run_case(op, sample, dtype, 1);
            }
}

/* --- Rows without inputs, and casts --- */

static void run_creation(luda_op op, int dtype, double low, double high, int64_t n)
{
    luda_attrs attrs;
    luda_tensor *expected, *got;
    EXPECT_OK(luda_attrs_default(op, &attrs));
    set_draw(&attrs);
    attrs.create.shape = (luda_shape){ 1, { n } }; /* the first three fields are those of random, too */
    attrs.create.dtype = dtype;
    if (attrs.family == LUDA_ATTRS_create) {
        attrs.create.low = low;
        attrs.create.high = high;
    } else {
        attrs.random.low = (int64_t)low;
        attrs.random.high = (int64_t)high;
    }
    attrs.create.device = cpu;
    EXPECT_OK(luda_apply(op, NULL, 0, &attrs, &expected));
    attrs.create.device = cuda;
    EXPECT_OK(luda_apply(op, NULL, 0, &attrs, &got));
    int exact = strcmp(luda_op_get(op)->name, "randn") != 0;
    if (!same(expected, got, dtype)) {
        printf("%s of %s\n", luda_op_get(op)->name, luda_dtype_name(dtype));
        failed++;
    }
    if (exact && n > 0)
        EXPECT(memcmp(first_values, second_values, (size_t)n * sizeof *first_values) == 0);
    luda_tensor_release(expected);
    luda_tensor_release(got);
}

static void run_casts(void)
{
    static const double edges[] = { 0, -0.0, 1, -1, 0.3, -0.7, 2.5, 127.5, 128, -129, 255.9, 256, 32767.5, -32769, 65504, 65519.9,
                                    65520, 1e-8, 6e-8, 3.1e4, 2147483647.5, -2147483649.0, 9.3e18, -9.3e18, 1e30, -1e39,
                                    4503599627370497.0, 1.00390625, 1.001953126, INFINITY, -INFINITY, NAN };
    int64_t n = sizeof edges / sizeof *edges;
    for (int from = 0; from < LUDA_DTYPE_COUNT; from++)
        for (int target = 0; target < LUDA_DTYPE_COUNT; target++) {
            luda_tensor *x, *expected, *y, *got;
            EXPECT_OK(luda_tensor_new(from, cpu, 1, &n, &x));
            EXPECT_OK(luda_tensor_write(x, LUDA_F64, edges, n));
            EXPECT_OK(luda_to(x, &(struct luda_cast_attrs){ target, cpu }, &expected));
            y = on_cuda(x);
            EXPECT_OK(luda_to(y, &(struct luda_cast_attrs){ target, cuda }, &got));
            if (!same(expected, got, LUDA_I64)) {
                printf("%s to %s\n", luda_dtype_name(from), luda_dtype_name(target));
                failed++;
            }
            for (int64_t i = 0; i < n; i++)
                EXPECT(first_values[i] == second_values[i] || (isnan(first_values[i]) && isnan(second_values[i])));
            luda_tensor_release(x);
            luda_tensor_release(y);
            luda_tensor_release(expected);
            luda_tensor_release(got);
        }
}

static luda_op find_op(const char *name)
{
    luda_op op = 0;
    while (strcmp(luda_op_get(op)->name, name) != 0)
        op++;
    return op;
}

/* Rows that the CPU has and CUDA has not, from the tables. */
static void list_missing(void)
{
    for (luda_op op = 0; luda_op_get(op); op++) {
        char names[128] = "";
        for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++)
            if (luda_op_supported(op, dtype, cpu) && !luda_op_supported(op, dtype, cuda))
                strcat(strcat(names, " "), luda_dtype_name(dtype));
        if (*names)
            printf("not on CUDA: %s,%s\n", luda_op_get(op)->name, names);
    }
}

/* All rows, or the one named. */
static void run_all(const char *only)
{
    static const char *const creating[] = { "full", "arange", "rand", "randn", "randint", "randperm" };
    for (luda_op op = 0; luda_op_get(op); op++)
        if (*luda_op_get(op)->sample && strcmp(luda_op_get(op)->types, "VIEW") != 0 &&
            (!only || strcmp(luda_op_get(op)->name, only) == 0))
            run_cases(op, luda_op_get(op)->sample);
    for (size_t i = 0; i < sizeof larger_cases / sizeof *larger_cases; i++)
        if (!only || strcmp(larger_cases[i].op, only) == 0)
            run_cases(find_op(larger_cases[i].op), larger_cases[i].sample);
    if (only)
        return;
    for (size_t i = 0; i < sizeof creating / sizeof *creating; i++)
        for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++)
            for (int64_t n = 0; n <= 700 && luda_op_supported(find_op(creating[i]), dtype, cuda); n += 233)
                run_creation(find_op(creating[i]), dtype, -5, 3000000000000.0, n);
    run_casts();
}

/* With the emulator, in each order of threads and streams unless CUDAEMU_ORDER names one. */
int main(int argc, char **argv)
{
    static const char *const orders[] = { "forward", "reverse", "random:1" };
    luda_memory_info before, after;
    const char *chosen = getenv("CUDAEMU_ORDER");
#ifdef LUDA_EMULATOR_PATH
    setenv("LUDA_CUDA_PLUGIN", LUDA_EMULATOR_PATH, 0);
#endif
    luda_set_threads(2);
    if (luda_device_count(LUDA_CUDA) == 0) {
        printf("no CUDA: %s\n", luda_device_problem(LUDA_CUDA));
        return 1;
    }
    EXPECT_OK(luda_memory(cuda, &before));
    for (int i = 0; i < (chosen ? 1 : 3); i++) {
        setenv("CUDAEMU_ORDER", chosen ? chosen : orders[i], 1);
        run_all(argc > 1 ? argv[1] : NULL);
    }
    list_missing();
    EXPECT_OK(luda_memory(cuda, &after));
    EXPECT(before.tensors == after.tensors && before.live == after.live);
    return summary("cuda_rows_test");
}
