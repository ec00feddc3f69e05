/* The graph as Graphviz text. */
#include "walk.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct text {
    char *at;
    size_t size, used;
} text;

__attribute__((format(printf, 2, 3))) static void add(text *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    bool room = t->used < t->size;
    int length = vsnprintf(room ? t->at + t->used : NULL, room ? t->size - t->used : 0, format, arguments);
    va_end(arguments);
    t->used += length > 0 ? (size_t)length : 0;
}

static void add_node(text *t, const luda_node *node)
{
    unsigned long long order = (unsigned long long)node->order;
    if (node->leaf)
        add(t, "  n%llu [shape=box, label=\"leaf %llu\"];\n", order, (unsigned long long)node->leaf);
    else
        add(t, "  n%llu [label=\"%s\"];\n", order, luda__node_name(node));
    for (int i = 0; i < node->nin; i++) {
        const luda_node_input *input = &node->in[i];
        char shape[160];
        if (input->parent)
            add(t, "  n%llu -> n%llu [label=\"%s\"];\n", (unsigned long long)input->parent->order, order,
                luda__shape_text(input->ndim, input->shape, shape, sizeof shape));
    }
}

luda_status luda_graph_dot(luda_tensor *root, char *memory, size_t size, size_t *needed)
{
    text t = { memory, size, 0 };
    luda_walk *walk = NULL;
    if (!luda__tracked(root))
        return luda__fail(LUDA_EGRAPH, "dot: the tensor was not recorded; no input required a gradient, or luda.no_grad was on");
    LUDA_TRY(luda__walk_make(&walk));
    luda_status status = luda__walk_discover(walk, &root, 1, NULL);
    add(&t, "digraph {\n");
    for (int i = walk->count - 1; status == LUDA_OK && i >= 0; i--) /* oldest first */
        add_node(&t, walk->entries[i].node);
    add(&t, "}\n");
    *needed = t.used + 1;
    luda_walk_release(walk);
    return status;
}
