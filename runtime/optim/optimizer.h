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

enum { OPTIONS_MAX = 20 };

typedef struct luda__optim_row {
    const char *name;
    luda__optim_state states[LUDA_OPTIM_STATES]; /* the last ones may have no name */
    const luda__optim_option *options;           /* ends before the first without a name */
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
    double momenta; /* nadam: the product of its momenta up to the step momenta_step */
    int64_t momenta_step;
    luda_tensor *state[LUDA_OPTIM_MAX_STATES];
} luda__optim_slot;

struct luda_optim {
    luda_object base;
    int kind, count, ngroups;
    const luda__optim_row *row;
    luda__optim_slot *slots;
    luda_optim_hyper *groups;
    luda_optim_settings settings;
};

bool luda__optim_uses(const luda_optim *optim, const luda__optim_slot *slot, int state);
/* The shape of a state of the row; its number of dimensions is the parameter's. */
void luda__optim_state_sizes(const luda_optim *optim, const luda__optim_slot *slot, int state, int64_t *shape);

/* States are double for f64 and float for all others. */
static inline luda_dtype luda__optim_compute(const luda_tensor *parameter)
{
    return parameter->dtype == LUDA_F64 ? LUDA_F64 : LUDA_F32;
}

/* --- A step --- */

/* What one step works on: entry k is a parameter that has a gradient, and the staged ones come first. */
typedef struct luda__optim_pass {
    int count, staged;
    luda__optim_slot **slots;
    luda_tensor **gradients;  /* contiguous */
    luda_tensor **targets;    /* the parameter, or a contiguous copy of it */
    luda_tensor **directions; /* of staged ones: what is subtracted, but for a factor */
    luda_tensor *(*fresh)[2]; /* adafactor: what its states will be */
    double *norms, *rates;    /* rates: the factors */
    luda_optim_update *updates;
    void *memory;
} luda__optim_pass;

/* Numbers that depend on the step alone (factors.c). before: the entry before, or NULL. */
void luda__optim_factors(int kind, luda__optim_slot *slot, luda_optim_update *u, const luda_optim_update *before);

/* Rules that look at a whole parameter (staged.c). */
bool luda__optim_staged(const luda_optim *optim, const luda__optim_slot *slot);
luda_status luda__optim_check_staged(int kind, const luda_optim_hyper *hyper, const luda_tensor *parameter, int index);
/* Makes the directions; nothing else changes. */
luda_status luda__optim_stage(luda_optim *optim, luda__optim_pass *s);
/* Updates states and values by them. */
luda_status luda__optim_land(luda_optim *optim, luda__optim_pass *s);

#endif
