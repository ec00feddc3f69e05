/* The walk's first half: which nodes the roots reach, in which order, and which of them matter. No recursion. */
#include "walk.h"

#include <stdlib.h>
#include <string.h>

/* --- The index: node -> entry --- */

static uint32_t hash(const luda_node *node)
{
    uint64_t bits = (uint64_t)(uintptr_t)node >> 4;
    return (uint32_t)((bits * 0x9E3779B97F4A7C15ull) >> 32);
}

static int32_t *slot_of(const luda_walk *walk, const luda_node *node)
{
    uint32_t at = hash(node) & walk->mask;
    while (walk->index[at] >= 0 && walk->entries[walk->index[at]].node != node)
        at = (at + 1) & walk->mask;
    return &walk->index[at];
}

walk_entry *luda__walk_entry(const luda_walk *walk, const luda_node *node)
{
    int32_t at = *slot_of(walk, node);
    return at >= 0 ? &walk->entries[at] : NULL;
}

static luda_status rebuild_index(luda_walk *walk, uint32_t size)
{
    if (size != walk->mask + 1 || !walk->index) {
        int32_t *index = malloc(size * sizeof *index);
        if (!index)
            return luda__fail(LUDA_ENOMEM, "backward: no memory for %d nodes", walk->count);
        free(walk->index);
        walk->index = index;
        walk->mask = size - 1;
    }
    memset(walk->index, 0xff, size * sizeof *walk->index);
    for (int i = 0; i < walk->count; i++)
        *slot_of(walk, walk->entries[i].node) = i;
    return LUDA_OK;
}

/* --- Discovery --- */

static luda_status visit(luda_walk *walk, luda_node *node, int *capacity)
{
    if (*slot_of(walk, node) >= 0)
        return LUDA_OK;
    if (node->consumed)
        return luda__fail(LUDA_EGRAPH,
                          "%s: its graph was consumed by an earlier backward; pass retain=true there to walk it again",
                          luda__node_name(node));
    if (walk->count == *capacity) {
        int larger = 2 * *capacity;
        walk_entry *entries = realloc(walk->entries, (size_t)larger * sizeof *entries);
        if (!entries)
            return luda__fail(LUDA_ENOMEM, "backward: no memory for %d nodes", larger);
        walk->entries = entries;
        *capacity = larger;
        LUDA_TRY(rebuild_index(walk, (uint32_t)(4 * larger)));
    }
    *slot_of(walk, node) = walk->count;
    walk->entries[walk->count++] = (walk_entry){ .node = luda__retain(node), .wanted = true };
    return LUDA_OK;
}

static int newest_first(const void *a, const void *b)
{
    uint64_t x = ((const walk_entry *)a)->node->order, y = ((const walk_entry *)b)->node->order;
    return x < y ? 1 : x > y ? -1 : 0;
}

static luda_status make_room(luda_walk *walk)
{
    size_t outputs = 0, widest = 1, kept = 1;
    for (int i = 0; i < walk->count; i++) {
        const luda_node *node = walk->entries[i].node;
        outputs += (size_t)node->nout;
        if ((size_t)node->nin > widest)
            widest = (size_t)node->nin;
        if ((size_t)(node->nin + node->nout) > kept)
            kept = (size_t)(node->nin + node->nout);
    }
    walk->arena = calloc(outputs + 1, sizeof *walk->arena);
    walk->ready = malloc((size_t)walk->count * sizeof *walk->ready);
    walk->dx = calloc(widest, sizeof *walk->dx);
    walk->need = calloc(widest, 1);
    walk->kept = calloc(kept, sizeof *walk->kept);
    walk->into = calloc(widest, sizeof *walk->into);
    if (!walk->arena || !walk->ready || !walk->dx || !walk->need || !walk->kept || !walk->into)
        return luda__fail(LUDA_ENOMEM, "backward: no memory for %d nodes", walk->count);
    size_t at = 0;
    for (int i = 0; i < walk->count; i++) {
        walk->entries[i].g = walk->arena + at;
        at += (size_t)walk->entries[i].node->nout;
    }
    return LUDA_OK;
}

/* --- Asking for the gradients of some tensors only --- */

static luda_status set_captures(luda_walk *walk, const luda_backward_options *options)
{
    walk->captures = calloc((size_t)options->ninputs, sizeof *walk->captures);
    if (!walk->captures)
        return luda__fail(LUDA_ENOMEM, "grad: no memory");
    for (int i = 0; i < options->ninputs; i++) {
        luda_tensor *input = options->inputs[i];
        if (!luda__tracked(input))
            return luda__fail(LUDA_EGRAPH, "grad: input %d does not require a gradient; call requires_grad_ on it first", i + 1);
        walk->captures[walk->ncaptures++] = (walk_capture){ (luda_node *)input->node, input->node_output, luda_tensor_id(input) };
    }
    /* Parents come later in the order: from the oldest on, what leads to a capture is wanted. */
    for (int i = walk->count - 1; i >= 0; i--) {
        walk_entry *entry = &walk->entries[i];
        entry->wanted = false;
        for (int c = 0; c < walk->ncaptures; c++)
            entry->wanted |= walk->captures[c].node == entry->node;
        for (int k = 0; k < entry->node->nin && !entry->wanted; k++) {
            const luda_node *parent = entry->node->in[k].parent;
            entry->wanted = parent && luda__walk_entry(walk, parent)->wanted;
        }
    }
    return LUDA_OK;
}

luda_status luda__walk_discover(luda_walk *walk, luda_tensor *const *roots, int nroots, const luda_backward_options *options)
{
    int capacity = 32;
    walk->since = options ? options->since : 0;
    walk->entries = malloc((size_t)capacity * sizeof *walk->entries);
    if (!walk->entries)
        return luda__fail(LUDA_ENOMEM, "backward: no memory");
    LUDA_TRY(rebuild_index(walk, (uint32_t)(4 * capacity)));
    for (int r = 0; r < nroots; r++)
        LUDA_TRY(visit(walk, (luda_node *)roots[r]->node, &capacity));
    for (int i = 0; i < walk->count; i++) /* grows as it goes */
        for (int k = 0; k < walk->entries[i].node->nin && walk->entries[i].node->order > walk->since; k++)
            if (walk->entries[i].node->in[k].parent)
                LUDA_TRY(visit(walk, walk->entries[i].node->in[k].parent, &capacity));
    qsort(walk->entries, (size_t)walk->count, sizeof *walk->entries, newest_first);
    LUDA_TRY(rebuild_index(walk, walk->mask + 1));
    LUDA_TRY(make_room(walk));
    for (int i = 0; i < walk->count; i++)
        for (int k = 0; k < walk->entries[i].node->nin && walk->entries[i].node->order > walk->since; k++)
            if (walk->entries[i].node->in[k].parent)
                luda__walk_entry(walk, walk->entries[i].node->in[k].parent)->uses++;
    if (options && options->ninputs > 0)
        LUDA_TRY(set_captures(walk, options));
    return LUDA_OK;
}
