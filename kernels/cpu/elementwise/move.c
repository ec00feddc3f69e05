/* cat and narrow_backward: inputs placed into a part of the output. */
#include "loops.h"

/* The part of `out` along `dim` from `start` on, `length` positions `step` apart. */
static luda_operand part_of(const luda_operand *out, int dim, int64_t start, int64_t length, int64_t step)
{
    luda_operand part = *out;
    part.data = (char *)out->data + start * out->stride[dim] * luda__item_size(out->dtype);
    part.numel = out->shape[dim] ? out->numel / out->shape[dim] * length : 0;
    part.shape[dim] = length;
    part.stride[dim] *= step;
    return part;
}

#define EACH "kernels/cpu/elementwise/move.inc"
#include "kernels/cpu/each.h"
