/* The walk's first half: which nodes the roots reach, in which order, and which of them matter. No recursion. */
#include "walk.h"

#include <stdlib.h>
#include <string.h>

static luda_status no_memory(int nodes)
{
    return luda__fail(LUDA_ENOMEM, "backward: no memory for %d nodes", nodes);
}

/* --- The index: node -> number of discovery --- */

static uint32_t hash(const luda_node *node)
{
    uint64_t bits = (uint64_t)(uintptr_t)node >> 4;
    return (uint32_t)((bits * 0x9E3779B97F4A7C15ull) >> 32);
}

/* While nodes are discovered, entries lie in that order. */
static int32_t *slot_of(const luda_walk *walk, const luda_node *node)
{
    uint32_t at = hash(node) & walk->mask;
    while (walk->index[at] >= 0 && walk->entries[walk->index[at]].node != node)
        at = (at + 1) & walk->mask;
    return &walk->index[at];
}

walk_entry *luda__walk_entry(const luda_walk *walk, const luda_node *node)
{
    uint32_t at = hash(node) & walk->mask;
    for (; walk->index[at] >= 0; at = (at + 1) & walk->mask) {
        walk_entry *entry = &walk->entries[walk->place[walk->index[at]]];
        if (entry->node == node)
            return entry;
    }
    return NULL;
}

/* --- Discovery --- */

/* `memory` or, while that is `few`, new memory, with `used` bytes kept; NULL where there is none. */
static void *enlarge(void *memory, const void *few, size_t used, size_t bytes)
{
    if (memory != few)
        return realloc(memory, bytes);
    void *larger = malloc(bytes);
    if (larger)
        memcpy(larger, few, used);
    return larger;
}

static luda_status more_entries(luda_walk *walk)
{
    int capacity = 2 * walk->capacity;
    walk_entry *entries = enlarge(walk->entries, walk->few, sizeof walk->few, (size_t)capacity * sizeof *entries);
    if (!entries)
        return no_memory(capacity);
    walk->entries = entries;
    walk->capacity = capacity;
    uint32_t size = 2 * (walk->mask + 1);
    int32_t *index = malloc(size * sizeof *index);
    if (!index)
        return no_memory(capacity);
    if (walk->index != walk->few_index)
        free(walk->index);
    walk->index = index;
    walk->mask = size - 1;
    memset(index, 0xff, size * sizeof *index);
    for (int i = 0; i < walk->count; i++)
        *slot_of(walk, entries[i].node) = i;
    return LUDA_OK;
}

static luda_status more_edges(luda_walk *walk, int wanted)
{
    int capacity = 2 * walk->edge_capacity > wanted ? 2 * walk->edge_capacity : wanted;
    int32_t *edges = enlarge(walk->edges, walk->few_edges, sizeof walk->few_edges, (size_t)capacity * sizeof *edges);
    if (!edges)
        return luda__fail(LUDA_ENOMEM, "backward: no memory for %d edges", capacity);
    walk->edges = edges;
    walk->edge_capacity = capacity;
    return LUDA_OK;
}

static luda_status visit(luda_walk *walk, luda_node *node, int32_t *number)
{
    int32_t *slot = slot_of(walk, node);
    *number = *slot;
    if (*slot >= 0)
        return LUDA_OK;
    if (node->consumed)
        return luda__fail(LUDA_EGRAPH,
                          "%s: its graph was consumed by an earlier backward; pass retain=true there to walk it again",
                          luda__node_name(node));
    if (walk->count == walk->capacity) {
        LUDA_TRY(more_entries(walk));
        slot = slot_of(walk, node);
    }
    *slot = *number = walk->count;
    walk->entries[walk->count] = (walk_entry){ .node = luda__retain(node), .wanted = true, .found = walk->count };
    walk->count++;
    return LUDA_OK;
}

/* Where the walk does not go, a node has no parents. */
static luda_status visit_parents(luda_walk *walk, const luda_node *node)
{
    if (walk->nedges + node->nin > walk->edge_capacity)
        LUDA_TRY(more_edges(walk, walk->nedges + node->nin));
    for (int k = 0; k < node->nin; k++) {
        int32_t number = -1;
        if (node->in[k].parent && node->order > walk->since)
            LUDA_TRY(visit(walk, node->in[k].parent, &number));
        walk->edges[walk->nedges++] = number;
    }
    return LUDA_OK;
}

static int newest_first(const void *a, const void *b)
{
    uint64_t x = ((const walk_entry *)a)->node->order, y = ((const walk_entry *)b)->node->order;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Chains are found nearly in order: entries move up one by one, unless that takes too long. */
static void sort_entries(luda_walk *walk)
{
    int64_t moves = 0, most = 8 * (int64_t)walk->count;
    for (int i = 1; i < walk->count && moves <= most; i++) {
        walk_entry entry = walk->entries[i];
        int at = i;
        for (; at > 0 && walk->entries[at - 1].node->order < entry.node->order; at--, moves++)
            walk->entries[at] = walk->entries[at - 1];
        walk->entries[at] = entry;
    }
    if (moves > most)
        qsort(walk->entries, (size_t)walk->count, sizeof *walk->entries, newest_first);
}

static luda_status make_room(luda_walk *walk)
{
    size_t outputs = 0, widest = 1, kept = 1, count = (size_t)walk->count;
    for (int i = 0; i < walk->count; i++) {
        const luda_node *node = walk->entries[i].node;
        outputs += (size_t)node->nout;
        if ((size_t)node->nin > widest)
            widest = (size_t)node->nin;
        if ((size_t)(node->nin + node->nout) > kept)
            kept = (size_t)(node->nin + node->nout);
    }
    size_t pointers = outputs + 2 * widest + kept;
    luda_tensor **room = calloc(1, pointers * sizeof *room + 2 * count * sizeof(int32_t) + widest);
    if (!room)
        return no_memory(walk->count);
    walk->room = room;
    luda_tensor **g = room;
    int32_t *parents = walk->edges;
    for (int i = 0; i < walk->count; i++) {
        walk->entries[i].g = g;
        walk->entries[i].parents = parents;
        g += walk->entries[i].node->nout;
        parents += walk->entries[i].node->nin;
    }
    walk->dx = room + outputs;
    walk->into = walk->dx + widest;
    walk->kept = walk->into + widest;
    walk->place = (int32_t *)(room + pointers);
    walk->ready = walk->place + count;
    walk->need = (uint8_t *)(walk->ready + count);
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
        for (int k = 0; k < entry->node->nin && !entry->wanted; k++)
            entry->wanted = entry->parents[k] >= 0 && luda__walk_parent(walk, entry, k)->wanted;
    }
    return LUDA_OK;
}

luda_status luda__walk_discover(luda_walk *walk, luda_tensor *const *roots, int nroots, const luda_backward_options *options)
{
    int32_t number;
    walk->since = options ? options->since : 0;
    for (int r = 0; r < nroots; r++)
        LUDA_TRY(visit(walk, (luda_node *)roots[r]->node, &number));
    for (int i = 0; i < walk->count; i++) /* grows as it goes */
        LUDA_TRY(visit_parents(walk, walk->entries[i].node));
    LUDA_TRY(make_room(walk));
    sort_entries(walk);
    for (int i = 0; i < walk->count; i++)
        walk->place[walk->entries[i].found] = i;
    for (int e = 0; e < walk->nedges; e++)
        if (walk->edges[e] >= 0) {
            walk->edges[e] = walk->place[walk->edges[e]];
            walk->entries[walk->edges[e]].uses++;
        }
    if (options && options->ninputs > 0)
        LUDA_TRY(set_captures(walk, options));
    return LUDA_OK;
}
