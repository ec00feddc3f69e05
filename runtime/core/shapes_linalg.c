/* Shape rules of linear algebra: matrices are the last two dimensions, what comes before them is a batch. */
#include "shapes.h"

#include <string.h>

static luda_status need_matrix(const luda_plan *plan, int input, bool square)
{
    const luda_tensor *x = plan->in[input];
    char text[160];
    luda__shape_text(x->ndim, x->shape, text, sizeof text);
    if (x->ndim < 2)
        return luda__fail(LUDA_ESHAPE, "%s: input %d of shape %s is no matrix; two dimensions are needed, the last ones of a batch",
                          plan->info->name, input + 1, text);
    if (square && x->shape[x->ndim - 1] != x->shape[x->ndim - 2])
        return luda__fail(LUDA_ESHAPE, "%s: the matrix of shape %s is not square; qr, svd, pinv and lstsq take any", plan->info->name,
                          text);
    return LUDA_OK;
}

/* An output of the batch's dimensions, then `count` sizes. */
static luda_status after_batch(luda_plan *plan, int output, int count, const int64_t *sizes)
{
    const luda_tensor *x = plan->in[0];
    int64_t shape[LUDA_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    for (int i = 0; i < count; i++)
        shape[x->ndim - 2 + i] = sizes[i];
    return luda__set_shape(plan, output, x->ndim - 2 + count, shape);
}

luda_status luda__shape_square(luda_plan *plan)
{
    LUDA_TRY(need_matrix(plan, 0, true));
    return luda__same_shape(plan, 0, 0);
}

/* [m, k] and [k, n], between them k values where there are three. */
luda_status luda__shape_factors(luda_plan *plan)
{
    const luda_tensor *x = plan->in[0];
    LUDA_TRY(need_matrix(plan, 0, false));
    int64_t m = x->shape[x->ndim - 2], n = x->shape[x->ndim - 1], k = m < n ? m : n;
    LUDA_TRY(after_batch(plan, 0, 2, (int64_t[]){ m, k }));
    LUDA_TRY(after_batch(plan, 1, 1, &k));
    return after_batch(plan, plan->info->outputs - 1, 2, (int64_t[]){ k, n });
}

luda_status luda__shape_eigh(luda_plan *plan)
{
    LUDA_TRY(need_matrix(plan, 0, true));
    LUDA_TRY(after_batch(plan, 0, 1, &plan->in[0]->shape[plan->in[0]->ndim - 1]));
    return luda__same_shape(plan, 1, 0);
}

luda_status luda__shape_det(luda_plan *plan)
{
    LUDA_TRY(need_matrix(plan, 0, true));
    for (int o = 0; o < plan->info->outputs; o++)
        LUDA_TRY(after_batch(plan, o, 0, NULL));
    return LUDA_OK;
}

luda_status luda__shape_solve(luda_plan *plan)
{
    const luda_tensor *a = plan->in[0], *b = plan->in[1];
    int ndim = 0;
    int64_t shape[LUDA_MAX_DIMS];
    LUDA_TRY(need_matrix(plan, 0, true));
    LUDA_TRY(need_matrix(plan, 1, false));
    if (b->shape[b->ndim - 2] != a->shape[a->ndim - 1])
        return luda__shapes_differ(plan, a, b, "A is [..., n, n] and B is [..., n, k]");
    if (!luda__widen(a->shape, a->ndim - 2, &ndim, shape) || !luda__widen(b->shape, b->ndim - 2, &ndim, shape))
        return luda__shapes_differ(plan, a, b, "the batch sizes must be equal or 1");
    shape[ndim++] = b->shape[b->ndim - 2];
    shape[ndim++] = b->shape[b->ndim - 1];
    return luda__set_shape(plan, 0, ndim, shape);
}
