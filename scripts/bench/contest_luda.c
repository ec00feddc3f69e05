/* LUDA in the contest: rank threads, and processes with memory in common or of their own, through the C interface. */
#include "contest_kinds.h"

#include <luda.h>
#include <string.h>
#include <unistd.h>

static luda_comm *comms[CONTEST_RANKS];
static luda_context *contexts[CONTEST_RANKS];
static int meeting[2]; /* from rank 0 to the others: session and address */

typedef struct state {
    luda_comm *comm;
    luda_tensor *x;
} state;

static void check(luda_status status)
{
    if (status != LUDA_OK) {
        fprintf(stderr, "%s\n", luda_last_error());
        exit(1);
    }
}

static float *common_buffer(contestant *c, size_t count)
{
    state *s = c->state;
    int64_t shape = (int64_t)count;
    luda_tensor_release(s->x);
    check(luda_comm_empty(s->comm, LUDA_F32, 1, &shape, NULL, &s->x));
    return luda_tensor_data(s->x);
}

static float *buffer(contestant *c, size_t count)
{
    state *s = c->state;
    int64_t shape = (int64_t)count;
    luda_tensor_release(s->x);
    check(luda_tensor_new(LUDA_F32, (luda_device){ LUDA_CPU, 0 }, 1, &shape, &s->x));
    return luda_tensor_data(s->x);
}

static void sum(contestant *c, float *x, size_t count)
{
    const state *s = c->state;
    (void)x;
    (void)count;
    check(luda_comm_all_reduce_into(s->comm, s->x, LUDA_REDUCE_SUM, NULL));
}

static double most(contestant *c, double mine)
{
    const state *s = c->state;
    luda_tensor *t;
    double all;
    check(luda_tensor_new(LUDA_F64, (luda_device){ LUDA_CPU, 0 }, 0, NULL, &t));
    *(double *)luda_tensor_data(t) = mine;
    check(luda_comm_all_reduce_into(s->comm, t, LUDA_REDUCE_MAX, NULL));
    all = *(double *)luda_tensor_data(t);
    luda_tensor_release(t);
    return all;
}

static void start(contestant *c, luda_comm *comm)
{
    state *s = calloc(1, sizeof *s);
    if (!s)
        exit(1);
    s->comm = comm;
    *c = (contestant){ c->rank, c->size, s, buffer, sum, most, 0 };
}

static void end(contestant *c)
{
    state *s = c->state;
    luda_tensor_release(s->x);
    luda_comm_release(s->comm);
    free(s);
}

/* --- Rank threads --- */

static void prepare_threads(int ranks, size_t most_bytes)
{
    (void)most_bytes;
    check(luda_comm_new_local_group(ranks, NULL, comms));
    for (int r = 0; r < ranks; r++)
        check(luda_context_new(&contexts[r]));
}

static void start_thread(contestant *c)
{
    luda_context_use(contexts[c->rank]);
    start(c, comms[c->rank]);
}

/* --- Processes --- */

static void prepare_processes(int ranks, size_t most_bytes)
{
    (void)ranks;
    (void)most_bytes;
    if (pipe(meeting) != 0)
        exit(1);
}

static void prepare_tcp(int ranks, size_t most_bytes)
{
    setenv("LUDA_LANE", "off", 1);
    prepare_processes(ranks, most_bytes);
}

typedef struct card {
    char session[40], address[88];
} card;

static void start_process(contestant *c)
{
    luda_rendezvous *home = NULL;
    luda_comm *comm;
    card where;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    memset(&where, 0, sizeof where);
    check(luda_set_threads(c->size < cores ? (int)(cores / c->size) : 1)); /* as `luda run` does */
    if (c->rank == 0) {
        check(luda_rendezvous_new(NULL, NULL, c->size, NULL, &home));
        snprintf(where.session, sizeof where.session, "%s", luda_rendezvous_session(home));
        snprintf(where.address, sizeof where.address, "%s", luda_rendezvous_address(home));
        for (int r = 1; r < c->size; r++)
            if (write(meeting[1], &where, sizeof where) != (ssize_t)sizeof where)
                exit(1);
    } else if (read(meeting[0], &where, sizeof where) != (ssize_t)sizeof where) {
        exit(1);
    }
    check(luda_comm_connect(where.address, where.session, c->rank, c->size, NULL, &comm));
    luda_rendezvous_release(home);
    start(c, comm);
}

static void start_common(contestant *c)
{
    start_process(c);
    c->buffer = common_buffer;
}

const contest_kind contest_threads = { "threads", 1, prepare_threads, start_thread, end };
const contest_kind contest_common = { "common", 0, prepare_processes, start_common, end };
const contest_kind contest_private = { "private", 0, prepare_processes, start_process, end };
const contest_kind contest_tcp = { "tcp", 0, prepare_tcp, start_process, end };
