/*
 * Segments of a graph that are recorded again in backward instead of being kept (Chen et al. 2016): what was recorded since a
 * mark becomes one node, whose inputs are the edges that lead out of it.
 */
#include "walk.h"

#include <stdlib.h>
#include <string.h>

uint64_t luda_graph_mark(luda_context *context)
{
    return context->order;
}

int luda_graph_since(const luda_tensor *tensor, uint64_t mark)
{
    return tensor->node && ((const luda_node *)tensor->node)->order > mark;
}

/* An edge as a tensor would show it to a node that is made from it. */
typedef struct stand_in {
    luda_tensor tensor;
    luda_storage storage;
} stand_in;

static bool has(const stand_in *edges, int count, const luda_node_input *input)
{
    for (int i = 0; i < count; i++)
        if (edges[i].tensor.node == (luda_object *)input->parent && edges[i].tensor.node_output == input->parent_output)
            return true;
    return false;
}

static void show(const luda_node_input *input, stand_in *edge)
{
    edge->storage.device = input->device;
    edge->tensor.storage = &edge->storage;
    edge->tensor.node = (luda_object *)input->parent;
    edge->tensor.node_output = input->parent_output;
    edge->tensor.dtype = input->dtype;
    edge->tensor.ndim = input->ndim;
    memcpy(edge->tensor.shape, input->shape, (size_t)input->ndim * sizeof *input->shape);
}

/* The edges that lead out of a segment, each once; *count holds how many. */
static luda_status find_edges(const luda_walk *walk, stand_in **out, int *count)
{
    int most = 0;
    for (int i = 0; i < walk->count && walk->entries[i].node->order > walk->since; i++) {
        const luda_node *node = walk->entries[i].node;
        if (node->class && node->class->never_replay)
            return luda__fail(LUDA_EGRAPH, "checkpoint: %s communicates and is not repeated; call it outside", luda__node_name(node));
        most += node->nin;
    }
    stand_in *edges = calloc((size_t)most + 1, sizeof *edges);
    if (!edges)
        return luda__fail(LUDA_ENOMEM, "checkpoint: no memory for %d edges", most);
    *count = 0;
    for (int i = 0; i < walk->count && walk->entries[i].node->order > walk->since; i++)
        for (int k = 0; k < walk->entries[i].node->nin; k++) {
            const luda_node_input *input = &walk->entries[i].node->in[k];
            if (input->parent && input->parent->order <= walk->since && !has(edges, *count, input))
                show(input, &edges[(*count)++]);
        }
    *out = edges;
    return LUDA_OK;
}

static luda_status make_node(const luda_walk *walk, luda_tensor *const *outputs, int noutputs, int64_t tag, luda_node **out)
{
    stand_in *edges = NULL;
    int count = 0;
    LUDA_TRY(find_edges(walk, &edges, &count));
    luda_tensor **in = calloc((size_t)count + 1, sizeof *in);
    char *name = strdup("checkpoint");
    for (int i = 0; in && i < count; i++)
        in[i] = &edges[i].tensor;
    luda_status status = in && name ? luda__node_make(in, count, noutputs, false, NULL, out)
                                    : luda__fail(LUDA_ENOMEM, "checkpoint: no memory for a node");
    free(edges);
    free(in);
    if (status != LUDA_OK) {
        free(name);
        return status;
    }
    (*out)->lua_name = name;
    (*out)->tag = tag;
    for (int o = 0; o < noutputs; o++)
        luda__node_bind(*out, outputs[o], o);
    return LUDA_OK;
}

luda_status luda_node_new_segment(luda_tensor *const *values, luda_tensor *const *outputs, int count, uint64_t mark,
                                  int64_t tag, luda_node **out)
{
    luda_backward_options options = { .since = mark };
    luda_walk *walk = NULL;
    luda_node *node = NULL;
    LUDA_TRY(luda__walk_make(&walk));
    luda_status status = luda__walk_discover(walk, values, count, &options);
    if (status == LUDA_OK)
        status = make_node(walk, outputs, count, tag, &node);
    if (status == LUDA_OK) {
        for (int i = 0; i < walk->count && walk->entries[i].node->order > mark; i++)
            luda__node_consume(walk->entries[i].node);
        *out = node;
        luda__release(node);
    }
    luda_walk_release(walk);
    return status;
}

luda_status luda_walk_hand_over(luda_walk *inner, luda_walk *outer)
{
    int found = 0, given = 0;
    luda_node *node = luda_walk_node(outer);
    if (!node)
        return luda__fail(LUDA_EGRAPH, "checkpoint: the walk waits for nothing");
    for (int i = 0; i < inner->count; i++)
        for (int o = 0; inner->entries[i].node->order <= inner->since && o < inner->entries[i].node->nout; o++)
            found += inner->entries[i].g[o] != NULL;
    for (int i = 0; i < node->nin; i++) {
        const walk_entry *entry = luda__walk_entry(inner, node->in[i].parent);
        luda_tensor *gradient = entry ? entry->g[node->in[i].parent_output] : NULL;
        given += gradient != NULL;
        if (gradient && luda_walk_needs(outer, i))
            LUDA_TRY(luda_walk_give(outer, i, gradient));
    }
    if (given != found)
        return luda__fail(LUDA_EGRAPH, "checkpoint: the function used %d tracked tensors when it was called again, %d of them the "
                                       "first time; it must do the same in every call", found, given);
    return LUDA_OK;
}
