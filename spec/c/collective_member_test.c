/*
 * A member of the group that sends what no rank sends. The other one, a rank like any, loses it by name, or fails the call;
 * it never uses a number it was sent where that would lead outside of something.
 */
#include "collective_door.h"

#include <collective/secret.h>

#define FAR ((uint64_t)1 << 40) /* calls ahead of ours */

/* Rank 0 of 2, and the other ends of its connections, which are this test's. */
enum { CHANNELS = 2 };
typedef struct pair { luda_comm *comm; int ends[CHANNELS]; } pair;

static pair open_pair(void)
{
    static luda_connection connections[2][LUDA_CHANNELS];
    luda_origin origin = { 0 };
    luda_comm_options options = { .size = sizeof options, .timeout = 10 };
    pair p;
    for (int i = 0; i < CHANNELS; i++) {
        int both[2];
        EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, both) == 0);
        connections[0][i] = (luda_connection){ .fd = -1 };
        connections[1][i] = (luda_connection){ .fd = both[0] };
        p.ends[i] = both[1];
    }
    EXPECT_OK(luda__mesh_comm(0, 2, CHANNELS, connections, &origin, &options, &p.comm));
    return p;
}

static void close_pair(pair *p)
{
    for (int i = 0; i < CHANNELS; i++)
        close(p->ends[i]);
    luda_comm_release(p->comm);
}

static void send_all(const pair *p, int channel, const void *bytes, size_t count)
{
    const char *at = bytes;
    while (count > 0) {
        ssize_t n = send(p->ends[channel], at, count, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            pause_ms(1);
            continue;
        }
        if (n <= 0) {
            EXPECT(n > 0);
            return;
        }
        at += n;
        count -= (size_t)n;
    }
}

static void send_frame(const pair *p, int channel, const luda_frame *frame, const void *payload)
{
    uint8_t bytes[LUDA_FRAME_BYTES + 1024];
    luda__frame_write(frame, bytes);
    size_t count = payload ? (size_t)frame->payload : 0;
    if (payload)
        memcpy(bytes + LUDA_FRAME_BYTES, payload, count);
    send_all(p, channel, bytes, LUDA_FRAME_BYTES + count);
}

static luda_announcement barrier(void)
{
    return (luda_announcement){ .sequence = 1, .operation = LUDA_CALL_BARRIER, .algorithm = LUDA_ALGORITHM_DIRECT,
                                .dtype = -1, .ndim = -1 };
}

static void announce(const pair *p, luda_announcement a, uint64_t lie)
{
    uint8_t bytes[LUDA_ANNOUNCE_BYTES];
    luda_frame frame = { .kind = LUDA_FRAME_ANNOUNCE, .payload = sizeof bytes, .sequence = a.sequence };
    luda__announcement_write(&a, bytes);
    if (a.ndim > LUDA_MAX_DIMS)
        a.ndim = -1; /* its hash would be of what lies beyond */
    frame.hash = luda__asked_hash(&a) + lie;
    send_frame(p, LUDA_CHANNEL_CONTROL, &frame, bytes);
}

/* Rank 0 finds out in its next call. */
static void expect_lost(pair *p, const char *words)
{
    int32_t who = -1;
    EXPECT_STATUS(LUDA_EPEER, luda_comm_barrier(p->comm, NULL));
    EXPECT(luda_comm_culprits(p->comm, &who, 1) == 1 && who == 1);
    EXPECT(strstr(luda_last_error(), "rank 1") && strstr(luda_last_error(), words));
    if (!strstr(luda_last_error(), words))
        printf("wanted \"%s\", got \"%s\"\n", words, luda_last_error());
    close_pair(p);
}

static void test_announcements(void)
{
    static const size_t fields[] = { offsetof(luda_announcement, operation), offsetof(luda_announcement, reduction),
                                     offsetof(luda_announcement, root),      offsetof(luda_announcement, algorithm),
                                     offsetof(luda_announcement, dim),       offsetof(luda_announcement, dtype),
                                     offsetof(luda_announcement, ndim),      offsetof(luda_announcement, refused) };
    static const int32_t values[] = { 1000, INT32_MAX, -2, INT32_MIN };
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            luda_announcement a = barrier();
            pair p;
            if (fields[f] == offsetof(luda_announcement, refused) && values[v] < 0)
                continue; /* a status */
            p = open_pair();
            memcpy((char *)&a + fields[f], &values[v], sizeof *values);
            announce(&p, a, 0);
            expect_lost(&p, "a call that no rank makes");
        }
    pair lies = open_pair(), jumps = open_pair(), repeats = open_pair();
    luda_announcement later = barrier();
    later.sequence = FAR;
    announce(&lies, barrier(), 1);
    expect_lost(&lies, "a call that no rank makes");
    announce(&jumps, later, 0);
    expect_lost(&jumps, "a call that no rank makes");
    later.sequence = 2;
    announce(&repeats, later, 0);
    announce(&repeats, later, 0);
    expect_lost(&repeats, "a call that no rank makes");
}

/* Frames that are none, or come on the wrong connection, or are about a call that nobody can be at. */
static void test_frames(void)
{
    static const struct { int channel; luda_frame frame; const char *words; } wrong[] = {
        { LUDA_CHANNEL_CONTROL, { .kind = LUDA_FRAME_FAULT, .payload = LUDA_FAULT_BYTES, .sequence = FAR }, "it gave up a call" },
        { LUDA_CHANNEL_CONTROL, { .kind = LUDA_FRAME_ALIVE, .sequence = FAR }, "it waits at a call" },
        { LUDA_CHANNEL_CONTROL, { .kind = LUDA_FRAME_DATA, .payload = 8 }, "what is no frame" },
        { LUDA_CHANNEL_CONTROL, { .kind = LUDA_FRAME_HELLO }, "what is no frame" },
        { LUDA_CHANNEL_CONTROL, { .kind = LUDA_FRAME_READY, .payload = 38 }, "what is no frame" },
        { LUDA_CHANNEL_CONTROL, { .kind = LUDA_FRAME_FAULT, .payload = 4 }, "what is no frame" },
        { LUDA_CHANNEL_CONTROL, { .kind = LUDA_FRAME_ANNOUNCE, .payload = 0, .sequence = 1 }, "what is no frame" },
        { LUDA_CHANNEL_CONTROL, { .kind = LUDA_FRAME_ANNOUNCE, .payload = (uint64_t)1 << 63 }, "what is no frame" },
        { LUDA_CHANNEL_CONTROL, { .kind = LUDA_FRAME_COUNT }, "what is no frame" },
        { LUDA_CHANNEL_DATA, { .kind = LUDA_FRAME_QUERY }, "what is no frame" },
        { LUDA_CHANNEL_DATA, { .kind = LUDA_FRAME_DATA, .payload = 8, .slot = 9 }, "what is no frame" },
        { LUDA_CHANNEL_DATA, { .kind = LUDA_FRAME_DATA, .payload = UINT64_MAX }, "what is no frame" },
    };
    static const uint8_t zeros[1024];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        pair p = open_pair();
        send_frame(&p, wrong[i].channel, &wrong[i].frame, wrong[i].frame.payload <= sizeof zeros ? zeros : NULL);
        expect_lost(&p, wrong[i].words);
    }
}

/* What a rank that has no tensor is told of the root's describes none: the call fails, and nothing is made of it. */
static void test_tensors(void)
{
    static const struct { int operation, ndim, dim, dtype; int64_t shape[3]; } told[] = {
        { LUDA_CALL_BROADCAST, 1, 0, LUDA_F32, { -5 } },
        { LUDA_CALL_BROADCAST, 1, 0, LUDA_F32, { INT64_MAX } },
        { LUDA_CALL_BROADCAST, 3, 0, LUDA_F64, { (int64_t)1 << 30, (int64_t)1 << 30, (int64_t)1 << 30 } },
        { LUDA_CALL_BROADCAST, -1, 0, LUDA_F32, { 0 } },
        { LUDA_CALL_BROADCAST, 1, 0, -1, { 4 } },
        { LUDA_CALL_SCATTER, 1, 0, LUDA_F32, { 3 } },
        { LUDA_CALL_SCATTER, 1, 3, LUDA_F32, { 4 } },
        { LUDA_CALL_SCATTER, -1, -1, -1, { 0 } },
        { LUDA_CALL_SCATTER, 0, 0, LUDA_F32, { 0 } },
        { LUDA_CALL_SCATTER, 2, 1, LUDA_F32, { 4, -2 } },
    };
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        pair p = open_pair();
        luda_announcement a = barrier();
        luda_comm_options options = { .size = sizeof options, .dim = told[i].dim < 0 ? 0 : told[i].dim };
        luda_tensor *y = NULL;
        luda_status status;
        a.operation = told[i].operation;
        a.ndim = told[i].ndim;
        a.dim = told[i].dim;
        a.dtype = told[i].dtype;
        a.root = a.sender = 1;
        memcpy(a.shape, told[i].shape, sizeof told[i].shape);
        announce(&p, a, 0);
        status = a.operation == LUDA_CALL_BROADCAST ? luda_comm_broadcast(p.comm, NULL, 1, &options, &y)
                                                    : luda_comm_scatter(p.comm, NULL, 1, &options, &y);
        EXPECT(status == LUDA_ECORRUPT || status == LUDA_ENOMEM);
        EXPECT(y == NULL);
        close_pair(&p);
    }
}

static long resident_kib(void)
{
    long total, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &total, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Promises of terabytes, and questions whose answers nobody reads, cost little; then the two go on. */
static void test_greed(void)
{
    enum { QUESTIONS = 20000, MOST_KIB = 64 << 10 };
    static const uint8_t some[1000];
    pair p = open_pair();
    long before = resident_kib();
    luda_frame frame = { .kind = LUDA_FRAME_DATA, .payload = (uint64_t)1 << 40, .sequence = 5, .slot = LUDA_SLOT_MESSAGE };
    send_frame(&p, LUDA_CHANNEL_DATA, &frame, NULL);
    send_all(&p, LUDA_CHANNEL_DATA, some, sizeof some);
    for (int i = 0; i < QUESTIONS; i++) {
        uint8_t bytes[LUDA_FRAME_BYTES];
        luda__frame_write(&(luda_frame){ .kind = LUDA_FRAME_QUERY }, bytes);
        send_all(&p, LUDA_CHANNEL_CONTROL, bytes, sizeof bytes);
    }
    announce(&p, barrier(), 0);
    EXPECT_OK(luda_comm_barrier(p.comm, NULL));
    EXPECT(resident_kib() - before < MOST_KIB);
    close_pair(&p);
}

int main(void)
{
    test_announcements();
    test_frames();
    test_tensors();
    test_greed();
    return summary("collective member");
}
