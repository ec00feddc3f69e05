/* Moving values: between dtypes, devices, layouts, and plain memory. */
#include "ops.h"
#include "shapes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static luda_status said(luda_status status, const char *message)
{
    return status == LUDA_OK ? LUDA_OK : luda__fail_text(status, message);
}

/* Same device, any strides and dtypes: the cast kernel. */
static luda_status copy_here(const luda_tensor *source, luda_tensor *target)
{
    luda_device device = source->storage->device;
    const luda_device_ops *ops = luda__device(device);
    luda_operand in, out;
    char message[512] = "";
    luda_attrs attrs = { .family = LUDA_ATTRS_cast, .cast = { target->dtype, device } };
    if (source->numel == 0)
        return LUDA_OK;
    if (source->dtype == target->dtype && source->contiguous && target->contiguous)
        return said(ops->copy(device, luda__data(target), device, luda__data(source),
                              (size_t)source->numel * (size_t)luda_dtype_size((luda_dtype)source->dtype), message),
                    message);
    luda__operand(source, &in);
    luda__operand(target, &out);
    luda_kernel kernel = ops->kernels(device.index)->kernels[LUDA_OP_to][source->dtype];
    if (!kernel)
        return luda__fail(LUDA_ENOTSUP, "to: not supported for %s on %s", luda_dtype_name((luda_dtype)source->dtype), ops->name);
    luda_call call = { &in, &out, 1, 1, LUDA_OP_to, &attrs, 0, ops->stream_current ? ops->stream_current(device.index) : NULL, message };
    return said(kernel(&call), message);
}

/* Between devices: contiguous bytes of one dtype. */
static luda_status copy_across(const luda_tensor *source, luda_tensor *target)
{
    luda_device from = source->storage->device, to = target->storage->device;
    const luda_device_ops *ops = luda__device(from.type == LUDA_CPU ? to : from);
    char message[512] = "";
    size_t bytes = (size_t)source->numel * (size_t)luda_dtype_size((luda_dtype)source->dtype);
    return said(ops->copy(to, luda__data(target), from, luda__data(source), bytes, message), message);
}

luda_status luda__copy(const luda_tensor *source, luda_tensor *target)
{
    luda_device to = target->storage->device;
    luda_tensor *packed = NULL, *arrived = NULL;
    if (luda__same_device(source->storage->device, to))
        return copy_here(source, target);
    luda_status status = luda__move(source, (luda_dtype)target->dtype, source->storage->device, &packed);
    if (status == LUDA_OK && target->contiguous) {
        status = copy_across(packed, target);
    } else if (status == LUDA_OK) {
        status = luda_tensor_new((luda_dtype)target->dtype, to, target->ndim, target->shape, &arrived);
        if (status == LUDA_OK)
            status = copy_across(packed, arrived);
        if (status == LUDA_OK)
            status = copy_here(arrived, target);
    }
    luda_tensor_release(packed);
    luda_tensor_release(arrived);
    return status;
}

luda_status luda__move(const luda_tensor *source, luda_dtype dtype, luda_device device, luda_tensor **out)
{
    luda_tensor *target;
    LUDA_TRY(luda_tensor_new(dtype, device, source->ndim, source->shape, &target));
    luda_status status = luda__copy(source, target);
    if (status != LUDA_OK) {
        luda_tensor_release(target);
        return status;
    }
    *out = target;
    return LUDA_OK;
}

/* --- Plain memory --- */

/* A tensor of a source's shape over the caller's memory. */
static luda_status over_memory(const luda_tensor *like, luda_dtype dtype, const void *memory, luda_tensor **out)
{
    luda_storage *storage;
    size_t bytes = (size_t)like->numel * (size_t)luda_dtype_size(dtype);
    LUDA_TRY(luda__storage_wrap((luda_device){ LUDA_CPU, 0 }, (void *)(uintptr_t)memory, bytes, NULL, NULL, &storage));
    luda_status status = luda__tensor_over(storage, dtype, like->ndim, like->shape, NULL, 0, out);
    luda__release(storage);
    return status;
}

static luda_status check_memory(const char *op, const luda_tensor *tensor, luda_dtype dtype, int64_t numel)
{
    if ((unsigned)dtype >= LUDA_DTYPE_COUNT)
        return luda__fail(LUDA_EDTYPE, "%s: there is no element type %d", op, (int)dtype);
    if (numel != tensor->numel)
        return luda__fail(LUDA_ESHAPE, "%s: memory for %lld elements, the tensor has %lld", op, (long long)numel,
                          (long long)tensor->numel);
    return LUDA_OK;
}

luda_status luda_tensor_read(const luda_tensor *tensor, luda_dtype dtype, void *memory, int64_t numel)
{
    luda_tensor *target;
    LUDA_TRY(check_memory("read", tensor, dtype, numel));
    LUDA_TRY(over_memory(tensor, dtype, memory, &target));
    luda_status status = luda__copy(tensor, target);
    luda_tensor_release(target);
    return status == LUDA_OK ? luda_synchronize(tensor->storage->device) : status;
}

luda_status luda_tensor_write(luda_tensor *tensor, luda_dtype dtype, const void *memory, int64_t numel)
{
    luda_tensor *source;
    LUDA_TRY(check_memory("write", tensor, dtype, numel));
    if (luda__overlaps_itself(tensor))
        return luda__fail(LUDA_EINVAL, "write: elements of the tensor share memory (expanded?); clone it first");
    LUDA_TRY(over_memory(tensor, dtype, memory, &source));
    luda_status status = luda__copy(source, tensor);
    if (status == LUDA_OK)
        status = luda_synchronize(tensor->storage->device); /* the caller may reuse its memory */
    luda_tensor_release(source);
    luda__bump(tensor);
    return status;
}

/* Element `index` as a 0-d view. */
static luda_status element(const luda_tensor *tensor, int64_t index, luda_tensor **out)
{
    if (index < 0 || index >= tensor->numel)
        return luda__fail(LUDA_EINDEX, "get: element %lld of %lld", (long long)index, (long long)tensor->numel);
    int64_t offset = tensor->offset;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        offset += index % tensor->shape[d] * tensor->stride[d];
        index /= tensor->shape[d];
    }
    return luda__tensor_over(tensor->storage, (luda_dtype)tensor->dtype, 0, NULL, NULL, offset, out);
}

static luda_status get(const luda_tensor *tensor, int64_t index, luda_dtype dtype, void *out)
{
    luda_tensor *one;
    LUDA_TRY(element(tensor, index, &one));
    luda_status status = luda_tensor_read(one, dtype, out, 1);
    luda_tensor_release(one);
    return status;
}

luda_status luda_tensor_get(const luda_tensor *tensor, int64_t index, double *out)
{
    return get(tensor, index, LUDA_F64, out);
}

luda_status luda_tensor_get_i64(const luda_tensor *tensor, int64_t index, int64_t *out)
{
    return get(tensor, index, LUDA_I64, out);
}

/* --- Scalars --- */

static const struct { double low, high; } integer_range[LUDA_DTYPE_COUNT] = {
    [LUDA_I64] = { -0x1p63, 0x1p63 }, [LUDA_I32] = { INT32_MIN, INT32_MAX }, [LUDA_I16] = { INT16_MIN, INT16_MAX },
    [LUDA_I8] = { INT8_MIN, INT8_MAX }, [LUDA_U8] = { 0, UINT8_MAX }, [LUDA_BOOL] = { 0, 1 },
};

static luda_status scalar_from(luda_dtype from, const void *value, luda_dtype dtype, luda_tensor **out)
{
    luda_tensor *scalar;
    LUDA_TRY(luda_tensor_new(dtype, (luda_device){ LUDA_CPU, 0 }, 0, NULL, &scalar));
    luda_status status = luda_tensor_write(scalar, from, value, 1);
    if (status != LUDA_OK) {
        luda_tensor_release(scalar);
        return status;
    }
    *out = scalar;
    return LUDA_OK;
}

luda_status luda_tensor_scalar(double value, luda_dtype dtype, luda_tensor **out)
{
    if ((unsigned)dtype >= LUDA_DTYPE_COUNT)
        return luda__fail(LUDA_EDTYPE, "scalar: there is no element type %d", (int)dtype);
    if (luda__class_of(dtype) != LUDA__FLOAT &&
        (value != floor(value) || value < integer_range[dtype].low || value > integer_range[dtype].high ||
         (dtype == LUDA_I64 && value == 0x1p63)))
        return luda__fail(LUDA_EINVAL, "scalar: %.17g does not fit %s", value, luda_dtype_name(dtype));
    if (dtype != LUDA_F32 && dtype != LUDA_F64)
        return scalar_from(LUDA_F64, &value, dtype, out);
    LUDA_TRY(luda_tensor_new(dtype, (luda_device){ LUDA_CPU, 0 }, 0, NULL, out)); /* at once: numbers beside tensors are many */
    if (dtype == LUDA_F64)
        *(double *)(*out)->storage->data = value;
    else
        *(float *)(*out)->storage->data = (float)value;
    return LUDA_OK;
}

luda_status luda_tensor_scalar_i64(int64_t value, luda_dtype dtype, luda_tensor **out)
{
    if ((unsigned)dtype >= LUDA_DTYPE_COUNT)
        return luda__fail(LUDA_EDTYPE, "scalar: there is no element type %d", (int)dtype);
    if (luda__class_of(dtype) != LUDA__FLOAT && dtype != LUDA_I64 &&
        ((double)value < integer_range[dtype].low || (double)value > integer_range[dtype].high))
        return luda__fail(LUDA_EINVAL, "scalar: %lld does not fit %s", (long long)value, luda_dtype_name(dtype));
    return scalar_from(LUDA_I64, &value, dtype, out);
}
