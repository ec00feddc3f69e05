/*
 * Collectives that go wrong, between rank threads: ranks that disagree, refuse, come late, leave, abort. Every rank gets
 * the right blame within its deadline, and where the contract says so the communicator works on.
 */
#include "collective_ranks.h"

#include <stdatomic.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void expect_works(luda_comm *comm, int rank)
{
    luda_tensor *x = one(rank), *y = NULL;
    int size = luda_comm_size(comm);
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
    EXPECT(y && item(y, 0) == size * (size - 1) / 2);
    luda_tensor_release(x);
    luda_tensor_release(y);
}

/* Exactly these ranks are blamed, as a bit set. */
static void expect_blamed(luda_comm *comm, unsigned set)
{
    int32_t ranks[MOST];
    unsigned found = 0;
    int count = luda_comm_culprits(comm, ranks, MOST);
    for (int i = 0; i < count; i++)
        found |= 1u << ranks[i];
    EXPECT(found == set);
}

/* --- Ranks that disagree --- */

enum {
    ODD_SHAPE,
    ODD_COUNT,
    ODD_LONGER,  /* the others' shape and one dimension more */
    ODD_SHORTER, /* the first of their dimensions */
    ODD_DTYPE,
    ODD_OPERATION,
    ODD_REDUCTION,
    ODD_ROOT,
    ODD_ALGORITHM,
    ODD_DIM,
    ODD_TRACKED,
    ODD_COUNT_OF
};
static const char *const fields[] = { "shape", "shape", "shape",     "shape", "dtype",  "operation",
                                      "reduction", "root", "algorithm", "dim", "tracked" };

typedef struct dispute { int what, odd; } dispute;

static luda_status disputed_call(luda_comm *comm, const dispute *d, bool odd, luda_tensor **y)
{
    luda_comm_options options = { .size = sizeof options, .site = odd ? "odd.lua:7" : "even.lua:3" };
    const double values[12] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };
    int64_t shape[3] = { 3, 2, 1 };
    int ndim = odd && d->what == ODD_LONGER ? 3 : odd && d->what == ODD_SHORTER ? 1 : 2;
    luda_dtype dtype = odd && d->what == ODD_DTYPE ? LUDA_F16 : LUDA_F32;
    luda_status status;
    luda_tensor *x;
    if (odd && d->what == ODD_SHAPE)
        memcpy(shape, (int64_t[]){ 2, 3 }, 2 * sizeof *shape);
    if (odd && d->what == ODD_COUNT)
        shape[0] = 6;
    x = filled(dtype, ndim, shape, values);
    if (odd && d->what == ODD_TRACKED)
        EXPECT_OK(luda_set_requires_grad(x, 1));
    if (odd && d->what == ODD_ALGORITHM)
        options.algorithm = LUDA_ALGORITHM_RING;
    options.dim = odd && d->what == ODD_DIM;
    if (odd && d->what == ODD_OPERATION)
        status = luda_comm_broadcast(comm, x, 0, &options, y);
    else if (d->what == ODD_ROOT)
        status = luda_comm_reduce(comm, x, LUDA_REDUCE_SUM, odd, &options, y);
    else if (d->what == ODD_DIM)
        status = luda_comm_all_gather(comm, x, &options, y);
    else
        status = luda_comm_all_reduce(comm, x, odd && d->what == ODD_REDUCTION ? LUDA_REDUCE_MAX : LUDA_REDUCE_SUM,
                                      &options, y);
    EXPECT(item(x, 2) == 3);
    luda_tensor_release(x);
    return status;
}

static void disagree(luda_comm *comm, int rank, void *arg)
{
    const dispute *d = arg;
    luda_tensor *y = NULL;
    const char *text;
    char last[512];
    int32_t who = -1;
    EXPECT_STATUS(LUDA_EMISMATCH, disputed_call(comm, d, rank == d->odd, &y));
    EXPECT(y == NULL);
    snprintf(last, sizeof last, "%s", luda_last_error());
    EXPECT(strstr(last, fields[d->what]) && strstr(last, "odd.lua:7"));
    EXPECT(luda_comm_difference(comm) && strcmp(luda_comm_difference(comm), fields[d->what]) == 0);
    /* Of two, nobody can say who is wrong. */
    expect_blamed(comm, luda_comm_size(comm) == 2 ? 3u : 1u << d->odd);
    for (int r = 0; r < luda_comm_size(comm); r++) {
        text = luda_comm_failure(comm, r, &who);
        EXPECT(text && who == r && strstr(text, r == d->odd ? "odd.lua:7" : "even.lua:3"));
    }
    EXPECT(luda_comm_failure(comm, luda_comm_size(comm), &who) == NULL);
    expect_works(comm, rank);
    EXPECT(luda_comm_culprits(comm, &who, 1) == 0 && luda_comm_failure(comm, 0, &who) == NULL);
}

/* Call sites differ and nobody minds. */
static void differ_in_site(luda_comm *comm, int rank, void *arg)
{
    luda_comm_options options = { .size = sizeof options, .site = rank ? "a.lua:1" : "b.lua:2" };
    luda_flight row;
    EXPECT_OK(luda_comm_barrier(comm, &options));
    EXPECT_OK(luda_comm_flight(comm, luda_comm_flights(comm) - 1, &row));
    EXPECT(strcmp(row.site, options.site) == 0 && strcmp(row.operation, "barrier") == 0 &&
           row.state == LUDA_FLIGHT_DONE);
}

/* --- Ranks whose own arguments are wrong --- */

static void refuse(luda_comm *comm, int rank, void *arg)
{
    luda_comm_options far = { .size = sizeof far, .dim = rank == 1 ? 2 : 0 };
    luda_comm_options tree = { .size = sizeof tree, .algorithm = LUDA_ALGORITHM_TREE };
    const double values[4] = { 1, 2, 3, 4 };
    luda_tensor *x = vector(LUDA_F32, 4, values), *n = vector(LUDA_BOOL, 4, values), *y = NULL;
    EXPECT_STATUS(rank == 1 ? LUDA_EINVAL : LUDA_EMISMATCH, luda_comm_all_gather(comm, x, &far, &y));
    EXPECT(strstr(luda_last_error(), "axis 2"));
    expect_blamed(comm, 2);
    EXPECT_STATUS(rank == 2 ? LUDA_EINVAL : LUDA_EMISMATCH,
                  luda_comm_all_reduce(comm, rank == 2 ? NULL : x, LUDA_REDUCE_SUM, NULL, &y));
    EXPECT(rank == 2 || strstr(luda_last_error(), "refused by rank 2"));
    /* The same mistake everywhere is everybody's own. */
    EXPECT_STATUS(LUDA_ESHAPE, luda_comm_reduce_scatter(comm, x, LUDA_REDUCE_SUM, NULL, &y));
    EXPECT_STATUS(LUDA_EDTYPE, luda_comm_all_reduce(comm, n, LUDA_REDUCE_SUM, NULL, &y));
    EXPECT_STATUS(LUDA_EDTYPE, luda_comm_all_reduce(comm, x, LUDA_REDUCE_XOR, NULL, &y));
    EXPECT_STATUS(LUDA_EINVAL, luda_comm_reduce(comm, x, LUDA_REDUCE_SUM, 3, NULL, &y));
    EXPECT_STATUS(LUDA_ENOTSUP, luda_comm_all_gather(comm, x, &tree, &y));
    EXPECT(y == NULL);
    expect_works(comm, rank);
    luda_tensor_release(x);
    luda_tensor_release(n);
}

static void find_sender(luda_comm *comm, int rank, void *arg)
{
    luda_tensor *x = one(rank), *y = NULL;
    EXPECT_STATUS(LUDA_EMISMATCH, luda_comm_broadcast(comm, NULL, -1, NULL, &y));
    EXPECT(strstr(luda_last_error(), "no rank passes"));
    EXPECT_STATUS(LUDA_EMISMATCH, luda_comm_broadcast(comm, rank > 0 ? x : NULL, -1, NULL, &y));
    EXPECT(strstr(luda_last_error(), "ranks 1 and 2"));
    EXPECT(strcmp(luda_comm_difference(comm), "sender") == 0);
    EXPECT_OK(luda_comm_broadcast(comm, rank == 1 ? x : NULL, -1, NULL, &y));
    EXPECT(item(y, 0) == 1);
    luda_tensor_release(y);
    /* A placeholder of the right shape is fine, one of another is not. */
    EXPECT_OK(luda_comm_broadcast(comm, x, 2, NULL, &y));
    EXPECT(item(y, 0) == 2);
    luda_tensor_release(x);
    luda_tensor_release(y);
}

/* --- Deadlines --- */

typedef struct lateness { int late; bool local; } lateness;

static void come_late(luda_comm *comm, int rank, void *arg)
{
    const lateness *l = arg;
    luda_comm_options soon = { .size = sizeof soon, .timeout = 0.3 };
    luda_tensor *x = one(rank), *y = NULL;
    double start;
    expect_works(comm, rank);
    if (rank == l->late)
        pause_ms(600);
    start = now();
    EXPECT_STATUS(LUDA_ETIMEOUT, luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, &soon, &y));
    EXPECT(now() - start < 2 && y == NULL);
    expect_blamed(comm, 1u << l->late);
    EXPECT(strstr(luda_last_error(), "all_reduce"));
    /* Memory of the call that failed is gone when the late rank comes. */
    luda_tensor_release(x);
    expect_works(comm, rank);
}

static void compute_long(luda_comm *comm, int rank, void *arg)
{
    luda_comm_options soon = { .size = sizeof soon, .timeout = 0.5 };
    for (int i = 0; i < 2; i++) {
        pause_ms(600);
        EXPECT_OK(luda_comm_barrier(comm, &soon));
    }
}

/* A rank that is many calls behind gets its failures one by one and ends in step. */
static void fall_behind(luda_comm *comm, int rank, void *arg)
{
    luda_comm_options soon = { .size = sizeof soon, .timeout = 0.001 };
    static atomic_int through; /* three more in every run */
    while (rank == 0 && atomic_load(&through) % 3 < 2)
        pause_ms(10);
    for (int i = 0; i < 40; i++)
        EXPECT_STATUS(LUDA_ETIMEOUT, luda_comm_barrier(comm, &soon));
    atomic_fetch_add(&through, 1);
    expect_works(comm, rank);
}

static void arrive_in_order(luda_comm *comm, int rank, void *arg)
{
    static const int orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
    for (int i = 0; i < 6; i++) {
        pause_ms(8 * orders[i][rank]);
        expect_works(comm, rank);
    }
}

/* --- Ranks that leave, abort, share --- */

static void leave(luda_comm *comm, int rank, void *arg)
{
    luda_tensor *x = one(1), *y = NULL;
    expect_works(comm, rank);
    if (rank == 1) {
        pause_ms(50);
        luda_comm_close(comm);
        EXPECT_STATUS(LUDA_ECLOSED, luda_comm_barrier(comm, NULL));
    } else {
        for (int i = 0; i < 2; i++) {
            EXPECT_STATUS(LUDA_EPEER, luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
            EXPECT(strstr(luda_last_error(), "rank 1"));
            expect_blamed(comm, 2);
        }
        EXPECT_STATUS(LUDA_EPEER, luda_comm_recv(comm, 1, NULL, &y));
        EXPECT_STATUS(LUDA_EPEER, luda_comm_send(comm, x, 1, NULL));
    }
    luda_tensor_release(x);
}

static void abort_all(luda_comm *comm, int rank, void *arg)
{
    expect_works(comm, rank);
    if (rank == 2) {
        pause_ms(50);
        luda_comm_abort(comm, "loss is NaN");
    }
    for (int i = 0; i < 2; i++) {
        EXPECT_STATUS(LUDA_ECANCELLED, luda_comm_barrier(comm, NULL));
        EXPECT(strstr(luda_last_error(), "loss is NaN"));
        expect_blamed(comm, 4);
    }
}

static void *second_thread(void *opaque)
{
    luda_comm *comm = opaque;
    pause_ms(50);
    EXPECT_STATUS(LUDA_EINVAL, luda_comm_barrier(comm, NULL));
    return NULL;
}

static void share(luda_comm *comm, int rank, void *arg)
{
    pthread_t second;
    if (rank == 1) {
        pause_ms(150);
    } else {
        pthread_create(&second, NULL, second_thread, comm);
    }
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    if (rank == 0)
        pthread_join(second, NULL);
    expect_works(comm, rank);
}

static void record(luda_comm *comm, int rank, void *arg)
{
    luda_comm_options options = { .size = sizeof options, .site = "train.lua:9" };
    luda_tensor *x = filled(LUDA_BF16, 2, (int64_t[]){ 2, 3 }, (double[6]){ 0 }), *y;
    luda_flight row;
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, &options, &y));
    luda_tensor_release(y);
    EXPECT_STATUS(LUDA_EDTYPE, luda_comm_all_reduce(comm, x, LUDA_REDUCE_AND, NULL, &y));
    EXPECT(luda_comm_flights(comm) == 2);
    EXPECT_OK(luda_comm_flight(comm, 0, &row));
    EXPECT(row.sequence == 1 && strcmp(row.operation, "all_reduce") == 0 && row.dtype == LUDA_BF16 && row.ndim == 2 &&
           row.shape[1] == 3 && row.bytes == 12 && row.state == LUDA_FLIGHT_DONE &&
           strcmp(row.site, "train.lua:9") == 0);
    EXPECT(row.finished >= row.started && fabs(row.started - (double)time(NULL)) < 60);
    EXPECT_OK(luda_comm_flight(comm, 1, &row));
    EXPECT(row.sequence == 2 && row.state == LUDA_FLIGHT_FAILED);
    EXPECT_STATUS(LUDA_EINDEX, luda_comm_flight(comm, 2, &row));
    for (int i = 0; i < 200; i++)
        EXPECT_OK(luda_comm_barrier(comm, NULL));
    EXPECT(luda_comm_flights(comm) >= 64);
    EXPECT_OK(luda_comm_flight(comm, luda_comm_flights(comm) - 1, &row));
    EXPECT(row.sequence == 202);
    luda_tensor_release(x);
}

int main(void)
{
    luda_comm *none;
    for (int size = 2; size <= 4; size++)
        for (int what = 0; what < ODD_COUNT_OF; what++)
            for (int odd = 0; odd < size; odd++)
                if (what != ODD_ROOT || size > 1)
                    run_everywhere(size, disagree, &(dispute){ what, odd });
    run_everywhere(3, differ_in_site, NULL);
    run_everywhere(3, refuse, NULL);
    run_everywhere(3, find_sender, NULL);
    for (int late = 0; late < 4; late++)
        run_everywhere(4, come_late, &(lateness){ late, true });
    run_everywhere(3, compute_long, NULL);
    run_everywhere(3, fall_behind, NULL);
    run_everywhere(3, arrive_in_order, NULL);
    run_everywhere(3, leave, NULL);
    run_everywhere(3, abort_all, NULL);
    run_everywhere(2, share, NULL);
    run_everywhere(2, record, NULL);
    EXPECT_STATUS(LUDA_EINVAL, luda_comm_new_local_group(0, NULL, &none));
    return summary("collective faults");
}
