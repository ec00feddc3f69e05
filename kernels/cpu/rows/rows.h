/* Work on rows: lines of the elements along one dimension, cut into slabs by sizes only. */
#ifndef LUDA_ROWS_H
#define LUDA_ROWS_H

#include "kernels/cpu/elementwise/loops.h"

/* Rows whose elements lie apart are handled in groups, so that a cache line is used while it is there. */
enum { ROW_GROUP = 16 };

typedef struct rows {
    space kept;                      /* all dimensions but one */
    int64_t n;                       /* elements of a row */
    int64_t stride[LOOP_OPERANDS];   /* between them, per operand */
    char *data[LOOP_OPERANDS];
    int64_t per_slab, slabs;
    int stream;                      /* operand 0 goes around the caches */
    atomic_int failed;
} rows;

/* Operands of one shape; a 0-d operand is one row of one element. */
void luda__plan_rows(const luda_operand *const *operands, int count, int dim, rows *r);

/* Operand `o`: the offset, in elements, of row `row`. */
static inline int64_t row_offset(const rows *r, int o, int64_t row)
{
    return space_offset(&r->kept, o, row);
}

/* The slab's rows are first .. last-1. */
static inline int64_t slab_rows(const rows *r, int64_t slab, int64_t *last)
{
    *last = smaller((slab + 1) * r->per_slab, r->kept.numel);
    return slab * r->per_slab;
}

#endif
