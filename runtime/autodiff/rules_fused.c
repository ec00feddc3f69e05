/*
 * Gradient rules of fused and row-wise operators, and the compositions that create_graph uses where a backward kernel has
 * no rule of its own.
 */
#include "rule.h"

#include <math.h>

#define add(a, b) luda__rule2(w, LUDA_OP_add, a, b)
#define sub(a, b) luda__rule2(w, LUDA_OP_sub, a, b)
#define mul(a, b) luda__rule2(w, LUDA_OP_mul, a, b)
#define div(a, b) luda__rule2(w, LUDA_OP_div, a, b)
#define exponential(a) luda__rule1(w, LUDA_OP_exp, a)
#define where(mask, a, b) luda__rule3(w, LUDA_OP_where, mask, a, b)
#define matmul(a, b) luda__rule2(w, LUDA_OP_matmul, a, b)
#define transposed(a) luda__rule_transpose(w, a)
#define scale(a, number) luda__rule_number(w, LUDA_OP_mul, a, number)
#define number_like(a, value) ((a) ? luda__rule_full(w, a, (luda_dtype)(a)->dtype, value, 0, NULL) : NULL)
#define sum_kept(a, dim) luda__rule_sum(w, a, 1, (int32_t[]){ dim }, true)

/* Sets the gradients of inputs 0 .. count-1 from a backward row with several outputs. */
static void set_all(luda_rule *w, luda_op op, T const *in, int nin, const luda_attrs *attrs, int count)
{
    T others[LUDA_MAX_OUTPUTS] = { NULL };
    T first = luda__rule_apply(w, op, in, nin, attrs, others);
    for (int i = 0; i < count; i++)
        if (w->need[i])
            luda__rule_set(w, i, i == 0 ? first : others[i - 1]);
}

/* Over all dimensions but the last. */
static T column_sums(luda_rule *w, T a)
{
    return luda__rule_sum(w, luda__rule_rows(w, a), 1, (int32_t[]){ 0 }, false);
}

/* --- Softmax --- */

static T softmax_backward(luda_rule *w, T g, T y, int dim)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_softmax, .softmax = { dim } };
    T in[] = { g, y };
    return g && y ? luda__rule_apply(w, LUDA_OP_softmax_backward, in, 2, &attrs, NULL) : NULL;
}

RULE1(softmax) { return softmax_backward(w, g, y[0], w->attrs->softmax.dim); }

/* out = y (g - sum(g y)); inputs: the gradient, then y. */
RULE1(softmax_backward)
{
    int dim = w->attrs->softmax.dim;
    if (i == 0)
        return softmax_backward(w, g, x[1], dim);
    T inner = sum_kept(mul(x[0], x[1]), dim), outer = sum_kept(mul(g, x[1]), dim);
    return sub(mul(g, sub(x[0], inner)), mul(x[0], outer));
}

RULE1(log_softmax) { return sub(g, mul(exponential(y[0]), sum_kept(g, w->attrs->softmax.dim))); }

/* --- Layer norm --- */

RULE(layer_norm)
{
    T in[] = { w->g[0], w->x[0], w->y[1], w->y[2], w->x[1] };
    if (w->g[0])
        set_all(w, LUDA_OP_layer_norm_backward, in, 5, NULL, w->node->nin);
}

/* The same by differentiable steps: rstd (gw - mean gw - xhat mean(gw xhat)), in the input's own dtype. */
RULE(layer_norm_composed)
{
    T g = w->g[0], x = w->x[0], weight = w->node->nin > 1 ? w->x[1] : NULL;
    if (!g)
        return;
    T centred = sub(x, luda__rule_mean(w, x, -1));
    T variance = luda__rule_mean(w, luda__rule1(w, LUDA_OP_square, centred), -1);
    T rstd = luda__rule1(w, LUDA_OP_rsqrt, luda__rule_number(w, LUDA_OP_add, variance, w->attrs->norm.eps));
    T xhat = mul(centred, rstd);
    T gw = weight ? mul(g, weight) : g;
    T slope = sub(sub(gw, luda__rule_mean(w, gw, -1)), mul(xhat, luda__rule_mean(w, mul(gw, xhat), -1)));
    if (w->need[0])
        luda__rule_set(w, 0, mul(rstd, slope));
    if (weight && w->need[1])
        luda__rule_set(w, 1, column_sums(w, mul(g, xhat)));
    if (w->node->nin > 2 && w->need[2])
        luda__rule_set(w, 2, column_sums(w, g));
}

/* --- Linear: the hidden output holds the sums before the activation --- */

RULE(linear)
{
    int activation = w->attrs->linear.activation;
    T g = w->g[0], x = w->x[0], before = w->y[1];
    if (g && activation == LUDA_ACTIVATION_RELU)
        g = luda__rule_last(w, LUDA_OP_relu_backward, before);
    else if (g && activation == LUDA_ACTIVATION_GELU_TANH)
        g = luda__rule_last(w, LUDA_OP_gelu_tanh_backward, before);
    if (w->g[1])
        g = g ? add(g, w->g[1]) : w->g[1];
    if (w->need[0])
        luda__rule_set(w, 0, matmul(g, transposed(w->x[1])));
    g = g ? luda__rule_rows(w, g) : NULL;
    if (w->need[1])
        luda__rule_set(w, 1, matmul(transposed(luda__rule_rows(w, x)), g));
    if (w->node->nin > 2 && w->need[2])
        luda__rule_set(w, 2, column_sums(w, g));
}

/* --- RMS norm --- */

RULE(rms_norm)
{
    T in[] = { w->g[0], w->x[0], w->y[1], w->node->nin > 1 ? w->x[1] : NULL };
    if (w->g[0])
        set_all(w, LUDA_OP_rms_norm_backward, in, 4, NULL, w->node->nin);
}

/* rstd (gw - xhat mean(gw xhat)) */
RULE(rms_norm_composed)
{
    T g = w->g[0], x = w->x[0], weight = w->node->nin > 1 ? w->x[1] : NULL;
    if (!g)
        return;
    T power = luda__rule_mean(w, luda__rule1(w, LUDA_OP_square, x), -1);
    T rstd = luda__rule1(w, LUDA_OP_rsqrt, luda__rule_number(w, LUDA_OP_add, power, w->attrs->norm.eps));
    T xhat = mul(x, rstd);
    T gw = weight ? mul(g, weight) : g;
    if (w->need[0])
        luda__rule_set(w, 0, mul(rstd, sub(gw, mul(xhat, luda__rule_mean(w, mul(gw, xhat), -1)))));
    if (weight && w->need[1])
        luda__rule_set(w, 1, column_sums(w, mul(g, xhat)));
}

/* --- Cross entropy --- */

/* A gradient for each row as a column, where the loss was not reduced. */
static T by_rows(luda_rule *w, T g)
{
    return w->attrs->cross_entropy.reduction == LUDA_REDUCTION_NONE ? luda__rule_unsqueeze(w, g, 1) : g;
}

/* What the loss multiplies -log p with, but for class weights: [N, C], zero in ignored rows; *hot is 1 at counted labels. */
static T target_shares(luda_rule *w, T *hot)
{
    const struct luda_cross_entropy_attrs *a = &w->attrs->cross_entropy;
    T logits = w->x[0], labels = w->x[1];
    luda_dtype dtype = (luda_dtype)logits->dtype;
    int64_t classes = logits->shape[1];
    T counted = luda__rule_number(w, LUDA_OP_ne, labels, (double)a->ignore_index);
    T safe = where(counted, labels, number_like(labels, a->base));
    T position = luda__rule_unsqueeze(w, luda__rule_number(w, LUDA_OP_sub, safe, a->base), 1);
    T found = luda__rule2(w, LUDA_OP_eq, position, luda__rule_arange(w, logits, LUDA_I64, classes));
    T mask = luda__rule_cast(w, luda__rule_unsqueeze(w, counted, 1), dtype, logits->storage->device);
    *hot = mul(luda__rule_cast(w, found, dtype, logits->storage->device), mask);
    return add(scale(*hot, 1 - a->label_smoothing), scale(mask, a->label_smoothing / (double)classes));
}

/* What a mean divides by: a mean over nothing has slope 0, not NaN. */
static T counted_total(luda_rule *w, T hot)
{
    T total = luda__rule_sum(w, hot, 0, NULL, false);
    return where(luda__rule_number(w, LUDA_OP_eq, total, 0), number_like(total, 1), total);
}

/* Class weights are in the sum of losses, and in what their mean divides it by. */
static void set_weight_slope(luda_rule *w)
{
    T logits = w->x[0], weight = w->x[2], hot;
    luda_attrs rows = { .family = LUDA_ATTRS_softmax, .softmax = { 1 } };
    T share = target_shares(w, &hot);
    T terms = mul(share, luda__rule_apply(w, LUDA_OP_log_softmax, &logits, 1, &rows, NULL));
    if (w->attrs->cross_entropy.reduction == LUDA_REDUCTION_MEAN) {
        T total = counted_total(w, mul(hot, weight));
        T mean = div(luda__rule_sum(w, mul(terms, weight), 0, NULL, false), total);
        terms = div(sub(terms, mul(hot, mean)), total);
    }
    luda__rule_set(w, 2, column_sums(w, mul(luda__rule1(w, LUDA_OP_neg, by_rows(w, w->g[0])), terms)));
}

static bool needs_weight_slope(const luda_rule *w)
{
    return w->g[0] && w->node->nin > 2 && w->need[2];
}

RULE(cross_entropy)
{
    T in[] = { w->g[0], w->x[0], w->x[1], w->y[1], w->node->nin > 2 ? w->x[2] : NULL };
    if (w->g[0] && w->need[0])
        luda__rule_set(w, 0, luda__rule_apply(w, LUDA_OP_cross_entropy_backward, in, 5, w->attrs, NULL));
    if (needs_weight_slope(w))
        set_weight_slope(w);
}

RULE(cross_entropy_composed)
{
    T logits = w->x[0], weight = w->node->nin > 2 ? w->x[2] : NULL, hot;
    luda_attrs rows = { .family = LUDA_ATTRS_softmax, .softmax = { 1 } };
    if (needs_weight_slope(w))
        set_weight_slope(w);
    if (!w->g[0] || !w->need[0])
        return;
    T g = by_rows(w, w->g[0]), target = target_shares(w, &hot);
    if (weight)
        target = mul(target, weight);
    T softmax = luda__rule_apply(w, LUDA_OP_softmax, &logits, 1, &rows, NULL);
    if (w->attrs->cross_entropy.reduction == LUDA_REDUCTION_MEAN)
        g = div(g, counted_total(w, weight ? mul(hot, weight) : hot));
    luda__rule_set(w, 0, mul(g, sub(mul(softmax, sum_kept(target, 1)), target)));
}

/* --- Dropout: linear, and its mask comes from the counter --- */

RULE1(dropout) { return luda__rule_apply(w, LUDA_OP_dropout, &g, 1, w->attrs, NULL); }

/* --- Attention --- */

RULE(attention)
{
    T in[] = { w->g[0], w->x[0], w->x[1], w->x[2], w->y[0], w->y[1] };
    if (w->g[0])
        set_all(w, LUDA_OP_scaled_dot_product_attention_backward, in, 6, w->attrs, 3);
}

/* -inf where query t may not see key s (s > t + S - T). Queries that see none get equal scores, and *g zero there. */
static T causal_scores(luda_rule *w, T scores, int64_t queries, int64_t keys, T *g)
{
    T t = luda__rule_unsqueeze(w, luda__rule_arange(w, scores, LUDA_I64, queries), 1);
    T s = luda__rule_arange(w, scores, LUDA_I64, keys);
    T last = luda__rule_number(w, LUDA_OP_add, t, (double)(keys - queries));
    scores = where(luda__rule2(w, LUDA_OP_le, s, last), scores, number_like(scores, -INFINITY));
    if (queries <= keys)
        return scores;
    T some = luda__rule_number(w, LUDA_OP_ge, last, 0);
    *g = where(some, *g, number_like(*g, 0));
    return where(some, scores, number_like(scores, 0));
}

RULE(attention_composed)
{
    const struct luda_attention_attrs *a = &w->attrs->attention;
    T g = w->g[0], q = w->x[0], k = w->x[1], v = w->x[2];
    luda_attrs rows = { .family = LUDA_ATTRS_softmax, .softmax = { -1 } };
    if (!g)
        return;
    double factor = a->scale != 0 ? a->scale : 1 / sqrt(fmax((double)q->shape[q->ndim - 1], 1));
    T scores = scale(matmul(q, transposed(k)), factor);
    if (scores && a->is_causal)
        scores = causal_scores(w, scores, q->shape[q->ndim - 2], k->shape[k->ndim - 2], &g);
    T p = scores ? luda__rule_apply(w, LUDA_OP_softmax, &scores, 1, &rows, NULL) : NULL;
    if (!p)
        return;
    T kept = NULL, dp = matmul(g, transposed(v));
    if (a->dropout_p > 0) { /* the kernel's mask is dropout's over [..., T, S] */
        luda_attrs attrs = { .family = LUDA_ATTRS_dropout, .dropout = { a->dropout_p, a->generator } };
        T ones = luda__rule_full(w, p, (luda_dtype)p->dtype, 1, p->ndim, p->shape);
        kept = ones ? luda__rule_apply(w, LUDA_OP_dropout, &ones, 1, &attrs, NULL) : NULL;
        dp = mul(dp, kept);
    }
    T ds = scale(softmax_backward(w, dp, p, p->ndim - 1), factor);
    if (w->need[0])
        luda__rule_set(w, 0, matmul(ds, k));
    if (w->need[1])
        luda__rule_set(w, 1, matmul(transposed(ds), q));
    if (w->need[2])
        luda__rule_set(w, 2, matmul(transposed(kept ? mul(p, kept) : p), g));
}
