/* cuda_emulator.h: lets g++ compile the project's CUDA kernels as host C++.
 *
 * Test equipment; it never defines behaviour. It includes the toolkit's own headers, so that the
 * types are the real ones, and replaces the device language only. Outside stay inline PTX,
 * tensor-core instructions and memory ordering between blocks (blocks run one after another).
 * Device memory and dynamic shared memory start as NaN; a static __shared__ array holds what the
 * block before left in it.
 *
 * Kernels follow two conventions, defined here for g++. kernels/cuda/cuda.h holds the other side:
 *
 *   #ifdef LUDA_CUDA_EMULATOR
 *   #include "cuda_emulator.h"
 *   #else
 *   #include <cuda_runtime.h>
 *   #include <cuda_fp16.h>
 *   #include <cuda_bf16.h>
 *   #define LUDA_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
 *       kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
 *   #define LUDA_DYN_SHARED(type, name)                                      \
 *       extern __shared__ __align__(16) unsigned char luda_dynamic_shared[]; \
 *       type *name = reinterpret_cast<type *>(luda_dynamic_shared)
 *   #endif
 *
 * A template kernel is launched in parentheses: LUDA_LAUNCH((scale<float, 4>), grid, ...). A
 * launch's error is read with cudaGetLastError, as on the device.
 */
#pragma once

#ifdef __CUDACC__
#error "cuda_emulator.h is for host compilers; nvcc compiles the kernels as they are"
#endif
#ifndef LUDA_CUDA_EMULATOR
#define LUDA_CUDA_EMULATOR 1
#endif

#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <device_launch_parameters.h>
#include <functional>
#include <math.h>
#include <stdint.h>
#include <type_traits>
#include <vector>

namespace emu {

struct Geometry {
    uint3 block;
    dim3 block_dim, grid_dim;
    unsigned char *shared;
};
extern Geometry geometry;
extern const uint3 *thread_index;

int barrier(bool predicate, const char *file, int line);   /* gives how many predicates were true */

/* A shuffle gives the source lane's bits, a vote the ballot. */
enum class Exchange : unsigned char { shuffle, vote, sync };
uint64_t exchange(Exchange kind, unsigned mask, uint64_t bits, unsigned source, const char *file,
                  int line);
unsigned lane();
unsigned live_lanes();

/* --- launches --- */

struct Launch {
    const char *name;
    const void *function;
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};
void launch(const Launch &settings, const std::vector<const void *> &pointers,
            std::function<void()> body);

/* Parameters are converted at the call and kept by value, as a device launch does. Pointers among
 * them are listed apart: a host pointer would work here and fail on a device. */
template <class... P>
struct Launcher {
    Launch settings;
    void (*kernel)(P...);

    void operator()(P... arguments) const
    {
        std::vector<const void *> pointers;
        (collect(pointers, arguments), ...);
        launch(settings, pointers, [k = kernel, arguments...] { k(arguments...); });
    }

    template <class T>
    static void collect(std::vector<const void *> &pointers, const T &argument)
    {
        if constexpr (std::is_pointer_v<T>)
            pointers.push_back(const_cast<const void *>(
                static_cast<const volatile void *>(argument)));
        else
            (void)pointers, (void)argument;
    }
};

template <class... P>
Launcher<P...> launcher(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                        size_t shared, cudaStream_t stream)
{
    const void *function = reinterpret_cast<const void *>(kernel);
    return {{name, function, grid, block, shared, stream}, kernel};
}

/* --- for the functions below --- */

template <class T, class... Allowed>
inline constexpr bool one_of = (std::is_same_v<T, Allowed> || ...);
template <class T>
inline constexpr bool is_word = one_of<T, int, unsigned, unsigned long long>;
template <class T>
using Same = typename std::enable_if<true, T>::type;   /* not deduced: literals convert */

template <class To, class From>
To bit_cast(From from)
{
    static_assert(std::is_trivially_copyable_v<From> && sizeof(From) <= sizeof(To), "too large");
    To to{};
    __builtin_memcpy(&to, &from, sizeof from);
    return to;
}

template <class T>
T shuffle(unsigned mask, T value, unsigned source, const char *file, int line)
{
    uint64_t bits = bit_cast<uint64_t>(value);
    bits = exchange(Exchange::shuffle, mask, bits, source, file, line);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

/* Real atomics, so that ThreadSanitizer sees them as such. */
template <class T, class F>
T atomic_update(T *address, F change)
{
    T old, next;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do
        next = change(old);
    while (!__atomic_compare_exchange(address, &old, &next, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED));
    return old;
}

template <class T>
T wrapping_add(T a, T b)
{
    T sum;
    if constexpr (std::is_integral_v<T>)
        (void)__builtin_add_overflow(a, b, &sum);
    else
        sum = a + b;
    return sum;
}

}  // namespace emu

/* --- language --- */

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)
#define __shared__ static thread_local   /* one block at a time, on the thread that synchronises */

#define threadIdx (*::emu::thread_index)
#define blockIdx (::emu::geometry.block)
#define blockDim (::emu::geometry.block_dim)
#define gridDim (::emu::geometry.grid_dim)

#define LUDA_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    ::emu::launcher(#kernel, kernel, (grid), (block), (shared_bytes), (stream))(__VA_ARGS__)
#define LUDA_DYN_SHARED(type, name) type *name = reinterpret_cast<type *>(::emu::geometry.shared)

/* --- barriers, shuffles, votes --- */

#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMU_HERE) { ::emu::barrier(false, file, line); }
inline int __syncthreads_count(int p, EMU_HERE) { return ::emu::barrier(p, file, line); }
inline int __syncthreads_or(int p, EMU_HERE) { return ::emu::barrier(p, file, line) > 0; }
inline int __syncthreads_and(int p, EMU_HERE) { return ::emu::barrier(!p, file, line) == 0; }

inline void __syncwarp(unsigned mask = ~0u, EMU_HERE)
{
    ::emu::exchange(::emu::Exchange::sync, mask, 0, 0, file, line);
}

/* Fences order nothing here: blocks run one after another. */
inline void __threadfence() {}
inline void __threadfence_block() {}

/* Sources outside the segment give the lane's own value, those that take no part 0xFF bytes. */
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMU_HERE)
{
    unsigned inside = static_cast<unsigned>(width) - 1, s = static_cast<unsigned>(source);
    return ::emu::shuffle(mask, value, (::emu::lane() & ~inside) | (s & inside), file, line);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_HERE)
{
    unsigned me = ::emu::lane(), inside = me & (static_cast<unsigned>(width) - 1);
    return ::emu::shuffle(mask, value, inside >= delta ? me - delta : me, file, line);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_HERE)
{
    unsigned me = ::emu::lane(), w = static_cast<unsigned>(width);
    return ::emu::shuffle(mask, value, (me & (w - 1)) + delta < w ? me + delta : me, file, line);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMU_HERE)
{
    unsigned me = ::emu::lane(), source = me ^ static_cast<unsigned>(lane_mask);
    unsigned last = me | (static_cast<unsigned>(width) - 1);
    return ::emu::shuffle(mask, value, source <= last ? source : me, file, line);
}

inline unsigned __ballot_sync(unsigned mask, int p, EMU_HERE)
{
    return static_cast<unsigned>(
        ::emu::exchange(::emu::Exchange::vote, mask, p != 0, 0, file, line));
}

inline int __any_sync(unsigned m, int p, EMU_HERE) { return __ballot_sync(m, p, file, line) != 0; }
inline int __all_sync(unsigned m, int p, EMU_HERE) { return !__ballot_sync(m, !p, file, line); }
inline unsigned __activemask() { return ::emu::live_lanes(); }   /* assumes a converged warp */

#undef EMU_HERE

/* --- atomics: the types that the device has, no others --- */

#define EMU_ATOMIC(name, allowed, result)                              \
    template <class T>                                                 \
    T name(T *address, ::emu::Same<T> v)                               \
    {                                                                  \
        static_assert(allowed, #name ": the device has no such type"); \
        auto change = [v]([[maybe_unused]] T old) { return T(result); }; \
        return ::emu::atomic_update(address, change);                  \
    }
EMU_ATOMIC(atomicAdd, (::emu::is_word<T> || ::emu::one_of<T, float, double>),
           ::emu::wrapping_add(old, v))
EMU_ATOMIC(atomicSub, (::emu::one_of<T, int, unsigned>), unsigned(old) - unsigned(v))
EMU_ATOMIC(atomicExch, (::emu::is_word<T> || ::emu::one_of<T, float>), v)
EMU_ATOMIC(atomicMax, (::emu::is_word<T> || ::emu::one_of<T, long long>), old < v ? v : old)
EMU_ATOMIC(atomicMin, (::emu::is_word<T> || ::emu::one_of<T, long long>), v < old ? v : old)
EMU_ATOMIC(atomicOr, ::emu::is_word<T>, old | v)
EMU_ATOMIC(atomicAnd, ::emu::is_word<T>, old & v)
EMU_ATOMIC(atomicXor, ::emu::is_word<T>, old ^ v)
EMU_ATOMIC(atomicInc, (::emu::one_of<T, unsigned>), old >= v ? 0 : old + 1)
#undef EMU_ATOMIC

template <class T>
T atomicCAS(T *address, ::emu::Same<T> compare, ::emu::Same<T> value)
{
    static_assert(::emu::is_word<T> || ::emu::one_of<T, unsigned short>, "atomicCAS: no such type");
    __atomic_compare_exchange(address, &compare, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compare;
}

/* --- intrinsics --- */

/* Macros, because glibc declares functions of these names. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf((x), (y))
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)

inline int __float_as_int(float x) { return ::emu::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return ::emu::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return ::emu::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return ::emu::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return ::emu::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return ::emu::bit_cast<double>(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline int __float2int_rn(float x) { return static_cast<int>(rintf(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned(uint64_t(x) * y >> 32); }

template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldcs(const T *p) { return *p; }
template <class T> void __stcs(T *p, ::emu::Same<T> v) { *p = v; }

#define EMU_MIN_MAX(T)                               \
    inline T min(T a, T b) { return b < a ? b : a; } \
    inline T max(T a, T b) { return a < b ? b : a; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
