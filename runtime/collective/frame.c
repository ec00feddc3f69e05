/* Frames as bytes: little-endian, field by field, so that no layout of a compiler travels. */
#include "net.h"

#include <string.h>

static uint8_t *put(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
    return at + bytes;
}

static const uint8_t *get(const uint8_t *at, uint64_t *value, int bytes)
{
    *value = 0;
    for (int i = 0; i < bytes; i++)
        *value |= (uint64_t)at[i] << (8 * i);
    return at + bytes;
}

static const uint8_t *get32(const uint8_t *at, int32_t *value)
{
    uint64_t wide;
    at = get(at, &wide, 4);
    *value = (int32_t)(uint32_t)wide;
    return at;
}

void luda__frame_write(const luda_frame *frame, uint8_t bytes[LUDA_FRAME_BYTES])
{
    uint8_t *at = put(bytes, LUDA_FRAME_MAGIC, 4);
    at = put(at, LUDA_FRAME_VERSION, 2);
    at = put(at, (uint64_t)frame->kind, 2);
    at = put(at, frame->payload, 8);
    at = put(at, frame->sequence, 8);
    at = put(at, frame->hash, 8);
    at = put(at, frame->step, 4);
    at = put(at, frame->slot, 4);
    at = put(at, frame->rank, 4);
    at = put(at, frame->size, 4);
    memcpy(at, frame->session, LUDA_SESSION_BYTES);
}

bool luda__frame_read(const uint8_t bytes[LUDA_FRAME_BYTES], luda_frame *frame)
{
    static const uint64_t most[] = {
#define LUDA_FRAME(kind, most) most,
        LUDA_FRAMES(LUDA_FRAME)
#undef LUDA_FRAME
    };
    uint64_t magic, version, kind, step, slot, rank, size;
    const uint8_t *at = get(bytes, &magic, 4);
    at = get(at, &version, 2);
    at = get(at, &kind, 2);
    at = get(at, &frame->payload, 8);
    at = get(at, &frame->sequence, 8);
    at = get(at, &frame->hash, 8);
    at = get(at, &step, 4);
    at = get(at, &slot, 4);
    at = get(at, &rank, 4);
    at = get(at, &size, 4);
    memcpy(frame->session, at, LUDA_SESSION_BYTES);
    frame->kind = (luda_frame_kind)kind;
    frame->step = (uint32_t)step;
    frame->slot = (uint32_t)slot;
    frame->rank = (uint32_t)rank;
    frame->size = (uint32_t)size;
    return magic == LUDA_FRAME_MAGIC && version == LUDA_FRAME_VERSION && kind < LUDA_FRAME_COUNT &&
           frame->payload <= most[kind];
}

bool luda__frame_starts(const uint8_t *bytes, size_t got)
{
    enum { CERTAIN = 6 }; /* magic, version */
    uint8_t wanted[LUDA_FRAME_BYTES];
    luda__frame_write(&(luda_frame){ .kind = 0 }, wanted);
    return memcmp(bytes, wanted, got < CERTAIN ? got : CERTAIN) == 0;
}

void luda__tame(char *text, size_t room)
{
    text[room - 1] = 0;
    for (; *text; text++)
        if (((unsigned char)*text < ' ' && *text != '\n' && *text != '\t') || *text == 127)
            *text = '?';
}

void luda__announcement_write(const luda_announcement *a, uint8_t bytes[LUDA_ANNOUNCE_BYTES])
{
    const int32_t fields[10] = { a->operation, a->reduction, a->root, a->algorithm, a->dim,
                                 a->tracked,   a->dtype,     a->ndim, a->sender,    a->refused };
    uint8_t *at = bytes;
    for (int i = 0; i < 10; i++)
        at = put(at, (uint32_t)fields[i], 4);
    for (int d = 0; d < LUDA_MAX_DIMS; d++)
        at = put(at, (uint64_t)a->shape[d], 8);
    memcpy(at, a->site, sizeof a->site);
    memcpy(at + sizeof a->site, a->note, sizeof a->note);
}

static bool within(int32_t value, int32_t least, int32_t end)
{
    return value >= least && value < end;
}

bool luda__announcement_read(const uint8_t bytes[LUDA_ANNOUNCE_BYTES], int size, luda_announcement *a)
{
    int32_t *const fields[10] = { &a->operation, &a->reduction, &a->root, &a->algorithm, &a->dim,
                                  &a->tracked,   &a->dtype,     &a->ndim, &a->sender,    &a->refused };
    const uint8_t *at = bytes;
    for (int i = 0; i < 10; i++)
        at = get32(at, fields[i]);
    for (int d = 0; d < LUDA_MAX_DIMS; d++) {
        uint64_t length;
        at = get(at, &length, 8);
        a->shape[d] = (int64_t)length;
    }
    memcpy(a->site, at, sizeof a->site);
    memcpy(a->note, at + sizeof a->site, sizeof a->note);
    luda__tame(a->site, sizeof a->site);
    luda__tame(a->note, sizeof a->note);
    /* Shapes are checked where a tensor is made of them. */
    return within(a->operation, 0, LUDA_CALL_COUNT) && within(a->reduction, -1, LUDA_REDUCE_COUNT) &&
           within(a->root, -1, size) && within(a->algorithm, -1, LUDA_ALGORITHM_COUNT) &&
           within(a->dim, -1, LUDA_MAX_DIMS) && within(a->dtype, -1, LUDA_DTYPE_COUNT) &&
           within(a->ndim, -1, LUDA_MAX_DIMS + 1) && a->refused <= 0 && a->hash == luda__asked_hash(a);
}

void luda__fault_write(const luda_comm_fault *fault, uint8_t bytes[LUDA_FAULT_BYTES])
{
    uint8_t *at = put(bytes, (uint32_t)fault->status, 4);
    for (int i = 0; i < LUDA_MAX_RANKS / 64; i++)
        at = put(at, fault->culprits[i], 8);
    memcpy(at, fault->text, sizeof fault->text);
}

void luda__fault_read(const uint8_t bytes[LUDA_FAULT_BYTES], luda_comm_fault *fault)
{
    const uint8_t *at = get32(bytes, &fault->status);
    for (int i = 0; i < LUDA_MAX_RANKS / 64; i++)
        at = get(at, &fault->culprits[i], 8);
    memcpy(fault->text, at, sizeof fault->text);
    luda__tame(fault->text, sizeof fault->text);
    if (fault->status >= LUDA_OK)
        fault->status = LUDA_EINTERNAL;
}
