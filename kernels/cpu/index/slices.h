/* Slices of one dimension at positions: what does not depend on the instruction set. */
#ifndef LUDA_SLICES_H
#define LUDA_SLICES_H

#include "kernels/cpu/kernel.h"

/*
 * Lines of one element type and sums of theirs in double or, of integers, in int64_t, eight bytes each either way.
 * `offset` and `stride` count elements of `line`.
 */
typedef struct line_sums {
    void (*add)(void *sum, const void *line, int64_t offset, int64_t stride, int64_t n);
    void (*store)(const void *sum, void *line, int64_t offset, int64_t stride, int64_t n);
} line_sums;

luda_status luda__select_slices(const luda_call *call);
luda_status luda__add_slices(const luda_call *call, const line_sums *sums);

#endif
