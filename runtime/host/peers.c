/*
 * Registered peers: callers of one process, on any threads, who know each other by numbers only. When all have come, each
 * gets its rank of a communicator, in the order of their numbers, so that results do not depend on who came first.
 */
#include "host.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct seat {
    int64_t peer;
    uint64_t ticket; /* of this registration; a number may be registered again later */
    luda_comm *comm; /* NULL until all have come */
} seat;

/*
 * One group a process. It is empty, gathers, or is ready; ready lasts until the last peer has gone. A peer that is lost
 * breaks the group: it cannot shrink behind the back of those who count on that peer.
 */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool clocked, ready, broken;
    int64_t lost; /* who broke it */
    int wanted, count;
    uint64_t tickets;
    double first; /* when the first came, monotonic seconds */
    double timeout;
    char *settings;
    luda_comm *nodes; /* of a group of several nodes: their communicator, and the line to the orchestrator */
    luda_post *post;
    seat seats[LUDA_MOST_PEERS]; /* in the order of their numbers */
} group = { .lock = PTHREAD_MUTEX_INITIALIZER };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* --- With the lock held --- */

static void start_clock(void)
{
    pthread_condattr_t monotonic;
    if (group.clocked)
        return;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&group.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    group.clocked = true;
}

static int find(uint64_t ticket)
{
    for (int i = 0; i < group.count; i++)
        if (group.seats[i].ticket == ticket)
            return i;
    return -1;
}

static const char *present(char *buffer, size_t room)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (int i = 0; i < group.count && used < room; i++) {
        int length = snprintf(buffer + used, room - used, "%s%lld", i ? ", " : "", (long long)group.seats[i].peer);
        used += length > 0 ? (size_t)length : 0;
    }
    return buffer;
}

/* Nodes that wait for this one learn that it has left. */
static void leave_nodes(void)
{
    if (group.nodes)
        luda_comm_close(group.nodes);
    luda_comm_release(group.nodes);
    group.nodes = NULL;
}

static void hang_up(void)
{
    if (group.post)
        luda_post_stop(group.post);
    luda_post_release(group.post);
    group.post = NULL;
}

static void forget_if_empty(void)
{
    if (group.count > 0)
        return;
    leave_nodes();
    hang_up();
    group.ready = group.broken = false;
    free(group.settings);
    group.settings = NULL;
}

static void remove_seat(int index)
{
    luda_comm *comm = group.seats[index].comm;
    memmove(&group.seats[index], &group.seats[index + 1], (size_t)(--group.count - index) * sizeof *group.seats);
    if (comm)
        luda_comm_close(comm);
    luda_comm_release(comm);
    forget_if_empty();
}

/* A communicator for those who are there; they find it at their next call. */
static luda_status join_all(void)
{
    luda_comm_options options = { .size = sizeof options, .timeout = group.timeout };
    luda_comm *comms[LUDA_MOST_PEERS];
    luda_status status = luda_comm_new_local_group(group.count, &options, comms);
    for (int i = 0; status == LUDA_OK && i < group.count; i++) {
        luda_comm_release(group.seats[i].comm);
        group.seats[i].comm = comms[i];
    }
    return status;
}

static luda_status check_newcomer(int64_t peer, const char *settings)
{
    char who[200];
    for (int i = 0; i < group.count; i++)
        if (group.seats[i].peer == peer)
            return luda__host_fail(LUDA_EINVAL, "register: peer %lld is registered already", (long long)peer);
    if (group.count > 0 && strcmp(settings, group.settings) != 0)
        return luda__host_fail(LUDA_EMISMATCH, "register: peer %lld brings other settings (%s) than the first peer (%s)",
                               (long long)peer, settings, group.settings);
    if (group.ready)
        return luda__host_fail(LUDA_EMISMATCH, "register: peer %lld comes to a group of %d that is complete (peers %s); "
                                               "another can form when all of them have finished",
                               (long long)peer, group.wanted, present(who, sizeof who));
    return LUDA_OK;
}

static luda_status take_seat(int64_t peer, int wanted, const char *settings, double timeout, uint64_t *ticket)
{
    int at = group.count;
    if (group.count == 0) {
        if (!(group.settings = strdup(settings)))
            return luda__host_fail(LUDA_ENOMEM, "register: no memory");
        group.wanted = wanted;
        group.timeout = timeout;
        group.first = now();
    }
    while (at > 0 && group.seats[at - 1].peer > peer)
        at--;
    memmove(&group.seats[at + 1], &group.seats[at], (size_t)(group.count - at) * sizeof *group.seats);
    group.seats[at] = (seat){ .peer = peer, .ticket = ++group.tickets };
    group.count++;
    *ticket = group.tickets;
    return LUDA_OK;
}

static luda_status wait_for_all(int64_t peer, uint64_t ticket)
{
    struct timespec when;
    char who[200];
    double until = group.first + (group.timeout < 1e9 ? group.timeout : 1e9);
    luda_status status;
    when.tv_sec = (time_t)until;
    when.tv_nsec = (long)((until - (double)when.tv_sec) * 1e9);
    while (find(ticket) >= 0 && !group.ready && now() < until)
        pthread_cond_timedwait(&group.changed, &group.lock, &when);
    if (find(ticket) < 0)
        return luda__host_fail(LUDA_ECANCELLED, "register: the group was reset while peer %lld waited for others",
                               (long long)peer);
    if (group.ready)
        return LUDA_OK;
    status = luda__host_fail(LUDA_ETIMEOUT, "register: timed out after %g s: %d of %d peers have come (%s)", group.timeout,
                             group.count, group.wanted, present(who, sizeof who));
    remove_seat(find(ticket));
    return status;
}

/* --- Public --- */

luda_status luda_peer_register(int64_t peer, int wanted, const char *settings, double timeout, uint64_t *ticket)
{
    luda_status status;
    uint64_t mine = 0;
    if (wanted < 1 || wanted > LUDA_MOST_PEERS)
        return luda__host_fail(LUDA_EINVAL, "register: %d devices; 1 to %d are possible", wanted, LUDA_MOST_PEERS);
    pthread_mutex_lock(&group.lock);
    start_clock();
    status = check_newcomer(peer, settings);
    if (status == LUDA_OK)
        status = take_seat(peer, wanted, settings, timeout, &mine);
    if (status == LUDA_OK && group.count == group.wanted) {
        status = join_all();
        group.ready = status == LUDA_OK;
        if (status != LUDA_OK)
            remove_seat(find(mine));
        pthread_cond_broadcast(&group.changed);
    } else if (status == LUDA_OK) {
        status = wait_for_all(peer, mine);
    }
    if (status == LUDA_OK)
        *ticket = mine;
    pthread_mutex_unlock(&group.lock);
    return status;
}

luda_status luda_peer_comm(uint64_t ticket, int64_t *peers, luda_comm **out)
{
    luda_status status = LUDA_OK;
    int at;
    pthread_mutex_lock(&group.lock);
    at = find(ticket);
    if (at < 0 || !group.seats[at].comm)
        status = luda__host_fail(LUDA_ECLOSED, "peer: is not registered; register comes first");
    else if (group.broken)
        status = luda__host_fail(LUDA_EPEER, "peer: lost peer %lld, which went away without finishing; the group goes on "
                                             "after all have finished, or a reset, and registered again",
                                 (long long)group.lost);
    for (int i = 0; status == LUDA_OK && i < group.count; i++)
        peers[i] = group.seats[i].peer;
    if (status == LUDA_OK) {
        *out = group.seats[at].comm;
        luda_comm_retain(*out);
    }
    pthread_mutex_unlock(&group.lock);
    return status;
}

luda_status luda_peer_attach(uint64_t ticket, luda_comm *nodes, luda_post *post)
{
    luda_status status = LUDA_OK;
    pthread_mutex_lock(&group.lock);
    if (find(ticket) < 0)
        status = luda__host_fail(LUDA_ECANCELLED, "register: the group was reset");
    if (status == LUDA_OK && nodes) {
        luda_comm_retain(nodes);
        leave_nodes();
        group.nodes = nodes;
    }
    if (status == LUDA_OK && post) {
        luda_post_retain(post);
        hang_up();
        group.post = post;
    }
    pthread_mutex_unlock(&group.lock);
    return status;
}

luda_status luda_peer_nodes(uint64_t ticket, luda_comm **out)
{
    luda_status status = LUDA_OK;
    pthread_mutex_lock(&group.lock);
    if (find(ticket) < 0 || !group.nodes)
        status = luda__host_fail(LUDA_ECANCELLED, "register: the group was reset");
    else
        luda_comm_retain(*out = group.nodes);
    pthread_mutex_unlock(&group.lock);
    return status;
}

luda_status luda_peer_finish(uint64_t ticket, int lost, luda_post **post)
{
    luda_status status = LUDA_OK;
    char who[200];
    int at;
    *post = NULL;
    pthread_mutex_lock(&group.lock);
    at = find(ticket);
    if (at < 0 && group.count == 0)
        status = luda__host_fail(LUDA_ECLOSED, "finish: nobody is registered; register comes first");
    else if (at < 0)
        status = luda__host_fail(LUDA_EINVAL, "finish: the peer is not registered any more; registered are %s",
                                 present(who, sizeof who));
    if (at >= 0 && lost) {
        group.broken = true;
        group.lost = group.seats[at].peer;
        leave_nodes(); /* a broken node is of no use to the others */
        hang_up();
    }
    if (at >= 0 && group.count == 1) {
        *post = group.post;
        group.post = NULL;
    }
    if (at >= 0)
        remove_seat(at);
    if (at >= 0 && group.ready && !group.broken)
        status = join_all();
    pthread_mutex_unlock(&group.lock);
    return status;
}

static void reset(void)
{
    start_clock();
    for (int i = 0; i < group.count; i++)
        if (group.seats[i].comm)
            luda_comm_abort(group.seats[i].comm, "the group was reset");
    leave_nodes();
    hang_up();
    while (group.count > 0)
        remove_seat(group.count - 1);
    pthread_cond_broadcast(&group.changed);
}

void luda_peers_reset(uint64_t ticket)
{
    pthread_mutex_lock(&group.lock);
    if (ticket == 0 || find(ticket) >= 0)
        reset();
    pthread_mutex_unlock(&group.lock);
}
