/* What the tests of optimizers and accumulation share: small tensors, gradients, options by name. */
#ifndef LUDA_OPTIM_HELPERS_H
#define LUDA_OPTIM_HELPERS_H

#include "check.h"

#include <stdlib.h>

static const luda_device cpu = { LUDA_CPU, 0 };

static inline luda_tensor *vector(luda_dtype dtype, int64_t n, const double *values)
{
    luda_tensor *x = NULL;
    EXPECT_OK(luda_tensor_new(dtype, cpu, 1, &n, &x));
    EXPECT_OK(luda_tensor_write(x, LUDA_F64, values, n));
    return x;
}

static inline double at(luda_tensor *x, int64_t index)
{
    double value = NAN;
    EXPECT_OK(luda_tensor_get(x, index, &value));
    return value;
}

static inline void set(luda_gradients *gradients, luda_tensor *parameter, luda_tensor *gradient)
{
    EXPECT_OK(luda_gradients_set(gradients, luda_tensor_id(parameter), gradient));
}

static inline luda_gradients *gradients_of(luda_tensor *parameter, luda_tensor *gradient)
{
    luda_gradients *gradients = NULL;
    EXPECT_OK(luda_gradients_new(&gradients));
    set(gradients, parameter, gradient);
    return gradients;
}

/* One step of one parameter. */
static inline luda_optim_report step(luda_optim *optim, double lr, luda_tensor *parameter, luda_tensor *gradient)
{
    luda_gradients *gradients = gradients_of(parameter, gradient);
    luda_optim_report report = { 0 };
    EXPECT_OK(luda_optim_step(optim, lr, gradients, &report));
    luda_gradients_release(gradients);
    return report;
}

typedef struct choice { const char *name; double value; } choice;

/* The options of a kind with some chosen by name. */
static inline void choose(int kind, const choice *choices, double *values)
{
    for (int i = 0; luda_optim_option(kind, i); i++)
        values[i] = luda_optim_option(kind, i)->value;
    for (; choices && choices->name; choices++) {
        int i = 0;
        while (luda_optim_option(kind, i) && strcmp(luda_optim_option(kind, i)->name, choices->name) != 0)
            i++;
        EXPECT(luda_optim_option(kind, i) != NULL);
        values[i] = choices->value;
    }
}

static inline luda_optim *make(int kind, luda_tensor **parameters, int count, const choice *choices,
                               const luda_optim_settings *settings)
{
    double values[32];
    luda_optim *optim = NULL;
    choose(kind, choices, values);
    EXPECT_OK(luda_optim_new(kind, parameters, count, NULL, values, 1, settings, &optim));
    return optim;
}

/* Runs the tests of a file and checks that they left no tensor behind. */
static inline int run_all(const char *name, void (*const *tests)(void), int count)
{
    luda_memory_info before, after;
    EXPECT_OK(luda_memory(cpu, &before));
    for (int i = 0; i < count; i++)
        tests[i]();
    EXPECT_OK(luda_memory(cpu, &after));
    EXPECT(after.tensors == before.tensors && after.live == before.live);
    return summary(name);
}

#endif
