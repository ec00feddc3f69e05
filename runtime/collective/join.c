/*
 * Joining: a rank says who it is at the rendezvous, learns where the others listen, and connects to those before it while
 * those after it connect to it. All with one deadline, in the caller's thread; the mesh takes over the sockets.
 */
#include "join.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STRANGERS = 256, AGAIN_MS = 10 };

/* A connection that is not part of the mesh yet. */
typedef struct candidate {
    int fd, rank, channel; /* rank -1: came in, and has not said */
    bool outgoing, greeted;
    uint64_t number; /* in the order of coming */
    size_t got;
    uint8_t bytes[LUDA_GREETING_BYTES];
    luda_greeting greeting; /* where there is a secret */
} candidate;

/* --- Between ranks --- */

/* Into an empty buffer; what does not fit there breaks the handshake, which the deadline reports. */
static void say(const candidate *c, const uint8_t *bytes, size_t count)
{
    if (send(c->fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        shutdown(c->fd, SHUT_RDWR);
}

static void greet(const luda_joining *j, const candidate *c, luda_frame_kind kind)
{
    uint8_t bytes[LUDA_FRAME_BYTES];
    luda_frame frame = luda__introduction(j, kind, c->channel);
    luda__frame_write(&frame, bytes);
    say(c, bytes, sizeof bytes);
}

static luda_status call(const luda_joining *j, candidate *c)
{
    uint8_t bytes[LUDA_GREETING_BYTES];
    luda_frame frame = luda__introduction(j, LUDA_FRAME_KNOCK, c->channel);
    c->greeted = true;
    if (!j->origin.secret) {
        greet(j, c, LUDA_FRAME_HELLO);
        return LUDA_OK;
    }
    LUDA_TRY(luda__greeting_call(&c->greeting, j->origin.secret, &frame, (uint32_t)c->rank, bytes));
    say(c, bytes, sizeof bytes);
    return LUDA_OK;
}

static void forget(luda_joining *j, candidate *c, bool keep)
{
    if (!keep)
        close(c->fd);
    j->strangers -= !c->outgoing;
    *c = j->candidates[--j->count];
}

static void forget_oldest_stranger(luda_joining *j)
{
    candidate *oldest = NULL;
    for (int i = 0; i < j->count; i++)
        if (!j->candidates[i].outgoing && (!oldest || j->candidates[i].number < oldest->number))
            oldest = &j->candidates[i];
    forget(j, oldest, false);
}

static luda_status call_out(luda_joining *j, int rank, int channel)
{
    char text[80];
    int fd = luda__socket_connect(&j->table[rank]);
    if (fd < 0)
        return luda__fail(LUDA_EPEER, "connect: rank %d cannot be reached at %s: %s", rank,
                          luda__address_text(&j->table[rank], text, sizeof text), strerror(errno));
    j->candidates[j->count++] = (candidate){ .fd = fd, .rank = rank, .channel = channel, .outgoing = true };
    return LUDA_OK;
}

/* Whether a rank that is expected presents itself; sets rank and channel. */
static bool believable(const luda_joining *j, candidate *c, const luda_frame *frame)
{
    if (memcmp(frame->session, j->session, LUDA_SESSION_BYTES) != 0 || frame->size != (uint32_t)j->size ||
        frame->step >= LUDA_CHANNELS)
        return false;
    if (c->outgoing)
        return frame->rank == (uint32_t)c->rank;
    if (frame->rank <= (uint32_t)j->rank || frame->rank >= (uint32_t)j->size ||
        j->connections[frame->rank][frame->step].fd >= 0)
        return false;
    c->rank = (int)frame->rank;
    c->channel = (int)frame->step;
    return true;
}

/* A whole message came. */
static luda_greeted take_message(const luda_joining *j, candidate *c, const luda_frame *frame, luda_seal **seal)
{
    uint8_t answer[LUDA_GREETING_BYTES];
    size_t bytes;
    luda_greeted greeted;
    if (!j->origin.secret) {
        if (frame->kind != (c->outgoing ? LUDA_FRAME_WELCOME : LUDA_FRAME_HELLO) || !believable(j, c, frame))
            return LUDA_GREETED_WRONG;
        if (!c->outgoing)
            greet(j, c, LUDA_FRAME_WELCOME);
        return LUDA_GREETED_DONE;
    }
    if (frame->kind == LUDA_FRAME_KNOCK && !believable(j, c, frame))
        return LUDA_GREETED_WRONG;
    greeted = luda__greeting_take(&c->greeting, frame, c->bytes + LUDA_FRAME_BYTES, answer, &bytes, seal);
    if (bytes > 0)
        say(c, answer, bytes);
    return greeted;
}

/* Of the message that is coming, as far as is known; 0: none of ours. */
static size_t message_bytes(const candidate *c, luda_frame *frame)
{
    if (c->got < LUDA_FRAME_BYTES)
        return LUDA_FRAME_BYTES;
    if (!luda__frame_read(c->bytes, frame) || frame->payload > sizeof c->bytes - LUDA_FRAME_BYTES)
        return 0;
    return LUDA_FRAME_BYTES + (size_t)frame->payload;
}

/* Takes one connection further. One that is forgotten has another in its place afterwards. */
static luda_status advance(luda_joining *j, candidate *c)
{
    luda_greeted greeted = LUDA_GREETED_WRONG;
    luda_frame frame;
    luda_seal *seal = NULL;
    size_t whole;
    ssize_t n;
    if (c->outgoing && !c->greeted) {
        int error = luda__socket_error(c->fd);
        if (error)
            return luda__fail(LUDA_EPEER, "connect: rank %d cannot be reached: %s", c->rank, strerror(error));
        return call(j, c);
    }
    whole = message_bytes(c, &frame);
    n = recv(c->fd, c->bytes + c->got, whole - c->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return LUDA_OK;
    c->got += n > 0 ? (size_t)n : 0;
    whole = luda__frame_starts(c->bytes, c->got) ? message_bytes(c, &frame) : 0;
    if (n > 0 && c->got < whole)
        return LUDA_OK;
    if (n > 0 && whole > 0) {
        c->got = 0;
        greeted = take_message(j, c, &frame, &seal);
    }
    if (greeted == LUDA_GREETED_WRONG) {
        int rank = c->rank, channel = c->channel;
        bool outgoing = c->outgoing;
        forget(j, c, false);
        if (outgoing && n > 0)
            return luda__fail(LUDA_EPEER, "connect: what answers as rank %d is not it", rank);
        /* A rank in a crowd may take this one for a stranger; one that is gone refuses the next connection. */
        if (outgoing)
            usleep(AGAIN_MS * 1000);
        return outgoing ? call_out(j, rank, channel) : LUDA_OK;
    }
    if (greeted == LUDA_GREETED_DONE) {
        /* A second of the same rank and channel came first. */
        bool taken = j->connections[c->rank][c->channel].fd >= 0;
        if (taken)
            luda__seal_release(seal);
        else
            j->connections[c->rank][c->channel] = (luda_connection){ c->fd, seal };
        forget(j, c, !taken);
    }
    return LUDA_OK;
}

/* Where the table is full, or descriptors ran out, the stranger that came first goes. */
static luda_status take_in(luda_joining *j)
{
    luda_status status = LUDA_OK;
    for (int i = 0; i < LUDA_TURN && status == LUDA_OK; i++) {
        int fd = luda__socket_accept(j->listener);
        bool exhausted = fd < 0 && luda__socket_exhausted(errno);
        if (fd < 0 && !exhausted)
            break;
        if (exhausted && j->strangers == 0) {
            j->rest = luda__now() + LUDA_EXHAUSTED_MS / 1000.0;
            break;
        }
        if (exhausted || j->strangers >= STRANGERS + LUDA_CHANNELS * j->size)
            forget_oldest_stranger(j);
        if (fd >= 0) {
            candidate *c = &j->candidates[j->count++];
            *c = (candidate){ .fd = fd, .rank = -1, .number = j->came++ };
            luda__greeting_await(&c->greeting, j->origin.secret, (uint32_t)j->rank);
            j->strangers++;
            status = advance(j, c);
        }
    }
    return status;
}

static bool all_connected(const luda_joining *j, uint8_t *missing)
{
    bool all = true;
    memset(missing, 0, LUDA_MAX_RANKS / 8);
    for (int r = 0; r < j->size; r++)
        for (int i = 0; i < LUDA_CHANNELS; i++)
            if (r != j->rank && j->connections[r][i].fd < 0) {
                missing[r / 8] |= (uint8_t)(1 << (r % 8));
                all = false;
            }
    return all;
}

static luda_status connect_all(luda_joining *j)
{
    uint8_t missing[LUDA_MAX_RANKS / 8];
    luda_status status = LUDA_OK;
    for (int r = 0; r < j->rank; r++)
        for (int i = 0; i < LUDA_CHANNELS; i++)
            LUDA_TRY(call_out(j, r, i));
    while (status == LUDA_OK && !all_connected(j, missing)) {
        double left = j->deadline - luda__now();
        int waiting = j->count;
        bool resting;
        if (left <= 0)
            return luda__late(j, missing, "did not connect");
        for (int i = 0; i < waiting; i++) {
            const candidate *c = &j->candidates[i];
            j->polls[i] = (struct pollfd){ .fd = c->fd, .events = c->outgoing && !c->greeted ? POLLOUT : POLLIN };
        }
        /* A listener that cannot be served would wake us at once, again and again. */
        resting = luda__now() < j->rest;
        j->polls[waiting] = (struct pollfd){ .fd = resting ? -1 : j->listener, .events = POLLIN };
        poll(j->polls, (nfds_t)waiting + 1, (int)fmin(left * 1000 + 1, resting ? LUDA_EXHAUSTED_MS : 1000));
        /* From the end, so that what takes a forgotten one's place was looked at already. */
        for (int i = waiting - 1; i >= 0 && status == LUDA_OK; i--)
            if (j->polls[i].revents)
                status = advance(j, &j->candidates[i]);
        if (j->polls[waiting].revents && status == LUDA_OK)
            status = take_in(j);
    }
    return status;
}

/* --- The whole --- */

static luda_status allocate(luda_joining *j)
{
    size_t size = (size_t)j->size;
    j->most = STRANGERS + 2 * LUDA_CHANNELS * j->size;
    j->table = calloc(size, sizeof *j->table);
    j->connections = calloc(size, sizeof *j->connections);
    j->candidates = calloc((size_t)j->most, sizeof *j->candidates);
    j->polls = calloc((size_t)j->most + 1, sizeof *j->polls);
    if (!j->table || !j->connections || !j->candidates || !j->polls)
        return luda__fail(LUDA_ENOMEM, "connect: no memory for %d ranks", j->size);
    for (size_t r = 0; r < size; r++)
        for (int i = 0; i < LUDA_CHANNELS; i++)
            j->connections[r][i].fd = -1;
    return LUDA_OK;
}

/* Before the mesh opens, which may need the descriptors. */
static void close_door(luda_joining *j)
{
    luda__disconnect(&j->server);
    if (j->listener >= 0)
        close(j->listener);
    for (int i = 0; i < j->count; i++)
        close(j->candidates[i].fd);
}

static void free_all(luda_joining *j, bool connected)
{
    for (int r = 0; r < j->size && j->connections && !connected; r++)
        for (int i = 0; i < LUDA_CHANNELS; i++)
            luda__disconnect(&j->connections[r][i]);
    free(j->polls);
    free(j->candidates);
    free(j->connections);
    free(j->table);
}

luda_status luda__comm_connect(const char *address, const char *session, int rank, int size, luda_secret *secret,
                               const luda_comm_options *options, luda_comm **out)
{
    luda_joining j = { .rank = rank, .size = size, .server.fd = -1, .listener = -1, .origin.secret = secret };
    luda_address server;
    luda_status status;
    bool connected = false;
    if (size < 1 || size > LUDA_MAX_RANKS || rank < 0 || rank >= size)
        return luda__fail(LUDA_EINVAL, "connect: rank %d of %d ranks; up to %d are possible", rank, size,
                          LUDA_MAX_RANKS);
    if (!luda__session_parse(session, j.session))
        return luda__fail(LUDA_EINVAL, "connect: a session is %d hexadecimal digits", 2 * LUDA_SESSION_BYTES);
    LUDA_TRY(luda__address_parse(address, &server));
    if (!secret)
        LUDA_TRY(luda__address_check(&server, "connect"));
    if (size == 1)
        return luda_comm_new_local_group(1, options, out);
    j.timeout = options && options->timeout > 0 ? options->timeout : luda__default_timeout;
    j.deadline = luda__now() + j.timeout;
    LUDA_TRY_OR(status, allocate(&j), done);
    LUDA_TRY_OR(status, luda__meet(&j, &server), done);
    LUDA_TRY_OR(status, connect_all(&j), done);
    connected = true;
done:
    close_door(&j);
    if (connected)
        status = luda__mesh_comm(rank, size, j.connections, &j.origin, options, out);
    free_all(&j, connected);
    return status;
}

luda_status luda_comm_connect(const char *address, const char *session, int rank, int size,
                              const luda_comm_options *options, luda_comm **out)
{
    luda_comm_options given;
    luda_secret *secret;
    luda_status status;
    LUDA_TRY(luda__options(options, &given));
    LUDA_TRY(luda__secret_new(&given, "connect", &secret));
    status = luda__comm_connect(address, session, rank, size, secret, options, out);
    luda__secret_release(secret);
    return status;
}
