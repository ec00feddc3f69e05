/*
 * What the tests of rank processes share. A rank is the test program again: `TEST rank SCENARIO RANK SIZE ADDRESS SESSION`;
 * its exit status is 0 if all its expectations held.
 */
#ifndef LUDA_COLLECTIVE_PROCESSES_H
#define LUDA_COLLECTIVE_PROCESSES_H

#include "collective_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

typedef struct scenario {
    const char *name;
    void (*body)(luda_comm *comm, int rank);
} scenario;

enum { LOST = 2 }; /* the rank that gets signals */

static const char *program;
static int ready[2]; /* a pipe to the parent: rank 0 says that the calls begin, or every rank what it found */
static void *reports; /* where that goes, or NULL */
static size_t report_bytes;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

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

/* All-reduces until one fails; how, and whose fault it is. */
static void until(luda_comm *comm, luda_tensor *x, bool in_place, luda_algorithm algorithm, luda_status status,
                  int culprit)
{
    luda_comm_options options = { .size = sizeof options, .timeout = 1.5, .algorithm = (int32_t)algorithm };
    luda_status got = luda_comm_barrier(comm, NULL);
    double start = 0, end = now() + 20;
    if (luda_comm_rank(comm) == 0)
        EXPECT(write(STDIN_FILENO, "!", 1) == 1);
    while (got == LUDA_OK && now() < end) {
        luda_tensor *y = NULL;
        start = now();
        got = in_place ? luda_comm_all_reduce_into(comm, x, LUDA_REDUCE_SUM, &options)
                       : luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, &options, &y);
        luda_tensor_release(y);
    }
    EXPECT_STATUS(status, got);
    EXPECT(now() - start < 2.5);
    expect_only_blames(comm, culprit);
}

/* The rank's side of start_rank; the list ends with a NULL. */
static int run_as_rank(char **argv, const scenario *scenarios)
{
    luda_comm_options options = { .size = sizeof options, .timeout = 20 };
    luda_comm *comm = NULL;
    int rank = atoi(argv[3]);
    EXPECT_OK(luda_comm_connect(argv[5], argv[6], rank, atoi(argv[4]), &options, &comm));
    for (const scenario *s = scenarios; comm && s->name; s++)
        if (strcmp(s->name, argv[2]) == 0)
            s->body(comm, rank);
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
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, size, &home));
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
    if (reports)
        EXPECT(read(ready[0], reports, report_bytes) == (ssize_t)report_bytes);
    close(ready[0]);
    luda_rendezvous_release(home);
}

#endif
