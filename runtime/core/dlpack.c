/* Tensors lent to, and borrowed from, other array libraries through DLPack: no byte is copied either way. */
#include "dlpack.h"

#include "core.h"

#include <stdlib.h>

static const struct { uint8_t code, bits; } dlpack_types[LUDA_DTYPE_COUNT] = {
    [LUDA_F64] = { DLPACK_FLOAT, 64 },  [LUDA_F32] = { DLPACK_FLOAT, 32 }, [LUDA_F16] = { DLPACK_FLOAT, 16 },
    [LUDA_BF16] = { DLPACK_BFLOAT, 16 }, [LUDA_I64] = { DLPACK_INT, 64 },   [LUDA_I32] = { DLPACK_INT, 32 },
    [LUDA_I16] = { DLPACK_INT, 16 },    [LUDA_I8] = { DLPACK_INT, 8 },     [LUDA_U8] = { DLPACK_UINT, 8 },
    [LUDA_BOOL] = { DLPACK_BOOL, 8 },
};

/* --- Lending --- */

typedef struct loan {
    struct DLManagedTensor managed;
    int64_t shape[LUDA_MAX_DIMS], stride[LUDA_MAX_DIMS];
} loan;

static void end_loan(struct DLManagedTensor *self)
{
    luda_tensor_release(self->manager);
    free(self);
}

luda_status luda_tensor_to_dlpack(luda_tensor *tensor, struct DLManagedTensor **out)
{
    luda_device device = tensor->storage->device;
    if (tensor->requires_grad || tensor->node)
        return luda__fail(LUDA_EGRAPH, "to_dlpack: the tensor has a gradient that the other side would not know; detach it first");
    LUDA_TRY(luda_synchronize(device)); /* whatever stream the borrower reads on */
    loan *made = malloc(sizeof *made);
    if (!made)
        return luda__fail(LUDA_ENOMEM, "to_dlpack: no memory for %zu bytes", sizeof *made);
    for (int d = 0; d < tensor->ndim; d++) {
        made->shape[d] = tensor->shape[d];
        made->stride[d] = tensor->stride[d];
    }
    made->managed = (struct DLManagedTensor){
        .tensor = {
            .data = tensor->storage->data,
            .device_type = device.type == LUDA_CUDA ? DLPACK_CUDA : DLPACK_CPU,
            .device_id = device.index,
            .ndim = tensor->ndim,
            .dtype = { dlpack_types[tensor->dtype].code, dlpack_types[tensor->dtype].bits, 1 },
            .shape = made->shape,
            .strides = made->stride,
            .byte_offset = (uint64_t)tensor->offset * (uint64_t)luda_dtype_size((luda_dtype)tensor->dtype),
        },
        .manager = luda__retain(tensor),
        .deleter = end_loan,
    };
    *out = &made->managed;
    return LUDA_OK;
}

void luda_dlpack_release(struct DLManagedTensor *managed)
{
    if (managed && managed->deleter)
        managed->deleter(managed);
}

/* --- Borrowing --- */

static luda_status dtype_of(const dlpack_tensor *t, luda_dtype *out)
{
    for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++)
        if (t->dtype.code == dlpack_types[dtype].code && t->dtype.bits == dlpack_types[dtype].bits && t->dtype.lanes == 1) {
            *out = (luda_dtype)dtype;
            return LUDA_OK;
        }
    return luda__fail(LUDA_EDTYPE, "from_dlpack: no element type has DLPack's code %d with %d bits and %d lanes; convert on the other side",
                      t->dtype.code, t->dtype.bits, t->dtype.lanes);
}

static luda_status device_of(const dlpack_tensor *t, luda_device *out)
{
    bool host = t->device_type == DLPACK_CPU || t->device_type == DLPACK_CUDA_HOST;
    if (!host && t->device_type != DLPACK_CUDA)
        return luda__fail(LUDA_EDEVICE, "from_dlpack: memory on a device of DLPack's type %d; copy it to the CPU first", t->device_type);
    *out = (luda_device){ host ? LUDA_CPU : LUDA_CUDA, host ? 0 : t->device_id };
    return luda__device(*out) ? LUDA_OK : LUDA_EDEVICE;
}

/* The elements that lie lowest and highest, as offsets from the first; *empty: there is none. */
static luda_status extent_of(const dlpack_tensor *t, int64_t *strides, int64_t *low, int64_t *high, bool *empty)
{
    int64_t step = 1, numel = 1, reach;
    *low = *high = 0;
    *empty = false;
    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] < 0)
            return luda__fail(LUDA_ESHAPE, "from_dlpack: size %d is %lld", d, (long long)t->shape[d]);
        *empty |= t->shape[d] == 0;
    }
    for (int d = t->ndim - 1; d >= 0; d--) {
        strides[d] = t->strides ? t->strides[d] : step;
        if (*empty)
            continue;
        int64_t *end = strides[d] < 0 ? low : high;
        if (__builtin_mul_overflow(numel, t->shape[d], &numel) || __builtin_mul_overflow(t->shape[d] - 1, strides[d], &reach) ||
            __builtin_add_overflow(*end, reach, end) || *high > INT64_MAX / 32 || *low < INT64_MIN / 32)
            return luda__fail(LUDA_ESHAPE, "from_dlpack: sizes and strides reach further than memory does");
        step = numel;
    }
    return LUDA_OK;
}

static void end_borrowing(void *owner, void *data, size_t bytes)
{
    luda_dlpack_release(owner);
}

luda_status luda_tensor_from_dlpack(struct DLManagedTensor *managed, luda_tensor **out)
{
    const dlpack_tensor *t = &managed->tensor;
    luda_dtype dtype = LUDA_F32;
    luda_device device = { LUDA_CPU, 0 };
    int64_t strides[LUDA_MAX_DIMS] = { 0 }, low = 0, high = 0;
    bool empty = false;
    luda_storage *storage;
    LUDA_TRY(dtype_of(t, &dtype));
    LUDA_TRY(device_of(t, &device));
    if (t->ndim < 0 || t->ndim > LUDA_MAX_DIMS || (t->ndim > 0 && !t->shape))
        return luda__fail(LUDA_ESHAPE, "from_dlpack: %d dimensions%s; 0 to %d are possible", t->ndim,
                          t->ndim > 0 && !t->shape ? " without sizes" : "", LUDA_MAX_DIMS);
    LUDA_TRY(extent_of(t, strides, &low, &high, &empty));
    uintptr_t first = (uintptr_t)t->data + (uintptr_t)t->byte_offset, size = (uintptr_t)luda_dtype_size(dtype);
    if (!empty && (!t->data || first % size != 0))
        return luda__fail(LUDA_EINVAL, "from_dlpack: the first element lies at %#llx, which no %s can; copy it on the other side",
                          (unsigned long long)first, luda_dtype_name(dtype));
    size_t bytes = empty ? 0 : (size_t)(high - low + 1) * size;
    void *lowest = empty ? NULL : (void *)(first - (uintptr_t)-low * size);
    LUDA_TRY(luda__storage_wrap(device, lowest, bytes, end_borrowing, managed, &storage));
    luda_status status = luda__tensor_over(storage, dtype, t->ndim, t->shape, strides, -low, out);
    if (status != LUDA_OK)
        storage->free = luda__leave_alone; /* what failed took nothing */
    luda__release(storage);
    return status;
}
