/* Loops over operands of one broadcast shape: collapsing, cutting into slabs, handing inner runs to a function. */
#ifndef LUDA_LOOPS_H
#define LUDA_LOOPS_H

#include "kernels/cpu/kernel.h"

enum { LOOP_OPERANDS = 4, LOOP_SLAB = 32768 };

/*
 * One inner run: `count` elements of every operand, `stride` elements apart. Operand 0 is the output, whose element
 * `first` in row-major order comes first.
 */
typedef struct loop_run {
    char *data[LOOP_OPERANDS];
    int64_t stride[LOOP_OPERANDS];
    int64_t count, first;
} loop_run;

typedef void (*loop_function)(const loop_run *run, const void *arg);

/* Calls fn for runs that cover the shape of operands[0]; the others broadcast to it. Runs may go to several threads. */
void luda__loop(const luda_operand *const *operands, int count, loop_function fn, const void *arg);

/* --- Index spaces: for kernels that walk over some dimensions themselves --- */

typedef struct space {
    int ndim;
    int64_t numel;
    int64_t shape[LUDA_MAX_DIMS];
    int64_t stride[LOOP_OPERANDS][LUDA_MAX_DIMS]; /* in elements */
} space;

/* Appends a dimension; sizes of 1 are left out and one that continues the last for all operands joins it. */
void luda__space_add(space *s, int operands, int64_t size, const int64_t *stride);

/* Offset of element `index` (row-major) in operand `operand`. */
static inline int64_t space_offset(const space *s, int operand, int64_t index)
{
    int64_t offset = 0;
    for (int d = s->ndim - 1; d > 0; d--) {
        offset += index % s->shape[d] * s->stride[operand][d];
        index /= s->shape[d];
    }
    return s->ndim > 0 ? offset + index * s->stride[operand][0] : 0;
}

int64_t luda__item_size(int32_t dtype);

#endif
