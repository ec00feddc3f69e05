/* The network thread: one libuv loop per process, entered through a queue and uv_async_send. */
#include "net.h"

#include <signal.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static luda_task *first, *last;
static uv_loop_t loop;
static uv_async_t wake;
static pid_t owner; /* the process whose thread runs the loop; a forked child has none */

static void run_tasks(uv_async_t *handle)
{
    luda_task *task;
    pthread_mutex_lock(&lock);
    task = first;
    first = last = NULL;
    pthread_mutex_unlock(&lock);
    while (task) {
        luda_task *next = task->next;
        task->run(task, handle->loop);
        task = next;
    }
}

static void *run_loop(void *unused)
{
    uv_run(&loop, UV_RUN_DEFAULT);
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
    if (owner == getpid())
        return LUDA_OK;
    first = last = NULL;
    if (uv_loop_init(&loop) != 0)
        return luda__fail(LUDA_EIO, "network: no event loop");
    if (uv_async_init(&loop, &wake, run_tasks) != 0 || start_thread() != 0) {
        return luda__fail(LUDA_EIO, "network: no thread");
    }
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
        uv_async_send(&wake);
    }
    pthread_mutex_unlock(&lock);
    return status;
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
