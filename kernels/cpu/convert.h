/*
 * Element types of the CPU: what is stored, what is computed in, and every conversion.
 *
 * Floats to integers: NaN gives 0, the rest saturates. Integers to integers wrap. Anything to bool is != 0. Floats to
 * halves round once, to nearest even, also from double and int64 (through a float rounded to odd, which keeps the
 * sticky bit); NaN stays NaN, quiet.
 */
#ifndef LUDA_CONVERT_H
#define LUDA_CONVERT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Inlined whatever its size, so that loops vectorise. */
#define INLINE static inline __attribute__((always_inline))

#define LUDA_DTYPE(suffix, NAME, stored, compute, ...)                                                                 \
    typedef stored stored_##suffix;                                                                                    \
    typedef compute compute_##suffix;
#include "kernels/dtypes.def"

INLINE float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* --- Halves --- */

INLINE float load_bf16(uint16_t v)
{
    return float_from_bits((uint32_t)v << 16);
}

INLINE uint16_t store_bf16(float v)
{
    uint32_t bits = float_bits(v);
    uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
    uint32_t nan = (bits >> 16 & 0x8000u) | 0x7FC0u;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

INLINE float load_f16(uint16_t v)
{
    uint32_t magnitude = (uint32_t)(v & 0x7FFF) << 13;
    /* The exponent's bias differs by 112; the product is exact and renormalises subnormal numbers. */
    uint32_t bits = float_bits(float_from_bits(magnitude) * 0x1p112f);
    bits = magnitude >= 0x0F800000u ? magnitude | 0x7F800000u : bits;
    return float_from_bits(bits | (uint32_t)(v & 0x8000) << 16);
}

INLINE uint16_t store_f16(float v)
{
    uint32_t bits = float_bits(v), magnitude = bits & 0x7FFFFFFFu;
    uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + (magnitude >> 13 & 1)) >> 13;
    /* Added to 0.5, whose unit in the last place is half's smallest number, the sum rounds as wanted. */
    uint32_t subnormal = float_bits(float_from_bits(magnitude) + 0.5f) - 0x3F000000u;
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x477FF000u ? 0x7C00u : half;
    half = magnitude > 0x7F800000u ? 0x7E00u : half;
    return (uint16_t)(half | (bits >> 16 & 0x8000u));
}

/* Inexact values become the neighbour with an odd last bit, so that rounding again is rounding once. */
INLINE float float_to_odd(double v)
{
    float near = (float)v;
    uint32_t bits = float_bits(near);
    if ((double)near != v && v == v && !(bits & 1))
        bits += fabs((double)near) < fabs(v) ? 1 : -1u;
    return float_from_bits(bits);
}

INLINE double double_to_odd(int64_t v)
{
    uint64_t magnitude = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    if (magnitude >> 53)
        magnitude = (magnitude | ((magnitude & 0x7FF) ? 0x800 : 0)) & ~(uint64_t)0x7FF;
    return v < 0 ? -(double)magnitude : (double)magnitude;
}

INLINE uint16_t bf16_of_double(double v)
{
    return store_bf16(float_to_odd(v));
}

INLINE uint16_t bf16_of_i64(int64_t v)
{
    return bf16_of_double(double_to_odd(v));
}

INLINE uint16_t f16_of_double(double v)
{
    return store_f16(float_to_odd(v));
}

INLINE uint16_t f16_of_i64(int64_t v)
{
    return f16_of_double(double_to_odd(v));
}

/* --- Load and store: T to C and back --- */

#define load_f64(v) (v)
#define load_f32(v) (v)
#define load_i64(v) (v)
#define load_i32(v) (v)
#define load_i16(v) (v)
#define load_i8(v) (v)
#define load_u8(v) (v)
#define load_bool(v) (v)
#define store_f64(v) (v)
#define store_f32(v) (v)
#define store_i64(v) (v)
#define store_i32(v) (v)
#define store_i16(v) ((int16_t)(v))
#define store_i8(v) ((int8_t)(v))
#define store_u8(v) ((uint8_t)(v))
#define store_bool(v) ((uint8_t)((v) != 0))

/* --- Floats to integers --- */

/* One function per pair: name, result, its bounds, argument. The upper bound is the first value that does not fit. */
#define SATURATE(name, integer, low, high, above, real)                                                                \
    INLINE integer name(real v)                                                                                 \
    {                                                                                                                  \
        real inside = v > (real)(low) && v < (real)(above) ? v : 0;                                                    \
        integer result = (integer)inside;                                                                              \
        result = v >= (real)(above) ? (high) : result;                                                                 \
        return v <= (real)(low) ? (low) : result;                                                                      \
    }
SATURATE(i64_of_double, int64_t, INT64_MIN, INT64_MAX, 0x1p63, double)
SATURATE(i64_of_float, int64_t, INT64_MIN, INT64_MAX, 0x1p63, float)
SATURATE(i32_of_double, int32_t, INT32_MIN, INT32_MAX, 0x1p31, double)
SATURATE(i32_of_float, int32_t, INT32_MIN, INT32_MAX, 0x1p31, float)
SATURATE(i16_of_double, int16_t, INT16_MIN, INT16_MAX, 0x1p15, double)
SATURATE(i16_of_float, int16_t, INT16_MIN, INT16_MAX, 0x1p15, float)
SATURATE(i8_of_double, int8_t, INT8_MIN, INT8_MAX, 0x1p7, double)
SATURATE(i8_of_float, int8_t, INT8_MIN, INT8_MAX, 0x1p7, float)
SATURATE(u8_of_double, uint8_t, 0, UINT8_MAX, 0x1p8, double)
SATURATE(u8_of_float, uint8_t, 0, UINT8_MAX, 0x1p8, float)
#undef SATURATE

INLINE int64_t wide_of_int(int64_t v)
{
    return v;
}

/* --- A compute value to any stored type --- */

#define to_f64(v) ((double)(v))
#define to_f32(v) ((float)(v))
#define to_f16(v) _Generic((v), double: f16_of_double, int64_t: f16_of_i64, int32_t: f16_of_double, default: store_f16)(v)
#define to_bf16(v) _Generic((v), double: bf16_of_double, int64_t: bf16_of_i64, int32_t: bf16_of_double, default: store_bf16)(v)
#define to_i64(v) ((int64_t)_Generic((v), double: i64_of_double, float: i64_of_float, default: wide_of_int)(v))
#define to_i32(v) ((int32_t)_Generic((v), double: i32_of_double, float: i32_of_float, default: wide_of_int)(v))
#define to_i16(v) ((int16_t)_Generic((v), double: i16_of_double, float: i16_of_float, default: wide_of_int)(v))
#define to_i8(v) ((int8_t)_Generic((v), double: i8_of_double, float: i8_of_float, default: wide_of_int)(v))
#define to_u8(v) ((uint8_t)_Generic((v), double: u8_of_double, float: u8_of_float, default: wide_of_int)(v))
#define to_bool(v) ((uint8_t)((v) != 0))

#endif
