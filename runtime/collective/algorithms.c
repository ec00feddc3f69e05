/*
 * The other algorithms, by name. Sums travel in the partial type (float for halves), so that each element is rounded once;
 * an element's sum is finished on one rank and copied to the others, so that all have the same bits. Scratch memory is
 * given per algorithm, S being the whole tensor in the partial type; what comes before it is expected, the board keeps.
 */
#include "steps.h"

/* --- Ring: P-1 steps to reduce and P-1 to gather, S (P-1)/P bytes each, to the next rank only --- */

typedef struct ring {
    const luda_pieces *pieces;
    int next, before;
    int64_t part;   /* elements that travel at once */
    uint32_t parts; /* of the longest piece: step t takes the numbers from t * parts */
} ring;

static ring make_ring(const luda_steps *s, const luda_pieces *pieces, int64_t width)
{
    int64_t part = LUDA_PIPE_BYTES / width;
    return (ring){ pieces, (s->rank + 1) % s->size, (s->rank + s->size - 1) % s->size, part,
                   luda__parts(pieces->most, part) };
}

static int back(const luda_steps *s, int steps)
{
    return (s->rank - steps % s->size + s->size) % s->size;
}

static void ring_give(luda_steps *s, const ring *r, uint32_t step, uint32_t c, int q, const char *data, int64_t width)
{
    luda__give(s, r->next, step * r->parts + c, data + (r->pieces->start[q] + c * r->part) * width,
               luda__part_bytes(r->pieces->count[q], r->part, c, width));
}

/*
 * Leaves piece `rank` of the partial sums complete here: it starts at the next rank and comes around. A part is passed on
 * as soon as it is summed. Scratch 2 S/P.
 */
static void ring_halfway(luda_steps *s, const ring *r, char *partial)
{
    const luda_pieces *p = r->pieces;
    int64_t width = luda__partial_width(s);
    uint32_t rounds = (uint32_t)s->size - 1;
    char *incoming = luda__steps_scratch(s, 2 * p->most * width);
    for (uint32_t c = 0; c < r->parts && incoming && rounds > 0; c++)
        ring_give(s, r, 0, c, back(s, 1), partial, width);
    for (uint32_t t = 0; t <= rounds && incoming; t++) {
        /* Step t is expected before step t - 1 is worked off, in the half that step t - 2 has left. */
        int q = back(s, (int)t + 2), worked = back(s, (int)t + 1);
        for (uint32_t c = 0; c < r->parts && t < rounds; c++)
            luda__expect(s, r->before, t * r->parts + c, incoming + (t % 2 * p->most + c * r->part) * width,
                         luda__part_bytes(p->count[q], r->part, c, width));
        for (uint32_t c = 0; c < r->parts && t > 0; c++) {
            int64_t at = c * r->part, count = luda__part_bytes(p->count[worked], r->part, c, 1);
            if (!luda__arrived(s, (t - 1) * r->parts + c))
                return;
            luda__combine(s, partial + (p->start[worked] + at) * width, incoming + ((t - 1) % 2 * p->most + at) * width, count);
            if (t < rounds)
                ring_give(s, r, t, c, worked, partial, width);
        }
    }
}

/* Piece `rank` of `data` becomes everybody's; step numbers from `first`, in units of a round. */
static void ring_around(luda_steps *s, const ring *r, char *data, uint32_t first)
{
    const luda_pieces *p = r->pieces;
    uint32_t rounds = (uint32_t)s->size - 1;
    for (uint32_t t = 0; t < rounds; t++)
        for (uint32_t c = 0; c < r->parts; c++)
            luda__expect(s, r->before, (first + t) * r->parts + c,
                         data + (p->start[back(s, (int)t + 1)] + c * r->part) * s->width,
                         luda__part_bytes(p->count[back(s, (int)t + 1)], r->part, c, s->width));
    for (uint32_t t = 0; t <= rounds; t++)
        for (uint32_t c = 0; c < r->parts; c++) {
            if (t > 0 && !luda__arrived(s, (first + t - 1) * r->parts + c))
                return;
            if (t < rounds)
                ring_give(s, r, first + t, c, back(s, (int)t), data, s->width);
        }
}

/* Scratch S (1 + 2/P). */
void luda__ring_reduce(luda_steps *s, const void *in, void *out, int root)
{
    luda_pieces p;
    int64_t width = luda__partial_width(s), own;
    char *partial = luda__slices(s, &p) ? luda__steps_scratch(s, s->numel * width) : NULL, *mine;
    ring r;
    if (!partial)
        return;
    own = p.start[s->rank];
    mine = (char *)out + own * s->width;
    r = make_ring(s, &p, width);
    luda__load(s, in, partial, 0, s->numel);
    ring_halfway(s, &r, partial);
    if (s->status != LUDA_OK)
        return;
    luda__finish(s, partial + own * width, mine, p.count[s->rank]);
    ring_around(s, &r, out, (uint32_t)s->size - 1);
}

/* Scratch S (1 + 2/P), and S where there is something in front of the axis. */
void luda__ring_scatter(luda_steps *s)
{
    luda_pieces p;
    int64_t width = luda__partial_width(s);
    const void *in = luda__pieces(s, s->what->sizes, &p) ? luda__packed_input(s, &p) : NULL;
    char *partial = luda__steps_scratch(s, s->numel * width);
    ring r;
    if (!partial)
        return;
    r = make_ring(s, &p, width);
    luda__load(s, in, partial, 0, s->numel);
    ring_halfway(s, &r, partial);
    if (s->status == LUDA_OK)
        luda__finish(s, partial + p.start[s->rank] * width, s->what->out, p.count[s->rank]);
}

/* Scratch S where there is something in front of the axis. */
void luda__ring_gather(luda_steps *s)
{
    luda_pieces p;
    bool loose = s->what->outer > 1;
    char *packed = s->what->out;
    ring r;
    if (!luda__pieces(s, s->what->sizes, &p))
        return;
    if (loose)
        packed = luda__steps_scratch(s, s->numel * s->width);
    r = make_ring(s, &p, s->width);
    luda__steps_copy(s, packed + p.start[s->rank] * s->width, s->what->in, p.count[s->rank] * s->width);
    if (s->status == LUDA_OK)
        ring_around(s, &r, packed, 0);
    if (loose)
        luda__unpack(s, &p, p.start, packed, s->what->out);
}

/* --- Tree of k children: S bytes up and S down each edge, in parts that follow each other --- */

/* Ranks as positions in a tree whose top is the root; the children of position a are k a + 1 to k a + k. */
typedef struct tree {
    int top, arity, at, height; /* height: edges from the top to the deepest */
} tree;

static tree make_tree(const luda_steps *s, int top)
{
    tree t = { top, s->what->agreed.arity, (s->rank - top + s->size) % s->size, 0 };
    for (int deep = s->size - 1; deep > 0; deep = (deep - 1) / t.arity)
        t.height++;
    return t;
}

static int rank_at(const luda_steps *s, const tree *t, int position)
{
    return (position + t->top) % s->size;
}

static int parent(const luda_steps *s, const tree *t)
{
    return rank_at(s, t, (t->at - 1) / t->arity);
}

static int first_child(const luda_steps *s, const tree *t, int position)
{
    int64_t first = (int64_t)t->arity * position + 1;
    return first < s->size ? (int)first : s->size;
}

static int end_child(const luda_steps *s, const tree *t, int position)
{
    int64_t end = (int64_t)t->arity * position + t->arity + 1;
    return end < s->size ? (int)end : s->size;
}

void luda__tree_broadcast(luda_steps *s)
{
    tree t = make_tree(s, s->what->agreed.root);
    char *data = s->what->out;
    uint32_t parts = luda__parts(s->numel * s->width, LUDA_PIPE_BYTES);
    if (t.at == 0)
        luda__steps_copy(s, data, s->what->in, s->numel * s->width);
    for (uint32_t c = 0; c < parts && t.at > 0; c++)
        luda__expect(s, parent(s, &t), c, data + (int64_t)c * LUDA_PIPE_BYTES,
                     luda__part_bytes(s->numel * s->width, LUDA_PIPE_BYTES, c, 1));
    for (uint32_t c = 0; c < parts && luda__arrived(s, c); c++)
        for (int child = first_child(s, &t, t.at); child < end_child(s, &t, t.at); child++)
            luda__give(s, rank_at(s, &t, child), c, data + (int64_t)c * LUDA_PIPE_BYTES,
                       luda__part_bytes(s->numel * s->width, LUDA_PIPE_BYTES, c, 1));
}

/*
 * All-reduce moves parts up and down at once, in rounds: in round i part i goes up and part i - lag comes down. From one
 * position to the top and back a part passes height + depth - (height below) edges, and twice as many rounds leave time
 * for latency; the top has no lag.
 */
static uint32_t lag_of(const luda_steps *s, const tree *t, int position)
{
    int rounds = t->height;
    if (position == 0)
        return 0;
    for (int p = position; p > 0; p = (p - 1) / t->arity)
        rounds++;
    for (int p = first_child(s, t, position); p < s->size; p = first_child(s, t, p))
        rounds--;
    return 2 * (uint32_t)rounds + 2;
}

/* Parts going up have even step numbers. */
static uint32_t down_step(uint32_t part, uint32_t lag)
{
    return 2 * (part + lag) + 1;
}

/* Own values, then each child's sum, first child first. Scratch S (1 + k). */
void luda__tree_reduce(luda_steps *s, const void *in, void *out, int root)
{
    tree t = make_tree(s, root < 0 ? 0 : root);
    int64_t width = luda__partial_width(s), part = LUDA_PIPE_BYTES / width;
    int first = first_child(s, &t, t.at), children = end_child(s, &t, t.at) - first;
    uint32_t parts = luda__parts(s->numel, part), lag = root < 0 ? lag_of(s, &t, t.at) : 0;
    uint32_t *lags = luda__steps_table(s, (children + 1) * (int64_t)sizeof *lags);
    char *partial = luda__steps_scratch(s, s->numel * width);
    char *incoming = luda__steps_scratch(s, children * s->numel * width);
    for (int i = 0; i < children && incoming; i++)
        lags[i] = lag_of(s, &t, first + i);
    for (uint32_t c = 0; c < parts; c++) {
        int64_t count = luda__part_bytes(s->numel, part, c, 1);
        for (int i = 0; i < children && incoming; i++)
            luda__expect(s, rank_at(s, &t, first + i), 2 * c, incoming + (i * s->numel + c * part) * width, count * width);
        /* In place as well: it cannot come before our own part has gone up. */
        if (t.at > 0 && root < 0)
            luda__expect(s, parent(s, &t), down_step(c, lag), (char *)out + c * part * s->width, count * s->width);
    }
    for (uint32_t i = 0; i < parts + lag; i++) {
        uint32_t down = i - lag; /* wraps, beyond all parts, while nothing is due */
        if (i < parts) {
            int64_t at = i * part, count = luda__part_bytes(s->numel, part, i, 1);
            luda__load(s, in, partial, at, count);
            if (!luda__arrived(s, 2 * i))
                return;
            for (int child = 0; child < children; child++)
                luda__combine(s, partial + at * width, incoming + (child * s->numel + at) * width, count);
            if (t.at > 0)
                luda__give(s, parent(s, &t), 2 * i, partial + at * width, count * width);
            else
                luda__finish(s, partial + at * width, (char *)out + at * s->width, count);
        }
        if (root < 0 && down < parts) {
            if (t.at > 0 && !luda__arrived(s, down_step(down, lag)))
                return;
            for (int child = 0; child < children && s->status == LUDA_OK; child++)
                luda__give(s, rank_at(s, &t, first + child), down_step(down, lags[child]),
                           (char *)out + down * part * s->width, luda__part_bytes(s->numel, part, down, s->width));
        }
    }
}

/*
 * Positions below and at `position`, parents before children, subtree after subtree, into order; returns how many. The
 * order lists what one message of gather and scatter carries.
 */
static int subtree(const luda_steps *s, const tree *t, int position, int *order)
{
    int count = 0, at = position;
    for (;;) {
        order[count++] = at;
        if (first_child(s, t, at) < s->size) {
            at = first_child(s, t, at);
            continue;
        }
        /* Up, until there is a next sibling. */
        while (at != position && (at % t->arity == 0 || at + 1 >= s->size))
            at = (at - 1) / t->arity;
        if (at == position)
            return count;
        at++;
    }
}

/* Where the subtree's pieces lie in its message, by rank, in elements; the message's length. */
static int64_t place_subtree(luda_steps *s, const tree *t, const luda_pieces *p, int position, int *order, int64_t *at)
{
    int64_t total = 0;
    int count = subtree(s, t, position, order);
    for (int i = 0; i < count; i++) {
        int rank = rank_at(s, t, order[i]);
        at[rank] = total;
        total += p->count[rank];
    }
    return total;
}

typedef struct family {
    tree tree;
    luda_pieces pieces;
    int *order;
    int64_t *at, *ends; /* by rank: its place in my message; by child: where its message begins, and the end of the last */
    int64_t total;
    char *packed; /* the message of my subtree */
} family;

static bool make_family(luda_steps *s, family *f)
{
    int first, end;
    f->tree = make_tree(s, s->what->agreed.root);
    first = first_child(s, &f->tree, f->tree.at);
    end = end_child(s, &f->tree, f->tree.at);
    if (!luda__pieces(s, s->what->sizes, &f->pieces))
        return false;
    f->order = luda__steps_table(s, s->size * (int64_t)sizeof *f->order);
    f->at = luda__steps_table(s, (2 * s->size + 1) * (int64_t)sizeof *f->at);
    if (!f->at)
        return false;
    f->ends = f->at + s->size;
    f->total = f->pieces.count[s->rank];
    for (int child = first; child < end; child++) {
        f->ends[child - first] = f->total;
        f->total += place_subtree(s, &f->tree, &f->pieces, child, f->order, f->at);
    }
    f->ends[end > first ? end - first : 0] = f->total;
    if (f->tree.at == 0) /* the top also takes apart or puts together */
        place_subtree(s, &f->tree, &f->pieces, 0, f->order, f->at);
    f->packed = luda__steps_scratch(s, f->total * s->width);
    return f->packed != NULL;
}

/* log_k P steps; a node receives its subtree, the root S (P-1)/P bytes. Scratch: the subtree. */
void luda__tree_gather(luda_steps *s)
{
    family f;
    if (!make_family(s, &f))
        return;
    int first = first_child(s, &f.tree, f.tree.at), children = end_child(s, &f.tree, f.tree.at) - first;
    luda__steps_copy(s, f.packed, s->what->in, f.pieces.count[s->rank] * s->width);
    for (int i = 0; i < children; i++)
        luda__expect(s, rank_at(s, &f.tree, first + i), 0, f.packed + f.ends[i] * s->width,
                     (f.ends[i + 1] - f.ends[i]) * s->width);
    if (!luda__arrived(s, 0))
        return;
    if (f.tree.at > 0)
        luda__give(s, parent(s, &f.tree), 0, f.packed, f.total * s->width);
    else
        luda__unpack(s, &f.pieces, f.at, f.packed, s->what->out);
}

void luda__tree_scatter(luda_steps *s)
{
    family f;
    if (!make_family(s, &f))
        return;
    int first = first_child(s, &f.tree, f.tree.at), children = end_child(s, &f.tree, f.tree.at) - first;
    if (f.tree.at > 0)
        luda__expect(s, parent(s, &f.tree), 0, f.packed, f.total * s->width);
    else
        luda__pack(s, &f.pieces, f.at, s->what->in, f.packed);
    if (!luda__arrived(s, 0))
        return;
    for (int i = 0; i < children; i++)
        luda__give(s, rank_at(s, &f.tree, first + i), 0, f.packed + f.ends[i] * s->width,
                   (f.ends[i + 1] - f.ends[i]) * s->width);
    luda__steps_copy(s, s->what->out, f.packed, f.pieces.count[s->rank] * s->width);
}

/* --- Centralized: 2 steps, the root receives and sends S (P-1) bytes. Scratch there S (P-1) --- */

void luda__centralized_reduce(luda_steps *s, const void *in, void *out, int root)
{
    int center = root < 0 ? 0 : root;
    int64_t bytes = s->numel * s->width, part = LUDA_PIPE_BYTES / s->width;
    uint32_t parts = luda__parts(s->numel, part);
    const void **sources = luda__steps_table(s, s->size * (int64_t)sizeof *sources);
    char *scratch = s->rank == center ? luda__steps_scratch(s, bytes * s->size) : NULL;
    for (uint32_t c = 0; c < parts; c++) {
        int64_t at = c * part * s->width, length = luda__part_bytes(s->numel, part, c, s->width);
        for (int q = 0; q < s->size && scratch; q++)
            if (q != center)
                luda__expect(s, q, c, scratch + q * bytes + at, length);
        if (s->rank != center)
            luda__give(s, center, c, (const char *)in + at, length);
    }
    for (uint32_t c = 0; c < parts && s->rank == center && luda__arrived(s, c); c++) {
        int64_t at = c * part * s->width, length = luda__part_bytes(s->numel, part, c, s->width);
        void *result = (char *)out + at;
        for (int q = 0; q < s->size; q++)
            sources[q] = q == center ? (const char *)in + at : scratch + q * bytes + at;
        luda__reduce_ranks(s->dtype, s->reduction, sources, s->size, &result, 1, length / s->width);
        for (int i = 1; i < s->size && root < 0; i++)
            luda__give(s, (center + i) % s->size, parts + c, result, length);
    }
    for (uint32_t c = 0; c < parts && s->rank != center && root < 0; c++)
        luda__expect(s, center, parts + c, (char *)out + c * part * s->width,
                     luda__part_bytes(s->numel, part, c, s->width));
    luda__arrived(s, 2 * parts);
}
