/* What every kernel file of the CPU includes: names, element types, conversions, the pool. */
#ifndef LUDA_KERNEL_H
#define LUDA_KERNEL_H

#include "kernels/names.h"

#include "convert.h"
#include "kernels/cpu/pool/pool.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline const char *op_name(const luda_call *call)
{
    return luda_op_get((luda_op)call->op)->name;
}

#endif
