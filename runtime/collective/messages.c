/*
 * send and recv: a header that says what comes, then the values. They stand beside the order of calls: messages of one
 * tag from one rank arrive in order, and a sender does not wait for its receiver.
 */
#include "collective.h"

#include <string.h>

typedef struct header {
    int32_t dtype, ndim;
    int64_t shape[LUDA_MAX_DIMS];
} header;

enum { HEADER = 0, VALUES = 1 };

static luda_slot_name slot(int tag, uint32_t step)
{
    return (luda_slot_name){ .sequence = (uint32_t)tag, .step = step, .kind = LUDA_SLOT_MESSAGE };
}

static luda_status check_peer(luda_collective_run *run, int peer)
{
    luda_comm *comm = run->comm;
    if (run->local != LUDA_OK)
        return luda__fail_text(run->local, run->asked.note);
    if (peer < 0 || peer >= comm->size)
        return luda__fail(LUDA_EINVAL, "%s: rank %d of %d ranks", run->wait.name, peer, comm->size);
    run->wait.deadline = luda__now() + run->wait.timeout;
    return LUDA_OK;
}

static luda_status stopped(luda_collective_run *run, int peer)
{
    luda_comm_fault fault;
    luda_board *board = run->comm->board;
    bool yes;
    pthread_mutex_lock(&board->lock);
    yes = luda__board_stopped(&run->wait, &fault);
    if (!yes && peer != run->comm->rank && board->seats[peer].presence != LUDA_PRESENT) {
        luda__fault(&fault, LUDA_EPEER, "%s: lost rank %d (%s)", run->wait.name, peer, board->seats[peer].lost_text);
        luda__blame(&fault, peer);
        yes = true;
    }
    pthread_mutex_unlock(&board->lock);
    return yes ? luda__run_fault(run, &fault) : LUDA_OK;
}

static luda_status post_out(luda_collective_run *run, int to, luda_slot_name name, const void *data, size_t bytes)
{
    const luda_transport *transport = &run->comm->transport;
    if (to == run->comm->rank)
        return luda__mail_deliver(run->comm->board, to, to, name, data, bytes);
    return transport->send(transport->state, to, name, data, bytes);
}

static luda_status send_tensor(luda_collective_run *run, luda_tensor *tensor, int to, int tag)
{
    header h = { .dtype = -1 };
    luda_comm_fault fault;
    luda_device cpu = { LUDA_CPU, 0 };
    LUDA_TRY(check_peer(run, to));
    if (!tensor)
        return luda__fail(LUDA_EINVAL, "send: no tensor");
    if (luda_grad_enabled() && luda_requires_grad(tensor))
        return luda__fail(LUDA_EGRAPH, "send: has no gradient; detach the tensor first");
    LUDA_TRY(stopped(run, to));
    h.dtype = (int32_t)luda_tensor_dtype(tensor);
    h.ndim = luda_tensor_ndim(tensor);
    memcpy(h.shape, luda_tensor_shape(tensor), (size_t)h.ndim * sizeof(int64_t));
    LUDA_TRY(luda_tensor_new((luda_dtype)h.dtype, cpu, h.ndim, h.shape, &run->input));
    LUDA_TRY(luda__copy(tensor, run->input));
    /* Before the header: what fails is a whole message. */
    if (to != run->comm->rank && luda__mail_await_room(&run->wait, to, &fault) != LUDA_OK)
        return luda__run_fault(run, &fault);
    LUDA_TRY(post_out(run, to, slot(tag, HEADER), &h, sizeof h));
    if (luda_tensor_numel(tensor) == 0)
        return LUDA_OK;
    return post_out(run, to, slot(tag, VALUES), luda_tensor_data(run->input),
                    (size_t)(luda_tensor_numel(tensor) * luda_dtype_size((luda_dtype)h.dtype)));
}

static luda_status fetch(luda_collective_run *run, int from, luda_slot_name name, void *memory, size_t bytes)
{
    luda_board *board = run->comm->board;
    luda_comm_fault fault;
    luda_status status;
    LUDA_TRY(luda__mail_post(board, run->comm->rank, from, name, memory, bytes));
    status = luda__mail_await_message(&run->wait, from, name, &fault);
    luda__mail_withdraw_message(board, run->comm->rank, from, name);
    return status == LUDA_OK ? LUDA_OK : luda__run_fault(run, &fault);
}

static luda_status recv_tensor(luda_collective_run *run, int from, int tag)
{
    header h;
    luda_device cpu = { LUDA_CPU, 0 };
    LUDA_TRY(check_peer(run, from));
    LUDA_TRY(fetch(run, from, slot(tag, HEADER), &h, sizeof h));
    if (h.dtype < 0 || h.dtype >= LUDA_DTYPE_COUNT || h.ndim < 0 || h.ndim > LUDA_MAX_DIMS)
        return luda__fail(LUDA_ECORRUPT, "recv: the header from rank %d is damaged", from);
    LUDA_TRY(luda_tensor_new((luda_dtype)h.dtype, cpu, h.ndim, h.shape, &run->output));
    if (luda_tensor_numel(run->output) == 0)
        return LUDA_OK;
    return fetch(run, from, slot(tag, VALUES), luda_tensor_data(run->output),
                 (size_t)(luda_tensor_numel(run->output) * luda_dtype_size((luda_dtype)h.dtype)));
}

static luda_status run_message(luda_comm *comm, luda_comm_call call, luda_tensor *tensor, int peer,
                               const luda_comm_options *given, luda_tensor **out)
{
    luda_comm_options options;
    luda_collective_run run;
    luda_status status;
    LUDA_TRY(luda__options(given, &options));
    LUDA_TRY(luda__run_begin(&run, comm, call, &options));
    if (tensor) {
        run.asked.dtype = (int32_t)luda_tensor_dtype(tensor);
        run.asked.ndim = luda_tensor_ndim(tensor);
        memcpy(run.asked.shape, luda_tensor_shape(tensor), (size_t)run.asked.ndim * sizeof(int64_t));
    }
    status = luda__comm_claim(comm, run.wait.name);
    if (status == LUDA_OK) {
        luda__run_depart(&run);
        status = call == LUDA_CALL_SEND ? send_tensor(&run, tensor, peer, options.tag)
                                        : recv_tensor(&run, peer, options.tag);
        status = luda__run_settle(&run, status);
        luda__comm_yield(comm);
    }
    if (status == LUDA_OK && out) {
        *out = run.output;
        run.output = NULL;
    }
    luda__run_end(&run);
    return status;
}

luda_status luda_comm_send(luda_comm *comm, luda_tensor *tensor, int to, const luda_comm_options *options)
{
    return run_message(comm, LUDA_CALL_SEND, tensor, to, options, NULL);
}

luda_status luda_comm_recv(luda_comm *comm, int from, const luda_comm_options *options, luda_tensor **out)
{
    return run_message(comm, LUDA_CALL_RECV, NULL, from, options, out);
}
