/*
 * The worker pool: luda__parallel runs numbered slabs on the calling thread and on workers that are started when first
 * needed and never end.
 *
 * Every call is a job on its caller's stack, linked into one list. A worker joins the open job with the fewest helpers,
 * so that several host threads share the workers evenly, and no job gets more helpers than its share. Which thread
 * runs which slab is left open; slabs must not depend on it. fork() is not supported.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "pool.h"

#include "runtime/core/core.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_THREADS = 1024, DEFAULT_SPIN_US = 50 };

typedef struct job {
    void (*fn)(void *, int64_t);
    void *arg;
    int64_t slabs;
    atomic_llong next;   /* first slab that nobody has taken */
    atomic_int helpers;  /* workers inside; changes under the lock, read without it while the caller spins */
    int limit;           /* of helpers */
    struct job *link;
} job;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work; /* a job was added */
    pthread_cond_t left; /* a worker left a job */
    job *jobs;
    atomic_ullong posted; /* counts jobs, so that idle workers notice one while they spin */
    int workers, sleepers;
    int cores;
    int64_t spin_us; /* -1: not set */
    atomic_int threads; /* 0: not asked for yet */
    atomic_int ranks;
} pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .work = PTHREAD_COND_INITIALIZER,
    .left = PTHREAD_COND_INITIALIZER,
    .ranks = 1,
};

static pthread_once_t pool_once = PTHREAD_ONCE_INIT;
static _Thread_local bool inside; /* this thread runs a slab */

/* --- Settings --- */

static int64_t number_from(const char *name, int64_t low, int64_t high, int64_t fallback)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return fallback;
    long long number = strtoll(text, &end, 10);
    return *end || number < low || number > high ? fallback : number;
}

static void start_pool(void)
{
    cpu_set_t mask;
    pool.cores = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
    if (pool.cores > MAX_THREADS)
        pool.cores = MAX_THREADS;
    pool.spin_us = number_from("LUDA_SPIN_US", 0, 1000000, -1);
    atomic_store(&pool.threads, (int)number_from("LUDA_THREADS", 1, MAX_THREADS, pool.cores));
}

int luda_threads(void)
{
    pthread_once(&pool_once, start_pool);
    return atomic_load_explicit(&pool.threads, memory_order_relaxed);
}

luda_status luda_set_threads(int threads)
{
    if (threads < 1 || threads > MAX_THREADS)
        return luda__fail(LUDA_EINVAL, "set_threads: %d threads; 1 to %d are possible", threads, MAX_THREADS);
    pthread_once(&pool_once, start_pool);
    atomic_store_explicit(&pool.threads, threads, memory_order_relaxed);
    return LUDA_OK;
}

void luda__pool_ranks(int ranks)
{
    atomic_store_explicit(&pool.ranks, ranks < 1 ? 1 : ranks, memory_order_relaxed);
}

/* --- Waiting --- */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Spinning helps only while every thread has a core of its own. */
static int64_t spin_ns(void)
{
    if (pool.spin_us >= 0)
        return pool.spin_us * 1000;
    return luda_threads() > pool.cores ? 0 : DEFAULT_SPIN_US * 1000;
}

static bool spin_for_job(unsigned long long seen)
{
    int64_t limit = spin_ns();
    if (limit == 0)
        return false;
    for (int64_t start = now_ns(); now_ns() - start < limit;)
        for (int i = 0; i < 64; i++, relax())
            if (atomic_load_explicit(&pool.posted, memory_order_acquire) != seen)
                return true;
    return false;
}

static void spin_for_helpers(const job *j)
{
    int64_t limit = spin_ns();
    if (limit == 0)
        return;
    for (int64_t start = now_ns(); now_ns() - start < limit;)
        for (int i = 0; i < 64; i++, relax())
            if (atomic_load_explicit(&j->helpers, memory_order_acquire) == 0)
                return;
}

/* --- Running --- */

static void run_slabs(job *j)
{
    inside = true;
    for (;;) {
        int64_t slab = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (slab >= j->slabs)
            break;
        j->fn(j->arg, slab);
    }
    inside = false;
}

/* Under the lock: the open job with the fewest helpers that takes one more. */
static job *find_job(void)
{
    job *best = NULL;
    int fewest = 0;
    for (job *j = pool.jobs; j; j = j->link) {
        int helpers = atomic_load_explicit(&j->helpers, memory_order_relaxed);
        if (helpers >= j->limit || atomic_load_explicit(&j->next, memory_order_relaxed) >= j->slabs)
            continue;
        if (!best || helpers < fewest) {
            best = j;
            fewest = helpers;
        }
    }
    return best;
}

static void *worker(void *unused)
{
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        job *j = find_job();
        if (j) {
            atomic_fetch_add_explicit(&j->helpers, 1, memory_order_relaxed);
            pthread_mutex_unlock(&pool.lock);
            run_slabs(j);
            pthread_mutex_lock(&pool.lock);
            /* The job may be gone as soon as its helpers are 0. */
            if (atomic_fetch_sub_explicit(&j->helpers, 1, memory_order_release) == 1)
                pthread_cond_broadcast(&pool.left);
            continue;
        }
        unsigned long long seen = atomic_load_explicit(&pool.posted, memory_order_relaxed);
        pthread_mutex_unlock(&pool.lock);
        bool woken = spin_for_job(seen);
        pthread_mutex_lock(&pool.lock);
        while (!woken && atomic_load_explicit(&pool.posted, memory_order_relaxed) == seen) {
            pool.sleepers++;
            pthread_cond_wait(&pool.work, &pool.lock);
            pool.sleepers--;
        }
    }
    return NULL;
}

/* Under the lock. A worker that cannot be started is done without. */
static void start_workers(int wanted)
{
    while (pool.workers < wanted) {
        pthread_t thread;
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        int failed = pthread_create(&thread, NULL, worker, NULL);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (failed)
            return;
        pthread_detach(thread);
        pool.workers++;
    }
}

static void open_job(job *j, int threads, int ranks)
{
    pthread_mutex_lock(&pool.lock);
    start_workers(threads - ranks > j->limit ? threads - ranks : j->limit);
    j->link = pool.jobs;
    pool.jobs = j;
    atomic_fetch_add_explicit(&pool.posted, 1, memory_order_release);
    for (int i = 0; i < j->limit && i < pool.sleepers; i++)
        pthread_cond_signal(&pool.work);
    pthread_mutex_unlock(&pool.lock);
}

static void close_job(job *j)
{
    pthread_mutex_lock(&pool.lock);
    for (job **link = &pool.jobs; *link; link = &(*link)->link)
        if (*link == j) {
            *link = j->link;
            break;
        }
    pthread_mutex_unlock(&pool.lock);
    spin_for_helpers(j);
    pthread_mutex_lock(&pool.lock);
    while (atomic_load_explicit(&j->helpers, memory_order_acquire) > 0)
        pthread_cond_wait(&pool.left, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

void luda__parallel(int64_t slabs, void (*fn)(void *arg, int64_t slab), void *arg)
{
    int threads = luda_threads(), ranks = atomic_load_explicit(&pool.ranks, memory_order_relaxed);
    int share = threads / ranks - 1;
    int limit = slabs - 1 < share ? (int)(slabs - 1) : share;
    if (inside || limit < 1) {
        for (int64_t slab = 0; slab < slabs; slab++)
            fn(arg, slab);
        return;
    }
    job j = { .fn = fn, .arg = arg, .slabs = slabs, .limit = limit };
    atomic_init(&j.next, 0);
    atomic_init(&j.helpers, 0);
    open_job(&j, threads, ranks);
    run_slabs(&j);
    close_job(&j);
}

/* --- Scratch memory: one growing block per thread and use --- */

static _Thread_local struct {
    void *data;
    size_t bytes;
} scratch[SCRATCH_COUNT];

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

static void free_scratch(void *unused)
{
    for (int i = 0; i < SCRATCH_COUNT; i++) {
        free(scratch[i].data);
        scratch[i].data = NULL;
        scratch[i].bytes = 0;
    }
}

static void make_scratch_key(void)
{
    pthread_key_create(&scratch_key, free_scratch);
}

void *luda__scratch_for(scratch_use use, size_t bytes)
{
    if (scratch[use].bytes >= bytes && scratch[use].data)
        return scratch[use].data;
    pthread_once(&scratch_once, make_scratch_key);
    pthread_setspecific(scratch_key, scratch); /* any value but NULL: free_scratch runs when the thread ends */
    free(scratch[use].data);
    size_t rounded = (bytes + bytes / 4 + 4096) & ~(size_t)63;
    scratch[use].data = bytes > SIZE_MAX / 2 ? NULL : aligned_alloc(64, rounded);
    scratch[use].bytes = scratch[use].data ? rounded : 0;
    return scratch[use].data;
}

void *luda__scratch(size_t bytes)
{
    return luda__scratch_for(SCRATCH_SLAB, bytes);
}
