/* Gradient rules of positions along a dimension, of sorting, scans and Fourier transforms. */
#include "rule.h"

#define mul(a, b) luda__rule2(w, LUDA_OP_mul, a, b)
#define eq(a, b) luda__rule2(w, LUDA_OP_eq, a, b)
#define where(mask, a, b) luda__rule3(w, LUDA_OP_where, mask, a, b)

static luda_attrs along(int dim, int base)
{
    return (luda_attrs){ .family = LUDA_ATTRS_gather, .gather = { dim, base } };
}

static T gather(luda_rule *w, T g, T positions, const luda_attrs *attrs)
{
    T in[] = { g, positions };
    return g && positions ? luda__rule_apply(w, LUDA_OP_gather, in, 2, attrs, NULL) : NULL;
}

static T scatter(luda_rule *w, luda_op op, T into, T positions, T source, const luda_attrs *attrs)
{
    T in[] = { into, positions, source };
    return into && positions && source ? luda__rule_apply(w, op, in, 3, attrs, NULL) : NULL;
}

static T zeros(luda_rule *w, T like, luda_dtype dtype, const luda_node_input *shape)
{
    return like ? luda__rule_full(w, like, dtype, 0, shape->ndim, shape->shape) : NULL;
}

/* Zeros of input 0's shape with g added at the positions. */
static T put_back(luda_rule *w, T g, T positions, int dim, int base)
{
    luda_attrs attrs = along(dim, base);
    return g ? scatter(w, LUDA_OP_scatter_add, zeros(w, g, (luda_dtype)g->dtype, &w->node->in[0]), positions, g, &attrs) : NULL;
}

RULE1(gather) { return i == 0 ? put_back(w, g, x[1], w->attrs->gather.dim, w->attrs->gather.base) : NULL; }

RULE1(scatter_add)
{
    return i == 0 ? g : i == 2 ? gather(w, g, x[1], w->attrs) : NULL;
}

/* Of equal positions only the last was written: its number is what stands there after the numbers are scattered. */
RULE1(scatter)
{
    T zero = g ? luda__rule_full(w, g, (luda_dtype)g->dtype, 0, 0, NULL) : NULL;
    const luda_node_input *source = &w->node->in[2];
    if (i == 1 || !g)
        return NULL;
    if (i == 0)
        return scatter(w, LUDA_OP_scatter, g, x[1], luda__rule_expand(w, zero, source->ndim, source->shape), w->attrs);
    T numbers = luda__rule_arange(w, g, LUDA_I64, x[1]->numel);
    numbers = luda__rule_reshape(w, numbers, source->ndim, source->shape);
    T last = scatter(w, LUDA_OP_scatter, zeros(w, g, LUDA_I64, &w->node->in[0]), x[1], numbers, w->attrs);
    return where(eq(gather(w, last, x[1], w->attrs), numbers), gather(w, g, x[1], w->attrs), zero);
}

RULE1(sort) { return put_back(w, g, y[1], w->attrs->sort.dim, w->attrs->sort.base); }
RULE1(cumulative) { return put_back(w, g, y[1], w->attrs->gather.dim, w->attrs->gather.base); }

/* Element i of the result is element i + by of `a`, or 0. */
static T shifted(luda_rule *w, T a, int dim, int by)
{
    int64_t size = a && a->ndim > 0 ? a->shape[dim] : 0;
    luda_attrs cut = { .family = LUDA_ATTRS_narrow, .narrow = { dim, by > 0 ? 1 : 0, size - 1, 1 } };
    luda_attrs place = { .family = LUDA_ATTRS_narrow_backward, .narrow_backward = { dim, by > 0 ? 0 : 1, size, 1 } };
    if (!a)
        return NULL;
    if (size < 2)
        return luda__rule_full(w, a, (luda_dtype)a->dtype, 0, a->ndim, a->shape);
    a = luda__rule_apply(w, LUDA_OP_narrow, &a, 1, &cut, NULL);
    return a ? luda__rule_apply(w, LUDA_OP_narrow_backward, &a, 1, &place, NULL) : NULL;
}

/* The gradient r of x is a scan from the other end, r(i) = g(i) + a(i + 1) r(i + 1); that of a(i) is r(i) y(i - 1). */
RULE1(linear_scan)
{
    int dim = w->attrs->scan.dim, back = w->attrs->scan.reverse ? 1 : -1;
    luda_attrs attrs = { .family = LUDA_ATTRS_scan, .scan = { dim, !w->attrs->scan.reverse } };
    T in[] = { g, shifted(w, x[1], dim, -back) };
    T r = in[0] && in[1] ? luda__rule_apply(w, LUDA_OP_linear_scan, in, 2, &attrs, NULL) : NULL;
    return i == 0 ? r : mul(r, shifted(w, y[0], dim, back));
}

/* The adjoint turns the other way; that of the first half of a real line is the real part of the sum over one. */
RULE1(dft)
{
    luda_attrs attrs = *w->attrs;
    struct luda_dft_attrs *a = &attrs.dft;
    a->inverse = !a->inverse;
    a->size = w->node->in[0].shape[a->dim];
    if (a->transform != LUDA_DFT_COMPLEX)
        a->transform = a->transform == LUDA_DFT_REAL ? LUDA_DFT_HERMITIAN : LUDA_DFT_REAL;
    return i == 0 && g ? luda__rule_apply(w, LUDA_OP_dft, &g, 1, &attrs, NULL) : NULL;
}
