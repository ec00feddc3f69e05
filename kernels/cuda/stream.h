/*
 * What device.c and the launchers share: a stream with all that belongs to it. luda_call.stream points to one, so that a
 * launcher needs no other way to learn its device.
 */
#ifndef LUDA_CUDA_STREAM_H
#define LUDA_CUDA_STREAM_H

#include "../kernels.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { FAULT_NONE = 0, FAULT_POSITION, FAULT_DIVISOR };

/*
 * The error word of a device, in pinned memory: the first thread that meets bad data fills it, and the next
 * synchronize, which finds all kernels done, reads and clears it.
 */
typedef struct luda_cuda_fault {
    int32_t kind; /* FAULT_...; claimed with atomicCAS */
    int32_t op;
    int64_t position, limit; /* the value met; how many are possible */
    int64_t base;
} luda_cuda_fault;

typedef struct luda_cuda_stream {
    int device;
    cudaStream_t stream;
    luda_cuda_fault *fault; /* of the device */
    /*
     * Host threads may share a stream. The lock is held while several launches that belong together are enqueued: those
     * that hand data over in scratch memory, and calls of cuBLAS.
     */
    pthread_mutex_t lock;
    void *scratch;
    size_t scratch_bytes;
    cublasHandle_t blas; /* made when first needed */
} luda_cuda_stream;

/* Device memory of at least `bytes`, for launches in this stream while the caller holds its lock. NULL: none left. */
void *luda__cuda_scratch(luda_cuda_stream *stream, size_t bytes);
/* NULL with the reason in message (256 bytes at least). The caller holds the lock. */
cublasHandle_t luda__cuda_blas(luda_cuda_stream *stream, char *message);
/* The operator's name. */
const char *luda__cuda_op_name(int32_t op);

extern const luda_kernel_table luda_kernel_table_cuda;
extern const struct luda_optim_kernels luda_optim_kernels_cuda;

#ifdef __cplusplus
}
#endif
#endif
