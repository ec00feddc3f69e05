/* What records see of an optimizer: states and step counts by position. */
#include "optimizer.h"

#include <string.h>

static luda__optim_slot *slot_at(const luda_optim *optim, int parameter)
{
    return parameter >= 0 && parameter < optim->count ? &optim->slots[parameter] : NULL;
}

/* The slot of a state that is in use; NULL for any other. */
static luda__optim_slot *slot_with(const luda_optim *optim, int parameter, int state)
{
    luda__optim_slot *slot = slot_at(optim, parameter);
    return slot && state >= 0 && state < LUDA_OPTIM_MAX_STATES && luda__optim_uses(optim, slot, state) ? slot : NULL;
}

int luda_optim_parameter_count(const luda_optim *optim)
{
    return optim->count;
}

luda_tensor *luda_optim_parameter(const luda_optim *optim, int parameter)
{
    luda__optim_slot *slot = slot_at(optim, parameter);
    return slot ? slot->parameter : NULL;
}

const char *luda_optim_state_name(const luda_optim *optim, int parameter, int state)
{
    if (!slot_with(optim, parameter, state))
        return NULL;
    return state == MASTER ? "master" : optim->row->states[state].name;
}

int luda_optim_state_dtype(const luda_optim *optim, int parameter, int state)
{
    luda__optim_slot *slot = slot_with(optim, parameter, state);
    return slot ? (int)luda__optim_compute(slot->parameter) : -1;
}

int luda_optim_state_shape(const luda_optim *optim, int parameter, int state, int64_t *shape)
{
    luda__optim_slot *slot = slot_with(optim, parameter, state);
    if (!slot)
        return -1;
    luda__optim_state_sizes(optim, slot, state, shape);
    return slot->parameter->ndim;
}

luda_tensor *luda_optim_state(const luda_optim *optim, int parameter, int state)
{
    luda__optim_slot *slot = slot_with(optim, parameter, state);
    return slot ? slot->state[state] : NULL;
}

luda_status luda_optim_check_state(const luda_optim *optim, int parameter, int state, const luda_tensor *tensor)
{
    const char *name = luda_optim_state_name(optim, parameter, state);
    char wanted[128], got[128];
    int64_t shape[LUDA_MAX_DIMS];

    if (!name)
        return luda__fail(LUDA_EINDEX, "%s: there is no state %d of the parameter at %d", optim->row->name, state,
                          parameter);
    luda_tensor *p = optim->slots[parameter].parameter;
    luda_optim_state_shape(optim, parameter, state, shape);
    if (tensor->ndim != p->ndim || memcmp(tensor->shape, shape, (size_t)p->ndim * sizeof *shape) != 0)
        return luda__fail(LUDA_EMISMATCH, "%s: %s of the parameter at %d has shape %s, it must be %s",
                          optim->row->name, name, parameter,
                          luda__shape_text(tensor->ndim, tensor->shape, got, sizeof got),
                          luda__shape_text(p->ndim, shape, wanted, sizeof wanted));
    if (tensor->dtype != (int)luda__optim_compute(p))
        return luda__fail(LUDA_EMISMATCH, "%s: %s of the parameter at %d is %s, it must be %s", optim->row->name, name,
                          parameter, luda_dtype_name((luda_dtype)tensor->dtype),
                          luda_dtype_name(luda__optim_compute(p)));
    return LUDA_OK;
}

luda_status luda_optim_set_state(luda_optim *optim, int parameter, int state, const luda_tensor *tensor)
{
    luda_tensor *copy;
    LUDA_TRY(luda_optim_check_state(optim, parameter, state, tensor));
    luda__optim_slot *slot = &optim->slots[parameter];
    LUDA_TRY(luda__move(tensor, (luda_dtype)tensor->dtype, slot->parameter->storage->device, &copy));
    luda_tensor_release(slot->state[state]);
    slot->state[state] = copy;
    return LUDA_OK;
}

int64_t luda_optim_steps(const luda_optim *optim, int parameter)
{
    luda__optim_slot *slot = slot_at(optim, parameter);
    return slot ? slot->steps : -1;
}

luda_status luda_optim_set_steps(luda_optim *optim, int parameter, int64_t steps)
{
    luda__optim_slot *slot = slot_at(optim, parameter);
    if (!slot)
        return luda__fail(LUDA_EINDEX, "%s: there is no parameter at %d of %d", optim->row->name, parameter,
                          optim->count);
    if (steps < 0)
        return luda__fail(LUDA_EINVAL, "%s: a step count of %lld", optim->row->name, (long long)steps);
    for (int state = 0; steps == 0 && state < LUDA_OPTIM_MAX_STATES; state++) {
        luda_tensor_release(slot->state[state]);
        slot->state[state] = NULL;
    }
    slot->steps = steps;
    return LUDA_OK;
}
