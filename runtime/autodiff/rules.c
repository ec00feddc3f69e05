/*
 * Gradient rules of elementwise operators, shapes, reductions and products. A rule says what the mathematics says; broadcasts
 * are undone by the walk. Fused rows are in rules_fused.c.
 */
#include "rule.h"

/* Short names: operators inside a rule. */
#define add(a, b) luda__rule2(w, LUDA_OP_add, a, b)
#define sub(a, b) luda__rule2(w, LUDA_OP_sub, a, b)
#define mul(a, b) luda__rule2(w, LUDA_OP_mul, a, b)
#define div(a, b) luda__rule2(w, LUDA_OP_div, a, b)
#define neg(a) luda__rule1(w, LUDA_OP_neg, a)
#define exp(a) luda__rule1(w, LUDA_OP_exp, a)
#define log(a) luda__rule1(w, LUDA_OP_log, a)
#define sin(a) luda__rule1(w, LUDA_OP_sin, a)
#define cos(a) luda__rule1(w, LUDA_OP_cos, a)
#define tanh(a) luda__rule1(w, LUDA_OP_tanh, a)
#define sign(a) luda__rule1(w, LUDA_OP_sign, a)
#define square(a) luda__rule1(w, LUDA_OP_square, a)
#define sigmoid(a) luda__rule1(w, LUDA_OP_sigmoid, a)
#define pow(a, b) luda__rule2(w, LUDA_OP_pow, a, b)
#define eq(a, b) luda__rule2(w, LUDA_OP_eq, a, b)
#define gt(a, b) luda__rule2(w, LUDA_OP_gt, a, b)
#define where(mask, a, b) luda__rule3(w, LUDA_OP_where, mask, a, b)
#define matmul(a, b) luda__rule2(w, LUDA_OP_matmul, a, b)
#define transposed(a) luda__rule_transpose(w, a)
#define scale(a, number) luda__rule_number(w, LUDA_OP_mul, a, number)
#define shift(a, number) luda__rule_number(w, LUDA_OP_add, a, number)
#define number_like(a, value) ((a) ? luda__rule_full(w, a, (luda_dtype)(a)->dtype, value, 0, NULL) : NULL)

static const luda_node_input *input(const luda_rule *w, int i)
{
    return &w->node->in[i];
}

/* --- Arithmetic --- */

RULE1(add) { return g; }
RULE1(sub) { return i == 0 ? g : neg(g); }
RULE1(mul) { return mul(g, x[1 - i]); }
RULE1(div) { return i == 0 ? div(g, x[1]) : neg(div(mul(g, x[0]), square(x[1]))); }
RULE1(neg) { return neg(g); }
RULE1(abs) { return mul(g, sign(x[0])); }
RULE1(square) { return mul(g, scale(x[0], 2)); }
RULE1(sqrt) { return div(scale(g, 0.5), y[0]); }
RULE1(rsqrt) { return mul(scale(g, -0.5), mul(y[0], square(y[0]))); }
RULE1(reciprocal) { return neg(mul(g, square(y[0]))); }
RULE1(exp) { return mul(g, y[0]); }
RULE1(log) { return div(g, x[0]); }
RULE1(sin) { return mul(g, cos(x[0])); }
RULE1(cos) { return neg(mul(g, sin(x[0]))); }
RULE1(tanh) { return luda__rule_last(w, LUDA_OP_tanh_backward, y[0]); }
RULE1(sigmoid) { return luda__rule_last(w, LUDA_OP_sigmoid_backward, y[0]); }
RULE1(erf) { return mul(g, scale(exp(neg(square(x[0]))), 1.1283791670955126 /* 2 / sqrt(pi) */)); }
RULE1(clone) { return g; }

/* Where a factor would be 0 * inf the other branch is written, not computed: x^0 has slope 0, 0^y slope 0 in y. */
RULE1(pow)
{
    if (i == 0) {
        T zero = number_like(x[1], 0);
        return mul(g, where(eq(x[1], zero), number_like(x[0], 0), mul(x[1], pow(x[0], shift(x[1], -1)))));
    }
    T zero = number_like(x[0], 0);
    return mul(g, where(eq(x[0], zero), number_like(y[0], 0), mul(y[0], log(x[0]))));
}

/* Equal elements share. */
static T extreme_share(luda_rule *w, T g, T larger, T smaller)
{
    T zero = number_like(g, 0);
    return where(gt(larger, smaller), g, where(eq(larger, smaller), scale(g, 0.5), zero));
}

RULE1(maximum) { return extreme_share(w, g, x[i], x[1 - i]); }
RULE1(minimum) { return extreme_share(w, g, x[1 - i], x[i]); }

/* --- Activations --- */

RULE1(relu) { return luda__rule_last(w, LUDA_OP_relu_backward, y[0]); }
RULE1(relu_backward) { return i == 0 ? luda__rule2(w, LUDA_OP_relu_backward, g, x[1]) : NULL; }
RULE1(gelu_tanh) { return luda__rule_last(w, LUDA_OP_gelu_tanh_backward, x[0]); }

RULE1(gelu) { return luda__rule_last(w, LUDA_OP_gelu_backward, x[0]); }
RULE1(silu) { return luda__rule_last(w, LUDA_OP_silu_backward, x[0]); }

RULE1(silu_mul)
{
    return i == 0 ? luda__rule2(w, LUDA_OP_silu_backward, mul(g, x[1]), x[0]) : mul(g, luda__rule1(w, LUDA_OP_silu, x[0]));
}

/* Of these the inputs are the gradient, then y or x. */

RULE1(tanh_backward)
{
    return i == 0 ? luda__rule2(w, LUDA_OP_tanh_backward, g, x[1]) : scale(mul(mul(g, x[0]), x[1]), -2);
}

RULE1(sigmoid_backward)
{
    return i == 0 ? luda__rule2(w, LUDA_OP_sigmoid_backward, g, x[1]) : mul(mul(g, x[0]), shift(scale(x[1], -2), 1));
}

/* f'' = phi(x) (2 - x^2) */
RULE1(gelu_backward)
{
    if (i == 0)
        return luda__rule2(w, LUDA_OP_gelu_backward, g, x[1]);
    T xx = square(x[1]);
    T density = scale(exp(scale(xx, -0.5)), 0.39894228040143268 /* 1 / sqrt(2 pi) */);
    return mul(mul(g, x[0]), mul(density, shift(neg(xx), 2)));
}

/* f'' = s (1 - s) (2 + x (1 - 2 s)) */
RULE1(silu_backward)
{
    if (i == 0)
        return luda__rule2(w, LUDA_OP_silu_backward, g, x[1]);
    T s = sigmoid(x[1]);
    T bend = shift(mul(x[1], shift(scale(s, -2), 1)), 2);
    return mul(mul(g, x[0]), mul(sub(s, square(s)), bend));
}

/*
 * f = x (1 + t) / 2, t = tanh u, u = c (x + a x^3). f'' = s u' + x s (u'' - 2 t u'^2) / 2 with s = 1 - t^2.
 * Inputs: the gradient, then x.
 */
RULE1(gelu_tanh_backward)
{
    const double c = 0.79788456080286536, a = 0.044715;
    if (i == 0)
        return luda__rule2(w, LUDA_OP_gelu_tanh_backward, g, x[1]);
    T xx = square(x[1]);
    T t = tanh(scale(mul(x[1], shift(scale(xx, a), 1)), c));
    T s = sub(number_like(t, 1), square(t));
    T slope = scale(shift(scale(xx, 3 * a), 1), c), curve = scale(x[1], 6 * a * c);
    T bend = scale(mul(mul(x[1], s), sub(curve, scale(mul(t, square(slope)), 2))), 0.5);
    return mul(mul(g, x[0]), add(mul(s, slope), bend));
}

RULE1(where)
{
    T zero = number_like(g, 0);
    if (i == 0)
        return NULL;
    return i == 1 ? where(x[0], g, zero) : where(x[0], zero, g);
}

/* --- Views and moves --- */

RULE1(to) { return luda__rule_cast(w, g, (luda_dtype)input(w, i)->dtype, input(w, i)->device); }
RULE1(expand) { return g; }
RULE1(reshape) { return luda__rule_reshape(w, g, input(w, i)->ndim, input(w, i)->shape); }

static T place(luda_rule *w, T g, int dim, int64_t start, int64_t step, int64_t size)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_narrow_backward, .narrow_backward = { dim, start, size, step } };
    return g ? luda__rule_apply(w, LUDA_OP_narrow_backward, &g, 1, &attrs, NULL) : NULL;
}

static T narrow(luda_rule *w, T g, int dim, int64_t start, int64_t length, int64_t step)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_narrow, .narrow = { dim, start, length, step } };
    return g ? luda__rule_apply(w, LUDA_OP_narrow, &g, 1, &attrs, NULL) : NULL;
}

RULE1(narrow)
{
    const struct luda_narrow_attrs *a = &w->attrs->narrow;
    if (luda__rule_add_part(w, i, g, a))
        return NULL;
    return place(w, g, a->dim, a->start, a->step, input(w, i)->shape[a->dim]);
}

RULE1(narrow_backward)
{
    const struct luda_narrow_backward_attrs *a = &w->attrs->narrow_backward;
    return narrow(w, g, a->dim, a->start, input(w, i)->shape[a->dim], a->step);
}

RULE1(select)
{
    const struct luda_select_attrs *a = &w->attrs->select;
    g = luda__rule_unsqueeze(w, g, a->dim);
    if (luda__rule_add_part(w, i, g, &(struct luda_narrow_attrs){ a->dim, a->index, 1, 1 }))
        return NULL;
    return place(w, g, a->dim, a->index, 1, input(w, i)->shape[a->dim]);
}

RULE1(transpose) { return luda__rule_apply(w, LUDA_OP_transpose, &g, 1, w->attrs, NULL); }

RULE1(permute)
{
    luda_attrs back = { .family = LUDA_ATTRS_permute };
    back.permute.dims.count = w->attrs->permute.dims.count;
    for (int d = 0; d < back.permute.dims.count; d++)
        back.permute.dims.dim[w->attrs->permute.dims.dim[d]] = d;
    return luda__rule_apply(w, LUDA_OP_permute, &g, 1, &back, NULL);
}

RULE1(cat)
{
    int dim = w->attrs->cat.dim;
    int64_t start = 0;
    for (int before = 0; before < i; before++)
        start += input(w, before)->shape[dim];
    return narrow(w, g, dim, start, input(w, i)->shape[dim], 1);
}

/* --- Reductions --- */

/* A reduced tensor with size-1 dimensions where the input's were reduced. */
static T restore_dims(luda_rule *w, T a)
{
    const struct luda_reduce_attrs *r = &w->attrs->reduce;
    const luda_node_input *in = input(w, 0);
    int64_t shape[LUDA_MAX_DIMS];
    for (int d = 0; d < in->ndim; d++)
        shape[d] = r->dim.count == 0 ? 1 : in->shape[d];
    for (int k = 0; k < r->dim.count; k++)
        shape[r->dim.dim[k]] = 1;
    return luda__rule_reshape(w, a, in->ndim, shape);
}

static T spread(luda_rule *w, T g)
{
    if (g && g->ndim == 0)
        return luda__rule_expand(w, g, input(w, 0)->ndim, input(w, 0)->shape);
    return luda__rule_expand(w, restore_dims(w, g), input(w, 0)->ndim, input(w, 0)->shape);
}

RULE1(sum) { return spread(w, luda__rule_cast(w, g, (luda_dtype)input(w, i)->dtype, input(w, i)->device)); }

RULE1(mean)
{
    const luda_node_input *in = input(w, i);
    double elements = 1;
    for (int d = 0; d < in->ndim; d++)
        elements *= (double)in->shape[d];
    return spread(w, scale(g, elements > 0 ? (double)g->numel / elements : 0));
}

/* Equal elements share the gradient. */
RULE1(amax)
{
    const struct luda_reduce_attrs *r = &w->attrs->reduce;
    T mask = eq(x[0], restore_dims(w, y[0]));
    T ones = mask ? luda__rule_cast(w, mask, (luda_dtype)x[0]->dtype, x[0]->storage->device) : NULL;
    T count = restore_dims(w, luda__rule_sum(w, ones, r->dim.count, r->dim.dim, r->keepdim));
    return where(mask, div(restore_dims(w, g), count), number_like(g, 0));
}

static T put_back(luda_rule *w, T g, T positions, const struct luda_extremum_attrs *a, int64_t size)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_extremum_backward, .extremum_backward = { a->dim, a->keepdim, a->base, size } };
    T in[] = { g, positions };
    return g && positions ? luda__rule_apply(w, LUDA_OP_max_backward, in, 2, &attrs, NULL) : NULL;
}

/* A 0-d input has no dimension: size -1 says so. */
static int64_t size_along(const luda_node_input *in, int dim)
{
    return in->ndim > 0 ? in->shape[dim] : -1;
}

RULE1(max) { return put_back(w, g, y[1], &w->attrs->extremum, size_along(input(w, i), w->attrs->extremum.dim)); }

RULE1(take_along)
{
    return i == 0 ? put_back(w, g, x[1], &w->attrs->extremum, size_along(input(w, 0), w->attrs->extremum.dim)) : NULL;
}

RULE1(max_backward)
{
    const struct luda_extremum_backward_attrs *a = &w->attrs->extremum_backward;
    luda_attrs attrs = { .family = LUDA_ATTRS_extremum, .extremum = { a->dim, a->keepdim, a->base } };
    T in[] = { g, x[1] };
    return i == 0 && g ? luda__rule_apply(w, LUDA_OP_take_along, in, 2, &attrs, NULL) : NULL;
}

/* --- Products --- */

/*
 * 1-D operands get their second dimension first. A matrix that met batches gets its gradient from one product over all
 * rows, instead of one product a batch and a sum.
 */
RULE1(matmul)
{
    const luda_node_input *left = input(w, 0), *right = input(w, 1);
    bool row = left->ndim == 1, column = right->ndim == 1;
    if (row && column)
        return mul(g, x[1 - i]);
    T full = g;
    if (column)
        full = luda__rule_unsqueeze(w, full, -1);
    if (row)
        full = luda__rule_unsqueeze(w, full, -2);
    if (i == 0) {
        T b = column ? luda__rule_unsqueeze(w, x[1], 0) : transposed(x[1]);
        T da = matmul(full, b);
        return row ? luda__rule_squeeze(w, da, -2) : da;
    }
    T a = row ? luda__rule_unsqueeze(w, x[0], 0) : x[0];
    if (right->ndim <= 2 && a && a->ndim > 2 && a->numel > 0 && full && full->numel > 0) {
        a = luda__rule_rows(w, a);
        full = luda__rule_rows(w, full);
    }
    /* The gradient is laid out like the matrix, which may be the transpose of a parameter. */
    bool turned = x[1] && x[1]->ndim == 2 && x[1]->stride[0] == 1 && x[1]->stride[1] > 1;
    T db = turned && full && full->ndim == 2 ? transposed(matmul(transposed(full), a)) : matmul(transposed(a), full);
    return column ? luda__rule_squeeze(w, db, -1) : db;
}

RULE1(index_select)
{
    const struct luda_index_select_attrs *a = &w->attrs->index_select;
    luda_attrs attrs = { .family = LUDA_ATTRS_index_select_backward,
                         .index_select_backward = { a->dim, a->base, input(w, 0)->shape[a->dim] } };
    T in[] = { g, x[1] };
    if (i != 0 || !g || (x[1]->dtype == LUDA_I64 && luda__rule_add(w, i, LUDA_OP_index_select_backward, in, 2, &attrs)))
        return NULL;
    return luda__rule_apply(w, LUDA_OP_index_select_backward, in, 2, &attrs, NULL);
}

RULE1(index_select_backward)
{
    const struct luda_index_select_backward_attrs *a = &w->attrs->index_select_backward;
    luda_attrs attrs = { .family = LUDA_ATTRS_index_select, .index_select = { a->dim, a->base } };
    T in[] = { g, x[1] };
    return i == 0 ? luda__rule_apply(w, LUDA_OP_index_select, in, 2, &attrs, NULL) : NULL;
}
