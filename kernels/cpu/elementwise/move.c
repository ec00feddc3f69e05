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

#define EACH_SIZE "kernels/cpu/elementwise/move_size.inc"
#include "kernels/cpu/each_size.h"

static const loop_function run_place[] = BY_SIZE(run_place), run_zero[] = BY_SIZE(run_zero);

static luda_status cat(const luda_call *call)
{
    int dim = call->attrs->cat.dim, size = SIZE_INDEX(luda__item_size(call->out[0].dtype));
    int64_t start = 0;
    for (int i = 0; i < call->nin; i++) {
        luda_operand part = part_of(&call->out[0], dim, start, call->in[i].shape[dim], 1);
        const luda_operand *operands[] = { &part, &call->in[i] };
        luda__loop(operands, 2, run_place[size], NULL);
        start += call->in[i].shape[dim];
    }
    return LUDA_OK;
}

static luda_status narrow_backward(const luda_call *call)
{
    const struct luda_narrow_backward_attrs *a = &call->attrs->narrow_backward;
    const luda_operand *whole[] = { &call->out[0] };
    int size = SIZE_INDEX(luda__item_size(call->out[0].dtype));
    luda__loop(whole, 1, run_zero[size], NULL);
    if (call->in[0].numel == 0)
        return LUDA_OK;
    luda_operand part = part_of(&call->out[0], a->dim, a->start, call->in[0].shape[a->dim], a->step);
    const luda_operand *operands[] = { &part, &call->in[0] };
    luda__loop(operands, 2, run_place[size], NULL);
    return LUDA_OK;
}

#define EACH "kernels/cpu/elementwise/move.inc"
#include "kernels/cpu/each.h"
