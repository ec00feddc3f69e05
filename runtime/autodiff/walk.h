/* The backward walk's own structures, shared by its discovery (discover.c) and its steps (walk.c). */
#ifndef LUDA_WALK_H
#define LUDA_WALK_H

#include "graph.h"

/* One node that the walk will visit. */
typedef struct walk_entry {
    luda_node *node;   /* a reference */
    luda_tensor **g;   /* gradients of its outputs, references or NULL */
    luda_tensor *made; /* output 0, made again for its users, or NULL */
    int32_t *parents;  /* per input: the entry of the node that made it, or -1 where the walk does not go */
    int32_t uses;      /* edges from nodes that are not finished yet */
    int32_t next_hook;
    int32_t found;     /* its number in the order of discovery */
    bool wanted;       /* its gradient leads to something asked for */
} walk_entry;

/* Of a walk that needs no memory for its entries. */
enum { WALK_FEW = 24, WALK_FEW_EDGES = 64, WALK_FEW_INDEX = 64 };

typedef struct walk_capture {
    const luda_node *node;
    int32_t output;
    uint64_t id;
} walk_capture;

typedef enum walk_wait { WALK_RUNS, WALK_WAITS_HOOK, WALK_WAITS_NODE } walk_wait;

struct luda_walk {
    luda_object base;
    bool retain, create_graph, report_leaves, failed;
    bool anomaly; /* gradients are looked at */
    uint64_t since; /* nodes up to this order gather gradients and are not run */
    walk_entry *entries; /* descending creation order */
    int count, capacity, position;
    int32_t *edges; /* of all entries: their parents */
    int nedges, edge_capacity;
    /* node -> number of discovery: open addressing, a power of two, -1 is empty */
    int32_t *index;
    uint32_t mask;
    int32_t *place; /* number of discovery -> entry */
    void *room;     /* one block: place, all entries' g, and what follows down to ready */
    luda_tensor **dx; /* for the widest node */
    uint8_t *need;
    luda_tensor **into; /* per input of a rule: see luda_rule */
    luda_tensor **kept; /* kept inputs and outputs */
    /* leaves whose last use is done */
    int32_t *ready;
    int nready;
    walk_capture *captures;
    int ncaptures;
    luda_gradients *gradients;
    /* what rules make on the way, emptied after each */
    luda_tensor **temporaries;
    int temporary_capacity;
    /* what Lua is working on */
    walk_wait waits;
    walk_entry *current;
    uint64_t leaf;
    walk_entry few[WALK_FEW];
    int32_t few_edges[WALK_FEW_EDGES], few_index[WALK_FEW_INDEX];
};

luda_status luda__walk_make(luda_walk **out);
/* Finds every node that the roots reach. */
luda_status luda__walk_discover(luda_walk *walk, luda_tensor *const *roots, int nroots, const luda_backward_options *options);
/* Errors where a value that is not finite comes out of finite ones (anomaly.c). */
luda_status luda__check_gradients(const luda_node *node, luda_tensor *const *g, luda_tensor *const *dx);
/* Output 0 of a node, made again from what the graph keeps. */
luda_status luda__remake(luda_walk *walk, luda_node *node, luda_tensor **out);
/* Runs the backward of a custom node of C (function.c); what it gives lies in walk->dx. */
luda_status luda__run_custom(luda_walk *walk, const walk_entry *entry);
/* The entry of any node, or NULL. */
walk_entry *luda__walk_entry(const luda_walk *walk, const luda_node *node);

static inline walk_entry *luda__walk_parent(const luda_walk *walk, const walk_entry *entry, int input)
{
    return entry->parents[input] >= 0 ? &walk->entries[entry->parents[input]] : NULL;
}

#endif
