/* What sorting means on every device: keys whose unsigned order is that of the values. */
#ifndef LUDA_ORDER_H
#define LUDA_ORDER_H

#include "kernels.h"

/* Of a floating number's bits; `infinity` is what infinity has. NaN is the largest, -0 equals 0. */
LUDA_SHARED uint64_t luda__float_key(uint64_t bits, int width, uint64_t infinity)
{
    uint64_t sign = (uint64_t)1 << (width - 1), all = sign | (sign - 1);
    if ((bits & (sign - 1)) > infinity)
        return all;
    if (bits == sign)
        return sign;
    return bits & sign ? ~bits & all : bits | sign;
}

#endif
