/* take_along and max_backward: one element along a dimension read or placed, for each of the others. */
#include "along.h"

#define EACH_SIZE "kernels/cpu/reduction/along_size.inc"
#include "kernels/cpu/each_size.h"

static luda_status take_along(const luda_call *call)
{
    static void (*const take_slab[])(void *, int64_t) = BY_SIZE(take_slab);
    const struct luda_extremum_attrs *attrs = &call->attrs->extremum;
    along a;
    plan_along(&call->out[0], &call->in[1], &call->in[0], attrs->dim, attrs->base, &a);
    luda_status status = luda__check_positions(call, &call->in[1], attrs->base, a.size, NULL);
    if (status == LUDA_OK && call->out[0].numel > 0)
        run_along(&a, 8, take_slab[SIZE_INDEX(luda__item_size(call->out[0].dtype))]);
    return status;
}

static luda_status max_backward(const luda_call *call)
{
    static void (*const put_slab[])(void *, int64_t) = BY_SIZE(put_slab);
    const struct luda_extremum_backward_attrs *attrs = &call->attrs->extremum_backward;
    along a;
    plan_along(&call->in[0], &call->in[1], &call->out[0], attrs->dim, attrs->base, &a);
    luda_status status = luda__check_positions(call, &call->in[1], attrs->base, a.size, NULL);
    if (status == LUDA_OK && call->in[0].numel > 0)
        run_along(&a, a.size, put_slab[SIZE_INDEX(luda__item_size(call->out[0].dtype))]);
    return status;
}

#define EACH "kernels/cpu/reduction/along.inc"
#include "kernels/cpu/each.h"
