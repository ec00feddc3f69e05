/*
 * Gradient rules of linear algebra, for the matrices of a batch (Giles 2008, "Collected matrix derivative results"; for QR
 * Walter and Lehmann 2012). Factors whose singular or eigenvalues coincide have no gradient: it comes out as NaN. What
 * depends on the values alone does not divide by their differences.
 */
#include "rule.h"

#define add(a, b) luda__rule2(w, LUDA_OP_add, a, b)
#define sub(a, b) luda__rule2(w, LUDA_OP_sub, a, b)
#define mul(a, b) luda__rule2(w, LUDA_OP_mul, a, b)
#define div(a, b) luda__rule2(w, LUDA_OP_div, a, b)
#define neg(a) luda__rule1(w, LUDA_OP_neg, a)
#define where(mask, a, b) luda__rule3(w, LUDA_OP_where, mask, a, b)
#define matmul(a, b) luda__rule2(w, LUDA_OP_matmul, a, b)
#define transposed(a) luda__rule_transpose(w, a)
#define scale(a, number) luda__rule_number(w, LUDA_OP_mul, a, number)
#define number_like(a, value) ((a) ? luda__rule_full(w, a, (luda_dtype)(a)->dtype, value, 0, NULL) : NULL)
#define as_column(a) luda__rule_unsqueeze(w, a, -1)
#define as_row(a) luda__rule_unsqueeze(w, a, -2)

static int64_t rows_of(const luda_tensor *a)
{
    return a->shape[a->ndim - 2];
}

static int64_t columns_of(const luda_tensor *a)
{
    return a->shape[a->ndim - 1];
}

/* Where column - row of a matrix compares with `diagonal`: le is the lower triangle, ge the upper, eq the diagonal. */
static T part(luda_rule *w, T like, int64_t rows, int64_t columns, luda_op compare, int diagonal)
{
    T row = luda__rule_reshape(w, luda__rule_arange(w, like, LUDA_I64, rows), 2, (int64_t[]){ rows, 1 });
    return luda__rule_number(w, compare, sub(luda__rule_arange(w, like, LUDA_I64, columns), row), diagonal);
}

static T keep_part(luda_rule *w, T a, luda_op compare, int diagonal)
{
    return a ? where(part(w, a, rows_of(a), columns_of(a), compare, diagonal), a, number_like(a, 0)) : NULL;
}

/* `values` on the diagonal, elsewhere 0. */
static T with_diagonal(luda_rule *w, T values)
{
    if (!values)
        return NULL;
    T diagonal = part(w, values, columns_of(values), columns_of(values), LUDA_OP_eq, 0);
    return where(diagonal, as_column(values), number_like(values, 0));
}

/* The lower triangle, and above the diagonal its mirror image. */
static T mirrored(luda_rule *w, T a)
{
    return add(keep_part(w, a, LUDA_OP_le, 0), transposed(keep_part(w, a, LUDA_OP_le, -1)));
}

/* (A - A^T) / (v[column] - v[row]), 0 on the diagonal. */
static T over_gaps(luda_rule *w, T a, T v)
{
    T diagonal = v ? part(w, v, columns_of(v), columns_of(v), LUDA_OP_eq, 0) : NULL;
    T gaps = where(diagonal, number_like(v, 1), sub(as_row(v), as_column(v)));
    return div(sub(a, transposed(a)), gaps);
}

/* a, b, or their sum: what took no part is NULL. */
static T joined(luda_rule *w, T a, T b)
{
    return a && b ? add(a, b) : a ? a : b;
}

static T solve_triangle(luda_rule *w, T a, T b, bool upper, bool transpose, bool unitriangular)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_solve_triangular, .solve_triangular = { upper, transpose, unitriangular } };
    T in[] = { a, b };
    return a && b ? luda__rule_apply(w, LUDA_OP_solve_triangular, in, 2, &attrs, NULL) : NULL;
}

/* With P = L^T G: L^-T mirrored(P) L^-1 / 2. */
RULE1(cholesky)
{
    bool upper = w->attrs->factor.upper;
    T l = upper ? transposed(y[0]) : y[0], gl = upper ? transposed(g) : g;
    T inner = solve_triangle(w, l, mirrored(w, matmul(transposed(l), gl)), false, true, false);
    return scale(solve_triangle(w, l, transposed(inner), false, true, false), 0.5);
}

static T columns(luda_rule *w, T a, int64_t start, int64_t count)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_narrow, .narrow = { -1, start, count, 1 } };
    return a ? luda__rule_apply(w, LUDA_OP_narrow, &a, 1, &attrs, NULL) : NULL;
}

static T place_columns(luda_rule *w, T a, int64_t start, int64_t count)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_narrow_backward, .narrow_backward = { -1, start, count, 1 } };
    return a ? luda__rule_apply(w, LUDA_OP_narrow_backward, &a, 1, &attrs, NULL) : NULL;
}

/* (G + Q mirrored(M)) R^-T with M = R Gr^T - G^T Q; columns beyond the square are Q times their part of R. */
RULE(qr)
{
    T q = w->y[0], r = w->y[1], gq = w->g[0], gr = w->g[1], rest = NULL;
    int64_t k = rows_of(r), n = columns_of(r);
    if (n > k && gr) {
        T beyond = columns(w, gr, k, n - k);
        rest = place_columns(w, matmul(q, beyond), k, n);
        gq = joined(w, gq, matmul(q, matmul(columns(w, r, k, n - k), transposed(beyond))));
    }
    T square = n > k ? columns(w, r, 0, k) : r;
    T m = gr ? matmul(square, transposed(n > k ? columns(w, gr, 0, k) : gr)) : NULL;
    m = joined(w, m, gq ? neg(matmul(transposed(gq), q)) : NULL);
    T left = joined(w, gq, matmul(q, mirrored(w, m)));
    T dx = transposed(solve_triangle(w, square, transposed(left), true, false, false));
    luda__rule_set(w, 0, joined(w, n > k ? place_columns(w, dx, 0, n) : dx, rest));
}

RULE(svd)
{
    T u = w->y[0], s = w->y[1], vh = w->y[2], gu = w->g[0], gv = w->g[2];
    T inner = with_diagonal(w, w->g[1]), squares = gu || gv ? luda__rule1(w, LUDA_OP_square, s) : NULL;
    if (gu)
        inner = joined(w, inner, mul(over_gaps(w, matmul(transposed(u), gu), squares), as_row(s)));
    if (gv)
        inner = joined(w, inner, mul(as_column(s), over_gaps(w, matmul(vh, transposed(gv)), squares)));
    T left = matmul(u, inner);
    if (gu && rows_of(u) > columns_of(u)) { /* what leaves the space of U */
        T out = div(gu, as_row(s));
        left = add(left, sub(out, matmul(u, matmul(transposed(u), out))));
    }
    T dx = matmul(left, vh);
    if (gv && columns_of(vh) > rows_of(vh)) {
        T out = div(gv, as_column(s));
        dx = add(dx, matmul(u, sub(out, matmul(matmul(out, transposed(vh)), vh))));
    }
    luda__rule_set(w, 0, dx);
}

RULE(eigh)
{
    T values = w->y[0], v = w->y[1], inner = with_diagonal(w, w->g[0]);
    if (w->g[1])
        inner = joined(w, inner, scale(over_gaps(w, matmul(transposed(v), w->g[1]), values), 0.5));
    luda__rule_set(w, 0, matmul(matmul(v, inner), transposed(v)));
}

RULE(solve)
{
    T gb = luda__rule2(w, LUDA_OP_solve, transposed(w->x[0]), w->g[0]);
    if (w->need[1])
        luda__rule_set(w, 1, gb);
    if (w->need[0])
        luda__rule_set(w, 0, neg(matmul(gb, transposed(w->y[0]))));
}

RULE(solve_triangular)
{
    const struct luda_solve_triangular_attrs *a = &w->attrs->solve_triangular;
    T x = w->y[0], gb = solve_triangle(w, w->x[0], w->g[0], a->upper, !a->transpose, a->unitriangular);
    if (w->need[1])
        luda__rule_set(w, 1, gb);
    if (!w->need[0])
        return;
    T product = a->transpose ? matmul(x, transposed(gb)) : matmul(gb, transposed(x));
    int diagonal = !a->unitriangular ? 0 : a->upper ? 1 : -1;
    luda__rule_set(w, 0, keep_part(w, neg(product), a->upper ? LUDA_OP_ge : LUDA_OP_le, diagonal));
}

/* g A^-T, for one number a matrix. */
static T times_inverse(luda_rule *w, T g, T a)
{
    if (!g || !a)
        return NULL;
    T identity = where(part(w, a, rows_of(a), rows_of(a), LUDA_OP_eq, 0), number_like(a, 1), number_like(a, 0));
    return mul(as_column(as_column(g)), luda__rule2(w, LUDA_OP_solve, transposed(a), identity));
}

RULE(slogdet) { luda__rule_set(w, 0, times_inverse(w, w->g[1], w->x[0])); }

/* The product of the other elements of the last dimension, for each. */
static T other_products(luda_rule *w, T values)
{
    if (!values)
        return NULL;
    int64_t n = columns_of(values);
    luda_attrs attrs = { .family = LUDA_ATTRS_scan, .scan = { -1, 0 } };
    T factors = where(part(w, values, n, n, LUDA_OP_eq, 0), number_like(values, 1), as_row(values));
    T in[] = { place_columns(w, columns(w, factors, 0, 1), 0, n), factors };
    T running = in[0] ? luda__rule_apply(w, LUDA_OP_linear_scan, in, 2, &attrs, NULL) : NULL;
    return luda__rule_squeeze(w, columns(w, running, n - 1, 1), -1);
}

static bool has_zero(luda_rule *w, T a)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_reduce };
    double least = 1;
    T size = luda__rule1(w, LUDA_OP_abs, a);
    if (size && size->numel > 0)
        size = luda__rule_apply(w, LUDA_OP_amin, &size, 1, &attrs, NULL);
    if (size && size->numel > 0 && w->status == LUDA_OK)
        w->status = luda_tensor_get(size, 0, &least);
    return least == 0;
}

/* A singular matrix has no inverse, but cofactors: det U det V U diag(products of the other singular values) V^T. */
RULE1(det)
{
    T others[LUDA_MAX_OUTPUTS] = { NULL };
    if (!has_zero(w, y[0]))
        return times_inverse(w, mul(g, y[0]), x[0]);
    T u = luda__rule_apply(w, LUDA_OP_svd, x, 1, NULL, others);
    T signs = mul(luda__rule1(w, LUDA_OP_det, u), luda__rule1(w, LUDA_OP_det, others[1]));
    T cofactors = matmul(mul(u, as_row(other_products(w, others[0]))), others[1]);
    return mul(as_column(as_column(mul(g, signs))), cofactors);
}
