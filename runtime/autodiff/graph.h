/*
 * Inside of the autodiff floor: nodes link to nodes; kept tensors sit beside them. A node belongs to its output tensors
 * and to the nodes made from them; chains are freed by a work list, never by recursion.
 */
#ifndef LUDA_GRAPH_H
#define LUDA_GRAPH_H

#include "../core/ops.h"

typedef struct luda_kept {
    luda_tensor *tensor;
    uint32_t version;   /* of the storage, when it was kept */
    int32_t own_output; /* custom nodes: 1 + the node's own output that this is, or 0 */
} luda_kept;

/* What backward must know of an input: its parent (NULL: untracked), and always its shape, dtype and device. */
typedef struct luda_node_input {
    luda_node *parent;
    int32_t parent_output;
    int8_t dtype, ndim;
    bool remade; /* not kept: the parent makes it again */
    bool spare;  /* only for making the node's own result again; the rule does not see it */
    luda_device device;
    const int64_t *shape; /* inside the node's own memory */
    luda_kept kept;
} luda_node_input;

typedef struct luda_hook {
    int32_t output;
    int64_t tag;
} luda_hook;

struct luda_node {
    luda_object base;
    uint64_t order;        /* creation order in the context; parents have smaller ones */
    luda_context *context; /* a tombstone at worst */
    int32_t op;            /* of the table, or -1 */
    int32_t nin, nout;
    bool consumed, function; /* function: of luda_function_record */
    uint8_t remakes;  /* output 0 can be made again: 1 + how many such nodes come before it in a row, or 0 */
    uint32_t version; /* of output 0, for that */
    uint64_t leaf; /* id of the leaf it stands for; 0 for others */
    /* custom nodes */
    const luda_node_class *class;
    void *state;
    int64_t tag; /* of Lua nodes */
    char *lua_name;
    luda_kept *extra;
    int32_t nextra;
    /* hooks */
    luda_hook *hooks;
    int32_t nhooks;
    luda_node_input *in;
    luda_kept *out; /* kept outputs, or NULL where none is kept */
    luda_attrs *attrs;
    luda_node *next_dead; /* work list */
    size_t bytes;         /* of this block */
};

extern const luda_class luda__node_class;

const char *luda__node_name(const luda_node *node);
/* Room for nin inputs (with their shapes), nout kept outputs if wanted, attributes if any. */
luda_status luda__node_make(luda_tensor *const *in, int nin, int nout, bool keep_outputs, const luda_attrs *attrs, luda_node **out);
/* Makes `tensor` output `output` of the node. */
void luda__node_bind(luda_node *node, luda_tensor *tensor, int output);
/* Gives back what backward needed; a later walk through the node is an error. */
void luda__node_consume(luda_node *node);
/* A new reference to a kept tensor for a rule; checks its version. An error calls it `what` and, above 0, its number. */
luda_status luda__kept_get(const luda_node *node, const luda_kept *kept, const char *what, int number, luda_tensor **out);

/* --- Results that backward makes again (recompute.c) --- */

/* True if a node that needs the tensor in backward need not keep it. */
bool luda__is_remade(const luda_tensor *tensor);
/* Decides whether output 0 of a node that was just recorded can be made again, and holds what that takes. */
void luda__consider_remaking(luda_node *node, luda_tensor *const *in, luda_tensor *const *out);

/* An error where a tracked tensor's storage was changed through another view since it was recorded. */
luda_status luda__fresh_enough(const luda_tensor *tensor, const char *op);

luda_status luda__check_results(luda_op op, luda_tensor *const *in, int nin, const luda_tensor *into, luda_tensor *const *out);

/* --- Rules --- */

/* How an operator's gradient column reads. */
typedef enum luda_gradient_kind { LUDA__GRADIENT_NONE, LUDA__GRADIENT_ZERO, LUDA__GRADIENT_RULE } luda_gradient_kind;

/* One call of a rule: what it gets, and what it fills. Helpers are sticky: after the first failure they return NULL. */
typedef struct luda_rule {
    luda_node *node;
    luda_tensor *const *g;  /* per output; NULL where it took no part */
    luda_tensor *const *x;  /* kept inputs */
    luda_tensor *const *y;  /* kept outputs */
    const luda_attrs *attrs;
    const uint8_t *need;
    bool lone; /* g[0] is seen by nobody else, and may be written */
    luda_tensor *const *into; /* per input: its gradient so far, where the walk may add to it in place; else NULL */
    luda_tensor **dx; /* new references */
    luda_status status;
    luda_tensor **temporaries;
    int count, capacity;
} luda_rule;

typedef void (*luda_rule_function)(luda_rule *w);

luda_gradient_kind luda__gradient_kind(luda_op op);
/* The rule, or for create_graph the composition that a fused row names. */
luda_rule_function luda__gradient_rule(luda_op op, bool create_graph);
/* From the keeps column: a bit for each of the first eight inputs, then bits of other meaning. */
typedef enum luda_keeps {
    LUDA__KEEPS_NONE = 0,
    LUDA__KEEPS_SHAPE = 0,
    LUDA__KEEPS_FIRST = 1,
    LUDA__KEEPS_SECOND = 2,
    LUDA__KEEPS_IN = 0xff,
    LUDA__KEEPS_OUT = 0x100,
    LUDA__KEEPS_HIDDEN_OUT = 0x200,
    LUDA__KEEPS_PLACES = 0x400,
    LUDA__KEEPS_CROSSWISE = 0x800, /* an input only where another one of the bits needs a gradient */
    LUDA__KEEPS_OTHER = LUDA__KEEPS_FIRST | LUDA__KEEPS_SECOND | LUDA__KEEPS_CROSSWISE,
    LUDA__KEEPS_BOTH = LUDA__KEEPS_IN | LUDA__KEEPS_OUT,
    LUDA__KEEPS_FIRST_OUT = LUDA__KEEPS_FIRST | LUDA__KEEPS_OUT,
    LUDA__KEEPS_SECOND_OUT = LUDA__KEEPS_SECOND | LUDA__KEEPS_OUT,
    LUDA__KEEPS_HIDDEN = LUDA__KEEPS_IN | LUDA__KEEPS_HIDDEN_OUT,
    LUDA__KEEPS_TWO_HIDDEN = LUDA__KEEPS_FIRST | LUDA__KEEPS_SECOND | LUDA__KEEPS_HIDDEN_OUT,
    LUDA__KEEPS_OTHER_HIDDEN = LUDA__KEEPS_OTHER | LUDA__KEEPS_HIDDEN_OUT,
} luda_keeps;
luda_keeps luda__keeps(luda_op op);

/* Sums a gradient over the dimensions along which an input was broadcast. */
luda_status luda__unbroadcast(luda_tensor *gradient, int ndim, const int64_t *shape, luda_tensor **out);

static inline bool luda__tracked(const luda_tensor *tensor)
{
    return tensor && tensor->node;
}

#endif
