/* The helpers of gradient rules, and the table that finds a rule. */
#include "rule.h"

#include <stdlib.h>
#include <string.h>

/* --- Sticky helpers --- */

T luda__rule_keep(luda_rule *w, luda_status status, T made)
{
    if (status != LUDA_OK) {
        if (w->status == LUDA_OK)
            w->status = status;
        return NULL;
    }
    if (w->count == w->capacity) {
        int capacity = w->capacity ? 2 * w->capacity : 32;
        T *temporaries = realloc(w->temporaries, (size_t)capacity * sizeof *temporaries);
        if (!temporaries) {
            luda_tensor_release(made);
            w->status = luda__fail(LUDA_ENOMEM, "backward: no memory for temporaries");
            return NULL;
        }
        w->temporaries = temporaries;
        w->capacity = capacity;
    }
    w->temporaries[w->count++] = made;
    return made;
}

T luda__rule_apply(luda_rule *w, luda_op op, T const *in, int nin, const luda_attrs *attrs, T *others)
{
    T out[LUDA_MAX_OUTPUTS] = { NULL };
    if (w->status != LUDA_OK)
        return NULL;
    luda_status status = luda_apply(op, in, nin, attrs, out);
    int count = luda_op_get(op)->outputs;
    for (int o = 1; o < count; o++) {
        T kept = luda__rule_keep(w, status, out[o]);
        if (others)
            others[o - 1] = kept;
    }
    return luda__rule_keep(w, status, out[0]);
}

T luda__rule1(luda_rule *w, luda_op op, T a)
{
    return a ? luda__rule_apply(w, op, &a, 1, NULL, NULL) : NULL;
}

T luda__rule_last(luda_rule *w, luda_op op, T a)
{
    T g = w->g[0], in[] = { g, a };
    if (!g || !a || w->status != LUDA_OK || !w->lone || g->dtype != a->dtype || g->numel != a->numel || g->ndim != a->ndim)
        return luda__rule2(w, op, g, a);
    w->lone = false;
    luda_status status = luda_apply_into(op, in, 2, NULL, g);
    return luda__rule_keep(w, status, status == LUDA_OK ? luda__retain(g) : NULL);
}

T luda__rule2(luda_rule *w, luda_op op, T a, T b)
{
    T in[] = { a, b };
    return a && b ? luda__rule_apply(w, op, in, 2, NULL, NULL) : NULL;
}

T luda__rule3(luda_rule *w, luda_op op, T a, T b, T c)
{
    T in[] = { a, b, c };
    return a && b && c ? luda__rule_apply(w, op, in, 3, NULL, NULL) : NULL;
}

static luda_attrs create_attrs(T like, luda_dtype dtype, int ndim, const int64_t *shape)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_create };
    attrs.create.dtype = (int32_t)dtype;
    attrs.create.device = like->storage->device;
    attrs.create.shape.ndim = ndim;
    for (int d = 0; d < ndim; d++)
        attrs.create.shape.size[d] = shape[d];
    return attrs;
}

T luda__rule_full(luda_rule *w, T like, luda_dtype dtype, double value, int ndim, const int64_t *shape)
{
    if (!like)
        return NULL;
    luda_attrs attrs = create_attrs(like, dtype, ndim, shape);
    attrs.create.low = value;
    return luda__rule_apply(w, LUDA_OP_full, NULL, 0, &attrs, NULL);
}

T luda__rule_arange(luda_rule *w, T like, luda_dtype dtype, int64_t count)
{
    if (!like)
        return NULL;
    luda_attrs attrs = create_attrs(like, dtype, 1, &count);
    attrs.create.high = 1;
    return luda__rule_apply(w, LUDA_OP_arange, NULL, 0, &attrs, NULL);
}

T luda__rule_number(luda_rule *w, luda_op op, T a, double number)
{
    return a ? luda__rule2(w, op, a, luda__rule_full(w, a, (luda_dtype)a->dtype, number, 0, NULL)) : NULL;
}

T luda__rule_reshape(luda_rule *w, T a, int ndim, const int64_t *shape)
{
    T out = NULL;
    if (!a || w->status != LUDA_OK)
        return NULL;
    luda_status status = luda_reshape(a, ndim, shape, &out);
    return luda__rule_keep(w, status, out);
}

T luda__rule_rows(luda_rule *w, T a)
{
    int64_t shape[] = { 1, a ? a->shape[a->ndim - 1] : 0 };
    for (int d = 0; a && d < a->ndim - 1; d++)
        shape[0] *= a->shape[d];
    return luda__rule_reshape(w, a, 2, shape);
}

T luda__rule_expand(luda_rule *w, T a, int ndim, const int64_t *shape)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_expand };
    if (a && a->ndim == 0 && w->status == LUDA_OK && !luda_grad_enabled()) { /* of a sum: nothing to check, nothing to record */
        static const int64_t strides[LUDA_MAX_DIMS];
        T made = NULL;
        luda_status status = luda__tensor_over(a->storage, (luda_dtype)a->dtype, ndim, shape, strides, a->offset, &made);
        return luda__rule_keep(w, status, made);
    }
    attrs.expand.shape.ndim = ndim;
    for (int d = 0; d < ndim; d++)
        attrs.expand.shape.size[d] = shape[d];
    return a ? luda__rule_apply(w, LUDA_OP_expand, &a, 1, &attrs, NULL) : NULL;
}

T luda__rule_cast(luda_rule *w, T a, luda_dtype dtype, luda_device device)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_cast, .cast = { (int32_t)dtype, device } };
    if (a && (luda_dtype)a->dtype == dtype && luda__same_device(a->storage->device, device))
        return a;
    return a ? luda__rule_apply(w, LUDA_OP_to, &a, 1, &attrs, NULL) : NULL;
}

T luda__rule_transpose(luda_rule *w, T a)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_transpose, .transpose = { -2, -1 } };
    return a ? luda__rule_apply(w, LUDA_OP_transpose, &a, 1, &attrs, NULL) : NULL;
}

T luda__rule_unsqueeze(luda_rule *w, T a, int dim)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_unsqueeze, .unsqueeze = { dim } };
    return a ? luda__rule_apply(w, LUDA_OP_unsqueeze, &a, 1, &attrs, NULL) : NULL;
}

T luda__rule_squeeze(luda_rule *w, T a, int dim)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_squeeze, .squeeze = { { 1, { dim } } } };
    return a ? luda__rule_apply(w, LUDA_OP_squeeze, &a, 1, &attrs, NULL) : NULL;
}

static T reduce(luda_rule *w, luda_op op, T a, int count, const int32_t *dims, bool keepdim)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_reduce };
    attrs.reduce.dim.count = count;
    for (int i = 0; i < count; i++)
        attrs.reduce.dim.dim[i] = dims[i];
    attrs.reduce.keepdim = keepdim;
    return a ? luda__rule_apply(w, op, &a, 1, &attrs, NULL) : NULL;
}

T luda__rule_sum(luda_rule *w, T a, int count, const int32_t *dims, bool keepdim)
{
    return reduce(w, LUDA_OP_sum, a, count, dims, keepdim);
}

T luda__rule_mean(luda_rule *w, T a, int dim)
{
    int32_t dims[] = { dim };
    return reduce(w, LUDA_OP_mean, a, 1, dims, true);
}

void luda__rule_set(luda_rule *w, int i, T gradient)
{
    if (w->status == LUDA_OK && gradient && !w->dx[i])
        w->dx[i] = luda__retain(gradient);
}

bool luda__rule_add(luda_rule *w, int i, luda_op op, T const *in, int nin, const luda_attrs *attrs)
{
    if (!w->into[i] || w->status != LUDA_OK)
        return w->status != LUDA_OK;
    w->status = luda__accumulate(op, in, nin, attrs, w->into[i]);
    return true;
}

bool luda__rule_add_part(luda_rule *w, int i, T g, const struct luda_narrow_attrs *part)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_narrow, .narrow = *part };
    T sum = w->into[i], place = NULL;
    if (!sum || !g || w->status != LUDA_OK)
        return w->status != LUDA_OK;
    w->status = luda_apply(LUDA_OP_narrow, &sum, 1, &attrs, &place);
    if (w->status == LUDA_OK)
        w->status = luda_apply_into(LUDA_OP_add, (T[]){ place, g }, 2, NULL, place);
    luda_tensor_release(place);
    return true;
}

/* --- Undoing a broadcast --- */

luda_status luda__unbroadcast(luda_tensor *gradient, int ndim, const int64_t *shape, luda_tensor **out)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_reduce, .reduce = { .keepdim = 1 } };
    luda_tensor *summed;
    int lead = gradient->ndim - ndim;
    char from[160], to[160];
    bool fits = lead >= 0;
    for (int d = 0; fits && d < gradient->ndim; d++) {
        int64_t size = d >= lead ? shape[d - lead] : 1;
        if (d < lead || (size == 1 && gradient->shape[d] != 1))
            attrs.reduce.dim.dim[attrs.reduce.dim.count++] = d;
        else
            fits = size == gradient->shape[d];
    }
    if (!fits)
        return luda__fail(LUDA_ESHAPE, "backward: a gradient of shape %s does not fit an input of shape %s",
                          luda__shape_text(gradient->ndim, gradient->shape, from, sizeof from),
                          luda__shape_text(ndim, shape, to, sizeof to));
    if (attrs.reduce.dim.count == 0) {
        *out = luda__retain(gradient);
        return LUDA_OK;
    }
    LUDA_TRY(luda_apply(LUDA_OP_sum, &gradient, 1, &attrs, &summed));
    luda_status status = luda_reshape(summed, ndim, shape, out);
    luda_tensor_release(summed);
    return status;
}

/* --- The table --- */

#define LUDA_OP(name, nin, nout, types, family, shape, gradient, ...) RULE(gradient);
#include "../../kernels/ops.def"

static const struct {
    luda_rule_function rule;
    luda_keeps keeps;
} rules[LUDA_OP_COUNT] = {
#define LUDA_OP(name, nin, nout, types, family, shape, gradient, keeps, ...) { luda__gradient_of_##gradient, LUDA__KEEPS_##keeps },
#include "../../kernels/ops.def"
};

/* The words none and zero of the gradient column: never called, only compared. */
RULE(none)
{
    w->status = luda__fail(LUDA_EINTERNAL, "backward: a rule that does not exist was called");
}

RULE(zero)
{
    w->status = luda__fail(LUDA_EINTERNAL, "backward: a rule that does not exist was called");
}

luda_gradient_kind luda__gradient_kind(luda_op op)
{
    luda_rule_function rule = rules[op].rule;
    return rule == luda__gradient_of_none ? LUDA__GRADIENT_NONE : rule == luda__gradient_of_zero ? LUDA__GRADIENT_ZERO : LUDA__GRADIENT_RULE;
}

luda_keeps luda__keeps(luda_op op)
{
    return rules[op].keeps;
}

/* What create_graph uses instead of a fused backward kernel: the fact `unfused`. */
RULE(layer_norm_composed);
RULE(rms_norm_composed);
RULE(cross_entropy_composed);
RULE(attention_composed);

#define COMPOSITION(name) { "unfused=" #name ";", luda__gradient_of_##name }
static const struct {
    const char *fact;
    luda_rule_function rule;
} compositions[] = {
    COMPOSITION(layer_norm_composed),
    COMPOSITION(rms_norm_composed),
    COMPOSITION(cross_entropy_composed),
    COMPOSITION(attention_composed),
};

luda_rule_function luda__gradient_rule(luda_op op, bool create_graph)
{
    for (size_t i = 0; create_graph && i < sizeof compositions / sizeof *compositions; i++)
        if (strstr(luda_op_get(op)->facts, compositions[i].fact))
            return compositions[i].rule;
    return rules[op].rule;
}
