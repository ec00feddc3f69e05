/* Communicators: life, the frame around every call, what a failed call leaves to read, the flight record. */
#include "lane.h"

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

static uint64_t ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
#endif
}

/* Seconds since 1970. How long a tick takes is seen from the communicator's life. */
static double time_of(const luda_comm *comm, uint64_t then)
{
    uint64_t now = ticks(), lived = now > comm->born ? now - comm->born : 1;
    double second = luda__now() - comm->born_at;
    return then == 0 ? 0 : wall_clock() - (double)(int64_t)(now - then) * second / (double)lived;
}

luda_status luda__options(const luda_comm_options *given, luda_comm_options *out)
{
    memset(out, 0, sizeof *out);
    if (given && given->size < offsetof(luda_comm_options, timeout))
        return luda__fail(LUDA_EINVAL, "comm: options whose size is %u; set it to sizeof(luda_comm_options)",
                          given->size);
    if (given)
        memcpy(out, given, given->size < sizeof *out ? given->size : sizeof *out);
    return LUDA_OK;
}

/* --- Life --- */

/* A setting of the link model in thousandths, at least 1. */
static int32_t link_setting(const char *name, double otherwise)
{
    const char *wish = getenv(name);
    double value = wish ? atof(wish) : otherwise;
    return value < 1e-3 || !(value < 1e6) ? 1 : (int32_t)(value * 1e3 + 0.5);
}

static void comm_destroy(void *object)
{
    luda_comm *comm = object;
    luda_comm_close(comm);
    if (comm->transport.release)
        comm->transport.release(comm->transport.state);
    luda_board_release(comm->board);
    pthread_mutex_destroy(&comm->flight_lock);
    pthread_mutex_destroy(&comm->work_lock);
    pthread_cond_destroy(&comm->turn);
    free(comm->asked);
    free(comm);
}

static const luda_class comm_class = { "comm", comm_destroy };

luda_status luda_comm_new_over(const luda_transport *transport, luda_board *board, int rank,
                               const luda_comm_options *options, luda_comm **out)
{
    luda_comm *comm = NULL;
    luda_comm_options chosen;
    pthread_condattr_t monotonic;
    luda_status status = luda__options(options, &chosen);
    if (status == LUDA_OK && (!(comm = calloc(1, sizeof *comm)) ||
                              !(comm->asked = calloc((size_t)board->size, sizeof *comm->asked))))
        status = luda__fail(LUDA_ENOMEM, "comm: no memory for a communicator of %d ranks", board->size);
    if (status != LUDA_OK) {
        free(comm);
        if (transport->release)
            transport->release(transport->state);
        return status;
    }
    luda__object_init(comm, &comm_class);
    memcpy(&comm->transport, transport, transport->size < sizeof *transport ? transport->size : sizeof *transport);
    comm->board = board;
    luda_board_retain(board);
    comm->rank = rank;
    comm->size = board->size;
    comm->algorithm = chosen.algorithm ? chosen.algorithm : LUDA_ALGORITHM_DIRECT;
    comm->arity = chosen.arity > 0 ? chosen.arity : 2;
    comm->link[0] = link_setting("LUDA_LINK_LATENCY_US", 20);
    comm->link[1] = link_setting("LUDA_LINK_MESSAGE_US", 2);
    comm->link[2] = link_setting("LUDA_LINK_GBPS", 3);
    comm->timeout = chosen.timeout > 0 ? chosen.timeout : luda__default_timeout;
    comm->born = ticks();
    comm->born_at = luda__now();
    atomic_init(&comm->closed, false);
    pthread_mutex_init(&comm->flight_lock, NULL);
    pthread_mutex_init(&comm->work_lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&comm->turn, &monotonic);
    pthread_condattr_destroy(&monotonic);
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

static luda_status check_way(luda_collective_run *run, const luda_comm_options *options)
{
    luda_comm *comm = run->comm;
    run->asked.arity = options->arity < 0 ? -1 : 0; /* -1: unknown, matches the others' */
    if (options->arity < 0)
        return luda__fail(LUDA_EINVAL, "%s: a tree of arity %d; it must be at least 1", run->wait.name, options->arity);
    if (run->asked.algorithm == LUDA_ALGORITHM_TREE)
        run->asked.arity = options->arity ? options->arity : comm->arity;
    if (run->asked.algorithm == LUDA_ALGORITHM_AUTO)
        memcpy(run->asked.link, comm->link, sizeof comm->link);
    return LUDA_OK;
}

static luda_status check_options(luda_collective_run *run, const luda_comm_options *options)
{
    luda_comm *comm = run->comm;
    const char *name = run->wait.name;
    bool chosen = options->algorithm != LUDA_ALGORITHM_DEFAULT;
    luda_algorithm wanted = (luda_algorithm)(chosen ? options->algorithm : comm->algorithm), found;
    run->asked.algorithm = LUDA_ALGORITHM_DIRECT;
    if (options->algorithm < 0 || options->algorithm >= LUDA_ALGORITHM_COUNT)
        return luda__fail(LUDA_EINVAL, "%s: no algorithm number %d", name, options->algorithm);
    if (!(options->timeout >= 0))
        return luda__fail(LUDA_EINVAL, "%s: a timeout of %g s", name, options->timeout);
    if (options->timeout > 0)
        run->wait.timeout = options->timeout;
    found = luda__algorithm_for((luda_comm_call)run->asked.operation, wanted);
    if (found == LUDA_ALGORITHM_DEFAULT && chosen)
        return luda__fail(LUDA_ENOTSUP, "%s: has no algorithm \"%s\"; direct always works", name,
                          luda_algorithm_name(wanted));
    if (found != LUDA_ALGORITHM_DEFAULT)
        run->asked.algorithm = found;
    return check_way(run, options);
}

luda_status luda__run_begin(luda_collective_run *run, luda_comm *comm, luda_comm_call call,
                            const luda_comm_options *options)
{
    const char *name = luda__call_name(call);
    if (!comm)
        return luda__fail(LUDA_EINVAL, "%s: no communicator", name);
    if (atomic_load(&comm->closed))
        return luda__fail(LUDA_ECLOSED, "%s: the communicator was closed", name);
    memset(run, 0, offsetof(luda_collective_run, wait));
    memset(&run->asked, 0, offsetof(luda_announcement, site));
    memset((char *)&run->what + offsetof(luda_collective, rank), 0, sizeof run->what - offsetof(luda_collective, rank));
    run->asked.site[0] = run->asked.note[0] = 0;
    run->comm = comm;
    run->wait = (luda_wait){
        .board = comm->board, .transport = &comm->transport, .rank = comm->rank, .timeout = comm->timeout, .name = name
    };
    run->asked.operation = (int32_t)call;
    run->asked.dtype = run->asked.ndim = -1;
    run->what.rank = comm->rank;
    run->what.size = comm->size;
    if (options->site)
        snprintf(run->asked.site, sizeof run->asked.site, "%s", options->site);
    luda__run_refuse(run, check_options(run, options));
    return LUDA_OK;
}

void luda__run_refuse(luda_collective_run *run, luda_status status)
{
    run->local = status;
    if (status != LUDA_OK)
        snprintf(run->asked.note, sizeof run->asked.note, "%s", luda_last_error());
}

void luda__run_depart(luda_collective_run *run)
{
    luda_comm *comm = run->comm;
    const luda_announcement *asked = &run->asked;
    luda_flight_row *row;
    int64_t numel = 1;
    pthread_mutex_lock(&comm->flight_lock);
    run->flight = comm->flown++;
    row = &comm->flights[run->flight % LUDA_FLIGHTS];
    row->flight.sequence = asked->sequence;
    row->flight.operation = run->wait.name;
    row->flight.dtype = asked->dtype;
    row->flight.ndim = asked->ndim;
    for (int d = 0; d < asked->ndim; d++)
        numel *= row->flight.shape[d] = asked->shape[d] < 0 ? run->what.count : asked->shape[d];
    row->flight.site[0] = 0;
    if (asked->site[0])
        memcpy(row->flight.site, asked->site, sizeof asked->site);
    row->flight.bytes = asked->dtype >= 0 && asked->ndim >= 0 ? numel * luda__dtype_bytes[asked->dtype] : 0;
    atomic_store_explicit(&row->state, LUDA_FLIGHT_QUEUED, memory_order_relaxed);
    atomic_store_explicit(&row->started, ticks(), memory_order_relaxed);
    atomic_store_explicit(&row->finished, 0, memory_order_relaxed);
    pthread_mutex_unlock(&comm->flight_lock);
}

static void set_flight(luda_collective_run *run, int state)
{
    luda_flight_row *row = &run->comm->flights[run->flight % LUDA_FLIGHTS];
    if (state >= LUDA_FLIGHT_DONE)
        atomic_store_explicit(&row->finished, ticks(), memory_order_relaxed);
    atomic_store_explicit(&row->state, state, memory_order_relaxed);
}

static luda_status remember(luda_collective_run *run, const luda_comm_fault *fault)
{
    run->comm->fault = run->fault = *fault;
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
    run->asked.hash = luda__asked_hash(&run->asked);
    luda__run_depart(run);
    if (comm->board->lane) {
        status = luda__lane_agree(run, comm->asked, &fault, &comm->field);
    } else {
        luda__board_arrive(&run->wait, &run->asked);
        status = luda__board_agree(&run->wait, &run->what.agreed, comm->asked, &fault, &comm->field);
    }
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

luda_status luda__run_settle(luda_collective_run *run, luda_status status)
{
    luda_comm *comm = run->comm;
    if (status != LUDA_OK && comm->transport.withdraw)
        comm->transport.withdraw(comm->transport.state);
    if (run->wait.sequence && comm->board->lane)
        luda__lane_over(&run->wait);
    if (run->wait.sequence && (run->mailed || !comm->board->lane)) {
        luda__mail_withdraw(comm->board, comm->rank, run->wait.sequence);
        luda__board_over(comm->board, comm->rank, run->wait.sequence);
    }
    set_flight(run, status == LUDA_OK ? LUDA_FLIGHT_DONE : LUDA_FLIGHT_FAILED);
    return run->fallen ? luda__fail_text(status, run->fault.text) : status;
}

void luda__run_end(luda_collective_run *run)
{
    if (run->output != run->input)
        luda_tensor_release(run->output);
    luda_tensor_release(run->input);
    free(run->detached);
    free(run->lengths);
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

const char *luda__failure_text(const luda_comm *comm, const luda_comm_fault *fault, const luda_announcement *asked,
                               int index, int32_t *rank)
{
    /* One thread uses a communicator at a time, so its text buffer may be shared by lookups. */
    char *text = (char *)comm->detail;
    if (fault->status != LUDA_EMISMATCH || !asked || index < 0 || index >= comm->size)
        return NULL;
    luda__asked_text(&asked[index], text, sizeof comm->detail);
    *rank = index;
    return text;
}

const char *luda_comm_failure(const luda_comm *comm, int index, int32_t *rank)
{
    return luda__failure_text(comm, &comm->fault, comm->asked, index, rank);
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
    luda_flight_row *row;
    if (index < 0 || index >= count)
        return luda__fail(LUDA_EINDEX, "flight_record: row %d of %d", index, count);
    pthread_mutex_lock(&comm->flight_lock);
    row = &comm->flights[(comm->flown - (uint64_t)count + (uint64_t)index) % LUDA_FLIGHTS];
    *out = row->flight;
    out->state = atomic_load_explicit(&row->state, memory_order_relaxed);
    out->started = time_of(comm, atomic_load_explicit(&row->started, memory_order_relaxed));
    out->finished = time_of(comm, atomic_load_explicit(&row->finished, memory_order_relaxed));
    pthread_mutex_unlock(&comm->flight_lock);
    return LUDA_OK;
}
