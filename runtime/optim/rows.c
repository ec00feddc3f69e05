/* The rows of optim.def as tables: names, options, states, and the test of each hyper-parameter. */
#include "optimizer.h"

#include <stddef.h>
#include <string.h>

static const luda__optim_row rows[LUDA_OPTIM_COUNT] = {
#define LUDA_STATE(name, field) { #name, offsetof(luda_optim_hyper, field) },
#define LUDA_OPTION(field, default_value) { { #field, default_value }, offsetof(luda_optim_hyper, field) },
#define LUDA_OPTIM(name, states, options) [LUDA_OPTIM_##name] = { #name, { states }, { options } },
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
    if (kind < 0 || kind >= LUDA_OPTIM_COUNT || index < 0 || index >= OPTIONS_MAX ||
        !rows[kind].options[index].info.name)
        return NULL;
    return &rows[kind].options[index].info;
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
    luda_optim_hyper hyper = { .always = 1 };

    for (int i = 0; i < OPTIONS_MAX && row->options[i].info.name; i++) {
        const luda__optim_option *option = &row->options[i];
        double value = values ? values[i] : option->info.value;
        LUDA_TRY(check_option(row, option, value));
        memcpy((char *)&hyper + option->offset, &value, sizeof value);
    }
    if (hyper.nesterov != 0 && (hyper.momentum == 0 || hyper.dampening != 0))
        return luda__fail(LUDA_EINVAL, "%s: nesterov needs momentum and no dampening, they are %g and %g", row->name,
                          hyper.momentum, hyper.dampening);
    *out = hyper;
    return LUDA_OK;
}
