/*
 * The network thread: one libuv loop per process, entered through a queue and uv_async_send. A thread that waits for the
 * network runs the loop itself meanwhile, so that what it waits for wakes nobody: the network thread leaves the loop to it,
 * and comes back to an idle loop soon after. One thread has the loop at a time; the lock hands it on.
 */
#include "net.h"

#include <math.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { NOBODY, THREAD, WAITER }; /* who has the loop */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t handed; /* the network thread left the loop, or is to come back */
static int has;
static int wanted, sleepers; /* waiters that want the loop from the network thread; those that count on it instead */
static luda_task *first, *last;
static uv_loop_t loop;
static uv_async_t wake;
static uv_timer_t alarm_clock;
static pid_t owner; /* the process whose thread runs the loop; a forked child has none */
static _Thread_local bool running; /* this thread has the loop */

static void run_all(void)
{
    luda_task *task;
    pthread_mutex_lock(&lock);
    task = first;
    first = last = NULL;
    pthread_mutex_unlock(&lock);
    while (task) {
        luda_task *next = task->next;
        task->run(task, &loop);
        task = next;
    }
}

/* --- Who has the loop; with the lock held --- */

static void sleep_until(double until)
{
    struct timespec when;
    until = fmin(until, 1e15);
    when.tv_sec = (time_t)until;
    when.tv_nsec = (long)((until - (double)when.tv_sec) * 1e9);
    pthread_cond_timedwait(&handed, &lock, &when);
}

static void take(int who)
{
    has = who;
    running = true;
}

static void leave(void)
{
    bool heard = has == THREAD || sleepers > 0;
    has = NOBODY;
    running = false;
    if (heard)
        pthread_cond_broadcast(&handed);
}

static void on_wake(uv_async_t *handle)
{
    bool stop;
    run_all();
    pthread_mutex_lock(&lock);
    stop = has == THREAD && wanted > 0;
    pthread_mutex_unlock(&lock);
    if (stop)
        uv_stop(handle->loop);
}

/* Waits until nobody has had the loop for a moment: calls in a row do without the network thread. */
static void rest(void)
{
    const double absence = 4e-3; /* seconds */
    bool rested = false;
    while (has != NOBODY || wanted > 0 || !(rested || sleepers > 0)) {
        double until = luda__now() + absence;
        sleep_until(until);
        rested = has == NOBODY && luda__now() >= until;
    }
}

static void *run_loop(void *unused)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        rest();
        take(THREAD);
        pthread_mutex_unlock(&lock);
        uv_run(&loop, UV_RUN_DEFAULT);
        pthread_mutex_lock(&lock);
        leave();
    }
    return NULL;
}

/* Signals are for the host's own threads. */
static int start_thread(void)
{
    pthread_t thread;
    sigset_t all, before;
    int failed;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    failed = pthread_create(&thread, NULL, run_loop, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed)
        pthread_detach(thread);
    return failed;
}

/* With the lock held. */
static luda_status start(void)
{
    pthread_condattr_t monotonic;
    if (owner == getpid())
        return LUDA_OK;
    first = last = NULL;
    has = NOBODY;
    wanted = sleepers = 0;
    running = false;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&handed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (uv_loop_init(&loop) != 0)
        return luda__fail(LUDA_EIO, "network: no event loop");
    if (uv_async_init(&loop, &wake, on_wake) != 0 || uv_timer_init(&loop, &alarm_clock) != 0 || start_thread() != 0)
        return luda__fail(LUDA_EIO, "network: no thread");
    owner = getpid();
    return LUDA_OK;
}

luda_status luda__loop_post(luda_task *task)
{
    luda_status status;
    task->next = NULL;
    pthread_mutex_lock(&lock);
    status = start();
    if (status == LUDA_OK) {
        if (last)
            last->next = task;
        else
            first = task;
        last = task;
    }
    if (status == LUDA_OK && has == NOBODY) {
        take(WAITER);
        pthread_mutex_unlock(&lock);
        run_all();
        pthread_mutex_lock(&lock);
        leave();
    } else if (status == LUDA_OK) {
        uv_async_send(&wake);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* --- Waiting --- */

static void on_alarm(uv_timer_t *timer)
{
}

/* With the lock held: asks the network thread to leave. */
static void ask_for(const atomic_uint *pulse, unsigned seen, double until)
{
    wanted++;
    uv_async_send(&wake);
    while (has == THREAD && atomic_load_explicit(pulse, memory_order_acquire) == seen && luda__now() < until)
        sleep_until(until);
    wanted--;
}

bool luda__loop_run(const atomic_uint *pulse, unsigned seen, double until, bool spin)
{
    double left;
    pthread_mutex_lock(&lock);
    if (has == THREAD)
        ask_for(pulse, seen, until);
    if (has != NOBODY) {
        bool over = has == THREAD;
        pthread_mutex_unlock(&lock);
        return over;
    }
    take(WAITER);
    pthread_mutex_unlock(&lock);
    while (atomic_load_explicit(pulse, memory_order_acquire) == seen && (left = until - luda__now()) > 0) {
        if (!spin) {
            uv_update_time(&loop);
            uv_timer_start(&alarm_clock, on_alarm, (uint64_t)(fmin(left, 1e6) * 1e3) + 1, 0);
        }
        uv_run(&loop, spin ? UV_RUN_NOWAIT : UV_RUN_ONCE);
    }
    if (!spin)
        uv_timer_stop(&alarm_clock);
    pthread_mutex_lock(&lock);
    leave();
    pthread_mutex_unlock(&lock);
    return true;
}

void luda__loop_wake(void)
{
    if (!running)
        uv_async_send(&wake);
}

void luda__loop_sleepers(int change)
{
    pthread_mutex_lock(&lock);
    sleepers += change;
    if (change > 0 && has == NOBODY)
        pthread_cond_broadcast(&handed);
    pthread_mutex_unlock(&lock);
}

typedef struct waited {
    luda_task task;
    void (*run)(void *arg, uv_loop_t *loop);
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t ran;
    bool done;
} waited;

static void run_waited(luda_task *task, uv_loop_t *on)
{
    waited *w = (waited *)task;
    w->run(w->arg, on);
    pthread_mutex_lock(&w->lock);
    w->done = true;
    pthread_cond_signal(&w->ran);
    pthread_mutex_unlock(&w->lock);
}

luda_status luda__loop_call(void (*run)(void *arg, uv_loop_t *loop), void *arg)
{
    waited w = { .task.run = run_waited, .run = run, .arg = arg };
    luda_status status;
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.ran, NULL);
    status = luda__loop_post(&w.task);
    pthread_mutex_lock(&w.lock);
    while (status == LUDA_OK && !w.done)
        pthread_cond_wait(&w.ran, &w.lock);
    pthread_mutex_unlock(&w.lock);
    pthread_cond_destroy(&w.ran);
    pthread_mutex_destroy(&w.lock);
    return status;
}
