/* Gradient rules of the mathematics that ops.def calls once an element, and of rows that share a kernel. */
#include "rule.h"

#define add(a, b) luda__rule2(w, LUDA_OP_add, a, b)
#define sub(a, b) luda__rule2(w, LUDA_OP_sub, a, b)
#define mul(a, b) luda__rule2(w, LUDA_OP_mul, a, b)
#define div(a, b) luda__rule2(w, LUDA_OP_div, a, b)
#define neg(a) luda__rule1(w, LUDA_OP_neg, a)
#define apply(name, a) luda__rule1(w, LUDA_OP_##name, a)
#define square(a) apply(square, a)
#define compare(name, a, b) luda__rule2(w, LUDA_OP_##name, a, b)
#define where(mask, a, b) luda__rule3(w, LUDA_OP_where, mask, a, b)
#define scale(a, number) luda__rule_number(w, LUDA_OP_mul, a, number)
#define shift(a, number) luda__rule_number(w, LUDA_OP_add, a, number)
#define number_like(a, value) ((a) ? luda__rule_full(w, a, (luda_dtype)(a)->dtype, value, 0, NULL) : NULL)
#define is_zero(a) compare(eq, a, number_like(a, 0))

static const double ln2 = 0.69314718055994531, ln10 = 2.3025850929940457, root_pi = 1.7724538509055160;

RULE1(expm1) { return mul(g, shift(y[0], 1)); }
RULE1(log1p) { return div(g, shift(x[0], 1)); }
RULE1(exp2) { return mul(scale(g, ln2), y[0]); }
RULE1(log2) { return div(scale(g, 1 / ln2), x[0]); }
RULE1(log10) { return div(scale(g, 1 / ln10), x[0]); }
RULE1(tan) { return mul(g, shift(square(y[0]), 1)); }
RULE1(asin) { return mul(g, apply(rsqrt, shift(neg(square(x[0])), 1))); }
RULE1(acos) { return neg(mul(g, apply(rsqrt, shift(neg(square(x[0])), 1)))); }
RULE1(atan) { return div(g, shift(square(x[0]), 1)); }
RULE1(sinh) { return mul(g, apply(cosh, x[0])); }
RULE1(cosh) { return mul(g, apply(sinh, x[0])); }
RULE1(asinh) { return mul(g, apply(rsqrt, shift(square(x[0]), 1))); }
RULE1(acosh) { return mul(g, apply(rsqrt, shift(square(x[0]), -1))); }
RULE1(atanh) { return div(g, shift(neg(square(x[0])), 1)); }
RULE1(erfc) { return mul(scale(g, -2 / root_pi), apply(exp, neg(square(x[0])))); }
RULE1(erfinv) { return mul(scale(g, root_pi / 2), apply(exp, square(y[0]))); }
RULE1(softplus) { return mul(g, apply(sigmoid, x[0])); }

RULE1(lgamma) { return mul(g, apply(digamma, x[0])); }
RULE1(digamma) { return mul(g, luda__rule2(w, LUDA_OP_polygamma, number_like(x[0], 1), x[0])); }

RULE1(polygamma)
{
    return i == 1 ? mul(g, luda__rule2(w, LUDA_OP_polygamma, shift(x[0], 1), x[1])) : NULL;
}

/* At the bound the bound has the gradient. */
RULE1(clamp_min)
{
    T zero = number_like(g, 0);
    return i == 0 ? where(compare(gt, x[0], x[1]), g, zero) : where(compare(gt, x[0], x[1]), zero, g);
}

RULE1(clamp_max)
{
    T zero = number_like(g, 0);
    return i == 0 ? where(compare(lt, x[0], x[1]), g, zero) : where(compare(lt, x[0], x[1]), zero, g);
}

/* x - y n, where n is the whole quotient. */
RULE1(remainder) { return i == 0 ? g : neg(mul(g, luda__rule2(w, LUDA_OP_floor_divide, x[0], x[1]))); }
RULE1(fmod) { return i == 0 ? g : neg(mul(g, apply(trunc, div(x[0], x[1])))); }

/* At the origin, where there is no angle, the gradient is zero. */
RULE1(atan2)
{
    T squares = add(square(x[0]), square(x[1]));
    T part = where(is_zero(squares), number_like(x[0], 0), div(x[1 - i], squares));
    return i == 0 ? mul(g, part) : neg(mul(g, part));
}

RULE1(hypot) { return mul(g, where(is_zero(y[0]), number_like(y[0], 0), div(x[i], y[0]))); }
RULE1(logaddexp) { return mul(g, apply(sigmoid, sub(x[i], x[1 - i]))); }

RULE1(xlogy)
{
    if (i == 1)
        return mul(g, div(x[0], x[1]));
    T flat = compare(logical_and, is_zero(x[0]), compare(le, x[1], number_like(x[1], 0)));
    return where(flat, number_like(g, 0), mul(g, apply(log, x[1])));
}

RULE1(copysign)
{
    const luda_node_input *in = &w->node->in[i];
    if (i == 1)
        return luda__rule_full(w, g, (luda_dtype)g->dtype, 0, in->ndim, in->shape);
    T signs = luda__rule2(w, LUDA_OP_copysign, number_like(x[0], 1), x[1]);
    return mul(g, mul(signs, apply(sign, x[0])));
}
