/*
 * The optimizer: an update of all parameters is one kernel call over a list. Everything that can fail happens before
 * the first element changes.
 */
#include "optimizer.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

/* --- Making --- */

static void optim_destroy(void *object)
{
    luda_optim *optim = object;
    for (int i = 0; optim->slots && i < optim->count; i++) {
        for (int s = 0; s < LUDA_OPTIM_MAX_STATES; s++)
            luda_tensor_release(optim->slots[i].state[s]);
        luda_tensor_release(optim->slots[i].parameter);
    }
    free(optim->slots);
    free(optim->groups);
    free(optim);
}

static const luda_class optim_class = { "optim", optim_destroy };

static luda_status check_settings(int kind, const luda_optim_settings *s)
{
    double scale = s->gradient_scale;
    if (!(s->max_grad_norm >= 0) || !(s->clip_norm >= 0) || !(s->clip_value >= 0))
        return luda__fail(LUDA_EINVAL, "optim: limits must be positive; max_grad_norm is %g, clip_norm %g, clip_value %g",
                          s->max_grad_norm, s->clip_norm, s->clip_value);
    if ((s->max_grad_norm > 0) + (s->clip_norm > 0) + (s->clip_value > 0) > 1)
        return luda__fail(LUDA_EINVAL,
                          "optim: two ways of clipping at once; choose max_grad_norm, clip_norm or clip_value");
    if (kind == LUDA_OPTIM_muon && s->clip_value > 0)
        return luda__fail(LUDA_EINVAL, "muon: clip_value would turn whole matrices; choose clip_norm or max_grad_norm");
    if (scale != 0 && !(scale > 0 && isfinite(scale) && isfinite(1 / scale)))
        return luda__fail(LUDA_EINVAL, "optim: gradient_scale is %g, it must be positive and have a finite inverse",
                          scale);
    return LUDA_OK;
}

static luda_status check_groups(const int32_t *group, int count, int ngroups)
{
    for (int i = 0; group && i < count; i++)
        if (group[i] < 0 || group[i] >= ngroups)
            return luda__fail(LUDA_EINDEX, "optim: parameter at %d is in group %d of %d", i, (int)group[i], ngroups);
    return LUDA_OK;
}

static luda_status fill(luda_optim *optim, luda_tensor *const *parameters, const int32_t *group, const double *options,
                        int ngroups)
{
    int width = 0;

    while (luda_optim_option(optim->kind, width))
        width++;
    optim->slots = calloc((size_t)optim->count + 1, sizeof *optim->slots);
    optim->groups = calloc((size_t)ngroups, sizeof *optim->groups);
    if (!optim->slots || !optim->groups)
        return luda__fail(LUDA_ENOMEM, "optim: no memory for %d parameters", optim->count);
    for (int g = 0; g < ngroups; g++) {
        const double *values = options ? options + (size_t)g * (size_t)width : NULL;
        LUDA_TRY(luda__optim_hyper(optim->row, values, &optim->groups[g]));
    }
    for (int i = 0; i < optim->count; i++) {
        optim->slots[i].parameter = luda__retain(parameters[i]);
        optim->slots[i].group = group ? group[i] : 0;
        LUDA_TRY(luda__optim_check_staged(optim->kind, &optim->groups[optim->slots[i].group], parameters[i], i));
    }
    return LUDA_OK;
}

luda_status luda_optim_new(int kind, luda_tensor *const *parameters, int count, const int32_t *group,
                           const double *options, int ngroups, const luda_optim_settings *settings, luda_optim **out)
{
    const luda__optim_row *row = luda__optim_row_get(kind);
    luda_optim *optim;
    luda_status status;

    if (!row)
        return LUDA_EINVAL;
    ngroups = options ? ngroups : 1;
    if (count < 0 || ngroups < 1 || (count > 0 && !parameters))
        return luda__fail(LUDA_EINVAL, "%s: a list of parameters and at least one group are needed", row->name);
    LUDA_TRY(luda__optim_check_parameters(row->name, parameters, count));
    LUDA_TRY(check_groups(group, count, ngroups));
    if (settings)
        LUDA_TRY(check_settings(kind, settings));
    optim = calloc(1, sizeof *optim);
    if (!optim)
        return luda__fail(LUDA_ENOMEM, "%s: no memory for an optimizer", row->name);
    luda__object_init(optim, &optim_class);
    optim->kind = kind;
    optim->row = row;
    optim->count = count;
    optim->ngroups = ngroups;
    if (settings)
        optim->settings = *settings;
    status = fill(optim, parameters, group, options, ngroups);
    if (status != LUDA_OK) {
        luda_optim_release(optim);
        return status;
    }
    *out = optim;
    return LUDA_OK;
}

void luda_optim_retain(luda_optim *optim)
{
    luda__retain(optim);
}

void luda_optim_release(luda_optim *optim)
{
    luda__release(optim);
}

luda_status luda_optim_set_settings(luda_optim *optim, const luda_optim_settings *settings)
{
    LUDA_TRY(check_settings(optim->kind, settings));
    if (!settings->fp32_master != !optim->settings.fp32_master)
        for (int i = 0; i < optim->count; i++)
            if (optim->slots[i].steps > 0)
                return luda__fail(LUDA_EINVAL, "optim: fp32_master cannot change after the first update");
    optim->settings = *settings;
    return LUDA_OK;
}

/* --- A step --- */

static luda_status step_new(int count, luda__optim_pass *s)
{
    size_t n = (size_t)count + 1;
    char *memory = calloc(n, sizeof *s->updates + 2 * sizeof *s->norms + 6 * sizeof(void *));
    if (!memory)
        return luda__fail(LUDA_ENOMEM, "optim: no memory for a step over %d parameters", count);
    *s = (luda__optim_pass){ .memory = memory };
    s->updates = (luda_optim_update *)(void *)memory;
    s->norms = (double *)(s->updates + n);
    s->rates = s->norms + n;
    s->slots = (luda__optim_slot **)(void *)(s->rates + n);
    s->gradients = (luda_tensor **)(void *)(s->slots + n);
    s->targets = s->gradients + n;
    s->directions = s->targets + n;
    s->fresh = (luda_tensor * (*)[2])(void *)(s->directions + n);
    return LUDA_OK;
}

static void step_release(luda__optim_pass *s)
{
    for (int k = 0; k < s->count; k++) {
        luda_tensor_release(s->gradients[k]);
        luda_tensor_release(s->targets[k]);
        luda_tensor_release(s->directions[k]);
        luda_tensor_release(s->fresh[k][0]);
        luda_tensor_release(s->fresh[k][1]);
    }
    free(s->memory);
}

/* Entries of slots that are staged, or of the others. */
static luda_status collect_some(const luda_optim *optim, luda_gradients *gradients, bool staged, luda__optim_pass *s)
{
    for (int i = 0; i < optim->count; i++) {
        luda__optim_slot *slot = &optim->slots[i];
        luda_tensor *gradient = luda_gradients_get(gradients, luda_tensor_id(slot->parameter));
        if (!gradient || luda__optim_staged(optim, slot) != staged)
            continue;
        LUDA_TRY(luda__optim_check_gradient(optim->row->name, slot->parameter, gradient));
        LUDA_TRY(luda__optim_packed(gradient, &s->gradients[s->count]));
        s->slots[s->count++] = slot;
    }
    return LUDA_OK;
}

static luda_status collect(const luda_optim *optim, luda_gradients *gradients, luda__optim_pass *s)
{
    LUDA_TRY(collect_some(optim, gradients, true, s));
    s->staged = s->count;
    return collect_some(optim, gradients, false, s);
}

/* Whether a gradient is still finite after division by a small scale, in the type the update computes in. */
static bool fits(const luda__optim_pass *s, double inverse)
{
    for (int k = 0; k < s->count && inverse > 1; k++)
        if (luda__optim_compute(s->slots[k]->parameter) == LUDA_F32 && s->norms[k] * inverse > FLT_MAX)
            return false;
    return true;
}

static luda_status make_state(const luda_optim *optim, luda__optim_slot *slot, int state)
{
    luda_tensor *p = slot->parameter;
    luda_device device = p->storage->device;
    int64_t shape[LUDA_MAX_DIMS];
    if (slot->state[state])
        return LUDA_OK;
    if (state == MASTER)
        return luda__move(p, LUDA_F32, device, &slot->state[state]);
    luda__optim_state_sizes(optim, slot, state, shape);
    return luda__zeros(luda__optim_compute(p), device, p->ndim, shape, &slot->state[state]);
}

static luda_status make_states(const luda_optim *optim, luda__optim_pass *s)
{
    for (int k = 0; k < s->count; k++) {
        for (int state = 0; state < LUDA_OPTIM_MAX_STATES; state++)
            if (luda__optim_uses(optim, s->slots[k], state))
                LUDA_TRY(make_state(optim, s->slots[k], state));
        LUDA_TRY(luda__optim_packed(s->slots[k]->parameter, &s->targets[k]));
    }
    return LUDA_OK;
}

/* A parameter that was never updated has no states: drops those of a step that failed. */
static void drop_states(luda__optim_pass *s)
{
    for (int k = 0; k < s->count; k++) {
        for (int state = 0; s->slots[k]->steps == 0 && state < LUDA_OPTIM_MAX_STATES; state++) {
            luda_tensor_release(s->slots[k]->state[state]);
            s->slots[k]->state[state] = NULL;
        }
    }
}

/* What the rule works on, and its rounded image: a half parameter beside its master, or what autocast reads. */
static void fill_values(luda__optim_pass *s, int k)
{
    luda_optim_update *u = &s->updates[k];
    luda_tensor *target = s->targets[k], *master = s->slots[k]->state[MASTER];
    luda_dtype image_dtype = LUDA_F32;
    u->value = luda__data(master ? master : target);
    u->dtype = master ? LUDA_F32 : target->dtype;
    u->image = master ? luda__data(target) : luda__image_renewable(target, &image_dtype);
    u->image_dtype = master ? target->dtype : (int32_t)image_dtype;
}

static void fill_updates(const luda_optim *optim, luda__optim_pass *s, double lr, double factor)
{
    const luda_optim_settings *settings = &optim->settings;
    double inverse = settings->gradient_scale != 0 ? 1 / settings->gradient_scale : 1;

    for (int k = 0; k < s->count; k++) {
        luda_optim_update *u = &s->updates[k];
        luda__optim_slot *slot = s->slots[k];
        double norm = s->norms[k] * inverse;
        *u = (luda_optim_update){
            .gradient = luda__data(s->gradients[k]),
            .gradient_dtype = s->gradients[k]->dtype,
            .factor = factor,
            .limit = settings->clip_value > 0 ? settings->clip_value : HUGE_VAL,
            .lr = lr * optim->groups[slot->group].lr_scale,
            .step = slot->steps + 1,
            .hyper = &optim->groups[slot->group],
        };
        fill_values(s, k);
        if (settings->clip_norm > 0 && norm > settings->clip_norm)
            u->factor *= settings->clip_norm / norm;
        for (int state = 0; state < LUDA_OPTIM_STATES; state++)
            if (luda__optim_uses(optim, slot, state))
                u->state[state] = luda__data(slot->state[state]);
        luda__optim_factors(optim->kind, slot, u, k > 0 ? u - 1 : NULL);
    }
}

/* Parameters that are views with gaps get their values back; every one counts as changed. */
static luda_status finish(luda__optim_pass *s)
{
    luda_status status = LUDA_OK;
    for (int k = 0; k < s->count; k++) {
        luda_tensor *parameter = s->slots[k]->parameter;
        if (s->targets[k] != parameter && status == LUDA_OK)
            status = luda__copy(s->targets[k], parameter);
        luda__bump(parameter);
        if (s->updates[k].image && !s->slots[k]->state[MASTER])
            luda__image_renewed(parameter);
        s->slots[k]->steps++;
    }
    return status;
}

static luda_status run_step(luda_optim *optim, luda__optim_pass *s, double lr, luda_gradients *gradients, luda_optim_report *report)
{
    double inverse = optim->settings.gradient_scale != 0 ? 1 / optim->settings.gradient_scale : 1;
    double limit = optim->settings.max_grad_norm;
    luda_status status;

    LUDA_TRY(collect(optim, gradients, s));
    LUDA_TRY(luda__optim_norms(s->gradients, s->count, s->norms, &report->grad_norm));
    report->grad_norm *= inverse;
    if (!isfinite(report->grad_norm) || !fits(s, inverse)) {
        report->skipped = 1;
        return LUDA_OK;
    }
    if (limit > 0 && report->grad_norm > limit)
        report->clip_coef = limit / report->grad_norm;
    status = make_states(optim, s);
    if (status == LUDA_OK) {
        fill_updates(optim, s, lr, inverse * report->clip_coef);
        status = luda__optim_stage(optim, s);
    }
    if (status == LUDA_OK)
        status = luda__optim_update(optim->kind, s->updates + s->staged, s->targets + s->staged, s->count - s->staged);
    if (status == LUDA_OK)
        status = luda__optim_land(optim, s);
    if (status != LUDA_OK) {
        drop_states(s);
        return status;
    }
    report->updated = s->count;
    return finish(s);
}

luda_status luda_optim_step(luda_optim *optim, double lr, luda_gradients *gradients, luda_optim_report *report)
{
    luda_optim_report result = { .clip_coef = 1 };
    luda_status status;
    luda__optim_pass s = { 0 };

    if (!(isfinite(lr) && lr >= 0))
        return luda__fail(LUDA_EINVAL, "%s: the rate is %g, it must be finite and not negative", optim->row->name, lr);
    LUDA_TRY(step_new(optim->count, &s));
    status = run_step(optim, &s, lr, gradients, &result);
    step_release(&s);
    if (status == LUDA_OK && report)
        *report = result;
    return status;
}
