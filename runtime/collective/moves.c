/* Step lists: pieces and how they are packed, the direct algorithms, and which list a call runs. */
#include "steps.h"

/* --- Pieces --- */

static bool new_pieces(luda_steps *s, luda_pieces *p)
{
    p->start = luda__steps_table(s, 2 * s->size * (int64_t)sizeof *p->start);
    p->count = p->start + s->size;
    p->most = 0;
    return p->start != NULL;
}

bool luda__slices(luda_steps *s, luda_pieces *p)
{
    if (!new_pieces(s, p))
        return false;
    for (int q = 0; q < s->size; q++)
        luda__slice(s->numel, s->size, q, &p->start[q], &p->count[q]);
    p->most = p->count[0];
    return true;
}

bool luda__pieces(luda_steps *s, const int64_t *sizes, luda_pieces *p)
{
    const luda_collective *what = s->what;
    int64_t start = 0;
    if (!new_pieces(s, p))
        return false;
    for (int q = 0; q < s->size; q++) {
        int64_t length = sizes ? sizes[q] : what->count / s->size;
        p->start[q] = start;
        p->count[q] = what->outer * length * what->inner;
        p->most = p->count[q] > p->most ? p->count[q] : p->most;
        start += p->count[q];
    }
    return true;
}

/* One piece's place in the loose tensor, whose rows hold all pieces. */
typedef struct strip {
    int64_t lead, row, pitch; /* bytes */
} strip;

static strip strip_of(const luda_steps *s, const luda_pieces *p, int q)
{
    int64_t outer = s->what->outer, last = s->size - 1, all = p->start[last] + p->count[last];
    return (strip){ p->start[q] / outer * s->width, p->count[q] / outer * s->width, all / outer * s->width };
}

void luda__pack(luda_steps *s, const luda_pieces *p, const int64_t *at, const void *loose, void *packed)
{
    for (int q = 0; q < s->size && s->status == LUDA_OK; q++) {
        strip t = strip_of(s, p, q);
        luda__copy_rows((char *)packed + at[q] * s->width, t.row, (const char *)loose + t.lead, t.pitch, t.row,
                        s->what->outer);
    }
}

void luda__unpack(luda_steps *s, const luda_pieces *p, const int64_t *at, const void *packed, void *loose)
{
    for (int q = 0; q < s->size && s->status == LUDA_OK; q++) {
        strip t = strip_of(s, p, q);
        luda__copy_rows((char *)loose + t.lead, t.pitch, (const char *)packed + at[q] * s->width, t.row, t.row,
                        s->what->outer);
    }
}

const void *luda__packed_input(luda_steps *s, const luda_pieces *p)
{
    void *packed;
    if (s->what->outer == 1)
        return s->what->in;
    packed = luda__steps_scratch(s, s->numel * s->width);
    if (packed)
        luda__pack(s, p, p->start, s->what->in, packed);
    return packed;
}

/* --- Direct: 2 steps, 2 S (P-1)/P bytes per rank; owner r sums slice r in rank order. Scratch S --- */

enum { EVERYBODY = -1, OWNERS = -2 };

/* Sums pieces at their owners and hands them to every rank, to one root, or to nobody else. */
static void direct_pieces(luda_steps *s, const luda_pieces *p, const void *in, void *out, int root)
{
    int64_t width = s->width, part = LUDA_CHUNK_BYTES / width, own = p->count[s->rank] * width;
    uint32_t parts = luda__parts(p->most, part);
    bool gets = root == EVERYBODY || root == s->rank;
    const void **sources = luda__steps_table(s, s->size * (int64_t)sizeof *sources);
    char *scratch = luda__steps_scratch(s, s->size * own), *mine = out;
    if (s->status != LUDA_OK)
        return;
    /* The owner's result goes where it belongs, or beside it where the rank gets no result. */
    if (gets)
        mine = (char *)out + p->start[s->rank] * width;
    else if (root >= 0)
        mine = scratch + s->rank * own;
    for (uint32_t c = 0; c < parts; c++)
        for (int i = 1; i < s->size; i++) {
            int to = (s->rank + i) % s->size, from = (s->rank + s->size - i) % s->size;
            luda__give(s, to, c, (const char *)in + (p->start[to] + c * part) * width,
                       luda__part_bytes(p->count[to], part, c, width));
            luda__expect(s, from, c, scratch + from * own + c * part * width,
                         luda__part_bytes(p->count[s->rank], part, c, width));
            if (gets)
                luda__expect(s, from, parts + c, (char *)out + (p->start[from] + c * part) * width,
                             luda__part_bytes(p->count[from], part, c, width));
        }
    for (uint32_t c = 0; c < parts && luda__arrived(s, c); c++) {
        int64_t bytes = luda__part_bytes(p->count[s->rank], part, c, width), offset = c * part * width;
        void *result = mine + offset;
        for (int q = 0; q < s->size; q++)
            sources[q] = q == s->rank ? (const char *)in + p->start[q] * width + offset : scratch + q * own + offset;
        if (bytes > 0)
            luda__reduce_ranks(s->dtype, s->reduction, sources, s->size, &result, 1, bytes / width);
        for (int i = 1; i < s->size; i++) {
            int to = (s->rank + i) % s->size;
            if (root == EVERYBODY || root == to)
                luda__give(s, to, parts + c, result, bytes);
        }
    }
    luda__arrived(s, 2 * parts);
}

/* Few bytes, which cost no more whole than in slices: who gets the sums makes them all. One step, scratch S P. */
static void direct_at_once(luda_steps *s, const void *in, void *out, int root)
{
    int64_t bytes = s->numel * s->width;
    bool gets = root == EVERYBODY || root == s->rank;
    const void **sources = luda__steps_table(s, s->size * (int64_t)sizeof *sources);
    char *scratch = luda__steps_scratch(s, s->size * bytes), *mine = scratch + s->rank * bytes;
    if (s->status != LUDA_OK)
        return;
    luda__steps_copy(s, mine, in, bytes); /* sums made in place must not change what is still on its way */
    for (int i = 1; i < s->size; i++) {
        int to = (s->rank + i) % s->size, from = (s->rank + s->size - i) % s->size;
        if (root == EVERYBODY || root == to)
            luda__give(s, to, 0, mine, bytes);
        if (gets)
            luda__expect(s, from, 0, scratch + from * bytes, bytes);
    }
    if (!luda__arrived(s, 0) || !gets)
        return;
    for (int q = 0; q < s->size; q++)
        sources[q] = scratch + q * bytes;
    luda__reduce_ranks(s->dtype, s->reduction, sources, s->size, &out, 1, s->numel);
}

static void direct_reduce(luda_steps *s, const void *in, void *out, int root)
{
    luda_pieces p;
    if (s->numel * s->width <= LUDA_AT_ONCE_BYTES)
        direct_at_once(s, in, out, root);
    else if (luda__slices(s, &p))
        direct_pieces(s, &p, in, out, root);
}

static void direct_reduce_scatter(luda_steps *s)
{
    luda_pieces p;
    const void *in = luda__pieces(s, s->what->sizes, &p) ? luda__packed_input(s, &p) : NULL;
    if (in)
        direct_pieces(s, &p, in, s->what->out, OWNERS);
}

/* One step, S (P-1)/P bytes received. Scratch S where a receiver has something in front of the axis. */
static void gather_to(luda_steps *s, int root)
{
    luda_pieces p;
    bool gets = root < 0 || root == s->rank, loose = gets && s->what->outer > 1;
    char *packed;
    if (!luda__pieces(s, s->what->sizes, &p))
        return;
    packed = loose ? luda__steps_scratch(s, s->numel * s->width) : s->what->out;
    for (int i = 1; i < s->size && s->status == LUDA_OK; i++) {
        int to = (s->rank + i) % s->size, from = (s->rank + s->size - i) % s->size;
        if (root < 0 || root == to)
            luda__give(s, to, 0, s->what->in, p.count[s->rank] * s->width);
        if (gets)
            luda__expect(s, from, 0, packed + p.start[from] * s->width, p.count[from] * s->width);
    }
    if (gets)
        luda__steps_copy(s, packed + p.start[s->rank] * s->width, s->what->in, p.count[s->rank] * s->width);
    if (luda__arrived(s, 0) && loose)
        luda__unpack(s, &p, p.start, packed, s->what->out);
}

static void direct_all_gather(luda_steps *s)
{
    gather_to(s, EVERYBODY);
}

static void direct_gather(luda_steps *s)
{
    gather_to(s, s->what->agreed.root);
}

static void direct_scatter(luda_steps *s)
{
    luda_pieces p;
    int root = s->what->agreed.root;
    if (!luda__pieces(s, s->what->sizes, &p))
        return;
    if (root == s->rank) {
        const char *in = luda__packed_input(s, &p);
        for (int i = 1; i < s->size && in; i++) {
            int to = (root + i) % s->size;
            luda__give(s, to, 0, in + p.start[to] * s->width, p.count[to] * s->width);
        }
        if (in)
            luda__steps_copy(s, s->what->out, in + p.start[root] * s->width, p.count[root] * s->width);
    } else {
        luda__expect(s, root, 0, s->what->out, p.count[s->rank] * s->width);
    }
    luda__arrived(s, 0);
}

enum { COUNTS = 0, VALUES = 1 }; /* steps of all_to_all */

static void send_counts(luda_steps *s, int64_t *received)
{
    const int64_t *sizes = s->what->sizes;
    for (int i = 1; i < s->size; i++) {
        int to = (s->rank + i) % s->size, from = (s->rank + s->size - i) % s->size;
        luda__give(s, to, COUNTS, &sizes[to], sizeof *sizes);
        luda__expect(s, from, COUNTS, &received[from], sizeof *received);
    }
    received[s->rank] = sizes[s->rank];
}

void luda__steps_counts(luda_steps *s, int64_t *received)
{
    send_counts(s, received);
    luda__arrived(s, COUNTS);
}

/* One step, S (P-1)/P bytes each way. Scratch 2 S where there is something in front of the axis. */
static void direct_all_to_all(luda_steps *s)
{
    const luda_collective *what = s->what;
    int64_t *told = NULL;
    luda_pieces sent, received;
    const char *in;
    char *packed = what->out;
    int64_t width = s->width;
    if (!luda__pieces(s, what->sizes, &sent) || !luda__pieces(s, what->received, &received))
        return;
    in = luda__packed_input(s, &sent);
    if (what->outer > 1)
        packed = luda__steps_scratch(s, (received.start[s->size - 1] + received.count[s->size - 1]) * width);
    if (what->agreed.sizes == LUDA_SIZES_GIVEN) {
        told = luda__steps_table(s, s->size * (int64_t)sizeof *told);
        if (told)
            send_counts(s, told);
    }
    for (int i = 1; i < s->size; i++) {
        int to = (s->rank + i) % s->size, from = (s->rank + s->size - i) % s->size;
        luda__give(s, to, VALUES, in + sent.start[to] * width, sent.count[to] * width);
        luda__expect(s, from, VALUES, packed + received.start[from] * width, received.count[from] * width);
    }
    luda__steps_copy(s, packed + received.start[s->rank] * width, in + sent.start[s->rank] * width,
                     sent.count[s->rank] * width);
    /* What was given is not waited for without knowing that it comes. */
    for (int q = 0; q < s->size && told && luda__arrived(s, COUNTS); q++)
        if (told[q] != what->received[q])
            luda__steps_refuse(s, q, told[q]);
    if (luda__arrived(s, VALUES) && what->outer > 1)
        luda__unpack(s, &received, received.start, packed, what->out);
}

/* One step, the root sends S (P-1) bytes. */
static void direct_broadcast(luda_steps *s)
{
    int64_t bytes = s->numel * s->width;
    int root = s->what->agreed.root;
    if (root == s->rank)
        luda__steps_copy(s, s->what->out, s->what->in, bytes);
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

static void all_reduce(luda_steps *s)
{
    reducers[s->what->agreed.algorithm](s, s->what->in, s->what->out, EVERYBODY);
}

static void reduce(luda_steps *s)
{
    reducers[s->what->agreed.algorithm](s, s->what->in, s->what->out, s->what->agreed.root);
}

/* To send everything from, or to, one rank is what direct does already. */
typedef void (*list)(luda_steps *s);
static const list lists[LUDA_CALL_COUNT][LUDA_ALGORITHM_COUNT] = {
    [LUDA_CALL_ALL_REDUCE] = { [LUDA_ALGORITHM_DIRECT] = all_reduce,
                               [LUDA_ALGORITHM_RING] = all_reduce,
                               [LUDA_ALGORITHM_TREE] = all_reduce,
                               [LUDA_ALGORITHM_HALVING] = all_reduce,
                               [LUDA_ALGORITHM_CENTRALIZED] = all_reduce },
    [LUDA_CALL_REDUCE] = { [LUDA_ALGORITHM_DIRECT] = reduce,
                           [LUDA_ALGORITHM_TREE] = reduce,
                           [LUDA_ALGORITHM_CENTRALIZED] = reduce },
    [LUDA_CALL_BROADCAST] = { [LUDA_ALGORITHM_DIRECT] = direct_broadcast,
                              [LUDA_ALGORITHM_TREE] = luda__tree_broadcast,
                              [LUDA_ALGORITHM_CENTRALIZED] = direct_broadcast },
    [LUDA_CALL_ALL_GATHER] = { [LUDA_ALGORITHM_DIRECT] = direct_all_gather,
                               [LUDA_ALGORITHM_RING] = luda__ring_gather,
                               [LUDA_ALGORITHM_HALVING] = luda__doubling_gather },
    [LUDA_CALL_REDUCE_SCATTER] = { [LUDA_ALGORITHM_DIRECT] = direct_reduce_scatter,
                                   [LUDA_ALGORITHM_RING] = luda__ring_scatter,
                                   [LUDA_ALGORITHM_HALVING] = luda__halving_scatter },
    [LUDA_CALL_GATHER] = { [LUDA_ALGORITHM_DIRECT] = direct_gather,
                           [LUDA_ALGORITHM_TREE] = luda__tree_gather,
                           [LUDA_ALGORITHM_CENTRALIZED] = direct_gather },
    [LUDA_CALL_SCATTER] = { [LUDA_ALGORITHM_DIRECT] = direct_scatter,
                            [LUDA_ALGORITHM_TREE] = luda__tree_scatter,
                            [LUDA_ALGORITHM_CENTRALIZED] = direct_scatter },
    [LUDA_CALL_ALL_TO_ALL] = { [LUDA_ALGORITHM_DIRECT] = direct_all_to_all },
};

luda_algorithm luda__algorithm_for(luda_comm_call call, luda_algorithm wanted)
{
    if (wanted == LUDA_ALGORITHM_AUTO)
        return lists[call][LUDA_ALGORITHM_RING] || lists[call][LUDA_ALGORITHM_TREE] ? wanted : LUDA_ALGORITHM_DIRECT;
    if (wanted <= LUDA_ALGORITHM_DIRECT)
        return LUDA_ALGORITHM_DIRECT;
    return lists[call][wanted] ? wanted : LUDA_ALGORITHM_DEFAULT;
}

void luda__steps_run(luda_steps *s)
{
    lists[s->operation][s->what->agreed.algorithm](s);
}
