/* Operators on handles: what the FFI calls. Handles are resolved, luda_apply runs, results get handles. */
#include "graph.h"

#include <math.h>

static double fail(luda_context *context, luda_status status)
{
    context->signals.status = status;
    return 0;
}

/* Gives visible outputs handles and releases hidden ones; the first handle is returned. */
static double adopt(luda_context *context, luda_op op, luda_tensor **out, double *handles)
{
    const luda_op_info *info = luda_op_get(op);
    int visible = info->outputs - info->hidden;
    bool failed = false;
    for (int o = 0; o < info->outputs; o++) {
        if (o >= visible || failed) {
            luda_tensor_release(out[o]);
            continue;
        }
        handles[o] = luda_handle_new(context, out[o]);
        failed = handles[o] == 0;
    }
    return failed ? 0 : handles[0];
}

static double call(luda_context *context, int op, luda_tensor *const *in, int nin, const luda_attrs *attrs)
{
    luda_tensor *out[LUDA_MAX_OUTPUTS];
    double handles[LUDA_MAX_OUTPUTS];
    luda_status status = luda_apply((luda_op)op, in, nin, attrs, out);
    return status == LUDA_OK ? adopt(context, (luda_op)op, out, handles) : fail(context, status);
}

double luda_call1(luda_context *context, int op, double a)
{
    luda_context_use(context);
    luda_tensor *x = luda_handle_tensor(context, a);
    return x ? call(context, op, &x, 1, NULL) : 0;
}

double luda_call2(luda_context *context, int op, double a, double b)
{
    luda_context_use(context);
    luda_tensor *in[] = { luda_handle_tensor(context, a), luda_handle_tensor(context, b) };
    return in[0] && in[1] ? call(context, op, in, 2, NULL) : 0;
}

double luda_call_attrs(luda_context *context, int op, double a, double b, const luda_attrs *attrs)
{
    luda_context_use(context);
    luda_tensor *in[] = { luda_handle_tensor(context, a), b != 0 ? luda_handle_tensor(context, b) : NULL };
    return in[0] && (b == 0 || in[1]) ? call(context, op, in, b != 0 ? 2 : 1, attrs) : 0;
}

/* A plain number takes the tensor's dtype; only a fraction beside integers, or a whole number beside bool, widens. */
luda_status luda__weak_scalar(const luda_tensor *beside, double number, luda_tensor **out)
{
    luda_dtype dtype = (luda_dtype)beside->dtype;
    luda_tensor *scalar;
    bool whole = number == floor(number) && isfinite(number);
    if (luda__class_of(dtype) != LUDA__FLOAT && !whole)
        dtype = LUDA_F32;
    else if (dtype == LUDA_BOOL)
        dtype = LUDA_I64;
    LUDA_TRY(luda_tensor_scalar(number, dtype, &scalar));
    if (beside->storage->device.type == LUDA_CPU) {
        *out = scalar;
        return LUDA_OK;
    }
    luda_status status = luda__move(scalar, dtype, beside->storage->device, out);
    luda_tensor_release(scalar);
    return status;
}

double luda_call_number(luda_context *context, int op, double a, double number, int reversed)
{
    luda_context_use(context);
    luda_tensor *x = luda_handle_tensor(context, a), *scalar;
    if (!x)
        return 0;
    luda_status status = luda__weak_scalar(x, number, &scalar);
    if (status != LUDA_OK)
        return fail(context, status);
    luda_tensor *in[] = { reversed ? scalar : x, reversed ? x : scalar };
    double result = call(context, op, in, 2, NULL);
    luda_tensor_release(scalar);
    return result;
}

luda_status luda_call_number_into(luda_context *context, int op, double a, double number)
{
    luda_context_use(context);
    luda_tensor *x = luda_handle_tensor(context, a), *scalar;
    luda_status status = x ? luda__weak_scalar(x, number, &scalar) : LUDA_ECLOSED;
    if (status == LUDA_OK) {
        status = luda_apply_into((luda_op)op, (luda_tensor *[]){ x, scalar }, 2, NULL, x);
        luda_tensor_release(scalar);
    }
    if (status != LUDA_OK)
        context->signals.status = status;
    return status;
}

enum { MANY = 1024 };

static luda_status resolve(luda_context *context, const double *handles, int count, luda_tensor **in)
{
    if (count > MANY)
        return luda__fail(LUDA_EINVAL, "call: %d tensors, at most %d can be passed at once", count, MANY);
    for (int i = 0; i < count; i++) {
        in[i] = handles[i] != 0 ? luda_handle_tensor(context, handles[i]) : NULL;
        if (handles[i] != 0 && !in[i])
            return LUDA_ECLOSED;
    }
    return LUDA_OK;
}

luda_status luda_call_full(luda_context *context, int op, const double *handles, int nin, const luda_attrs *attrs, double *out)
{
    luda_tensor *in[MANY], *made[LUDA_MAX_OUTPUTS];
    luda_context_use(context);
    luda_status status = resolve(context, handles, nin, in);
    if (status == LUDA_OK)
        status = luda_apply((luda_op)op, in, nin, attrs, made);
    if (status == LUDA_OK && adopt(context, (luda_op)op, made, out) == 0)
        status = LUDA_ENOMEM;
    if (status != LUDA_OK)
        context->signals.status = status;
    return status;
}

luda_status luda_call_into(luda_context *context, int op, const double *handles, int nin, const luda_attrs *attrs, double into)
{
    luda_tensor *in[MANY];
    luda_context_use(context);
    luda_tensor *target = luda_handle_tensor(context, into);
    luda_status status = target ? resolve(context, handles, nin, in) : LUDA_ECLOSED;
    if (status == LUDA_OK)
        status = luda_apply_into((luda_op)op, in, nin, attrs, target);
    if (status != LUDA_OK)
        context->signals.status = status;
    return status;
}

luda_gradients *luda_call_backward(luda_context *context, double root, double gradient, int retain, int create_graph,
                                   luda_walk **walk, int *event)
{
    luda_context_use(context);
    luda_backward_options options = { .retain = retain, .create_graph = create_graph };
    luda_tensor *tensor = luda_handle_tensor(context, root), *seed = gradient != 0 ? luda_handle_tensor(context, gradient) : NULL;
    luda_walk *made = NULL;
    *walk = NULL;
    bool alive = tensor && (seed || gradient == 0);
    luda_status status = alive ? luda_walk_new(&tensor, &seed, 1, &options, &made) : LUDA_ECLOSED;
    if (status == LUDA_OK)
        status = luda_walk_step(made, event);
    if (status == LUDA_OK && *event != LUDA_WALK_DONE) {
        *walk = made;
        return NULL;
    }
    luda_gradients *gradients = status == LUDA_OK ? luda_walk_gradients(made) : NULL;
    luda_gradients_retain(gradients);
    luda_walk_release(made);
    if (status != LUDA_OK)
        context->signals.status = status;
    return gradients;
}
