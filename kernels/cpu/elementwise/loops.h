/* Loops over operands of one broadcast shape: collapsing, cutting into slabs, handing inner runs to a function. */
#ifndef LUDA_LOOPS_H
#define LUDA_LOOPS_H

#include "kernels/cpu/kernel.h"

enum { LOOP_OPERANDS = 4, LOOP_SLAB = 32768, STREAM_BYTES = 4096 };

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

/* The same where operand 0 is read and there is no output. */
void luda__loop_over(const luda_operand *operand, loop_function fn, const void *arg);

/* --- Stores around the caches: for outputs that will not stay in them --- */

/* Whether the operands are too large together for the caches and the output, operand 0, is not updated in place. */
int luda__streams(const luda_operand *const *operands, int count);

/* memcpy whose stores bypass the caches. */
void luda__stream(void *to, const void *from, size_t bytes);

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
int64_t luda__space_offset(const space *s, int operand, int64_t index);

static inline int64_t space_offset(const space *s, int operand, int64_t index)
{
    return s->ndim == 1 ? index * s->stride[operand][0] : luda__space_offset(s, operand, index);
}

int64_t luda__item_size(int32_t dtype);

#endif
