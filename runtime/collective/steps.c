/* The step machine, and the direct algorithms. */
#include "steps.h"

#include <stdlib.h>
#include <string.h>

/* --- The machine --- */

static luda_slot_name slot(const luda_steps *s, uint32_t step)
{
    return (luda_slot_name){ .sequence = s->run->wait.sequence, .step = step, .kind = LUDA_SLOT_STEP };
}

void luda__give(luda_steps *s, int to, uint32_t step, const void *data, int64_t bytes)
{
    const luda_transport *transport = &s->run->comm->transport;
    luda_status status;
    if (s->status != LUDA_OK || bytes == 0)
        return;
    luda__mail_sending(s->run->comm->board, s->rank);
    status = transport->send(transport->state, to, slot(s, step), data, (size_t)bytes);
    if (status != LUDA_OK)
        s->status = luda__run_fail(s->run, status);
}

void luda__expect(luda_steps *s, int from, uint32_t step, void *memory, int64_t bytes)
{
    luda_status status;
    if (s->status != LUDA_OK || bytes == 0)
        return;
    status = luda__mail_post(s->run->comm->board, s->rank, from, slot(s, step), memory, (size_t)bytes);
    if (status != LUDA_OK)
        s->status = luda__run_fail(s->run, status);
}

bool luda__arrived(luda_steps *s, uint32_t step)
{
    luda_comm_fault fault;
    if (s->status == LUDA_OK && luda__mail_await(&s->run->wait, step, &fault) != LUDA_OK)
        s->status = luda__run_fault(s->run, &fault);
    return s->status == LUDA_OK;
}

void *luda__steps_scratch(luda_steps *s, int64_t bytes)
{
    void *memory;
    if (s->status != LUDA_OK)
        return NULL;
    memory = malloc((size_t)(bytes ? bytes : 1));
    if (!memory) {
        s->status = luda__run_fail(s->run, luda__fail(LUDA_ENOMEM, "%s: no memory for %lld bytes of messages",
                                                      s->run->wait.name, (long long)bytes));
        return NULL;
    }
    s->scratch[s->scratches++] = memory;
    return memory;
}

/* --- Direct: 2 steps, 2 S (P-1)/P bytes per rank; owner r sums slice r in rank order --- */

enum { CHUNK = 1 << 20 }; /* bytes of a slice that are summed while later ones travel */

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

typedef struct slices {
    int64_t start[LUDA_MAX_RANKS], count[LUDA_MAX_RANKS]; /* elements */
    int64_t chunk;                                        /* elements */
    uint32_t chunks;
} slices;

static void cut(luda_steps *s, slices *p)
{
    p->chunk = CHUNK / s->width;
    for (int q = 0; q < s->size; q++)
        luda__slice(s->numel, s->size, q, &p->start[q], &p->count[q]);
    p->chunks = (uint32_t)((p->count[0] + p->chunk - 1) / p->chunk);
}

static int64_t chunk_bytes(const luda_steps *s, const slices *p, int q, uint32_t c)
{
    int64_t left = p->count[q] - c * p->chunk;
    return left < 0 ? 0 : min64(left, p->chunk) * s->width;
}

/* Sums slices at their owners and hands them to every rank (root -1), to one, or to nobody (LUDA_MAX_RANKS). */
static void direct_reduce(luda_steps *s, const void *in, void *out, int root)
{
    slices *p = luda__steps_scratch(s, sizeof *p);
    const void *sources[LUDA_MAX_RANKS];
    char *scratch, *mine;
    if (!p)
        return;
    cut(s, p);
    scratch = luda__steps_scratch(s, s->size * p->count[s->rank] * s->width);
    /* The owner's result goes where it belongs, or beside it where the rank gets no result. */
    mine = out;
    if (root == -1 || root == s->rank)
        mine = (char *)out + p->start[s->rank] * s->width;
    else if (root < s->size)
        mine = scratch + s->rank * p->count[s->rank] * s->width;
    for (uint32_t c = 0; c < p->chunks; c++)
        for (int i = 1; i < s->size && scratch; i++) {
            int to = (s->rank + i) % s->size, from = (s->rank + s->size - i) % s->size;
            luda__give(s, to, c, (const char *)in + (p->start[to] + c * p->chunk) * s->width, chunk_bytes(s, p, to, c));
            luda__expect(s, from, c, scratch + (from * p->count[s->rank] + c * p->chunk) * s->width,
                         chunk_bytes(s, p, s->rank, c));
            if (root == -1 || root == s->rank)
                luda__expect(s, from, p->chunks + c, (char *)out + (p->start[from] + c * p->chunk) * s->width,
                             chunk_bytes(s, p, from, c));
        }
    for (uint32_t c = 0; c < p->chunks && luda__arrived(s, c); c++) {
        int64_t bytes = chunk_bytes(s, p, s->rank, c), offset = c * p->chunk * s->width;
        void *result = mine + offset;
        for (int q = 0; q < s->size; q++)
            sources[q] = q == s->rank ? (const char *)in + p->start[q] * s->width + offset
                                      : scratch + q * p->count[s->rank] * s->width + offset;
        if (bytes > 0)
            luda__reduce_ranks(s->dtype, s->reduction, sources, s->size, &result, 1, bytes / s->width);
        for (int i = 1; i < s->size; i++) {
            int to = (s->rank + i) % s->size;
            if (root == -1 || root == to)
                luda__give(s, to, p->chunks + c, result, bytes);
        }
    }
    luda__arrived(s, 2 * p->chunks);
}

/* --- Pieces along an axis, packed so that a rank's piece lies together --- */

/* [outer, size * piece] to [size, outer, piece] bytes, or back. */
static void repack(const luda_steps *s, const void *from, void *to, int64_t piece, bool pack)
{
    int64_t outer = s->what->outer;
    for (int q = 0; q < s->size; q++) {
        int64_t packed = q * outer * piece, loose = q * piece;
        if (pack)
            luda__copy_rows((char *)to + packed, piece, (const char *)from + loose, s->size * piece, piece, outer);
        else
            luda__copy_rows((char *)to + loose, s->size * piece, (const char *)from + packed, piece, piece, outer);
    }
}

static const void *packed_input(luda_steps *s, int64_t piece)
{
    void *packed;
    if (s->what->outer == 1)
        return s->what->in;
    packed = luda__steps_scratch(s, s->numel * s->width);
    if (packed)
        repack(s, s->what->in, packed, piece, true);
    return packed;
}

/* One step, S (P-1) bytes received where S is a rank's piece. */
static void gather_to(luda_steps *s, int root)
{
    int64_t piece = s->numel / s->size * s->width, row = piece / s->what->outer;
    bool gets = root < 0 || root == s->rank, loose = gets && s->what->outer > 1;
    char *packed = loose ? luda__steps_scratch(s, s->numel * s->width) : s->what->out;
    if (gets && !packed)
        return;
    for (int i = 1; i < s->size; i++) {
        int to = (s->rank + i) % s->size, from = (s->rank + s->size - i) % s->size;
        if (root < 0 || root == to)
            luda__give(s, to, 0, s->what->in, piece);
        if (gets)
            luda__expect(s, from, 0, packed + from * piece, piece);
    }
    if (gets)
        memcpy(packed + s->rank * piece, s->what->in, (size_t)piece);
    if (luda__arrived(s, 0) && loose)
        repack(s, packed, s->what->out, row, false);
}

/* P-1 steps, the same bytes, to the next rank only. */
static void ring_gather(luda_steps *s)
{
    int64_t piece = s->numel / s->size * s->width, row = piece / s->what->outer;
    int next = (s->rank + 1) % s->size, before = (s->rank + s->size - 1) % s->size;
    char *packed = s->what->outer > 1 ? luda__steps_scratch(s, s->numel * s->width) : s->what->out;
    if (!packed)
        return;
    memcpy(packed + s->rank * piece, s->what->in, (size_t)piece);
    for (int step = 0; step < s->size - 1; step++)
        luda__expect(s, before, (uint32_t)step, packed + (s->rank - step - 1 + 2 * s->size) % s->size * piece, piece);
    for (int step = 0; step < s->size - 1; step++) {
        luda__give(s, next, (uint32_t)step, packed + (s->rank - step + s->size) % s->size * piece, piece);
        if (!luda__arrived(s, (uint32_t)step))
            return;
    }
    if (s->what->outer > 1)
        repack(s, packed, s->what->out, row, false);
}

static void reduce_scatter(luda_steps *s)
{
    const void *in = packed_input(s, s->numel / s->size * s->width / s->what->outer);
    if (in)
        direct_reduce(s, in, s->what->out, LUDA_MAX_RANKS);
}

static void scatter(luda_steps *s)
{
    int64_t piece = s->numel / s->size * s->width;
    int root = s->what->agreed.root;
    if (root == s->rank) {
        const char *in = packed_input(s, piece / s->what->outer);
        for (int q = 0; q < s->size && in; q++)
            if (q != root)
                luda__give(s, q, 0, in + q * piece, piece);
        if (in)
            memcpy(s->what->out, in + root * piece, (size_t)piece);
    } else {
        luda__expect(s, root, 0, s->what->out, piece);
    }
    luda__arrived(s, 0);
}

static void all_to_all(luda_steps *s)
{
    int64_t piece = s->numel / s->size * s->width, row = piece / s->what->outer;
    const char *in = packed_input(s, row);
    char *packed = s->what->outer > 1 ? luda__steps_scratch(s, s->numel * s->width) : s->what->out;
    if (!in || !packed)
        return;
    for (int i = 1; i < s->size; i++) {
        int to = (s->rank + i) % s->size, from = (s->rank + s->size - i) % s->size;
        luda__give(s, to, 0, in + to * piece, piece);
        luda__expect(s, from, 0, packed + from * piece, piece);
    }
    memcpy(packed + s->rank * piece, in + s->rank * piece, (size_t)piece);
    if (luda__arrived(s, 0) && s->what->outer > 1)
        repack(s, packed, s->what->out, row, false);
}

static void broadcast(luda_steps *s)
{
    int64_t bytes = s->numel * s->width;
    int root = s->what->agreed.root;
    if (root == s->rank)
        memcpy(s->what->out, s->what->in, (size_t)bytes);
    if (s->what->agreed.algorithm == LUDA_ALGORITHM_TREE) {
        luda__tree_broadcast(s, s->what->out, bytes, root, 0);
        return;
    }
    for (int i = 1; i < s->size && root == s->rank; i++)
        luda__give(s, (root + i) % s->size, 0, s->what->out, bytes);
    if (root != s->rank)
        luda__expect(s, root, 0, s->what->out, bytes);
    luda__arrived(s, 0);
}

/* --- Which algorithms an operation has --- */

typedef void (*reducing)(luda_steps *s, const void *in, void *out, int root);
static const reducing reducers[LUDA_ALGORITHM_COUNT] = {
    [LUDA_ALGORITHM_DIRECT] = direct_reduce,     [LUDA_ALGORITHM_RING] = luda__ring_reduce,
    [LUDA_ALGORITHM_TREE] = luda__tree_reduce,   [LUDA_ALGORITHM_HALVING] = luda__halving_reduce,
    [LUDA_ALGORITHM_CENTRALIZED] = luda__centralized_reduce,
};

luda_algorithm luda__algorithm_for(luda_comm_call call, luda_algorithm wanted, int size)
{
    static const bool has[LUDA_CALL_COUNT][LUDA_ALGORITHM_COUNT] = {
        [LUDA_CALL_ALL_REDUCE] = { [LUDA_ALGORITHM_RING] = true,
                                   [LUDA_ALGORITHM_TREE] = true,
                                   [LUDA_ALGORITHM_HALVING] = true,
                                   [LUDA_ALGORITHM_CENTRALIZED] = true },
        [LUDA_CALL_REDUCE] = { [LUDA_ALGORITHM_TREE] = true, [LUDA_ALGORITHM_CENTRALIZED] = true },
        [LUDA_CALL_BROADCAST] = { [LUDA_ALGORITHM_TREE] = true, [LUDA_ALGORITHM_CENTRALIZED] = true },
        [LUDA_CALL_ALL_GATHER] = { [LUDA_ALGORITHM_RING] = true },
    };
    enum { MANY = 32 }; /* ranks: beyond, P-1 messages at once cost more than 2 log2 P in a row */
    if (wanted == LUDA_ALGORITHM_AUTO)
        return size > MANY && call == LUDA_CALL_ALL_REDUCE ? LUDA_ALGORITHM_HALVING : LUDA_ALGORITHM_DIRECT;
    if (wanted <= LUDA_ALGORITHM_DIRECT)
        return LUDA_ALGORITHM_DIRECT;
    return has[call][wanted] ? wanted : LUDA_ALGORITHM_DEFAULT;
}

static void all_reduce(luda_steps *s)
{
    reducers[s->what->agreed.algorithm](s, s->what->in, s->what->out, -1);
}

static void reduce(luda_steps *s)
{
    reducers[s->what->agreed.algorithm](s, s->what->in, s->what->out, s->what->agreed.root);
}

static void all_gather(luda_steps *s)
{
    if (s->what->agreed.algorithm == LUDA_ALGORITHM_RING)
        ring_gather(s);
    else
        gather_to(s, -1);
}

static void gather(luda_steps *s)
{
    gather_to(s, s->what->agreed.root);
}

luda_status luda__run_steps(luda_collective_run *run)
{
    static void (*const moves[LUDA_CALL_COUNT])(luda_steps *) = {
        [LUDA_CALL_ALL_REDUCE] = all_reduce,         [LUDA_CALL_REDUCE] = reduce,   [LUDA_CALL_BROADCAST] = broadcast,
        [LUDA_CALL_ALL_GATHER] = all_gather,         [LUDA_CALL_GATHER] = gather,   [LUDA_CALL_SCATTER] = scatter,
        [LUDA_CALL_REDUCE_SCATTER] = reduce_scatter, [LUDA_CALL_ALL_TO_ALL] = all_to_all,
    };
    const luda_collective *what = &run->what;
    luda_steps s = { .run = run,
                     .what = what,
                     .rank = what->rank,
                     .size = what->size,
                     .operation = what->agreed.operation,
                     .dtype = (luda_dtype)what->agreed.dtype,
                     .reduction = (luda_reduction)what->agreed.reduction };
    luda_comm_fault fault;
    s.width = what->agreed.dtype < 0 ? 0 : luda_dtype_size(s.dtype);
    s.numel = what->outer * what->count * what->inner;
    if (s.width > 0 && s.numel > 0)
        moves[s.operation](&s);
    if (s.status == LUDA_OK && luda__mail_flush(&run->wait, &fault) != LUDA_OK)
        s.status = luda__run_fault(run, &fault);
    if (s.status != LUDA_OK) {
        /* Scratch memory may be on its way in or out. */
        if (run->comm->transport.withdraw)
            run->comm->transport.withdraw(run->comm->transport.state);
        luda__mail_withdraw(run->comm->board, s.rank, run->wait.sequence);
    }
    for (int i = 0; i < s.scratches; i++)
        free(s.scratch[i]);
    return s.status;
}
