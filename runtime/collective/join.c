/*
 * Joining: a rank says who it is at the rendezvous, learns where the others listen, and connects to those before it while
 * those after it connect to it. All with one deadline, in the caller's thread; the mesh takes over the sockets.
 */
#include "lane.h"
#include "secret.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STRANGERS = 256, RETRY_MS = 50, ANSWER_BYTES = LUDA_ADDRESS_BYTES * LUDA_MAX_RANKS + 1 };

/* A connection that is not part of the mesh yet. */
typedef struct candidate {
    int fd, rank, channel; /* rank -1: came in, and has not said */
    bool outgoing, greeted;
    size_t got;
    uint8_t bytes[LUDA_GREETING_BYTES];
    luda_greeting greeting; /* where there is a secret */
} candidate;

typedef struct joining {
    int rank, size, port, channels, listener;
    luda_connection server;
    double timeout, deadline;
    uint8_t session[LUDA_SESSION_BYTES];
    luda_origin origin;
    luda_address *table;                           /* [size] */
    luda_connection (*connections)[LUDA_CHANNELS]; /* [size] */
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
            j->server.fd = fd;
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

/* The payload is followed by a zero. */
static luda_status read_answer(joining *j, luda_frame *frame, uint8_t payload[ANSWER_BYTES])
{
    uint8_t header[LUDA_FRAME_BYTES];
    LUDA_TRY(luda__socket_read(&j->server, header, sizeof header, j->deadline));
    if (!luda__frame_read(header, frame) || frame->payload >= ANSWER_BYTES)
        return luda__fail(LUDA_EPEER, "connect: something else than a rendezvous answers at that address");
    LUDA_TRY(luda__socket_read(&j->server, payload, frame->payload, j->deadline));
    payload[frame->payload] = 0;
    if (frame->kind == LUDA_FRAME_REFUSE)
        return luda__fail(LUDA_EMISMATCH, "connect: rank %d is turned away: %s", j->rank, (char *)payload);
    return LUDA_OK;
}

/* What this rank says of itself, on every connection. */
static luda_frame introduction(const joining *j, luda_frame_kind kind, int channel)
{
    luda_frame frame = {
        .kind = kind, .rank = (uint32_t)j->rank, .size = (uint32_t)j->size, .step = (uint32_t)channel
    };
    memcpy(frame.session, j->session, LUDA_SESSION_BYTES);
    return frame;
}

static luda_status greet_server(joining *j)
{
    uint8_t message[LUDA_GREETING_BYTES], payload[ANSWER_BYTES];
    size_t bytes = sizeof message;
    luda_greeting greeting;
    luda_frame frame = introduction(j, LUDA_FRAME_KNOCK, 0);
    LUDA_TRY(luda__greeting_call(&greeting, j->origin.secret, &frame, LUDA_ANSWERER_SERVER, message));
    while (bytes > 0) {
        luda_status status;
        LUDA_TRY(luda__socket_write(&j->server, message, bytes, j->deadline));
        status = read_answer(j, &frame, payload);
        if (status == LUDA_ETIMEOUT)
            return luda__fail(status, "connect: timed out after %g s: the rendezvous does not answer", j->timeout);
        if (status != LUDA_OK)
            return status;
        if (luda__greeting_take(&greeting, &frame, payload, message, &bytes, &j->server.seal) == LUDA_GREETED_WRONG)
            return luda__fail(LUDA_EPEER, "connect: what answers at that address does not know the secret");
    }
    return LUDA_OK;
}

static luda_status say_join(joining *j)
{
    uint8_t bytes[LUDA_FRAME_BYTES + 2];
    luda_frame frame = introduction(j, LUDA_FRAME_JOIN, 0);
    luda_address here = { .length = sizeof here.storage };
    getsockname(j->server.fd, (struct sockaddr *)&here.storage, &here.length);
    luda__address_set_port(&here, 0);
    j->origin.here = here;
    luda__address_set_port(&here, j->port);
    LUDA_TRY(luda__listen(&here, 2 * j->size, &j->listener));
    frame.payload = 2;
    frame.slot = (uint32_t)(j->channels - 1);
    luda__frame_write(&frame, bytes);
    bytes[LUDA_FRAME_BYTES] = (uint8_t)luda__address_port(&here);
    bytes[LUDA_FRAME_BYTES + 1] = (uint8_t)(luda__address_port(&here) >> 8);
    return luda__socket_write(&j->server, bytes, sizeof bytes, j->deadline);
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

/* An address that ranks on other hosts, or strangers, would understand otherwise. */
static luda_status check_address(const joining *j, int rank)
{
    char text[80];
    if (!j->origin.secret)
        return luda__address_check(&j->table[rank], "connect");
    if (luda__address_is_loopback(&j->table[rank]) == luda__address_is_loopback(&j->origin.here))
        return LUDA_OK;
    return luda__fail(LUDA_EMISMATCH,
                      "connect: rank %d joined from %s, which the others cannot reach; all ranks must use the rendezvous's "
                      "address in the network, or all its loopback address",
                      luda__address_is_loopback(&j->table[rank]) ? rank : j->rank,
                      luda__address_text(luda__address_is_loopback(&j->table[rank]) ? &j->table[rank] : &j->origin.here,
                                         text, sizeof text));
}

static luda_status wait_for_all(joining *j)
{
    uint8_t payload[ANSWER_BYTES], missing[LUDA_MAX_RANKS / 8] = { 0 };
    luda_frame frame;
    for (;;) {
        luda_status status = read_answer(j, &frame, payload);
        if (status == LUDA_ETIMEOUT)
            return late(j, missing, "did not join");
        if (status != LUDA_OK)
            return status;
        if (frame.kind == LUDA_FRAME_MISSING && frame.payload == sizeof missing)
            memcpy(missing, payload, sizeof missing);
        if (frame.kind == LUDA_FRAME_READY && frame.payload == (uint64_t)j->size * LUDA_ADDRESS_BYTES)
            break;
    }
    for (int r = 0; r < j->size; r++) {
        if (!luda__address_read(payload + r * LUDA_ADDRESS_BYTES, &j->table[r]))
            return luda__fail(LUDA_ECORRUPT, "connect: the rendezvous sent no address of rank %d", r);
        LUDA_TRY(check_address(j, r));
    }
    return LUDA_OK;
}

/* --- Between ranks --- */

/* Into an empty buffer; what does not fit there breaks the handshake, which the deadline reports. */
static void say(const candidate *c, const uint8_t *bytes, size_t count)
{
    if (send(c->fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        shutdown(c->fd, SHUT_RDWR);
}

static void greet(const joining *j, const candidate *c, luda_frame_kind kind)
{
    uint8_t bytes[LUDA_FRAME_BYTES];
    luda_frame frame = introduction(j, kind, c->channel);
    luda__frame_write(&frame, bytes);
    say(c, bytes, sizeof bytes);
}

static luda_status call(const joining *j, candidate *c)
{
    uint8_t bytes[LUDA_GREETING_BYTES];
    luda_frame frame = introduction(j, LUDA_FRAME_KNOCK, c->channel);
    c->greeted = true;
    if (!j->origin.secret) {
        greet(j, c, LUDA_FRAME_HELLO);
        return LUDA_OK;
    }
    LUDA_TRY(luda__greeting_call(&c->greeting, j->origin.secret, &frame, (uint32_t)c->rank, bytes));
    say(c, bytes, sizeof bytes);
    return LUDA_OK;
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
        if (j->strangers >= STRANGERS + j->channels * j->size) {
            close(fd);
            continue;
        }
        j->candidates[j->count] = (candidate){ .fd = fd, .rank = -1 };
        luda__greeting_await(&j->candidates[j->count++].greeting, j->origin.secret, (uint32_t)j->rank);
        j->strangers++;
    }
}

/* Whether a rank that is expected presents itself; sets rank and channel. */
static bool believable(const joining *j, candidate *c, const luda_frame *frame)
{
    if (memcmp(frame->session, j->session, LUDA_SESSION_BYTES) != 0 || frame->size != (uint32_t)j->size ||
        frame->step >= (uint32_t)j->channels)
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
static luda_greeted take_message(const joining *j, candidate *c, const luda_frame *frame, luda_seal **seal)
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
static luda_status advance(joining *j, candidate *c)
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
    whole = message_bytes(c, &frame);
    if (n > 0 && c->got < whole)
        return LUDA_OK;
    if (n > 0 && whole > 0) {
        c->got = 0;
        greeted = take_message(j, c, &frame, &seal);
    }
    if (greeted == LUDA_GREETED_WRONG) {
        if (c->outgoing)
            return luda__fail(LUDA_EPEER, n > 0 ? "connect: what answers as rank %d is not it"
                                                : "connect: rank %d closed the connection", c->rank);
        forget(j, c, false);
    } else if (greeted == LUDA_GREETED_DONE) {
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

static bool all_connected(const joining *j, uint8_t *missing)
{
    bool all = true;
    memset(missing, 0, LUDA_MAX_RANKS / 8);
    for (int r = 0; r < j->size; r++)
        for (int i = 0; i < j->channels; i++)
            if (r != j->rank && j->connections[r][i].fd < 0) {
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
        for (int i = 0; i < j->channels; i++)
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

static luda_status choose_channels(joining *j, const luda_comm_options *options)
{
    const char *wish = getenv("LUDA_CONNECTIONS");
    luda_comm_options given;
    int chosen;
    LUDA_TRY(luda__options(options, &given));
    chosen = given.connections ? given.connections : wish ? atoi(wish) : 1;
    if (chosen < 1 || chosen > LUDA_MOST_CONNECTIONS)
        return luda__fail(LUDA_EINVAL, "connect: %d connections; 1 to %d are possible", chosen, LUDA_MOST_CONNECTIONS);
    j->channels = 1 + chosen;
    return LUDA_OK;
}

static luda_status allocate(joining *j)
{
    size_t size = (size_t)j->size;
    j->most = STRANGERS + 2 * j->channels * j->size;
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

static void clean_up(joining *j, bool connected)
{
    luda__disconnect(&j->server);
    if (j->listener >= 0)
        close(j->listener);
    for (int i = 0; i < j->count; i++)
        close(j->candidates[i].fd);
    for (int r = 0; r < j->size && j->connections && !connected; r++)
        for (int i = 0; i < j->channels; i++)
            luda__disconnect(&j->connections[r][i]);
    free(j->polls);
    free(j->candidates);
    free(j->connections);
    free(j->table);
}

luda_status luda__comm_connect(const char *address, const char *session, int rank, int size, luda_secret *secret,
                               const luda_comm_options *options, luda_comm **out)
{
    joining j = { .rank = rank, .size = size, .server.fd = -1, .listener = -1, .origin.secret = secret };
    luda_comm_options chosen;
    luda_address server;
    luda_status status;
    luda_comm *comm = NULL;
    bool connected = false;
    if (size < 1 || size > LUDA_MAX_RANKS || rank < 0 || rank >= size)
        return luda__fail(LUDA_EINVAL, "connect: rank %d of %d ranks; up to %d are possible", rank, size,
                          LUDA_MAX_RANKS);
    if (!luda__session_parse(session, j.session))
        return luda__fail(LUDA_EINVAL, "connect: a session is %d hexadecimal digits", 2 * LUDA_SESSION_BYTES);
    LUDA_TRY(luda__options(options, &chosen));
    if (chosen.port < 0 || chosen.port > 65535)
        return luda__fail(LUDA_EINVAL, "connect: port %d; 0 to 65535 are possible", chosen.port);
    j.port = chosen.port;
    LUDA_TRY(luda__address_parse(address, &server));
    if (!secret)
        LUDA_TRY(luda__address_check(&server, "connect"));
    LUDA_TRY(choose_channels(&j, options));
    if (size == 1)
        return luda_comm_new_local_group(1, options, out);
    j.timeout = chosen.timeout > 0 ? chosen.timeout : luda__default_timeout;
    j.deadline = luda__now() + j.timeout;
    LUDA_TRY_OR(status, allocate(&j), done);
    LUDA_TRY_OR(status, reach(&j, &server), done);
    if (secret)
        LUDA_TRY_OR(status, greet_server(&j), done);
    LUDA_TRY_OR(status, say_join(&j), done);
    LUDA_TRY_OR(status, wait_for_all(&j), done);
    LUDA_TRY_OR(status, connect_all(&j), done);
    connected = true;
    status = luda__mesh_comm(rank, size, j.channels, j.connections, &j.origin, options, &comm);
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
