/* What the tests of rendezvous and strangers share: who knocks, and ranks that join and sum. */
#ifndef LUDA_COLLECTIVE_DOOR_H
#define LUDA_COLLECTIVE_DOOR_H

#include "collective_ranks.h"

#include <collective/net.h>

#include <arpa/inet.h>
#include <errno.h>
#include <sys/resource.h>

static inline int port_of(const luda_rendezvous *home)
{
    return atoi(strrchr(luda_rendezvous_address(home), ':') + 1);
}

/* A connection to a port of this machine. Its end leaves no port waiting, of which ten thousand would be too many. */
static inline int dial(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct linger none = { .l_onoff = 1 };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_port = htons((uint16_t)port);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* True if the other side closes within four seconds; `words` becomes why, if it said so. */
enum { WORDS = 257 };
static inline bool dropped(int fd, char words[WORDS])
{
    struct timeval patience = { .tv_sec = 4 };
    char bytes[LUDA_FRAME_BYTES + WORDS] = "";
    size_t got = 0;
    ssize_t n;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    while ((n = recv(fd, bytes + got, sizeof bytes - 1 - got, 0)) > 0)
        got += (size_t)n;
    memcpy(words, bytes + LUDA_FRAME_BYTES, WORDS);
    return n == 0 || errno == ECONNRESET;
}

typedef struct applicant {
    const char *address, *session;
    int rank, size, delay_ms;
    double timeout;
    luda_status status;
    double seconds; /* until it was in, or knew that it was not */
    luda_comm *comm;
    char text[400];
    double sum; /* of all ranks' numbers from 1, NAN where none was computed */
} applicant;

static inline void *apply(void *opaque)
{
    applicant *a = opaque;
    luda_comm_options options = { .size = sizeof options, .timeout = a->timeout > 0 ? a->timeout : 20 };
    double start;
    pause_ms(a->delay_ms);
    start = luda__now();
    a->sum = NAN;
    a->status = luda_comm_connect(a->address, a->session, a->rank, a->size, &options, &a->comm);
    a->seconds = luda__now() - start;
    if (a->status != LUDA_OK)
        snprintf(a->text, sizeof a->text, "%s", luda_last_error());
    if (a->comm) {
        luda_context *context, *before;
        luda_tensor *x, *y = NULL;
        EXPECT_OK(luda_context_new(&context));
        before = luda_context_use(context);
        x = one(a->rank + 1);
        EXPECT_OK(luda_comm_all_reduce(a->comm, x, LUDA_REDUCE_SUM, &options, &y));
        a->sum = y ? item(y, 0) : NAN;
        luda_tensor_release(x);
        luda_tensor_release(y);
        luda_context_use(before);
        luda_context_release(context);
    }
    return NULL;
}

enum { APPLICANTS = 8 };

static inline void start_applying(pthread_t *threads, applicant *a, int count)
{
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, apply, &a[i]);
}

static inline void end_applying(pthread_t *threads, applicant *a, int count)
{
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        luda_comm_release(a[i].comm);
    }
}

static inline void apply_all(applicant *a, int count)
{
    pthread_t threads[APPLICANTS];
    start_applying(threads, a, count);
    end_applying(threads, a, count);
}

static inline bool in_with_sum(const applicant *a)
{
    return a->status == LUDA_OK && a->sum == a->size * (a->size + 1) / 2;
}

#endif
