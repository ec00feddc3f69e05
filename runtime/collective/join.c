/*
 * Joining: a rank says who it is at the rendezvous, learns where the others listen, and connects to those before it while
 * those after it connect to it. All with one deadline, in the caller's thread; the mesh takes over the sockets.
 */
#include "lane.h"
#include "net.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STRANGERS = 256, RETRY_MS = 50 };

/* A connection that is not part of the mesh yet. */
typedef struct candidate {
    int fd, rank, channel; /* rank -1: came in, and has not said */
    bool outgoing, greeted;
    size_t got;
    uint8_t bytes[LUDA_FRAME_BYTES];
} candidate;

typedef struct joining {
    int rank, size, server, listener;
    double timeout, deadline;
    uint8_t session[LUDA_SESSION_BYTES];
    luda_address *table;             /* [size] */
    int (*sockets)[LUDA_CHANNELS];   /* [size] */
    candidate *candidates;
    struct pollfd *polls;
    int count, most, strangers;
} joining;

/* --- At the rendezvous --- */

static luda_status reach(joining *j, const luda_address *address)
{
    char text[80];
    for (;;) {
        int fd = luda__socket_connect(address), error = fd < 0 ? errno : 0;
        double left = j->deadline - luda__now();
        if (fd >= 0) {
            struct pollfd p = { .fd = fd, .events = POLLOUT };
            error =
                poll(&p, 1, left > 0 ? (int)fmin(left * 1000 + 1, 5000) : 0) > 0 ? luda__socket_error(fd) : ETIMEDOUT;
        }
        if (error == 0) {
            j->server = fd;
            return LUDA_OK;
        }
        if (fd >= 0)
            close(fd);
        if (left <= 0)
            return luda__fail(LUDA_ETIMEOUT, "connect: no rendezvous at %s after %g s: %s",
                              luda__address_text(address, text, sizeof text), j->timeout, strerror(error));
        usleep(RETRY_MS * 1000);
    }
}

static luda_status say_join(joining *j)
{
    uint8_t bytes[LUDA_FRAME_BYTES + 2];
    luda_frame frame = { .kind = LUDA_FRAME_JOIN, .payload = 2, .rank = (uint32_t)j->rank, .size = (uint32_t)j->size };
    luda_address here = { .length = sizeof here.storage };
    getsockname(j->server, (struct sockaddr *)&here.storage, &here.length);
    luda__address_set_port(&here, 0);
    LUDA_TRY(luda__listen(&here, 2 * j->size, &j->listener));
    memcpy(frame.session, j->session, LUDA_SESSION_BYTES);
    luda__frame_write(&frame, bytes);
    bytes[LUDA_FRAME_BYTES] = (uint8_t)luda__address_port(&here);
    bytes[LUDA_FRAME_BYTES + 1] = (uint8_t)(luda__address_port(&here) >> 8);
    return luda__socket_write(j->server, bytes, sizeof bytes, j->deadline);
}

static luda_status late(const joining *j, const uint8_t *missing, const char *what)
{
    luda_comm_fault fault = { 0 };
    char who[160];
    for (int r = 0; r < j->size; r++)
        if (missing[r / 8] >> (r % 8) & 1)
            luda__blame(&fault, r);
    return luda__fail(LUDA_ETIMEOUT, "connect: timed out after %g s: %s %s", j->timeout,
                      luda__culprits_text(&fault, j->size, who, sizeof who), what);
}

static luda_status read_answer(joining *j, luda_frame *frame, uint8_t *payload)
{
    uint8_t header[LUDA_FRAME_BYTES];
    LUDA_TRY(luda__socket_read(j->server, header, sizeof header, j->deadline));
    if (!luda__frame_read(header, frame) || frame->kind > LUDA_FRAME_REFUSE)
        return luda__fail(LUDA_EPEER, "connect: something else than a rendezvous answers at that address");
    return luda__socket_read(j->server, payload, frame->payload, j->deadline);
}

static luda_status wait_for_all(joining *j)
{
    uint8_t payload[LUDA_ADDRESS_BYTES * LUDA_MAX_RANKS + 1], missing[LUDA_MAX_RANKS / 8] = { 0 };
    luda_frame frame;
    for (;;) {
        luda_status status = read_answer(j, &frame, payload);
        if (status == LUDA_ETIMEOUT)
            return late(j, missing, "did not join");
        if (status != LUDA_OK)
            return status;
        if (frame.kind == LUDA_FRAME_REFUSE) {
            payload[frame.payload] = 0;
            return luda__fail(LUDA_EMISMATCH, "connect: rank %d is turned away: %s", j->rank, (char *)payload);
        }
        if (frame.kind == LUDA_FRAME_MISSING && frame.payload == sizeof missing)
            memcpy(missing, payload, sizeof missing);
        if (frame.kind == LUDA_FRAME_READY && frame.payload == (uint64_t)j->size * LUDA_ADDRESS_BYTES)
            break;
    }
    for (int r = 0; r < j->size; r++)
        if (!luda__address_read(payload + r * LUDA_ADDRESS_BYTES, &j->table[r]))
            return luda__fail(LUDA_ECORRUPT, "connect: the rendezvous sent no address of rank %d", r);
    return LUDA_OK;
}

/* --- Between ranks --- */

static void greet(const joining *j, int fd, luda_frame_kind kind, int channel)
{
    uint8_t bytes[LUDA_FRAME_BYTES];
    luda_frame frame = {
        .kind = kind, .rank = (uint32_t)j->rank, .size = (uint32_t)j->size, .step = (uint32_t)channel
    };
    memcpy(frame.session, j->session, LUDA_SESSION_BYTES);
    luda__frame_write(&frame, bytes);
    /* Into an empty buffer; what does not fit there breaks the handshake, which the deadline reports. */
    if (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        shutdown(fd, SHUT_RDWR);
}

static void forget(joining *j, candidate *c, bool keep)
{
    if (!keep)
        close(c->fd);
    j->strangers -= !c->outgoing;
    *c = j->candidates[--j->count];
}

static luda_status call_out(joining *j, int rank, int channel)
{
    char text[80];
    int fd = luda__socket_connect(&j->table[rank]);
    if (fd < 0)
        return luda__fail(LUDA_EPEER, "connect: rank %d cannot be reached at %s: %s", rank,
                          luda__address_text(&j->table[rank], text, sizeof text), strerror(errno));
    j->candidates[j->count++] = (candidate){ .fd = fd, .rank = rank, .channel = channel, .outgoing = true };
    return LUDA_OK;
}

static void take_in(joining *j)
{
    int fd;
    while ((fd = luda__socket_accept(j->listener)) >= 0) {
        if (j->strangers >= STRANGERS + LUDA_CHANNELS * j->size) {
            close(fd);
            continue;
        }
        j->candidates[j->count++] = (candidate){ .fd = fd, .rank = -1 };
        j->strangers++;
    }
}

/* Whether the words on a connection are those of the rank it should be; sets rank and channel. */
static bool believable(const joining *j, candidate *c)
{
    luda_frame frame;
    if (!luda__frame_read(c->bytes, &frame) || memcmp(frame.session, j->session, LUDA_SESSION_BYTES) != 0 ||
        frame.size != (uint32_t)j->size || frame.step >= LUDA_CHANNELS || frame.payload != 0)
        return false;
    if (c->outgoing)
        return frame.kind == LUDA_FRAME_WELCOME && frame.rank == (uint32_t)c->rank;
    if (frame.kind != LUDA_FRAME_HELLO || frame.rank <= (uint32_t)j->rank || frame.rank >= (uint32_t)j->size ||
        j->sockets[frame.rank][frame.step] >= 0)
        return false;
    c->rank = (int)frame.rank;
    c->channel = (int)frame.step;
    return true;
}

/* Takes one connection further. One that is forgotten has another in its place afterwards. */
static luda_status advance(joining *j, candidate *c)
{
    ssize_t n;
    if (c->outgoing && !c->greeted) {
        int error = luda__socket_error(c->fd);
        if (error)
            return luda__fail(LUDA_EPEER, "connect: rank %d cannot be reached: %s", c->rank, strerror(error));
        greet(j, c->fd, LUDA_FRAME_HELLO, c->channel);
        c->greeted = true;
        return LUDA_OK;
    }
    n = recv(c->fd, c->bytes + c->got, LUDA_FRAME_BYTES - c->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return LUDA_OK;
    c->got += n > 0 ? (size_t)n : 0;
    if (n > 0 && c->got < LUDA_FRAME_BYTES)
        return LUDA_OK;
    if (n <= 0 || !believable(j, c)) {
        if (c->outgoing)
            return luda__fail(LUDA_EPEER, "connect: rank %d closed the connection", c->rank);
        forget(j, c, false);
        return LUDA_OK;
    }
    if (!c->outgoing)
        greet(j, c->fd, LUDA_FRAME_WELCOME, c->channel);
    j->sockets[c->rank][c->channel] = c->fd;
    forget(j, c, true);
    return LUDA_OK;
}

static bool all_connected(const joining *j, uint8_t *missing)
{
    bool all = true;
    memset(missing, 0, LUDA_MAX_RANKS / 8);
    for (int r = 0; r < j->size; r++)
        for (int i = 0; i < LUDA_CHANNELS; i++)
            if (r != j->rank && j->sockets[r][i] < 0) {
                missing[r / 8] |= (uint8_t)(1 << (r % 8));
                all = false;
            }
    return all;
}

static luda_status connect_all(joining *j)
{
    uint8_t missing[LUDA_MAX_RANKS / 8];
    luda_status status = LUDA_OK;
    for (int r = 0; r < j->rank; r++)
        for (int i = 0; i < LUDA_CHANNELS; i++)
            LUDA_TRY(call_out(j, r, i));
    while (status == LUDA_OK && !all_connected(j, missing)) {
        double left = j->deadline - luda__now();
        int waiting = j->count;
        if (left <= 0)
            return late(j, missing, "did not connect");
        for (int i = 0; i < waiting; i++) {
            const candidate *c = &j->candidates[i];
            j->polls[i] = (struct pollfd){ .fd = c->fd, .events = c->outgoing && !c->greeted ? POLLOUT : POLLIN };
        }
        j->polls[waiting] = (struct pollfd){ .fd = j->listener, .events = POLLIN };
        poll(j->polls, (nfds_t)waiting + 1, (int)fmin(left * 1000 + 1, 1000));
        /* From the end, so that what takes a forgotten one's place was looked at already. */
        for (int i = waiting - 1; i >= 0 && status == LUDA_OK; i--)
            if (j->polls[i].revents)
                status = advance(j, &j->candidates[i]);
        if (j->polls[waiting].revents)
            take_in(j);
    }
    return status;
}

/* --- The whole --- */

static luda_status allocate(joining *j)
{
    size_t size = (size_t)j->size;
    j->most = STRANGERS + 2 * LUDA_CHANNELS * j->size;
    j->table = calloc(size, sizeof *j->table);
    j->sockets = calloc(size, sizeof *j->sockets);
    j->candidates = calloc((size_t)j->most, sizeof *j->candidates);
    j->polls = calloc((size_t)j->most + 1, sizeof *j->polls);
    if (!j->table || !j->sockets || !j->candidates || !j->polls)
        return luda__fail(LUDA_ENOMEM, "connect: no memory for %d ranks", j->size);
    for (size_t r = 0; r < size; r++)
        for (int i = 0; i < LUDA_CHANNELS; i++)
            j->sockets[r][i] = -1;
    return LUDA_OK;
}

static void clean_up(joining *j, bool connected)
{
    if (j->server >= 0)
        close(j->server);
    if (j->listener >= 0)
        close(j->listener);
    for (int i = 0; i < j->count; i++)
        close(j->candidates[i].fd);
    for (int r = 0; r < j->size && j->sockets && !connected; r++)
        for (int i = 0; i < LUDA_CHANNELS; i++)
            if (j->sockets[r][i] >= 0)
                close(j->sockets[r][i]);
    free(j->polls);
    free(j->candidates);
    free(j->sockets);
    free(j->table);
}

luda_status luda_comm_connect(const char *address, const char *session, int rank, int size,
                              const luda_comm_options *options, luda_comm **out)
{
    joining j = { .rank = rank, .size = size, .server = -1, .listener = -1 };
    luda_address server;
    luda_status status;
    luda_comm *comm = NULL;
    bool connected = false;
    if (size < 1 || size > LUDA_MAX_RANKS || rank < 0 || rank >= size)
        return luda__fail(LUDA_EINVAL, "connect: rank %d of %d ranks; up to %d are possible", rank, size,
                          LUDA_MAX_RANKS);
    if (!luda__session_parse(session, j.session))
        return luda__fail(LUDA_EINVAL, "connect: a session is %d hexadecimal digits", 2 * LUDA_SESSION_BYTES);
    LUDA_TRY(luda__address_parse(address, &server));
    LUDA_TRY(luda__address_check(&server, "connect"));
    if (size == 1)
        return luda_comm_new_local_group(1, options, out);
    j.timeout = options && options->timeout > 0 ? options->timeout : luda__default_timeout;
    j.deadline = luda__now() + j.timeout;
    LUDA_TRY_OR(status, allocate(&j), done);
    LUDA_TRY_OR(status, reach(&j, &server), done);
    LUDA_TRY_OR(status, say_join(&j), done);
    LUDA_TRY_OR(status, wait_for_all(&j), done);
    LUDA_TRY_OR(status, connect_all(&j), done);
    connected = true;
    status = luda__mesh_comm(rank, size, j.sockets, options, &comm);
    if (status == LUDA_OK)
        status = luda__lane_open(comm, j.deadline);
    if (status == LUDA_OK)
        *out = comm;
    else
        luda_comm_release(comm);
done:
    clean_up(&j, connected);
    return status;
}
