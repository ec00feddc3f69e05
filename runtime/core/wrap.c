/* Tensors over bytes that are there already: memory of another owner, and a storage as another element type. */
#include "core.h"

#include <string.h>

/* --- Memory of another owner --- */

luda_status luda_tensor_wrap(luda_dtype dtype, int ndim, const int64_t *shape, void *memory,
                             void (*free_memory)(void *owner, void *memory, size_t bytes), void *owner, luda_tensor **out)
{
    luda_storage *storage;
    size_t bytes;
    if ((unsigned)dtype >= LUDA_DTYPE_COUNT)
        return luda__fail(LUDA_EDTYPE, "from_ptr: there is no element type %d", (int)dtype);
    LUDA_TRY(luda__count_bytes(ndim, shape, dtype, &bytes));
    if (bytes > 0 && !memory)
        return luda__fail(LUDA_EINVAL, "from_ptr: the address is NULL and %zu bytes are needed", bytes);
    if ((uintptr_t)memory % (uintptr_t)luda_dtype_size(dtype))
        return luda__fail(LUDA_EINVAL, "from_ptr: the address is no multiple of %d, the size of %s; copy the bytes elsewhere",
                          luda_dtype_size(dtype), luda_dtype_name(dtype));
    LUDA_TRY(luda__storage_wrap((luda_device){ LUDA_CPU, 0 }, memory, bytes, NULL, NULL, &storage));
    luda_status status = luda__tensor_over(storage, dtype, ndim, shape, NULL, 0, out);
    if (status == LUDA_OK && free_memory) { /* a failure leaves the memory to the caller */
        storage->free = free_memory;
        storage->owner = owner;
    }
    luda__release(storage);
    return status;
}

typedef struct tagged {
    luda_context *context; /* outlives its storages */
    int64_t tag;
} tagged;

static void report_dead(void *owner, void *memory, size_t bytes)
{
    tagged *t = owner;
    luda__dead_tag(t->context, t->tag);
    luda__object_free(t, sizeof *t);
}

luda_status luda_tensor_wrap_lua(luda_dtype dtype, int ndim, const int64_t *shape, void *memory, int64_t tag,
                                 luda_tensor **out)
{
    tagged *t = luda__object_new(sizeof *t);
    if (!t)
        return luda__fail(LUDA_ENOMEM, "from_ptr: no memory for its owner");
    *t = (tagged){ luda__context(), tag };
    luda_status status = luda_tensor_wrap(dtype, ndim, shape, memory, report_dead, t, out);
    if (status != LUDA_OK)
        luda__object_free(t, sizeof *t);
    return status;
}

/* --- Another element type --- */

/* Sizes, strides and offset of x in elements of the other size. */
static luda_status rescale(const luda_tensor *x, luda_dtype dtype, int64_t *shape, int64_t *stride, int64_t *offset)
{
    int64_t from = luda_dtype_size((luda_dtype)x->dtype), to = luda_dtype_size(dtype);
    const char *name = luda_dtype_name((luda_dtype)x->dtype), *wanted = luda_dtype_name(dtype);
    char text[160];
    int last = x->ndim - 1;
    luda__shape_text(x->ndim, x->shape, text, sizeof text);
    if (last < 0)
        return luda__fail(LUDA_ESHAPE, "bitcast: a 0-d %s has no dimension to rescale for %s; reshape it to {1}", name, wanted);
    if (stride[last] != 1 && shape[last] != 1 && x->numel > 0)
        return luda__fail(LUDA_ESHAPE, "bitcast: elements of the last dimension of %s %s do not lie side by side, as %s needs; "
                          "call contiguous() first", name, text, wanted);
    if (shape[last] * from % to)
        return luda__fail(LUDA_ESHAPE, "bitcast: the last dimension of %s %s does not divide into %s, which has %lld bytes", name,
                          text, wanted, (long long)to);
    for (int d = 0; d < last; d++) {
        if (stride[d] * from % to && shape[d] > 1 && x->numel > 0)
            return luda__fail(LUDA_ESHAPE, "bitcast: rows of %s %s are no multiple of %s apart; call contiguous() first", name,
                              text, wanted);
        stride[d] = stride[d] * from / to;
    }
    if ((uintptr_t)luda__data(x) % (uintptr_t)to || *offset * from % to)
        return luda__fail(LUDA_ESHAPE, "bitcast: the first element of %s %s does not lie where a %s may begin; clone it first",
                          name, text, wanted);
    shape[last] = shape[last] * from / to;
    stride[last] = 1;
    *offset = *offset * from / to;
    return LUDA_OK;
}

luda_status luda_tensor_bitcast(luda_tensor *x, luda_dtype dtype, luda_tensor **out)
{
    int64_t shape[LUDA_MAX_DIMS], stride[LUDA_MAX_DIMS], offset = x->offset;
    if ((unsigned)dtype >= LUDA_DTYPE_COUNT)
        return luda__fail(LUDA_EDTYPE, "bitcast: there is no element type %d", (int)dtype);
    if (dtype == LUDA_BOOL && x->dtype != LUDA_BOOL)
        return luda__fail(LUDA_EDTYPE, "bitcast: bytes of %s need not be 0 or 1, as bool is; compare, as in x:ne(0)",
                          luda_dtype_name((luda_dtype)x->dtype));
    if (luda_grad_enabled() && (x->requires_grad || x->node))
        return luda__fail(LUDA_EGRAPH, "bitcast: it has no gradient, but the tensor requires one; detach it or use luda.no_grad");
    memcpy(shape, x->shape, sizeof shape);
    memcpy(stride, x->stride, sizeof stride);
    if (luda_dtype_size(dtype) != luda_dtype_size((luda_dtype)x->dtype))
        LUDA_TRY(rescale(x, dtype, shape, stride, &offset));
    return luda__tensor_over(x->storage, dtype, x->ndim, shape, stride, offset, out);
}
