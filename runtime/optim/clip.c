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

/* --- Clipping --- */

/* What a clipping works on: list[i] is a gradient or a contiguous copy, which becomes factor[i] times itself. */
typedef struct clipping {
    luda_gradients *gradients;
    luda_tensor **list;
    double *factors, total;
    int count;
    bool wide; /* into new tensors, of floats where they were halves */
} clipping;

static void clipping_end(clipping *c)
{
    release_list(c->list, c->count);
    free(c->factors);
}

static luda_status clipping_begin(const char *op, luda_gradients *gradients, double limit, clipping *out)
{
    clipping c = { .gradients = gradients };
    if (!(limit > 0))
        return luda__fail(LUDA_EINVAL, "%s: the limit is %g, it must be positive", op, limit);
    LUDA_TRY(list_new(gradients, &c.list));
    c.factors = malloc(((size_t)luda_gradients_count(gradients) + 1) * sizeof *c.factors);
    luda_status status = c.factors ? unpack(gradients, c.list, &c.count) : luda__fail(LUDA_ENOMEM, "%s: no memory for a list", op);
    if (status != LUDA_OK)
        clipping_end(&c);
    else
        *out = c;
    return status;
}

/* True if writing to the gradient would change another one, or what the graph refers to. */
static bool is_shared(const clipping *c, int index)
{
    luda_tensor *gradient = c->list[index];
    bool shared = gradient->node || atomic_load(&gradient->storage->base.references) > 1;
    bool often = atomic_load(&gradient->base.references) > 2; /* beside the container and the list */
    for (int i = 0; i < c->count && often && !shared; i++)
        shared = i != index && c->list[i] == gradient;
    return shared;
}

/* A gradient's new value goes into its own memory, or into a tensor that takes its place; those whose factor is 1 stay. */
static luda_status clip(clipping *c, double limit)
{
    luda_optim_sum *sums = malloc(((size_t)c->count + 1) * sizeof *sums);
    luda_tensor **targets = calloc((size_t)c->count + 1, sizeof *targets);
    int *index = malloc(((size_t)c->count + 1) * sizeof *index), n = 0;
    luda_status status = sums && targets && index ? LUDA_OK : luda__fail(LUDA_ENOMEM, "clip: no memory for a list");

    for (int i = 0; i < c->count && status == LUDA_OK; i++) {
        luda_tensor *source = c->list[i];
        if (c->factors[i] == 1 && limit == HUGE_VAL && !c->wide)
            continue;
        if (c->wide || is_shared(c, i)) {
            luda_dtype dtype = c->wide && source->dtype != LUDA_F64 ? LUDA_F32 : (luda_dtype)source->dtype;
            status = luda_tensor_new(dtype, source->storage->device, source->ndim, source->shape, &targets[n]);
        } else {
            targets[n] = luda__retain(source);
        }
        if (status == LUDA_OK) {
            sums[n] = luda__optim_sum_item(targets[n], source, c->factors[i], 0);
            sums[n].limit = limit;
            index[n++] = i;
        }
    }
    if (status == LUDA_OK)
        status = luda__optim_sum(sums, targets, n);
    for (int k = 0; k < n && status == LUDA_OK; k++) {
        luda__bump(targets[k]);
        status = luda_gradients_set(c->gradients, luda_gradients_id(c->gradients, index[k]), targets[k]);
    }
    release_list(targets, n);
    free(sums);
    free(index);
    return status;
}

luda_status luda_gradients_clip_norm(luda_gradients *gradients, double limit, double *norm)
{
    clipping c;
    LUDA_TRY(clipping_begin("clip_norm", gradients, limit, &c));
    luda_status status = luda__optim_norms(c.list, c.count, NULL, &c.total);
    for (int i = 0; i < c.count; i++)
        c.factors[i] = isfinite(c.total) && c.total > limit ? limit / c.total : 1;
    if (status == LUDA_OK)
        status = clip(&c, HUGE_VAL);
    if (status == LUDA_OK && norm)
        *norm = c.total;
    clipping_end(&c);
    return status;
}

luda_status luda_gradients_clip_each(luda_gradients *gradients, double limit)
{
    clipping c;
    LUDA_TRY(clipping_begin("clip_each", gradients, limit, &c));
    luda_status status = luda__optim_norms(c.list, c.count, c.factors, &c.total);
    for (int i = 0; i < c.count; i++)
        c.factors[i] = isfinite(c.factors[i]) && c.factors[i] > limit ? limit / c.factors[i] : 1;
    if (status == LUDA_OK)
        status = clip(&c, HUGE_VAL);
    clipping_end(&c);
    return status;
}

/* All gradients times one factor, then between -limit and limit; `wide`: into new tensors. */
static luda_status scale_all(const char *op, luda_gradients *gradients, double factor, double limit, bool wide)
{
    clipping c;
    LUDA_TRY(clipping_begin(op, gradients, limit, &c));
    for (int i = 0; i < c.count; i++)
        c.factors[i] = factor;
    c.wide = wide;
    luda_status status = clip(&c, limit);
    clipping_end(&c);
    return status;
}

luda_status luda_gradients_clip_value(luda_gradients *gradients, double limit)
{
    return scale_all("clip_value", gradients, 1, limit, false);
}

luda_status luda_gradients_scale(luda_gradients *gradients, double factor)
{
    return scale_all("scale", gradients, factor, HUGE_VAL, true);
}
