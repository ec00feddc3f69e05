/* Work over lists of tensors: one kernel call for each device that the list touches. */
#include "optimizer.h"

#include <stdlib.h>
#include <string.h>

bool luda__optim_same_shape(const luda_tensor *a, const luda_tensor *b)
{
    bool same = a->ndim == b->ndim;
    for (int d = 0; same && d < a->ndim; d++)
        same = a->shape[d] == b->shape[d];
    return same;
}

luda_status luda__optim_packed(luda_tensor *tensor, luda_tensor **out)
{
    if (tensor->contiguous) {
        *out = luda__retain(tensor);
        return LUDA_OK;
    }
    return luda__move(tensor, (luda_dtype)tensor->dtype, tensor->storage->device, out);
}

/* --- Checks --- */

luda_status luda__optim_check_gradient(const char *op, luda_tensor *parameter, const luda_tensor *gradient)
{
    char wanted[128], got[128];
    unsigned long long id = luda_tensor_id(parameter);
    luda_device p = parameter->storage->device, g = gradient->storage->device;
    bool half = parameter->dtype == LUDA_F16 || parameter->dtype == LUDA_BF16;

    if (!luda__optim_same_shape(parameter, gradient))
        return luda__fail(LUDA_ESHAPE, "%s: the gradient of parameter %llu has shape %s, the parameter %s", op, id,
                          luda__shape_text(gradient->ndim, gradient->shape, got, sizeof got),
                          luda__shape_text(parameter->ndim, parameter->shape, wanted, sizeof wanted));
    if (!luda__same_device(p, g))
        return luda__fail(LUDA_EDEVICE, "%s: the gradient of parameter %llu is on another device", op, id);
    if (gradient->dtype != parameter->dtype && !(half && gradient->dtype == LUDA_F32))
        return luda__fail(LUDA_EDTYPE, "%s: the gradient of parameter %llu is %s, the parameter %s", op, id,
                          luda_dtype_name((luda_dtype)gradient->dtype), luda_dtype_name((luda_dtype)parameter->dtype));
    return LUDA_OK;
}

static int compare_pointers(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (luda_tensor *const *)a, y = (uintptr_t) * (luda_tensor *const *)b;
    return (x > y) - (x < y);
}

luda_status luda__optim_check_parameters(const char *op, luda_tensor *const *parameters, int count)
{
    luda_tensor **sorted = malloc(((size_t)count + 1) * sizeof(luda_tensor *));
    luda_status status = LUDA_OK;

    if (!sorted)
        return luda__fail(LUDA_ENOMEM, "%s: no memory for %d parameters", op, count);
    for (int i = 0; i < count && status == LUDA_OK; i++) {
        sorted[i] = parameters[i];
        if (!parameters[i] || !luda__is_float(parameters[i]->dtype))
            status = luda__fail(LUDA_EDTYPE, "%s: entry %d of the list is not a floating tensor", op, i);
        else if (luda__overlaps_itself(parameters[i]))
            status = luda__fail(LUDA_EINVAL, "%s: elements of entry %d share memory (expanded?); clone it", op, i);
    }
    if (status == LUDA_OK) {
        qsort(sorted, (size_t)count, sizeof *sorted, compare_pointers);
        for (int i = 1; i < count && status == LUDA_OK; i++)
            if (sorted[i] == sorted[i - 1])
                status = luda__fail(LUDA_EINVAL, "%s: parameter %llu is in the list twice; list shared ones once", op,
                                    (unsigned long long)luda_tensor_id(sorted[i]));
    }
    free(sorted);
    return status;
}

/* --- One call for each device --- */

/*
 * Copies the items (of `size` bytes, each beginning with a span) whose tensors lie on the device of the first that is
 * not taken yet. index says where each came from. Returns how many there are; 0 at the end.
 */
static int gather(const char *items, size_t size, luda_tensor *const *tensors, int count, uint8_t *taken, char *chosen,
                  int *index)
{
    int64_t start = 0;
    int found = 0;
    for (int i = 0; i < count; i++) {
        if (taken[i] || (found && !luda__same_device(tensors[i]->storage->device, tensors[index[0]]->storage->device)))
            continue;
        luda_optim_span *span = (luda_optim_span *)(void *)(chosen + (size_t)found * size);
        memcpy(span, items + (size_t)i * size, size);
        span->start = start;
        span->numel = tensors[i]->numel;
        start += tensors[i]->numel;
        taken[i] = 1;
        index[found++] = i;
    }
    return found;
}

/* What to do with the items of one device. */
typedef luda_status (*part)(const luda_optim_kernels *kernels, const void *items, int count, const int *index,
                            void *argument, void *stream, char *message);

static luda_status each_device(const void *items, size_t size, luda_tensor *const *tensors, int count, part run,
                               void *argument)
{
    char *chosen = malloc((size_t)count * (size + sizeof(int) + 1) + 1);
    char message[512] = "";
    luda_status status = LUDA_OK;
    int found;

    if (!chosen)
        return luda__fail(LUDA_ENOMEM, "optim: no memory for a list of %d tensors", count);
    int *index = (int *)(void *)(chosen + (size_t)count * size);
    uint8_t *taken = (uint8_t *)(index + count);
    memset(taken, 0, (size_t)count);
    while (status == LUDA_OK && (found = gather(items, size, tensors, count, taken, chosen, index)) > 0) {
        luda_device device = tensors[index[0]]->storage->device;
        const luda_device_ops *ops = luda__device(device);
        const luda_optim_kernels *kernels = ops && ops->optim ? ops->optim(device.index) : NULL;
        if (!kernels) {
            status = luda__fail(LUDA_ENOTSUP, "optim: no kernels for the device of parameter %llu",
                                (unsigned long long)luda_tensor_id(tensors[index[0]]));
        } else {
            void *stream = ops->stream_current ? ops->stream_current(device.index) : NULL;
            status = run(kernels, chosen, found, index, argument, stream, message);
            if (status != LUDA_OK)
                luda__fail_text(status, message);
        }
    }
    free(chosen);
    return status;
}

/* --- Norms --- */

typedef struct squares_argument {
    double scale;
    double *sums, *part; /* of all; of one device */
} squares_argument;

static luda_status squares_part(const luda_optim_kernels *kernels, const void *items, int count, const int *index,
                                void *argument, void *stream, char *message)
{
    squares_argument *a = argument;
    LUDA_TRY(kernels->squares(items, count, a->scale, a->part, stream, message));
    for (int i = 0; i < count; i++)
        a->sums[index[i]] = a->part[i];
    return LUDA_OK;
}

static luda_status add_squares(const luda_optim_array *arrays, luda_tensor *const *tensors, int count,
                               squares_argument *a, double *total)
{
    *total = 0;
    LUDA_TRY(each_device(arrays, sizeof *arrays, tensors, count, squares_part, a));
    for (int i = 0; i < count; i++)
        *total += a->sums[i];
    return LUDA_OK;
}

luda_status luda__optim_norms(luda_tensor *const *tensors, int count, double *norms, double *total)
{
    luda_optim_array *arrays = calloc((size_t)count + 1, sizeof *arrays);
    double *sums = malloc(((size_t)count * 2 + 1) * sizeof *sums), sum = 0;
    squares_argument a = { 1, sums, sums + count };
    luda_status status = LUDA_OK;

    if (!arrays || !sums)
        status = luda__fail(LUDA_ENOMEM, "norm: no memory for a list of %d tensors", count);
    for (int i = 0; i < count && status == LUDA_OK; i++)
        arrays[i] = (luda_optim_array){ .data = luda__data(tensors[i]), .dtype = tensors[i]->dtype };
    if (status == LUDA_OK)
        status = add_squares(arrays, tensors, count, &a, &sum);
    for (int i = 0; norms && i < count && status == LUDA_OK; i++)
        norms[i] = sqrt(sums[i]);
    if (status == LUDA_OK && !isfinite(sum)) {
        /* Squares of doubles overflow far below their largest number; those of small ones vanish in this pass. */
        a.scale = 0x1p-600;
        status = add_squares(arrays, tensors, count, &a, &sum);
        for (int i = 0; norms && i < count && status == LUDA_OK; i++)
            norms[i] = isfinite(norms[i]) ? norms[i] : sqrt(sums[i]) / a.scale;
    }
    if (status == LUDA_OK)
        *total = sqrt(sum) / a.scale;
    free(arrays);
    free(sums);
    return status;
}

/* --- Sums and updates --- */

luda_optim_sum luda__optim_sum_item(luda_tensor *target, luda_tensor *source, double alpha, double beta)
{
    return (luda_optim_sum){ .target = luda__data(target), .source = luda__data(source), .target_dtype = target->dtype,
                             .source_dtype = source->dtype, .alpha = alpha, .beta = beta, .limit = HUGE_VAL };
}

static luda_status sum_part(const luda_optim_kernels *kernels, const void *items, int count, const int *index,
                            void *argument, void *stream, char *message)
{
    return kernels->sum(items, count, stream, message);
}

luda_status luda__optim_sum(luda_optim_sum *sums, luda_tensor *const *tensors, int count)
{
    return each_device(sums, sizeof *sums, tensors, count, sum_part, NULL);
}

static luda_status update_part(const luda_optim_kernels *kernels, const void *items, int count, const int *index,
                               void *argument, void *stream, char *message)
{
    return kernels->step(*(const int *)argument, items, count, stream, message);
}

luda_status luda__optim_update(int kind, luda_optim_update *updates, luda_tensor *const *tensors, int count)
{
    return each_device(updates, sizeof *updates, tensors, count, update_part, &kind);
}
