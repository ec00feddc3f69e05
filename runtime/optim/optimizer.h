/* Inside of the optimizer floor: the optimizer itself, rows of optim.def, and work over lists of tensors. */
#ifndef LUDA_OPTIMIZER_H
#define LUDA_OPTIMIZER_H

#include "../../kernels/optim.h"
#include "../core/ops.h"

#include <math.h>

/* --- Rows (rows.c) --- */

/* A state is kept where the hyper-parameter at `offset` of luda_optim_hyper is not 0. */
typedef struct luda__optim_state { const char *name; size_t offset; } luda__optim_state;
typedef struct luda__optim_option { luda_optim_option_info info; size_t offset; } luda__optim_option;

enum { OPTIONS_MAX = 12 };

typedef struct luda__optim_row {
    const char *name;
    luda__optim_state states[LUDA_OPTIM_STATES]; /* the last ones may have no name */
    luda__optim_option options[OPTIONS_MAX];     /* ends before the first without a name */
} luda__optim_row;

const luda__optim_row *luda__optim_row_get(int kind); /* NULL and an error beyond the last */
/* The hyper-parameters of a group; values NULL: the defaults. */
luda_status luda__optim_hyper(const luda__optim_row *row, const double *values, luda_optim_hyper *out);

static inline double luda__optim_field(const luda_optim_hyper *hyper, size_t offset)
{
    return *(const double *)(const void *)((const char *)hyper + offset);
}

/* --- Lists of tensors (lists.c); all contiguous --- */

/* A new reference to the tensor itself, or to a contiguous copy. */
luda_status luda__optim_packed(luda_tensor *tensor, luda_tensor **out);
/* Norm of each, and of all together; *total is not finite where an element is not. norms may be NULL. */
luda_status luda__optim_norms(luda_tensor *const *tensors, int count, double *norms, double *total);
/* Sums whose spans are not filled in yet; tensors say on which device each runs. */
luda_status luda__optim_sum(luda_optim_sum *sums, luda_tensor *const *tensors, int count);
luda_status luda__optim_update(int kind, luda_optim_update *updates, luda_tensor *const *tensors, int count);
/* target = beta * target + alpha * source for the list entry. */
luda_optim_sum luda__optim_sum_item(luda_tensor *target, luda_tensor *source, double alpha, double beta);

static inline bool luda__is_float(int dtype)
{
    return dtype >= 0 && dtype < LUDA_DTYPE_COUNT && luda__class_of((luda_dtype)dtype) == LUDA__FLOAT;
}

bool luda__optim_same_shape(const luda_tensor *a, const luda_tensor *b);
/* LUDA_ESHAPE, LUDA_EDEVICE or LUDA_EDTYPE unless the gradient fits the parameter (a half's may be f32). */
luda_status luda__optim_check_gradient(const char *op, luda_tensor *parameter, const luda_tensor *gradient);
/* The same tensor twice in a list is LUDA_EINVAL; so is what is not a floating tensor. */
luda_status luda__optim_check_parameters(const char *op, luda_tensor *const *parameters, int count);

/* --- The optimizer --- */

enum { MASTER = LUDA_OPTIM_STATES }; /* position of the float32 master among the states */

typedef struct luda__optim_slot {
    luda_tensor *parameter;
    int32_t group;
    int64_t steps;
    luda_tensor *state[LUDA_OPTIM_MAX_STATES];
} luda__optim_slot;

struct luda_optim {
    luda_object base;
    int kind, count;
    const luda__optim_row *row;
    luda__optim_slot *slots;
    luda_optim_hyper *groups;
    luda_optim_settings settings;
};

static inline bool luda__optim_uses(const luda_optim *optim, const luda__optim_slot *slot, int state)
{
    if (state == MASTER)
        return optim->settings.fp32_master &&
               (slot->parameter->dtype == LUDA_F16 || slot->parameter->dtype == LUDA_BF16);
    return optim->row->states[state].name &&
           luda__optim_field(&optim->groups[slot->group], optim->row->states[state].offset) != 0;
}

/* States are double for f64 and float for all others. */
static inline luda_dtype luda__optim_compute(const luda_tensor *parameter)
{
    return parameter->dtype == LUDA_F64 ? LUDA_F64 : LUDA_F32;
}

#endif
