/*
 * Whose turn it is. Calls that were started run on a thread of the communicator, one after the other, which lives while
 * there are any; a call of the user's own thread waits for its turn behind them. What touches the user's tensors or the
 * graph (preparing, handing over) happens on the user's thread.
 */
#include "collective.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct luda_work {
    luda_object base;
    luda_work *next;
    luda_collective_run run;
    luda_arguments arguments;
    luda_tensor *result;
    luda_status status;
    luda_announcement *asked; /* [size], where ranks disagreed */
    const char *field;
    bool done, handed;
    char text[sizeof((luda_comm_fault *)0)->text];
};

/* --- The turn --- */

static void reset_fault(luda_comm *comm)
{
    if (comm->fault.status == LUDA_OK)
        return;
    comm->fault.status = LUDA_OK;
    comm->field = NULL;
    memset(comm->fault.culprits, 0, sizeof comm->fault.culprits);
}

static void wait_for_works(luda_comm *comm)
{
    pthread_mutex_lock(&comm->work_lock);
    while (atomic_load(&comm->works) > 0)
        pthread_cond_wait(&comm->turn, &comm->work_lock);
    pthread_mutex_unlock(&comm->work_lock);
}

luda_status luda__comm_claim(luda_comm *comm, const char *name)
{
    if (atomic_load(&comm->works) > 0)
        wait_for_works(comm);
    if (atomic_exchange(&comm->busy, true))
        return luda__fail(LUDA_EINVAL,
                          "%s: another thread is in a call of this communicator; use one communicator a thread", name);
    reset_fault(comm);
    return LUDA_OK;
}

void luda__comm_yield(luda_comm *comm)
{
    atomic_store(&comm->busy, false);
    if (atomic_load(&comm->works) == 0)
        return;
    pthread_mutex_lock(&comm->work_lock);
    pthread_cond_broadcast(&comm->turn);
    pthread_mutex_unlock(&comm->work_lock);
}

/* --- The worker --- */

/* What the next call of the communicator overwrites. */
static void keep_failure(luda_work *work)
{
    luda_comm *comm = work->run.comm;
    snprintf(work->text, sizeof work->text, "%s", luda_last_error());
    work->field = comm->field;
    if (work->status == LUDA_EMISMATCH && (work->asked = calloc((size_t)comm->size, sizeof *work->asked)))
        memcpy(work->asked, comm->asked, (size_t)comm->size * sizeof *work->asked);
}

static void *run_works(void *opaque)
{
    luda_comm *comm = opaque;
    pthread_mutex_lock(&comm->work_lock);
    while (comm->first_work) {
        luda_work *work = comm->first_work;
        while (atomic_exchange(&comm->busy, true))
            pthread_cond_wait(&comm->turn, &comm->work_lock);
        pthread_mutex_unlock(&comm->work_lock);
        reset_fault(comm);
        work->status = luda__call_exchange(&work->run);
        if (work->status != LUDA_OK)
            keep_failure(work);
        pthread_mutex_lock(&comm->work_lock);
        atomic_store(&comm->busy, false);
        comm->first_work = work->next;
        if (!comm->first_work)
            comm->last_work = NULL;
        atomic_fetch_sub(&comm->works, 1);
        work->done = true;
        luda__release(work); /* before anybody hears of it: what it holds is gone when its last user is */
        pthread_cond_broadcast(&comm->turn);
    }
    comm->worker = false;
    pthread_mutex_unlock(&comm->work_lock);
    luda_comm_release(comm);
    return NULL;
}

/* With the lock held. */
static luda_status start_worker(luda_comm *comm)
{
    pthread_t thread;
    if (comm->worker)
        return LUDA_OK;
    if (pthread_create(&thread, NULL, run_works, comm) != 0)
        return luda__fail(LUDA_ENOMEM, "comm: no thread for calls that go on");
    pthread_detach(thread);
    luda_comm_retain(comm);
    comm->worker = true;
    return LUDA_OK;
}

static luda_status enqueue(luda_work *work)
{
    luda_comm *comm = work->run.comm;
    luda_status status;
    pthread_mutex_lock(&comm->work_lock);
    status = atomic_load(&comm->busy) && !comm->worker
                 ? luda__fail(LUDA_EINVAL, "%s: another thread is in a call of this communicator", work->run.wait.name)
                 : start_worker(comm);
    if (status == LUDA_OK) {
        luda__retain(work);
        if (comm->last_work)
            comm->last_work->next = work;
        else
            comm->first_work = work;
        comm->last_work = work;
        atomic_fetch_add(&comm->works, 1);
    }
    pthread_mutex_unlock(&comm->work_lock);
    return status;
}

/* --- Public --- */

static void destroy(void *object)
{
    luda_work *work = object;
    luda_tensor_release(work->result);
    luda_tensor_release(work->arguments.tensor);
    luda__run_end(&work->run);
    luda_comm_release(work->run.comm);
    free(work->asked);
    free(work);
}

static const luda_class work_class = { "work", destroy };

luda_status luda_comm_start(luda_comm *comm, luda_comm_call call, luda_tensor *tensor, luda_reduction reduction,
                            int root, int in_place, const luda_comm_options *options, luda_work **out)
{
    luda_work *work;
    luda_status status;
    if ((int)call < 0 || call >= LUDA_CALL_SEND)
        return luda__fail(LUDA_EINVAL, "start: %s is not a call of all ranks", luda__call_name(call));
    work = calloc(1, sizeof *work);
    if (!work)
        return luda__fail(LUDA_ENOMEM, "start: no memory");
    luda__object_init(work, &work_class);
    work->arguments = (luda_arguments){ .reduction = reduction, .root = root, .in_place = in_place != 0 };
    status = luda__options(options, &work->arguments.options);
    if (status == LUDA_OK)
        status = luda__run_begin(&work->run, comm, call, &work->arguments.options);
    if (status != LUDA_OK) {
        free(work);
        return status;
    }
    luda_comm_retain(comm);
    if (tensor)
        luda_tensor_retain(tensor);
    work->arguments.tensor = tensor;
    work->arguments.options.site = NULL; /* copied, and not ours to keep */
    luda__call_prepare(&work->run, &work->arguments);
    work->arguments.options.sizes = work->arguments.options.received = NULL;
    work->run.apart = true;
    if (work->run.local == LUDA_OK && in_place && call != LUDA_CALL_ALL_REDUCE)
        luda__run_refuse(&work->run, luda__fail(LUDA_ENOTSUP, "%s: has no form in place", work->run.wait.name));
    status = enqueue(work);
    if (status == LUDA_OK)
        *out = work;
    else
        luda__release(work);
    return status;
}

int luda_work_done(luda_work *work)
{
    luda_comm *comm = work->run.comm;
    bool done;
    pthread_mutex_lock(&comm->work_lock);
    done = work->done;
    pthread_mutex_unlock(&comm->work_lock);
    return done;
}

static bool wait_until(luda_work *work, double until)
{
    luda_comm *comm = work->run.comm;
    bool done;
    struct timespec when;
    until = until < 1e15 ? until : 1e15;
    when.tv_sec = (time_t)until;
    when.tv_nsec = (long)((until - (double)when.tv_sec) * 1e9);
    pthread_mutex_lock(&comm->work_lock);
    while (!work->done && luda__now() < until)
        pthread_cond_timedwait(&comm->turn, &comm->work_lock, &when);
    done = work->done;
    pthread_mutex_unlock(&comm->work_lock);
    return done;
}

luda_status luda_work_wait(luda_work *work, double timeout, luda_tensor **out)
{
    if (!wait_until(work, luda__now() + timeout))
        return luda__fail(LUDA_ETIMEOUT, "%s: not done after %g s of waiting; it goes on", work->run.wait.name,
                          timeout);
    if (work->status != LUDA_OK)
        return luda__fail_text(work->status, work->text);
    if (!work->handed)
        LUDA_TRY(luda__call_hand_over(&work->run, &work->arguments, &work->result));
    work->handed = true;
    if (out) {
        if (work->result)
            luda_tensor_retain(work->result);
        *out = work->result;
    }
    return LUDA_OK;
}

int luda_work_culprits(luda_work *work, int32_t *ranks, int capacity)
{
    int count = 0;
    for (int r = 0; luda_work_done(work) && r < work->run.comm->size; r++)
        if (luda__blamed(&work->run.fault, r)) {
            if (count < capacity)
                ranks[count] = r;
            count++;
        }
    return count;
}

const char *luda_work_difference(luda_work *work)
{
    return luda_work_done(work) ? work->field : NULL;
}

const char *luda_work_failure(luda_work *work, int index, int32_t *rank)
{
    return luda_work_done(work) ? luda__failure_text(work->run.comm, &work->run.fault, work->asked, index, rank) : NULL;
}

void luda_work_release(luda_work *work)
{
    luda__release(work);
}
