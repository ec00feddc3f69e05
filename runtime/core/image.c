/*
 * Images: the values of a parameter's storage in a half type. Autocast casts a parameter once for each version of its
 * values, however often and through whichever views it is used; graph nodes are the caller's, one for each use.
 */
#include "ops.h"

void luda__image_allow(const luda_tensor *parameter)
{
    luda_storage *storage = parameter->storage;
    bool whole = parameter->contiguous && (size_t)parameter->numel * sizeof(float) == storage->bytes;
    if (parameter->dtype == LUDA_F32 && whole)
        storage->has_parameter = true;
}

bool luda__image_possible(const luda_tensor *tensor, luda_dtype dtype)
{
    return tensor->storage->has_parameter && tensor->dtype == LUDA_F32 && (dtype == LUDA_BF16 || dtype == LUDA_F16);
}

void luda__image_drop(luda_storage *storage)
{
    luda_storage *image = storage->image;
    storage->image = NULL;
    luda__release(image);
}

static bool is_right(const luda_storage *storage)
{
    return storage->image && storage->image_version == atomic_load_explicit(&storage->version, memory_order_relaxed);
}

/* A graph may hold the image of earlier values, which therefore stays as it is: new values get a new one. */
static luda_status make(luda_storage *storage, luda_dtype dtype)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_cast, .cast = { (int32_t)dtype, { LUDA_SAME_DEVICE, 0 } } };
    int64_t numel = (int64_t)(storage->bytes / sizeof(float));
    luda_tensor *values, *rounded = NULL;
    luda__image_drop(storage);
    LUDA_TRY(luda__tensor_over(storage, LUDA_F32, 1, &numel, NULL, 0, &values));
    luda_status status = luda__compute(LUDA_OP_to, &values, 1, &attrs, &rounded);
    luda_tensor_release(values);
    if (status != LUDA_OK)
        return status;
    storage->image = luda__retain(rounded->storage);
    storage->image_dtype = (int8_t)dtype;
    storage->image_version = atomic_load_explicit(&storage->version, memory_order_relaxed);
    luda_tensor_release(rounded);
    return LUDA_OK;
}

luda_status luda__image_view(const luda_tensor *tensor, luda_dtype dtype, luda_tensor **out)
{
    luda_storage *storage = tensor->storage;
    if (!is_right(storage) || storage->image_dtype != (int8_t)dtype)
        LUDA_TRY(make(storage, dtype));
    storage->image_used = true;
    return luda__tensor_over(storage->image, dtype, tensor->ndim, tensor->shape, tensor->stride, tensor->offset, out);
}

void *luda__image_renewable(const luda_tensor *parameter, luda_dtype *dtype)
{
    luda_storage *storage = parameter->storage;
    bool whole = parameter->contiguous && (size_t)parameter->numel * sizeof(float) == storage->bytes;
    if (!storage->image || !whole || !storage->image_used) {
        luda__image_drop(storage);
        return NULL;
    }
    *dtype = (luda_dtype)storage->image_dtype;
    return storage->image->data;
}

void luda__image_renewed(const luda_tensor *parameter)
{
    luda_storage *storage = parameter->storage;
    atomic_fetch_add_explicit(&storage->image->version, 1, memory_order_relaxed);
    storage->image_version = atomic_load_explicit(&storage->version, memory_order_relaxed);
    storage->image_used = false;
}
