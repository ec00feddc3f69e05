/*
 * Multi-tensor work of one device: one call over a list of arrays instead of one per tensor. Every array is contiguous
 * and on the device of the table; gradients and sources are only read. What depends on a step alone (bias corrections,
 * clipping factors) arrives as numbers.
 */
#ifndef LUDA_OPTIM_H
#define LUDA_OPTIM_H

#include "kernels.h"

enum { LUDA_OPTIM_STATES = 4 };

typedef struct luda_optim_hyper {
#define LUDA_HYPER(field, ...) double field;
#include "optim.def"
} luda_optim_hyper;

/* Where an array lies when the list is seen as one long array: how many elements stand before it. */
typedef struct luda_optim_span { int64_t start, numel; } luda_optim_span;

typedef struct luda_optim_array {
    luda_optim_span span;
    const void *data;
    int32_t dtype;
} luda_optim_array;

/*
 * target = beta * target + alpha * source, clamped to `limit` in size. beta 0 does not read the target, which may be
 * the source.
 */
typedef struct luda_optim_sum {
    luda_optim_span span;
    void *target;
    const void *source;
    int32_t target_dtype, source_dtype;
    double alpha, beta, limit;
} luda_optim_sum;

/*
 * Adam and its relatives for one element: with d = g + l2 p and the moments m of d and v of its square,
 * p = keep p - (moment m + direct d) / (root sqrt(v) + eps).
 */
typedef struct luda_optim_adam { double l2, keep, moment, direct, root, eps; } luda_optim_adam;

/*
 * One parameter's update, in one pass over memory. It is computed in double for an f64 value and in float for all others,
 * and that is the type of states. The rule works on the value; the image, where there is one, gets it rounded in the same
 * pass: a half parameter is the image of its master, an f32 parameter may have an image that autocast reads.
 */
typedef struct luda_optim_update {
    luda_optim_span span;
    void *value, *image;
    const void *gradient;
    void *state[LUDA_OPTIM_STATES]; /* positions of the row; NULL where not kept */
    int32_t dtype, image_dtype, gradient_dtype;
    double factor; /* multiplies the gradient first */
    double limit;  /* then its elements are clamped to this size */
    double lr;
    int64_t step;         /* the parameter's updates, this one included */
    double correction[3]; /* 1 - beta1^step, 1 - beta2^step, 1 - beta3^step */
    luda_optim_adam adam; /* of Adam and its relatives */
    const luda_optim_hyper *hyper;
} luda_optim_update;

typedef struct luda_optim_kernels {
    /* sums[i] = sum of (scale * element)^2 over array i, added up in double, in the same order every time. */
    luda_status (*squares)(const luda_optim_array *arrays, int count, double scale, double *sums, void *stream,
                           char *message);
    luda_status (*sum)(const luda_optim_sum *sums, int count, void *stream, char *message);
    /* The loop of a rule. */
    luda_status (*step)(int kind, const luda_optim_update *updates, int count, void *stream, char *message);
} luda_optim_kernels;

/* The CPU's table for this processor. */
const luda_optim_kernels *luda__cpu_optim(void);

#endif
