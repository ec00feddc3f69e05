/*
 * layer_norm and rms_norm over the last dimension and their backward, which gives all gradients in one pass.
 *
 * Rows far from 0 lose nothing: a rough mean is found from the distances to the first element, then deviations from
 * it, whose own mean corrects it. Gradients of weight and bias are summed by fixed slabs of rows, in the compute type
 * over a few rows and in double beyond, and the slabs in order.
 */
#include "rows.h"
#include "kernels/cpu/scalar.h"

enum { MOST_SLABS = 64, ROWS_SUMMED = 16 };

typedef struct norm {
    rows r;                       /* forward: out, x; backward: dx, g, x */
    const luda_operand *mean, *rstd; /* mean: NULL where rows are not centred */
    double eps;
    void *weight, *bias;          /* n values of the compute type */
    double *partial;              /* [slabs][2][n]: gradients of weight and bias */
} norm;

/* The offset of element `index` (row-major) of a tensor. */
static int64_t element_offset(const luda_operand *o, int64_t index)
{
    int64_t offset = 0;
    for (int d = o->ndim - 1; d >= 0; d--) {
        offset += index % o->shape[d] * o->stride[d];
        index /= o->shape[d];
    }
    return offset;
}

/* Rows in at most MOST_SLABS slabs, because each keeps sums of its own. */
static void few_slabs(rows *r)
{
    r->per_slab = larger(r->per_slab, ceil_div(r->kept.numel, MOST_SLABS));
    r->slabs = ceil_div(r->kept.numel, r->per_slab);
}

#define EACH_CLASSES CLASS_FLOAT
#define EACH "kernels/cpu/rows/norm.inc"
#include "kernels/cpu/each.h"
