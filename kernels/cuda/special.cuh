/* What rows of LUDA_CALL call, beside the toolkit's overloaded mathematics. */
#ifndef LUDA_CUDA_SPECIAL_H
#define LUDA_CUDA_SPECIAL_H

#include "scalar.cuh"

#define SPECIAL INLINE
#include "../special.h"

/* The types that special.h computes in. */
INLINE double wide(float x)
{
    return x;
}
INLINE double wide(double x)
{
    return x;
}
template <class INT>
INLINE int64_t wide(INT x)
{
    return x;
}

INLINE double floor_quotient(double x, double y)
{
    return special_floor_divide(x, y);
}
INLINE int64_t floor_quotient(int64_t x, int64_t y)
{
    return special_floor_divide_int(x, y);
}

INLINE double truncated_remainder(double x, double y)
{
    return fmod(x, y);
}
INLINE int64_t truncated_remainder(int64_t x, int64_t y)
{
    return special_fmod_int(x, y);
}

INLINE bool sign_bit(float x)
{
    return copysignf(1, x) < 0;
}
INLINE bool sign_bit(double x)
{
    return copysign(1.0, x) < 0;
}
template <class INT>
INLINE bool sign_bit(INT x)
{
    return static_cast<int64_t>(x) < 0;
}

/* Whole numbers are what they are. */
#define WHOLE(name, function)                                                                                          \
    INLINE float name(float x) { return function##f(x); }                                                              \
    INLINE double name(double x) { return function(x); }                                                               \
    template <class INT>                                                                                               \
    INLINE INT name(INT x) { return x; }
WHOLE(floor_of, floor)
WHOLE(ceil_of, ceil)
WHOLE(round_of, rint)
WHOLE(trunc_of, trunc)
#undef WHOLE

#define FLOOR(x) floor_of(x)
#define CEIL(x) ceil_of(x)
#define ROUND(x) round_of(x)
#define TRUNC(x) trunc_of(x)
#define SIGNBIT(x) sign_bit(x)
#define LGAMMA(x) lgamma(x)
#define FMOD(x, y) truncated_remainder(wide(x), wide(y))
#define FLOOR_DIVIDE(x, y) floor_quotient(wide(x), wide(y))

#endif
