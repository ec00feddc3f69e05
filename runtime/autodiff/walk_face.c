/* What drives a walk from outside: what Lua asks of it and gives back, and the loop over it in C. */
#include "walk.h"

#include <string.h>

/* --- What Lua asks and gives --- */

int64_t luda_walk_tag(const luda_walk *walk)
{
    const walk_entry *entry = walk->current;
    return walk->waits == WALK_WAITS_HOOK ? entry->node->hooks[entry->next_hook].tag : entry->node->tag;
}

int luda_walk_is_hook(const luda_walk *walk)
{
    return walk->waits == WALK_WAITS_HOOK;
}

luda_node *luda_walk_node(const luda_walk *walk)
{
    return walk->waits == WALK_RUNS ? NULL : walk->current->node;
}

luda_tensor *luda_walk_gradient(const luda_walk *walk, int output)
{
    if (walk->waits == WALK_RUNS)
        return NULL;
    const walk_entry *entry = walk->current;
    if (walk->waits == WALK_WAITS_HOOK)
        output = entry->node->hooks[entry->next_hook].output;
    return output >= 0 && output < entry->node->nout ? entry->g[output] : NULL;
}

int luda_walk_needs(const luda_walk *walk, int input)
{
    return walk->waits == WALK_WAITS_NODE && input >= 0 && input < walk->current->node->nin && walk->need[input];
}

luda_status luda_walk_give(luda_walk *walk, int input, luda_tensor *gradient)
{
    char given[160], wanted[160];
    if (walk->waits == WALK_RUNS)
        return luda__fail(LUDA_EGRAPH, "backward: the walk waits for nothing");
    luda_node *node = walk->current->node;
    luda_tensor **place;
    int ndim;
    const int64_t *shape;
    if (walk->waits == WALK_WAITS_HOOK) {
        place = &walk->current->g[node->hooks[walk->current->next_hook].output];
        ndim = (*place)->ndim;
        shape = (*place)->shape;
    } else {
        if (input < 0 || input >= node->nin)
            return luda__fail(LUDA_EGRAPH, "%s: a gradient for input %d of %d was given", luda__node_name(node), input + 1, node->nin);
        place = &walk->dx[input];
        ndim = node->in[input].ndim;
        shape = node->in[input].shape;
    }
    if (gradient && (gradient->ndim != ndim || memcmp(gradient->shape, shape, (size_t)ndim * sizeof *shape) != 0))
        return luda__fail(LUDA_ESHAPE, "%s: a gradient of shape %s was given where %s is needed", luda__node_name(node),
                          luda__shape_text(gradient->ndim, gradient->shape, given, sizeof given),
                          luda__shape_text(ndim, shape, wanted, sizeof wanted));
    luda__retain(gradient);
    luda_tensor_release(*place);
    *place = gradient;
    return LUDA_OK;
}

void luda_walk_report_leaves(luda_walk *walk, int report)
{
    walk->report_leaves = report != 0;
}

uint64_t luda_walk_leaf(const luda_walk *walk)
{
    return walk->leaf;
}

luda_gradients *luda_walk_gradients(luda_walk *walk)
{
    return walk->gradients;
}

luda_status luda_backward(luda_tensor *root, luda_tensor *gradient, const luda_backward_options *options, luda_gradients **out)
{
    luda_walk *walk;
    int event = LUDA_WALK_DONE;
    LUDA_TRY(luda_walk_new(&root, &gradient, 1, options, &walk));
    luda_status status = luda_walk_step(walk, &event);
    if (status == LUDA_OK && event == LUDA_NEEDS_LUA)
        status = luda__fail(LUDA_ENOTSUP, "backward: the graph has a Lua node; walk it with luda_walk_step");
    if (status == LUDA_OK)
        *out = luda__retain(walk->gradients);
    luda_walk_release(walk);
    return status;
}
