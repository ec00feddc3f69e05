/* Calls that go on by themselves, and communicators split into parts. */
#include "collective_ranks.h"

static luda_work *start(luda_comm *comm, luda_tensor *x, luda_reduction reduction)
{
    luda_work *work = NULL;
    EXPECT_OK(luda_comm_start(comm, LUDA_CALL_ALL_REDUCE, x, reduction, 0, 0, NULL, &work));
    return work;
}

/* Started calls keep their order, among themselves and with the others. */
static void keep_order(luda_comm *comm, int rank, void *arg)
{
    enum { COUNT = 8 };
    int size = luda_comm_size(comm);
    luda_work *works[COUNT];
    luda_tensor *x[COUNT], *y, *again;
    double place = rank, first;
    for (int i = 0; i < COUNT; i++) {
        x[i] = one(i * 10 + rank);
        works[i] = start(comm, x[i], i % 2 ? LUDA_REDUCE_MIN : LUDA_REDUCE_MAX);
    }
    /* An ordinary call waits for all of them. */
    luda_tensor *p = vector(LUDA_F64, 1, &place);
    EXPECT_OK(luda_comm_all_gather(comm, p, NULL, &y));
    first = item(y, 0);
    EXPECT(first == 0 && luda_tensor_numel(y) == size);
    luda_tensor_release(y);
    for (int i = COUNT - 1; i >= 0; i--) {
        EXPECT(luda_work_done(works[i]));
        EXPECT_OK(luda_work_wait(works[i], 0, &y));
        EXPECT(item(y, 0) == i * 10 + (i % 2 ? 0 : size - 1));
        EXPECT_OK(luda_work_wait(works[i], 0, &again));
        EXPECT(luda_tensor_same_storage(y, again));
        luda_tensor_release(again);
        luda_tensor_release(y);
        luda_work_release(works[i]);
        luda_tensor_release(x[i]);
    }
    /* Nobody waits for this one; it runs all the same, on every rank. */
    luda_work_release(start(comm, p, LUDA_REDUCE_SUM));
    luda_work *last;
    EXPECT_OK(luda_comm_start(comm, LUDA_CALL_ALL_REDUCE, p, LUDA_REDUCE_SUM, 0, 1, NULL, &last));
    EXPECT_OK(luda_work_wait(last, 10, NULL));
    EXPECT(item(p, 0) == size * (size - 1) / 2);
    luda_work_release(last);
    luda_tensor_release(p);
}

static void go_wrong(luda_comm *comm, int rank, void *arg)
{
    const double three[3] = { 1, 2, 3 };
    luda_tensor *x = vector(LUDA_F32, rank == 1 ? 2 : 3, three), *y = NULL;
    luda_work *work = start(comm, x, LUDA_REDUCE_SUM), *refused = NULL;
    int32_t culprit = -1;
    EXPECT_STATUS(LUDA_EMISMATCH, luda_work_wait(work, 10, &y));
    EXPECT(y == NULL && strstr(luda_last_error(), "shape"));
    EXPECT(luda_work_culprits(work, &culprit, 1) == 1 && culprit == 1);
    luda_work_release(work);
    /* What one rank cannot start, all are told. */
    EXPECT_OK(luda_comm_start(comm, LUDA_CALL_BROADCAST, rank == 0 ? x : NULL, 0, 0, 0, NULL, &refused));
    EXPECT_STATUS(rank == 0 ? LUDA_EMISMATCH : LUDA_ENOTSUP, luda_work_wait(refused, 10, &y));
    luda_work_release(refused);
    EXPECT_STATUS(LUDA_EINVAL, luda_comm_start(comm, LUDA_CALL_SEND, x, 0, 0, 0, NULL, &refused));
    /* Waiting has a limit of its own, and does not end the work. */
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    if (rank == 2)
        pause_ms(200);
    EXPECT_OK(luda_comm_start(comm, LUDA_CALL_BARRIER, NULL, 0, 0, 0, NULL, &work));
    if (rank != 2) {
        EXPECT_STATUS(LUDA_ETIMEOUT, luda_work_wait(work, 0.02, NULL));
        EXPECT(!luda_work_done(work));
    }
    EXPECT_OK(luda_work_wait(work, 10, NULL));
    luda_work_release(work);
    luda_tensor_release(x);
}

/* y0 = x0 + x1 on both ranks, weighed 3 on each: 6. The graph is recorded where the result is taken. */
static void differentiate(luda_comm *comm, int rank, void *arg)
{
    luda_tensor *x = one(rank), *y, *three = one(3);
    luda_gradients *gradients;
    EXPECT_OK(luda_set_requires_grad(x, 1));
    luda_work *work = start(comm, x, LUDA_REDUCE_SUM);
    EXPECT_OK(luda_work_wait(work, 10, &y));
    EXPECT_OK(luda_backward(y, three, NULL, &gradients));
    EXPECT(item(luda_gradients_get(gradients, luda_tensor_id(x)), 0) == 6);
    luda_gradients_release(gradients);
    luda_work_release(work);
    luda_tensor_release(x);
    luda_tensor_release(y);
    luda_tensor_release(three);
}

/* Ranks 0, 2 and 1, 3 with keys against the order of ranks; rank 4 in no part. */
static void split(luda_comm *comm, int rank, void *arg)
{
    luda_comm *part = NULL, *pair = NULL;
    luda_tensor *x = one(rank), *y;
    int color = rank == 4 ? -1 : rank % 2;
    EXPECT_OK(luda_comm_split(comm, color, -rank, NULL, &part));
    EXPECT((part == NULL) == (rank == 4));
    if (part) {
        EXPECT(luda_comm_size(part) == 2 && luda_comm_rank(part) == (rank < 2));
        EXPECT_OK(luda_comm_all_gather(part, x, NULL, &y));
        EXPECT(item(y, 0) == color + 2 && item(y, 1) == color);
        luda_tensor_release(y);
        /* Parts split in turn, into one rank each. */
        EXPECT_OK(luda_comm_split(part, luda_comm_rank(part), 0, NULL, &pair));
        EXPECT(luda_comm_size(pair) == 1);
        EXPECT_OK(luda_comm_all_reduce(pair, x, LUDA_REDUCE_SUM, NULL, &y));
        EXPECT(item(y, 0) == rank);
        luda_tensor_release(y);
        luda_comm_release(pair);
    }
    /* A part that is closed does not disturb the whole. */
    luda_comm_release(part);
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
    EXPECT(item(y, 0) == 10);
    luda_tensor_release(y);
    luda_tensor_release(x);
}

static void cannot_split(luda_comm *comm, int rank, void *arg)
{
    luda_comm *part = NULL;
    EXPECT_STATUS(LUDA_ENOTSUP, luda_comm_split(comm, 0, 0, NULL, &part));
    EXPECT(part == NULL);
}

/* A second thread in a call of the same communicator is refused; the call of the first goes on. */
typedef struct intruder { luda_comm *comm; int flights; } intruder;
static _Atomic int intruded;

static void *intrude(void *opaque)
{
    intruder *i = opaque;
    while (luda_comm_flights(i->comm) == i->flights)
        pause_ms(1);
    EXPECT_STATUS(LUDA_EINVAL, luda_comm_barrier(i->comm, NULL));
    EXPECT(strstr(luda_last_error(), "another thread"));
    intruded = 1;
    return NULL;
}

static void two_threads(luda_comm *comm, int rank, void *arg)
{
    intruder i = { comm, luda_comm_flights(comm) };
    luda_tensor *x = one(rank + 1), *y;
    pthread_t thread;
    if (rank == 0)
        pthread_create(&thread, NULL, intrude, &i);
    while (rank != 0 && !intruded)
        pause_ms(1);
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
    EXPECT(item(y, 0) == luda_comm_size(comm) * (luda_comm_size(comm) + 1) / 2);
    if (rank == 0)
        pthread_join(thread, NULL);
    luda_tensor_release(x);
    luda_tensor_release(y);
}

int main(void)
{
    luda_memory_info before, after;
    luda_tensor *warm = one(1);
    luda_tensor_release(warm);
    EXPECT_OK(luda_memory(cpu, &before));
    for (int size = 1; size <= 4; size++)
        run_everywhere(size, keep_order, NULL);
    run_everywhere(3, go_wrong, NULL);
    run_everywhere(2, differentiate, NULL);
    run_over(LOCAL, 5, split, NULL);
    run_over(TCP, 5, split, NULL);
    run_over(COURIER, 2, cannot_split, NULL);
    for (int carrier = 0; carrier < CARRIERS; carrier++) {
        intruded = 0;
        run_over(carrier, 3, two_threads, NULL);
    }
    EXPECT_OK(luda_memory(cpu, &after));
    EXPECT(after.tensors == before.tensors);
    return summary("collective work");
}
