/*
 * Loaded before the C library: TCP sockets give one byte at a time, and take one byte of a vector. What greets is small and
 * goes whole into an empty buffer, by send.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_tcp(int fd)
{
    int domain = 0, type = 0;
    socklen_t length = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM &&
           (domain == AF_INET || domain == AF_INET6);
}

static size_t cut(int fd, size_t bytes)
{
    return bytes > 1 && is_tcp(fd) ? 1 : bytes;
}

ssize_t recv(int fd, void *buffer, size_t bytes, int flags)
{
    ssize_t (*next)(int, void *, size_t, int) = (ssize_t(*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv");
    return next(fd, buffer, cut(fd, bytes), flags);
}

ssize_t read(int fd, void *buffer, size_t bytes)
{
    ssize_t (*next)(int, void *, size_t) = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    return next(fd, buffer, cut(fd, bytes));
}

/* The first byte that a vector names. */
static struct msghdr first_byte(const struct msghdr *message, struct iovec *piece)
{
    struct msghdr one = *message;
    size_t at = 0;
    while (at < (size_t)message->msg_iovlen && message->msg_iov[at].iov_len == 0)
        at++;
    if (at < (size_t)message->msg_iovlen) {
        *piece = (struct iovec){ message->msg_iov[at].iov_base, 1 };
        one.msg_iov = piece;
        one.msg_iovlen = 1;
    }
    return one;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t (*next)(int, const struct msghdr *, int) =
        (ssize_t(*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
    struct iovec piece;
    struct msghdr one = is_tcp(fd) ? first_byte(message, &piece) : *message;
    return next(fd, &one, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t (*next)(int, struct msghdr *, int) = (ssize_t(*)(int, struct msghdr *, int))dlsym(RTLD_NEXT, "recvmsg");
    struct iovec piece;
    struct msghdr one = is_tcp(fd) ? first_byte(message, &piece) : *message;
    return next(fd, &one, flags);
}
