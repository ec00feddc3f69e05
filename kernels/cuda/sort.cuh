/* Sorting on the device. */
#ifndef LUDA_CUDA_SORT_H
#define LUDA_CUDA_SORT_H

#include "cuda.h"

/* Sorted by key, equal keys by value. */
typedef struct keyed {
    uint64_t key;
    int64_t value;
} keyed;

/* The least power of two that is at least n. */
static inline int64_t power_above(int64_t n)
{
    int64_t power = 1;
    while (power < n)
        power *= 2;
    return power;
}

/* Sorts `count` items in place, lines of `line` items each for itself; `line` is a power of two. */
luda_status luda__cuda_sort(const luda_call *call, luda_cuda_stream *stream, keyed *items, int64_t count, int64_t line);

#endif
