/* Reductions of plain arrays across ranks. */
#ifndef LUDA_REDUCE_H
#define LUDA_REDUCE_H

#include "../luda.h"

/* One element type: how arrays of it enter, meet and leave the type in which sums are kept. */
typedef struct luda_reducer {
    luda_dtype partial; /* f32 for halves, else the type itself */
    void (*load)(const void *source, void *partial, int64_t count);
    /* partial op= source; NULL where the type has no such reduction. */
    void (*combine[LUDA_REDUCE_COUNT])(void *partial, const void *source, int64_t count);
    /* Divides and rounds once. */
    void (*store)(const void *partial, int divisor, void *target, int64_t count);
} luda_reducer;

const luda_reducer *luda__reducer(luda_dtype dtype);
/* Balanced slices: the first total % parts get one more. */
static inline void luda__slice(int64_t total, int parts, int index, int64_t *start, int64_t *count)
{
    int64_t each = total / parts, more = total % parts;
    *start = index * each + (index < more ? index : more);
    *count = each + (index < more);
}
/*
 * Every target becomes sources[0] op sources[1] op …, combined in this order in the partial type; a mean is divided by
 * nsources. A target may be one of the sources.
 */
void luda__reduce_ranks(luda_dtype dtype, luda_reduction reduction, const void *const *sources, int nsources,
                        void *const *targets, int ntargets, int64_t count);

#endif
