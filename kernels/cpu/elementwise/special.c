/*
 * The functions of rows of LUDA_CALL, luda__special_NAME_float, _double and _int: not compiled once an instruction set,
 * so that they give the same bits on all.
 */
#include "kernels/special.h"

#include <stdlib.h>
#include <tgmath.h>

#define WITH_INT(x, name) _Generic((x), float: name##f, double: name, int64_t: same)(x)
static inline int64_t same(int64_t x)
{
    return x;
}

static inline int is_negative(int64_t x)
{
    return x < 0;
}

static inline int sign_bit(double x)
{
    return signbit(x) != 0;
}

#define FLOOR(x) WITH_INT(x, floor)
#define CEIL(x) WITH_INT(x, ceil)
#define ROUND(x) WITH_INT(x, rint)
#define TRUNC(x) WITH_INT(x, trunc)
#define LGAMMA(x) lgamma_safe(x)
#define SIGNBIT(x) _Generic((x), int64_t: is_negative, default: sign_bit)(x)
#define FMOD(x, y) _Generic((x), float: fmodf, double: fmod, int64_t: special_fmod_int)(x, y)
#define FLOOR_DIVIDE(x, y) _Generic((x), int64_t: special_floor_divide_int, default: special_floor_divide)(x, y)

/* lgamma writes the sign to a global. */
static double lgamma_safe(double x)
{
    int sign;
    extern double lgamma_r(double, int *);
    return lgamma_r(x, &sign);
}

#define DEFINE(name, nin, type, suffix, expression)                                                                    \
    type luda__special_##name##_##suffix(type x, type y);                                                              \
    type luda__special_##name##_##suffix(type x, type y)                                                               \
    {                                                                                                                  \
        (void)y;                                                                                                       \
        return (type)(expression);                                                                                     \
    }
#define CALL_FLOAT(name, nin, expression)                                                                              \
    DEFINE(name, nin, float, float, expression) DEFINE(name, nin, double, double, expression)
#define CALL_INTEGER(name, nin, expression) DEFINE(name, nin, int64_t, int, expression)
#define CALL_BITS CALL_INTEGER
#define CALL_NUM(name, nin, expression) CALL_FLOAT(name, nin, expression) CALL_INTEGER(name, nin, expression)
#define CALL_COMPARE CALL_NUM

#define LUDA_PLAIN(...)
#define LUDA_MAP(...)
#define LUDA_SAME(...)
#define LUDA_CALL(name, nin, nout, types, expression, ...) CALL_##types(name, nin, expression)
#include "kernels/ops.def"
