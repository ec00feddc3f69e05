/* Shape rules of positions along a dimension, of sorting, scans, searches and Fourier transforms. */
#include "shapes.h"

#include <string.h>

/* The positions have as many dimensions as x, and no size beyond that of x except along the dimension. */
static luda_status check_positions(luda_plan *plan)
{
    const luda_tensor *x = plan->in[0], *index = plan->in[1];
    struct luda_gather_attrs *a = &plan->attrs.gather;
    LUDA_TRY(luda__normalize_dim(plan, &a->dim, x->ndim));
    bool fit = x->ndim == index->ndim;
    for (int d = 0; fit && d < x->ndim; d++)
        fit = d == a->dim || index->shape[d] <= x->shape[d];
    if (!fit)
        return luda__shapes_differ(plan, x, index, "the positions have the tensor's dimensions, and larger sizes only along dim");
    return LUDA_OK;
}

luda_status luda__shape_gather(luda_plan *plan)
{
    LUDA_TRY(check_positions(plan));
    return luda__same_shape(plan, 0, 1);
}

luda_status luda__shape_scatter(luda_plan *plan)
{
    const luda_tensor *index = plan->in[1], *source = plan->in[2];
    LUDA_TRY(check_positions(plan));
    if (index->ndim != source->ndim || memcmp(index->shape, source->shape, (size_t)index->ndim * sizeof *index->shape) != 0)
        return luda__shapes_differ(plan, index, source, "there must be one position for each element that is written");
    return luda__same_shape(plan, 0, 0);
}

luda_status luda__shape_nonzero(luda_plan *plan)
{
    LUDA_TRY(luda__set_shape(plan, 0, 2, (int64_t[]){ plan->in[0]->numel, plan->in[0]->ndim }));
    return luda__set_shape(plan, 1, 0, NULL);
}

luda_status luda__shape_paired(luda_plan *plan)
{
    /* dim is the first field of the families that have this shape */
    LUDA_TRY(luda__normalize_dim(plan, &plan->attrs.sort.dim, plan->in[0]->ndim));
    LUDA_TRY(luda__same_shape(plan, 0, 0));
    return luda__same_shape(plan, 1, 0);
}

luda_status luda__shape_search(luda_plan *plan)
{
    const luda_tensor *sorted = plan->in[0], *values = plan->in[1];
    bool fit = sorted->ndim == 1 || (sorted->ndim > 1 && sorted->ndim == values->ndim);
    for (int d = 0; fit && sorted->ndim > 1 && d < sorted->ndim - 1; d++)
        fit = sorted->shape[d] == values->shape[d];
    if (!fit)
        return luda__shapes_differ(plan, sorted, values, "the sorted row is one for all values, or one for each row of them");
    return luda__same_shape(plan, 0, 1);
}

/* Dimensions count without the last where that holds real and imaginary parts. */
luda_status luda__shape_dft(luda_plan *plan)
{
    const luda_tensor *x = plan->in[0];
    struct luda_dft_attrs *a = &plan->attrs.dft;
    bool real = a->transform == LUDA_DFT_REAL, paired = x->ndim > 1 && x->shape[x->ndim - 1] == 2;
    int ndim = real ? x->ndim : x->ndim - 1;
    char text[160];
    luda__shape_text(x->ndim, x->shape, text, sizeof text);
    if (!real && !paired)
        return luda__fail(LUDA_ESHAPE, "dft: the input has shape %s; a complex tensor has a last dimension of 2, real and imaginary part", text);
    if (ndim < 1 || ndim + real > LUDA_MAX_DIMS)
        return luda__fail(LUDA_ESHAPE, "dft: the input has shape %s; one to %d dimensions are possible", text, LUDA_MAX_DIMS - real);
    LUDA_TRY(luda__normalize_dim(plan, &a->dim, ndim));
    int64_t n = x->shape[a->dim], shape[LUDA_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    if (n == 0)
        return luda__fail(LUDA_ESHAPE, "dft: the input has shape %s; there is nothing to transform", text);
    if (a->transform == LUDA_DFT_HERMITIAN && (a->size < 1 || a->size / 2 + 1 != n))
        return luda__fail(LUDA_ESHAPE, "dft: %lld results need %lld numbers, the input %s has %lld", (long long)a->size,
                          (long long)(a->size / 2 + 1), text, (long long)n);
    shape[a->dim] = real ? n / 2 + 1 : a->transform == LUDA_DFT_HERMITIAN ? a->size : n;
    if (real)
        shape[x->ndim] = 2;
    return luda__set_shape(plan, 0, real ? ndim + 1 : a->transform == LUDA_DFT_HERMITIAN ? ndim : x->ndim, shape);
}
