/* The rows of optim.def as tables: names, options, states, and the test of each hyper-parameter. */
#include "optimizer.h"

#include <stddef.h>
#include <string.h>

#define LUDA_OPTION(field, default_value) { { #field, default_value }, offsetof(luda_optim_hyper, field) },
#define LUDA_OPTIM(name, loop, states, options)                                                                        \
    static const luda__optim_option name##_options[] = { options{ { NULL, 0 }, 0 } };                                  \
    _Static_assert(sizeof name##_options / sizeof *name##_options <= OPTIONS_MAX + 1, "more options than are expected");
#include "../../kernels/optim.def"

static const luda__optim_row rows[LUDA_OPTIM_COUNT] = {
#define LUDA_STATE(name, field) { #name, offsetof(luda_optim_hyper, field) },
#define LUDA_OPTIM(name, loop, states, options) [LUDA_OPTIM_##name] = { #name, { states }, name##_options },
#include "../../kernels/optim.def"
};

#define LUDA_HYPER(field, test, sentence)                                                                              \
    static bool field##_is_right(double x)                                                                             \
    {                                                                                                                  \
        return isfinite(x) && (test);                                                                                  \
    }
#include "../../kernels/optim.def"

static const struct {
    size_t offset;
    bool (*is_right)(double x);
    const char *sentence;
} tests[] = {
#define LUDA_HYPER(field, test, sentence) { offsetof(luda_optim_hyper, field), field##_is_right, sentence },
#include "../../kernels/optim.def"
};

const luda__optim_row *luda__optim_row_get(int kind)
{
    if (kind >= 0 && kind < LUDA_OPTIM_COUNT)
        return &rows[kind];
    luda__fail(LUDA_EINVAL, "optim: there is no optimizer %d", kind);
    return NULL;
}

const char *luda_optim_name(int kind)
{
    return kind >= 0 && kind < LUDA_OPTIM_COUNT ? rows[kind].name : NULL;
}

const luda_optim_option_info *luda_optim_option(int kind, int index)
{
    if (kind < 0 || kind >= LUDA_OPTIM_COUNT || index < 0)
        return NULL;
    for (int i = 0; rows[kind].options[i].info.name; i++)
        if (i == index)
            return &rows[kind].options[i].info;
    return NULL;
}

static luda_status check_option(const luda__optim_row *row, const luda__optim_option *option, double value)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (tests[i].offset == option->offset && !tests[i].is_right(value))
            return luda__fail(LUDA_EINVAL, "%s: %s is %g, it must be %s", row->name, option->info.name, value,
                              tests[i].sentence);
    return LUDA_OK;
}

luda_status luda__optim_hyper(const luda__optim_row *row, const double *values, luda_optim_hyper *out)
{
    luda_optim_hyper hyper = { .always = 1, .rows = 1, .columns = 1, .whole = 1 };

    for (int i = 0; row->options[i].info.name; i++) {
        const luda__optim_option *option = &row->options[i];
        double value = values ? values[i] : option->info.value;
        LUDA_TRY(check_option(row, option, value));
        memcpy((char *)&hyper + option->offset, &value, sizeof value);
    }
    hyper.use_adamw = hyper.use_muon == 0;
    if (hyper.nesterov != 0 && (hyper.momentum == 0 || hyper.dampening != 0))
        return luda__fail(LUDA_EINVAL, "%s: nesterov needs momentum and no dampening, they are %g and %g", row->name,
                          hyper.momentum, hyper.dampening);
    if (hyper.momentum_mode != 0 && hyper.dampening != 0)
        return luda__fail(LUDA_EINVAL, "%s: momentum_mode 'ema' has no dampening, it is %g", row->name, hyper.dampening);
    if (hyper.use_muon != 0 && hyper.eps == 0)
        return luda__fail(LUDA_EINVAL, "%s: eps is 0, it must be positive", row->name);
    *out = hyper;
    return LUDA_OK;
}

luda_status luda_optim_set_option(luda_optim *optim, int group, int index, double value)
{
    luda_optim_hyper changed;
    double values[OPTIONS_MAX];
    const luda__optim_option *options = optim->row->options;

    if (group < 0 || group >= optim->ngroups || !luda_optim_option(optim->kind, index))
        return luda__fail(LUDA_EINDEX, "%s: there is no group %d with an option %d", optim->row->name, group, index);
    for (int i = 0; options[i].info.name; i++)
        values[i] = i == index ? value : luda__optim_field(&optim->groups[group], options[i].offset);
    LUDA_TRY(luda__optim_hyper(optim->row, values, &changed));
    optim->groups[group] = changed;
    return LUDA_OK;
}

bool luda__optim_uses(const luda_optim *optim, const luda__optim_slot *slot, int state)
{
    const luda_tensor *p = slot->parameter;
    const luda__optim_state *row = &optim->row->states[state];
    if (state == MASTER)
        return optim->settings.fp32_master && (p->dtype == LUDA_F16 || p->dtype == LUDA_BF16);
    if (!row->name || luda__optim_field(&optim->groups[slot->group], row->offset) == 0)
        return false;
    if (row->offset == offsetof(luda_optim_hyper, whole))
        return p->ndim < 2;
    return p->ndim >= 2 ||
           (row->offset != offsetof(luda_optim_hyper, rows) && row->offset != offsetof(luda_optim_hyper, columns));
}

void luda__optim_state_sizes(const luda_optim *optim, const luda__optim_slot *slot, int state, int64_t *shape)
{
    const luda_tensor *p = slot->parameter;
    size_t offset = state == MASTER ? 0 : optim->row->states[state].offset;
    memcpy(shape, p->shape, (size_t)p->ndim * sizeof *shape);
    if (state != MASTER && offset == offsetof(luda_optim_hyper, rows))
        shape[p->ndim - 1] = 1;
    if (state != MASTER && offset == offsetof(luda_optim_hyper, columns))
        shape[p->ndim - 2] = 1;
}
