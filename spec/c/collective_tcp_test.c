/*
 * TCP between processes: ranks that are killed, stopped or exit. The ranks are this program again:
 * `collective_tcp_test rank SCENARIO RANK SIZE ADDRESS SESSION`; a rank's exit status is 0 if all its expectations held.
 */
#include "collective_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

static const char *program;
static int ready[2]; /* a pipe: rank 0 says that the calls begin */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- What a rank process does --- */

/* 16 MiB; sanitizers slow everything down. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { BIG = 1 << 18 };
#else
enum { BIG = 1 << 22 };
#endif

static luda_tensor *big(int rank)
{
    int64_t n = BIG;
    luda_tensor *x;
    EXPECT_OK(luda_tensor_new(LUDA_F32, cpu, 1, &n, &x));
    for (int64_t i = 0; i < n; i++)
        ((float *)luda_tensor_data(x))[i] = (float)(rank + i % 7);
    return x;
}

static void expect_only_blames(luda_comm *comm, int rank)
{
    int32_t who[8];
    char words[32];
    snprintf(words, sizeof words, "rank %d", rank);
    EXPECT(luda_comm_culprits(comm, who, 8) == 1 && who[0] == rank);
    EXPECT(strstr(luda_last_error(), words) != NULL);
}

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

/* All-reduces until one fails; how, and whose fault it is. */
static void until(luda_comm *comm, luda_tensor *x, luda_algorithm algorithm, luda_status status, int culprit)
{
    luda_comm_options options = { .size = sizeof options, .timeout = 1.5, .algorithm = (int32_t)algorithm };
    luda_status got = luda_comm_barrier(comm, NULL);
    double start = 0, end = now() + 20;
    if (luda_comm_rank(comm) == 0)
        EXPECT(write(STDIN_FILENO, "!", 1) == 1);
    while (got == LUDA_OK && now() < end) {
        luda_tensor *y = NULL;
        start = now();
        got = luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, &options, &y);
        luda_tensor_release(y);
    }
    EXPECT_STATUS(status, got);
    EXPECT(now() - start < 2.5);
    expect_only_blames(comm, culprit);
}

enum { LOST = 2 };

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
    until(comm, x, LUDA_ALGORITHM_DIRECT, LUDA_EPEER, LOST);
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
    until(comm, x, LUDA_ALGORITHM_DIRECT, LUDA_EPEER, LOST);
    luda_tensor_release(x);
}

static void stopped(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank);
    until(comm, x, LUDA_ALGORITHM_DIRECT, LUDA_ETIMEOUT, LOST);
    luda_tensor_release(x);
}

static void stopped_ring(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank);
    until(comm, x, LUDA_ALGORITHM_RING, LUDA_ETIMEOUT, LOST);
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

static const struct {
    const char *name;
    void (*body)(luda_comm *comm, int rank);
} scenarios[] = { { "sums", sums },
                  { "killed", killed },
                  { "killed_any", killed_any },
                  { "stopped", stopped },
                  { "stopped_ring", stopped_ring },
                  { "exits", exits },
                  { "busy", busy } };

static int run_as_rank(char **argv)
{
    luda_comm_options options = { .size = sizeof options, .timeout = 20 };
    luda_comm *comm = NULL;
    int rank = atoi(argv[3]);
    EXPECT_OK(luda_comm_connect(argv[5], argv[6], rank, atoi(argv[4]), &options, &comm));
    for (size_t i = 0; comm && i < sizeof scenarios / sizeof *scenarios; i++)
        if (strcmp(scenarios[i].name, argv[2]) == 0)
            scenarios[i].body(comm, rank);
    luda_comm_release(comm);
    return failed != 0;
}

/* --- Starting them --- */

static pid_t start_rank(const char *scenario, int rank, int size, luda_rendezvous *home)
{
    char rank_text[12], size_text[12];
    pid_t child = fork();
    if (child == 0) {
        dup2(ready[1], STDIN_FILENO);
        snprintf(rank_text, sizeof rank_text, "%d", rank);
        snprintf(size_text, sizeof size_text, "%d", size);
        execl(program, program, "rank", scenario, rank_text, size_text, luda_rendezvous_address(home),
              luda_rendezvous_session(home), (char *)NULL);
        _exit(127);
    }
    return child;
}

/* Runs a scenario with `size` ranks; after_ms > 0: then LOST gets the signal. Survivors must be content. */
static void run_processes(const char *scenario, int size, int after_ms, int signal_number)
{
    luda_rendezvous *home;
    pid_t ranks[8];
    int status;
    char byte;
    EXPECT(pipe2(ready, O_CLOEXEC) == 0);
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, size, NULL, &home));
    for (int r = 0; r < size; r++)
        ranks[r] = start_rank(scenario, r, size, home);
    close(ready[1]);
    if (after_ms > 0) {
        EXPECT(read(ready[0], &byte, 1) == 1);
        pause_ms(after_ms);
        kill(ranks[LOST], signal_number);
    }
    for (int r = 0; r < size; r++) {
        if (r == LOST && signal_number)
            continue;
        waitpid(ranks[r], &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            printf("scenario %s: rank %d of %d: status %x\n", scenario, r, size, (unsigned)status);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    if (signal_number) {
        kill(ranks[LOST], SIGKILL);
        waitpid(ranks[LOST], &status, 0);
    }
    close(ready[0]);
    luda_rendezvous_release(home);
}

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
        return run_as_rank(argv);
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
