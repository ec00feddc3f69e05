/*
 * The plan of a reduction: which elements of the input belong to one output, and how the work is cut.
 *
 * Kept dimensions and reduced dimensions are two index spaces. The work is a grid of slabs: ranges of kept indices
 * times ranges of reduced indices, cut by sizes only. Where the reduced range is cut, partial results are combined in a
 * tree over the slabs' order; so the result is the same for every number of threads.
 */
#ifndef LUDA_REDUCE_H
#define LUDA_REDUCE_H

#include "kernels/cpu/elementwise/loops.h"

typedef struct reduction {
    space kept;    /* operand 0: the output, operand 1: the input */
    space reduced; /* operand 1: the input */
    int columns;   /* neighbouring outputs are made together: they lie closer than what they sum, or sum few */
    int64_t kept_step, kept_slabs, reduced_step, reduced_slabs;
    const char *input;
    char *output;
    void *partial; /* [reduced_slabs][kept.numel] accumulators, where reduced_slabs > 1 */
    double divisor;
} reduction;

/* `dims` count 0: all dimensions. */
void luda__plan_reduction(const luda_operand *in, const luda_operand *out, const luda_dims *dims, reduction *r);

#endif
