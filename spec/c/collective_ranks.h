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

#endif
