/*
 * Scalar mathematics of the CPU: what the expressions of ops.def call, per compute type.
 *
 * The float functions are branch-free, so that loops over them vectorise; their polynomials are least-maximum fits over
 * the reduced range, and results are within a few units in the last place over the whole range, infinities, NaN and
 * subnormal results included. Double uses libm.
 */
#ifndef LUDA_SCALAR_H
#define LUDA_SCALAR_H

#include "convert.h"

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define MADD(a, b, c) __builtin_fmaf(a, b, c)
#else
#define MADD(a, b, c) ((a) * (b) + (c))
#endif

/* --- float --- */

INLINE float float_abs(float x)
{
    return float_from_bits(float_bits(x) & 0x7FFFFFFFu);
}

INLINE float exp_float(float x)
{
    const float shift = 0x1.8p23f; /* adding it rounds to a whole number, in the low bits */
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float shifted = MADD(x, 0x1.715476p0f, shift);
    int32_t n = (int32_t)(float_bits(shifted) - float_bits(shift));
    float k = shifted - shift;
    float r = x - k * 0x1.62E4p-1f; /* exact: the constant has 16 bits */
    r = MADD(k, -0x1.7F7D1Cp-20f, r);
    float q = MADD(r, 0.00138146104f, 0.00836871114f);
    q = MADD(q, r, 0.0416683875f);
    q = MADD(q, r, 0.166665207f);
    q = MADD(q, r, 0.499999935f);
    float power = 1.0f + MADD(q, r * r, r);
    int32_t half = n >> 1; /* in two steps, so that subnormal results and overflow come out right */
    float first = float_from_bits((uint32_t)(half + 127) << 23),
          second = float_from_bits((uint32_t)(n - half + 127) << 23);
    return power * first * second;
}

INLINE float log_float(float x)
{
    float scaled = x < 0x1p-126f ? x * 0x1p23f : x;
    float bias = x < 0x1p-126f ? 23.0f : 0.0f;
    uint32_t bits = float_bits(scaled);
    int32_t n = (int32_t)(bits - 0x3F3504F3u) >> 23; /* the mantissa lies in sqrt(1/2) .. sqrt(2) */
    float f = float_from_bits(bits - ((uint32_t)n << 23)) - 1.0f;
    float k = (float)n - bias;
    float s = f / (2.0f + f), z = s * s;
    float tail = z * MADD(z, MADD(z, 0.298723106f, 0.399775217f), 0.666667765f);
    float half_square = 0.5f * f * f;
    float result = k * 0x1.62E4p-1f + (f - (half_square - MADD(s, half_square + tail, k * 0x1.7F7D1Cp-20f)));
    result = x > 0 ? result : x == 0 ? -INFINITY : NAN;
    return x == INFINITY ? x : result;
}

INLINE float sigmoid_float(float x)
{
    float e = exp_float(-float_abs(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

INLINE float tanh_float(float x)
{
    float a = float_abs(x), z = a * a;
    float p = MADD(z, -0.00571704495f, 0.0206505872f);
    p = MADD(p, z, -0.0537434981f);
    p = MADD(p, z, 0.133314913f);
    p = MADD(p, z, -0.333332839f);
    float small = MADD(p * z, a, a);
    float large = 1.0f - 2.0f / (exp_float(2.0f * a) + 1.0f);
    float result = a < 0.625f ? small : large;
    return float_from_bits(float_bits(result) | (float_bits(x) & 0x80000000u));
}

/* 1 - erf(a) for a >= 0.75, as exp(-a^2) times a polynomial in 1 / (1 + 0.35 a). */
INLINE float erfc_tail(float a)
{
    a = a > 11.0f ? 11.0f : a; /* erfc(11) is 0 in float */
    float t = 1.0f / (1.0f + 0.35f * a), square = a * a;
    float high = float_from_bits(float_bits(a) & 0xFFFFF000u), low = a - high;
    float lost = ((high * high - square) + 2.0f * high * low) + low * low; /* by rounding the square */
    float p = MADD(t, -0.100836761f, 0.253365371f);
    p = MADD(p, t, -0.0847309194f);
    p = MADD(p, t, 0.212225767f);
    p = MADD(p, t, 0.135331074f);
    p = MADD(p, t, 0.190121938f);
    p = MADD(p, t, 0.196982618f);
    p = MADD(p, t, 0.197487257f);
    return exp_float(-square) * (1.0f - lost) * (p * t);
}

/* erf(x) for |x| < 0.75 */
INLINE float erf_middle(float x)
{
    float z = x * x, p = MADD(z, -0.000676109691f, 0.00511598187f);
    p = MADD(p, z, -0.0268354346f);
    p = MADD(p, z, 0.11283393f);
    p = MADD(p, z, -0.376126199f);
    return x * MADD(p, z, 1.12837917f);
}

INLINE float erf_float(float x)
{
    float a = float_abs(x), middle = erf_middle(x), tail = 1.0f - erfc_tail(a);
    tail = x < 0 ? -tail : tail;
    return a < 0.75f ? middle : tail;
}

INLINE float gelu_float(float x)
{
    float u = x * -0.707106781f, a = float_abs(u), tail = erfc_tail(a);
    tail = u < 0 ? 2.0f - tail : tail;
    return 0.5f * x * (a < 0.75f ? 1.0f - erf_middle(u) : tail);
}

/* x / 2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3) */
INLINE float gelu_tanh_float(float x)
{
    return x * sigmoid_float(1.59576912f * x * (1.0f + 0.044715f * x * x));
}

INLINE float gelu_tanh_slope_float(float x)
{
    x = x > 16.0f ? 16.0f : x; /* beyond, the slope is 0 or 1 and the cube might overflow */
    x = x < -16.0f ? -16.0f : x;
    float s = sigmoid_float(1.59576912f * x * (1.0f + 0.044715f * x * x));
    return s + x * s * (1.0f - s) * 1.59576912f * (1.0f + 0.134145f * x * x);
}

INLINE float remainder_float(float x, float y)
{
    float r = fmodf(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

/* --- double --- */

INLINE double sigmoid_double(double x)
{
    double e = exp(-fabs(x));
    return (x < 0 ? e : 1.0) / (1.0 + e);
}

INLINE double gelu_double(double x)
{
    return 0.5 * x * erfc(x * -0.70710678118654752440);
}

INLINE double gelu_tanh_double(double x)
{
    return x * sigmoid_double(1.59576912160573071176 * x * (1.0 + 0.044715 * x * x));
}

INLINE double gelu_tanh_slope_double(double x)
{
    x = x > 40.0 ? 40.0 : x;
    x = x < -40.0 ? -40.0 : x;
    double s = sigmoid_double(1.59576912160573071176 * x * (1.0 + 0.044715 * x * x));
    return s + x * s * (1.0 - s) * 1.59576912160573071176 * (1.0 + 0.134145 * x * x);
}

INLINE double remainder_double(double x, double y)
{
    double r = fmod(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

INLINE float sign_float(float x)
{
    return x != x ? x : (float)((x > 0) - (x < 0));
}

INLINE double sign_double(double x)
{
    return x != x ? x : (double)((x > 0) - (x < 0));
}

/* --- Integers; a divisor of 0 was refused before the loop --- */

INLINE int32_t remainder_i32(int32_t x, int32_t y)
{
    int32_t r = y == -1 || y == 0 ? 0 : x % y;
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

INLINE int64_t remainder_i64(int64_t x, int64_t y)
{
    int64_t r = y == -1 || y == 0 ? 0 : x % y;
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

INLINE int32_t abs_i32(int32_t x)
{
    return x < 0 ? -x : x;
}

INLINE int64_t abs_i64(int64_t x)
{
    return x < 0 ? -x : x;
}

INLINE int32_t sign_i32(int32_t x)
{
    return (x > 0) - (x < 0);
}

INLINE int64_t sign_i64(int64_t x)
{
    return (x > 0) - (x < 0);
}

/* --- The names of ops.def --- */

#define REAL(x, name) _Generic((x), float: name##_float, double: name##_double)

#define WITH_INTEGERS(x, name)                                                                                         \
    _Generic((x), float: name##_float, double: name##_double, int64_t: name##_i64, default: name##_i32)

#define exp_double exp
#define log_double log
#define tanh_double tanh
#define sqrt_float sqrtf
#define sqrt_double sqrt
#define sin_float sinf
#define sin_double sin
#define cos_float cosf
#define cos_double cos
#define erf_double erf
#define pow_float powf
#define pow_double pow
#define abs_float float_abs
#define abs_double fabs

#define SQRT(x) REAL(x, sqrt)(x)
#define EXP(x) REAL(x, exp)(x)
#define LOG(x) REAL(x, log)(x)
#define SIN(x) REAL(x, sin)(x)
#define COS(x) REAL(x, cos)(x)
#define TANH(x) REAL(x, tanh)(x)
#define SIGMOID(x) REAL(x, sigmoid)(x)
#define ERF(x) REAL(x, erf)(x)
#define GELU(x) REAL(x, gelu)(x)
#define GELU_TANH(x) REAL(x, gelu_tanh)(x)
#define GELU_TANH_SLOPE(x) REAL(x, gelu_tanh_slope)(x)
#define POW(x, y) REAL(x, pow)(x, y)
#define REMAINDER(x, y) WITH_INTEGERS(x, remainder)(x, y)
#define ABS(x) WITH_INTEGERS(x, abs)(x)
#define SIGN(x) WITH_INTEGERS(x, sign)(x)
#define RELU(x) ((x) > 0 || (x) != (x) ? (x) : 0)
/* NaN wins; for integers the test for NaN vanishes. */
#define MAXIMUM(x, y) ((x) > (y) || (x) != (x) ? (x) : (y))
#define MINIMUM(x, y) ((x) < (y) || (x) != (x) ? (x) : (y))

#endif
