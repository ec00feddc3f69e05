/*
 * What every CUDA source includes: the device language (or its emulation), element types, shapes for kernels, launching,
 * failing. C++17 without the standard library.
 *
 * A unit is one kernel, template or not, and its launcher. A launcher enqueues in the call's stream and returns; what only
 * the device can see, a bad position, goes to the error word (stream.h).
 */
#ifndef LUDA_CUDA_H
#define LUDA_CUDA_H

#ifdef LUDA_CUDA_EMULATOR
#include "cuda_emulator.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define LUDA_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                    \
    kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
#define LUDA_DYN_SHARED(type, name)                                                                                    \
    extern __shared__ __align__(16) unsigned char luda_dynamic_shared[];                                               \
    type *name = reinterpret_cast<type *>(luda_dynamic_shared)
#endif
#define LUDA_SHARED __host__ __device__ static inline
#define INLINE __host__ __device__ __forceinline__
#ifdef LUDA_CUDA_EMULATOR
#undef INLINE
#define INLINE inline
#endif

#include "stream.h"

#define LUDA_ISA cuda
#include "kernels/names.h"

#include <stdlib.h>
#include <string.h>

/* --- Element types: stored_f16 is __half, compute_f16 is float --- */

template <int DTYPE, class STORED>
struct stored_as {
    typedef STORED type;
};
template <class STORED>
struct stored_as<LUDA_F16, STORED> {
    typedef __half type;
};
template <class STORED>
struct stored_as<LUDA_BF16, STORED> {
    typedef __nv_bfloat16 type;
};
template <class STORED>
struct stored_as<LUDA_BOOL, STORED> {
    typedef bool type;
};
#define LUDA_DTYPE(suffix, NAME, stored, compute, ...)                                                                 \
    typedef stored_as<LUDA_##NAME, stored>::type stored_##suffix;                                                      \
    typedef compute compute_##suffix;
#include "../dtypes.def"

template <class STORED>
struct computed_as {
    typedef STORED type;
};
template <>
struct computed_as<__half> {
    typedef float type;
};
template <>
struct computed_as<__nv_bfloat16> {
    typedef float type;
};
template <>
struct computed_as<bool> {
    typedef uint8_t type;
};

/* The unsigned type of a size, for kernels that only move elements. */
template <int SIZE>
struct bytes_of;
template <>
struct bytes_of<1> {
    typedef uint8_t type;
};
template <>
struct bytes_of<2> {
    typedef uint16_t type;
};
template <>
struct bytes_of<4> {
    typedef uint32_t type;
};
template <>
struct bytes_of<8> {
    typedef uint64_t type;
};

/* --- Failing --- */

static inline const char *op_name(const luda_call *call)
{
    return luda__cuda_op_name(call->op);
}

/* After every launch. */
static inline luda_status launched(const luda_call *call)
{
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? LUDA_OK : fail(call, LUDA_ECUDA, "%s: %s", op_name(call), cudaGetErrorString(error));
}

/* The call's stream, with its device selected in this thread; NULL with the reason written. */
static inline luda_cuda_stream *stream_of(const luda_call *call)
{
    luda_cuda_stream *s = static_cast<luda_cuda_stream *>(call->stream);
    cudaError_t error = s ? cudaSetDevice(s->device) : cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess)
        return s;
    fail(call, LUDA_ECUDA, "%s: %s", op_name(call), cudaGetErrorString(error));
    return NULL;
}

/* A bad value met on the device. `op` is an operator's number. */
static __device__ inline void report(luda_cuda_fault *fault, int kind, int op, int64_t position, int64_t limit, int64_t base)
{
    if (atomicCAS(&fault->kind, FAULT_NONE, kind) != FAULT_NONE)
        return;
    fault->op = op;
    fault->position = position;
    fault->limit = limit;
    fault->base = base;
}

/* --- Shapes for kernels: an index space that N operands walk through with strides of their own --- */

template <int N>
struct space {
    int ndim;
    int64_t numel;
    int64_t shape[LUDA_MAX_DIMS];
    int64_t stride[N][LUDA_MAX_DIMS];

    /* Appends a dimension; sizes of 1 are left out and one that continues the last for all operands joins it. */
    void add(int64_t size, const int64_t *strides)
    {
        numel *= size;
        if (size == 1)
            return;
        bool joins = ndim > 0;
        for (int o = 0; joins && o < N; o++)
            joins = stride[o][ndim - 1] == strides[o] * size;
        if (joins)
            shape[ndim - 1] *= size;
        else
            shape[ndim++] = size;
        for (int o = 0; o < N; o++)
            stride[o][ndim - 1] = strides[o];
    }

    /* Offsets, in elements, of element `index` (row-major) in every operand. */
    INLINE void locate(int64_t index, int64_t *at) const
    {
        for (int o = 0; o < N; o++)
            at[o] = ndim == 1 ? index * stride[o][0] : 0;
        if (ndim < 2)
            return;
        if (numel <= 0xFFFFFFFFll)
            split(static_cast<uint32_t>(index), at); /* a device divides 64 bits slowly */
        else
            split(static_cast<uint64_t>(index), at);
    }

    template <class INDEX>
    INLINE void split(INDEX index, int64_t *at) const
    {
        for (int d = ndim - 1; d >= 0; d--) {
            INDEX size = static_cast<INDEX>(shape[d]), rest = index / size;
            for (int o = 0; o < N; o++)
                at[o] += static_cast<int64_t>(index - rest * size) * stride[o][d];
            index = rest;
        }
    }
};

static inline int64_t distance(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

static inline int64_t broadcast_stride(const luda_operand *x, const luda_operand *out, int d)
{
    int at = d - (out->ndim - x->ndim);
    return at < 0 || (x->shape[at] == 1 && out->shape[d] != 1) ? 0 : x->stride[at];
}

/* Bytes of an element. */
static inline size_t item_size(int32_t dtype)
{
    static const size_t size[LUDA_DTYPE_COUNT] = {
#define LUDA_DTYPE(suffix, NAME, stored, ...) sizeof(stored),
#include "../dtypes.def"
    };
    return size[dtype];
}

/* The output's shape; the others broadcast to it. */
template <int N>
space<N> common_space(const luda_operand *const (&operands)[N])
{
    space<N> s = {};
    s.numel = 1;
    for (int d = 0; d < operands[0]->ndim; d++) {
        int64_t stride[N];
        for (int o = 0; o < N; o++)
            stride[o] = broadcast_stride(operands[o], operands[0], d);
        s.add(operands[0]->shape[d], stride);
    }
    return s;
}

/* --- Launching over elements: each thread takes every step()-th element --- */

enum { BLOCK = 256, ELEMENTS_A_THREAD = 4 };

static inline unsigned blocks_for(int64_t elements)
{
    const int64_t most = 1 << 20;
    int64_t blocks = (elements + BLOCK * ELEMENTS_A_THREAD - 1) / (BLOCK * ELEMENTS_A_THREAD);
    return static_cast<unsigned>(blocks < most ? blocks : most);
}

static __device__ inline int64_t first_element()
{
    return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

static __device__ inline int64_t step()
{
    return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

#endif
