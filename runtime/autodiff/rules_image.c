/*
 * Gradient rules of convolution and pooling. sum(g * conv2d(x, w)) is linear in each of g, x and w, and its three slopes are
 * the rows conv2d, conv2d_input and conv2d_weight, so that each has its gradients in the other two. Pooling is linear once
 * the positions are known.
 */
#include "rule.h"

#define input(w, i) (&(w)->node->in[i])

/* --- Convolution --- */

static luda_attrs sized(const luda_attrs *attrs, int64_t height, int64_t width)
{
    luda_attrs with = { .family = LUDA_ATTRS_conv_backward };
    if (attrs->family == LUDA_ATTRS_conv) {
        const struct luda_conv_attrs *a = &attrs->conv;
        with.conv_backward = (struct luda_conv_backward_attrs){ a->stride, a->padding, a->dilation, a->groups, { height, width } };
    } else {
        with.conv_backward = attrs->conv_backward;
        with.conv_backward.size = (luda_pair){ height, width };
    }
    return with;
}

static T convolve(luda_rule *w, T x, T weight)
{
    const struct luda_conv_backward_attrs *a = &w->attrs->conv_backward;
    luda_attrs attrs = { .family = LUDA_ATTRS_conv, .conv = { a->stride, a->padding, a->dilation, a->groups } };
    T in[] = { x, weight };
    return x && weight ? luda__rule_apply(w, LUDA_OP_conv2d, in, 2, &attrs, NULL) : NULL;
}

/* `sized_as`: input of the node whose height and width the result has. */
static T slope(luda_rule *w, luda_op op, T a, T b, int sized_as)
{
    const int64_t *shape = input(w, sized_as)->shape;
    luda_attrs attrs = sized(w->attrs, shape[2], shape[3]);
    T in[] = { a, b };
    return a && b ? luda__rule_apply(w, op, in, 2, &attrs, NULL) : NULL;
}

RULE1(conv2d)
{
    if (i == 0)
        return slope(w, LUDA_OP_conv2d_input, g, x[1], 0);
    if (i == 1)
        return slope(w, LUDA_OP_conv2d_weight, g, x[0], 1);
    luda_dtype dtype = (luda_dtype)input(w, 2)->dtype; /* a float32 bias beside halves gets a sum that was not rounded */
    T wide = g && (luda_dtype)g->dtype != dtype ? luda__rule_cast(w, g, dtype, input(w, 2)->device) : g;
    return luda__rule_sum(w, wide, 3, (int32_t[]){ 0, 2, 3 }, false);
}

/* Inputs: the gradient, then the weight. */
RULE1(conv2d_input)
{
    return i == 0 ? convolve(w, g, x[1]) : slope(w, LUDA_OP_conv2d_weight, x[0], g, 1);
}

/* Inputs: the gradient, then the images. */
RULE1(conv2d_weight)
{
    return i == 0 ? convolve(w, x[1], g) : slope(w, LUDA_OP_conv2d_input, x[0], g, 1);
}

/* --- Pooling --- */

RULE1(max_pool2d)
{
    const struct luda_max_pool_attrs *a = &w->attrs->max_pool;
    const int64_t *shape = input(w, 0)->shape;
    luda_attrs attrs = { .family = LUDA_ATTRS_max_pool_backward,
                         .max_pool_backward = { a->kernel, a->stride, a->padding, a->dilation, a->ceil_mode, 0,
                                                { shape[2], shape[3] } } };
    T in[] = { g, y[1] };
    return i == 0 && g ? luda__rule_apply(w, LUDA_OP_max_pool2d_backward, in, 2, &attrs, NULL) : NULL;
}

/* The elements at the positions: each plane's positions are moved to that plane among all elements. */
RULE1(max_pool2d_backward)
{
    const struct luda_max_pool_backward_attrs *a = &w->attrs->max_pool_backward;
    if (i > 0 || !g)
        return NULL;
    const int64_t *shape = input(w, 0)->shape;
    T plane = luda__rule_arange(w, g, LUDA_I64, shape[0] * shape[1]);
    plane = luda__rule_number(w, LUDA_OP_mul, plane, (double)(a->size.height * a->size.width));
    plane = luda__rule_reshape(w, plane, 4, (int64_t[]){ shape[0], shape[1], 1, 1 });
    luda_attrs attrs = { .family = LUDA_ATTRS_index_select, .index_select = { 0, a->base } };
    T in[] = { luda__rule_reshape(w, g, 1, (int64_t[]){ g->numel }), luda__rule2(w, LUDA_OP_add, x[1], plane) };
    return in[0] && in[1] ? luda__rule_apply(w, LUDA_OP_index_select, in, 2, &attrs, NULL) : NULL;
}

RULE1(avg_pool2d)
{
    const struct luda_avg_pool_attrs *a = &w->attrs->avg_pool;
    const int64_t *shape = input(w, 0)->shape;
    luda_attrs attrs = { .family = LUDA_ATTRS_avg_pool_backward,
                         .avg_pool_backward = { a->kernel, a->stride, a->padding, a->ceil_mode, a->count_include_pad,
                                                { shape[2], shape[3] } } };
    return i == 0 && g ? luda__rule_apply(w, LUDA_OP_avg_pool2d_backward, &g, 1, &attrs, NULL) : NULL;
}

RULE1(avg_pool2d_backward)
{
    const struct luda_avg_pool_backward_attrs *a = &w->attrs->avg_pool_backward;
    luda_attrs attrs = { .family = LUDA_ATTRS_avg_pool,
                         .avg_pool = { a->kernel, a->stride, a->padding, a->ceil_mode, a->count_include_pad } };
    return i == 0 && g ? luda__rule_apply(w, LUDA_OP_avg_pool2d, &g, 1, &attrs, NULL) : NULL;
}
