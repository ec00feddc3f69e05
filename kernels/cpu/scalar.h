/*
 * Scalar mathematics of the CPU: what the expressions of ops.def call, per compute type.
 *
 * The float functions are branch-free, so that loops over them vectorise; their polynomials are least-maximum fits over
 * the reduced range. Bounds over the whole range of float, with or without FMA, in units of the last place: pow 1, exp 2,
 * log, sin, cos 3, tanh, sigmoid 4, erf 5, silu 5 or 1e-36, gelu 6 or 1e-36 (4 from -1 on). exp_down, for weights of
 * rows, gives 0 below 2^-126. Double uses libm.
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

/*
 * x = n log 2 + r: returns exp(r). Adding `shift`, 0x1.8p23 and a bias, rounds to the whole number n, which stands with
 * the bias in the low bits of *count.
 */
INLINE float exp_reduced(float x, float shift, uint32_t *count)
{
    float shifted = MADD(x, 0x1.715476p0f, shift);
    float k = shifted - shift;
    float r = MADD(k, -0x1.62E4p-1f, x); /* exact: the constant has 16 bits */
    r = MADD(k, -0x1.7F7D1Cp-20f, r);
    float q = MADD(r, 0.00138146104f, 0.00836871114f);
    q = MADD(q, r, 0.0416683875f);
    q = MADD(q, r, 0.166665207f);
    q = MADD(q, r, 0.499999935f);
    *count = float_bits(shifted);
    return 1.0f + MADD(q, r * r, r);
}

/* exp(x) for x within -104 .. 89; NaN stays. In two steps, so that subnormal results and overflow come out right. */
INLINE float exp_within(float x)
{
    uint32_t n, half;
    float power = exp_reduced(x, 0x1.8p23f + 254.0f, &n);
    half = n >> 1;
    return power * float_from_bits(half << 23) * float_from_bits((n - half) << 23);
}

INLINE float exp_float(float x)
{
    /* Numbers of one sign are ordered as their bits are. */
    uint32_t bits = float_bits(x);
    int32_t above = (int32_t)(bits < 0xC2D00000u ? bits : 0xC2D00000u);                                  /* -104 */
    float clamped = float_from_bits((uint32_t)(above < 0x42B20000 ? above : 0x42B20000));                /* 89 */
    float result = exp_within(clamped);
    return x != x ? x : result;
}

/* exp(x) for x <= 0, or slightly above; results below 2^-126, which would slow down what uses them, are 0. */
INLINE float exp_down_float(float x)
{
    uint32_t n;
    float power = exp_reduced(x < -87.25f ? -87.25f : x, 0x1.8p23f + 127.0f, &n);
    float result = power * float_from_bits(n << 23);
    return x < -87.25f ? 0.0f : result;
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
    float a = float_abs(x), e = exp_within(a > 104.0f ? -104.0f : -a);
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
    float e = exp_down_float(-2.0f * a), large = 1.0f - 2.0f * e / (1.0f + e);
    float result = a < 0.625f ? small : large;
    return float_from_bits(float_bits(result) | (float_bits(x) & 0x80000000u));
}

/* exp(-factor a^2) for a >= 0 and a factor of 1 or 1/2 */
INLINE float gauss(float a, float factor)
{
    float square = a * a;
    float high = float_from_bits(float_bits(a) & 0xFFFFF000u), low = a - high;
    float lost = ((high * high - square) + 2.0f * high * low) + low * low; /* by rounding the square */
    return exp_down_float(-factor * square) * (1.0f - factor * lost);
}

INLINE float below_nine(float a)
{
    return a > 9.5f ? 9.5f : a; /* erfc(9.5) counts as 0 */
}

/* 1 - erf(a) for a in 0.75 .. 9.5 as gauss(a) times a polynomial in 1 / (1 + 0.35 a). */
INLINE float erfc_tail(float a, float gauss)
{
    float t = 1.0f / (1.0f + 0.35f * a);
    float p = MADD(t, -0.100836761f, 0.253365371f);
    p = MADD(p, t, -0.0847309194f);
    p = MADD(p, t, 0.212225767f);
    p = MADD(p, t, 0.135331074f);
    p = MADD(p, t, 0.190121938f);
    p = MADD(p, t, 0.196982618f);
    p = MADD(p, t, 0.197487257f);
    return gauss * (p * t);
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
    float a = below_nine(float_abs(x)), middle = erf_middle(x), tail = 1.0f - erfc_tail(a, gauss(a, 1.0f));
    tail = x < 0 ? -tail : tail;
    return a < 0.75f ? middle : tail;
}

/* The normal distribution function, within 1e-7, for |x| < 5.5; beyond it counts as 0 and 1. */
INLINE float normal_below(float x)
{
    float t = MADD(x * x, 0.0661157025f, -1.0f); /* 2 / 5.5^2 */
    float p = MADD(t, -0.000285676302f, 0.000656236662f);
    p = MADD(p, t, -0.000356754608f);
    p = MADD(p, t, 0.000639906502f);
    p = MADD(p, t, -0.00265870243f);
    p = MADD(p, t, 0.00472356984f);
    p = MADD(p, t, -0.00665067835f);
    p = MADD(p, t, 0.0101642124f);
    p = MADD(p, t, -0.015062524f);
    p = MADD(p, t, 0.0203848071f);
    p = MADD(p, t, -0.0260361508f);
    p = MADD(p, t, 0.0320672244f);
    p = MADD(p, t, -0.0387937948f);
    p = MADD(p, t, 0.0477377959f);
    p = MADD(p, t, -0.0641723126f);
    p = MADD(p, t, 0.12855193f);
    return MADD(x, p, 0.5f);
}

INLINE float gelu_float(float x)
{
    float near = float_abs(x) > 13.25f ? 13.25f : float_abs(x); /* where exp_down is still above 0 */
    float u = x * -0.707106781f, a = float_abs(u), tail = erfc_tail(near * 0.707106781f, gauss(near, 0.5f));
    tail = u < 0 ? 2.0f - tail : tail;
    float inside = 0.5f * x * (a < 0.75f ? 1.0f - erf_middle(u) : tail), outside = x > 0 ? x : 0.0f;
    return float_abs(x) > 13.25f ? outside : inside;
}

/* Phi(x) + x phi(x) */
INLINE float gelu_slope_float(float x)
{
    float a = float_abs(x), near = a > 15.0f ? 15.0f : a;
    float along = near * exp_down_float(-0.5f * near * near) * 0.39894228f; /* 1 / sqrt(2 pi) */
    float outside = x > 0 ? 1.0f : 0.0f, inside = normal_below(x);
    return (a >= 5.5f ? outside : inside) + (x < 0 ? -along : along);
}

INLINE float silu_slope_float(float x)
{
    float s = sigmoid_float(x), bounded = x < -104.0f ? -104.0f : x;
    return s + (x > 104.0f ? 0.0f : bounded * s * (1.0f - s));
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

/* Beyond, the reduction below loses digits. */
#define NEAR_TURNS 8192.0f

/*
 * sin(x) for quarter 0 and cos(x) for quarter 1, |x| at most NEAR_TURNS. x less n quarter turns, in four parts of which
 * the first three have so few bits that their products are exact.
 */
INLINE float turned(float x, uint32_t quarter)
{
    const float shift = 0x1.8p23f;
    float shifted = MADD(x, 0.636619772f, shift), n = shifted - shift;
    uint32_t quadrant = float_bits(shifted) + quarter;
    float r = MADD(n, -0x1.92p0f, x);
    r = MADD(n, -0x1.FB4p-12f, r);
    r = MADD(n, -0x1.444p-24f, r);
    r = MADD(n, -0x1.68C234p-39f, r);
    float z = r * r;
    float sine = MADD(MADD(MADD(z, -0.000195874465f, 0.0083327463f), z, -0.166666647f) * z, r, r);
    float cosine = MADD(MADD(MADD(z, 2.45474869e-05f, -0.0013888301f), z, 0.0416666646f) * z, z, MADD(z, -0.5f, 1.0f));
    float result = quadrant & 1 ? cosine : sine;
    return float_from_bits(float_bits(result) ^ (quadrant & 2) << 30);
}

INLINE float sin_near(float x)
{
    return turned(x, 0);
}

INLINE float cos_near(float x)
{
    return turned(x, 1);
}

INLINE float sin_float(float x)
{
    return float_abs(x) <= NEAR_TURNS ? sin_near(x) : sinf(x);
}

INLINE float cos_float(float x)
{
    return float_abs(x) <= NEAR_TURNS ? cos_near(x) : cosf(x);
}

INLINE double double_from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint64_t double_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The logarithm of a positive float, within 1e-11 of its size. */
INLINE double log_wide(float x)
{
    const uint64_t root = 0x3FE6A09E667F3BCDu; /* sqrt(1/2) */
    uint64_t bits = double_bits((double)x), above = bits - root + ((uint64_t)1023 << 52);
    double n = double_from_bits(above >> 52 | 0x4330000000000000u) - (0x1p52 + 1023);
    double m = double_from_bits((above & 0x000FFFFFFFFFFFFFu) + root), s = (m - 1) / (m + 1), z = s * s;
    double p = z * (2.0 / 13) + 2.0 / 11;
    p = p * z + 2.0 / 9;
    p = p * z + 2.0 / 7;
    p = p * z + 2.0 / 5;
    p = p * z + 2.0 / 3;
    return n * 0.69314718055994530942 + (p * z * s + 2 * s);
}

/* exp(t), within 1e-9 of its size, for |t| at most 700 */
INLINE double exp_wide(double t)
{
    const double shift = 0x1.8p52 + 1023;
    double shifted = t * 1.44269504088896340736 + shift, r = t - (shifted - shift) * 0.69314718055994530942;
    double p = r * (1.0 / 40320) + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    return (p * r * r + r + 1) * double_from_bits(double_bits(shifted) << 52);
}

INLINE float pow_float(float x, float y)
{
    float a = float_abs(x), b = float_abs(y);
    double t = (double)y * log_wide(a);
    t = t > 200 ? 200 : t;
    t = t < -200 ? -200 : t;
    float size = (float)exp_wide(t), edge = (a > 1) == (y > 0) ? INFINITY : 0.0f; /* edge: of 0 and infinity */
    size = a == 0 || a == INFINITY || b == INFINITY ? edge : size;
    int32_t whole = (int32_t)(b < 0x1p24f ? b : 0.0f);
    int is_whole = b >= 0x1p24f || (float)whole == b;
    uint32_t sign = is_whole ? float_bits(x) & (uint32_t)whole << 31 : 0;
    float result = float_from_bits(float_bits(size) | sign);
    result = x < 0 && a != INFINITY && !is_whole ? NAN : result;
    result = x != x || y != y ? x + y : result;
    return x == 1 || y == 0 || (a == 1 && b == INFINITY) ? 1.0f : result;
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
    x = x < -40.0 ? -40.0 : x; /* -infinity gives 0 too */
    return 0.5 * x * erfc(x * -0.70710678118654752440);
}

INLINE double gelu_slope_double(double x)
{
    double bell = fabs(x) > 40 ? 0 : x * 0.39894228040143267794 * exp(-0.5 * x * x);
    return 0.5 * erfc(x * -0.70710678118654752440) + bell;
}

INLINE double silu_slope_double(double x)
{
    double s = sigmoid_double(x);
    return s + (fabs(x) > 750 ? 0 : x * s * (1.0 - s));
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
#define exp_down_double exp
#define log_double log
#define tanh_double tanh
#define sqrt_float sqrtf
#define sqrt_double sqrt
#define sin_double sin
#define cos_double cos
#define erf_double erf
#define pow_double pow
#define abs_float float_abs
#define abs_double fabs

#define SQRT(x) REAL(x, sqrt)(x)
#define EXP(x) REAL(x, exp)(x)
#define EXP_DOWN(x) REAL(x, exp_down)(x)
#define LOG(x) REAL(x, log)(x)
#define SIN(x) REAL(x, sin)(x)
#define COS(x) REAL(x, cos)(x)
#define TANH(x) REAL(x, tanh)(x)
#define SIGMOID(x) REAL(x, sigmoid)(x)
#define ERF(x) REAL(x, erf)(x)
#define GELU(x) REAL(x, gelu)(x)
#define GELU_SLOPE(x) REAL(x, gelu_slope)(x)
#define SILU_SLOPE(x) REAL(x, silu_slope)(x)
#define GELU_TANH(x) REAL(x, gelu_tanh)(x)
#define GELU_TANH_SLOPE(x) REAL(x, gelu_tanh_slope)(x)
#define POW(x, y) REAL(x, pow)(x, y)
#define REMAINDER(x, y) WITH_INTEGERS(x, remainder)(x, y)
#define ABS(x) WITH_INTEGERS(x, abs)(x)
#define SIGN(x) WITH_INTEGERS(x, sign)(x)
#define RELU(x) ((x) > 0 || (x) != (x) ? (x) : 0)
/* NaN wins; for integers the test for NaN vanishes. Without || loops vectorise. */
#define MAXIMUM(x, y) ((((x) > (y)) | ((x) != (x))) ? (x) : (y))
#define MINIMUM(x, y) ((((x) < (y)) | ((x) != (x))) ? (x) : (y))

#endif
