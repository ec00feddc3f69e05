/*
 * The contestants of the section `collectives` that need nothing but this machine and LUDA:
 *
 *   contest KIND RANKS SCALE BYTES…
 *
 * KIND is what the others are compared with: `sum` or `sum_threads` (the direct sum through shared memory, in processes or
 * threads), `exchange` (the bytes of a sum, over two plain sockets a pair, both ways at once); or LUDA: `threads` (rank
 * threads), `common` (processes with tensors of luda_comm_empty), `private` (with memory of their own), `tcp` (over sockets).
 */
#include "contest_kinds.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const contest_kind *const kinds[] = { &contest_sum,     &contest_sum_threads, &contest_exchange,
                                             &contest_threads, &contest_common,      &contest_private,
                                             &contest_tcp };

typedef struct job {
    const contest_kind *kind;
    int rank, ranks, sizes;
    double scale;
    char **bytes;
} job;

void *contest_shared(size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    char *p;
    bytes = (bytes + huge - 1) / huge * huge;
    p = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "no shared memory of %zu bytes\n", bytes);
        exit(1);
    }
    p = (char *)(((size_t)p + huge - 1) / huge * huge);
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static void *run(void *argument)
{
    job *j = argument;
    contestant c = { .rank = j->rank, .size = j->ranks };
    j->kind->start(&c);
    contest_run(&c, j->scale, j->sizes, j->bytes);
    j->kind->end(&c);
    return NULL;
}

static int in_processes(job *jobs, int ranks)
{
    int failed = 0, status;
    for (int r = 0; r < ranks; r++) {
        pid_t child = fork();
        if (child == 0) {
            run(&jobs[r]);
            exit(0);
        }
        failed |= child < 0;
    }
    while (wait(&status) > 0)
        failed |= status != 0;
    return failed;
}

static int in_threads(job *jobs, int ranks)
{
    pthread_t ids[CONTEST_RANKS];
    for (int r = 0; r < ranks; r++)
        if (pthread_create(&ids[r], NULL, run, &jobs[r]) != 0)
            return 1;
    for (int r = 0; r < ranks; r++)
        pthread_join(ids[r], NULL);
    return 0;
}

static size_t largest(int sizes, char **bytes)
{
    size_t most = 0;
    for (int k = 0; k < sizes; k++)
        most = strtoull(bytes[k], NULL, 10) > most ? strtoull(bytes[k], NULL, 10) : most;
    return most;
}

int main(int argc, char **argv)
{
    job jobs[CONTEST_RANKS];
    int ranks = argc > 4 ? atoi(argv[2]) : 0;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0] && ranks > 0 && ranks <= CONTEST_RANKS; k++) {
        if (strcmp(kinds[k]->name, argv[1]) != 0)
            continue;
        for (int r = 0; r < ranks; r++)
            jobs[r] = (job){ kinds[k], r, ranks, argc - 4, atof(argv[3]), argv + 4 };
        kinds[k]->prepare(ranks, largest(argc - 4, argv + 4));
        return kinds[k]->threads ? in_threads(jobs, ranks) : in_processes(jobs, ranks);
    }
    fprintf(stderr, "usage: contest KIND RANKS SCALE BYTES...\n");
    return 2;
}
