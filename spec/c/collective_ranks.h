/* What the tests of collectives share: rank threads, and tensors with known values. */
#ifndef LUDA_COLLECTIVE_RANKS_H
#define LUDA_COLLECTIVE_RANKS_H

#include "check.h"

#include <luda_transport.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

static const luda_device cpu = { LUDA_CPU, 0 };

enum { MOST = 5 };

typedef struct rank_thread {
    luda_comm *comm;
    void (*body)(luda_comm *comm, int rank, void *arg);
    void *arg;
} rank_thread;

/* One context per rank, kept for all groups. */
static luda_context *contexts[MOST];

static void *run_rank(void *opaque)
{
    rank_thread *t = opaque;
    int rank = luda_comm_rank(t->comm);
    if (!contexts[rank])
        EXPECT_OK(luda_context_new(&contexts[rank]));
    luda_context_use(contexts[rank]);
    t->body(t->comm, rank, t->arg);
    luda_comm_release(t->comm);
    return NULL;
}

/* Runs body once per rank, each on a thread of its own; takes over the communicators. */
static void run_threads(luda_comm **comms, int size, void (*body)(luda_comm *, int, void *), void *arg)
{
    pthread_t threads[MOST];
    rank_thread args[MOST];
    for (int r = 0; r < size; r++) {
        args[r] = (rank_thread){ comms[r], body, arg };
        pthread_create(&threads[r], NULL, run_rank, &args[r]);
    }
    for (int r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
}

/* Element i of rank r: small, of both signs, exact in every type that has signs. */
static inline double value(int r, int64_t i)
{
    return (double)((i * 7 + r * 5 + 3) % 11 - 5);
}

/* The same where an element type has no signs, or only two values. */
static inline double entry(luda_dtype dtype, int r, int64_t i)
{
    return dtype == LUDA_BOOL ? value(r, i) > 0 : dtype == LUDA_U8 ? fabs(value(r, i)) : value(r, i);
}

/* The reduction by plain arithmetic: doubles for floats, 64-bit integers for the rest. */
static inline double expected(luda_reduction reduction, luda_dtype dtype, int size, int64_t i)
{
    bool floating = dtype <= LUDA_BF16;
    double x = 0;
    int64_t n = 0;
    for (int r = 0; r < size; r++) {
        double v = entry(dtype, r, i);
        int64_t k = (int64_t)v;
        switch (reduction) {
        case LUDA_REDUCE_SUM: case LUDA_REDUCE_MEAN: x += v; n += k; break;
        case LUDA_REDUCE_PROD: x = r ? x * v : v; n = r ? n * k : k; break;
        case LUDA_REDUCE_MIN: x = r ? fmin(x, v) : v; n = (int64_t)x; break;
        case LUDA_REDUCE_MAX: x = r ? fmax(x, v) : v; n = (int64_t)x; break;
        case LUDA_REDUCE_AND: n = r ? n & k : k; break;
        case LUDA_REDUCE_OR: n = r ? n | k : k; break;
        default: n = r ? n ^ k : k; break;
        }
    }
    if (floating)
        return reduction == LUDA_REDUCE_MEAN ? x / size : x;
    /* Narrow integers wrap. */
    return dtype == LUDA_U8 ? (uint8_t)n : dtype == LUDA_I8 ? (int8_t)n : dtype == LUDA_I16 ? (int16_t)n : (double)n;
}

static inline bool offered(luda_reduction reduction, luda_dtype dtype)
{
    bool bits = reduction >= LUDA_REDUCE_AND;
    if (dtype <= LUDA_BF16)
        return !bits;
    return dtype == LUDA_BOOL ? bits || reduction == LUDA_REDUCE_MIN || reduction == LUDA_REDUCE_MAX
                              : reduction != LUDA_REDUCE_MEAN;
}

/* Relative; products and quotients of halves round. */
static inline double tolerance(luda_dtype dtype, double x)
{
    const double unit[] = { [LUDA_F64] = 0x1p-52, [LUDA_F32] = 0x1p-23, [LUDA_F16] = 0x1p-10, [LUDA_BF16] = 0x1p-7 };
    return dtype <= LUDA_BF16 ? fabs(x) * unit[dtype] : 0;
}

static inline luda_tensor *filled(luda_dtype dtype, int ndim, const int64_t *shape, const double *values)
{
    luda_tensor *t = NULL;
    EXPECT_OK(luda_tensor_new(dtype, cpu, ndim, shape, &t));
    if (luda_tensor_numel(t) > 0)
        EXPECT_OK(luda_tensor_write(t, LUDA_F64, values, luda_tensor_numel(t)));
    return t;
}

static inline luda_tensor *vector(luda_dtype dtype, int64_t n, const double *values)
{
    return filled(dtype, 1, &n, values);
}

static inline luda_tensor *one(double x)
{
    return vector(LUDA_F32, 1, &x);
}

static inline double item(const luda_tensor *t, int64_t i)
{
    double x = NAN;
    EXPECT_OK(luda_tensor_get(t, i, &x));
    return x;
}

static inline void pause_ms(int ms)
{
    usleep((useconds_t)ms * 1000);
}

/* --- A transport over the public header: messages through the board --- */

typedef struct courier { luda_board *board; int rank; } courier;

static luda_status courier_send(void *state, int to, luda_slot_name slot, const void *data, size_t bytes)
{
    courier *c = state;
    luda_mail *mail = luda_mail_begin(c->board, to, c->rank, slot, bytes);
    /* In pieces, as a network would. */
    for (size_t sent = 0; mail && sent < bytes;) {
        size_t room, piece = 1 + (bytes - sent) / 2;
        void *memory = luda_mail_take(mail, &room);
        piece = piece < room ? piece : room;
        if (memory)
            memcpy(memory, (const char *)data + sent, piece);
        sent += piece;
        luda_mail_give(mail, piece);
    }
    if (slot.kind == LUDA_SLOT_STEP)
        luda_board_sent(c->board, c->rank);
    return LUDA_OK;
}

static void courier_release(void *state)
{
    courier *c = state;
    luda_board_release(c->board);
    free(c);
}

static inline luda_comm *new_courier(luda_board *board, int rank)
{
    luda_comm *comm = NULL;
    courier *c = malloc(sizeof *c);
    luda_transport t = {
        .size = sizeof t, .name = "courier", .state = c, .send = courier_send, .release = courier_release
    };
    *c = (courier){ board, rank };
    luda_board_retain(board);
    EXPECT_OK(luda_comm_new_over(&t, board, rank, NULL, &comm));
    return comm;
}

static void new_couriers(int size, luda_comm **comms)
{
    luda_board *board;
    EXPECT_OK(luda_board_new(size, -1, &board));
    for (int r = 0; r < size; r++)
        comms[r] = new_courier(board, r);
    luda_board_release(board);
}

/* --- Ranks over TCP, on threads of one process --- */

typedef struct joiner { luda_rendezvous *home; int rank, size; luda_comm **comm; } joiner;

static void *join_rank(void *opaque)
{
    joiner *j = opaque;
    EXPECT_OK(luda_comm_connect(luda_rendezvous_address(j->home), luda_rendezvous_session(j->home), j->rank, j->size,
                                NULL, j->comm));
    return NULL;
}

static void new_tcp(int size, luda_comm **comms)
{
    luda_rendezvous *home;
    pthread_t threads[MOST];
    joiner joiners[MOST];
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, size, NULL, &home));
    for (int r = 0; r < size; r++) {
        joiners[r] = (joiner){ home, r, size, &comms[r] };
        pthread_create(&threads[r], NULL, join_rank, &joiners[r]);
    }
    for (int r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
    luda_rendezvous_release(home);
}

static void new_local(int size, luda_comm **comms)
{
    EXPECT_OK(luda_comm_new_local_group(size, NULL, comms));
}

/* The same without memory in common. */
static void new_sockets(int size, luda_comm **comms)
{
    setenv("LUDA_LANE", "off", 1);
    new_tcp(size, comms);
    unsetenv("LUDA_LANE");
}

/* What carries a group. */
enum { LOCAL, COURIER, TCP, SOCKETS, CARRIERS };
static void (*const carriers[CARRIERS])(int size, luda_comm **comms) = { new_local, new_couriers, new_tcp,
                                                                         new_sockets };

static inline void run_over(int carrier, int size, void (*body)(luda_comm *, int, void *), void *arg)
{
    luda_comm *comms[MOST];
    carriers[carrier](size, comms);
    run_threads(comms, size, body, arg);
}

static inline void run_everywhere(int size, void (*body)(luda_comm *, int, void *), void *arg)
{
    for (int carrier = 0; carrier < CARRIERS; carrier++)
        run_over(carrier, size, body, arg);
}

#endif
