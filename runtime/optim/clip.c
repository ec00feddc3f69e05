/* Multi-tensor work for callers: a x + b y over lists, norms and clipping of gradients. */
#include "optimizer.h"

#include <stdlib.h>

static luda_status check_pair(luda_tensor *const *targets, luda_tensor *const *sources, int index)
{
    luda_tensor *x = sources[index], *y = targets[index];
    if (!x || !y || !luda__is_float(x->dtype) || !luda__is_float(y->dtype))
        return luda__fail(LUDA_EDTYPE, "axpby: pair %d of the lists is not two floating tensors", index);
    if (!luda__optim_same_shape(x, y))
        return luda__fail(LUDA_ESHAPE, "axpby: the shapes of pair %d differ", index);
    if (!luda__same_device(x->storage->device, y->storage->device))
        return luda__fail(LUDA_EDEVICE, "axpby: pair %d lies on two devices", index);
    if (!y->contiguous)
        return luda__fail(LUDA_EINVAL, "axpby: target %d is not contiguous", index);
    return LUDA_OK;
}

luda_status luda_axpby(luda_tensor *const *targets, luda_tensor *const *sources, int count, double alpha, double beta)
{
    luda_optim_sum *sums = malloc(((size_t)count + 1) * sizeof *sums);
    luda_tensor **packed = calloc((size_t)count + 1, sizeof *packed);
    luda_status status = sums && packed ? LUDA_OK : luda__fail(LUDA_ENOMEM, "axpby: no memory for %d pairs", count);

    for (int i = 0; i < count && status == LUDA_OK; i++) {
        status = check_pair(targets, sources, i);
        if (status == LUDA_OK)
            status = luda__optim_packed(sources[i], &packed[i]);
        if (status == LUDA_OK)
            sums[i] = luda__optim_sum_item(targets[i], packed[i], alpha, beta);
    }
    if (status == LUDA_OK)
        status = luda__optim_sum(sums, targets, count);
    for (int i = 0; i < count && status == LUDA_OK; i++)
        luda__bump(targets[i]);
    for (int i = 0; packed && i < count; i++)
        luda_tensor_release(packed[i]);
    free(packed);
    free(sums);
    return status;
}

/* --- Gradients --- */

/* The gradients as contiguous tensors in the order of ids. */
static luda_status unpack(const luda_gradients *gradients, luda_tensor **list, int *count)
{
    int n = luda_gradients_count(gradients);
    for (*count = 0; *count < n; ++*count) {
        luda_tensor *gradient = luda_gradients_get(gradients, luda_gradients_id(gradients, *count));
        LUDA_TRY(luda__optim_packed(gradient, &list[*count]));
    }
    return LUDA_OK;
}

static void release_list(luda_tensor **list, int count)
{
    for (int i = 0; list && i < count; i++)
        luda_tensor_release(list[i]);
    free(list);
}

static luda_status list_new(const luda_gradients *gradients, luda_tensor ***out)
{
    *out = calloc((size_t)luda_gradients_count(gradients) + 1, sizeof **out);
    return *out ? LUDA_OK : luda__fail(LUDA_ENOMEM, "gradients: no memory for a list");
}

luda_status luda_gradients_norm(const luda_gradients *gradients, double *out)
{
    luda_tensor **list;
    int count = 0;

    LUDA_TRY(list_new(gradients, &list));
    luda_status status = unpack(gradients, list, &count);
    if (status == LUDA_OK)
        status = luda__optim_norms(list, count, NULL, out);
    release_list(list, count);
    return status;
}

/*
 * Replaces each gradient by factor times itself, clamped to `limit`; a half by a float where `wide`. Gradients may be
 * shared with others (both terms of a sum have the same), so the new ones are new tensors.
 */
static luda_status replace(luda_gradients *gradients, luda_tensor **list, int count, double factor, double limit,
                           bool wide)
{
    luda_optim_sum *sums = malloc(((size_t)count + 1) * sizeof *sums);
    luda_tensor **scaled = calloc((size_t)count + 1, sizeof *scaled);
    luda_status status = sums && scaled ? LUDA_OK : luda__fail(LUDA_ENOMEM, "clip: no memory for a list");

    for (int i = 0; i < count && status == LUDA_OK; i++) {
        luda_dtype dtype = wide && list[i]->dtype != LUDA_F64 ? LUDA_F32 : (luda_dtype)list[i]->dtype;
        status = luda_tensor_new(dtype, list[i]->storage->device, list[i]->ndim, list[i]->shape, &scaled[i]);
        if (status == LUDA_OK) {
            sums[i] = luda__optim_sum_item(scaled[i], list[i], factor, 0);
            sums[i].limit = limit;
        }
    }
    if (status == LUDA_OK)
        status = luda__optim_sum(sums, list, count);
    for (int i = 0; i < count && status == LUDA_OK; i++)
        status = luda_gradients_set(gradients, luda_gradients_id(gradients, i), scaled[i]);
    release_list(scaled, count);
    free(sums);
    return status;
}

luda_status luda_gradients_clip_norm(luda_gradients *gradients, double limit, double *norm)
{
    luda_tensor **list;
    double total = 0;
    int count = 0;

    if (!(limit > 0))
        return luda__fail(LUDA_EINVAL, "clip_norm: the limit is %g, it must be positive", limit);
    LUDA_TRY(list_new(gradients, &list));
    luda_status status = unpack(gradients, list, &count);
    if (status == LUDA_OK)
        status = luda__optim_norms(list, count, NULL, &total);
    if (status == LUDA_OK && isfinite(total) && total > limit)
        status = replace(gradients, list, count, limit / total, HUGE_VAL, false);
    release_list(list, count);
    if (status == LUDA_OK && norm)
        *norm = total;
    return status;
}

luda_status luda_gradients_clip_value(luda_gradients *gradients, double limit)
{
    luda_tensor **list;
    int count = 0;

    if (!(limit > 0))
        return luda__fail(LUDA_EINVAL, "clip_value: the limit is %g, it must be positive", limit);
    LUDA_TRY(list_new(gradients, &list));
    luda_status status = unpack(gradients, list, &count);
    if (status == LUDA_OK)
        status = replace(gradients, list, count, 1, limit, false);
    release_list(list, count);
    return status;
}

luda_status luda_gradients_scale(luda_gradients *gradients, double factor)
{
    luda_tensor **list;
    int count = 0;

    LUDA_TRY(list_new(gradients, &list));
    luda_status status = unpack(gradients, list, &count);
    if (status == LUDA_OK)
        status = replace(gradients, list, count, factor, HUGE_VAL, true);
    release_list(list, count);
    return status;
}
