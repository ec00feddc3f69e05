/* Communicators: life, the frame around every call, what a failed call leaves to read, the flight record. */
#include "collective.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double wall_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* --- Life --- */

static void comm_destroy(void *object)
{
    luda_comm *comm = object;
    luda_comm_close(comm);
    if (comm->transport.release)
        comm->transport.release(comm->transport.state);
    luda_board_release(comm->board);
    pthread_mutex_destroy(&comm->flight_lock);
    free(comm->asked);
    free(comm);
}

static const luda_class comm_class = { "comm", comm_destroy };

luda_status luda_comm_new_over(const luda_transport *transport, luda_board *board, int rank,
                               const luda_comm_options *options, luda_comm **out)
{
    luda_comm *comm = calloc(1, sizeof *comm);
    if (!comm || !(comm->asked = calloc((size_t)board->size, sizeof *comm->asked))) {
        free(comm);
        if (transport->release)
            transport->release(transport->state);
        return luda__fail(LUDA_ENOMEM, "comm: no memory for a communicator of %d ranks", board->size);
    }
    luda__object_init(comm, &comm_class);
    memcpy(&comm->transport, transport, transport->size < sizeof *transport ? transport->size : sizeof *transport);
    comm->board = board;
    luda_board_retain(board);
    comm->rank = rank;
    comm->size = board->size;
    comm->algorithm = options && options->algorithm ? options->algorithm : LUDA_ALGORITHM_DIRECT;
    comm->timeout = options && options->timeout > 0 ? options->timeout : luda__default_timeout;
    atomic_init(&comm->busy, 0);
    atomic_init(&comm->closed, false);
    pthread_mutex_init(&comm->flight_lock, NULL);
    *out = comm;
    return LUDA_OK;
}

void luda_comm_retain(luda_comm *comm)
{
    luda__retain(comm);
}

void luda_comm_release(luda_comm *comm)
{
    luda__release(comm);
}

int luda_comm_rank(const luda_comm *comm)
{
    return comm->rank;
}

int luda_comm_size(const luda_comm *comm)
{
    return comm->size;
}

const char *luda_comm_transport(const luda_comm *comm)
{
    return comm->transport.name;
}

void luda_comm_close(luda_comm *comm)
{
    if (!comm || atomic_exchange(&comm->closed, true))
        return;
    if (comm->transport.close)
        comm->transport.close(comm->transport.state);
    luda_board_lost(comm->board, comm->rank, 1, NULL);
}

void luda_comm_abort(luda_comm *comm, const char *text)
{
    luda_comm_fault fault;
    luda__fault(&fault, LUDA_ECANCELLED, "rank %d aborted: %s", comm->rank, text ? text : "no reason given");
    luda__blame(&fault, comm->rank);
    luda_board_failed(comm->board, 0, &fault);
    if (comm->transport.fail)
        comm->transport.fail(comm->transport.state, 0, &fault);
}

/* --- The frame of a call --- */

static void check_options(luda_collective_run *run, const luda_comm_options *options)
{
    luda_comm *comm = run->comm;
    const char *name = run->wait.name;
    luda_algorithm wanted = (luda_algorithm)comm->algorithm, found;
    bool explicit = options && options->algorithm != LUDA_ALGORITHM_DEFAULT;
    if (options && options->size < offsetof(luda_comm_options, algorithm))
        run->local = luda__fail(LUDA_EINVAL, "%s: options without their size", name);
    else if (options && (options->algorithm < 0 || options->algorithm >= LUDA_ALGORITHM_COUNT))
        run->local = luda__fail(LUDA_EINVAL, "%s: no algorithm number %d", name, options->algorithm);
    else if (options && !(options->timeout >= 0))
        run->local = luda__fail(LUDA_EINVAL, "%s: a timeout of %g s", name, options->timeout);
    if (run->local != LUDA_OK)
        return;
    if (explicit)
        wanted = (luda_algorithm)options->algorithm;
    if (options && options->timeout > 0)
        run->wait.timeout = options->timeout;
    found = luda__algorithm_for((luda_collective_call)run->asked.operation, wanted, comm->size);
    if (found == LUDA_ALGORITHM_DEFAULT && explicit)
        run->local = luda__fail(LUDA_ENOTSUP, "%s: has no algorithm \"%s\"; direct always works", name,
                                luda_algorithm_name(wanted));
    run->asked.algorithm = found == LUDA_ALGORITHM_DEFAULT ? LUDA_ALGORITHM_DIRECT : found;
}

luda_status luda__run_begin(luda_collective_run *run, luda_comm *comm, luda_collective_call call,
                            const luda_comm_options *options)
{
    const char *name = luda__call_name(call);
    if (!comm)
        return luda__fail(LUDA_EINVAL, "%s: no communicator", name);
    if (atomic_load(&comm->closed))
        return luda__fail(LUDA_ECLOSED, "%s: the communicator was closed", name);
    if (atomic_exchange(&comm->busy, 1))
        return luda__fail(LUDA_EINVAL,
                          "%s: another thread is in a call of this communicator; use one communicator a thread", name);
    luda_comm_retain(comm);
    memset(run, 0, sizeof *run);
    run->comm = comm;
    run->wait = (luda_wait){
        .board = comm->board, .transport = &comm->transport, .rank = comm->rank, .timeout = comm->timeout, .name = name
    };
    run->asked.operation = (int32_t)call;
    run->asked.dtype = run->asked.ndim = -1;
    run->what.rank = comm->rank;
    run->what.size = comm->size;
    if (options && options->site)
        snprintf(run->asked.site, sizeof run->asked.site, "%s", options->site);
    comm->fault.status = LUDA_OK;
    comm->field = NULL;
    memset(comm->fault.culprits, 0, sizeof comm->fault.culprits);
    check_options(run, options);
    return LUDA_OK;
}

void luda__run_depart(luda_collective_run *run)
{
    luda_comm *comm = run->comm;
    luda_flight *flight;
    int64_t numel = 1;
    for (int d = 0; d < run->asked.ndim; d++)
        numel *= run->asked.shape[d];
    pthread_mutex_lock(&comm->flight_lock);
    run->flight = comm->flown++;
    flight = &comm->flights[run->flight % LUDA_FLIGHTS];
    *flight = (luda_flight){ .sequence = run->asked.sequence, .operation = run->wait.name, .dtype = run->asked.dtype,
                             .ndim = run->asked.ndim, .state = LUDA_FLIGHT_QUEUED, .started = wall_clock() };
    memcpy(flight->shape, run->asked.shape, sizeof flight->shape);
    memcpy(flight->site, run->asked.site, sizeof flight->site);
    flight->bytes =
        run->asked.dtype >= 0 && run->asked.ndim >= 0 ? numel * luda_dtype_size((luda_dtype)run->asked.dtype) : 0;
    pthread_mutex_unlock(&comm->flight_lock);
}

static void set_flight(luda_collective_run *run, int state)
{
    luda_comm *comm = run->comm;
    pthread_mutex_lock(&comm->flight_lock);
    comm->flights[run->flight % LUDA_FLIGHTS].state = state;
    if (state >= LUDA_FLIGHT_DONE)
        comm->flights[run->flight % LUDA_FLIGHTS].finished = wall_clock();
    pthread_mutex_unlock(&comm->flight_lock);
}

static luda_status remember(luda_collective_run *run, const luda_comm_fault *fault)
{
    run->comm->fault = *fault;
    run->fallen = true;
    return (luda_status)fault->status;
}

luda_status luda__run_agree(luda_collective_run *run)
{
    luda_comm *comm = run->comm;
    luda_comm_fault fault;
    luda_status status;
    run->asked.sequence = run->wait.sequence = ++comm->sequence;
    run->asked.refused = run->local;
    if (run->local != LUDA_OK)
        snprintf(run->asked.note, sizeof run->asked.note, "%s", luda_last_error());
    run->asked.hash = luda__asked_hash(&run->asked);
    luda__run_depart(run);
    luda__board_arrive(&run->wait, &run->asked, run->what.in, run->what.out);
    status = luda__board_agree(&run->wait, &run->what.agreed, comm->asked, &fault, &comm->field);
    if (status != LUDA_OK)
        return remember(run, &fault);
    set_flight(run, LUDA_FLIGHT_RUNNING);
    return LUDA_OK;
}

luda_status luda__run_fault(luda_collective_run *run, const luda_comm_fault *fault)
{
    luda__board_give_up(&run->wait, fault);
    return remember(run, fault);
}

luda_status luda__run_fail(luda_collective_run *run, luda_status status)
{
    luda_comm_fault fault;
    luda__fault(&fault, status, "%s", luda_last_error());
    luda__blame(&fault, run->comm->rank);
    return luda__run_fault(run, &fault);
}

luda_status luda__run_end(luda_collective_run *run, luda_status status)
{
    luda_comm *comm = run->comm;
    char text[sizeof comm->fault.text];
    if (status != LUDA_OK && comm->transport.withdraw)
        comm->transport.withdraw(comm->transport.state);
    if (run->wait.sequence) {
        luda__mail_withdraw(comm->board, comm->rank, run->wait.sequence);
        luda__board_over(comm->board, comm->rank, run->wait.sequence);
    }
    set_flight(run, status == LUDA_OK ? LUDA_FLIGHT_DONE : LUDA_FLIGHT_FAILED);
    memcpy(text, comm->fault.text, sizeof text);
    if (status != LUDA_OK && !run->fallen)
        comm->fault.status = status;
    luda_tensor_release(run->input);
    luda_tensor_release(run->output);
    atomic_store(&comm->busy, 0);
    luda_comm_release(comm);
    return run->fallen ? luda__fail_text(status, text) : status;
}

/* --- What a failed call leaves --- */

int luda_comm_culprits(const luda_comm *comm, int32_t *ranks, int capacity)
{
    int count = 0;
    for (int r = 0; r < comm->size; r++)
        if (luda__blamed(&comm->fault, r)) {
            if (count < capacity)
                ranks[count] = r;
            count++;
        }
    return count;
}

const char *luda_comm_difference(const luda_comm *comm)
{
    return comm->field;
}

const char *luda_comm_failure(const luda_comm *comm, int index, int32_t *rank)
{
    /* One thread uses a communicator at a time, so its text buffer may be shared by lookups. */
    char *text = (char *)comm->detail;
    if (comm->fault.status != LUDA_EMISMATCH || index < 0 || index >= comm->size)
        return NULL;
    luda__asked_text(&comm->asked[index], text, sizeof comm->detail);
    *rank = index;
    return text;
}

/* --- The flight record --- */

int luda_comm_flights(luda_comm *comm)
{
    int count;
    pthread_mutex_lock(&comm->flight_lock);
    count = comm->flown < LUDA_FLIGHTS ? (int)comm->flown : LUDA_FLIGHTS;
    pthread_mutex_unlock(&comm->flight_lock);
    return count;
}

luda_status luda_comm_flight(luda_comm *comm, int index, luda_flight *out)
{
    int count = luda_comm_flights(comm);
    if (index < 0 || index >= count)
        return luda__fail(LUDA_EINDEX, "flight_record: row %d of %d", index, count);
    pthread_mutex_lock(&comm->flight_lock);
    *out = comm->flights[(comm->flown - (uint64_t)count + (uint64_t)index) % LUDA_FLIGHTS];
    pthread_mutex_unlock(&comm->flight_lock);
    return LUDA_OK;
}
