/*
 * For the C tests of CPU kernels: tensors in any layout with guard bytes behind them, calls through a kernel table of
 * any level, comparison with double references, and the closing line.
 */
#ifndef KERNELS_CHECK_H
#define KERNELS_CHECK_H

#include "../../kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;
static const luda_kernel_table *level; /* under test */
static char message[512];

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (condition) {                                                                                               \
            passed++;                                                                                                  \
        } else {                                                                                                       \
            failed++;                                                                                                  \
            printf("%s:%d: [%s] %s: ", __FILE__, __LINE__, level ? level->name : "", #condition);                      \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

/* --- Values: doubles in and out of any dtype; written here on purpose, apart from kernels/cpu/convert.h --- */

static inline double half_value(uint16_t bits, int exponent_bits, int mantissa_bits)
{
    int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
    double fraction = bits & ((1 << mantissa_bits) - 1), sign = bits >> 15 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - mantissa_bits);
    return sign * ldexp(fraction + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

/* Only for values that the half type holds exactly, and for infinities and NaN. */
static inline uint16_t half_bits(double value, int exponent_bits, int mantissa_bits)
{
    int exponent, bias = (1 << (exponent_bits - 1)) - 1;
    uint16_t sign = signbit(value) ? 0x8000 : 0, top = (uint16_t)(((1 << exponent_bits) - 1) << mantissa_bits);
    if (isnan(value))
        return top | 1 << (mantissa_bits - 1);
    if (isinf(value))
        return sign | top;
    if (value == 0)
        return sign;
    double fraction = frexp(fabs(value), &exponent);
    return sign | (uint16_t)((exponent - 1 + bias) << mantissa_bits) |
           ((uint16_t)ldexp(fraction, mantissa_bits + 1) & ((1 << mantissa_bits) - 1));
}

static inline void put(void *data, int dtype, int64_t at, double value)
{
    switch (dtype) {
    case LUDA_F64: ((double *)data)[at] = value; break;
    case LUDA_F32: ((float *)data)[at] = (float)value; break;
    case LUDA_F16: ((uint16_t *)data)[at] = half_bits(value, 5, 10); break;
    case LUDA_BF16: ((uint16_t *)data)[at] = half_bits(value, 8, 7); break;
    case LUDA_I64: ((int64_t *)data)[at] = (int64_t)value; break;
    case LUDA_I32: ((int32_t *)data)[at] = (int32_t)value; break;
    case LUDA_I16: ((int16_t *)data)[at] = (int16_t)value; break;
    case LUDA_I8: ((int8_t *)data)[at] = (int8_t)value; break;
    case LUDA_U8: ((uint8_t *)data)[at] = (uint8_t)(int64_t)value; break;
    default: ((uint8_t *)data)[at] = value != 0;
    }
}

static inline double get(const void *data, int dtype, int64_t at)
{
    switch (dtype) {
    case LUDA_F64: return ((const double *)data)[at];
    case LUDA_F32: return ((const float *)data)[at];
    case LUDA_F16: return half_value(((const uint16_t *)data)[at], 5, 10);
    case LUDA_BF16: return half_value(((const uint16_t *)data)[at], 8, 7);
    case LUDA_I64: return (double)((const int64_t *)data)[at];
    case LUDA_I32: return ((const int32_t *)data)[at];
    case LUDA_I16: return ((const int16_t *)data)[at];
    case LUDA_I8: return ((const int8_t *)data)[at];
    default: return ((const uint8_t *)data)[at];
    }
}

static inline int is_float(int dtype)
{
    return dtype <= LUDA_BF16;
}

/* How far a result of the dtype may be from the exact one, relative to max(1, |exact|). */
static inline double tolerance(int dtype)
{
    return dtype == LUDA_F64    ? 1e-12
           : dtype == LUDA_F32  ? 2e-6
           : dtype == LUDA_F16  ? 1e-3
           : dtype == LUDA_BF16 ? 8e-3
                                : 0;
}

static inline int close_to(double got, double exact, double limit)
{
    if (isnan(exact) || isnan(got))
        return isnan(exact) && isnan(got);
    if (isinf(exact))
        return got == exact;
    return fabs(got - exact) <= limit * fmax(1, fabs(exact));
}

/* --- Tensors --- */

enum { GUARD = 64 };
enum layout { CONTIGUOUS, STRIDED, TRANSPOSED, LAYOUTS };

typedef struct tensor {
    luda_operand o;
    uint8_t *memory;
    size_t bytes;
} tensor;

static inline void guard(tensor *t)
{
    memset(t->memory, 0xA5, GUARD);
    memset(t->memory + GUARD + t->bytes, 0xA5, GUARD);
}

/* STRIDED leaves a gap after each element and each row; TRANSPOSED stores the first dimension innermost. */
static inline tensor make(int dtype, int layout, int ndim, const int64_t *shape)
{
    tensor t = { .o = { .dtype = dtype, .ndim = ndim, .numel = 1 } };
    int64_t step = layout == STRIDED ? 2 : 1;
    for (int i = 0; i < ndim; i++) {
        int d = layout == TRANSPOSED ? i : ndim - 1 - i;
        t.o.shape[d] = shape[d];
        t.o.stride[d] = step;
        step = step * (shape[d] ? shape[d] : 1) + (layout == STRIDED);
        t.o.numel *= shape[d];
    }
    t.bytes = (size_t)step * (size_t)luda_dtype_size((luda_dtype)dtype);
    t.memory = malloc(t.bytes + 2 * GUARD);
    memset(t.memory, 0, t.bytes + 2 * GUARD);
    guard(&t);
    t.o.data = t.memory + GUARD;
    return t;
}

#define SHAPE(...) (sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), (int64_t[]){ __VA_ARGS__ }

static inline int64_t offset_of(const luda_operand *o, int64_t index)
{
    int64_t offset = 0;
    for (int d = o->ndim - 1; d >= 0; d--) {
        offset += index % o->shape[d] * o->stride[d];
        index /= o->shape[d];
    }
    return offset;
}

static inline double at(const tensor *t, int64_t index)
{
    return get(t->o.data, t->o.dtype, offset_of(&t->o, index));
}

static inline void set(tensor *t, int64_t index, double value)
{
    put(t->o.data, t->o.dtype, offset_of(&t->o, index), value);
}

static inline int guarded(const tensor *t)
{
    for (size_t i = 0; i < GUARD; i++)
        if (t->memory[i] != 0xA5 || t->memory[GUARD + t->bytes + i] != 0xA5)
            return 0;
    return 1;
}

static inline void drop(tensor *t)
{
    CHECK(guarded(t), "written outside of a tensor of dtype %d", t->o.dtype);
    free(t->memory);
}

static uint64_t test_seed = 88172645463325252u;

static inline double uniform(double low, double high)
{
    test_seed ^= test_seed << 13;
    test_seed ^= test_seed >> 7;
    test_seed ^= test_seed << 17;
    return low + (high - low) * (double)(test_seed >> 11) * 0x1p-53;
}

/* Multiples of 1/8, which every floating dtype holds; whole numbers for integers, 0 and 1 for bool. */
static inline void fill(tensor *t, double low, double high)
{
    for (int64_t i = 0; i < t->o.numel; i++) {
        double value = uniform(low, high);
        if (t->o.dtype == LUDA_U8)
            value = fabs(value);
        set(t, i, t->o.dtype == LUDA_BOOL ? value > 0 : is_float(t->o.dtype) ? floor(value * 8) / 8 : floor(value));
    }
}

/* --- Calls --- */

static inline luda_status run(int op, int key, const luda_operand *in, int nin, luda_operand *out, int nout,
                              const luda_attrs *attrs)
{
    luda_call call = { in, out, nin, nout, op, attrs, 0, NULL, message };
    luda_kernel kernel = level->kernels[op][key];
    message[0] = 0;
    return kernel ? kernel(&call) : LUDA_ENOTSUP;
}

/* Runs `test` once for every level that this processor has. */
static inline void for_each_level(void (*test)(void))
{
    static luda_kernel_table table;
    for (int i = 0; luda__cpu_level(i, &table); i++) {
        level = &table;
        test();
    }
}

static inline int finish(void)
{
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}

#endif
