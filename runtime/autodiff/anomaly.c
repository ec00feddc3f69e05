/* Looking for the first value that is not finite: in the results of operators, and in gradients on their way back. */
#include "walk.h"

#include <math.h>
#include <stdio.h>

int luda_set_anomaly(int on)
{
    luda_context *context = luda__context();
    int before = context->anomaly;
    context->anomaly = on != 0;
    context->signals.attend = on ? context->signals.attend | LUDA__NOTE_SITE : context->signals.attend & ~LUDA__NOTE_SITE;
    return before;
}

uint64_t luda_anomaly_node(luda_context *context)
{
    return context->anomaly_node;
}

uint64_t luda_graph_order(const luda_tensor *tensor)
{
    return tensor->node ? ((const luda_node *)tensor->node)->order : 0;
}

static luda_status is_finite(luda_tensor *t, bool *finite)
{
    luda_tensor *mask = NULL, *all = NULL;
    double value = 1;
    *finite = true;
    if (!t || t->numel == 0 || luda__class_of((luda_dtype)t->dtype) != LUDA__FLOAT)
        return LUDA_OK;
    luda_status status = luda__compute(LUDA_OP_isfinite, &t, 1, NULL, &mask);
    if (status == LUDA_OK)
        status = luda__compute(LUDA_OP_amin, &mask, 1, NULL, &all);
    if (status == LUDA_OK)
        status = luda_tensor_get(all, 0, &value);
    luda_tensor_release(mask);
    luda_tensor_release(all);
    *finite = value != 0;
    return status;
}

/* "inf at {2, 1} of [2, 3], f32", positions counted from 1; *index is its place in row-major order. */
static const char *describe(const luda_tensor *t, int64_t *index, char *text, size_t size)
{
    char shape[160], place[160];
    double value = 0;
    int64_t position[LUDA_MAX_DIMS];
    for (*index = 0; *index < t->numel; ++*index)
        if (luda_tensor_get(t, *index, &value) != LUDA_OK || !isfinite(value))
            break;
    for (int64_t d = t->ndim - 1, rest = *index; d >= 0; rest /= t->shape[d--])
        position[d] = rest % t->shape[d] + 1;
    size_t used = (size_t)snprintf(place, sizeof place, "{");
    for (int d = 0; d < t->ndim; d++)
        used += (size_t)snprintf(place + used, sizeof place - used, "%s%lld", d ? ", " : "", (long long)position[d]);
    snprintf(place + used, sizeof place - used, "}");
    snprintf(text, size, "%g at %s of %s, %s", value, place, luda__shape_text(t->ndim, t->shape, shape, sizeof shape),
             luda_dtype_name((luda_dtype)t->dtype));
    return text;
}

/* Adds "; input 1: [2, 3], there 100": a tensor, and its value at the place of another where it has the same shape. */
static size_t show(const char *what, int number, const luda_tensor *t, const luda_tensor *other, int64_t index, char *text,
                   size_t used, size_t size)
{
    char shape[160];
    double value;
    if (!t || used >= size)
        return used;
    used += (size_t)snprintf(text + used, size - used, "; %s %d: %s", what, number,
                             luda__shape_text(t->ndim, t->shape, shape, sizeof shape));
    if (used < size && t->numel > 0 && (t->numel == 1 || t->numel == other->numel) &&
        luda_tensor_get(t, t->numel == 1 ? 0 : index, &value) == LUDA_OK)
        used += (size_t)snprintf(text + used, size - used, ", there %.9g", value);
    return used;
}

luda_status luda__check_results(luda_op op, luda_tensor *const *in, int nin, const luda_tensor *into, luda_tensor *const *out)
{
    const luda_op_info *info = luda_op_get(op);
    char what[360], inputs[480];
    int64_t index;
    bool finite;
    for (int i = 0; i < nin; i++) {
        LUDA_TRY(is_finite(in[i] == into ? NULL : in[i], &finite));
        if (!finite)
            return LUDA_OK; /* not the first */
    }
    for (int o = 0; nin > 0 && o < info->outputs; o++) {
        LUDA_TRY(is_finite(out[o], &finite));
        if (finite)
            continue;
        describe(out[o], &index, what, sizeof what);
        size_t used = 0;
        inputs[0] = '\0';
        for (int i = 0; i < nin; i++)
            used = show("input", i + 1, in[i] != out[o] ? in[i] : NULL, out[o], index, inputs, used, sizeof inputs);
        return luda__fail(LUDA_EGRAPH, "%s: the result has %s, from finite inputs%s", info->name, what, inputs);
    }
    return LUDA_OK;
}

/* The gradients that came in, and what the node had kept. */
static void show_node(const luda_node *node, luda_tensor *const *g, const luda_tensor *at, int64_t index, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int o = 0; o < node->nout; o++)
        used = show("gradient of result", o + 1, g[o], at, index, text, used, size);
    for (int i = 0; i < node->nin; i++)
        used = show("input", i + 1, node->in[i].kept.tensor, at, index, text, used, size);
    for (int o = 0; node->out && o < node->nout; o++)
        used = show("result", o + 1, node->out[o].tensor, at, index, text, used, size);
    for (int s = 0; s < node->nextra; s++)
        used = show("saved tensor", s + 1, node->extra[s].tensor, at, index, text, used, size);
}

luda_status luda__check_gradients(const luda_node *node, luda_tensor *const *g, luda_tensor *const *dx)
{
    char what[360], kept[480];
    int64_t index;
    bool finite;
    for (int o = 0; o < node->nout; o++) {
        LUDA_TRY(is_finite(g[o], &finite));
        if (!finite)
            return LUDA_OK; /* the seed's, or not the first */
    }
    for (int i = 0; i < node->nin; i++) {
        LUDA_TRY(is_finite(dx[i], &finite));
        if (finite)
            continue;
        node->context->anomaly_node = node->order;
        describe(dx[i], &index, what, sizeof what);
        show_node(node, g, dx[i], index, kept, sizeof kept);
        return luda__fail(LUDA_EGRAPH, "%s: in backward the gradient of input %d has %s, from finite gradients%s", luda__node_name(node),
                          i + 1, what, kept);
    }
    return LUDA_OK;
}
