/* Convolution and pooling on the CPU, every level, against sums written out in double. */
#include "kernels_check.h"

/* --- Convolution --- */

typedef struct sizes {
    int64_t n, groups, c, o; /* channels of a group */
    int64_t h, w, kh, kw, sh, sw, ph, pw, dh, dw;
} sizes;

static int64_t windows(int64_t n, int64_t k, int64_t s, int64_t p, int64_t d)
{
    return (n + 2 * p - d * (k - 1) - 1) / s + 1;
}

/* All seven loops: adds to `out` what conv2d makes, and to dx and dw the slopes of sum(y conv2d(x, w)). */
static void add_terms(const sizes *s, const double *x, const double *w, const double *y, double *dx, double *dw, double *out)
{
    int64_t oh = windows(s->h, s->kh, s->sh, s->ph, s->dh), ow = windows(s->w, s->kw, s->sw, s->pw, s->dw);
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t o = 0; o < s->groups * s->o; o++)
            for (int64_t i = 0; i < oh; i++)
                for (int64_t j = 0; j < ow; j++)
                    for (int64_t c = 0; c < s->c; c++)
                        for (int64_t p = 0; p < s->kh; p++)
                            for (int64_t q = 0; q < s->kw; q++) {
                                int64_t row = i * s->sh - s->ph + p * s->dh, column = j * s->sw - s->pw + q * s->dw;
                                if (row < 0 || row >= s->h || column < 0 || column >= s->w)
                                    continue;
                                int64_t at_x = ((n * s->groups * s->c + o / s->o * s->c + c) * s->h + row) * s->w + column;
                                int64_t at_w = ((o * s->c + c) * s->kh + p) * s->kw + q;
                                int64_t at_y = ((n * s->groups * s->o + o) * oh + i) * ow + j;
                                out[at_y] += x[at_x] * w[at_w];
                                dx[at_x] += y[at_y] * w[at_w];
                                dw[at_w] += y[at_y] * x[at_x];
                            }
}

static double *values_of(const tensor *t)
{
    double *values = calloc((size_t)t->o.numel + 1, sizeof *values);
    for (int64_t i = 0; i < t->o.numel; i++)
        values[i] = at(t, i);
    return values;
}

static int wrong(const tensor *t, const double *exact, double limit)
{
    int bad = 0;
    for (int64_t i = 0; i < t->o.numel; i++)
        bad += !close_to(at(t, i), exact[i], limit);
    return bad;
}

/* bias_dtype -1: none. */
static void check_conv(int dtype, int bias_dtype, int layout, sizes s)
{
    int64_t oh = windows(s.h, s.kh, s.sh, s.ph, s.dh), ow = windows(s.w, s.kw, s.sw, s.pw, s.dw), o = s.groups * s.o;
    tensor x = make(dtype, layout, SHAPE(s.n, s.groups * s.c, s.h, s.w)), w = make(dtype, layout, SHAPE(o, s.c, s.kh, s.kw)),
           b = make(bias_dtype < 0 ? dtype : bias_dtype, STRIDED, SHAPE(o)), g = make(dtype, layout, SHAPE(s.n, o, oh, ow));
    tensor y = make(dtype, CONTIGUOUS, SHAPE(s.n, o, oh, ow)), dx = make(dtype, CONTIGUOUS, SHAPE(s.n, s.groups * s.c, s.h, s.w)),
           dw = make(dtype, CONTIGUOUS, SHAPE(o, s.c, s.kh, s.kw));
    fill(&x, -2, 2), fill(&w, -2, 2), fill(&b, -2, 2), fill(&g, -2, 2);
    luda_attrs attrs = { .family = LUDA_ATTRS_conv, .conv = { { s.sh, s.sw }, { s.ph, s.pw }, { s.dh, s.dw }, s.groups } };
    luda_attrs to_x = { .family = LUDA_ATTRS_conv_backward,
                        .conv_backward = { { s.sh, s.sw }, { s.ph, s.pw }, { s.dh, s.dw }, s.groups, { s.h, s.w } } };
    luda_attrs to_w = to_x;
    to_w.conv_backward.size = (luda_pair){ s.kh, s.kw };
    int bare = bias_dtype < 0;
    luda_operand absent = { .numel = -1 }, in[] = { x.o, w.o, bare ? absent : b.o }, gw[] = { g.o, w.o }, gx[] = { g.o, x.o };
    CHECK(run(LUDA_OP_conv2d, dtype, in, 3, &y.o, 1, &attrs) == LUDA_OK, "%s", message);
    CHECK(run(LUDA_OP_conv2d_input, dtype, gw, 2, &dx.o, 1, &to_x) == LUDA_OK, "%s", message);
    CHECK(run(LUDA_OP_conv2d_weight, dtype, gx, 2, &dw.o, 1, &to_w) == LUDA_OK, "%s", message);
    double *vx = values_of(&x), *vw = values_of(&w), *vg = values_of(&g);
    double *ey = calloc((size_t)y.o.numel + 1, 8), *ex = calloc((size_t)x.o.numel + 1, 8), *ew = calloc((size_t)w.o.numel + 1, 8);
    for (int64_t i = 0; i < y.o.numel; i++)
        ey[i] = bare ? 0 : at(&b, i / (oh * ow) % o);
    add_terms(&s, vx, vw, vg, ex, ew, ey);
    double limit = 4 * tolerance(dtype);
    int bad[] = { wrong(&y, ey, limit), wrong(&dx, ex, limit), wrong(&dw, ew, limit) };
    CHECK(bad[0] + bad[1] + bad[2] == 0,
          "%s, layout %d, [%d, %d x %d, %d, %d], %d kernels %d x %d, stride %d %d, padding %d %d, dilation %d %d: %d, %d, %d wrong",
          luda_dtype_name((luda_dtype)dtype), layout, (int)s.n, (int)s.groups, (int)s.c, (int)s.h, (int)s.w, (int)o, (int)s.kh, (int)s.kw,
          (int)s.sh, (int)s.sw, (int)s.ph, (int)s.pw, (int)s.dh, (int)s.dw, bad[0], bad[1], bad[2]);
    free(vx), free(vw), free(vg), free(ey), free(ex), free(ew);
    drop(&x), drop(&w), drop(&b), drop(&g), drop(&y), drop(&dx), drop(&dw);
}

static void test_conv(void)
{
    static const sizes cases[] = {
        { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1 },      { 2, 1, 3, 4, 7, 5, 3, 2, 1, 1, 0, 0, 1, 1 },
        { 7, 2, 2, 3, 9, 8, 3, 3, 2, 1, 1, 1, 1, 1 },      { 1, 1, 2, 3, 11, 9, 3, 2, 1, 2, 2, 3, 2, 3 },
        { 3, 5, 1, 1, 6, 7, 3, 3, 1, 1, 1, 1, 1, 1 },      { 2, 1, 17, 33, 8, 8, 3, 3, 1, 1, 1, 1, 1, 1 },
        { 5, 1, 16, 16, 6, 9, 5, 3, 2, 2, 2, 1, 1, 1 },    { 3, 1, 6, 5, 4, 5, 1, 1, 1, 1, 0, 0, 1, 1 },
        { 2, 16, 1, 1, 9, 9, 3, 3, 2, 2, 1, 1, 1, 1 },     { 2, 1, 3, 4, 5, 5, 1, 1, 2, 2, 1, 1, 1, 1 },
        { 2, 1, 4, 4, 2, 2, 4, 4, 1, 1, 4, 4, 1, 1 },      { 0, 1, 3, 4, 5, 5, 3, 3, 1, 1, 1, 1, 1, 1 },
        { 2, 1, 0, 4, 5, 5, 3, 3, 1, 1, 1, 1, 1, 1 },      { 70, 1, 2, 3, 5, 4, 2, 2, 1, 1, 0, 1, 1, 1 },
        { 2, 1, 16, 32, 40, 30, 3, 3, 1, 1, 1, 1, 1, 1 },
    };
    for (int dtype = 0; dtype <= LUDA_BF16; dtype++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                check_conv(dtype, dtype, layout, cases[i]);
                check_conv(dtype, i % 2 ? -1 : dtype == LUDA_F64 ? dtype : LUDA_F32, layout, cases[i]);
            }
}

/* --- Pooling --- */

static void check_pool(int dtype, int layout, int64_t n, int64_t c, int64_t h, int64_t w, luda_pair k, luda_pair s, luda_pair p,
                       luda_pair d, int64_t oh, int64_t ow)
{
    tensor x = make(dtype, layout, SHAPE(n, c, h, w)), g = make(dtype, layout, SHAPE(n, c, oh, ow));
    tensor y = make(dtype, CONTIGUOUS, SHAPE(n, c, oh, ow)), at_y = make(LUDA_I64, CONTIGUOUS, SHAPE(n, c, oh, ow)),
           dx = make(dtype, CONTIGUOUS, SHAPE(n, c, h, w));
    fill(&x, -2, 2), fill(&g, -2, 2);
    luda_attrs attrs = { .family = LUDA_ATTRS_max_pool, .max_pool = { k, s, p, d, 0 } };
    luda_attrs back = { .family = LUDA_ATTRS_max_pool_backward, .max_pool_backward = { k, s, p, d, 0, 0, { h, w } } };
    luda_operand outs[] = { y.o, at_y.o }, in[] = { g.o, at_y.o };
    CHECK(run(LUDA_OP_max_pool2d, dtype, &x.o, 1, outs, 2, &attrs) == LUDA_OK, "%s", message);
    CHECK(run(LUDA_OP_max_pool2d_backward, dtype, in, 2, &dx.o, 1, &back) == LUDA_OK, "%s", message);
    double *sum = calloc((size_t)x.o.numel + 1, sizeof *sum);
    int bad = 0;
    for (int64_t i = 0; i < y.o.numel; i++) {
        int64_t plane = i / (oh * ow), best = -1;
        for (int64_t a = 0; a < k.height * k.width; a++) {
            int64_t row = i / ow % oh * s.height - p.height + a / k.width * d.height;
            int64_t column = i % ow * s.width - p.width + a % k.width * d.width;
            if (row < 0 || row >= h || column < 0 || column >= w)
                continue;
            if (best < 0 || at(&x, plane * h * w + row * w + column) > at(&x, plane * h * w + best))
                best = row * w + column;
        }
        sum[plane * h * w + best] += at(&g, i);
        bad += at(&y, i) != at(&x, plane * h * w + best) || at(&at_y, i) != (double)best;
    }
    for (int64_t i = 0; i < dx.o.numel && is_float(dtype); i++)
        bad += !close_to(at(&dx, i), sum[i], tolerance(dtype));
    CHECK(bad == 0, "max_pool2d of %s, layout %d: %d wrong", luda_dtype_name((luda_dtype)dtype), layout, bad);
    free(sum);
    drop(&x), drop(&g), drop(&y), drop(&at_y), drop(&dx);
}

static void check_mean(int dtype, int layout, int64_t n, int64_t c, int64_t h, int64_t w, luda_pair k, luda_pair s, luda_pair p,
                       int ceil_mode, int with_padding, int64_t oh, int64_t ow)
{
    tensor x = make(dtype, layout, SHAPE(n, c, h, w)), g = make(dtype, layout, SHAPE(n, c, oh, ow));
    tensor y = make(dtype, CONTIGUOUS, SHAPE(n, c, oh, ow)), dx = make(dtype, CONTIGUOUS, SHAPE(n, c, h, w));
    fill(&x, -2, 2), fill(&g, -2, 2);
    luda_attrs attrs = { .family = LUDA_ATTRS_avg_pool, .avg_pool = { k, s, p, ceil_mode, with_padding } };
    luda_attrs back = { .family = LUDA_ATTRS_avg_pool_backward, .avg_pool_backward = { k, s, p, ceil_mode, with_padding, { h, w } } };
    CHECK(run(LUDA_OP_avg_pool2d, dtype, &x.o, 1, &y.o, 1, &attrs) == LUDA_OK, "%s", message);
    CHECK(run(LUDA_OP_avg_pool2d_backward, dtype, &g.o, 1, &dx.o, 1, &back) == LUDA_OK, "%s", message);
    double *sum = calloc((size_t)x.o.numel + 1, sizeof *sum);
    int bad = 0;
    for (int64_t i = 0; i < y.o.numel; i++) {
        int64_t plane = i / (oh * ow), top = i / ow % oh * s.height - p.height, left = i % ow * s.width - p.width, inside = 0, padded = 0;
        double total = 0;
        for (int64_t a = 0; a < k.height * k.width; a++) {
            int64_t row = top + a / k.width, column = left + a % k.width;
            padded += row < h + p.height && column < w + p.width;
            if (row < 0 || row >= h || column < 0 || column >= w)
                continue;
            total += at(&x, plane * h * w + row * w + column);
            inside++;
        }
        double count = (double)(with_padding ? padded : inside);
        for (int64_t a = 0; a < k.height * k.width; a++) {
            int64_t row = top + a / k.width, column = left + a % k.width;
            if (row >= 0 && row < h && column >= 0 && column < w)
                sum[plane * h * w + row * w + column] += at(&g, i) / count;
        }
        bad += !close_to(at(&y, i), total / count, tolerance(dtype));
    }
    bad += wrong(&dx, sum, 2 * tolerance(dtype));
    CHECK(bad == 0, "avg_pool2d of %s, layout %d: %d wrong", luda_dtype_name((luda_dtype)dtype), layout, bad);
    free(sum);
    drop(&x), drop(&g), drop(&y), drop(&dx);
}

static void test_pooling(void)
{
    for (int layout = 0; layout < LAYOUTS; layout++) {
        for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++) {
            check_pool(dtype, layout, 3, 5, 9, 8, (luda_pair){ 2, 2 }, (luda_pair){ 2, 2 }, (luda_pair){ 0, 0 }, (luda_pair){ 1, 1 }, 4, 4);
            check_pool(dtype, layout, 2, 3, 9, 11, (luda_pair){ 3, 2 }, (luda_pair){ 1, 2 }, (luda_pair){ 1, 1 }, (luda_pair){ 2, 1 }, 7, 6);
            check_pool(dtype, layout, 0, 3, 9, 8, (luda_pair){ 2, 2 }, (luda_pair){ 2, 2 }, (luda_pair){ 0, 0 }, (luda_pair){ 1, 1 }, 4, 4);
        }
        for (int dtype = 0; dtype <= LUDA_BF16; dtype++)
            for (int with = 0; with < 2; with++) {
                check_mean(dtype, layout, 3, 5, 9, 8, (luda_pair){ 2, 3 }, (luda_pair){ 2, 1 }, (luda_pair){ 0, 1 }, 0, with, 4, 8);
                check_mean(dtype, layout, 2, 3, 9, 8, (luda_pair){ 3, 3 }, (luda_pair){ 2, 2 }, (luda_pair){ 0, 1 }, 1, with, 4, 5);
            }
    }
}

static void test_level(void)
{
    test_conv();
    test_pooling();
}

int main(void)
{
    luda_set_threads(2);
    for_each_level(test_level);
    return finish();
}
