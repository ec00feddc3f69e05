/*
 * What this machine can do: memory bandwidth, arithmetic peak, transcendental functions and AdamW with nothing around
 * them, page faults. Each call is one sample of about the seconds asked for, so that the benchmark can alternate them
 * with what it measures. Built for the machine that it runs on; nothing here is part of LUDA.
 *
 * Bandwidth counts bytes read and bytes written; the read that an ordinary store causes first is not counted.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define EXPORT __attribute__((visibility("default")))

enum { MAX_THREADS = 64, LINE = 64, PAGE = 4096, HUGE = 2 << 20, LOOP_FLOATS = 4096 };

typedef float vector __attribute__((vector_size(64), may_alias));

enum { READ, IN_PLACE, COPY, STREAM };                    /* ORDER kinds, scripts/bench/limits.lua */
enum { EXP, TANH, GELU_TANH };                            /* ORDER loops, scripts/bench/limits.lua */

/* --- time --- */

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

EXPORT double luda_limits_now(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

/* CPU seconds of this process, all threads. */
EXPORT double luda_limits_cpu(void)
{
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

/* --- threads: one a core, started together, timed from the first start to the last end --- */

typedef void body(int thread, long repeats, void *state);

typedef struct {
    body *run;
    void *state;
    pthread_barrier_t *gate;
    double start, end;
    long repeats;
    int thread;
} job;

/* Keeps thread i on the i-th of the cores that the process may use. */
static void pin(int thread)
{
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) == 0)
        return;
    int skip = thread % CPU_COUNT(&allowed), cpu = 0;
    while (!CPU_ISSET(cpu, &allowed) || skip-- > 0)
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static void *thread_main(void *argument)
{
    job *j = argument;
    pin(j->thread);
    j->run(j->thread, 1, j->state); /* what it touches is in the caches, the clock is up */
    pthread_barrier_wait(j->gate);
    j->start = luda_limits_now();
    j->run(j->thread, j->repeats, j->state);
    j->end = luda_limits_now();
    return NULL;
}

/* Seconds that `repeats` runs take on every thread together; negative when a thread cannot be made. */
static double timed(body *run, void *state, int threads, long repeats)
{
    job jobs[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    pthread_barrier_t gate;
    pthread_barrier_init(&gate, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        jobs[i] = (job){run, state, &gate, 0, 0, repeats, i};
        if (pthread_create(&ids[i], NULL, thread_main, &jobs[i]) != 0)
            return -1;
    }
    double first = 1e300, last = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        first = jobs[i].start < first ? jobs[i].start : first;
        last = jobs[i].end > last ? jobs[i].end : last;
    }
    pthread_barrier_destroy(&gate);
    return last - first;
}

/* Seconds for one run, from a sample of about `seconds`, at least half of them; `guess` is what one run may take. */
static double sample(body *run, void *state, int threads, double seconds, double guess)
{
    long repeats = (long)(0.1 * seconds / guess) + 1;
    double took = timed(run, state, threads, repeats);
    for (int tries = 0; tries < 3 && took >= 0 && took < 0.5 * seconds; tries++) {
        double once = took > 0 ? took / (double)repeats : guess;
        repeats = (long)(seconds / once) + 1;
        took = timed(run, state, threads, repeats);
    }
    return took / (double)repeats;
}

static int usable(int threads)
{
    return threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
}

/* --- buffers: one region that only grows, in huge pages where the kernel has them --- */

static char *region;
static size_t region_bytes;

EXPORT void luda_limits_release(void)
{
    if (region)
        munmap(region, region_bytes);
    region = NULL;
    region_bytes = 0;
}

static char *reserve(size_t bytes)
{
    if (bytes <= region_bytes)
        return region;
    luda_limits_release();
    bytes = (bytes + HUGE - 1) / HUGE * HUGE;
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 0, bytes);
    region = p;
    region_bytes = bytes;
    return p;
}

/* --- bandwidth --- */

typedef struct {
    char *base;
    size_t stride;  /* bytes between the buffers of neighbouring threads, and between the two of a copy */
    size_t vectors; /* of one buffer of one thread, a multiple of 4 */
    int kind;
} memory;

static volatile float sink;

static void read_all(const vector *a, size_t n)
{
    vector s[4] = {{0}, {0}, {0}, {0}};
    for (size_t i = 0; i < n; i += 4)
        for (int j = 0; j < 4; j++)
            s[j] += a[i + (size_t)j];
    vector sum = (s[0] + s[1]) + (s[2] + s[3]);
    sink = sum[0];
}

static void update_all(vector *a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        a[i] *= 1.0001f;
}

static void copy_all(vector *restrict to, const vector *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i += 4) {
        vector a = from[i], b = from[i + 1], c = from[i + 2], d = from[i + 3];
        __asm__ volatile("" : : : "memory"); /* otherwise it becomes a call of memcpy */
        to[i] = a;
        to[i + 1] = b;
        to[i + 2] = c;
        to[i + 3] = d;
    }
}

static void stream_all(vector *restrict to, const vector *restrict from, size_t n)
{
#ifdef __AVX512F__
    for (size_t i = 0; i < n; i++)
        _mm512_stream_ps((float *)&to[i], (__m512)from[i]);
    _mm_sfence();
#else
    memcpy(to, from, n * sizeof *to);
#endif
}

static void memory_body(int thread, long repeats, void *state)
{
    const memory *m = state;
    vector *a = (vector *)(m->base + 2 * (size_t)thread * m->stride), *b = (vector *)((char *)a + m->stride);
    while (repeats-- > 0) {
        if (m->kind == READ)
            read_all(a, m->vectors);
        else if (m->kind == IN_PLACE)
            update_all(a, m->vectors);
        else if (m->kind == COPY)
            copy_all(b, a, m->vectors);
        else
            stream_all(b, a, m->vectors);
        __asm__ volatile("" : : : "memory");
    }
}

/* Bytes a second. `bytes` is the size of one buffer, all threads together; a copy has two. 0 when there is no memory. */
EXPORT double luda_limits_bandwidth(int kind, size_t bytes, int threads, double seconds)
{
    threads = usable(threads);
    size_t share = bytes / (size_t)threads / (4 * LINE) * (4 * LINE);
    share = share < 4 * LINE ? 4 * LINE : share;
    /* neighbouring buffers do not start at the same place of a page: stores would look like what later loads need */
    memory m = {NULL, (share + PAGE - 1) / PAGE * PAGE + 4 * LINE, share / LINE, kind};
    m.base = reserve(2 * (size_t)threads * m.stride);
    if (!m.base)
        return 0;
    double moved = (double)share * threads * (kind == READ ? 1 : 2);
    double once = sample(memory_body, &m, threads, seconds, moved / 2e11);
    return once > 0 ? moved / once : 0;
}

/* --- arithmetic peak: independent chains in registers, as many as hide the latency --- */

enum { CHAINS = 24, ROUNDS = 1024 };

#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif
typedef float chain __attribute__((vector_size(4 * LANES)));

static void f32_body(int thread, long repeats, void *state)
{
    const float *factor = state; /* the compiler must not know it */
    enum { N = LANES == 16 ? CHAINS : CHAINS / 2 };
    chain x[N], m = factor[0] + (chain){0}, a = factor[1] + (chain){0};
    for (int i = 0; i < N; i++)
        x[i] = (float)(i + thread) + (chain){0};
    for (long k = 0; k < repeats * ROUNDS; k++)
#pragma GCC unroll 24
        for (int i = 0; i < N; i++)
            x[i] = x[i] * m + a;
    for (int i = 1; i < N; i++)
        x[0] += x[i];
    sink = x[0][0];
}

#ifdef __AVX512BF16__
static void bf16_body(int thread, long repeats, void *state)
{
    (void)state;
    __m512 x[CHAINS];
    __m512bh m = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f));
    for (int i = 0; i < CHAINS; i++)
        x[i] = _mm512_set1_ps((float)(i + thread));
    for (long k = 0; k < repeats * ROUNDS; k++) {
        __asm__ volatile("" : "+v"(m));
#pragma GCC unroll 24
        for (int i = 0; i < CHAINS; i++)
            x[i] = _mm512_dpbf16_ps(x[i], m, m);
    }
    for (int i = 1; i < CHAINS; i++)
        x[0] = _mm512_add_ps(x[0], x[i]);
    sink = _mm512_reduce_add_ps(x[0]);
}
#endif

/* Floating point operations a second, a multiply-add counted as two; 0 where the processor has no such instruction. */
EXPORT double luda_limits_flops(int bf16, int threads, double seconds)
{
    float factor[2] = {0.9999f, 1e-4f};
    threads = usable(threads);
    if (!bf16) {
        double once = sample(f32_body, factor, threads, seconds, 5e-6);
        return once > 0 ? (LANES == 16 ? CHAINS : CHAINS / 2) * 2.0 * LANES * ROUNDS * threads / once : 0;
    }
#ifdef __AVX512BF16__
    double once = sample(bf16_body, factor, threads, seconds, 5e-6);
    return once > 0 ? CHAINS * 64.0 * ROUNDS * threads / once : 0;
#else
    return 0;
#endif
}

/* --- transcendental functions on data in L1 --- */

typedef struct {
    char *base; /* LOOP_FLOATS of input and as many of output for each thread */
    int function;
} loop;

/* Relative error about 2e-7, clamped where the result would overflow or be denormal. */
static inline float exp_of(float x)
{
    x = x < -87.3f ? -87.3f : x;
    x = x > 88.3f ? 88.3f : x;
    float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float tail = 0.499991424f + r * (0.166668864f + r * (0.0418985981f + r * 0.00833384259f));
    union {
        float f;
        int32_t i;
    } bits = {shifted}, scaled = {1.0f + (r + r * r * tail)};
    scaled.i += (int32_t)((uint32_t)bits.i << 23);
    return scaled.f;
}

/* x P(x^2) / Q(x^2), fitted on -9 .. 9 with a relative error of 5e-8. */
static inline float tanh_of(float x)
{
    x = x < -9.0f ? -9.0f : x;
    x = x > 9.0f ? 9.0f : x;
    float s = x * x;
    float p = 0.999999982f + s * (0.133899595f + s * (0.0035061938f + s * (2.07833847e-5f + s * 1.35956755e-8f)));
    float q = 1.0f + s * (0.467232776f + s * (0.0259173428f + s * (3.30297015e-4f + s * 7.87531432e-7f)));
    return x * p / q;
}

static void exp_all(float *restrict y, const float *restrict x)
{
    for (int i = 0; i < LOOP_FLOATS; i++)
        y[i] = exp_of(x[i]);
}

static void tanh_all(float *restrict y, const float *restrict x)
{
    for (int i = 0; i < LOOP_FLOATS; i++)
        y[i] = tanh_of(x[i]);
}

/* x (1 + tanh(u)) / 2 is x / (1 + exp(-2 u)): one exponential, one division. */
static void gelu_tanh_all(float *restrict y, const float *restrict x)
{
    for (int i = 0; i < LOOP_FLOATS; i++)
        y[i] = x[i] / (1.0f + exp_of(x[i] * (-1.59576912f - 0.0713548163f * x[i] * x[i])));
}

static void (*const loops[])(float *restrict, const float *restrict) = {
    [EXP] = exp_all, [TANH] = tanh_all, [GELU_TANH] = gelu_tanh_all,
};

static void loop_body(int thread, long repeats, void *state)
{
    const loop *l = state;
    float *x = (float *)(l->base + (size_t)thread * (2 * LOOP_FLOATS * sizeof *x + 4 * LINE));
    while (repeats-- > 0) {
        loops[l->function](x + LOOP_FLOATS, x);
        __asm__ volatile("" : : : "memory");
    }
}

/* The function at LOOP_FLOATS places: a limit that computes something else would be none. */
EXPORT void luda_limits_values(int function, const float *x, float *y)
{
    loops[function](y, x);
}

/* Function values a second, all threads together. */
EXPORT double luda_limits_loop(int function, int threads, double seconds)
{
    threads = usable(threads);
    loop l = {reserve((size_t)threads * (2 * LOOP_FLOATS * sizeof(float) + 4 * LINE)), function};
    if (!l.base)
        return 0;
    for (int t = 0; t < threads; t++) {
        float *x = (float *)(l.base + (size_t)t * (2 * LOOP_FLOATS * sizeof *x + 4 * LINE));
        for (int i = 0; i < LOOP_FLOATS; i++)
            x[i] = (float)(i % 601) * 0.01f - 3.0f;
    }
    double once = sample(loop_body, &l, threads, seconds, 1e-6);
    return once > 0 ? (double)LOOP_FLOATS * threads / once : 0;
}

/* --- AdamW: one pass that reads and writes what the rule needs, 28 bytes a parameter --- */

typedef struct {
    char *base;
    size_t count, stride; /* of one thread: parameters; bytes from one array to the next */
} adamw;

static void adamw_body(int thread, long repeats, void *state)
{
    const adamw *s = state;
    char *base = s->base + 4 * (size_t)thread * s->stride;
    float *restrict p = (float *)base, *restrict g = (float *)(base + s->stride);
    float *restrict m = (float *)(base + 2 * s->stride), *restrict v = (float *)(base + 3 * s->stride);
    while (repeats-- > 0)
        for (size_t i = 0; i < s->count; i++) {
            float mean = 0.9f * m[i] + 0.1f * g[i], square = 0.999f * v[i] + 0.001f * g[i] * g[i];
            m[i] = mean;
            v[i] = square;
            p[i] = p[i] * 0.99999f - 1e-4f * (mean * 1.1f) / (__builtin_sqrtf(square * 1.01f) + 1e-8f);
        }
}

/* Seconds of one step over `parameters` in all; 0 when there is no memory. */
EXPORT double luda_limits_adamw(size_t parameters, int threads, double seconds)
{
    threads = usable(threads);
    adamw s = {NULL, parameters / (size_t)threads, 0};
    s.stride = (s.count * sizeof(float) + PAGE - 1) / PAGE * PAGE + 4 * LINE;
    s.base = reserve(4 * (size_t)threads * s.stride);
    if (!s.base)
        return 0;
    memset(s.base, 0, 4 * (size_t)threads * s.stride);
    return sample(adamw_body, &s, threads, seconds, (double)parameters * 2.8e-10);
}

/* --- the system: page faults, starting a program --- */

/* Seconds that the first touch of a 4 KiB page costs; with `huge`, of as much in a huge page. */
/* The least that a call can do which returns a new array: memory, the sum of two arrays, and the memory given back. */
EXPORT float luda_limits_call(const float *x, const float *y, size_t count)
{
    float *sum = malloc(count * sizeof *sum);
    if (!sum)
        return 0;
    for (size_t i = 0; i < count; i++)
        sum[i] = x[i] + y[i];
    float first = *(volatile float *)sum;
    free(sum);
    return first;
}

EXPORT double luda_limits_fault(int huge)
{
    const size_t bytes = (size_t)64 << 20;
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return 0;
    madvise(p, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    double start = luda_limits_now();
    for (size_t i = 0; i < bytes; i += PAGE)
        ((volatile char *)p)[i] = 1;
    double took = luda_limits_now() - start;
    munmap(p, bytes);
    return took / (double)(bytes / PAGE);
}

/* Seconds from starting a program to its end, with its output in `output` ("/dev/null"); negative when it failed. */
EXPORT double luda_limits_spawn(char *const *arguments, const char *output)
{
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    double start = luda_limits_now();
    int failed = posix_spawnp(&child, arguments[0], &actions, NULL, arguments, environ);
    if (!failed)
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            continue;
    double took = luda_limits_now() - start;
    posix_spawn_file_actions_destroy(&actions);
    return failed || status != 0 ? -1 : took;
}
