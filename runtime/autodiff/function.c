/*
 * Functions with a backward of their own: running those in C, and for those in a language one call for each half of a
 * forward and one for each step of backward, all by handles.
 */
#include "walk.h"

#include <stdlib.h>
#include <string.h>

/* --- In C --- */

static luda_status check_shapes(const luda_node *node, luda_tensor *const *dx)
{
    char given[160], wanted[160];
    for (int i = 0; i < node->nin; i++) {
        const luda_node_input *input = &node->in[i];
        if (dx[i] && (dx[i]->ndim != input->ndim ||
                      memcmp(dx[i]->shape, input->shape, (size_t)input->ndim * sizeof *input->shape) != 0))
            return luda__fail(LUDA_ESHAPE, "%s: backward gave a gradient of shape %s for an input of shape %s", luda__node_name(node),
                              luda__shape_text(dx[i]->ndim, dx[i]->shape, given, sizeof given),
                              luda__shape_text(input->ndim, input->shape, wanted, sizeof wanted));
    }
    return LUDA_OK;
}

luda_status luda__run_custom(luda_walk *walk, const walk_entry *entry)
{
    luda_node *node = entry->node;
    if (walk->create_graph && !node->class->recorded)
        return luda__fail(LUDA_EGRAPH, "%s: its backward is not recorded, so it has no second derivative; use create_graph = false",
                          luda__node_name(node));
    LUDA_TRY(node->class->backward(node, node->state, entry->g, walk->need, walk->dx));
    return check_shapes(node, walk->dx);
}

/* --- In a language: forward --- */

/* The tensors behind handles, lent; NULL for 0. */
static luda_status resolve(luda_context *context, const double *handles, int count, luda_tensor **out)
{
    for (int i = 0; i < count; i++) {
        out[i] = handles[i] != 0 ? luda_handle_tensor(context, handles[i]) : NULL;
        if (handles[i] != 0 && !out[i])
            return (luda_status)context->signals.status;
    }
    return LUDA_OK;
}

static int32_t needs_bit(int i)
{
    return (int32_t)(1u << (i < 31 ? i : 31));
}

int luda_function_enter(luda_context *context, luda_function_call *call)
{
    luda_context_use(context);
    call->needs = 0;
    for (int i = 0; i < call->ninputs; i++) {
        luda_tensor *input;
        LUDA_TRY(resolve(context, &call->inputs[i], 1, &input));
        if (luda__tracked(input))
            call->needs |= needs_bit(i);
    }
    return luda_set_grad_enabled(0);
}

/* Fresh tensors over the results' storages: a node may not own tensors that it did not make. */
static luda_status renew(luda_tensor *const *results, int count, luda_tensor **fresh)
{
    for (int o = 0; o < count; o++)
        if (results[o])
            LUDA_TRY(luda__tensor_alias(results[o], &fresh[o]));
    return LUDA_OK;
}

static luda_status keep(luda_context *context, const luda_function_call *call, luda_node *node, luda_tensor *const *fresh)
{
    for (int s = 0; s < call->nsaved; s++) {
        luda_tensor *saved;
        LUDA_TRY(resolve(context, &call->saved[s], 1, &saved));
        for (int o = 0; o < call->noutputs; o++)
            if (call->outputs[o] == call->saved[s])
                saved = fresh[o];
        LUDA_TRY(luda_node_keep(node, saved));
    }
    return LUDA_OK;
}

static void release_handles(luda_context *context, double *handles, int count)
{
    for (int i = 0; i < count; i++) {
        luda_handle_release(context, handles[i]); /* 0 is fine */
        handles[i] = 0;
    }
}

/* Takes the references. */
static luda_status name_outputs(luda_context *context, luda_function_call *call, luda_tensor **fresh)
{
    for (int o = 0; o < call->noutputs; o++) {
        luda_tensor *tensor = fresh[o];
        fresh[o] = NULL;
        call->outputs[o] = tensor ? luda_handle_new(context, tensor) : 0;
        if (tensor && call->outputs[o] == 0) {
            release_handles(context, call->outputs, o);
            return (luda_status)context->signals.status;
        }
    }
    return LUDA_OK;
}

luda_status luda_function_record(luda_context *context, luda_function_call *call, int mode, const char *name)
{
    int nin = call->ninputs, nout = call->noutputs;
    luda_tensor *few[24] = { NULL }, **list = few;
    luda_node *node = NULL;
    luda_context_use(context);
    luda_set_grad_enabled(mode);
    if (nin + 2 * nout > (int)(sizeof few / sizeof *few) && !(list = calloc((size_t)(nin + 2 * nout), sizeof *list)))
        return luda__fail(LUDA_ENOMEM, "%s: no memory for %d inputs and %d outputs", name, nin, nout);
    luda_tensor **results = list + nin, **fresh = results + nout;
    luda_status status = resolve(context, call->inputs, nin, list);
    if (status == LUDA_OK)
        status = resolve(context, call->outputs, nout, results);
    if (status == LUDA_OK)
        status = renew(results, nout, fresh);
    if (status == LUDA_OK)
        status = luda_node_new_lua(list, nin, fresh, nout, name, (int64_t)call->tag, &node);
    if (status == LUDA_OK && node) {
        node->function = true;
        status = keep(context, call, node, fresh);
    }
    if (!node)
        call->tag = 0;
    if (status == LUDA_OK)
        status = name_outputs(context, call, fresh);
    for (int o = 0; o < nout; o++)
        luda_tensor_release(fresh[o]);
    if (list != few)
        free(list);
    call->dead = context->dead_count;
    return status;
}

/* --- In a language: backward --- */

static luda_status give(luda_context *context, luda_function_call *call, luda_walk *walk)
{
    int count = call->given;
    call->given = 0;
    for (int i = 0; i < count; i++) {
        luda_tensor *gradient;
        LUDA_TRY(resolve(context, &call->inputs[i], 1, &gradient));
        if (gradient && luda_walk_needs(walk, i))
            LUDA_TRY(luda_walk_give(walk, i, gradient));
    }
    return LUDA_OK;
}

/* A new handle of a reference that passes to it; none of NULL. */
static luda_status name_tensor(luda_context *context, luda_tensor *tensor, double *out)
{
    *out = tensor ? luda_handle_new(context, tensor) : 0;
    return !tensor || *out != 0 ? LUDA_OK : (luda_status)context->signals.status;
}

static luda_status name_all(luda_context *context, luda_function_call *call, const walk_entry *entry)
{
    luda_node *node = entry->node;
    for (int o = 0; o < node->nout; o++)
        LUDA_TRY(name_tensor(context, luda__retain(entry->g[o]), &call->outputs[o]));
    for (int s = 0; s < node->nextra; s++) {
        luda_tensor *saved;
        LUDA_TRY(luda_node_kept(node, s, &saved));
        LUDA_TRY(name_tensor(context, saved, &call->saved[s]));
    }
    return LUDA_OK;
}

static luda_status fill_in(luda_context *context, luda_function_call *call, const luda_walk *walk)
{
    const luda_node *node = walk->current->node;
    call->ninputs = node->nin;
    call->noutputs = node->nout;
    call->nsaved = node->nextra;
    call->tag = (double)node->tag;
    call->needs = 0;
    if (node->nin > call->capacity || node->nout > call->capacity || node->nextra > call->capacity)
        return luda__fail(LUDA_EINTERNAL, "%s: room for %d tensors is too little", luda__node_name(node), call->capacity);
    for (int i = 0; i < node->nin; i++)
        if (walk->need[i])
            call->needs |= needs_bit(i);
    memset(call->outputs, 0, (size_t)node->nout * sizeof *call->outputs);
    memset(call->saved, 0, (size_t)node->nextra * sizeof *call->saved);
    luda_status status = name_all(context, call, walk->current);
    if (status != LUDA_OK) {
        release_handles(context, call->outputs, node->nout);
        release_handles(context, call->saved, node->nextra);
    }
    return status;
}

int luda_function_next(luda_context *context, luda_function_call *call, luda_walk *walk, int event)
{
    luda_context_use(context);
    if (event < 0) {
        LUDA_TRY(give(context, call, walk));
        LUDA_TRY(luda_walk_step(walk, &event));
    }
    if (event != LUDA_NEEDS_LUA)
        return event;
    context->grad_enabled = walk->create_graph;
    if (luda_walk_is_hook(walk) || !walk->current->node->function)
        return event;
    LUDA_TRY(fill_in(context, call, walk));
    return LUDA_NEEDS_FUNCTION;
}
