// emulator_test.cu: kernels for the emulator's own test, some with planted faults. Compiled by nvcc
// (to show that it can be) and as C++ with cuda_emulator.h.
#ifdef LUDA_CUDA_EMULATOR
#include "cuda_emulator.h"
#else
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define LUDA_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
#define LUDA_DYN_SHARED(type, name)                                      \
    extern __shared__ __align__(16) unsigned char luda_dynamic_shared[]; \
    type *name = reinterpret_cast<type *>(luda_dynamic_shared)
#endif
#include "emulator_test.h"

__global__ void axpy(int n, float a, const float *__restrict__ x, float *__restrict__ y)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] += a * __ldg(x + i);
}

__global__ void fill(int *out, int n, int value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = value;
}

__device__ float warp_sum(float v)
{
    for (int d = warpSize / 2; d > 0; d /= 2)
        v += __shfl_down_sync(0xffffffffu, v, d);
    return v;
}

template <test_fault fault>
__global__ void __launch_bounds__(1024) sum(const float *x, int n, float *out)
{
    LUDA_DYN_SHARED(float, part);
    __shared__ float total;
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        v += x[i];
    part[threadIdx.x] = v;
    if (fault == FAULT_DEADLOCK && threadIdx.x % 32 < 16)
        __syncthreads();
    if (fault == FAULT_DIVERGENT && threadIdx.x % 2)
        __syncthreads();
    else if (fault != FAULT_NO_BARRIER && fault != FAULT_DEADLOCK)
        __syncthreads();
    for (unsigned half = blockDim.x / 2; half >= 32; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        for (int d = 16; fault == FAULT_LOCKSTEP && d > 0; d /= 2)
            part[threadIdx.x] += part[threadIdx.x + d];
        v = fault == FAULT_LOCKSTEP ? part[threadIdx.x] : warp_sum(part[threadIdx.x]);
        if (threadIdx.x == 0)
            total = v;
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1)
        atomicAdd(out, total);
}

__global__ void warp(int *out)
{
    int lane = threadIdx.x % 32, *o = out + threadIdx.x * 8;
    unsigned all = threadIdx.x < 32 ? 0xffffffffu : 0xffu;
    o[0] = __shfl_sync(all, lane, 3);
    o[1] = __shfl_up_sync(all, lane, 2, 8);
    o[2] = __shfl_down_sync(all, lane, 1, 8);
    o[3] = __shfl_xor_sync(all, lane, 1);
    o[4] = static_cast<int>(__ballot_sync(all, lane & 1));
    o[5] = __any_sync(all, lane == 5) * 2 + __all_sync(all, lane < 8);
    o[6] = __syncthreads_count(lane == 0);
    if (lane % 2)
        o[7] = __shfl_sync(0xaaaaaaaau & all, lane, 1);
    else
        o[7] = __shfl_sync(0x55555555u & all, lane, 2);
    __syncwarp(all);
}

__global__ void atomics(atomic_results *r, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    atomicAdd(&r->f, 1);
    atomicAdd(&r->d, 0.5);
    atomicAdd(&r->i, -1);
    atomicAdd(&r->u64, 1ull << 32);
    atomicMax(&r->most, i);
    atomicMin(&r->least, -i);
    atomicOr(&r->bits, 1u << i % 32);
    atomicExch(&r->last, 7u);
    unsigned seen = 0, old;   // a plain read of r->cas would be a race
    while ((old = atomicCAS(&r->cas, seen, seen + 2)) != seen)
        seen = old;
}

__global__ void half_round_trip(const float *x, float *out, int n)
{
    int i = threadIdx.x;
    if (i < n)
        out[i] = __half2float(__float2half(x[i])) + __bfloat162float(__float2bfloat16(x[i])) +
                 __expf(0.0f) + rsqrtf(4.0f) + static_cast<float>(max(i, 1));
}

__global__ void nothing() {}

template <class T, int value>
__global__ void overrun(T *x, int index)
{
    x[index] = value;
}

void test_axpy(int n, float a, const float *x, float *y, cudaStream_t s)
{
    LUDA_LAUNCH(axpy, 3, 64, 0, s, n, a, x, y);
}

void test_fill(int *out, int n, int value, cudaStream_t s)
{
    LUDA_LAUNCH(fill, (n + 63) / 64, 64, 0, s, out, n, value);
}

void test_sum(const float *x, int n, float *out, int block, test_fault fault, cudaStream_t s)
{
    void (*kernel)(const float *, int, float *) =
        fault == FAULT_NO_BARRIER ? sum<FAULT_NO_BARRIER> :
        fault == FAULT_DIVERGENT ? sum<FAULT_DIVERGENT> :
        fault == FAULT_DEADLOCK ? sum<FAULT_DEADLOCK> :
        fault == FAULT_LOCKSTEP ? sum<FAULT_LOCKSTEP> : sum<FAULT_NONE>;
    LUDA_LAUNCH(kernel, 2, block, block * sizeof(float), s, x, n, out);
}

void test_warp(int *out, cudaStream_t s) { LUDA_LAUNCH(warp, 1, 40, 0, s, out); }

void test_atomics(atomic_results *out, int n, cudaStream_t s)
{
    LUDA_LAUNCH(atomics, (n + 127) / 128, 128, 0, s, out, n);
}

void test_half(const float *x, float *out, int n, cudaStream_t s)
{
    LUDA_LAUNCH(half_round_trip, 1, n, 0, s, x, out, n);
}

void test_limits(int block, int shared_bytes, int grid, cudaStream_t s)
{
    LUDA_LAUNCH(nothing, grid, block, shared_bytes, s);
}

void test_raise_shared(int bytes)
{
    cudaFuncSetAttribute(reinterpret_cast<const void *>(nothing),
                         cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

void test_overrun(float *x, int index, cudaStream_t s)
{
    LUDA_LAUNCH((overrun<float, 1>), 1, 1, 0, s, x, index);
}
