/*
 * What the fuzzed protocol parsers share: a stream is cut into pieces, each raw bytes or a frame with fields drawn from the
 * input, so that also what lies behind a right header is reached.
 */
#ifndef LUDA_FUZZ_STREAM_H
#define LUDA_FUZZ_STREAM_H

#include <collective/secret.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define DEMAND(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            __builtin_trap();                                                                                          \
    } while (0)

enum { MOST_PIECE = LUDA_FRAME_BYTES + 4096 };
static const uint8_t our_session[LUDA_SESSION_BYTES] = "a session of 16";

/* What a rank that makes the same call announces; drawn bytes change it. */
static uint8_t usual_announcement[LUDA_ANNOUNCE_BYTES];

typedef struct input { const uint8_t *at; size_t left; } input;

/* Zeros after the end. */
static inline void take(input *in, void *out, size_t count)
{
    size_t there = count < in->left ? count : in->left;
    memset(out, 0, count);
    memcpy(out, in->at, there);
    in->at += there;
    in->left -= there;
}

static inline uint8_t take_byte(input *in)
{
    uint8_t byte;
    take(in, &byte, 1);
    return byte;
}

/* Small, or of any size. */
static inline uint64_t take_number(input *in)
{
    uint64_t number = take_byte(in);
    if (number == 255)
        take(in, &number, sizeof number);
    return number;
}

/* The usual one with a few fields changed, or a few bytes anywhere. */
static inline void take_announcement(input *in, uint8_t out[LUDA_ANNOUNCE_BYTES])
{
    enum { FIELDS = 10 };
    memcpy(out, usual_announcement, LUDA_ANNOUNCE_BYTES);
    for (int changes = take_byte(in) % 4; changes > 0; changes--) {
        uint8_t which = take_byte(in);
        int32_t value = (int8_t)take_byte(in);
        if (value > 100 || value < -100)
            take(in, &value, sizeof value);
        memcpy(out + (which < 128 ? which % FIELDS * 4 : which), &value, sizeof value);
    }
}

static inline size_t take_frame(input *in, uint8_t out[MOST_PIECE])
{
    enum { RIGHT_SESSION = 1, RIGHT_HASH = 2, USUAL_LENGTH = 4, FIRST_CALL = 8 };
    static const uint64_t usual[LUDA_FRAME_COUNT] = { [LUDA_FRAME_JOIN] = 2,
                                                      [LUDA_FRAME_MISSING] = LUDA_MAX_RANKS / 8,
                                                      [LUDA_FRAME_READY] = 3 * LUDA_ADDRESS_BYTES,
                                                      [LUDA_FRAME_DATA] = 64,
                                                      [LUDA_FRAME_ANNOUNCE] = LUDA_ANNOUNCE_BYTES,
                                                      [LUDA_FRAME_FAULT] = LUDA_FAULT_BYTES,
                                                      [LUDA_FRAME_KNOCK] = LUDA_NONCE_BYTES + 1,
                                                      [LUDA_FRAME_CHALLENGE] = LUDA_NONCE_BYTES,
                                                      [LUDA_FRAME_PROOF] = LUDA_NONCE_BYTES };
    uint8_t flags = take_byte(in);
    luda_frame frame = { .kind = (luda_frame_kind)(take_byte(in) % (LUDA_FRAME_COUNT + 1)) };
    size_t there;
    frame.payload = flags & USUAL_LENGTH && frame.kind < LUDA_FRAME_COUNT ? usual[frame.kind] : take_number(in);
    frame.sequence = 1;
    if (!(flags & FIRST_CALL)) {
        frame.sequence = take_number(in);
        frame.step = (uint32_t)take_number(in);
        frame.slot = (uint32_t)take_number(in);
    }
    frame.rank = (uint32_t)take_number(in);
    frame.size = (uint32_t)take_number(in);
    if (flags & RIGHT_SESSION)
        memcpy(frame.session, our_session, sizeof our_session);
    there = frame.payload < MOST_PIECE - LUDA_FRAME_BYTES ? (size_t)frame.payload : MOST_PIECE - LUDA_FRAME_BYTES;
    there = there < in->left || flags & USUAL_LENGTH ? there : in->left;
    if (frame.kind == LUDA_FRAME_ANNOUNCE && flags & USUAL_LENGTH)
        take_announcement(in, out + LUDA_FRAME_BYTES);
    else
        take(in, out + LUDA_FRAME_BYTES, there);
    if (flags & RIGHT_HASH && there >= LUDA_ANNOUNCE_BYTES) {
        luda_announcement a;
        luda__announcement_read(out + LUDA_FRAME_BYTES, 3, &a);
        if (a.ndim <= LUDA_MAX_DIMS) /* else it is refused before its hash is looked at */
            frame.hash = luda__asked_hash(&a);
    }
    luda__frame_write(&frame, out);
    return LUDA_FRAME_BYTES + there;
}

static inline size_t take_piece(input *in, uint8_t out[MOST_PIECE])
{
    uint8_t length = take_byte(in);
    if (length < 64)
        return take_frame(in, out);
    length -= 63;
    take(in, out, length);
    return length;
}

/* What does not fit into the socket is lost. */
static inline void feed(int fd, const uint8_t *bytes, size_t count)
{
    if (count > 0 && send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        DEMAND(errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
}

/* NULL where there is no libsodium. */
static inline luda_secret *a_secret(void)
{
    luda_comm_options options = { .size = sizeof options, .secret = "sixteen bytes long", .secret_bytes = 18 };
    luda_secret *secret = NULL;
    luda__secret_new(&options, "fuzz", &secret);
    return secret;
}

static inline void open_pair(int pair[2])
{
    DEMAND(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
}

#endif
