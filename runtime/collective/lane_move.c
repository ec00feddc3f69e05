/*
 * Data over the lane. What is small was published with the arrival, so that each rank takes it from there at once. Rank
 * threads, and processes whose tensors lie in common memory, use the tensors themselves. Everything else goes through
 * staging in rounds, of which the copying in, the summing and the copying out overlap. The bits are those of `direct`.
 */
#include "lane.h"

#include <string.h>

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* --- Published --- */

static unsigned char *staging(const luda_lane *lane, int rank, size_t offset)
{
    return lane->staging + (size_t)rank * LUDA_LANE_STAGING + offset;
}

static unsigned char *medium(const luda_lane *lane, int rank, uint64_t sequence)
{
    return staging(lane, rank, (sequence & 1) * LUDA_LANE_MEDIUM);
}

/* Whether a rank's whole tensor of so many bytes goes with its arrival. Summing is worth dividing sooner than copying. */
static bool goes_along(const luda_lane *lane, int operation, int64_t bytes)
{
    bool sums = operation == LUDA_CALL_ALL_REDUCE || operation == LUDA_CALL_REDUCE;
    return bytes <= LUDA_LANE_SMALL || (lane->processes && !sums && bytes <= LUDA_LANE_MEDIUM);
}

void luda__lane_stage(const luda_collective_run *run, int64_t bytes, uint64_t *in, uint64_t *out)
{
    const luda_lane *lane = run->wait.board->lane;
    *in = luda__area_place(lane, run->input);
    *out = run->output == run->input ? *in : 0;
    if (!*in && goes_along(lane, run->asked.operation, bytes))
        memcpy(medium(lane, run->wait.rank, run->wait.sequence), run->what.in, (size_t)bytes);
}

static const void *published(const luda_lane *lane, int rank, uint64_t sequence, int64_t bytes)
{
    luda_lane_slot *slot = luda__lane_slot(lane, rank);
    if (bytes <= LUDA_LANE_SMALL)
        return bytes <= LUDA_LANE_TINY ? slot->tiny[sequence & 1] : slot->small[sequence & 1];
    return medium(lane, rank, sequence);
}

/*
 * Takes over the cache lines that the one other rank wrote and this one read: the next write of a line with a reader takes
 * its owner several times longer than one that the reader has written.
 */
static void take_over(const void *read, int64_t bytes)
{
    enum { LINE = 64 };
    volatile unsigned char *lines = (volatile unsigned char *)read;
    for (int64_t at = 0; at < bytes; at += LINE)
        lines[at] = 0;
}

/* --- Rounds --- */

/* One call in rounds. Sticky: after a failure nothing more is done. */
typedef struct rounds {
    luda_collective_run *run;
    const luda_collective *call;
    const luda_lane *lane;
    int rank, size;
    luda_dtype dtype;
    int64_t width, whole, piece; /* bytes: of an element; of one outer row, of the whole and of a rank's part */
    luda_status status;
} rounds;

static uint64_t mark(const rounds *r, int64_t round)
{
    return luda__lane_mark(r->run->wait.sequence, round);
}

static bool await(rounds *r, int step, int from, int64_t round)
{
    luda_comm_fault fault;
    if (r->status == LUDA_OK && round >= 0 &&
        luda__lane_await(&r->run->wait, step, from, mark(r, round), &fault) != LUDA_OK)
        r->status = luda__run_fault(r->run, &fault);
    return r->status == LUDA_OK;
}

static void advance(rounds *r, int step, int64_t round)
{
    luda__lane_advance(&r->run->wait, step, mark(r, round));
}

static unsigned char *given(const rounds *r, int rank, int64_t round)
{
    return staging(r->lane, rank, (size_t)(2 * LUDA_LANE_MEDIUM + (round & 1) * LUDA_LANE_WINDOW));
}

/* A part of the tensor, cut into slices of which rank q sums the q-th. */
typedef struct window {
    int64_t start, count; /* elements */
    int64_t own, end;     /* bytes from its start: this rank's slice */
} window;

static int64_t windows_of(const rounds *r)
{
    return (r->whole * r->call->outer + LUDA_LANE_WINDOW - 1) / LUDA_LANE_WINDOW;
}

static window window_of(const rounds *r, int64_t round)
{
    window w;
    int64_t count;
    luda__slice(r->whole * r->call->outer / r->width, (int)windows_of(r), (int)round, &w.start, &w.count);
    luda__slice(w.count, r->size, r->rank, &w.own, &count);
    w.end = (w.own + count) * r->width;
    w.own *= r->width;
    return w;
}

/* All but this rank's slice between a tensor and its staging. */
static void move_window(const rounds *r, const window *w, char *tensor, unsigned char *staged, bool out)
{
    int64_t after = w->count * r->width - w->end;
    tensor += w->start * r->width;
    memcpy(out ? tensor : (char *)staged, out ? (char *)staged : tensor, (size_t)w->own);
    memcpy(out ? tensor + w->end : (char *)staged + w->end, out ? (char *)staged + w->end : tensor + w->end,
           (size_t)after);
}

/*
 * The sums go where the contributions lay: who read a line of another rank's staging writes it too, and the next write of
 * its owner does not have to take it back from a reader, which costs ten times more.
 */
static void sum_window(const rounds *r, int64_t round, bool gets)
{
    window w = window_of(r, round);
    const void *sources[LUDA_LANE_RANKS];
    void *targets[LUDA_LANE_RANKS];
    int ntargets = 0, root = r->call->agreed.operation == LUDA_CALL_REDUCE ? r->call->agreed.root : -1;
    int64_t count = (w.end - w.own) / r->width;
    for (int q = 0; q < r->size; q++) {
        sources[q] = (q == r->rank ? (unsigned char *)r->call->in + w.start * r->width : given(r, q, round)) + w.own;
        if (q == r->rank ? gets : root < 0 || root == q)
            targets[ntargets++] = q == r->rank ? (char *)r->call->out + w.start * r->width + w.own : (char *)sources[q];
    }
    if (count > 0 && ntargets > 0)
        luda__reduce_ranks(r->dtype, (luda_reduction)r->call->agreed.reduction, sources, r->size, targets, ntargets,
                           count);
}

/* In round k window k - 2 comes out, window k goes in and window k - 1 is summed. */
static void reduce_rounds(rounds *r)
{
    bool gets = r->call->out != NULL;
    int64_t count = windows_of(r);
    for (int64_t k = 0; k < count + 2 && r->status == LUDA_OK; k++) {
        window leaving = window_of(r, k - 2), coming = window_of(r, k);
        if (!await(r, LUDA_LANE_REDUCED, -1, k - 2))
            break;
        if (k >= 2 && gets)
            move_window(r, &leaving, r->call->out, given(r, r->rank, k), true);
        if (k < count) {
            move_window(r, &coming, (char *)r->call->in, given(r, r->rank, k), false);
            advance(r, LUDA_LANE_STAGED, k);
        }
        if (k >= 1 && k <= count && await(r, LUDA_LANE_STAGED, -1, k - 1)) {
            sum_window(r, k - 1, gets);
            advance(r, LUDA_LANE_REDUCED, k - 1);
        }
    }
}

/* Part of what lies in rows of `piece` bytes, `pitch` apart, between there and where it lies together. */
static void move_stream(char *rows, int64_t pitch, int64_t piece, int64_t at, char *together, int64_t bytes, bool out)
{
    while (bytes > 0) {
        char *row = rows + at / piece * pitch + at % piece;
        int64_t n = smaller(bytes, piece - at % piece);
        memcpy(out ? row : together, out ? together : row, (size_t)n);
        together += n;
        at += n;
        bytes -= n;
    }
}

/* What ranks give: one stream to all, or one to each. */
typedef struct streams {
    bool each, from_root, sums;
    int64_t bytes, chunk; /* of a stream, of it in a round */
} streams;

static streams streams_of(const rounds *r)
{
    int operation = r->call->agreed.operation;
    streams s = { .each = operation == LUDA_CALL_SCATTER || operation == LUDA_CALL_ALL_TO_ALL ||
                          operation == LUDA_CALL_REDUCE_SCATTER,
                  .from_root = operation == LUDA_CALL_SCATTER || operation == LUDA_CALL_BROADCAST,
                  .sums = operation == LUDA_CALL_REDUCE_SCATTER };
    s.bytes = (operation == LUDA_CALL_BROADCAST ? r->whole : r->piece) * r->call->outer;
    s.chunk = s.each ? LUDA_LANE_WINDOW / r->size / 64 * 64 : LUDA_LANE_WINDOW;
    return s;
}

static void give_streams(rounds *r, const streams *s, int64_t round)
{
    int64_t at = round * s->chunk, bytes = smaller(s->chunk, s->bytes - at);
    char *in = (char *)r->call->in, *to = (char *)given(r, r->rank, round);
    if (!s->each)
        memcpy(to, in + at, (size_t)bytes);
    for (int q = 0; q < r->size && s->each; q++)
        move_stream(in + q * r->piece, r->whole, r->piece, at, to + q * s->chunk, bytes, false);
}

static void take_streams(rounds *r, const streams *s, int64_t round)
{
    int64_t at = round * s->chunk, bytes = smaller(s->chunk, s->bytes - at), mine = s->each ? r->rank * s->chunk : 0;
    const void *sources[LUDA_LANE_RANKS];
    char *out = r->call->out;
    void *target = out + at;
    for (int q = 0; q < r->size; q++)
        sources[q] = given(r, q, round) + mine;
    if (s->sums)
        luda__reduce_ranks(r->dtype, (luda_reduction)r->call->agreed.reduction, sources, r->size, &target, 1,
                           bytes / r->width);
    else if (s->from_root)
        memcpy(target, sources[r->call->agreed.root], (size_t)bytes);
    for (int q = 0; q < r->size && !s->sums && !s->from_root; q++)
        move_stream(out + q * r->piece, r->whole, r->piece, at, (char *)sources[q], bytes, true);
}

static void stream_rounds(rounds *r)
{
    streams s = streams_of(r);
    int from = s.from_root ? r->call->agreed.root : -1;
    int64_t count = (s.bytes + s.chunk - 1) / s.chunk;
    for (int64_t k = 0; k <= count && r->status == LUDA_OK; k++) {
        if (k < count && (from < 0 || from == r->rank) && await(r, LUDA_LANE_TAKEN, -1, k - 2)) {
            give_streams(r, &s, k);
            advance(r, LUDA_LANE_STAGED, k);
        }
        if (k >= 1 && (!r->call->out || await(r, LUDA_LANE_STAGED, from, k - 1))) {
            if (r->call->out)
                take_streams(r, &s, k - 1);
            advance(r, LUDA_LANE_TAKEN, k - 1);
        }
    }
}

/* --- Addresses --- */

/* True where every rank's tensor can be used by all. */
static bool addresses(luda_collective_run *run, int64_t bytes, const void **in, void **out)
{
    const luda_lane *lane = run->wait.board->lane;
    int pair = run->wait.sequence & 1;
    for (int q = 0; q < lane->size; q++) {
        luda_lane_slot *slot = luda__lane_slot(lane, q);
        uint64_t from = atomic_load_explicit(&slot->in[pair], memory_order_relaxed);
        uint64_t to = atomic_load_explicit(&slot->out[pair], memory_order_relaxed);
        if (!lane->processes) {
            in[q] = (const void *)(uintptr_t)from;
            out[q] = (void *)(uintptr_t)to;
        } else if (from != to || !(out[q] = luda__area_memory(lane, run->input, from, bytes))) {
            return false;
        } else {
            in[q] = out[q];
        }
    }
    return true;
}

static bool some_in_common(const luda_lane *lane, uint64_t sequence)
{
    for (int q = 0; q < lane->size && lane->processes; q++)
        if (atomic_load_explicit(&luda__lane_slot(lane, q)->in[sequence & 1], memory_order_relaxed))
            return true;
    return false;
}

/* --- A call --- */

static luda_status overtaken(luda_collective_run *run)
{
    luda_comm_fault fault;
    luda__lane_overtaken(&run->wait, &fault);
    return luda__run_fault(run, &fault);
}

luda_status luda__lane_collective(luda_collective_run *run)
{
    const luda_collective *call = &run->what;
    const luda_lane *lane = run->wait.board->lane;
    uint64_t sequence = run->wait.sequence;
    int operation = call->agreed.operation;
    int64_t width = call->agreed.dtype < 0 ? 0 : luda__dtype_bytes[call->agreed.dtype];
    int64_t whole = call->outer * call->count * call->inner * width;
    int64_t bytes = operation == LUDA_CALL_ALL_GATHER || operation == LUDA_CALL_GATHER ? whole / call->size : whole;
    const void *in[LUDA_MAX_RANKS];
    void *out[LUDA_MAX_RANKS];
    if (whole == 0)
        return LUDA_OK;
    if (bytes <= LUDA_LANE_SMALL || (goes_along(lane, operation, bytes) && !some_in_common(lane, sequence))) {
        in[0] = call->in;
        for (int q = 0; q < lane->size; q++)
            in[q] = q == call->rank ? call->in : published(lane, q, sequence, bytes);
        luda__share(call, in, NULL);
        if (lane->size == 2 && bytes > LUDA_LANE_TINY)
            take_over(in[1 - call->rank], bytes);
        return luda__lane_intact(lane, sequence) ? LUDA_OK : overtaken(run);
    }
    if (!lane->processes) {
        addresses(run, bytes, in, out);
        luda__share(call, in, out);
        luda__lane_depart(&run->wait);
        return LUDA_OK;
    }
    rounds r = { .run = run,
                 .call = call,
                 .lane = lane,
                 .rank = call->rank,
                 .size = call->size,
                 .dtype = (luda_dtype)call->agreed.dtype,
                 .width = width,
                 .whole = whole / call->outer,
                 .piece = whole / call->outer / call->size };
    if (operation == LUDA_CALL_ALL_REDUCE && addresses(run, bytes, in, out)) {
        luda__share(call, in, out);
        advance(&r, LUDA_LANE_TAKEN, 0);
        await(&r, LUDA_LANE_TAKEN, -1, 0);
    } else if (operation == LUDA_CALL_ALL_REDUCE || operation == LUDA_CALL_REDUCE) {
        reduce_rounds(&r);
    } else {
        stream_rounds(&r);
    }
    return r.status;
}
