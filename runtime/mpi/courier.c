/*
 * The courier: the one thread that calls MPI. It begins MPI, polls for what comes and what is out, and ends MPI when the
 * process exits. What it is given it copies, so that nobody's memory is ever lent to MPI: a receive or send that never
 * completes holds the courier's memory only.
 */
#include "mpi.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CONTROL_BYTES = 8 << 10, TESTED = 64 }; /* TESTED: of what is on its way, in one round */

typedef struct parcel {
    struct parcel *next;
    luda_mpi_request request;
    int to, tag;
    size_t size;
    char bytes[];
} parcel;

typedef struct inbox {
    luda_mpi_request request;
    int from, tag;
    bool posted;
    size_t room;
    char *bytes;
} inbox;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum { IDLE, STARTING, RUNNING, FAILED, STOPPING, STOPPED } state;
    bool listening, busy; /* busy: something has not gone out */
    parcel *first, *last; /* posted */
    luda_status status;
    char problem[256];
    int rank, size;
} courier = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* The courier's own. */
static parcel *flying, *last_flying;
static inbox *inboxes;
static int inbox_count;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* With the lock: until something changes, or the moment comes. */
static void sleep_until(double moment)
{
    struct timespec when = { .tv_sec = (time_t)moment };
    when.tv_nsec = (long)((moment - (double)when.tv_sec) * 1e9);
    pthread_cond_timedwait(&courier.changed, &courier.lock, &when);
}

/* --- Out --- */

static parcel *take_posted(void)
{
    parcel *first;
    pthread_mutex_lock(&courier.lock);
    first = courier.first;
    courier.first = courier.last = NULL;
    pthread_mutex_unlock(&courier.lock);
    return first;
}

static bool send_posted(void)
{
    parcel *next, *first = take_posted();
    for (parcel *p = first; p; p = next) {
        next = p->next;
        p->next = NULL;
        if (!luda__mpi_send(p->bytes, p->size, p->to, p->tag, &p->request)) {
            luda__groups_lost(p->to);
            free(p);
            continue;
        }
        if (last_flying)
            last_flying->next = p;
        else
            flying = p;
        last_flying = p;
    }
    return first != NULL;
}

static bool test_flying(void)
{
    parcel **at = &flying, *before = NULL;
    bool any = false;
    for (int i = 0; i < TESTED && *at; i++) {
        parcel *p = *at;
        luda_mpi_progress progress = luda__mpi_test(&p->request);
        if (progress == LUDA_MPI_PENDING) {
            before = p;
            at = &p->next;
            continue;
        }
        if (progress == LUDA_MPI_FAILED)
            luda__groups_lost(p->to);
        *at = p->next;
        if (last_flying == p)
            last_flying = before;
        free(p);
        any = true;
    }
    return any;
}

/* --- In --- */

static void post(inbox *box)
{
    box->posted = luda__mpi_receive(box->bytes, box->room, box->from, box->tag, &box->request);
    if (!box->posted)
        luda__groups_lost(box->from);
}

static luda_status open_inboxes(void)
{
    inbox_count = 2 * courier.size;
    inboxes = calloc((size_t)inbox_count, sizeof *inboxes);
    for (int i = 0; inboxes && i < inbox_count; i++) {
        inbox *box = &inboxes[i];
        box->from = i / 2;
        box->tag = i % 2 ? LUDA_MPI_DATA : LUDA_MPI_CONTROL;
        box->room = sizeof(luda_packet) + (i % 2 ? LUDA_PACKET_BYTES : CONTROL_BYTES);
        if (box->from != courier.rank && !(box->bytes = malloc(box->room)))
            return LUDA_ENOMEM;
    }
    for (int i = 0; inboxes && i < inbox_count; i++)
        if (inboxes[i].bytes)
            post(&inboxes[i]);
    return inboxes ? LUDA_OK : LUDA_ENOMEM;
}

static bool test_inboxes(void)
{
    bool any = false;
    for (int i = 0; i < inbox_count; i++) {
        inbox *box = &inboxes[i];
        luda_packet packet;
        luda_mpi_progress progress = box->posted ? luda__mpi_test(&box->request) : LUDA_MPI_PENDING;
        if (progress == LUDA_MPI_FAILED) {
            box->posted = false;
            luda__groups_lost(box->from);
        } else if (progress == LUDA_MPI_DONE) {
            memcpy(&packet, box->bytes, sizeof packet);
            if (packet.payload <= box->room - sizeof packet)
                luda__groups_receive(&packet, box->bytes + sizeof packet);
            post(box);
            any = true;
        }
    }
    return any;
}

static void close_inboxes(void)
{
    for (int i = 0; i < inbox_count; i++) {
        if (inboxes[i].posted)
            luda__mpi_cancel(&inboxes[i].request);
        free(inboxes[i].bytes);
    }
    free(inboxes);
    inbox_count = 0;
}

/* --- The thread --- */

static void say(int state, luda_status status)
{
    pthread_mutex_lock(&courier.lock);
    courier.state = state;
    courier.status = status;
    if (status != LUDA_OK)
        strncpy(courier.problem, luda_last_error(), sizeof courier.problem - 1);
    pthread_cond_broadcast(&courier.changed);
    pthread_mutex_unlock(&courier.lock);
}

/* Polls without a pause while there is work and a moment longer, then ever more seldom: MPI has nothing to sleep on. */
static void rest(double idle_since)
{
    double idle = now() - idle_since;
    if (idle < 50e-6) {
        sched_yield();
        return;
    }
    pthread_mutex_lock(&courier.lock);
    if (!courier.first && courier.state == RUNNING)
        sleep_until(now() + (idle < 0.01 ? 20e-6 : idle < 1 ? 200e-6 : 1e-3));
    pthread_mutex_unlock(&courier.lock);
}

static bool serve(void)
{
    bool stopping, listen, any = send_posted();
    any |= test_flying();
    any |= test_inboxes();
    pthread_mutex_lock(&courier.lock);
    courier.busy = flying || courier.first;
    stopping = courier.state == STOPPING && !courier.busy;
    listen = courier.listening && !inboxes;
    pthread_mutex_unlock(&courier.lock);
    if (listen)
        say(RUNNING, open_inboxes() == LUDA_OK ? LUDA_OK : luda_set_error(LUDA_ENOMEM, "mpi: no memory for what comes in"));
    if (stopping)
        return false;
    static double active; /* when there was work last */
    if (any)
        active = now();
    else
        rest(active);
    return true;
}

static void *run(void *unused)
{
    luda_status status = luda__mpi_load();
    if (status == LUDA_OK)
        status = luda__mpi_begin(&courier.rank, &courier.size);
    say(status == LUDA_OK ? RUNNING : FAILED, status);
    if (status != LUDA_OK)
        return NULL;
    while (serve())
        continue;
    close_inboxes();
    luda__mpi_end();
    say(STOPPED, LUDA_OK);
    return NULL;
}

/* MPI wants an end, in which all take part; who is stuck in it does not keep the process. */
static void stop_at_exit(void)
{
    double end = now() + 10;
    luda__groups_leave();
    pthread_mutex_lock(&courier.lock);
    if (courier.state == RUNNING)
        courier.state = STOPPING;
    pthread_cond_broadcast(&courier.changed);
    while (courier.state == STOPPING && now() < end)
        sleep_until(end);
    pthread_mutex_unlock(&courier.lock);
}

/* --- What others call --- */

static luda_status started(luda_status status)
{
    return status == LUDA_OK ? LUDA_OK : luda_set_error(status, courier.problem);
}

luda_status luda__courier_start(int *rank, int *size)
{
    pthread_condattr_t monotonic;
    pthread_t thread;
    luda_status status;
    pthread_mutex_lock(&courier.lock);
    if (courier.state == IDLE) {
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_cond_init(&courier.changed, &monotonic);
        pthread_condattr_destroy(&monotonic);
        courier.state = STARTING;
        if (pthread_create(&thread, NULL, run, NULL) == 0) {
            pthread_detach(thread);
            atexit(stop_at_exit);
        } else {
            courier.state = IDLE;
            pthread_mutex_unlock(&courier.lock);
            return luda_set_error(LUDA_ENOMEM, "mpi: no memory for a thread");
        }
    }
    while (courier.state == STARTING)
        pthread_cond_wait(&courier.changed, &courier.lock);
    status = courier.status;
    *rank = courier.rank;
    *size = courier.size;
    pthread_mutex_unlock(&courier.lock);
    return started(status);
}

luda_status luda__courier_listen(void)
{
    pthread_mutex_lock(&courier.lock);
    courier.listening = true;
    pthread_cond_broadcast(&courier.changed);
    pthread_mutex_unlock(&courier.lock);
    return LUDA_OK;
}

static bool behind_data(const luda_packet *packet)
{
    return packet->kind == LUDA_PACKET_DATA || (packet->kind == LUDA_PACKET_LEAVE && packet->bytes == 1);
}

luda_status luda__courier_post(int to, const luda_packet *packet, const void *payload)
{
    parcel *p = malloc(sizeof *p + sizeof *packet + packet->payload);
    if (!p)
        return luda_set_error(LUDA_ENOMEM, "mpi: no memory for a message");
    p->next = NULL;
    p->to = to;
    p->tag = behind_data(packet) ? LUDA_MPI_DATA : LUDA_MPI_CONTROL;
    p->size = sizeof *packet + packet->payload;
    memcpy(p->bytes, packet, sizeof *packet);
    if (packet->payload > 0)
        memcpy(p->bytes + sizeof *packet, payload, packet->payload);
    pthread_mutex_lock(&courier.lock);
    if (courier.last)
        courier.last->next = p;
    else
        courier.first = p;
    courier.last = p;
    courier.busy = true;
    pthread_cond_broadcast(&courier.changed);
    pthread_mutex_unlock(&courier.lock);
    return LUDA_OK;
}

void luda__courier_flush(void)
{
    double end = now() + 1;
    pthread_mutex_lock(&courier.lock);
    while (courier.busy && courier.state == RUNNING && now() < end)
        sleep_until(now() + 1e-3);
    pthread_mutex_unlock(&courier.lock);
}
