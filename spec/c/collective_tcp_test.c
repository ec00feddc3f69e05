/*
 * TCP between processes: ranks that are killed, stopped or exit. The ranks are this program again:
 * `collective_tcp_test rank SCENARIO RANK SIZE ADDRESS SESSION`; a rank's exit status is 0 if all its expectations held.
 */
#include "collective_processes.h"

#include <sys/resource.h>

static void sums(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank), *y;
    int size = luda_comm_size(comm);
    for (int i = 0; i < 3; i++) {
        int64_t wrong = 0;
        EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
        for (int64_t e = 0; e < luda_tensor_numel(y); e++)
            wrong += ((float *)luda_tensor_data(y))[e] != (float)(size * (size - 1) / 2 + size * (e % 7));
        EXPECT(wrong == 0);
        luda_tensor_release(y);
    }
    luda_tensor_release(x);
    EXPECT_OK(luda_comm_barrier(comm, NULL));
}

static void killed(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank), *y = NULL;
    struct rusage before, after;
    if (rank == LOST)
        EXPECT_OK(luda_comm_barrier(comm, NULL));
    if (rank == LOST)
        for (int i = 0;; i++) {
            if (i == 3)
                kill(getpid(), SIGKILL);
            EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
            luda_tensor_release(y);
        }
    until(comm, x, false, LUDA_ALGORITHM_DIRECT, LUDA_EPEER, LOST);
    /* Later calls fail at once, and nothing spins. */
    EXPECT_STATUS(LUDA_EPEER, luda_comm_barrier(comm, NULL));
    expect_only_blames(comm, LOST);
    getrusage(RUSAGE_SELF, &before);
    pause_ms(300);
    getrusage(RUSAGE_SELF, &after);
    EXPECT(after.ru_utime.tv_sec - before.ru_utime.tv_sec + (after.ru_utime.tv_usec - before.ru_utime.tv_usec) * 1e-6 <
           0.1);
    luda_tensor_release(x);
}

/* Killed or stopped from outside, at any moment; the parent knows which. */
static void killed_any(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank);
    until(comm, x, false, LUDA_ALGORITHM_DIRECT, LUDA_EPEER, LOST);
    luda_tensor_release(x);
}

static void stopped(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank);
    until(comm, x, false, LUDA_ALGORITHM_DIRECT, LUDA_ETIMEOUT, LOST);
    luda_tensor_release(x);
}

static void stopped_ring(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank);
    until(comm, x, false, LUDA_ALGORITHM_RING, LUDA_ETIMEOUT, LOST);
    luda_tensor_release(x);
}

/* Leaves without a word, as a script that returned early. */
static void exits(luda_comm *comm, int rank)
{
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    if (rank == LOST) {
        usleep(300000); /* the others are through as well: a rank lost inside a barrier may fail it */
        _exit(failed != 0);
    }
    EXPECT_STATUS(LUDA_EPEER, luda_comm_barrier(comm, NULL));
    expect_only_blames(comm, LOST);
}

static void busy(luda_comm *comm, int rank)
{
    luda_comm_options soon = { .size = sizeof soon, .timeout = 0.4 };
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    if (rank == LOST)
        pause_ms(1000);
    EXPECT_STATUS(LUDA_ETIMEOUT, luda_comm_barrier(comm, &soon));
    expect_only_blames(comm, LOST);
    EXPECT_OK(luda_comm_barrier(comm, NULL));
}

static const scenario scenarios[] = { { "sums", sums },
                  { "killed", killed },
                  { "killed_any", killed_any },
                  { "stopped", stopped },
                  { "stopped_ring", stopped_ring },
                  { "exits", exits },
                  { "busy", busy },
                                       { NULL, NULL } };

static void test_arguments(void)
{
    luda_rendezvous *home = NULL;
    luda_comm *comm = NULL;
    static const char session[] = "00112233445566778899aabbccddeeff";
    EXPECT_STATUS(LUDA_ENOTSUP, luda_rendezvous_new("0.0.0.0:0", NULL, 2, NULL, &home));
    EXPECT(strstr(luda_last_error(), "127.0.0.1"));
    EXPECT_STATUS(LUDA_ENOTSUP, luda_comm_connect("192.0.2.1:5000", session, 0, 2, NULL, &comm));
    EXPECT_STATUS(LUDA_EINVAL, luda_rendezvous_new("127.0.0.1", NULL, 2, NULL, &home));
    EXPECT_STATUS(LUDA_EINVAL, luda_rendezvous_new("127.0.0.1:70000", NULL, 2, NULL, &home));
    EXPECT_STATUS(LUDA_EINVAL, luda_rendezvous_new(NULL, "1234", 2, NULL, &home));
    EXPECT_STATUS(LUDA_EINVAL, luda_rendezvous_new(NULL, NULL, 0, NULL, &home));
    EXPECT_STATUS(LUDA_EINVAL, luda_comm_connect("127.0.0.1:5000", session, 2, 2, NULL, &comm));
    EXPECT_STATUS(LUDA_EINVAL, luda_comm_connect("127.0.0.1:5000", "xyz", 0, 2, NULL, &comm));
    EXPECT(home == NULL && comm == NULL);
    /* One rank needs nobody. */
    EXPECT_OK(luda_comm_connect("127.0.0.1:1", session, 0, 1, NULL, &comm));
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    luda_comm_release(comm);
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc == 7 && strcmp(argv[1], "rank") == 0)
        return run_as_rank(argv, scenarios);
    setenv("LUDA_LANE", "off", 1);
    test_arguments();
    run_processes("sums", 4, 0, 0);
    run_processes("killed", 4, 0, SIGKILL);
    for (int i = 0; i < 3; i++)
        run_processes("killed_any", 4, 3 + 35 * i, SIGKILL);
    for (int i = 0; i < 3; i++)
        run_processes("stopped", 4, 3 + 35 * i, SIGSTOP);
    run_processes("stopped_ring", 4, 100, SIGSTOP);
    run_processes("exits", 4, 0, 0);
    run_processes("busy", 4, 0, 0);
    return summary("collective tcp");
}
