/*
 * Gradients of collectives: of the sum over ranks of every rank's loss. A backward pass makes the same calls on every
 * rank, in the reverse of the order in which the forward calls were made; with create_graph these are tracked in turn.
 */
#include "collective.h"

#include <stdlib.h>
#include <string.h>

typedef struct state {
    luda_comm *comm;
    luda_announcement agreed;
    luda_dtype dtype; /* of the result */
    luda_device device;
    int ndim;
    int64_t shape[LUDA_MAX_DIMS];
    int64_t *sizes; /* uneven pieces: [2][ranks], and for all_to_all what was received; NULL: even ones */
} state;

typedef luda_status (*backward)(const state *s, luda_tensor *gradient, const luda_comm_options *options,
                                luda_tensor **out);

static luda_status all_reduce(const state *s, luda_tensor *g, const luda_comm_options *options, luda_tensor **out)
{
    return luda_comm_all_reduce(s->comm, g, (luda_reduction)s->agreed.reduction, options, out);
}

/* The root's input reached everybody; the others' inputs reached nobody. */
static luda_status broadcast(const state *s, luda_tensor *g, const luda_comm_options *options, luda_tensor **out)
{
    luda_tensor *sum = NULL, *zero;
    luda_status status;
    bool root = s->agreed.root == luda_comm_rank(s->comm);
    if (luda_grad_enabled() && luda_requires_grad(g)) {
        /* Every rank's graph must hold the call, so that its own backward meets on all ranks. */
        LUDA_TRY(luda_comm_all_reduce(s->comm, g, LUDA_REDUCE_SUM, options, &sum));
        if (root) {
            *out = sum;
            return LUDA_OK;
        }
        status = luda_tensor_scalar(0, s->dtype, &zero);
        if (status == LUDA_OK) {
            status = luda_apply(LUDA_OP_mul, (luda_tensor *[]){ sum, zero }, 2, NULL, out);
            luda_tensor_release(zero);
        }
        luda_tensor_release(sum);
        return status;
    }
    LUDA_TRY(luda_comm_reduce(s->comm, g, LUDA_REDUCE_SUM, s->agreed.root, options, &sum));
    if (root)
        *out = sum;
    return root ? LUDA_OK : luda__zeros(s->dtype, s->device, s->ndim, s->shape, out);
}

static luda_status all_gather(const state *s, luda_tensor *g, const luda_comm_options *options, luda_tensor **out)
{
    return luda_comm_reduce_scatter(s->comm, g, LUDA_REDUCE_SUM, options, out);
}

static luda_status reduce_scatter(const state *s, luda_tensor *g, const luda_comm_options *options, luda_tensor **out)
{
    luda_tensor *size, *part = NULL;
    luda_status status;
    if (s->agreed.reduction == LUDA_REDUCE_SUM)
        return luda_comm_all_gather(s->comm, g, options, out);
    LUDA_TRY(luda_tensor_scalar(luda_comm_size(s->comm), s->dtype, &size));
    status = luda_apply(LUDA_OP_div, (luda_tensor *[]){ g, size }, 2, NULL, &part);
    luda_tensor_release(size);
    if (status == LUDA_OK)
        status = luda_comm_all_gather(s->comm, part, options, out);
    luda_tensor_release(part);
    return status;
}

static luda_status all_to_all(const state *s, luda_tensor *g, const luda_comm_options *options, luda_tensor **out)
{
    return luda_comm_all_to_all(s->comm, g, options, out);
}

static const struct {
    backward backward;
    const char *site;
} rules[LUDA_CALL_COUNT] = {
    [LUDA_CALL_ALL_REDUCE] = { all_reduce, "backward of all_reduce" },
    [LUDA_CALL_BROADCAST] = { broadcast, "backward of broadcast" },
    [LUDA_CALL_ALL_GATHER] = { all_gather, "backward of all_gather" },
    [LUDA_CALL_REDUCE_SCATTER] = { reduce_scatter, "backward of reduce_scatter" },
    [LUDA_CALL_ALL_TO_ALL] = { all_to_all, "backward of all_to_all" },
};

bool luda__collective_differentiable(luda_comm_call call, luda_reduction reduction)
{
    bool linear = reduction == LUDA_REDUCE_SUM || reduction == LUDA_REDUCE_MEAN;
    return rules[call].backward && (linear || (call != LUDA_CALL_ALL_REDUCE && call != LUDA_CALL_REDUCE_SCATTER));
}

/* Runs on every rank that reaches the node, also where no gradient came: the others wait for this rank. */
static luda_status run_backward(luda_node *node, void *opaque, luda_tensor *const *gradients, const uint8_t *need,
                                luda_tensor **dx)
{
    const state *s = opaque;
    int operation = s->agreed.operation;
    luda_comm_options options = { .size = sizeof options, .dim = s->agreed.dim, .site = rules[operation].site };
    int size = luda_comm_size(s->comm);
    luda_tensor *gradient = gradients[0], *result = NULL;
    luda_status status;
    if (gradient)
        luda_tensor_retain(gradient);
    else
        LUDA_TRY(luda__zeros(s->dtype, s->device, s->ndim, s->shape, &gradient));
    if (s->sizes) {
        /* all_to_all goes the way back: what was received is sent. */
        bool exchanged = operation == LUDA_CALL_ALL_TO_ALL;
        options.sizes = exchanged ? s->sizes + size : s->sizes;
        options.received = exchanged ? s->sizes : NULL;
        options.pieces = size;
    }
    status = rules[operation].backward(s, gradient, &options, &result);
    luda_tensor_release(gradient);
    if (status != LUDA_OK)
        return status;
    if (need[0])
        dx[0] = result;
    else
        luda_tensor_release(result);
    return LUDA_OK;
}

static void release_state(void *opaque)
{
    state *s = opaque;
    luda_comm_release(s->comm);
    free(s->sizes);
    free(s);
}

luda_status luda__collective_record(luda_comm *comm, const luda_collective *what, luda_tensor *input,
                                    luda_tensor *output)
{
    static const luda_node_class classes[LUDA_CALL_COUNT] = {
#define LUDA_CALL(name, NAME) [LUDA_CALL_##NAME] = { #name, run_backward, release_state, 1, 1 },
#include "names.def"
    };
    luda_node *node;
    size_t bytes = (size_t)what->size * sizeof(int64_t);
    state *s = calloc(1, sizeof *s);
    if (!s || (what->sizes && !(s->sizes = calloc(2, bytes)))) {
        free(s);
        return luda__fail(LUDA_ENOMEM, "%s: no memory for the graph", luda__call_name(what->agreed.operation));
    }
    if (what->sizes)
        memcpy(s->sizes, what->sizes, bytes);
    if (what->received)
        memcpy(s->sizes + what->size, what->received, bytes);
    luda_comm_retain(comm);
    s->comm = comm;
    s->agreed = what->agreed;
    s->dtype = luda_tensor_dtype(output);
    s->device = luda_tensor_device(output);
    s->ndim = luda_tensor_ndim(output);
    memcpy(s->shape, luda_tensor_shape(output), (size_t)s->ndim * sizeof(int64_t));
    return luda_node_new(&input, 1, &output, 1, &classes[what->agreed.operation], s, &node);
}
