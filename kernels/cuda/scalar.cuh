/*
 * Scalar mathematics of CUDA: what the expressions of ops.def call, and conversions between element types by the rules of
 * kernels/cpu/convert.h.
 */
#ifndef LUDA_CUDA_SCALAR_H
#define LUDA_CUDA_SCALAR_H

#include "cuda.h"

#include <math.h>
#include <stdint.h>

/* --- Load: to the compute type --- */

template <class T>
INLINE T load(T v)
{
    return v;
}
INLINE float load(__half v)
{
    return __half2float(v);
}
INLINE float load(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}
INLINE uint8_t load(bool v)
{
    return v;
}

/* --- Convert: any compute value to any stored type --- */

/* Inexact values become the neighbour with an odd last bit, so that rounding again is rounding once. */
INLINE float to_odd(double v)
{
    float near = static_cast<float>(v);
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    if (static_cast<double>(near) != v && v == v && !(bits & 1))
        bits += fabs(static_cast<double>(near)) < fabs(v) ? 1u : ~0u;
    memcpy(&near, &bits, sizeof bits);
    return near;
}
INLINE float to_odd(float v)
{
    return v;
}
INLINE float to_odd(int64_t v)
{
    uint64_t magnitude = v < 0 ? 0 - static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
    if (magnitude >> 53)
        magnitude = (magnitude | (magnitude & 0x7FF ? 0x800 : 0)) & ~static_cast<uint64_t>(0x7FF);
    double wide = static_cast<double>(magnitude);
    return to_odd(v < 0 ? -wide : wide);
}
template <class INT>
INLINE float to_odd(INT v)
{
    return to_odd(static_cast<double>(v)); /* exact: at most 32 bits */
}

/* NaN gives 0, the rest saturates. `above` is the first value that does not fit. */
template <class INT, class REAL>
INLINE INT saturate(REAL v)
{
    const bool is_signed = static_cast<INT>(-1) < static_cast<INT>(1);
    const REAL above = static_cast<REAL>(static_cast<uint64_t>(1) << (8 * sizeof(INT) - is_signed - 1)) * 2;
    const REAL low = is_signed ? -above : 0;
    const uint64_t ones = ~static_cast<uint64_t>(0) >> (64 - 8 * sizeof(INT) + is_signed);
    const INT high = static_cast<INT>(ones), least = static_cast<INT>(is_signed ? ~ones : 0);
    if (v >= above)
        return high;
    if (v <= low)
        return least;
    return v == v ? static_cast<INT>(v) : static_cast<INT>(0);
}

template <class T>
struct converter { /* integers */
    INLINE static T from(float v) { return saturate<T>(v); }
    INLINE static T from(double v) { return saturate<T>(v); }
    template <class INT>
    INLINE static T from(INT v) { return static_cast<T>(v); }
};
template <>
struct converter<float> {
    template <class C>
    INLINE static float from(C v) { return static_cast<float>(v); }
};
template <>
struct converter<double> {
    template <class C>
    INLINE static double from(C v) { return static_cast<double>(v); }
};
template <>
struct converter<__half> {
    template <class C>
    INLINE static __half from(C v) { return __float2half_rn(to_odd(v)); }
};
template <>
struct converter<__nv_bfloat16> {
    template <class C>
    INLINE static __nv_bfloat16 from(C v) { return __float2bfloat16_rn(to_odd(v)); }
};
template <>
struct converter<bool> {
    template <class C>
    INLINE static bool from(C v) { return v != 0; }
};

template <class T, class C>
INLINE T to(C v)
{
    return converter<T>::from(v);
}

/* --- The names of ops.def. The toolkit's functions are overloaded by type, so that float stays float. --- */

template <class R>
INLINE R sigmoid(R x)
{
    R e = exp(-fabs(x));
    return (x < 0 ? e : R(1)) / (R(1) + e);
}

/* x / 2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3) */
template <class R>
INLINE R gelu_tanh_sigmoid(R x)
{
    return sigmoid(R(1.59576912160573071176) * x * (R(1) + R(0.044715) * x * x));
}

template <class R>
INLINE R gelu_tanh_slope(R x)
{
    R limit = sizeof(R) == 8 ? R(40) : R(16); /* beyond, the slope is 0 or 1 and the cube might overflow */
    x = x > limit ? limit : x;
    x = x < -limit ? -limit : x;
    R s = gelu_tanh_sigmoid(x);
    return s + x * s * (R(1) - s) * R(1.59576912160573071176) * (R(1) + R(0.134145) * x * x);
}

/* Phi(x) + x phi(x); where the density vanishes its product with x is left out. */
template <class R>
INLINE R gelu_slope(R x)
{
    R density = exp(x * x * R(-0.5)) * R(0.39894228040143267794);
    return R(0.5) * erfc(x * R(-0.70710678118654752440)) + (density == R(0) ? R(0) : x * density);
}

template <class R>
INLINE R silu_slope(R x)
{
    R s = sigmoid(x), product = s * (R(1) - s);
    return s + (product == R(0) ? R(0) : x * product);
}

INLINE float floor_remainder(float x, float y)
{
    float r = fmodf(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
INLINE double floor_remainder(double x, double y)
{
    double r = fmod(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
/* A divisor of 0 is reported by the launcher's kernel. */
template <class INT>
INLINE INT floor_remainder(INT x, INT y)
{
    INT r = y == 0 || y == static_cast<INT>(-1) ? 0 : x % y;
    return r != 0 && (r < 0) != (y < 0) ? static_cast<INT>(r + y) : r;
}
INLINE uint8_t floor_remainder(uint8_t x, uint8_t y)
{
    return y == 0 ? 0 : x % y;
}

INLINE float magnitude(float x)
{
    return fabsf(x);
}
INLINE double magnitude(double x)
{
    return fabs(x);
}
INLINE uint8_t magnitude(uint8_t x)
{
    return x;
}
template <class INT>
INLINE INT magnitude(INT x)
{
    return x < 0 ? static_cast<INT>(-x) : x;
}

INLINE uint8_t sign_of(uint8_t x)
{
    return x != 0;
}
template <class R>
INLINE R sign_of(R x)
{
    return x != x ? x : static_cast<R>((x > 0) - (x < 0));
}

#define SQRT(x) sqrt(x)
#define EXP(x) exp(x)
#define LOG(x) log(x)
#define SIN(x) sin(x)
#define COS(x) cos(x)
#define TANH(x) tanh(x)
#define SIGMOID(x) sigmoid(x)
#define ERF(x) erf(x)
#define GELU(x) (decltype(x)(0.5) * (x) * erfc((x) * decltype(x)(-0.70710678118654752440)))
#define GELU_TANH(x) ((x) * gelu_tanh_sigmoid(x))
#define GELU_SLOPE(x) gelu_slope(x)
#define SILU_SLOPE(x) silu_slope(x)
#define GELU_TANH_SLOPE(x) gelu_tanh_slope(x)
#define POW(x, y) pow(x, y)
#define REMAINDER(x, y) floor_remainder(x, y)
#define ABS(x) magnitude(x)
#define SIGN(x) sign_of(x)
#define RELU(x) ((x) > 0 || (x) != (x) ? (x) : 0)
/* NaN wins; for integers the test for NaN vanishes. */
#define MAXIMUM(x, y) ((x) > (y) || (x) != (x) ? (x) : (y))
#define MINIMUM(x, y) ((x) < (y) || (x) != (x) ? (x) : (y))

#endif
