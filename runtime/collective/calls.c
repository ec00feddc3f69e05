/*
 * The operations: what each takes and gives, checked before ranks meet. A rank that finds its arguments wrong still
 * arrives, and refuses there, so that nobody waits for it.
 */
#include "lane.h"

#include <stdlib.h>
#include <string.h>

/* --- What an operation takes and gives --- */

enum { NOBODY, ROOT, EVERYBODY };
enum { SAME, JOIN, CUT };

static const struct {
    int8_t takes, gives; /* who brings a tensor, who gets one */
    int8_t shape;        /* of the result against the input, along dim */
    bool reduces, cuts;  /* cuts: the input must divide along dim */
} operations[LUDA_CALL_COUNT] = {
    [LUDA_CALL_BARRIER] = { NOBODY, NOBODY, SAME, false, false },
    [LUDA_CALL_ALL_REDUCE] = { EVERYBODY, EVERYBODY, SAME, true, false },
    [LUDA_CALL_REDUCE] = { EVERYBODY, ROOT, SAME, true, false },
    [LUDA_CALL_BROADCAST] = { ROOT, EVERYBODY, SAME, false, false },
    [LUDA_CALL_ALL_GATHER] = { EVERYBODY, EVERYBODY, JOIN, false, false },
    [LUDA_CALL_REDUCE_SCATTER] = { EVERYBODY, EVERYBODY, CUT, true, true },
    [LUDA_CALL_GATHER] = { EVERYBODY, ROOT, JOIN, false, false },
    [LUDA_CALL_SCATTER] = { ROOT, EVERYBODY, CUT, false, true },
    [LUDA_CALL_ALL_TO_ALL] = { EVERYBODY, EVERYBODY, SAME, false, true },
};

static bool has_dim(int operation)
{
    return operations[operation].shape != SAME || operations[operation].cuts;
}

static bool has_root(int operation)
{
    return operations[operation].takes == ROOT || operations[operation].gives == ROOT;
}

/* --- Checks --- */

static luda_status check_dim(luda_collective_run *run, const luda_arguments *a)
{
    int ndim = luda_tensor_ndim(a->tensor), dim = a->options.dim;
    int64_t length;
    if (dim < -ndim || dim >= ndim)
        return luda__fail(LUDA_EINVAL, "%s: axis %d of a %d-dimensional tensor", run->wait.name, dim, ndim);
    run->asked.dim = dim < 0 ? dim + ndim : dim;
    length = luda_tensor_shape(a->tensor)[run->asked.dim];
    if (a->options.sizes) {
        run->asked.ndim = -1; /* unknown, should the sizes be wrong */
        LUDA_TRY(luda__check_sizes(run, &a->options, length));
        run->asked.ndim = ndim;
        run->asked.shape[run->asked.dim] = run->asked.operation == LUDA_CALL_ALL_TO_ALL
                                               ? -1
                                               : luda__sizes_sum(a->options.sizes, run->comm->size);
    } else if (operations[run->asked.operation].cuts && length % run->comm->size != 0) {
        return luda__fail(LUDA_ESHAPE, "%s: %lld along the axis do not divide among %d ranks; sizes= cuts unevenly",
                          run->wait.name, (long long)length, run->comm->size);
    }
    return LUDA_OK;
}

static luda_status check_root(luda_collective_run *run, const luda_arguments *a)
{
    int operation = run->asked.operation, least = operation == LUDA_CALL_BROADCAST ? -1 : 0;
    if (a->root < least || a->root >= run->comm->size)
        return luda__fail(LUDA_EINVAL, "%s: root %d of %d ranks", run->wait.name, a->root, run->comm->size);
    run->asked.root = a->root;
    return LUDA_OK;
}

static luda_status check_reduction(luda_collective_run *run, const luda_arguments *a)
{
    luda_dtype dtype = luda_tensor_dtype(a->tensor);
    if ((int)a->reduction < 0 || a->reduction >= LUDA_REDUCE_COUNT)
        return luda__fail(LUDA_EINVAL, "%s: no reduction number %d", run->wait.name, (int)a->reduction);
    run->asked.reduction = (int32_t)a->reduction;
    if (!luda__reduction_fits(a->reduction, dtype))
        return luda__fail(LUDA_EDTYPE, "%s: no %s of %s%s", run->wait.name, luda_reduction_name(a->reduction),
                          luda_dtype_name(dtype),
                          a->reduction == LUDA_REDUCE_MEAN ? "; take the sum, or convert to a floating type" : "");
    return LUDA_OK;
}

static luda_status check_tracked(luda_collective_run *run, const luda_arguments *a)
{
    bool tracked = luda_grad_enabled() && luda_requires_grad(a->tensor);
    run->asked.tracked = tracked;
    if (tracked && a->in_place)
        return luda__fail(LUDA_EGRAPH, "%s: in place on a tracked tensor; use the form that returns a new one",
                          run->wait.name);
    if (tracked && !luda__collective_differentiable((luda_comm_call)run->asked.operation, a->reduction))
        return luda__fail(LUDA_EGRAPH, "%s: has no gradient%s%s; detach the tensor first", run->wait.name,
                          operations[run->asked.operation].reduces ? " with " : "",
                          operations[run->asked.operation].reduces ? luda_reduction_name(a->reduction) : "");
    return LUDA_OK;
}

/* Fills what this rank asks for as far as it is valid, and says what is not. */
static luda_status ask(luda_collective_run *run, const luda_arguments *a)
{
    int operation = run->asked.operation;
    if (has_root(operation))
        LUDA_TRY(check_root(run, a));
    if (a->options.sizes && !has_dim(operation))
        return luda__fail(LUDA_EINVAL, "%s: takes no sizes; nothing is joined or cut", run->wait.name);
    if (!a->tensor) {
        bool must = operations[operation].takes == EVERYBODY ||
                    (operations[operation].takes == ROOT && a->root == run->comm->rank);
        if (has_dim(operation))
            run->asked.dim = a->options.dim < 0 ? -1 : a->options.dim;
        if (a->options.sizes)
            LUDA_TRY(luda__check_sizes(run, &a->options, -1));
        return must ? luda__fail(LUDA_EINVAL, "%s: rank %d must pass a tensor", run->wait.name, run->comm->rank)
                    : LUDA_OK;
    }
    run->asked.sender = 1;
    run->asked.dtype = (int32_t)luda_tensor_dtype(a->tensor);
    run->asked.ndim = luda_tensor_ndim(a->tensor);
    memcpy(run->asked.shape, luda_tensor_shape(a->tensor), (size_t)run->asked.ndim * sizeof(int64_t));
    if (has_dim(operation))
        LUDA_TRY(check_dim(run, a));
    if (operations[operation].reduces)
        LUDA_TRY(check_reduction(run, a));
    return check_tracked(run, a);
}

/* --- Memory --- */

/* Contiguous values in host memory, untracked. */
static luda_status host_input(luda_tensor *tensor, luda_tensor **out)
{
    luda_device device = luda_tensor_device(tensor), cpu = { LUDA_CPU, 0 };
    luda_tensor *copy;
    luda_status status;
    if (device.type == LUDA_CPU && luda_tensor_is_contiguous(tensor)) {
        luda_tensor_retain(tensor);
        *out = tensor;
        return LUDA_OK;
    }
    LUDA_TRY(
        luda_tensor_new(luda_tensor_dtype(tensor), cpu, luda_tensor_ndim(tensor), luda_tensor_shape(tensor), &copy));
    status = luda__copy(tensor, copy);
    if (status == LUDA_OK)
        *out = copy;
    else
        luda_tensor_release(copy);
    return status;
}

static bool gets(const luda_collective_run *run, int root)
{
    int gives = operations[run->asked.operation].gives;
    return gives == EVERYBODY || (gives == ROOT && root == run->comm->rank);
}

/* The result's length along dim; -1: not known yet. */
static int64_t result_length(const luda_collective *what, int operation, int64_t length)
{
    if (operations[operation].shape == CUT)
        return what->sizes ? what->sizes[what->rank] : length / what->size;
    if (operation != LUDA_CALL_ALL_TO_ALL || !what->sizes)
        return what->count;
    return what->received ? luda__sizes_sum(what->received, what->size) : -1;
}

static luda_status make_output(luda_collective_run *run, const luda_announcement *known, const int64_t *shape)
{
    luda_device cpu = { LUDA_CPU, 0 };
    int64_t bytes = luda_dtype_size((luda_dtype)known->dtype);
    if (!run->apart) {
        LUDA_TRY(luda_tensor_new((luda_dtype)known->dtype, cpu, known->ndim, shape, &run->output));
        run->what.out = luda_tensor_data(run->output);
        return LUDA_OK;
    }
    memcpy(run->detached_shape, shape, sizeof run->detached_shape);
    for (int d = 0; d < known->ndim; d++)
        bytes *= shape[d];
    run->what.out = run->detached = malloc((size_t)(bytes ? bytes : 1));
    return run->detached ? LUDA_OK : luda__fail(LUDA_ENOMEM, "%s: no memory for the result", run->wait.name);
}

/* What another rank says of a tensor that this one does not know is believed no further than this. */
static bool describes_tensor(const luda_collective_run *run, const luda_announcement *known)
{
    int64_t shape[LUDA_MAX_DIMS];
    bool along = has_dim(known->operation);
    size_t bytes;
    if (known->ndim < 0 || known->dtype < 0 || known->root < 0 || (along && (known->dim < 0 || known->dim >= known->ndim)))
        return false;
    memcpy(shape, known->shape, sizeof shape);
    if (along && shape[known->dim] < 0 && run->input)
        shape[known->dim] = luda_tensor_shape(run->input)[known->dim];
    if (luda__count_bytes(known->ndim, shape, (luda_dtype)known->dtype, &bytes) != LUDA_OK)
        return false;
    return !operations[known->operation].cuts || run->what.sizes || shape[known->dim] % run->what.size == 0;
}

/* Extents of the joined tensor, and the result; `known` is an announcement whose shape is known. */
static luda_status lay_out(luda_collective_run *run, const luda_announcement *known)
{
    luda_collective *what = &run->what;
    int64_t shape[LUDA_MAX_DIMS];
    int operation = known->operation;
    bool made = run->output || run->detached;
    if (!describes_tensor(run, known))
        return luda__fail(LUDA_ECORRUPT, "%s: what the ranks agreed on describes no tensor", run->wait.name);
    what->outer = what->inner = what->count = 1;
    memcpy(shape, known->shape, sizeof shape);
    if (!has_dim(operation)) {
        for (int d = 0; d < known->ndim; d++)
            what->count *= known->shape[d];
    } else {
        /* Uneven lengths of a joined tensor were announced as their sum. */
        bool joins = operations[operation].shape == JOIN && !what->sizes;
        int64_t length = known->shape[known->dim] < 0 ? luda_tensor_shape(run->input)[known->dim] : known->shape[known->dim];
        for (int d = 0; d < known->dim; d++)
            what->outer *= known->shape[d];
        for (int d = known->dim + 1; d < known->ndim; d++)
            what->inner *= known->shape[d];
        what->count = joins ? length * what->size : length;
        shape[known->dim] = result_length(what, operation, length);
        if (shape[known->dim] < 0)
            return LUDA_OK;
    }
    return made || !gets(run, known->root) ? LUDA_OK : make_output(run, known, shape);
}

static luda_status prepare(luda_collective_run *run, const luda_arguments *a)
{
    LUDA_TRY(ask(run, a));
    if (!a->tensor)
        return LUDA_OK;
    run->device = luda_tensor_device(a->tensor);
    LUDA_TRY(host_input(a->tensor, &run->input));
    run->what.in = luda_tensor_data(run->input);
    if (a->in_place) {
        run->output = run->input;
        run->what.out = luda_tensor_data(run->output);
    }
    /* Whoever the root turns out to be, the shape is known here. */
    return run->asked.root < 0 ? LUDA_OK : lay_out(run, &run->asked);
}

/* --- Running --- */

void luda__call_prepare(luda_collective_run *run, const luda_arguments *a)
{
    if (run->local == LUDA_OK)
        luda__run_refuse(run, prepare(run, a));
}

/* What shared memory does itself is the fastest way there is; else the model says. */
static void choose(luda_collective_run *run)
{
    luda_collective *what = &run->what;
    luda_network network = luda__network(what->agreed.link);
    double bytes = (double)(what->outer * what->count * what->inner) * luda_dtype_size((luda_dtype)what->agreed.dtype);
    luda_way way = luda__choose((luda_comm_call)what->agreed.operation, what->size, bytes, &network);
    what->agreed.algorithm = way.algorithm;
    what->agreed.arity = way.arity;
}

static luda_status move(luda_collective_run *run)
{
    const luda_transport *transport = &run->comm->transport;
    luda_announcement *agreed = &run->what.agreed;
    bool automatic = agreed->algorithm == LUDA_ALGORITHM_AUTO, uneven = run->what.sizes != NULL;
    /* A result that could not be allocated is this rank's trouble: shared memory lets the others finish. */
    luda_status late = operations[run->asked.operation].takes == NOBODY ? LUDA_OK : lay_out(run, agreed);
    luda_status status = LUDA_ENOTSUP;
    if (automatic)
        agreed->algorithm = LUDA_ALGORITHM_DIRECT;
    if (run->wait.board->lane && agreed->algorithm == LUDA_ALGORITHM_DIRECT && !uneven) {
        status = luda__lane_collective(run);
        return status == LUDA_OK && late != LUDA_OK ? luda__run_fail(run, late) : status;
    }
    if (transport->collective && !uneven)
        status = transport->collective(transport->state, &run->what);
    run->mailed = true;
    if (agreed->operation == LUDA_CALL_ALL_TO_ALL && uneven && !run->what.received) {
        LUDA_TRY(luda__run_counts(run));
        late = lay_out(run, agreed);
    }
    if (automatic && status == LUDA_ENOTSUP && late == LUDA_OK)
        choose(run);
    if (status == LUDA_ENOTSUP && late == LUDA_OK)
        return luda__run_steps(run);
    if (late != LUDA_OK)
        return status == LUDA_OK ? late : luda__run_fail(run, late);
    return status == LUDA_OK ? LUDA_OK : luda__run_fail(run, status);
}

luda_status luda__call_hand_over(luda_collective_run *run, const luda_arguments *a, luda_tensor **out)
{
    luda_tensor *result;
    luda_status status;
    if (run->detached) {
        luda_device cpu = { LUDA_CPU, 0 };
        LUDA_TRY(luda_tensor_new((luda_dtype)run->what.agreed.dtype, cpu, run->what.agreed.ndim, run->detached_shape,
                                 &run->output));
        if (luda_tensor_numel(run->output) > 0)
            memcpy(luda_tensor_data(run->output), run->detached,
                   (size_t)(luda_tensor_numel(run->output) * luda_dtype_size((luda_dtype)run->what.agreed.dtype)));
        free(run->detached);
        run->detached = NULL;
    }
    result = run->output;
    if (a->in_place) {
        if (result != a->tensor)
            LUDA_TRY(luda__copy(result, a->tensor));
        luda__bump(a->tensor);
        return LUDA_OK;
    }
    if (!out)
        return LUDA_OK;
    if (result && run->device.type != LUDA_CPU) {
        luda_tensor *there;
        LUDA_TRY(luda_tensor_new(luda_tensor_dtype(result), run->device, luda_tensor_ndim(result),
                                 luda_tensor_shape(result), &there));
        run->output = there;
        status = luda__copy(result, there);
        luda_tensor_release(result);
        if (status != LUDA_OK)
            return status;
        result = there;
    }
    if (run->what.agreed.tracked > 0)
        LUDA_TRY(luda__collective_record(run->comm, &run->what, a->tensor, result));
    *out = result;
    run->output = NULL;
    return LUDA_OK;
}

luda_status luda__call_exchange(luda_collective_run *run)
{
    luda_status status = luda__run_agree(run);
    if (status == LUDA_OK)
        status = move(run);
    return luda__run_settle(run, status);
}

static luda_status run_call(luda_comm *comm, luda_comm_call call, luda_tensor *tensor, luda_reduction reduction,
                            int root, bool in_place, const luda_comm_options *options, luda_tensor **out)
{
    luda_arguments a = { .tensor = tensor, .reduction = reduction, .root = root, .in_place = in_place };
    luda_collective_run run;
    luda_status status;
    LUDA_TRY(luda__options(options, &a.options));
    LUDA_TRY(luda__run_begin(&run, comm, call, &a.options));
    luda__call_prepare(&run, &a);
    status = luda__comm_claim(comm, run.wait.name);
    if (status == LUDA_OK) {
        status = luda__call_exchange(&run);
        luda__comm_yield(comm);
    }
    if (status == LUDA_OK)
        status = luda__call_hand_over(&run, &a, out);
    luda__run_end(&run);
    return status;
}

luda_status luda_comm_barrier(luda_comm *comm, const luda_comm_options *options)
{
    return run_call(comm, LUDA_CALL_BARRIER, NULL, 0, 0, false, options, NULL);
}

luda_status luda_comm_all_reduce(luda_comm *comm, luda_tensor *tensor, luda_reduction reduction,
                                 const luda_comm_options *options, luda_tensor **out)
{
    return run_call(comm, LUDA_CALL_ALL_REDUCE, tensor, reduction, 0, false, options, out);
}

luda_status luda_comm_all_reduce_into(luda_comm *comm, luda_tensor *tensor, luda_reduction reduction,
                                      const luda_comm_options *options)
{
    return run_call(comm, LUDA_CALL_ALL_REDUCE, tensor, reduction, 0, true, options, NULL);
}

luda_status luda_comm_reduce(luda_comm *comm, luda_tensor *tensor, luda_reduction reduction, int root,
                             const luda_comm_options *options, luda_tensor **out)
{
    return run_call(comm, LUDA_CALL_REDUCE, tensor, reduction, root, false, options, out);
}

luda_status luda_comm_broadcast(luda_comm *comm, luda_tensor *tensor, int root, const luda_comm_options *options,
                                luda_tensor **out)
{
    return run_call(comm, LUDA_CALL_BROADCAST, tensor, 0, root, false, options, out);
}

luda_status luda_comm_all_gather(luda_comm *comm, luda_tensor *tensor, const luda_comm_options *options,
                                 luda_tensor **out)
{
    return run_call(comm, LUDA_CALL_ALL_GATHER, tensor, 0, 0, false, options, out);
}

luda_status luda_comm_reduce_scatter(luda_comm *comm, luda_tensor *tensor, luda_reduction reduction,
                                     const luda_comm_options *options, luda_tensor **out)
{
    return run_call(comm, LUDA_CALL_REDUCE_SCATTER, tensor, reduction, 0, false, options, out);
}

luda_status luda_comm_gather(luda_comm *comm, luda_tensor *tensor, int root, const luda_comm_options *options,
                             luda_tensor **out)
{
    return run_call(comm, LUDA_CALL_GATHER, tensor, 0, root, false, options, out);
}

luda_status luda_comm_scatter(luda_comm *comm, luda_tensor *tensor, int root, const luda_comm_options *options,
                              luda_tensor **out)
{
    return run_call(comm, LUDA_CALL_SCATTER, tensor, 0, root, false, options, out);
}

luda_status luda_comm_all_to_all(luda_comm *comm, luda_tensor *tensor, const luda_comm_options *options,
                                 luda_tensor **out)
{
    return run_call(comm, LUDA_CALL_ALL_TO_ALL, tensor, 0, 0, false, options, out);
}
