/* CPU kernels of every level against double references written out: products, row-wise kernels, attention. */
#include "kernels_check.h"

/* --- Products --- */

/* A transposed operand is a view of a [columns, rows] tensor. */
static tensor matrix_of(int dtype, int how, int64_t batch, int64_t rows, int64_t columns)
{
    tensor t = how == TRANSPOSED ? make(dtype, CONTIGUOUS, SHAPE(batch, columns, rows))
                                 : make(dtype, how, SHAPE(batch, rows, columns));
    if (how == TRANSPOSED) {
        t.o.shape[1] = rows;
        t.o.shape[2] = columns;
        t.o.stride[1] = 1;
        t.o.stride[2] = rows;
    }
    fill(&t, -3, 3);
    return t;
}

static void check_matmul(int dtype, int how_a, int how_b, int64_t batch, int64_t m, int64_t k, int64_t n, int shared)
{
    tensor a = matrix_of(dtype, how_a, batch, m, k), b = matrix_of(dtype, how_b, shared ? 1 : batch, k, n);
    tensor out = make(dtype, CONTIGUOUS, SHAPE(batch, m, n));
    if (shared) {
        b.o.shape[0] = batch;
        b.o.stride[0] = 0;
    }
    luda_operand in[] = { a.o, b.o };
    CHECK(run(LUDA_OP_matmul, dtype, in, 2, &out.o, 1, NULL) == LUDA_OK, "%s", message);
    int64_t bad = -1;
    double wanted = 0;
    for (int64_t i = 0; i < out.o.numel && bad < 0; i++) {
        int64_t p = i / (m * n), r = i / n % m, c = i % n;
        double exact = 0;
        for (int64_t q = 0; q < k; q++)
            exact += at(&a, (p * m + r) * k + q) * get(b.o.data, dtype, offset_of(&b.o, (p * k + q) * n + c));
        if (dtype == LUDA_I8)
            exact = (double)(int8_t)(int64_t)exact;
        if (!close_to(at(&out, i), exact, tolerance(dtype) * fmax(1, sqrt((double)k)))) {
            bad = i;
            wanted = exact;
        }
    }
    CHECK(bad < 0, "%s %d %d [%d, %d, %d, %d]: element %d is %g, not %g", luda_dtype_name((luda_dtype)dtype), how_a,
          how_b, (int)batch, (int)m, (int)k, (int)n, (int)bad, at(&out, bad < 0 ? 0 : bad), wanted);
    drop(&a);
    drop(&b);
    drop(&out);
}

static void test_matmul(void)
{
    static const int dtypes[] = { LUDA_F64, LUDA_F32, LUDA_F16, LUDA_BF16, LUDA_I64, LUDA_I8 };
    for (int d = 0; d < 6; d++) {
        for (int a = 0; a < LAYOUTS; a++)
            for (int b = 0; b < LAYOUTS; b++) {
                check_matmul(dtypes[d], a, b, 1, 37, 29, 43, 0);
                check_matmul(dtypes[d], a, b, 3, 5, 7, 9, 0);
                check_matmul(dtypes[d], a, b, 3, 33, 17, 19, 1);
            }
        check_matmul(dtypes[d], 0, 0, 1, 300, 70, 140, 0);
        check_matmul(dtypes[d], 2, 0, 2, 1, 1100, 530, 0);
        check_matmul(dtypes[d], 0, 2, 1, 130, 300, 1, 0);
        check_matmul(dtypes[d], 0, 0, 2, 3, 0, 4, 0); /* an empty sum is 0 */
        check_matmul(dtypes[d], 0, 0, 2, 0, 3, 4, 0);
    }
}

/* --- Softmax --- */

static void check_softmax(int dtype, int layout, int dim, int64_t a, int64_t b, int64_t c)
{
    int64_t shape[] = { a, b, c }, inner = dim == 0 ? b * c : dim == 1 ? c : 1, n = shape[dim];
    tensor x = make(dtype, layout, 3, shape), y = make(dtype, CONTIGUOUS, 3, shape),
           l = make(dtype, CONTIGUOUS, 3, shape);
    tensor g = make(dtype, layout, 3, shape), dx = make(dtype, CONTIGUOUS, 3, shape);
    luda_attrs attrs = { .family = LUDA_ATTRS_softmax, .softmax = { dim } };
    fill(&x, -4, 4);
    fill(&g, -4, 4);
    CHECK(run(LUDA_OP_softmax, dtype, &x.o, 1, &y.o, 1, &attrs) == LUDA_OK, "%s", message);
    CHECK(run(LUDA_OP_log_softmax, dtype, &x.o, 1, &l.o, 1, &attrs) == LUDA_OK, "%s", message);
    luda_operand in[] = { g.o, y.o };
    CHECK(run(LUDA_OP_softmax_backward, dtype, in, 2, &dx.o, 1, &attrs) == LUDA_OK, "%s", message);
    int bad = 0;
    for (int64_t i = 0; i < x.o.numel; i++) {
        int64_t start = i / (inner * n) * inner * n + i % inner;
        double sum = 0, dot = 0;
        for (int64_t j = 0; j < n; j++)
            sum += exp(at(&x, start + j * inner));
        for (int64_t j = 0; j < n; j++)
            dot += at(&g, start + j * inner) * at(&y, start + j * inner);
        bad += !close_to(at(&y, i), exp(at(&x, i)) / sum, tolerance(dtype));
        bad += !close_to(at(&l, i), at(&x, i) - log(sum), tolerance(dtype));
        bad += !close_to(at(&dx, i), at(&y, i) * (at(&g, i) - dot), 2 * tolerance(dtype));
    }
    CHECK(bad == 0, "softmax of %s, layout %d, dim %d: %d wrong", luda_dtype_name((luda_dtype)dtype), layout, dim, bad);
    drop(&x), drop(&y), drop(&l), drop(&g), drop(&dx);
}

static void test_softmax(void)
{
    for (int dtype = 0; dtype <= LUDA_BF16; dtype++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (int dim = 0; dim < 3; dim++)
                check_softmax(dtype, layout, dim, 5, 6, 35);
    for (int dim = 0; dim < 3; dim++)
        check_softmax(LUDA_F32, CONTIGUOUS, dim, 61, 33, 47);
    tensor x = make(LUDA_F32, CONTIGUOUS, SHAPE(2, 3)), y = make(LUDA_F32, CONTIGUOUS, SHAPE(2, 3));
    luda_attrs attrs = { .family = LUDA_ATTRS_softmax, .softmax = { 1 } };
    double values[] = { -INFINITY, -INFINITY, -INFINITY, 1000, -INFINITY, 1000 };
    for (int i = 0; i < 6; i++)
        set(&x, i, values[i]);
    run(LUDA_OP_softmax, LUDA_F32, &x.o, 1, &y.o, 1, &attrs);
    CHECK(isnan(at(&y, 0)) && at(&y, 3) == 0.5 && at(&y, 4) == 0, "%g %g %g", at(&y, 0), at(&y, 3), at(&y, 4));
    run(LUDA_OP_log_softmax, LUDA_F32, &x.o, 1, &y.o, 1, &attrs);
    CHECK(isnan(at(&y, 1)) && close_to(at(&y, 3), -log(2), 1e-6) && at(&y, 4) == -INFINITY, "%g %g", at(&y, 3),
          at(&y, 4));
    drop(&x), drop(&y);
}

/* --- layer_norm --- */

static void check_norm(int dtype, int affine, int layout, int64_t rows, int64_t n)
{
    int stat = dtype == LUDA_F64 ? LUDA_F64 : LUDA_F32;
    tensor x = make(dtype, layout, SHAPE(rows, n)), g = make(dtype, layout, SHAPE(rows, n)),
           w = make(affine, STRIDED, SHAPE(n)), b = make(affine, CONTIGUOUS, SHAPE(n));
    tensor out[] = { make(dtype, CONTIGUOUS, SHAPE(rows, n)), make(stat, CONTIGUOUS, SHAPE(rows)),
                     make(stat, CONTIGUOUS, SHAPE(rows)) };
    tensor back[] = { make(dtype, CONTIGUOUS, SHAPE(rows, n)), make(affine, CONTIGUOUS, SHAPE(n)),
                      make(affine, CONTIGUOUS, SHAPE(n)) };
    fill(&x, -4, 4), fill(&g, -2, 2), fill(&w, -2, 2), fill(&b, -2, 2);
    luda_attrs attrs = { .family = LUDA_ATTRS_norm, .norm = { 1e-5 } };
    luda_operand in[] = { x.o, w.o, b.o }, outs[] = { out[0].o, out[1].o, out[2].o };
    CHECK(run(LUDA_OP_layer_norm, dtype, in, 3, outs, 3, &attrs) == LUDA_OK, "%s", message);
    luda_operand in2[] = { g.o, x.o, out[1].o, out[2].o, w.o }, outs2[] = { back[0].o, back[1].o, back[2].o };
    CHECK(run(LUDA_OP_layer_norm_backward, dtype, in2, 5, outs2, 3, &attrs) == LUDA_OK, "%s", message);
    int bad = 0;
    double *dw = calloc(2 * (size_t)n, sizeof *dw), *db = dw + n, limit = 4 * tolerance(dtype);
    for (int64_t i = 0; i < rows; i++) {
        double mean = 0, var = 0, along = 0, across = 0;
        for (int64_t j = 0; j < n; j++)
            mean += at(&x, i * n + j) / (double)n;
        for (int64_t j = 0; j < n; j++)
            var += pow(at(&x, i * n + j) - mean, 2) / (double)n;
        double r = 1 / sqrt(var + 1e-5);
        bad += !close_to(at(&out[1], i), mean, 1e-6) + !close_to(at(&out[2], i), r, 1e-6);
        for (int64_t j = 0; j < n; j++) {
            double h = (at(&x, i * n + j) - mean) * r, e = at(&g, i * n + j) * at(&w, j);
            bad += !close_to(at(&out[0], i * n + j), h * at(&w, j) + at(&b, j), limit);
            along += e / (double)n;
            across += e * h / (double)n;
            dw[j] += at(&g, i * n + j) * h;
            db[j] += at(&g, i * n + j);
        }
        for (int64_t j = 0; j < n; j++) {
            double h = (at(&x, i * n + j) - mean) * r;
            bad += !close_to(at(&back[0], i * n + j), r * (at(&g, i * n + j) * at(&w, j) - along - h * across), limit);
        }
    }
    for (int64_t j = 0; j < n; j++)
        bad += !close_to(at(&back[1], j), dw[j], 4 * fmax(limit, tolerance(affine))) +
               !close_to(at(&back[2], j), db[j], fmax(limit, tolerance(affine)));
    CHECK(bad == 0, "layer_norm of %s with %s: %d wrong", luda_dtype_name((luda_dtype)dtype),
          luda_dtype_name((luda_dtype)affine), bad);
    free(dw);
    drop(&x), drop(&g), drop(&w), drop(&b);
    for (int o = 0; o < 3; o++)
        drop(&out[o]), drop(&back[o]);
}

static void test_norm(void)
{
    for (int dtype = 0; dtype <= LUDA_BF16; dtype++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            check_norm(dtype, dtype, layout, 7, 21);
            check_norm(dtype, LUDA_F32, layout, 300, 100);
        }
    tensor x = make(LUDA_F32, CONTIGUOUS, SHAPE(1, 4)), y = make(LUDA_F32, CONTIGUOUS, SHAPE(1, 4)),
           s[] = { make(LUDA_F32, CONTIGUOUS, SHAPE(1)), make(LUDA_F32, CONTIGUOUS, SHAPE(1)) };
    for (int i = 0; i < 4; i++)
        set(&x, i, 40000 + i);
    luda_operand in[] = { x.o, { .numel = -1 }, { .numel = -1 } }, out[] = { y.o, s[0].o, s[1].o };
    luda_attrs attrs = { .family = LUDA_ATTRS_norm, .norm = { 1e-5 } };
    run(LUDA_OP_layer_norm, LUDA_F32, in, 3, out, 3, &attrs);
    CHECK(close_to(at(&y, 0), -1.341635, 2e-6) && close_to(at(&y, 2), 0.447212, 2e-6), "%.7g %.7g", at(&y, 0),
          at(&y, 2));
    drop(&x), drop(&y), drop(&s[0]), drop(&s[1]);
}

/* --- cross_entropy --- */

static double row_lse(const tensor *x, int64_t row, int64_t c)
{
    double sum = 0;
    for (int64_t j = 0; j < c; j++)
        sum += exp(at(x, row * c + j));
    return log(sum);
}

static void check_loss(int dtype, int reduction, double smoothing, int weighted, int base, int64_t n, int64_t c)
{
    tensor x = make(dtype, weighted ? TRANSPOSED : CONTIGUOUS, SHAPE(n, c)), y = make(LUDA_I64, STRIDED, SHAPE(n)),
           w = make(weighted == 2 ? LUDA_F32 : dtype, CONTIGUOUS, SHAPE(c));
    int64_t none = reduction == LUDA_REDUCTION_NONE;
    tensor out = make(dtype, CONTIGUOUS, none, &n),
           lse = make(dtype == LUDA_F64 ? LUDA_F64 : LUDA_F32, CONTIGUOUS, SHAPE(n));
    tensor g = make(dtype, CONTIGUOUS, none, &n), dx = make(dtype, CONTIGUOUS, SHAPE(n, c));
    fill(&x, -4, 4), fill(&w, 0.25, 2), fill(&g, 0.5, 2);
    for (int64_t i = 0; i < n; i++)
        set(&y, i, i % 5 == 2 ? -100 : floor(uniform(0, (double)c)) + base);
    luda_attrs attrs = { .family = LUDA_ATTRS_cross_entropy, .cross_entropy = { reduction, base, -100, smoothing } };
    luda_operand absent = { .numel = -1 }, in[] = { x.o, y.o, weighted ? w.o : absent }, outs[] = { out.o, lse.o };
    CHECK(run(LUDA_OP_cross_entropy, dtype, in, 3, outs, 2, &attrs) == LUDA_OK, "%s", message);
    luda_operand in2[] = { g.o, x.o, y.o, lse.o, weighted ? w.o : absent };
    CHECK(run(LUDA_OP_cross_entropy_backward, dtype, in2, 5, &dx.o, 1, &attrs) == LUDA_OK, "%s", message);
    double total = 0, weight = 0, limit = 4 * tolerance(dtype);
    int bad = 0;
    for (int64_t i = 0; i < n; i++)
        weight += at(&y, i) == -100 ? 0 : weighted ? at(&w, (int64_t)at(&y, i) - base) : 1;
    for (int64_t i = 0; i < n; i++) {
        int64_t label = (int64_t)at(&y, i) - base, counted = at(&y, i) != -100;
        double l = row_lse(&x, i, c), loss = 0, sum = 0,
               f = at(&g, none ? i : 0) / (reduction == LUDA_REDUCTION_MEAN ? weight : 1);
        for (int64_t j = 0; counted && j < c; j++) {
            double share = (weighted ? at(&w, j) : 1) * ((j == label) * (1 - smoothing) + smoothing / (double)c);
            loss += share * (l - at(&x, i * c + j));
            sum += share;
        }
        for (int64_t j = 0; j < c; j++) {
            double share =
                counted ? (weighted ? at(&w, j) : 1) * ((j == label) * (1 - smoothing) + smoothing / (double)c) : 0;
            bad += !close_to(at(&dx, i * c + j), f * (exp(at(&x, i * c + j) - l) * sum - share), limit);
        }
        total += loss;
        bad += !close_to(at(&lse, i), l, 1e-5) + (none && !close_to(at(&out, i), loss, limit));
    }
    bad += !none && !close_to(at(&out, 0), reduction == LUDA_REDUCTION_MEAN ? total / weight : total, limit);
    CHECK(bad == 0, "cross_entropy of %s, reduction %d, smoothing %g, weights %d: %d wrong",
          luda_dtype_name((luda_dtype)dtype), reduction, smoothing, weighted, bad);
    set(&y, 1, base + (double)c);
    CHECK(run(LUDA_OP_cross_entropy, dtype, in, 3, outs, 2, &attrs) == LUDA_EINDEX, "a label beyond the classes");
    for (int64_t i = 0; i < n; i++)
        set(&y, i, -100);
    CHECK(run(LUDA_OP_cross_entropy, dtype, in, 3, outs, 2, &attrs) == LUDA_OK && at(&out, 0) == 0,
          "nothing counted gives %g", at(&out, 0));
    CHECK(run(LUDA_OP_cross_entropy_backward, dtype, in2, 5, &dx.o, 1, &attrs) == LUDA_OK && at(&dx, 3) == 0, "%g",
          at(&dx, 3));
    drop(&x), drop(&y), drop(&w), drop(&out), drop(&lse), drop(&g), drop(&dx);
}

static void test_loss(void)
{
    for (int dtype = 0; dtype <= LUDA_BF16; dtype++)
        for (int reduction = 0; reduction < 3; reduction++)
            for (int weighted = 0; weighted < 3; weighted++) {
                check_loss(dtype, reduction, 0, weighted, 1, 9, 23);
                check_loss(dtype, reduction, 0.25, weighted, 0, 9, 23);
            }
    check_loss(LUDA_F32, LUDA_REDUCTION_MEAN, 0.1, 1, 1, 700, 57);
}

/* --- Attention: the definition, and its gradient by hand --- */

static int seen(int causal, int64_t t, int64_t s, int64_t queries, int64_t keys)
{
    return !causal || s <= t + keys - queries;
}

static void check_attention(int dtype, int causal, int layout, int64_t batch, int64_t nq, int64_t nk, int64_t d,
                            int64_t e)
{
    int stat = dtype == LUDA_F64 ? LUDA_F64 : LUDA_F32, bad = 0;
    tensor q = make(dtype, layout, SHAPE(batch, nq, d)), k = make(dtype, layout, SHAPE(batch, nk, d)),
           v = make(dtype, layout, SHAPE(batch, nk, e));
    tensor g = make(dtype, layout, SHAPE(batch, nq, e)), out = make(dtype, CONTIGUOUS, SHAPE(batch, nq, e)),
           lse = make(stat, CONTIGUOUS, SHAPE(batch, nq));
    tensor dq = make(dtype, CONTIGUOUS, SHAPE(batch, nq, d)), dk = make(dtype, CONTIGUOUS, SHAPE(batch, nk, d)),
           dv = make(dtype, CONTIGUOUS, SHAPE(batch, nk, e));
    fill(&q, -2, 2), fill(&k, -2, 2), fill(&v, -2, 2), fill(&g, -2, 2);
    luda_attrs attrs = { .family = LUDA_ATTRS_attention, .attention = { .is_causal = causal } };
    luda_operand in[] = { q.o, k.o, v.o }, outs[] = { out.o, lse.o };
    CHECK(run(LUDA_OP_scaled_dot_product_attention, dtype, in, 3, outs, 2, &attrs) == LUDA_OK, "%s", message);
    luda_operand in2[] = { g.o, q.o, k.o, v.o, out.o, lse.o }, outs2[] = { dq.o, dk.o, dv.o };
    CHECK(run(LUDA_OP_scaled_dot_product_attention_backward, dtype, in2, 6, outs2, 3, &attrs) == LUDA_OK, "%s", message);
    double scale = 1 / sqrt((double)d), limit = 4 * tolerance(dtype);
    double *p = calloc((size_t)nk, sizeof *p), *x = calloc((size_t)(2 * nk * (d + e) + d), sizeof *x);
    for (int64_t b = 0; b < batch; b++) {
        double *edk = x, *edv = x + nk * d, *edq = x + nk * (d + e);
        memset(x, 0, (size_t)(2 * nk * (d + e) + d) * sizeof *x);
        for (int64_t t = 0; t < nq; t++) {
            double sum = 0, dot = 0;
            memset(edq, 0, (size_t)d * sizeof *edq);
            for (int64_t s = 0; s < nk; s++) {
                double score = 0;
                for (int64_t j = 0; j < d; j++)
                    score += at(&q, (b * nq + t) * d + j) * at(&k, (b * nk + s) * d + j) * scale;
                sum += p[s] = seen(causal, t, s, nq, nk) ? exp(score) : 0;
            }
            bad += !close_to(at(&lse, b * nq + t), sum > 0 ? log(sum) : -INFINITY, dtype == LUDA_F64 ? limit : 1e-5);
            for (int64_t j = 0; j < e; j++) {
                double y = 0;
                for (int64_t s = 0; s < nk && sum > 0; s++)
                    y += p[s] / sum * at(&v, (b * nk + s) * e + j);
                bad += !close_to(at(&out, (b * nq + t) * e + j), y, limit);
                dot += y * at(&g, (b * nq + t) * e + j);
            }
            for (int64_t s = 0; s < nk && sum > 0; s++) {
                double slope = 0;
                for (int64_t j = 0; j < e; j++) {
                    slope += at(&g, (b * nq + t) * e + j) * at(&v, (b * nk + s) * e + j);
                    edv[s * e + j] += p[s] / sum * at(&g, (b * nq + t) * e + j);
                }
                slope = p[s] / sum * (slope - dot) * scale;
                for (int64_t j = 0; j < d; j++) {
                    edq[j] += slope * at(&k, (b * nk + s) * d + j);
                    edk[s * d + j] += slope * at(&q, (b * nq + t) * d + j);
                }
            }
            for (int64_t j = 0; j < d; j++)
                bad += !close_to(at(&dq, (b * nq + t) * d + j), edq[j], 4 * limit);
        }
        for (int64_t i = 0; i < nk * d; i++)
            bad += !close_to(at(&dk, b * nk * d + i), edk[i], 8 * limit);
        for (int64_t i = 0; i < nk * e; i++)
            bad += !close_to(at(&dv, b * nk * e + i), edv[i], 8 * limit);
    }
    CHECK(bad == 0, "attention of %s, causal %d, [%d, %d, %d, %d, %d]: %d wrong", luda_dtype_name((luda_dtype)dtype),
          causal, (int)batch, (int)nq, (int)nk, (int)d, (int)e, bad);
    free(p), free(x);
    drop(&q), drop(&k), drop(&v), drop(&g), drop(&out), drop(&lse), drop(&dq), drop(&dk), drop(&dv);
}

static void test_attention(void)
{
    for (int dtype = 0; dtype <= LUDA_BF16; dtype++)
        for (int causal = 0; causal < 2; causal++)
            for (int layout = 0; layout < LAYOUTS; layout++) {
                check_attention(dtype, causal, layout, 3, 9, 13, 5, 3);
                check_attention(dtype, causal, layout, 17, 6, 4, 4, 6); /* causal: the first queries see nothing */
            }
    for (int causal = 0; causal < 2; causal++) {
        check_attention(LUDA_F32, causal, CONTIGUOUS, 2, 150, 290, 8, 5); /* several tiles */
        check_attention(LUDA_F32, causal, CONTIGUOUS, 16, 140, 140, 4, 4);
        check_attention(LUDA_F64, causal, TRANSPOSED, 1, 1, 200, 3, 2);
    }
}

/* Dropout: the weights that stay are those of the definition, so that v = identity shows them. */
static void test_attention_dropout(void)
{
    enum { N = 140 };
    tensor q = make(LUDA_F64, CONTIGUOUS, SHAPE(1, N, 1)), k = make(LUDA_F64, CONTIGUOUS, SHAPE(1, N, 1)),
           v = make(LUDA_F64, CONTIGUOUS, SHAPE(1, N, N));
    tensor g = make(LUDA_F64, CONTIGUOUS, SHAPE(1, N, N)), out = make(LUDA_F64, CONTIGUOUS, SHAPE(1, N, N)),
           lse = make(LUDA_F64, CONTIGUOUS, SHAPE(1, N)), plus = make(LUDA_F64, CONTIGUOUS, SHAPE(1, N, N));
    tensor dq = make(LUDA_F64, CONTIGUOUS, SHAPE(1, N, 1)), dk = make(LUDA_F64, CONTIGUOUS, SHAPE(1, N, 1)),
           dv = make(LUDA_F64, CONTIGUOUS, SHAPE(1, N, N));
    luda_attrs attrs = { .family = LUDA_ATTRS_attention,
                         .attention = { .scale = 1, .dropout_p = 0.25, .generator = { { .seed = 7 }, 3 } } };
    fill(&q, -1, 1), fill(&k, -1, 1), fill(&g, -1, 1);
    for (int i = 0; i < N; i++)
        set(&v, i * N + i, 1);
    luda_operand in[] = { q.o, k.o, v.o }, outs[] = { out.o, lse.o }, outs_plus[] = { plus.o, lse.o };
    CHECK(run(LUDA_OP_scaled_dot_product_attention, LUDA_F64, in, 3, outs, 2, &attrs) == LUDA_OK, "%s", message);
    int dropped = 0, bad = 0;
    for (int i = 0; i < N * N; i++) {
        uint32_t words[4];
        luda__philox(7, 3 + (uint64_t)i / 4, words);
        int keeps = (words[i % 4] >> 8) * 0x1p-24 >= 0.25;
        double p = exp(at(&q, i / N) * at(&k, i % N) - at(&lse, i / N));
        dropped += !keeps;
        bad += !close_to(at(&out, i), keeps ? p / 0.75 : 0, 1e-12);
    }
    CHECK(bad == 0 && dropped > N * N / 5 && dropped < N * N * 3 / 10, "%d wrong, %d dropped", bad, dropped);
    luda_operand in2[] = { g.o, q.o, k.o, v.o, out.o, lse.o }, outs2[] = { dq.o, dk.o, dv.o };
    CHECK(run(LUDA_OP_scaled_dot_product_attention_backward, LUDA_F64, in2, 6, outs2, 3, &attrs) == LUDA_OK, "%s", message);
    for (int which = 0; which < 3; which++) /* central differences of sum(g out) */
        for (int i = 1; i < N; i += 45) {
            tensor *x = which == 0 ? &q : which == 1 ? &k : &v, *dx = which == 0 ? &dq : which == 1 ? &dk : &dv;
            double before = at(x, i), slope = 0;
            for (int sign = -1; sign <= 1; sign += 2) {
                set(x, i, before + sign * 1e-5);
                run(LUDA_OP_scaled_dot_product_attention, LUDA_F64, in, 3, outs_plus, 2, &attrs);
                for (int j = 0; j < N * N; j++)
                    slope += sign * at(&g, j) * at(&plus, j) / 2e-5;
            }
            set(x, i, before);
            CHECK(close_to(at(dx, i), slope, 1e-7), "input %d, element %d: %.9g, not %.9g", which, i, at(dx, i), slope);
        }
    drop(&q), drop(&k), drop(&v), drop(&g), drop(&out), drop(&lse), drop(&plus), drop(&dq), drop(&dk), drop(&dv);
}

int main(void)
{
    for_each_level(test_matmul);
    for_each_level(test_softmax);
    for_each_level(test_norm);
    for_each_level(test_loss);
    for_each_level(test_attention);
    for_each_level(test_attention_dropout);
    return finish();
}
