/* One element along a dimension for each of the others: what max and min, take_along and max_backward share. */
#ifndef LUDA_ALONG_H
#define LUDA_ALONG_H

#include "kernels/cpu/index/positions.h"

enum { ALONG_GRAIN = 32768 };

/* Kept dimensions; operands 0 and 1: shaped without (or with a size of 1 in) the dimension, 2: the full tensor. */
typedef struct along {
    space kept;
    int64_t size, stride; /* of the dimension in the full tensor */
    int64_t per_slab;
    char *value, *full;
    int64_t *positions;
    int32_t base;
} along;

static inline void plan_along(const luda_operand *value, const luda_operand *positions, const luda_operand *full, int dim,
                       int32_t base, along *a)
{
    int keepdim = value->ndim == full->ndim, at = 0;
    *a = (along){ .kept = { .numel = 1 }, .size = 1, .stride = 1, .value = value->data, .full = full->data,
                  .positions = positions->data, .base = base };
    for (int d = 0; d < full->ndim; d++) {
        if (d == dim) {
            a->size = full->shape[d];
            a->stride = full->stride[d];
            at += keepdim;
            continue;
        }
        int64_t stride[3] = { value->stride[at], positions->stride[at], full->stride[d] };
        luda__space_add(&a->kept, 3, full->shape[d], stride);
        at++;
    }
}

static inline void run_along(along *a, int64_t work, void (*fn)(void *, int64_t))
{
    a->per_slab = larger(ALONG_GRAIN / larger(work, 1), 1);
    luda__parallel(ceil_div(a->kept.numel, a->per_slab), fn, a);
}

#endif
