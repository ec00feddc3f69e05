/* Nodes: making, binding, keeping, freeing; leaves; custom nodes and hooks. */
#include "graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Freeing by a work list --- */

static _Thread_local luda_node *dead_list;
static _Thread_local bool draining;

static void release_kept(luda_kept *kept)
{
    luda_tensor *tensor = kept->tensor;
    kept->tensor = NULL;
    luda_tensor_release(tensor);
}

static void release_state(luda_node *node)
{
    if (node->class && node->class->release && node->state)
        node->class->release(node->state);
    node->state = NULL;
    for (int i = 0; i < node->nextra; i++)
        release_kept(&node->extra[i]);
    free(node->extra);
    node->extra = NULL;
    node->nextra = 0;
}

void luda__node_consume(luda_node *node)
{
    node->consumed = true;
    for (int i = 0; i < node->nin; i++)
        release_kept(&node->in[i].kept);
    for (int o = 0; node->out && o < node->nout; o++)
        release_kept(&node->out[o]);
    release_state(node);
}

static void free_node(luda_node *node)
{
    luda__node_consume(node);
    for (int i = 0; i < node->nin; i++)
        luda__release(node->in[i].parent);
    if (node->lua_name)
        luda__dead_tag(node->context, node->tag);
    for (int i = 0; i < node->nhooks; i++)
        luda__dead_tag(node->context, node->hooks[i].tag);
    free(node->hooks);
    free(node->lua_name);
    luda__object_free(node, node->bytes);
}

static void node_destroy(void *object)
{
    luda_node *node = object;
    node->next_dead = dead_list;
    dead_list = node;
    if (draining)
        return;
    draining = true;
    while (dead_list) {
        node = dead_list;
        dead_list = node->next_dead;
        free_node(node);
    }
    draining = false;
}

const luda_class luda__node_class = { "node", node_destroy };

/* --- Making --- */

luda_status luda__node_make(luda_tensor *const *in, int nin, int nout, bool keep_outputs, const luda_attrs *attrs, luda_node **out)
{
    int64_t dims = 0;
    for (int i = 0; i < nin; i++)
        dims += in[i] ? in[i]->ndim : 0;
    size_t outputs = keep_outputs ? (size_t)nout * sizeof(luda_kept) : 0;
    size_t inputs = (size_t)nin * sizeof(luda_node_input), attributes = attrs ? sizeof *attrs : 0;
    size_t bytes = sizeof(luda_node) + inputs + outputs + attributes + (size_t)dims * sizeof(int64_t);
    luda_node *node = luda__object_new(bytes);
    if (!node)
        return luda__fail(LUDA_ENOMEM, "graph: no memory for a node");
    memset(node, 0, sizeof *node + inputs + outputs);
    luda__object_init(node, &luda__node_class);
    node->bytes = bytes;
    node->op = -1;
    node->nin = nin;
    node->nout = nout;
    node->context = luda__context();
    node->order = ++node->context->order;
    char *at = (char *)(node + 1);
    node->in = (luda_node_input *)at;
    node->out = keep_outputs ? (luda_kept *)(at + inputs) : NULL;
    if (attrs) {
        node->attrs = (luda_attrs *)(at + inputs + outputs);
        *node->attrs = *attrs;
    }
    int64_t *shape = (int64_t *)(at + inputs + outputs + attributes);
    for (int i = 0; i < nin; i++) {
        if (!in[i])
            continue;
        luda_node_input *input = &node->in[i];
        input->parent = luda__retain(in[i]->node);
        input->parent_output = in[i]->node_output;
        input->dtype = in[i]->dtype;
        input->ndim = in[i]->ndim;
        input->device = in[i]->storage->device;
        input->shape = shape;
        memcpy(shape, in[i]->shape, (size_t)in[i]->ndim * sizeof *shape);
        shape += in[i]->ndim;
    }
    *out = node;
    return LUDA_OK;
}

void luda__node_bind(luda_node *node, luda_tensor *tensor, int output)
{
    luda_object *before = tensor->node;
    tensor->node = luda__retain(node);
    tensor->node_output = output;
    tensor->node_version = luda_tensor_version(tensor);
    luda__release(before);
}

const char *luda__node_name(const luda_node *node)
{
    if (node->op >= 0)
        return luda_op_get((luda_op)node->op)->name;
    if (node->lua_name)
        return node->lua_name;
    return node->class ? node->class->name : "leaf";
}

luda_status luda__kept_get(const luda_node *node, const luda_kept *kept, const char *what, int number, luda_tensor **out)
{
    const luda_tensor *tensor = kept->tensor;
    uint32_t now = luda_tensor_version(tensor);
    if (now == kept->version) {
        *out = luda__retain(kept->tensor);
        return LUDA_OK;
    }
    const char *site = luda__site_name(tensor->storage);
    char which[16] = "", shape[160];
    if (number > 0)
        snprintf(which, sizeof which, " %d", number);
    return luda__fail(LUDA_EGRAPH,
                      "%s: its %s%s of shape %s in %s%s%s, kept for backward, was changed in place (version %u, kept at %u), maybe "
                      "through a view; change a clone instead",
                      luda__node_name(node), what, which, luda__shape_text(tensor->ndim, tensor->shape, shape, sizeof shape),
                      luda_dtype_name((luda_dtype)tensor->dtype), site ? ", made at " : "", site ? site : "", now, kept->version);
}

/* --- Leaves --- */

luda_status luda_set_requires_grad(luda_tensor *tensor, int required)
{
    luda_node *node;
    if (luda__class_of((luda_dtype)tensor->dtype) != LUDA__FLOAT && required)
        return luda__fail(LUDA_EDTYPE, "requires_grad_: a tensor of %s has no gradient; convert with :to(\"f32\")",
                          luda_dtype_name((luda_dtype)tensor->dtype));
    if (tensor->node && !tensor->requires_grad)
        return luda__fail(LUDA_EGRAPH, "requires_grad_: the tensor is the result of %s; detach it first",
                          luda__node_name((luda_node *)tensor->node));
    if (tensor->requires_grad == (required != 0))
        return LUDA_OK;
    if (!required) {
        luda__release(tensor->node);
        tensor->node = NULL;
        tensor->requires_grad = false;
        return LUDA_OK;
    }
    LUDA_TRY(luda__node_make(&tensor, 1, 1, false, NULL, &node));
    tensor->requires_grad = true;
    luda__image_allow(tensor);
    if (tensor->id == 0 || tensor->id > (uint64_t)1 << 40)
        tensor->id = ++node->context->last_leaf;
    node->leaf = tensor->id;
    luda__node_bind(node, tensor, 0);
    luda__release(node);
    return LUDA_OK;
}

int luda_requires_grad(const luda_tensor *tensor)
{
    return luda__tracked(tensor);
}

int luda_is_leaf(const luda_tensor *tensor)
{
    return !tensor->node || tensor->requires_grad;
}

const char *luda_grad_op(const luda_tensor *tensor)
{
    return luda_is_leaf(tensor) ? NULL : luda__node_name((const luda_node *)tensor->node);
}

/* --- Custom nodes --- */

static bool is_differentiable(const luda_tensor *tensor)
{
    return tensor && luda__class_of((luda_dtype)tensor->dtype) == LUDA__FLOAT;
}

static bool wanted(luda_tensor *const *inputs, int ninputs, luda_tensor *const *outputs, int noutputs)
{
    bool tracked = false, differentiable = false;
    for (int i = 0; i < ninputs; i++)
        tracked |= luda__tracked(inputs[i]);
    for (int o = 0; o < noutputs; o++)
        differentiable |= is_differentiable(outputs[o]);
    return tracked && differentiable && luda_grad_enabled();
}

static luda_status custom(luda_tensor *const *inputs, int ninputs, luda_tensor *const *outputs, int noutputs, luda_node **out)
{
    luda_node *node;
    for (int i = 0; i < ninputs; i++)
        LUDA_TRY(luda__fresh_enough(inputs[i], "a custom node"));
    LUDA_TRY(luda__node_make(inputs, ninputs, noutputs, false, NULL, &node));
    for (int o = 0; o < noutputs; o++)
        if (is_differentiable(outputs[o]))
            luda__node_bind(node, outputs[o], o);
    *out = node;
    return LUDA_OK;
}

luda_status luda_node_new(luda_tensor *const *inputs, int ninputs, luda_tensor *const *outputs, int noutputs,
                          const luda_node_class *node_class, void *state, luda_node **out)
{
    luda_node *node = NULL;
    luda_status status = LUDA_OK;
    if (wanted(inputs, ninputs, outputs, noutputs))
        status = custom(inputs, ninputs, outputs, noutputs, &node);
    if (!node) {
        if (node_class->release && state)
            node_class->release(state);
        if (status == LUDA_OK)
            *out = NULL;
        return status;
    }
    node->class = node_class;
    node->state = state;
    *out = node;
    luda__release(node); /* the outputs hold it */
    return LUDA_OK;
}

luda_status luda_node_new_lua(luda_tensor *const *inputs, int ninputs, luda_tensor *const *outputs, int noutputs,
                              const char *name, int64_t tag, luda_node **out)
{
    luda_node *node;
    if (!wanted(inputs, ninputs, outputs, noutputs)) {
        *out = NULL;
        return LUDA_OK;
    }
    char *copy = strdup(name);
    if (!copy)
        return luda__fail(LUDA_ENOMEM, "graph: no memory for a node");
    luda_status status = custom(inputs, ninputs, outputs, noutputs, &node);
    if (status != LUDA_OK) {
        free(copy);
        return status;
    }
    node->lua_name = copy;
    node->tag = tag;
    *out = node;
    luda__release(node);
    return LUDA_OK;
}

luda_status luda_node_keep(luda_node *node, luda_tensor *tensor)
{
    if (!node)
        return LUDA_OK;
    luda_kept *extra = realloc(node->extra, (size_t)(node->nextra + 1) * sizeof *extra);
    luda_tensor *kept = NULL;
    if (!extra)
        return luda__fail(LUDA_ENOMEM, "graph: no memory to keep a tensor");
    node->extra = extra;
    bool own = tensor->node == &node->base; /* it would own this node in turn */
    if (own)
        LUDA_TRY(luda__tensor_alias(tensor, &kept));
    else
        kept = luda__retain(tensor);
    extra[node->nextra++] = (luda_kept){ kept, luda_tensor_version(tensor), own ? tensor->node_output + 1 : 0 };
    return LUDA_OK;
}

int luda_node_kept_count(const luda_node *node)
{
    return node->nextra;
}

luda_status luda_node_kept(luda_node *node, int index, luda_tensor **out)
{
    if (index < 0 || index >= node->nextra)
        return luda__fail(LUDA_EINVAL, "%s: kept tensor %d of %d", luda__node_name(node), index, node->nextra);
    const luda_kept *kept = &node->extra[index];
    luda_tensor *plain;
    LUDA_TRY(luda__kept_get(node, kept, "saved tensor", index + 1, &plain));
    if (kept->own_output == 0 || !luda_grad_enabled()) {
        *out = plain;
        return LUDA_OK;
    }
    luda_status status = luda__tensor_alias(plain, out); /* it belongs to the graph again where backward is recorded */
    luda_tensor_release(plain);
    if (status == LUDA_OK)
        luda__node_bind(node, *out, kept->own_output - 1);
    return status;
}

/* --- Hooks --- */

luda_status luda_hook_add(luda_tensor *tensor, int64_t tag)
{
    luda_node *node = (luda_node *)tensor->node;
    if (!node)
        return luda__fail(LUDA_EGRAPH, "register_hook: the tensor has no gradient; call requires_grad_ first");
    luda_hook *hooks = realloc(node->hooks, (size_t)(node->nhooks + 1) * sizeof *hooks);
    if (!hooks)
        return luda__fail(LUDA_ENOMEM, "register_hook: no memory");
    node->hooks = hooks;
    hooks[node->nhooks++] = (luda_hook){ tensor->node_output, tag };
    return LUDA_OK;
}

luda_status luda_hook_remove(luda_tensor *tensor, int64_t tag)
{
    luda_node *node = (luda_node *)tensor->node;
    for (int i = 0; node && i < node->nhooks; i++)
        if (node->hooks[i].tag == tag) {
            memmove(&node->hooks[i], &node->hooks[i + 1], (size_t)(node->nhooks - i - 1) * sizeof *node->hooks);
            node->nhooks--;
            luda__dead_tag(node->context, tag);
            return LUDA_OK;
        }
    return LUDA_OK; /* removing twice is harmless */
}
