/* Storages and tensors: making, sharing, asking. */
#include "ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Storages --- */

static void storage_destroy(void *object)
{
    luda_storage *storage = object;
    luda__image_drop(storage);
    if (storage->site)
        luda__site_leave(storage);
    if (storage->context)
        luda__context_count(storage->context, -(int64_t)storage->bytes);
    if (storage->free)
        storage->free(storage->owner, storage->data, storage->bytes);
    else if (storage->bytes > 0)
        luda__deallocate(storage->device, storage->data, storage->bytes);
    luda__object_free(storage, sizeof *storage);
}

static const luda_class storage_class = { "storage", storage_destroy };

/* Tells the context, whose front end then steps its collector in proportion. */
static void count_bytes(luda_storage *storage)
{
    luda_context *context = luda__context();
    int64_t live = luda__context_count(context, (int64_t)storage->bytes);
    storage->context = context;
    context->signals.live_bytes = (double)live;
    if (live > context->signals.limit_bytes)
        context->signals.attend |= LUDA__COLLECT | (context->signals.depth > 0 ? LUDA__REGISTER_IN_SCOPE : 0);
}

luda_status luda__storage_new(luda_device device, size_t bytes, luda_storage **out)
{
    luda_storage *storage = luda__object_new(sizeof *storage);
    if (!storage)
        return luda__fail(LUDA_ENOMEM, "no memory for a storage");
    memset(storage, 0, sizeof *storage);
    luda__object_init(storage, &storage_class);
    storage->device = device;
    storage->bytes = bytes;
    if (bytes > 0) {
        storage->data = luda__allocate(device, bytes);
        if (!storage->data) {
            luda_memory_info info = { 0 };
            luda__object_free(storage, sizeof *storage);
            if (!luda__device(device))
                return LUDA_EDEVICE;
            luda_memory(device, &info);
            return luda__fail(LUDA_ENOMEM, "out of memory: %zu bytes do not fit, %lld are live in %lld tensors (limit %lld)", bytes,
                              (long long)info.live, (long long)info.tensors, (long long)info.limit);
        }
    }
    count_bytes(storage);
    *out = storage;
    return LUDA_OK;
}

luda_status luda__storage_wrap(luda_device device, void *data, size_t bytes, void (*free_data)(void *, void *, size_t),
                               void *owner, luda_storage **out)
{
    luda_storage *storage = luda__object_new(sizeof *storage);
    if (!storage)
        return luda__fail(LUDA_ENOMEM, "no memory for a storage");
    memset(storage, 0, sizeof *storage);
    luda__object_init(storage, &storage_class);
    storage->device = device;
    storage->bytes = bytes;
    storage->data = data;
    storage->free = free_data ? free_data : luda__leave_alone;
    storage->owner = owner;
    *out = storage;
    return LUDA_OK;
}

void luda__leave_alone(void *owner, void *data, size_t bytes)
{
}

/* --- Tensors --- */

static void tensor_destroy(void *object)
{
    luda_tensor *tensor = object;
    luda__count_tensor(tensor->storage->device, -1);
    luda__release(tensor->node);
    luda__release(tensor->storage);
    luda__object_free(tensor, sizeof *tensor);
}

const luda_class luda__tensor_class = { "tensor", tensor_destroy };

static bool contiguous(const luda_tensor *t)
{
    int64_t step = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->shape[d] != 1 && t->stride[d] != step)
            return t->numel == 0;
        step *= t->shape[d];
    }
    return true;
}

luda_status luda__tensor_over(luda_storage *storage, luda_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides,
                              int64_t offset, luda_tensor **out)
{
    luda_tensor *tensor = luda__object_new(sizeof *tensor);
    if (!tensor)
        return luda__fail(LUDA_ENOMEM, "no memory for a tensor");
    luda__object_init(tensor, &luda__tensor_class);
    tensor->storage = luda__retain(storage);
    tensor->offset = offset;
    tensor->dtype = (int8_t)dtype;
    tensor->ndim = (int8_t)ndim;
    tensor->requires_grad = false;
    tensor->id = 0;
    tensor->node = NULL;
    tensor->node_output = 0;
    tensor->node_version = 0;
    tensor->numel = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        tensor->shape[d] = shape[d];
        tensor->stride[d] = strides ? strides[d] : tensor->numel;
        tensor->numel = (int64_t)((uint64_t)tensor->numel * (uint64_t)shape[d]); /* wraps only where a size is 0 */
    }
    tensor->contiguous = !strides || contiguous(tensor);
    luda__count_tensor(storage->device, 1);
    *out = tensor;
    return LUDA_OK;
}

luda_status luda__count_bytes(int ndim, const int64_t *shape, luda_dtype dtype, size_t *bytes)
{
    int64_t product = luda_dtype_size(dtype);
    bool empty = false;
    if (ndim < 0 || ndim > LUDA_MAX_DIMS)
        return luda__fail(LUDA_ESHAPE, "empty: %d dimensions, 0 to %d are possible", ndim, LUDA_MAX_DIMS);
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            return luda__fail(LUDA_ESHAPE, "empty: a size of %lld is negative", (long long)shape[d]);
        empty |= shape[d] == 0;
    }
    for (int d = 0; d < ndim; d++)
        if (!empty && __builtin_mul_overflow(product, shape[d], &product))
            return luda__fail(LUDA_ENOMEM, "empty: the sizes multiply to more bytes than can be counted");
    *bytes = empty ? 0 : (size_t)product;
    return LUDA_OK;
}

luda_status luda_tensor_new(luda_dtype dtype, luda_device device, int ndim, const int64_t *shape, luda_tensor **out)
{
    size_t bytes = 0;
    luda_storage *storage;
    if ((unsigned)dtype >= LUDA_DTYPE_COUNT)
        return luda__fail(LUDA_EDTYPE, "empty: there is no element type %d", (int)dtype);
    if (device.type == LUDA_SAME_DEVICE)
        device = (luda_device){ LUDA_CPU, 0 };
    LUDA_TRY(luda__count_bytes(ndim, shape, dtype, &bytes));
    LUDA_TRY(luda__storage_new(device, bytes, &storage));
    luda_status status = luda__tensor_over(storage, dtype, ndim, shape, NULL, 0, out);
    luda__release(storage);
    return status;
}

luda_status luda__tensor_alias(const luda_tensor *t, luda_tensor **out)
{
    return luda__tensor_over(t->storage, (luda_dtype)t->dtype, t->ndim, t->shape, t->stride, t->offset, out);
}

luda_status luda__tensor_shaped(const luda_tensor *t, luda_dtype dtype, luda_tensor **out)
{
    luda_storage *storage;
    LUDA_TRY(luda__storage_new(t->storage->device, (size_t)(t->numel * luda__dtype_bytes[dtype]), &storage));
    luda_status status = luda__tensor_over(storage, dtype, t->ndim, t->shape, NULL, 0, out);
    luda__release(storage);
    return status;
}

luda_status luda__tensor_like(const luda_tensor *t, luda_tensor **out)
{
    return luda_tensor_new((luda_dtype)t->dtype, t->storage->device, t->ndim, t->shape, out);
}

luda_status luda__zeros(luda_dtype dtype, luda_device device, int ndim, const int64_t *shape, luda_tensor **out)
{
    luda_tensor *tensor;
    char message[512] = "";
    LUDA_TRY(luda_tensor_new(dtype, device, ndim, shape, &tensor));
    luda_storage *storage = tensor->storage;
    luda_status status =
        luda__device(storage->device)->fill(storage->device.index, storage->data, 0, storage->bytes, message);
    if (status != LUDA_OK) {
        luda_tensor_release(tensor);
        return luda__fail_text(status, message);
    }
    *out = tensor;
    return LUDA_OK;
}

void luda__bump(luda_tensor *tensor)
{
    atomic_fetch_add_explicit(&tensor->storage->version, 1, memory_order_relaxed);
}

/* Sorted by stride, each dimension must step over all the memory that the smaller ones cover. */
bool luda__overlaps_itself(const luda_tensor *t)
{
    int order[LUDA_MAX_DIMS], count = 0;
    if (t->numel < 2 || t->contiguous)
        return false;
    for (int d = 0; d < t->ndim; d++)
        if (t->shape[d] > 1) {
            int at = count++;
            for (; at > 0 && llabs(t->stride[order[at - 1]]) > llabs(t->stride[d]); at--)
                order[at] = order[at - 1];
            order[at] = d;
        }
    int64_t covered = 0;
    for (int i = 0; i < count; i++) {
        int64_t step = llabs(t->stride[order[i]]);
        if (step <= covered)
            return true;
        covered += step * (t->shape[order[i]] - 1);
    }
    return false;
}

const char *luda__shape_text(int ndim, const int64_t *shape, char *buffer, size_t size)
{
    size_t used = (size_t)snprintf(buffer, size, "[");
    for (int d = 0; d < ndim && used < size; d++)
        used += (size_t)snprintf(buffer + used, size - used, d ? ", %lld" : "%lld", (long long)shape[d]);
    if (used < size)
        snprintf(buffer + used, size - used, "]");
    return buffer;
}

void luda__operand(const luda_tensor *t, luda_operand *out)
{
    out->data = luda__data(t);
    out->dtype = t->dtype;
    out->ndim = t->ndim;
    out->numel = t->numel;
    for (int d = 0; d < t->ndim; d++) {
        out->shape[d] = t->shape[d];
        out->stride[d] = t->stride[d];
    }
}

/* --- Asking --- */

void luda_tensor_retain(luda_tensor *tensor)
{
    luda__retain(tensor);
}

void luda_tensor_release(luda_tensor *tensor)
{
    luda__release(tensor);
}

luda_dtype luda_tensor_dtype(const luda_tensor *tensor)
{
    return (luda_dtype)tensor->dtype;
}

luda_device luda_tensor_device(const luda_tensor *tensor)
{
    return tensor->storage->device;
}

int luda_tensor_ndim(const luda_tensor *tensor)
{
    return tensor->ndim;
}

int64_t luda_tensor_numel(const luda_tensor *tensor)
{
    return tensor->numel;
}

const int64_t *luda_tensor_shape(const luda_tensor *tensor)
{
    return tensor->shape;
}

const int64_t *luda_tensor_strides(const luda_tensor *tensor)
{
    return tensor->stride;
}

int luda_tensor_is_contiguous(const luda_tensor *tensor)
{
    return tensor->contiguous;
}

void *luda_tensor_data(luda_tensor *tensor)
{
    return luda__data(tensor);
}

void *luda_tensor_elements(luda_tensor *tensor)
{
    return tensor->contiguous && tensor->storage->device.type == LUDA_CPU ? luda__data(tensor) : NULL;
}

uint32_t luda_tensor_version(const luda_tensor *tensor)
{
    return atomic_load_explicit(&tensor->storage->version, memory_order_relaxed);
}

int luda_tensor_same_storage(const luda_tensor *a, const luda_tensor *b)
{
    return a->storage == b->storage;
}

uint64_t luda_tensor_id(luda_tensor *tensor)
{
    luda_context *context = luda__context();
    if (tensor->id == 0)
        tensor->id = tensor->requires_grad ? ++context->last_leaf : ((uint64_t)1 << 40) + ++context->last_other;
    return tensor->id;
}
