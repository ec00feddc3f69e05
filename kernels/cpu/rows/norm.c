/*
 * layer_norm over the last dimension and its backward, which gives three gradients in one pass.
 *
 * The variance is the mean of squared deviations from a mean in double, so that rows far from 0 lose nothing. Gradients
 * of weight and bias are summed by fixed slabs of rows, in double, and the slabs in order.
 */
#include "rows.h"
#include "kernels/cpu/scalar.h"

enum { MOST_SLABS = 64 };

typedef struct norm {
    rows r;                       /* forward: out, x; backward: dx, g, x */
    const luda_operand *mean, *rstd;
    double eps;
    void *weight, *bias;          /* n values of the compute type, or NULL */
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
