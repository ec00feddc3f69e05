/* DLPack 0.8: the C layout in which array libraries lend each other memory. Written from the specification. */
#ifndef LUDA_DLPACK_H
#define LUDA_DLPACK_H

#include <stdint.h>

/* Device types. Pinned host memory is read like any other. */
enum { DLPACK_CPU = 1, DLPACK_CUDA = 2, DLPACK_CUDA_HOST = 3 };

/* Codes of element types; the width stands beside them. */
enum { DLPACK_INT = 0, DLPACK_UINT = 1, DLPACK_FLOAT = 2, DLPACK_BFLOAT = 4, DLPACK_BOOL = 6 };

typedef struct dlpack_dtype {
    uint8_t code, bits;
    uint16_t lanes; /* elements in a vector; 1 */
} dlpack_dtype;

typedef struct dlpack_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    dlpack_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: contiguous, row-major */
    uint64_t byte_offset; /* of the first element from data */
} dlpack_tensor;

struct DLManagedTensor {
    dlpack_tensor tensor;
    void *manager; /* the lender's own */
    void (*deleter)(struct DLManagedTensor *self); /* called once by who borrowed; may be NULL */
};

#endif
