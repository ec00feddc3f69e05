/* Shape rules of views: they compute strides and an offset; no kernel runs. */
#include "shapes.h"

#include <string.h>

luda_status luda__shape_narrow(luda_plan *plan)
{
    struct luda_narrow_attrs *a = &plan->attrs.narrow;
    const luda_tensor *x = plan->in[0];
    if (x->ndim == 0)
        return luda__fail(LUDA_ESHAPE, "narrow: a 0-d tensor has no dimension to cut");
    LUDA_TRY(luda__normalize_dim(plan, &a->dim, x->ndim));
    int64_t size = x->shape[a->dim];
    if (a->start < 0)
        a->start += size;
    if (a->step < 1)
        return luda__fail(LUDA_EINVAL, "narrow: step %lld must be at least 1", (long long)a->step);
    if (a->length < 0 || a->start < 0 || a->start > size ||
        (a->length > 0 && (a->length - 1 > (size - 1 - a->start) / a->step || a->start >= size)))
        return luda__fail(LUDA_EINDEX, "narrow: %lld elements do not fit where it starts, the dimension has %lld",
                          (long long)a->length, (long long)size);
    LUDA_TRY(luda__same_shape(plan, 0, 0));
    plan->out[0].shape[a->dim] = a->length;
    plan->offset += a->start * x->stride[a->dim];
    plan->stride[a->dim] = x->stride[a->dim] * a->step;
    return LUDA_OK;
}

luda_status luda__shape_select(luda_plan *plan)
{
    struct luda_select_attrs *a = &plan->attrs.select;
    const luda_tensor *x = plan->in[0];
    if (x->ndim == 0)
        return luda__fail(LUDA_ESHAPE, "select: a 0-d tensor has no dimension to select from; use :item() for its value");
    LUDA_TRY(luda__normalize_dim(plan, &a->dim, x->ndim));
    int64_t size = x->shape[a->dim];
    if (a->index < -size || a->index >= size)
        return luda__fail(LUDA_EINDEX, "select: the position is outside the dimension, which has %lld elements", (long long)size);
    if (a->index < 0)
        a->index += size;
    plan->offset += a->index * x->stride[a->dim];
    int ndim = 0;
    int64_t shape[LUDA_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        if (d != a->dim) {
            plan->stride[ndim] = x->stride[d];
            shape[ndim++] = x->shape[d];
        }
    return luda__set_shape(plan, 0, ndim, shape);
}

luda_status luda__shape_transpose(luda_plan *plan)
{
    struct luda_transpose_attrs *a = &plan->attrs.transpose;
    const luda_tensor *x = plan->in[0];
    LUDA_TRY(luda__normalize_dim(plan, &a->dim0, x->ndim));
    LUDA_TRY(luda__normalize_dim(plan, &a->dim1, x->ndim));
    LUDA_TRY(luda__same_shape(plan, 0, 0));
    if (x->ndim == 0)
        return LUDA_OK;
    plan->out[0].shape[a->dim0] = x->shape[a->dim1];
    plan->out[0].shape[a->dim1] = x->shape[a->dim0];
    plan->stride[a->dim0] = x->stride[a->dim1];
    plan->stride[a->dim1] = x->stride[a->dim0];
    return LUDA_OK;
}

luda_status luda__shape_permute(luda_plan *plan)
{
    struct luda_permute_attrs *a = &plan->attrs.permute;
    const luda_tensor *x = plan->in[0];
    bool used[LUDA_MAX_DIMS] = { false };
    int64_t shape[LUDA_MAX_DIMS];
    if (a->dims.count != x->ndim)
        return luda__fail(LUDA_ESHAPE, "permute: %d dimensions were given for a %d-dimensional tensor", a->dims.count, x->ndim);
    for (int d = 0; d < x->ndim; d++) {
        LUDA_TRY(luda__normalize_dim(plan, &a->dims.dim[d], x->ndim));
        int32_t from = a->dims.dim[d];
        if (used[from])
            return luda__fail(LUDA_EINVAL, "permute: a dimension was given twice");
        used[from] = true;
        shape[d] = x->shape[from];
        plan->stride[d] = x->stride[from];
    }
    return luda__set_shape(plan, 0, x->ndim, shape);
}

luda_status luda__shape_expand(luda_plan *plan)
{
    luda_shape *wanted = &plan->attrs.expand.shape;
    const luda_tensor *x = plan->in[0];
    char from[160], to[160];
    int lead = wanted->ndim - x->ndim;
    bool fits = lead >= 0 && wanted->ndim <= LUDA_MAX_DIMS;
    for (int d = wanted->ndim - 1; fits && d >= 0; d--) {
        int64_t size = d >= lead ? x->shape[d - lead] : 1;
        if (wanted->size[d] == -1 && d >= lead)
            wanted->size[d] = size;
        fits = wanted->size[d] >= 0 && (size == 1 || size == wanted->size[d]);
        plan->stride[d] = d >= lead && size == wanted->size[d] ? x->stride[d - lead] : 0;
    }
    if (!fits)
        return luda__fail(LUDA_ESHAPE, "expand: shape %s cannot become %s; only sizes of 1 repeat",
                          luda__shape_text(x->ndim, x->shape, from, sizeof from),
                          luda__shape_text(wanted->ndim, wanted->size, to, sizeof to));
    return luda__set_shape(plan, 0, wanted->ndim, wanted->size);
}

bool luda__infer_shape(int64_t numel, luda_shape *shape)
{
    int unknown = -1;
    int64_t known = 1;
    if (shape->ndim < 0 || shape->ndim > LUDA_MAX_DIMS)
        return false;
    for (int d = 0; d < shape->ndim; d++) {
        if (shape->size[d] == -1 && unknown < 0)
            unknown = d;
        else if (shape->size[d] < 0 || __builtin_mul_overflow(known, shape->size[d], &known))
            return false;
    }
    if (unknown < 0)
        return known == numel;
    if (known == 0 || numel % known != 0)
        return false;
    shape->size[unknown] = numel / known;
    return true;
}

/*
 * Walks the old dimensions in runs that lie contiguously in memory and lays the new ones into each run. A new dimension that
 * would span two runs needs a copy.
 */
bool luda__view_strides(const luda_tensor *x, int ndim, const int64_t *shape, int64_t *stride)
{
    if (x->numel == 0) {
        int64_t step = 1;
        for (int d = ndim - 1; d >= 0; d--) {
            stride[d] = step;
            step *= shape[d] > 1 ? shape[d] : 1;
        }
        return true;
    }
    int new = ndim - 1;
    int64_t run = 1, base = x->ndim > 0 ? x->stride[x->ndim - 1] : 1;
    for (int d = x->ndim - 1; d >= 0; d--) {
        run *= x->shape[d];
        bool ends = d == 0 || (x->shape[d - 1] != 1 && x->stride[d - 1] != run * base);
        if (!ends)
            continue;
        int64_t filled = 1;
        for (; new >= 0 && (filled < run || shape[new] == 1); new--) {
            stride[new] = filled * base;
            filled *= shape[new];
        }
        if (filled != run)
            return false;
        run = 1;
        base = d > 0 ? x->stride[d - 1] : 1;
    }
    for (; new >= 0; new--)
        stride[new] = 1;
    return true;
}

luda_status luda__shape_view(luda_plan *plan)
{
    luda_shape *wanted = &plan->attrs.reshape.shape;
    const luda_tensor *x = plan->in[0];
    char from[160], to[160];
    if (!luda__infer_shape(x->numel, wanted))
        return luda__fail(LUDA_ESHAPE, "view: %lld elements of shape %s cannot become %s", (long long)x->numel,
                          luda__shape_text(x->ndim, x->shape, from, sizeof from),
                          luda__shape_text(wanted->ndim < LUDA_MAX_DIMS ? wanted->ndim : LUDA_MAX_DIMS, wanted->size, to, sizeof to));
    if (!luda__view_strides(x, wanted->ndim, wanted->size, plan->stride))
        return luda__fail(LUDA_ESHAPE, "view: the memory of shape %s does not lie as %s needs; use :reshape or :contiguous first",
                          luda__shape_text(x->ndim, x->shape, from, sizeof from),
                          luda__shape_text(wanted->ndim, wanted->size, to, sizeof to));
    return luda__set_shape(plan, 0, wanted->ndim, wanted->size);
}

luda_status luda__shape_squeeze(luda_plan *plan)
{
    luda_dims *dims = &plan->attrs.squeeze.dim;
    const luda_tensor *x = plan->in[0];
    bool chosen[LUDA_MAX_DIMS] = { false };
    for (int i = 0; i < dims->count; i++) {
        LUDA_TRY(luda__normalize_dim(plan, &dims->dim[i], x->ndim));
        chosen[dims->dim[i]] = true;
    }
    int ndim = 0;
    int64_t shape[LUDA_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        if (x->shape[d] != 1 || (dims->count > 0 && !chosen[d])) {
            plan->stride[ndim] = x->stride[d];
            shape[ndim++] = x->shape[d];
        }
    return luda__set_shape(plan, 0, ndim, shape);
}

luda_status luda__shape_unsqueeze(luda_plan *plan)
{
    const luda_tensor *x = plan->in[0];
    int32_t *dim = &plan->attrs.unsqueeze.dim;
    LUDA_TRY(luda__normalize_dim(plan, dim, x->ndim + 1));
    if (x->ndim == LUDA_MAX_DIMS)
        return luda__fail(LUDA_ESHAPE, "unsqueeze: the tensor has %d dimensions already", x->ndim);
    int64_t shape[LUDA_MAX_DIMS];
    for (int d = 0, from = 0; d <= x->ndim; d++) {
        shape[d] = d == *dim ? 1 : x->shape[from];
        plan->stride[d] = d == *dim ? 1 : x->stride[from];
        from += d != *dim;
    }
    return luda__set_shape(plan, 0, x->ndim + 1, shape);
}
