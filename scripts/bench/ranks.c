/*
 * All-reduce between ranks, as scripts/bench.lua measures it: every rank writes its whole buffer before each call and reads
 * it after. One JSON line per size.
 *
 *   bench_ranks processes|threads|limit RANKS BYTES[,BYTES…] shared|private
 *
 * f32, sum, in place. `shared`: tensors of luda_comm_empty, which ranks of a host have in common; rank threads always do.
 * `limit` is the best that memory can do: rank r, a process, sums slice r of all buffers into all buffers, between two
 * barriers; small ones are published with a sequence number and summed by everybody. A repetition's time is that of its
 * slowest rank, in the calls alone; us is the median of the repetitions, best_us the fastest.
 */
#include <luda.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 64, MOST_SIZES = 32, REPETITIONS = 9, WARM = 2, SMALL = 256 };

typedef struct meeting {
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_int round;
    _Alignas(64) double us[MOST_RANKS][REPETITIONS];
    char address[128], session[64];
    atomic_long wrong;
    struct {
        _Alignas(64) atomic_long sequence;
        _Alignas(64) float data[2][SMALL / sizeof(float)];
    } small[MOST_RANKS];
} meeting;

static meeting *meet;
static int ranks, sizes, spinning;
static long size_of[MOST_SIZES];
static int threads, limit, shared;
static float *limits[MOST_RANKS]; /* buffers that all ranks see */
static luda_comm *group[MOST_RANKS];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void relax(void)
{
    if (!spinning)
        sched_yield();
}

static void barrier(void)
{
    int round = atomic_load(&meet->round);
    if (atomic_fetch_add(&meet->arrived, 1) == ranks - 1) {
        atomic_store(&meet->arrived, 0);
        atomic_store(&meet->round, round + 1);
    }
    while (atomic_load_explicit(&meet->round, memory_order_acquire) == round)
        relax();
}

static void die(const char *what)
{
    fprintf(stderr, "bench_ranks: %s: %s\n", what, luda_last_error());
    _exit(1);
}

/* --- The limit --- */

static void limit_small(int rank, float *x, long n)
{
    static _Thread_local long sequence;
    long half = ++sequence & 1;
    memcpy(meet->small[rank].data[half], x, (size_t)n * sizeof *x);
    atomic_store_explicit(&meet->small[rank].sequence, sequence, memory_order_release);
    for (int q = 0; q < ranks; q++)
        while (atomic_load_explicit(&meet->small[q].sequence, memory_order_acquire) < sequence)
            relax();
    for (long i = 0; i < n; i++) {
        float sum = meet->small[0].data[half][i];
        for (int q = 1; q < ranks; q++)
            sum += meet->small[q].data[half][i];
        x[i] = sum;
    }
}

static void limit_sum(int rank, long n)
{
    long each = ((n + ranks - 1) / ranks + 15) / 16 * 16, low = each * rank < n ? each * rank : n;
    long high = low + each < n ? low + each : n;
    if (n * (long)sizeof(float) <= SMALL) {
        limit_small(rank, limits[rank], n);
        return;
    }
    barrier();
    if (ranks == 2) {
        float *a = limits[0], *b = limits[1];
#pragma GCC ivdep
        for (long i = low; i < high; i++)
            a[i] = b[i] = a[i] + b[i];
    } else {
        for (long i = low; i < high; i += 512) {
            float sum[512];
            long count = high - i < 512 ? high - i : 512;
            memcpy(sum, limits[0] + i, (size_t)count * sizeof *sum);
            for (int q = 1; q < ranks; q++)
                for (long k = 0; k < count; k++)
                    sum[k] += limits[q][i + k];
            for (int q = 0; q < ranks; q++)
                memcpy(limits[q] + i, sum, (size_t)count * sizeof *sum);
        }
    }
    barrier();
}

/* --- A rank --- */

static long repeats(long bytes)
{
    return bytes <= 1024 ? 5000 : bytes <= 1 << 16 ? 1000 : bytes <= 1 << 20 ? 100 : bytes <= 1 << 24 ? 8 : 3;
}

static luda_tensor *buffer(luda_comm *comm, long n)
{
    int64_t shape = n;
    luda_tensor *x;
    luda_status status = shared ? luda_comm_empty(comm, LUDA_F32, 1, &shape, NULL, &x)
                                : luda_tensor_new(LUDA_F32, (luda_device){ LUDA_CPU, 0 }, 1, &shape, &x);
    if (status != LUDA_OK)
        die("a tensor");
    return x;
}

static void call(luda_comm *comm, int rank, luda_tensor *x, long n)
{
    if (limit)
        limit_sum(rank, n);
    else if (luda_comm_all_reduce_into(comm, x, LUDA_REDUCE_SUM, NULL) != LUDA_OK)
        die("all_reduce");
}

static void repeat(luda_comm *comm, int rank, luda_tensor *x, long n, int repetition)
{
    float *data = limit ? limits[rank] : luda_tensor_data(x);
    long times = repeats(n * (long)sizeof(float)), wrong = 0;
    double inside = 0, start;
    barrier();
    start = now();
    for (long t = 0; t < times; t++) {
        float mine = (float)(rank + t % 5), sum = (float)(ranks * (ranks - 1) / 2 + ranks * (t % 5));
        double before = 0;
        for (long i = 0; i < n; i++)
            data[i] = mine;
        if (n > 256)
            before = now();
        call(comm, rank, x, n);
        if (n > 256)
            inside += now() - before;
        for (long i = 0; i < n; i++)
            wrong += data[i] != sum;
    }
    if (n <= 256) /* what is around such a call costs less than a look at the clock */
        inside = now() - start;
    if (repetition >= 0)
        meet->us[rank][repetition] = inside / (double)times * 1e6;
    atomic_fetch_add(&meet->wrong, wrong);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *transport, long bytes)
{
    double worst[REPETITIONS] = { 0 };
    for (int t = 0; t < REPETITIONS; t++)
        for (int r = 0; r < ranks; r++)
            worst[t] = meet->us[r][t] > worst[t] ? meet->us[r][t] : worst[t];
    qsort(worst, REPETITIONS, sizeof *worst, compare);
    printf("{\"impl\":\"%s\",\"transport\":\"%s\",\"ranks\":%d,\"memory\":\"%s\",\"bytes\":%ld,\"us\":%.3f,"
           "\"best_us\":%.3f,\"algbw\":%.3f,\"wrong\":%ld}\n",
           limit ? "limit" : threads ? "threads" : "processes", transport, ranks, shared ? "shared" : "private", bytes,
           worst[REPETITIONS / 2], worst[0], (double)bytes / worst[REPETITIONS / 2] * 1e-3, atomic_load(&meet->wrong));
    fflush(stdout);
}

static void run_rank(luda_comm *comm, int rank)
{
    if (spinning) {
        cpu_set_t core;
        CPU_ZERO(&core);
        CPU_SET(rank, &core);
        sched_setaffinity(0, sizeof core, &core);
    }
    for (int s = 0; s < sizes; s++) {
        long n = size_of[s] / (long)sizeof(float);
        luda_tensor *x = limit ? NULL : buffer(comm, n);
        for (int t = -WARM; t < REPETITIONS; t++)
            repeat(comm, rank, x, n, t);
        barrier();
        if (rank == 0)
            report(limit ? "memory" : luda_comm_transport(comm), size_of[s]);
        barrier();
        luda_tensor_release(x);
    }
    luda_comm_release(comm);
}

static void *run_thread(void *opaque)
{
    int rank = (int)(long)opaque;
    luda_context *context;
    if (luda_context_new(&context) != LUDA_OK)
        die("a context");
    luda_context_use(context);
    run_rank(group[rank], rank);
    return NULL;
}

static void run_process(int rank)
{
    luda_rendezvous *home = NULL;
    luda_comm *comm = NULL;
    if (rank == 0 && !limit) {
        if (luda_rendezvous_new(NULL, NULL, ranks, &home) != LUDA_OK)
            die("a rendezvous");
        snprintf(meet->address, sizeof meet->address, "%s", luda_rendezvous_address(home));
        snprintf(meet->session, sizeof meet->session, "%s", luda_rendezvous_session(home));
    }
    barrier();
    if (!limit && luda_comm_connect(meet->address, meet->session, rank, ranks, NULL, &comm) != LUDA_OK)
        die("connect");
    luda_rendezvous_release(home);
    run_rank(comm, rank);
}

static void *common_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static int read_arguments(int argc, char **argv)
{
    if (argc != 5)
        return 0;
    threads = strcmp(argv[1], "threads") == 0;
    limit = strcmp(argv[1], "limit") == 0;
    ranks = atoi(argv[2]);
    shared = strcmp(argv[4], "shared") == 0;
    spinning = ranks <= sysconf(_SC_NPROCESSORS_ONLN);
    for (char *at = argv[3]; *at && sizes < MOST_SIZES; at += *at == ',')
        size_of[sizes++] = strtol(at, &at, 10);
    return ranks >= 1 && ranks <= MOST_RANKS && (threads || limit || strcmp(argv[1], "processes") == 0);
}

int main(int argc, char **argv)
{
    long most = 0;
    char share[24];
    int failed = 0, status;
    if (!read_arguments(argc, argv)) {
        fprintf(stderr, "usage: bench_ranks processes|threads|limit RANKS BYTES[,BYTES...] shared|private\n");
        return 2;
    }
    meet = common_memory(sizeof *meet);
    for (int s = 0; s < sizes; s++)
        most = size_of[s] > most ? size_of[s] : most;
    for (int r = 0; r < ranks && limit; r++)
        limits[r] = common_memory((size_t)most);
    if (threads) {
        pthread_t running[MOST_RANKS];
        if (luda_comm_new_local_group(ranks, NULL, group) != LUDA_OK)
            die("a group");
        for (long r = 0; r < ranks; r++)
            pthread_create(&running[r], NULL, run_thread, (void *)r);
        for (int r = 0; r < ranks; r++)
            pthread_join(running[r], NULL);
        return 0;
    }
    /* As luda run does. */
    snprintf(share, sizeof share, "%ld", sysconf(_SC_NPROCESSORS_ONLN) / ranks > 1 ? sysconf(_SC_NPROCESSORS_ONLN) / ranks : 1);
    setenv("LUDA_THREADS", share, 0);
    for (int r = 0; r < ranks; r++)
        if (fork() == 0) {
            run_process(r);
            _exit(0);
        }
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
