/*
 * Messages between processes: texts with their length in front, over TCP. A post listens, or calls, or both; the thread that
 * receives looks after all of its connections, and another one may stop it.
 */
#include "host.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEADER = 8, MOST_BYTES = 4 << 20, STRANGERS = 256, CHUNK = 16384 };
static const uint8_t MAGIC[4] = { 'L', 'P', 'S', '1' };
/* Seconds: for a stranger's first words that make the owner keep it; without a descriptor to give. */
static const double PATIENCE = 5, PAUSE = 0.1;

typedef struct bytes {
    uint8_t *at;
    size_t used, room;
} bytes;

typedef struct line {
    int fd, number;
    bool kept, leaving, ended;
    double since;
    bytes in, out;
} line;

struct luda_post {
    atomic_int references;
    atomic_bool stopped;
    int listener, bell; /* the bell wakes the receiver */
    double pause; /* until then nobody is let in */
    char address[80];
    int lines_made, count, room;
    line *lines;
    struct pollfd *polls; /* [room + 2] */
    bytes lent; /* the message that was received last */
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static bool append(bytes *b, const void *data, size_t size)
{
    if (b->used + size > b->room) {
        size_t room = 2 * b->room > b->used + size ? 2 * b->room : b->used + size;
        uint8_t *at = realloc(b->at, room);
        if (!at)
            return false;
        b->at = at;
        b->room = room;
    }
    memcpy(b->at + b->used, data, size);
    b->used += size;
    return true;
}

static void consume(bytes *b, size_t size)
{
    memmove(b->at, b->at + size, b->used - size);
    b->used -= size;
}

/* --- Addresses --- */

static luda_status resolve(const char *text, const char *op, struct sockaddr_storage *out, socklen_t *length)
{
    char host[256];
    const char *colon = strrchr(text, ':');
    size_t size = colon ? (size_t)(colon - text) : 0;
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV }, *found = NULL;
    bool bracketed = size > 2 && text[0] == '[' && text[size - 1] == ']', loopback;
    if (size == 0 || size >= sizeof host)
        return luda__host_fail(LUDA_EINVAL, "%s: address \"%s\" must be host:port, as 127.0.0.1:4000 or [::1]:4000", op, text);
    snprintf(host, sizeof host, "%.*s", (int)(size - 2 * bracketed), text + bracketed);
    int failed = getaddrinfo(host, colon + 1, &hints, &found);
    if (failed)
        return luda__host_fail(LUDA_EINVAL, "%s: address \"%s\": %s", op, text, gai_strerror(failed));
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *length = found->ai_addrlen;
    freeaddrinfo(found);
    loopback = out->ss_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)out)->sin6_addr)
                                          : ntohl(((struct sockaddr_in *)out)->sin_addr.s_addr) >> 24 == 127;
    if (!loopback)
        return luda__host_fail(LUDA_ENOTSUP, "%s: %s is not a loopback address, and messages are neither encrypted nor "
                                             "authenticated; use 127.0.0.1, and ssh to carry its ports between hosts", op, text);
    return LUDA_OK;
}

static void write_address(luda_post *post)
{
    struct sockaddr_storage storage;
    socklen_t length = sizeof storage;
    char host[64], port[16];
    getsockname(post->listener, (struct sockaddr *)&storage, &length);
    getnameinfo((struct sockaddr *)&storage, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(post->address, sizeof post->address, storage.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/* --- Connections --- */

static line *find(luda_post *post, int number)
{
    for (int i = 0; i < post->count; i++)
        if (post->lines[i].number == number && !post->lines[i].leaving)
            return &post->lines[i];
    return NULL;
}

static void forget(luda_post *post, line *gone)
{
    close(gone->fd);
    free(gone->in.at);
    free(gone->out.at);
    *gone = post->lines[--post->count];
}

/* Takes over the socket, also on failure. */
static luda_status take(luda_post *post, int fd, int *number)
{
    int yes = 1, idle = 30, interval = 10, probes = 3;
    if (post->count == post->room) {
        int room = post->room ? 2 * post->room : 8;
        struct pollfd *polls = realloc(post->polls, (size_t)(room + 2) * sizeof *polls);
        line *lines = polls ? realloc(post->lines, (size_t)room * sizeof *lines) : NULL;
        post->polls = polls ? polls : post->polls;
        if (!lines) {
            close(fd);
            return luda__host_fail(LUDA_ENOMEM, "post: no memory for a connection");
        }
        post->lines = lines;
        post->room = room;
    }
    /* A host that vanished without a word is noticed after a minute. */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    *number = ++post->lines_made;
    post->lines[post->count++] = (line){ .fd = fd, .number = *number, .since = now() };
    return LUDA_OK;
}

/* Of more than so many strangers the oldest goes: one of ours says who it is at once. False where there is none. */
static bool make_room(luda_post *post, int most)
{
    line *oldest = NULL;
    int strangers = 0;
    for (int i = 0; i < post->count; i++) {
        line *l = &post->lines[i];
        if (l->kept || l->ended)
            continue;
        strangers++;
        if (!oldest || l->since < oldest->since)
            oldest = l;
    }
    if (strangers <= most)
        return false;
    shutdown(oldest->fd, SHUT_RDWR);
    oldest->ended = true; /* and is forgotten when the receiver has heard of it */
    return true;
}

static void let_in(luda_post *post)
{
    int fd, number;
    while ((fd = accept4(post->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
        if (take(post, fd, &number) == LUDA_OK)
            make_room(post, STRANGERS);
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        make_room(post, 0);
        post->pause = now() + PAUSE;
    }
}

static void flush(line *l)
{
    while (l->out.used > 0 && !l->ended) {
        ssize_t sent = send(l->fd, l->out.at, l->out.used, MSG_NOSIGNAL);
        if (sent > 0)
            consume(&l->out, (size_t)sent);
        else if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        else
            l->ended = true;
    }
    if (l->leaving && l->out.used == 0)
        shutdown(l->fd, SHUT_WR);
}

static size_t message_bytes(const line *l)
{
    const uint8_t *h = l->in.at;
    return (size_t)h[4] | (size_t)h[5] << 8 | (size_t)h[6] << 16 | (size_t)h[7] << 24;
}

static void read_some(line *l)
{
    uint8_t chunk[CHUNK];
    ssize_t got = recv(l->fd, chunk, sizeof chunk, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0 || (!l->leaving && !append(&l->in, chunk, (size_t)got)))
        l->ended = true;
}

/* --- Receiving --- */

/* Whether what has come is a whole message; ends a connection that speaks another language. */
static bool whole(line *l)
{
    if (l->leaving || l->in.used == 0)
        return false;
    if (memcmp(l->in.at, MAGIC, l->in.used < 4 ? l->in.used : 4) != 0 ||
        (l->in.used >= HEADER && message_bytes(l) > MOST_BYTES)) {
        l->ended = true;
        return false;
    }
    return l->in.used >= HEADER && l->in.used - HEADER >= message_bytes(l);
}

/* A whole message, or the end of a connection, that is there already. */
static bool next_event(luda_post *post, int *from, const char **text, size_t *size)
{
    for (int i = 0; i < post->count; i++) {
        line *l = &post->lines[i];
        if (whole(l)) {
            size_t bytes = message_bytes(l);
            post->lent.used = 0;
            if (append(&post->lent, l->in.at + HEADER, bytes) && append(&post->lent, "", 1)) {
                consume(&l->in, HEADER + bytes);
                *from = l->number;
                *text = (const char *)post->lent.at;
                *size = bytes;
                return true;
            }
            l->ended = true;
        }
        if (l->ended || (!l->kept && now() > l->since + PATIENCE)) {
            bool told = !l->leaving;
            *from = l->number;
            *text = NULL;
            *size = 0;
            forget(post, l);
            if (told)
                return true;
            i--;
        }
    }
    return false;
}

/* The first two places are the bell's and the listener's. False when a signal came. */
static bool look(luda_post *post, double seconds)
{
    double limit = post->count > 0 || post->pause > 0 ? PAUSE : 3600;
    post->polls[0] = (struct pollfd){ .fd = post->bell, .events = POLLIN };
    post->polls[1] = (struct pollfd){ .fd = now() < post->pause ? -1 : post->listener, .events = POLLIN };
    for (int i = 0; i < post->count; i++)
        post->polls[i + 2] = (struct pollfd){
            .fd = post->lines[i].fd, .events = post->lines[i].out.used > 0 ? POLLIN | POLLOUT : POLLIN
        };
    seconds = seconds < limit ? seconds : limit;
    if (poll(post->polls, (nfds_t)post->count + 2, seconds > 0 ? (int)(seconds * 1000) + 1 : 0) < 0)
        return errno != EINTR;
    for (int i = 0; i < post->count; i++) {
        if (post->polls[i + 2].revents & POLLOUT)
            flush(&post->lines[i]);
        if (post->polls[i + 2].revents & ~POLLOUT)
            read_some(&post->lines[i]);
    }
    if (post->polls[1].revents)
        let_in(post);
    return true;
}

static luda_status cancelled(const char *op)
{
    return luda__host_fail(LUDA_ECANCELLED, "%s: the post was stopped", op);
}

/* --- Public --- */

luda_status luda_post_new(luda_post **out)
{
    luda_post *post = calloc(1, sizeof *post);
    if (!post || !(post->polls = calloc(2, sizeof *post->polls))) {
        free(post);
        return luda__host_fail(LUDA_ENOMEM, "post: no memory");
    }
    atomic_init(&post->references, 1);
    atomic_init(&post->stopped, false);
    post->listener = -1;
    post->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (post->bell < 0) {
        luda_post_release(post);
        return luda__host_fail(LUDA_EIO, "post: no descriptor: %s", strerror(errno));
    }
    *out = post;
    return LUDA_OK;
}

void luda_post_retain(luda_post *post)
{
    atomic_fetch_add(&post->references, 1);
}

void luda_post_release(luda_post *post)
{
    if (!post || atomic_fetch_sub(&post->references, 1) != 1)
        return;
    while (post->count > 0)
        forget(post, &post->lines[0]);
    if (post->listener >= 0)
        close(post->listener);
    if (post->bell >= 0)
        close(post->bell);
    free(post->lent.at);
    free(post->lines);
    free(post->polls);
    free(post);
}

luda_status luda_post_listen(luda_post *post, const char *address)
{
    struct sockaddr_storage storage;
    socklen_t length;
    int yes = 1;
    luda_status status = resolve(address, "orchestrator", &storage, &length);
    if (status != LUDA_OK)
        return status;
    int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (fd < 0 || bind(fd, (struct sockaddr *)&storage, length) != 0 || listen(fd, 1024) != 0) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return luda__host_fail(LUDA_EIO, "orchestrator: cannot listen at %s: %s%s", address, strerror(error),
                               error == EADDRINUSE ? "; port 0 takes a free one" : "");
    }
    post->listener = fd;
    write_address(post);
    return LUDA_OK;
}

const char *luda_post_address(const luda_post *post)
{
    return post->address;
}

luda_status luda_post_connect(luda_post *post, const char *address, double timeout, int *to)
{
    struct sockaddr_storage storage;
    socklen_t length;
    double deadline = now() + timeout;
    luda_status status = resolve(address, "register", &storage, &length);
    if (status != LUDA_OK)
        return status;
    int error = 0, fd = socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || (connect(fd, (struct sockaddr *)&storage, length) != 0 && errno != EINPROGRESS))
        error = errno;
    while (!error && !atomic_load(&post->stopped)) {
        struct pollfd polls[2] = { { .fd = post->bell, .events = POLLIN }, { .fd = fd, .events = POLLOUT } };
        double left = deadline - now();
        socklen_t size = sizeof error;
        if (left <= 0)
            error = ETIMEDOUT;
        else if (poll(polls, 2, left < 3600 ? (int)(left * 1000) + 1 : 3600000) > 0 && polls[1].revents) {
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
            if (!error)
                return take(post, fd, to);
        }
    }
    if (fd >= 0)
        close(fd);
    return error ? luda__host_fail(LUDA_EIO, "register: %s: %s", address, strerror(error)) : cancelled("register");
}

luda_status luda_post_send(luda_post *post, int to, const char *text, size_t size)
{
    line *l = find(post, to);
    uint8_t header[HEADER] = { MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3] };
    if (!l || l->ended)
        return luda__host_fail(LUDA_EPEER, "post: connection %d has ended", to);
    if (size > MOST_BYTES || l->out.used > 2 * MOST_BYTES)
        return luda__host_fail(LUDA_EINVAL, "post: a message of %zu bytes; %d are possible", size, MOST_BYTES);
    for (int i = 0; i < 4; i++)
        header[4 + i] = (uint8_t)(size >> (8 * i));
    if (!append(&l->out, header, HEADER) || !append(&l->out, text, size))
        l->ended = true; /* half a message is none */
    flush(l);
    return LUDA_OK;
}

luda_status luda_post_receive(luda_post *post, double timeout, int *from, const char **text, size_t *size)
{
    double deadline = now() + timeout;
    for (;;) {
        if (atomic_load(&post->stopped))
            return cancelled("receive");
        if (next_event(post, from, text, size))
            return LUDA_OK;
        if (now() >= deadline || !look(post, deadline - now()))
            return luda__host_fail(LUDA_ETIMEOUT, "receive: nothing came within %g s", timeout);
    }
}

void luda_post_keep(luda_post *post, int who)
{
    line *l = find(post, who);
    if (l)
        l->kept = true;
}

void luda_post_drop(luda_post *post, int who)
{
    line *l = find(post, who);
    if (!l)
        return;
    l->leaving = true;
    l->kept = false;
    l->since = now();
    flush(l);
}

void luda_post_stop(luda_post *post)
{
    uint64_t one = 1;
    atomic_store(&post->stopped, true);
    if (write(post->bell, &one, sizeof one) < 0)
        return; /* it rings already */
}
