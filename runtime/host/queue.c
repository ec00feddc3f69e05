/*
 * Numbered work between threads: workers take numbers in turn and put one result for each; the consumer reads the results in
 * the order of the numbers. No number is given out while `ahead` results are unread, so that memory stays bounded.
 */
#include "host.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct result {
    char *bytes;
    size_t size;
    luda_tensor **tensors;
    int count;
    bool ready;
} result;

struct luda_queue {
    pthread_mutex_t lock;
    pthread_cond_t room, filled;
    luda_rank_threads *threads;
    luda_queue *link;
    int64_t next, head; /* the number to give out next; the one to read next */
    bool closed;
    int ahead;
    result results[]; /* [ahead], by number modulo ahead */
};

/* Queues that are open, so that no worker runs on while the process exits. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t at_exit = PTHREAD_ONCE_INIT;
static luda_queue *open_queues;

static void stop(luda_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->room);
    pthread_mutex_unlock(&q->lock);
    luda_rank_threads_release(q->threads);
    q->threads = NULL;
}

/* The newest first: it may be one that a worker of an older one has opened. */
static void stop_all(void)
{
    for (;;) {
        pthread_mutex_lock(&open_lock);
        luda_queue *q = open_queues;
        open_queues = q ? q->link : NULL;
        pthread_mutex_unlock(&open_lock);
        if (!q)
            return;
        stop(q);
    }
}

static void watch_exit(void)
{
    atexit(stop_all);
}

static void clear(result *r)
{
    for (int i = 0; i < r->count; i++)
        luda_tensor_release(r->tensors[i]);
    free(r->tensors);
    free(r->bytes);
    memset(r, 0, sizeof *r);
}

luda_status luda_queue_new(int ahead, luda_queue **out)
{
    pthread_condattr_t monotonic;

    if (ahead < 1 || ahead > 1 << 20)
        return luda__host_fail(LUDA_EINVAL, "prefetch: %d results ahead, 1 to 1048576 are possible", ahead);
    luda_queue *q = calloc(1, sizeof *q + (size_t)ahead * sizeof *q->results);
    if (!q)
        return luda__host_fail(LUDA_ENOMEM, "prefetch: no memory for %d results", ahead);
    q->ahead = ahead;
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&q->room, NULL);
    pthread_cond_init(&q->filled, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_once(&at_exit, watch_exit);
    pthread_mutex_lock(&open_lock);
    q->link = open_queues;
    open_queues = q;
    pthread_mutex_unlock(&open_lock);
    *out = q;
    return LUDA_OK;
}

void luda_queue_own(luda_queue *q, luda_rank_threads *threads)
{
    q->threads = threads;
}

void luda_queue_release(luda_queue *q)
{
    if (!q)
        return;
    pthread_mutex_lock(&open_lock);
    luda_queue **link = &open_queues;
    while (*link && *link != q)
        link = &(*link)->link;
    bool open = *link == q;
    if (open)
        *link = q->link;
    pthread_mutex_unlock(&open_lock);
    if (!open)
        return; /* the process exits, and the thread that does stops it */
    stop(q);
    for (int i = 0; i < q->ahead; i++)
        clear(&q->results[i]);
    pthread_cond_destroy(&q->room);
    pthread_cond_destroy(&q->filled);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

int64_t luda_queue_take(luda_queue *q)
{
    pthread_mutex_lock(&q->lock);
    while (!q->closed && q->next >= q->head + q->ahead)
        pthread_cond_wait(&q->room, &q->lock);
    int64_t number = q->closed ? -1 : q->next++;
    pthread_mutex_unlock(&q->lock);
    return number;
}

luda_status luda_queue_put(luda_queue *q, int64_t number, const char *bytes, size_t size, luda_tensor *const *tensors, int count)
{
    result r = { .bytes = malloc(size + 1), .size = size, .count = count, .ready = true };

    r.tensors = malloc(((size_t)count + 1) * sizeof *r.tensors);
    if (!r.bytes || !r.tensors) {
        free(r.bytes);
        free(r.tensors);
        return luda__host_fail(LUDA_ENOMEM, "prefetch: no memory for a result of %zu bytes", size);
    }
    memcpy(r.bytes, bytes, size);
    for (int i = 0; i < count; i++) {
        luda_tensor_retain(tensors[i]);
        r.tensors[i] = tensors[i];
    }
    pthread_mutex_lock(&q->lock);
    q->results[number % q->ahead] = r;
    if (number == q->head)
        pthread_cond_signal(&q->filled);
    pthread_mutex_unlock(&q->lock);
    return LUDA_OK;
}

int luda_queue_wait(luda_queue *q, int timeout_ms)
{
    struct timespec until = luda__host_after(timeout_ms);
    pthread_mutex_lock(&q->lock);
    const result *r = &q->results[q->head % q->ahead];
    for (int late = 0; !r->ready && !late;)
        late = pthread_cond_timedwait(&q->filled, &q->lock, &until);
    int ready = r->ready;
    pthread_mutex_unlock(&q->lock);
    return ready;
}

const char *luda_queue_result(luda_queue *q, size_t *size, luda_tensor *const **tensors)
{
    const result *r = &q->results[q->head % q->ahead];
    *size = r->size;
    *tensors = r->tensors;
    return r->bytes;
}

void luda_queue_next(luda_queue *q)
{
    pthread_mutex_lock(&q->lock);
    result done = q->results[q->head % q->ahead];
    memset(&q->results[q->head % q->ahead], 0, sizeof done);
    q->head++;
    pthread_cond_signal(&q->room);
    pthread_mutex_unlock(&q->lock);
    clear(&done);
}
