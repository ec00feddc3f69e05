/*
 * Backward as an object: one node a step, in strictly descending creation order, stopping where Lua must work. Gradients
 * of a leaf are final, and reported, as soon as its last use is done.
 */
#include "walk.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* --- Life --- */

static void walk_destroy(void *object)
{
    luda_walk *walk = object;
    for (int i = 0; i < walk->count; i++) {
        walk_entry *entry = &walk->entries[i];
        for (int o = 0; entry->g && o < entry->node->nout; o++)
            luda_tensor_release(entry->g[o]);
        luda_tensor_release(entry->made);
    }
    for (int i = 0; walk->waits == WALK_WAITS_NODE && i < walk->current->node->nin; i++)
        luda_tensor_release(walk->dx[i]);
    for (int i = 0; i < walk->count; i++)
        luda__release(walk->entries[i].node);
    luda_gradients_release(walk->gradients);
    if (walk->entries != walk->few)
        free(walk->entries);
    if (walk->edges != walk->few_edges)
        free(walk->edges);
    if (walk->index != walk->few_index)
        free(walk->index);
    free(walk->room);
    free(walk->captures);
    free(walk->temporaries);
    luda__object_free(walk, sizeof *walk);
}

static const luda_class walk_class = { "walk", walk_destroy };

void luda_walk_release(luda_walk *walk)
{
    luda__release(walk);
}

static luda_status seed(luda_tensor *root, luda_tensor *gradient, luda_tensor **out)
{
    char wanted[160], given[160];
    luda_attrs attrs = { .family = LUDA_ATTRS_create };
    if (gradient) {
        if (gradient->ndim != root->ndim || memcmp(gradient->shape, root->shape, (size_t)root->ndim * sizeof *root->shape) != 0)
            return luda__fail(LUDA_ESHAPE, "backward: the gradient has shape %s, the root %s",
                              luda__shape_text(gradient->ndim, gradient->shape, given, sizeof given),
                              luda__shape_text(root->ndim, root->shape, wanted, sizeof wanted));
        if (gradient->dtype != root->dtype || !luda__same_device(gradient->storage->device, root->storage->device))
            return luda__fail(LUDA_EDTYPE, "backward: the gradient must have the root's dtype %s and device",
                              luda_dtype_name((luda_dtype)root->dtype));
        *out = luda__retain(gradient);
        return LUDA_OK;
    }
    if (root->numel != 1)
        return luda__fail(LUDA_EGRAPH, "backward: the root has shape %s, not one element; pass gradient=",
                          luda__shape_text(root->ndim, root->shape, wanted, sizeof wanted));
    if (root->ndim == 0 && root->storage->device.type == LUDA_CPU)
        return luda_tensor_scalar(1, (luda_dtype)root->dtype, out);
    attrs.create.shape.ndim = root->ndim;
    for (int d = 0; d < root->ndim; d++)
        attrs.create.shape.size[d] = root->shape[d];
    attrs.create.dtype = root->dtype;
    attrs.create.device = root->storage->device;
    attrs.create.low = 1;
    return luda__compute(LUDA_OP_full, NULL, 0, &attrs, out);
}

/* True if nobody else can see a gradient, so that it may be added to in place. */
static bool is_own(const luda_walk *walk, const luda_tensor *gradient)
{
    return !walk->create_graph && gradient->contiguous && atomic_load(&gradient->base.references) == 1 &&
           atomic_load(&gradient->storage->base.references) == 1;
}

/* Adds a reference to what an output has got so far; takes the reference. */
static luda_status contribute(luda_walk *walk, walk_entry *entry, int output, luda_tensor *gradient)
{
    luda_tensor **sum = &entry->g[output];
    if (!*sum) {
        *sum = gradient;
        return LUDA_OK;
    }
    luda_tensor *in[] = { *sum, gradient }, *added = NULL;
    bool own = is_own(walk, *sum) && (*sum)->dtype == gradient->dtype;
    luda_status status = own ? luda_apply_into(LUDA_OP_add, in, 2, NULL, *sum) : luda_apply(LUDA_OP_add, in, 2, NULL, &added);
    luda_tensor_release(gradient);
    if (status == LUDA_OK && !own) {
        luda_tensor_release(*sum);
        *sum = added;
    }
    return status;
}

static bool is_final_leaf(const luda_walk *walk, const walk_entry *entry)
{
    return entry->node->leaf && entry->uses == 0 && entry->node->order > walk->since;
}

luda_status luda__walk_make(luda_walk **out)
{
    luda_walk *walk = luda__object_new(sizeof *walk);
    if (!walk)
        return luda__fail(LUDA_ENOMEM, "backward: no memory");
    memset(walk, 0, offsetof(luda_walk, few));
    memset(walk->few_index, 0xff, sizeof walk->few_index);
    luda__object_init(walk, &walk_class);
    walk->entries = walk->few;
    walk->capacity = WALK_FEW;
    walk->edges = walk->few_edges;
    walk->edge_capacity = WALK_FEW_EDGES;
    walk->index = walk->few_index;
    walk->mask = WALK_FEW_INDEX - 1;
    *out = walk;
    return LUDA_OK;
}

luda_status luda_walk_new(luda_tensor *const *roots, luda_tensor *const *gradients, int nroots,
                          const luda_backward_options *options, luda_walk **out)
{
    luda_walk *walk = NULL;
    LUDA_TRY(luda__walk_make(&walk));
    walk->create_graph = options && options->create_graph;
    walk->retain = walk->create_graph || (options && options->retain);
    luda_status status = luda_gradients_new(&walk->gradients);
    for (int r = 0; r < nroots && status == LUDA_OK; r++)
        if (!luda__tracked(roots[r]))
            status = luda__fail(LUDA_EGRAPH, "backward: the root was not recorded; no input required a gradient, or luda.no_grad was on");
        else
            status = luda__fresh_enough(roots[r], "backward");
    if (status == LUDA_OK)
        status = luda__walk_discover(walk, roots, nroots, options);
    for (int r = 0; r < nroots && status == LUDA_OK; r++) {
        luda_tensor *g = NULL;
        status = seed(roots[r], gradients ? gradients[r] : NULL, &g);
        if (status == LUDA_OK)
            status = contribute(walk, luda__walk_entry(walk, (luda_node *)roots[r]->node), roots[r]->node_output, g);
    }
    for (int i = 0; i < walk->count && status == LUDA_OK; i++) /* roots that are leaves */
        if (is_final_leaf(walk, &walk->entries[i]))
            walk->ready[walk->nready++] = i;
    if (status != LUDA_OK) {
        luda_walk_release(walk);
        return status;
    }
    *out = walk;
    return LUDA_OK;
}

/* --- Storing gradients --- */

/* What a user gets is its own memory, so that clipping in place touches nothing else. Takes the reference. */
static luda_status store(luda_walk *walk, uint64_t id, luda_tensor *gradient)
{
    luda_tensor *own = gradient;
    luda_status status = LUDA_OK;
    bool shared = !gradient->contiguous || atomic_load(&gradient->base.references) > 1 ||
                  atomic_load(&gradient->storage->base.references) > 1;
    if (shared && !walk->create_graph) {
        status = luda__move(gradient, (luda_dtype)gradient->dtype, gradient->storage->device, &own);
        luda_tensor_release(gradient);
        if (status != LUDA_OK)
            return status;
    }
    status = luda_gradients_set(walk->gradients, id, own);
    luda_tensor_release(own);
    return status;
}

static luda_status capture(luda_walk *walk, walk_entry *entry)
{
    for (int c = 0; c < walk->ncaptures; c++) {
        const walk_capture *wanted = &walk->captures[c];
        if (wanted->node == entry->node && entry->g[wanted->output])
            LUDA_TRY(store(walk, wanted->id, luda__retain(entry->g[wanted->output])));
    }
    return LUDA_OK;
}

/* --- Finishing an entry --- */

static void finish(luda_walk *walk, walk_entry *entry)
{
    luda_node *node = entry->node;
    for (int o = 0; o < node->nout; o++) {
        luda_tensor_release(entry->g[o]);
        entry->g[o] = NULL;
    }
    luda_tensor_release(entry->made);
    entry->made = NULL;
    for (int i = 0; i < node->nin; i++) {
        walk_entry *parent = luda__walk_parent(walk, entry, i);
        if (!parent)
            continue;
        parent->uses--;
        if (is_final_leaf(walk, parent))
            walk->ready[walk->nready++] = (int32_t)(parent - walk->entries);
    }
    if (!walk->retain)
        luda__node_consume(node);
    walk->position++;
}

/* Brings a gradient to its input's shape and dtype and adds it to the parent's. Takes the reference. */
static luda_status hand_to_parent(luda_walk *walk, const walk_entry *entry, int i, luda_tensor *gradient)
{
    const luda_node_input *input = &entry->node->in[i];
    walk_entry *parent = luda__walk_parent(walk, entry, i);
    luda_tensor *fitted = NULL, *cast = NULL;
    if (gradient->dtype == input->dtype && gradient->ndim == input->ndim && /* the common case: as it is */
        memcmp(gradient->shape, input->shape, (size_t)input->ndim * sizeof *input->shape) == 0)
        return contribute(walk, parent, input->parent_output, gradient);
    luda_status status = luda__unbroadcast(gradient, input->ndim, input->shape, &fitted);
    luda_tensor_release(gradient);
    if (status != LUDA_OK)
        return status;
    if (fitted->dtype != input->dtype) {
        luda_attrs attrs = { .family = LUDA_ATTRS_cast, .cast = { input->dtype, input->device } };
        status = luda_apply(LUDA_OP_to, &fitted, 1, &attrs, &cast);
        luda_tensor_release(fitted);
        if (status != LUDA_OK)
            return status;
        fitted = cast;
    }
    return contribute(walk, parent, input->parent_output, fitted);
}

/* Distributes walk->dx, all of whose references are taken, also after a failure. */
static luda_status distribute(luda_walk *walk, walk_entry *entry, luda_status status)
{
    luda_node *node = entry->node;
    if (status == LUDA_OK && walk->anomaly)
        status = luda__check_gradients(node, entry->g, walk->dx);
    for (int i = 0; i < node->nin; i++) {
        luda_tensor *gradient = walk->dx[i];
        walk->dx[i] = NULL;
        if (!gradient)
            continue;
        if (status == LUDA_OK && walk->need[i])
            status = hand_to_parent(walk, entry, i, gradient);
        else
            luda_tensor_release(gradient);
    }
    if (status == LUDA_OK)
        finish(walk, entry);
    return status;
}

static void mark_needs(luda_walk *walk, const walk_entry *entry)
{
    for (int i = 0; i < entry->node->nin; i++) {
        const walk_entry *parent = luda__walk_parent(walk, entry, i);
        walk->need[i] = parent && parent->wanted;
    }
}

/* --- Running a rule --- */

/* An output belongs to the graph again where the backward pass is recorded. */
static luda_status rejoin(const luda_walk *walk, luda_node *node, int o, luda_tensor **out)
{
    if (!walk->create_graph || luda__class_of((luda_dtype)(*out)->dtype) != LUDA__FLOAT)
        return LUDA_OK;
    luda_tensor *plain = *out;
    *out = NULL;
    luda_status status = luda__tensor_alias(plain, out);
    luda_tensor_release(plain);
    if (status == LUDA_OK)
        luda__node_bind(node, *out, o);
    return status;
}

static luda_status remade_output(luda_walk *walk, luda_node *node, luda_tensor **out)
{
    LUDA_TRY(luda__remake(walk, node, out));
    return rejoin(walk, node, 0, out);
}

static luda_status kept_output(luda_walk *walk, luda_node *node, int o, luda_tensor **out)
{
    if (o == 0 && node->remakes && (luda__keeps((luda_op)node->op) & LUDA__KEEPS_OUT))
        return remade_output(walk, node, out);
    if (!node->out || !node->out[o].tensor)
        return LUDA_OK;
    LUDA_TRY(luda__kept_get(node, &node->out[o], "result", node->nout > 1 ? o + 1 : 0, out));
    return rejoin(walk, node, o, out);
}

static luda_status fetch_kept(luda_walk *walk, luda_node *node, luda_tensor **kept)
{
    memset(kept, 0, (size_t)(node->nin + node->nout) * sizeof *kept);
    for (int i = 0; i < node->nin; i++) {
        const luda_node_input *input = &node->in[i];
        if (input->spare)
            continue;
        if (input->remade)
            LUDA_TRY(remade_output(walk, input->parent, &kept[i]));
        else if (input->kept.tensor)
            LUDA_TRY(luda__kept_get(node, &input->kept, "input", node->nin > 1 ? i + 1 : 0, &kept[i]));
    }
    for (int o = 0; o < node->nout; o++)
        LUDA_TRY(kept_output(walk, node, o, &kept[node->nin + o]));
    return LUDA_OK;
}

/* The sums of inputs' gradients that a rule may add to: of the gradient's own dtype, and seen by nobody else. */
static void find_sums(luda_walk *walk, const walk_entry *entry)
{
    const luda_node *node = entry->node;
    for (int i = 0; i < node->nin; i++) {
        const luda_node_input *input = &node->in[i];
        const walk_entry *parent = luda__walk_parent(walk, entry, i);
        luda_tensor *sum = parent ? parent->g[input->parent_output] : NULL;
        bool fits = sum && entry->g[0] && sum->dtype == entry->g[0]->dtype && sum->dtype == input->dtype;
        walk->into[i] = fits && is_own(walk, sum) ? sum : NULL;
    }
}

static const char *lasting_name(const luda_node *node)
{
    return node->op >= 0 ? luda_op_get((luda_op)node->op)->name : node->class->name;
}

static luda_status run_rule(luda_walk *walk, walk_entry *entry)
{
    luda_node *node = entry->node;
    luda_rule call = { .node = node, .g = entry->g, .x = walk->kept, .y = walk->kept + node->nin, .attrs = node->attrs,
                       .need = walk->need, .into = walk->into, .dx = walk->dx,
                       .temporaries = walk->temporaries, .capacity = walk->temporary_capacity,
                       .lone = !walk->anomaly && entry->g[0] && is_own(walk, entry->g[0]) };
    find_sums(walk, entry);
    call.status = fetch_kept(walk, node, walk->kept);
    if (call.status == LUDA_OK)
        luda__gradient_rule((luda_op)node->op, walk->create_graph)(&call);
    for (int i = 0; i < call.count; i++)
        luda_tensor_release(call.temporaries[i]);
    walk->temporaries = call.temporaries;
    walk->temporary_capacity = call.capacity;
    for (int i = 0; i < node->nin + node->nout; i++)
        luda_tensor_release(walk->kept[i]);
    return call.status;
}

/* --- Steps --- */

static bool any_gradient(const walk_entry *entry)
{
    for (int o = 0; o < entry->node->nout; o++)
        if (entry->g[o])
            return true;
    return false;
}

/* True if a hook of the entry must run now; walk->current says whose. */
static bool next_hook(luda_walk *walk, walk_entry *entry)
{
    for (; entry->next_hook < entry->node->nhooks; entry->next_hook++)
        if (entry->g[entry->node->hooks[entry->next_hook].output]) {
            walk->current = entry;
            walk->waits = WALK_WAITS_HOOK;
            return true;
        }
    return false;
}

static luda_status step_leaf(luda_walk *walk, int *event)
{
    walk_entry *entry = &walk->entries[walk->ready[walk->nready - 1]];
    if (any_gradient(entry) && next_hook(walk, entry)) {
        *event = LUDA_NEEDS_LUA;
        return LUDA_OK;
    }
    walk->nready--;
    if (!entry->g[0] || !entry->wanted)
        return LUDA_OK;
    luda_tensor *gradient = entry->g[0];
    entry->g[0] = NULL;
    walk->leaf = entry->node->leaf;
    LUDA_TRY(store(walk, walk->leaf, gradient));
    if (walk->report_leaves)
        *event = LUDA_LEAF_FINAL;
    return LUDA_OK;
}

static luda_status step_node(luda_walk *walk, int *event)
{
    walk_entry *entry = &walk->entries[walk->position];
    luda_node *node = entry->node;
    if (node->leaf || node->order <= walk->since) {
        walk->position++;
        return LUDA_OK;
    }
    if (!any_gradient(entry) || !entry->wanted) {
        finish(walk, entry);
        return LUDA_OK;
    }
    if (next_hook(walk, entry)) {
        *event = LUDA_NEEDS_LUA;
        return LUDA_OK;
    }
    LUDA_TRY(capture(walk, entry));
    mark_needs(walk, entry);
    if (node->op >= 0 || (node->class && node->class->backward)) {
        luda_context *context = luda__context();
        int64_t start = context->profile ? luda_profile_now() : 0;
        const char *name = lasting_name(node);
        luda_status status = node->op >= 0 ? run_rule(walk, entry) : luda__run_custom(walk, entry);
        status = distribute(walk, entry, status);
        if (context->profile)
            luda__profile_add(context, name, LUDA_PROFILE_BACKWARD, start);
        return status;
    }
    walk->current = entry;
    walk->waits = WALK_WAITS_NODE;
    *event = LUDA_NEEDS_LUA;
    return LUDA_OK;
}

/* What Lua gave back since the last event. */
static luda_status resume(luda_walk *walk)
{
    walk_entry *entry = walk->current;
    walk_wait waited = walk->waits;
    walk->waits = WALK_RUNS;
    if (waited == WALK_WAITS_HOOK)
        entry->next_hook++;
    return waited == WALK_WAITS_NODE ? distribute(walk, entry, LUDA_OK) : LUDA_OK;
}

luda_status luda_walk_step(luda_walk *walk, int *event)
{
    luda_context *context = luda__context();
    uint64_t recompute = context->recompute;
    int before = context->grad_enabled, autocast = context->autocast, anomaly = context->anomaly;
    int reached = LUDA_WALK_DONE;
    if (walk->failed)
        return luda__fail(LUDA_EGRAPH, "backward: this walk has failed; start a new one");
    context->grad_enabled = walk->create_graph;
    context->recompute = 0;
    context->autocast = LUDA__NO_AUTOCAST; /* rules see the types that were recorded */
    context->anomaly = 0;                  /* what they give is looked at, not their parts */
    walk->anomaly = anomaly;
    luda_status status = resume(walk);
    while (status == LUDA_OK && reached == LUDA_WALK_DONE && (walk->nready > 0 || walk->position < walk->count))
        status = walk->nready > 0 ? step_leaf(walk, &reached) : step_node(walk, &reached);
    context->grad_enabled = before;
    context->autocast = autocast;
    context->anomaly = anomaly;
    context->recompute = recompute;
    walk->failed = status != LUDA_OK;
    if (status == LUDA_OK)
        *event = reached;
    return status;
}
