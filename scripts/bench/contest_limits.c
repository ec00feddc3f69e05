/*
 * What a sum of all ranks can cost at best. The direct sum: every rank has its buffer in shared memory, rank r sums slice
 * r of all buffers and stores it to all, between two barriers; small ones in one hop. The exchange: as many bytes as that
 * sum moves between ranks, over plain sockets, one each way between two ranks, and nothing is summed.
 */
#include "contest_kinds.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- What ranks share --- */

enum { LINE = 64, SMALL = 64 }; /* floats of a message that takes one hop */

typedef struct place {
    _Alignas(LINE) atomic_long sequence;
    _Alignas(LINE) float data[2][SMALL];
    double mine;
} place;

static struct {
    _Alignas(LINE) atomic_int count;
    _Alignas(LINE) atomic_int turn;
    place places[CONTEST_RANKS];
} *shared;
static float *buffers[CONTEST_RANKS];
static int ranks;
static bool crowded; /* more ranks than cores: who waits lets others run */
static _Thread_local long sequence;

static inline void pause_once(void)
{
    if (crowded)
        sched_yield();
#ifdef __x86_64__
    else
        __builtin_ia32_pause();
#endif
}

static void barrier(void)
{
    int turn = atomic_load_explicit(&shared->turn, memory_order_acquire);
    if (atomic_fetch_add(&shared->count, 1) == ranks - 1) {
        atomic_store(&shared->count, 0);
        atomic_store_explicit(&shared->turn, turn + 1, memory_order_release);
        return;
    }
    while (atomic_load_explicit(&shared->turn, memory_order_acquire) == turn)
        pause_once();
}

static double most(contestant *c, double mine)
{
    double all = mine;
    shared->places[c->rank].mine = mine;
    barrier();
    for (int r = 0; r < ranks; r++)
        all = shared->places[r].mine > all ? shared->places[r].mine : all;
    barrier();
    return all;
}

static void share(int count, size_t bytes)
{
    ranks = count;
    crowded = count > sysconf(_SC_NPROCESSORS_ONLN);
    shared = contest_shared(sizeof *shared);
    for (int r = 0; r < count; r++)
        buffers[r] = contest_shared(bytes + LINE);
}

static float *buffer(contestant *c, size_t count)
{
    (void)count;
    return buffers[c->rank];
}

static void stop(contestant *c)
{
    (void)c;
}

/* --- The direct sum --- */

static void sum_small(int rank, float *x, size_t count)
{
    int half = (int)(++sequence & 1);
    memcpy(shared->places[rank].data[half], x, count * sizeof *x);
    atomic_store_explicit(&shared->places[rank].sequence, sequence, memory_order_release);
    for (int r = 0; r < ranks; r++)
        while (atomic_load_explicit(&shared->places[r].sequence, memory_order_acquire) < sequence)
            pause_once();
    for (size_t i = 0; i < count; i++) {
        float all = shared->places[0].data[half][i];
        for (int r = 1; r < ranks; r++)
            all += shared->places[r].data[half][i];
        x[i] = all;
    }
}

typedef float vector __attribute__((vector_size(64), may_alias));

static void sum(contestant *c, float *x, size_t count)
{
    size_t vectors = (count + 15) / 16, each, from, to;
    if (count <= SMALL) {
        sum_small(c->rank, x, count);
        return;
    }
    each = (vectors + (size_t)ranks - 1) / (size_t)ranks;
    from = each * (size_t)c->rank < vectors ? each * (size_t)c->rank : vectors;
    to = from + each < vectors ? from + each : vectors;
    barrier();
    for (size_t i = from; i < to; i++) {
        vector all = ((vector *)buffers[0])[i];
        for (int r = 1; r < ranks; r++)
            all += ((vector *)buffers[r])[i];
        for (int r = 0; r < ranks; r++)
            ((vector *)buffers[r])[i] = all;
    }
    barrier();
}

static void start_sum(contestant *c)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(c->rank % (int)sysconf(_SC_NPROCESSORS_ONLN), &one);
    sched_setaffinity(0, sizeof one, &one);
    *c = (contestant){ c->rank, c->size, NULL, buffer, sum, most, 0 };
}

const contest_kind contest_sum = { "sum", 0, share, start_sum, stop };
const contest_kind contest_sum_threads = { "sum_threads", 1, share, start_sum, stop };

/* --- The exchange --- */

static int sockets[CONTEST_RANKS][CONTEST_RANKS]; /* [from][to], both ends in turn: what `from` writes and `to` reads */
static int ends[CONTEST_RANKS][CONTEST_RANKS];
static char *incoming;

static void connect_pair(int from, int to)
{
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    bool good = bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0 &&
                getsockname(listener, (struct sockaddr *)&address, &length) == 0;
    sockets[from][to] = socket(AF_INET, SOCK_STREAM, 0);
    good = good && connect(sockets[from][to], (struct sockaddr *)&address, sizeof address) == 0;
    ends[from][to] = accept(listener, NULL, NULL);
    close(listener);
    if (!good || ends[from][to] < 0) {
        perror("exchange");
        exit(1);
    }
    setsockopt(sockets[from][to], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(sockets[from][to], F_SETFL, O_NONBLOCK);
    fcntl(ends[from][to], F_SETFL, O_NONBLOCK);
}

static void prepare_exchange(int count, size_t bytes)
{
    share(count, bytes);
    incoming = contest_shared(bytes);
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++)
            if (a != b)
                connect_pair(a, b);
}

/* One direction of one pair: how much is left of its bytes. */
typedef struct flow {
    int fd;
    bool out;
    char *at;
    size_t left;
} flow;

static bool advance(flow *f)
{
    ssize_t n = f->out ? send(f->fd, f->at, f->left, MSG_NOSIGNAL) : recv(f->fd, f->at, f->left, 0);
    if (n > 0) {
        f->at += n;
        f->left -= (size_t)n;
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        perror("exchange");
        exit(1);
    }
    return n > 0;
}

static void exchange(contestant *c, float *x, size_t count)
{
    enum { SPINS = 200 };
    flow flows[2 * CONTEST_RANKS];
    struct pollfd polls[2 * CONTEST_RANKS];
    int used = 0, open, vain = 0;
    size_t bytes = count * sizeof *x, each = 2 * bytes / (size_t)ranks;
    for (int r = 0; r < ranks; r++)
        if (r != c->rank) {
            flows[used++] = (flow){ sockets[c->rank][r], true, (char *)x, each < bytes ? each : bytes };
            flows[used++] = (flow){ ends[r][c->rank], false, incoming, each < bytes ? each : bytes };
        }
    do {
        bool moved = false;
        open = 0;
        for (int i = 0; i < used; i++) {
            if (flows[i].left > 0)
                moved |= advance(&flows[i]);
            if (flows[i].left > 0)
                polls[open++] = (struct pollfd){ .fd = flows[i].fd, .events = flows[i].out ? POLLOUT : POLLIN };
        }
        vain = moved ? 0 : vain + 1;
        if (open > 0 && (crowded ? vain > 0 : vain > SPINS))
            poll(polls, (nfds_t)open, -1);
    } while (open > 0);
}

static void start_exchange(contestant *c)
{
    *c = (contestant){ c->rank, c->size, NULL, buffer, exchange, most, 1 };
}

const contest_kind contest_exchange = { "exchange", 0, prepare_exchange, start_exchange, stop };
