/*
 * Somebody on the wire between two ranks, who changes, repeats, drops, swaps, inserts, cuts and listens; and at the
 * rendezvous those who do not know the secret. The ranks are threads of this program, whose connect() leads them astray.
 */
#include "collective_joiners.h"

#include "../../runtime/collective/secret.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>

/* --- The intruder: between rank 1, which calls, and rank 0, which answers --- */

enum { TAG = 16, COUNT = 100000, SENT = 20000 }; /* elements of the all_reduce; of each tensor that is sent */
/* A sent tensor on the wire: a frame that says what comes, and one with the values, in parts. */
enum { PARTS = (SENT * 4 + LUDA_SEAL_BYTES - 1) / LUDA_SEAL_BYTES };
enum { TENSOR = 2 * (LUDA_FRAME_BYTES + TAG) + 8 + 8 * LUDA_MAX_DIMS + TAG + SENT * 4 + PARTS * TAG };

typedef enum deed { NOTHING, FLIP, INSERT, CUT, DROP, REPEAT, SWAP, SWALLOW } deed;

static struct {
    bool active;         /* connections between ranks are led here */
    uint32_t channel;    /* which of them is worked on */
    bool to_caller;      /* and in which direction */
    deed what;
    size_t at;           /* FLIP, CUT: counted from when the call began */
    atomic_int ready;    /* ranks that have met, so that nothing is on its way */
    atomic_bool armed;   /* the call begins */
    atomic_bool suffered; /* and has failed */
} plan;

static uint8_t heard[1 << 21]; /* everything that went over the wire, but for what came when this was full */
static size_t heard_bytes;
static pthread_mutex_t hearing = PTHREAD_MUTEX_INITIALIZER;

/* One direction of a connection. */
typedef struct flow {
    int from, to;
    uint32_t channel;
    bool to_caller, begun, cut;
    size_t seen; /* since it was armed */
    uint8_t *held;
    size_t held_bytes;
} flow;

static void pass_on(const flow *f, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        ssize_t n = send(f->to, bytes, count, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        bytes += n;
        count -= (size_t)n;
    }
}

/* What becomes of two tensors, or of one and the beginning of the next. */
static void reorder(flow *f)
{
    const uint8_t *first = f->held, *second = f->held + TENSOR;
    if (plan.what == REPEAT)
        pass_on(f, first, TENSOR);
    if (plan.what == SWAP)
        pass_on(f, second, f->held_bytes - TENSOR);
    if (plan.what == SWAP || plan.what == REPEAT)
        pass_on(f, first, TENSOR);
    if (plan.what != SWAP)
        pass_on(f, second, f->held_bytes - TENSOR);
    free(f->held);
    f->held = NULL;
}

static void meddle(flow *f, uint8_t *bytes, size_t count)
{
    size_t from = f->seen;
    bool mine = f->channel == plan.channel && f->to_caller == plan.to_caller;
    pthread_mutex_lock(&hearing);
    if (heard_bytes + count <= sizeof heard) {
        memcpy(heard + heard_bytes, bytes, count);
        heard_bytes += count;
    }
    pthread_mutex_unlock(&hearing);
    if (!mine || !atomic_load(&plan.armed) || plan.what == NOTHING || f->cut) {
        if (!f->cut)
            pass_on(f, bytes, count);
        return;
    }
    f->seen += count;
    if (plan.what == SWALLOW)
        return;
    if (plan.what == INSERT && from == 0)
        pass_on(f, (const uint8_t *)"\x4c\x55\x44\x41 a stranger's word", 20);
    if (plan.what == CUT && f->seen > plan.at) {
        pass_on(f, bytes, plan.at - from);
        shutdown(f->to, SHUT_RDWR);
        shutdown(f->from, SHUT_RDWR);
        f->cut = true;
        return;
    }
    if (plan.what == FLIP && plan.at >= from && plan.at < f->seen)
        bytes[plan.at - from] ^= 0x04;
    if (plan.what != DROP && plan.what != REPEAT && plan.what != SWAP) {
        pass_on(f, bytes, count);
        return;
    }
    if (from > 0 && !f->held) {
        pass_on(f, bytes, count);
        return;
    }
    f->held = realloc(f->held, f->held_bytes + count);
    memcpy(f->held + f->held_bytes, bytes, count);
    f->held_bytes += count;
    if (f->held_bytes >= (plan.what == SWAP ? 2 * TENSOR : TENSOR + 1))
        reorder(f);
}

typedef struct relay { int listener; struct sockaddr_in to; } relay;

static void *run_relay(void *opaque)
{
    static const size_t room = 1 << 16;
    relay *r = opaque;
    uint8_t *bytes = malloc(room);
    int caller = accept(r->listener, NULL, NULL), answerer = socket(AF_INET, SOCK_STREAM, 0);
    syscall(SYS_connect, answerer, &r->to, sizeof r->to);
    flow flows[2] = { { .from = caller, .to = answerer }, { .from = answerer, .to = caller, .to_caller = true } };
    for (int open = 2; open > 0;) {
        struct pollfd polls[2] = { { .fd = flows[0].from, .events = POLLIN }, { .fd = flows[1].from, .events = POLLIN } };
        poll(polls, 2, -1);
        for (int i = 0; i < 2; i++) {
            ssize_t n = flows[i].from >= 0 && polls[i].revents ? recv(flows[i].from, bytes, room, 0) : -2;
            if (n > 0) {
                if (!flows[i].begun && i == 0) /* the first words say which channel this is */
                    flows[0].channel = flows[1].channel = bytes[32];
                flows[i].begun = true;
                meddle(&flows[i], bytes, (size_t)n);
            } else if (n > -2) {
                shutdown(flows[i].to, SHUT_WR);
                flows[i].from = -1;
                open--;
            }
        }
    }
    for (int i = 0; i < 2; i++)
        free(flows[i].held);
    close(caller);
    close(answerer);
    close(r->listener);
    free(bytes);
    free(r);
    return NULL;
}

static pthread_t relays[64];
static atomic_int relay_count;

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof here;
    relay *r;
    if (!plan.active)
        return (int)syscall(SYS_connect, fd, address, length);
    r = malloc(sizeof *r);
    memcpy(&r->to, address, sizeof r->to);
    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT(bind(r->listener, (struct sockaddr *)&here, sizeof here) == 0 && listen(r->listener, 1) == 0);
    getsockname(r->listener, (struct sockaddr *)&here, &bytes);
    pthread_create(&relays[atomic_fetch_add(&relay_count, 1)], NULL, run_relay, r);
    return (int)syscall(SYS_connect, fd, &here, sizeof here);
}

/* --- Something is done to what one rank sends to the other --- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static luda_tensor *ramp(int64_t n, int rank)
{
    luda_tensor *x = NULL;
    EXPECT_OK(luda_tensor_new(LUDA_F32, cpu, 1, &n, &x));
    for (int64_t i = 0; i < n; i++)
        ((float *)luda_tensor_data(x))[i] = (float)(i % 1000 * (rank + 1));
    return x;
}

/* `factor` times the ramp of rank 0. */
static bool is_ramp(const luda_tensor *x, int64_t n, int factor)
{
    bool right = luda_tensor_numel(x) == n;
    for (int64_t i = 0; right && i < n; i++)
        right = ((const float *)luda_tensor_data((luda_tensor *)x))[i] == (float)(i % 1000 * factor);
    return right;
}

static int sender(void)
{
    return plan.to_caller ? 0 : 1;
}

/* An all_reduce, or two tensors from one to the other. */
static luda_status exchange(luda_comm *comm, int rank)
{
    luda_comm_options options = { .size = sizeof options, .timeout = plan.what == SWALLOW ? 0.3 : 10 };
    luda_status status = LUDA_OK;
    luda_tensor *x, *y = NULL;
    if (plan.what < DROP) {
        x = ramp(COUNT, rank);
        status = luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, &options, &y);
        EXPECT(status != LUDA_OK || is_ramp(y, COUNT, 3));
        luda_tensor_release(x);
        luda_tensor_release(y);
        return status;
    }
    for (int i = 0; i < 2 && status == LUDA_OK; i++) {
        if (rank == sender()) {
            x = ramp(SENT, i);
            EXPECT_OK(luda_comm_send(comm, x, 1 - rank, &options));
            luda_tensor_release(x);
            continue;
        }
        y = NULL;
        status = luda_comm_recv(comm, 1 - rank, &options, &y);
        EXPECT(status != LUDA_OK || is_ramp(y, SENT, i + 1));
        luda_tensor_release(y);
    }
    return status;
}

static void suffer(luda_comm *comm, int rank, void *unused)
{
    char words[32];
    int32_t who[2];
    luda_status status;
    double start;
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    atomic_fetch_add(&plan.ready, 1);
    while (atomic_load(&plan.ready) < 2)
        pause_ms(1);
    if (rank == sender())
        atomic_store(&plan.armed, true);
    start = now();
    status = exchange(comm, rank);
    if (rank == sender()) {
        while (plan.what >= DROP && !atomic_load(&plan.suffered))
            pause_ms(2); /* leaving is one more message */
        return;
    }
    if (plan.what == NOTHING) {
        EXPECT_OK(status);
        return;
    }
    EXPECT_STATUS(plan.what == SWALLOW ? LUDA_ETIMEOUT : LUDA_EPEER, status);
    EXPECT(now() - start < 5);
    snprintf(words, sizeof words, "rank %d", sender());
    EXPECT(strstr(luda_last_error(), words) != NULL);
    EXPECT(luda_comm_culprits(comm, who, 2) == 1 && who[0] == sender());
    if (plan.what != SWALLOW && plan.what != CUT)
        EXPECT(strstr(luda_last_error(), "altered or replayed on the way") != NULL);
    atomic_store(&plan.suffered, true);
}

static void run_case(const char *secret, bool encrypt, deed what, uint32_t channel, bool to_caller, size_t at)
{
    luda_rendezvous *home = meeting(2, secret);
    luda_comm *comms[2];
    int before = failed;
    plan.active = true;
    plan.channel = channel;
    plan.to_caller = to_caller;
    plan.what = what;
    plan.at = at;
    atomic_store(&plan.ready, 0);
    atomic_store(&plan.armed, false);
    atomic_store(&plan.suffered, false);
    heard_bytes = 0;
    join_all(home, 2, secret, encrypt, comms);
    plan.active = false;
    run_threads(comms, 2, suffer, NULL);
    luda_rendezvous_release(home);
    for (int i = 0; i < relay_count; i++)
        pthread_join(relays[i], NULL);
    relay_count = 0;
    if (failed > before)
        printf("deed %d, channel %u, %s, %s, at %zu\n", (int)what, channel, to_caller ? "to the caller" : "from the caller",
               encrypt ? "encrypted" : "authenticated", at);
}

static void test_deeds(bool encrypt)
{
    static const size_t places[] = { 2,   /* the header's magic */
                                     10,  /* its length */
                                     70,  /* its tag */
                                     95,  /* the payload */
                                     80 + LUDA_SEAL_BYTES + 3,        /* the tag of its first part */
                                     80 + LUDA_SEAL_BYTES + 16 + 99 };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        run_case(SECRET, encrypt, FLIP, LUDA_CHANNEL_DATA, i % 2, places[i]);
    run_case(SECRET, encrypt, FLIP, LUDA_CHANNEL_CONTROL, true, 40);
    run_case(SECRET, encrypt, FLIP, LUDA_CHANNEL_CONTROL, false, 90);
    run_case(SECRET, encrypt, INSERT, LUDA_CHANNEL_DATA, true, 0);
    run_case(SECRET, encrypt, CUT, LUDA_CHANNEL_DATA, false, 300);
    run_case(SECRET, encrypt, DROP, LUDA_CHANNEL_DATA, false, 0);
    run_case(SECRET, encrypt, REPEAT, LUDA_CHANNEL_DATA, true, 0);
    run_case(SECRET, encrypt, SWAP, LUDA_CHANNEL_DATA, false, 0);
    run_case(SECRET, encrypt, SWALLOW, LUDA_CHANNEL_DATA, true, 0);
}

static bool was_heard(const void *what, size_t bytes)
{
    return memmem(heard, heard_bytes, what, bytes) != NULL;
}

/* What an intruder who only listens learns. */
static void test_listening(void)
{
    luda_tensor *x = ramp(COUNT, 0);
    const char *values = luda_tensor_data(x);
    for (int way = 0; way < 3; way++) {
        run_case(way ? SECRET : NULL, way == 2, NOTHING, 0, false, 0);
        EXPECT(heard_bytes > COUNT * 4);
        EXPECT(was_heard(values + 400, 256) == (way < 2));
        EXPECT(!was_heard(SECRET, 12));
    }
    luda_tensor_release(x);
}

int main(void)
{
    setenv("LUDA_LANE", "off", 1); /* what goes over memory in common nobody is in the middle of */
    test_listening();
    test_deeds(false);
    test_deeds(true);
    return summary("collective intruder");
}
