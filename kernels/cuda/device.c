/*
 * The CUDA device behind luda_device_ops: devices, memory, copies, streams and events. The plug-in's one exported symbol is
 * luda_plugin_open_device; it links no other part of LUDA.
 *
 * Everything runs in LUDA's own streams, which never wait for CUDA's default stream.
 */
#include "../../runtime/core/core.h"
#include "../optim.h"
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 16, MESSAGE = 256 };

static int device_count;
static luda_cuda_stream *defaults[MAX_DEVICES];
static luda_cuda_fault *faults[MAX_DEVICES];
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local luda_cuda_stream *current[MAX_DEVICES]; /* NULL: the device's default stream */

static const char *const op_names[LUDA_OP_COUNT] = {
#define LUDA_OP(name, ...) #name,
#include "../ops.def"
};

const char *luda__cuda_op_name(int32_t op)
{
    return op_names[op];
}

/* Turns an error into a status; a failure that does not stick is cleared, so that nobody else is blamed for it. */
static luda_status checked(cudaError_t error, const char *what, char *message)
{
    if (error == cudaSuccess)
        return LUDA_OK;
    cudaGetLastError();
    snprintf(message, MESSAGE, "%s: %s", what, cudaGetErrorString(error));
    return error == cudaErrorMemoryAllocation ? LUDA_ENOMEM : LUDA_ECUDA;
}

static bool succeeded(cudaError_t error)
{
    if (error != cudaSuccess)
        cudaGetLastError();
    return error == cudaSuccess;
}

/* --- Streams --- */

static void destroy_stream(luda_cuda_stream *s)
{
    cudaSetDevice(s->device);
    if (s->stream) {
        cudaStreamSynchronize(s->stream);
        cudaStreamDestroy(s->stream);
    }
    if (s->blas)
        cublasDestroy(s->blas);
    cudaFree(s->scratch);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* The error word is made with the device's first stream; the caller holds devices_lock. */
static luda_cuda_fault *fault_of(int index)
{
    if (!faults[index] && succeeded(cudaHostAlloc((void **)&faults[index], sizeof **faults, cudaHostAllocPortable)))
        memset(faults[index], 0, sizeof **faults);
    return faults[index];
}

static luda_cuda_stream *make_stream(int index)
{
    luda_cuda_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->device = index;
    pthread_mutex_init(&s->lock, NULL);
    if (!succeeded(cudaSetDevice(index)) || !(s->fault = fault_of(index)) ||
        !succeeded(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking))) {
        destroy_stream(s);
        return NULL;
    }
    return s;
}

static void *cuda_stream_new(int index)
{
    pthread_mutex_lock(&devices_lock);
    luda_cuda_stream *s = make_stream(index);
    pthread_mutex_unlock(&devices_lock);
    return s;
}

static void cuda_stream_release(int index, void *stream)
{
    if (current[index] == stream)
        current[index] = NULL;
    if (stream)
        destroy_stream(stream);
}

static void cuda_stream_use(int index, void *stream)
{
    current[index] = stream;
}

static luda_cuda_stream *default_stream(int index)
{
    pthread_mutex_lock(&devices_lock);
    if (!defaults[index])
        defaults[index] = make_stream(index);
    luda_cuda_stream *s = defaults[index];
    pthread_mutex_unlock(&devices_lock);
    return s;
}

static void *cuda_stream_current(int index)
{
    return current[index] ? current[index] : default_stream(index);
}

/* The current stream, with its device selected in the calling thread; NULL with the reason in message. */
static luda_cuda_stream *select_stream(int index, const char *what, char *message)
{
    luda_cuda_stream *s = cuda_stream_current(index);
    if (!s)
        snprintf(message, MESSAGE, "%s: the CUDA driver gives no stream on cuda:%d", what, index);
    else if (checked(cudaSetDevice(index), what, message) != LUDA_OK)
        return NULL;
    return s;
}

void *luda__cuda_scratch(luda_cuda_stream *stream, size_t bytes)
{
    if (bytes <= stream->scratch_bytes)
        return stream->scratch;
    void *larger = NULL;
    if (!succeeded(cudaMalloc(&larger, bytes)))
        return NULL;
    cudaFree(stream->scratch); /* waits for launches that still use it */
    stream->scratch = larger;
    stream->scratch_bytes = bytes;
    return larger;
}

/*
 * The handle of a stream is used in that stream only, so that products repeat bit for bit. Halves add up in float: partial
 * sums are not rounded to halves.
 */
cublasHandle_t luda__cuda_blas(luda_cuda_stream *stream, char *message)
{
    if (stream->blas)
        return stream->blas;
    cublasHandle_t handle = NULL;
    cublasStatus_t status = cublasCreate(&handle);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasSetStream(handle, stream->stream);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    if (status == CUBLAS_STATUS_SUCCESS)
        return stream->blas = handle;
    snprintf(message, MESSAGE, "cuBLAS: %s", cublasGetStatusString(status));
    if (handle)
        cublasDestroy(handle);
    return NULL;
}

/* --- Events --- */

static void *cuda_event_record(int index)
{
    char unused[MESSAGE];
    cudaEvent_t event = NULL;
    luda_cuda_stream *s = select_stream(index, "event", unused);
    if (!s || !succeeded(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)))
        return NULL;
    if (succeeded(cudaEventRecord(event, s->stream)))
        return event;
    cudaEventDestroy(event);
    return NULL;
}

static luda_status cuda_event_wait(int index, void *event, char *message)
{
    luda_cuda_stream *s = select_stream(index, "event_wait", message);
    return s ? checked(cudaStreamWaitEvent(s->stream, event, 0), "event_wait", message) : LUDA_ECUDA;
}

/* An event that met an error counts as done: synchronize reports the error. */
static int cuda_event_done(int index, void *event)
{
    cudaError_t error = cudaEventQuery(event);
    return succeeded(error) || error != cudaErrorNotReady;
}

static void cuda_event_release(int index, void *event)
{
    if (event)
        cudaEventDestroy(event);
}

/* --- Faults --- */

static luda_status describe(const luda_cuda_fault *f, char *message)
{
    const char *op = luda__cuda_op_name(f->op);
    if (f->kind == FAULT_DIVISOR) {
        snprintf(message, MESSAGE, "%s: division of integers by zero", op);
        return LUDA_EINVAL;
    }
    if (f->limit == 0)
        snprintf(message, MESSAGE, "%s: position %lld of an empty dimension (base %lld)", op, (long long)f->position,
                 (long long)f->base);
    else
        snprintf(message, MESSAGE, "%s: position %lld is outside %lld .. %lld (base %lld)%s", op, (long long)f->position,
                 (long long)f->base, (long long)(f->base + f->limit - 1), (long long)f->base,
                 f->position == 0 && f->base == 1 ? "; are these 0-based positions? pass base = 0" : "");
    return LUDA_EINDEX;
}

/* What a kernel has reported since the last look, once. */
static luda_status take_fault(int index, char *message)
{
    luda_status status = LUDA_OK;
    pthread_mutex_lock(&devices_lock);
    luda_cuda_fault *fault = faults[index];
    if (fault && fault->kind != FAULT_NONE) {
        status = describe(fault, message);
        memset(fault, 0, sizeof *fault);
    }
    pthread_mutex_unlock(&devices_lock);
    return status;
}

/* --- Memory --- */

static void *cuda_allocate(int index, size_t bytes)
{
    void *memory = NULL;
    if (!succeeded(cudaSetDevice(index)) || !succeeded(cudaMalloc(&memory, bytes > 0 ? bytes : 1)))
        return NULL;
    return memory;
}

static void cuda_free(int index, void *memory, size_t bytes)
{
    if (succeeded(cudaSetDevice(index)))
        succeeded(cudaFree(memory));
}

static void cuda_memory(int index, int64_t *total, int64_t *available)
{
    size_t free_bytes = 0, all = 0;
    if (succeeded(cudaSetDevice(index)))
        succeeded(cudaMemGetInfo(&free_bytes, &all));
    *total = (int64_t)all;
    *available = (int64_t)free_bytes;
}

/* The current stream of `index` waits for all that `other` has been given. */
static luda_status wait_for_device(int index, int other, char *message)
{
    void *event = cuda_event_record(other);
    if (!event) {
        snprintf(message, MESSAGE, "copy: the CUDA driver gives no event on cuda:%d", other);
        return LUDA_ECUDA;
    }
    luda_status status = cuda_event_wait(index, event, message);
    cudaEventDestroy(event); /* CUDA keeps what waiting needs */
    return status;
}

static luda_status copy_between(int to, void *target, int from, const void *source, size_t bytes, char *message)
{
    LUDA_TRY(wait_for_device(from, to, message));
    luda_cuda_stream *s = select_stream(from, "copy", message);
    if (!s)
        return LUDA_ECUDA;
    LUDA_TRY(checked(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, s->stream), "copy", message));
    return wait_for_device(to, from, message);
}

/* Pageable host memory is read before the call returns; pinned memory must stay as it is until the stream is there. */
static luda_status cuda_copy(luda_device to, void *target, luda_device from, const void *source, size_t bytes, char *message)
{
    bool to_device = to.type == LUDA_CUDA, from_device = from.type == LUDA_CUDA;
    if (bytes == 0)
        return LUDA_OK;
    if (to_device && from_device && to.index != from.index)
        return copy_between(to.index, target, from.index, source, bytes, message);
    luda_cuda_stream *s = select_stream(to_device ? to.index : from.index, "copy", message);
    enum cudaMemcpyKind kind = !from_device ? cudaMemcpyHostToDevice : to_device ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost;
    if (!s)
        return LUDA_ECUDA;
    LUDA_TRY(checked(cudaMemcpyAsync(target, source, bytes, kind, s->stream), "copy", message));
    if (to_device)
        return LUDA_OK;
    LUDA_TRY(checked(cudaStreamSynchronize(s->stream), "copy", message));
    return take_fault(from.index, message);
}

static luda_status cuda_fill(int index, void *target, int byte, size_t bytes, char *message)
{
    luda_cuda_stream *s = select_stream(index, "fill", message);
    if (!s)
        return LUDA_ECUDA;
    return bytes > 0 ? checked(cudaMemsetAsync(target, byte, bytes, s->stream), "fill", message) : LUDA_OK;
}

/* --- Synchronising --- */

static luda_status cuda_synchronize(int index, char *message)
{
    luda_status status = checked(cudaSetDevice(index), "synchronize", message);
    if (status == LUDA_OK)
        status = checked(cudaDeviceSynchronize(), "synchronize", message);
    return status == LUDA_OK ? take_fault(index, message) : status;
}

/* --- The table --- */

static int cuda_count(void)
{
    return device_count;
}

static const luda_kernel_table *cuda_kernels(int index)
{
    return &luda_kernel_table_cuda;
}

static const luda_optim_kernels *cuda_optim(int index)
{
    return &luda_optim_kernels_cuda;
}

static const luda_device_ops cuda_device = {
    .abi = LUDA_DEVICE_ABI,
    .name = "cuda",
    .count = cuda_count,
    .allocate = cuda_allocate,
    .free = cuda_free,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .synchronize = cuda_synchronize,
    .stream_new = cuda_stream_new,
    .stream_release = cuda_stream_release,
    .stream_use = cuda_stream_use,
    .stream_current = cuda_stream_current,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_done = cuda_event_done,
    .event_release = cuda_event_release,
    .memory = cuda_memory,
    .kernels = cuda_kernels,
    .optim = cuda_optim,
};

LUDA_API const luda_device_ops *luda_plugin_open_device(uint32_t abi, char *message, size_t size);

const luda_device_ops *luda_plugin_open_device(uint32_t abi, char *message, size_t size)
{
    int count = 0;
    if (abi != LUDA_DEVICE_ABI) {
        snprintf(message, size, "cuda: the plug-in has interface %d, the library %u; build both from one source", LUDA_DEVICE_ABI,
                 abi);
        return NULL;
    }
    cudaError_t error = cudaGetDeviceCount(&count);
    if (!succeeded(error)) {
        snprintf(message, size, "cuda: %s", cudaGetErrorString(error));
        return NULL;
    }
    device_count = count < MAX_DEVICES ? count : MAX_DEVICES;
    return &cuda_device;
}
