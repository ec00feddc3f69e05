/* Sockets: addresses, listening, connecting, whole transfers with a deadline. */
#include "secret.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- Addresses --- */

luda_status luda__address_parse(const char *text, luda_address *out)
{
    char host[256];
    const char *colon = text ? strrchr(text, ':') : NULL;
    char *end;
    long port = colon ? strtol(colon + 1, &end, 10) : -1;
    size_t length = colon ? (size_t)(colon - text) : 0;
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found = NULL;
    int failed;
    if (!colon || length == 0 || length >= sizeof host || end == colon + 1 || *end || port < 0 || port > 65535)
        return luda__fail(LUDA_EINVAL, "address \"%s\": must be host:port, as 127.0.0.1:4000 or [::1]:4000",
                          text ? text : "");
    if (text[0] == '[' && text[length - 1] == ']') {
        text++;
        length -= 2;
    }
    memcpy(host, text, length);
    host[length] = 0;
    failed = getaddrinfo(host, NULL, &hints, &found);
    if (failed)
        return luda__fail(LUDA_EIO, "address \"%s\": %s", host, gai_strerror(failed));
    memset(out, 0, sizeof *out);
    memcpy(&out->storage, found->ai_addr, found->ai_addrlen);
    out->length = found->ai_addrlen;
    freeaddrinfo(found);
    luda__address_set_port(out, (int)port);
    return LUDA_OK;
}

void luda__address_set_port(luda_address *address, int port)
{
    if (address->storage.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&address->storage)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)&address->storage)->sin_port = htons((uint16_t)port);
}

int luda__address_port(const luda_address *address)
{
    if (address->storage.ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)&address->storage)->sin6_port);
    return ntohs(((const struct sockaddr_in *)&address->storage)->sin_port);
}

const char *luda__address_text(const luda_address *address, char *buffer, size_t room)
{
    char host[64] = "?";
    bool six = address->storage.ss_family == AF_INET6;
    const void *bytes = six ? (const void *)&((const struct sockaddr_in6 *)&address->storage)->sin6_addr
                            : (const void *)&((const struct sockaddr_in *)&address->storage)->sin_addr;
    inet_ntop(six ? AF_INET6 : AF_INET, bytes, host, sizeof host);
    snprintf(buffer, room, six ? "[%s]:%d" : "%s:%d", host, luda__address_port(address));
    return buffer;
}

bool luda__address_is_loopback(const luda_address *address)
{
    if (address->storage.ss_family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)&address->storage)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
    }
    return ntohl(((const struct sockaddr_in *)&address->storage)->sin_addr.s_addr) >> 24 == 127;
}

luda_status luda__address_check(const luda_address *address, const char *who)
{
    char text[80];
    if (luda__address_is_loopback(address))
        return LUDA_OK;
    return luda__fail(LUDA_ENOTSUP,
                      "%s: %s is not a loopback address, and without a secret whoever reaches it could join; give all ranks "
                      "the same secret= (luda run --secret-file), or use 127.0.0.1",
                      who, luda__address_text(address, text, sizeof text));
}

void luda__address_write(const luda_address *address, uint8_t bytes[LUDA_ADDRESS_BYTES])
{
    int port = luda__address_port(address);
    memset(bytes, 0, LUDA_ADDRESS_BYTES);
    bytes[0] = address->storage.ss_family == AF_INET6 ? 6 : 4;
    if (bytes[0] == 6)
        memcpy(bytes + 1, &((const struct sockaddr_in6 *)&address->storage)->sin6_addr, 16);
    else
        memcpy(bytes + 1, &((const struct sockaddr_in *)&address->storage)->sin_addr, 4);
    bytes[17] = (uint8_t)port;
    bytes[18] = (uint8_t)(port >> 8);
}

bool luda__address_read(const uint8_t bytes[LUDA_ADDRESS_BYTES], luda_address *out)
{
    memset(out, 0, sizeof *out);
    if (bytes[0] == 6) {
        out->storage.ss_family = AF_INET6;
        out->length = sizeof(struct sockaddr_in6);
        memcpy(&((struct sockaddr_in6 *)&out->storage)->sin6_addr, bytes + 1, 16);
    } else {
        out->storage.ss_family = AF_INET;
        out->length = sizeof(struct sockaddr_in);
        memcpy(&((struct sockaddr_in *)&out->storage)->sin_addr, bytes + 1, 4);
    }
    luda__address_set_port(out, bytes[17] | bytes[18] << 8);
    return bytes[0] == 4 || bytes[0] == 6;
}

/* --- Sockets --- */

static void set_up(int fd)
{
    int yes = 1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

luda_status luda__listen(luda_address *address, int backlog, int *out)
{
    char text[80];
    int yes = 1, error, fd = socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return luda__fail(LUDA_EIO, "network: no socket: %s", strerror(errno));
    set_up(fd);
    /* A port whose last owner's connections are still winding down may be taken again. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, (struct sockaddr *)&address->storage, address->length) != 0 || listen(fd, backlog) != 0) {
        error = errno;
        close(fd);
        luda__address_text(address, text, sizeof text);
        if (error == EADDRINUSE)
            return luda__fail(LUDA_EIO, "network: %s is in use by another program; port 0 takes a free one", text);
        return luda__fail(LUDA_EIO, "network: cannot listen at %s: %s", text, strerror(error));
    }
    address->length = sizeof address->storage;
    getsockname(fd, (struct sockaddr *)&address->storage, &address->length);
    *out = fd;
    return LUDA_OK;
}

int luda__socket_accept(int listener)
{
    int fd = accept(listener, NULL, NULL);
    if (fd >= 0)
        set_up(fd);
    return fd;
}

bool luda__socket_exhausted(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

int luda__socket_connect(const luda_address *address)
{
    int error, fd = socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    set_up(fd);
    if (connect(fd, (const struct sockaddr *)&address->storage, address->length) == 0 || errno == EINPROGRESS)
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

int luda__socket_error(int fd)
{
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    return error;
}

static luda_status ready(int fd, short events, double deadline)
{
    for (;;) {
        struct pollfd p = { .fd = fd, .events = events };
        double left = deadline - luda__now();
        if (left <= 0)
            return luda__fail(LUDA_ETIMEOUT, "network: no answer in time");
        if (poll(&p, 1, (int)fmin(left * 1000 + 1, 1000)) > 0)
            return LUDA_OK;
    }
}

void luda__disconnect(luda_connection *connection)
{
    if (connection->fd >= 0)
        close(connection->fd);
    connection->fd = -1;
    luda__seal_release(connection->seal);
    connection->seal = NULL;
}

luda_status luda__socket_write(const luda_connection *to, const void *bytes, size_t count, double deadline)
{
    const char *at = bytes;
    while (count > 0 || luda__sealed_pending(to->seal)) {
        const struct iovec piece = { (void *)at, count };
        ssize_t sent = luda__sealed_send(to->seal, to->fd, &piece, 1);
        if (sent >= 0) {
            at += sent;
            count -= (size_t)sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            LUDA_TRY(ready(to->fd, POLLOUT, deadline));
        } else if (errno != EINTR) {
            return luda__fail(LUDA_EPEER, "network: %s", strerror(errno));
        }
    }
    return LUDA_OK;
}

luda_status luda__socket_read(const luda_connection *from, void *bytes, size_t count, double deadline)
{
    char *at = bytes;
    while (count > 0) {
        ssize_t got = luda__sealed_recv(from->seal, from->fd, at, count);
        if (got > 0) {
            at += got;
            count -= (size_t)got;
        } else if (got == 0) {
            return luda__fail(LUDA_EPEER, "network: the other side closed the connection");
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            LUDA_TRY(ready(from->fd, POLLIN, deadline));
        } else if (errno == EBADMSG) {
            return luda__fail(LUDA_EPEER, "network: what came was altered or replayed on the way");
        } else if (errno != EINTR) {
            return luda__fail(LUDA_EPEER, "network: %s", strerror(errno));
        }
    }
    return LUDA_OK;
}

/* --- Sessions --- */

bool luda__session_parse(const char *text, uint8_t out[LUDA_SESSION_BYTES])
{
    if (!text || strlen(text) != 2 * LUDA_SESSION_BYTES ||
        strspn(text, "0123456789abcdefABCDEF") != 2 * LUDA_SESSION_BYTES)
        return false;
    for (int i = 0; i < LUDA_SESSION_BYTES; i++) {
        const char pair[3] = { text[2 * i], text[2 * i + 1], 0 };
        out[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return true;
}

luda_status luda__random_bytes(void *bytes, size_t count)
{
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, bytes, count);
    if (fd >= 0)
        close(fd);
    return got == (ssize_t)count ? LUDA_OK : luda__fail(LUDA_EIO, "network: no random numbers from the system");
}
