/* Lines of elements along one dimension, for kernels that work through a line in order. */
#ifndef LUDA_LINES_H
#define LUDA_LINES_H

#include "kernels/cpu/index/positions.h"

/* Up to three operands of one number of dimensions; `kept` has the sizes of operand 0 without the dimension. */
typedef struct lines {
    space kept;
    int64_t size[3], stride[3]; /* of the dimension in each operand */
    int64_t per_slab;
    char *data[3];
    const luda_call *call;
    int64_t base;
    atomic_int failed;
} lines;

static inline void plan_lines(const luda_call *call, const luda_operand *const *operands, int count, int dim, lines *l)
{
    *l = (lines){ .kept = { .numel = 1 }, .call = call };
    for (int o = 0; o < count; o++) {
        l->data[o] = operands[o]->data;
        l->size[o] = operands[o]->ndim > 0 ? operands[o]->shape[dim] : 1;
        l->stride[o] = operands[o]->ndim > 0 ? operands[o]->stride[dim] : 1;
    }
    for (int d = 0; d < operands[0]->ndim; d++) {
        int64_t stride[3] = { 0 };
        for (int o = 0; o < count; o++)
            stride[o] = operands[o]->stride[d];
        if (d != dim)
            luda__space_add(&l->kept, count, operands[0]->shape[d], stride);
    }
}

/* `work`: elements that one line costs. */
static inline luda_status run_lines(lines *l, int64_t work, void (*fn)(void *, int64_t))
{
    enum { GRAIN = 16384 };
    l->per_slab = larger(GRAIN / larger(work, 1), 1);
    if (l->kept.numel > 0)
        luda__parallel(ceil_div(l->kept.numel, l->per_slab), fn, l);
    return l->failed ? fail_memory(l->call, (size_t)work * 8) : LUDA_OK;
}

#endif
