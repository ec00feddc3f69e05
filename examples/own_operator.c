/*
 * An operator of one's own in C, with its backward: swish(x) = x / (1 + exp(-beta x)).
 *
 *   cc -O2 -shared -fPIC examples/own_operator.c -Iruntime -Lbuild -lluda -lm -o build/examples/libown_operator.so
 *
 * examples/own_operator.lua calls it from Lua. A program in C calls own_swish as it calls luda_tanh.
 */
#include <luda.h>

#include <math.h>
#include <stdlib.h>

typedef struct swish {
    double beta;
} swish;

static double slope(double x, double beta)
{
    double s = 1 / (1 + exp(-beta * x));
    return s + beta * x * s * (1 - s);
}

/* One for each result that took part. What fails returns its status, and the walk ends with it. */
static luda_status backward(luda_node *node, void *state, luda_tensor *const *gradients, const uint8_t *need, luda_tensor **dx)
{
    const swish *s = state;
    luda_tensor *x = NULL, *g = NULL;
    luda_status status = luda_node_kept(node, 0, &x); /* LUDA_EGRAPH if somebody changed it meanwhile */
    if (status == LUDA_OK)
        status = luda_contiguous(gradients[0], &g);
    if (status == LUDA_OK && need[0])
        status = luda_tensor_new(LUDA_F32, luda_tensor_device(x), luda_tensor_ndim(x), luda_tensor_shape(x), &dx[0]);
    if (status == LUDA_OK && need[0]) {
        const float *from = luda_tensor_elements(x), *upstream = luda_tensor_elements(g);
        float *to = luda_tensor_elements(dx[0]);
        for (int64_t i = 0; i < luda_tensor_numel(x); i++)
            to[i] = (float)(upstream[i] * slope(from[i], s->beta));
    }
    luda_tensor_release(x);
    luda_tensor_release(g);
    return status;
}

static const luda_node_class swish_class = { .name = "swish", .backward = backward, .release = free };

/* Ties y to x for backward, which needs the values of x. */
static luda_status record(luda_tensor *x, luda_tensor *values, luda_tensor *y, double beta)
{
    luda_node *node;
    swish *state = malloc(sizeof *state);
    if (!state)
        return luda_set_error(LUDA_ENOMEM, "swish: no memory");
    state->beta = beta;
    luda_status status = luda_node_new(&x, 1, &y, 1, &swish_class, state, &node); /* the state is the node's from here */
    return status == LUDA_OK ? luda_node_keep(node, values) : status;
}

__attribute__((visibility("default"))) luda_status own_swish(luda_tensor *x, double beta, luda_tensor **out)
{
    luda_tensor *values = NULL, *y = NULL;
    if (luda_tensor_dtype(x) != LUDA_F32 || luda_tensor_device(x).type != LUDA_CPU)
        return luda_set_error(LUDA_EDTYPE, "swish: f32 on the CPU is needed; convert with :to(\"f32\")");
    int mode = luda_set_grad_enabled(0); /* what follows is backward's business */
    luda_status status = luda_contiguous(x, &values);
    luda_set_grad_enabled(mode);
    if (status == LUDA_OK)
        status = luda_tensor_new(LUDA_F32, luda_tensor_device(x), luda_tensor_ndim(x), luda_tensor_shape(x), &y);
    if (status == LUDA_OK) {
        const float *from = luda_tensor_elements(values);
        float *to = luda_tensor_elements(y);
        for (int64_t i = 0; i < luda_tensor_numel(y); i++)
            to[i] = (float)(from[i] / (1 + exp(-beta * from[i])));
        status = record(x, values, y, beta);
    }
    luda_tensor_release(values);
    if (status != LUDA_OK)
        luda_tensor_release(y);
    else
        *out = y;
    return status;
}
