/* See rows.h. Nothing here depends on the instruction set. */
#include "rows.h"

enum { ROW_GRAIN = 16384, LEAST_STREAMED = 1024 };

void luda__plan_rows(const luda_operand *const *operands, int count, int dim, rows *r)
{
    *r = (rows){ .kept = { .numel = 1 }, .n = 1 };
    int ndim = operands[0]->ndim;
    int64_t size = luda__item_size(operands[0]->dtype);
    for (int o = 0; o < count; o++) {
        r->data[o] = operands[o]->data;
        r->stride[o] = ndim > 0 ? operands[o]->stride[dim] : 1;
    }
    for (int d = 0; d < ndim; d++) {
        int64_t stride[LOOP_OPERANDS];
        for (int o = 0; o < count; o++)
            stride[o] = operands[o]->stride[d];
        if (d == dim)
            r->n = operands[0]->shape[d];
        else
            luda__space_add(&r->kept, count, operands[0]->shape[d], stride);
    }
    r->per_slab = larger(ROW_GRAIN / larger(r->n, 1), 1);
    if (r->per_slab > ROW_GROUP)
        r->per_slab = r->per_slab / ROW_GROUP * ROW_GROUP;
    r->slabs = r->n > 0 ? ceil_div(r->kept.numel, r->per_slab) : 0;
    r->stream = r->stride[0] == 1 && r->n * size >= LEAST_STREAMED && luda__streams(operands, count);
}
