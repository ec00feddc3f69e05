/*
 * Memory for a little time: inside a region, results of memory-bound rows are not kept where they can be made again from
 * what the graph keeps anyway; the results of products, convolutions and attention are kept. Decided row by row while
 * recording; a walk makes a result again when a rule first asks for it, and drops it when it has passed its row.
 */
#include "walk.h"

/* So many such rows in a row, then a result is kept: bounds what making one again takes, and its recursion. */
enum { MOST_IN_A_ROW = 8 };

uint64_t luda_set_recompute(uint64_t from)
{
    luda_context *context = luda__context();
    uint64_t before = context->recompute;
    context->recompute = from;
    return before;
}

bool luda__is_remade(const luda_tensor *tensor)
{
    const luda_node *node = (const luda_node *)tensor->node;
    uint64_t from = luda__context()->recompute;
    return from && node && node->remakes && tensor->node_output == 0 && node->order >= from &&
           node->version == luda_tensor_version(tensor);
}

/* --- Deciding --- */

/* True if the operator that made the tensor, or what its views look at, keeps it; leaves are there anyway. */
static bool is_kept_where_made(const luda_tensor *tensor)
{
    const luda_node *node = (const luda_node *)tensor->node;
    int output = tensor->node_output;
    while (node && node->op >= 0 && luda__facts((luda_op)node->op)->is_view) {
        output = node->in[0].parent_output;
        node = node->in[0].parent;
    }
    return node && (node->leaf || (node->out && node->out[output].tensor));
}

/* Bytes that would be kept only for making the result again. */
static int64_t cost_of(const luda_node *node, luda_tensor *const *in, int i)
{
    if (!in[i] || node->in[i].kept.tensor || is_kept_where_made(in[i]))
        return 0;
    return in[i]->numel * luda_dtype_size((luda_dtype)in[i]->dtype);
}

/* 1 + the longest row of such nodes that end in the inputs; 0 where making the result again is not worth it. */
static int length_of_row(const luda_node *node, luda_tensor *const *in, const luda_tensor *out)
{
    const luda__op_facts *facts = luda__facts((luda_op)node->op);
    int length = 1;
    int64_t cost = 0;
    for (int i = 0; i < node->nin; i++) {
        if (!in[i])
            continue;
        if (!luda__same_device(in[i]->storage->device, out->storage->device))
            return 0;
        if (!luda__is_remade(in[i]))
            cost += cost_of(node, in, i);
        else if (((const luda_node *)in[i]->node)->remakes >= length)
            length = ((const luda_node *)in[i]->node)->remakes + 1;
    }
    if (length > MOST_IN_A_ROW)
        return 0;
    if (facts->is_view) /* shares the memory of what it looks at */
        return length > 1 ? length : 0;
    return facts->recompute_cheap && cost < out->numel * luda_dtype_size((luda_dtype)out->dtype) ? length : 0;
}

static void hold_inputs(luda_node *node, luda_tensor *const *in)
{
    for (int i = 0; i < node->nin; i++) {
        luda_node_input *input = &node->in[i];
        if (!in[i] || input->kept.tensor || input->remade)
            continue;
        input->spare = true;
        input->remade = luda__is_remade(in[i]);
        if (!input->remade)
            input->kept = (luda_kept){ luda__retain(in[i]), luda_tensor_version(in[i]), 0 };
    }
}

void luda__consider_remaking(luda_node *node, luda_tensor *const *in, luda_tensor *const *out)
{
    bool activation = luda__facts((luda_op)node->op)->recompute_activation;
    int length = activation ? node->attrs->linear.activation != LUDA_ACTIVATION_NONE : length_of_row(node, in, out[0]);
    if (length == 0)
        return;
    if (!activation)
        hold_inputs(node, in);
    if (node->out && node->out[0].tensor) {
        luda_tensor_release(node->out[0].tensor);
        node->out[0].tensor = NULL;
    }
    node->remakes = (uint8_t)length;
    node->version = luda_tensor_version(out[0]);
}

/* --- Making again --- */

static luda_status run_again(const luda_node *node, luda_tensor *const *in, luda_tensor **made)
{
    luda_tensor *out[LUDA_MAX_OUTPUTS];
    LUDA_TRY(luda__compute((luda_op)node->op, in, node->nin, node->attrs, out));
    for (int o = 1; o < node->nout; o++)
        luda_tensor_release(out[o]);
    *made = out[0];
    return LUDA_OK;
}

static luda_status activate_again(const luda_node *node, luda_tensor **made)
{
    luda_op op = node->attrs->linear.activation == LUDA_ACTIVATION_RELU ? LUDA_OP_relu : LUDA_OP_gelu_tanh;
    luda_tensor *before;
    LUDA_TRY(luda__kept_get(node, &node->out[1], "result", 2, &before));
    luda_status status = luda__compute(op, &before, 1, NULL, made);
    luda_tensor_release(before);
    return status;
}

static luda_status make_again(luda_walk *walk, luda_node *node, luda_tensor **made)
{
    luda_tensor *in[LUDA_MAX_INPUTS] = { NULL };
    luda_status status = LUDA_OK;
    if (luda__facts((luda_op)node->op)->recompute_activation)
        return activate_again(node, made);
    for (int i = 0; i < node->nin && status == LUDA_OK; i++) {
        if (node->in[i].remade)
            status = luda__remake(walk, node->in[i].parent, &in[i]); /* at most MOST_IN_A_ROW deep */
        else if (node->in[i].kept.tensor)
            status = luda__kept_get(node, &node->in[i].kept, "input", node->nin > 1 ? i + 1 : 0, &in[i]);
    }
    if (status == LUDA_OK)
        status = run_again(node, in, made);
    for (int i = 0; i < node->nin; i++)
        luda_tensor_release(in[i]);
    return status;
}

luda_status luda__remake(luda_walk *walk, luda_node *node, luda_tensor **out)
{
    walk_entry *entry = luda__walk_entry(walk, node);
    if (!entry)
        return luda__fail(LUDA_EGRAPH, "%s: its result must be made again for a segment that was recorded later; a segment needs "
                                       "a mark of its own", luda__node_name(node));
    if (!entry->made)
        LUDA_TRY(make_again(walk, node, &entry->made));
    *out = luda__retain(entry->made);
    return LUDA_OK;
}
