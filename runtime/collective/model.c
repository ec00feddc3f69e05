/*
 * What a call is expected to take, by which algorithm `auto` chooses. A message of n bytes keeps the sender's and the
 * receiver's side of a connection busy for message + n * byte, and arrives `latency` later; a rank sends and receives at
 * the same time (LogGP: Alexandrov, Ionescu, Schauser & Scheiman 1995). Formulas are those of the step lists in moves.c,
 * algorithms.c and halving.c; scripts/simulate_collectives.lua compares them with a run of these lists.
 */
#include "steps.h"

#include <math.h>

luda_network luda__network(const int32_t settings[3])
{
    /* Reducing is memory traffic: 6 GB/s was measured on one core with operands out of cache. */
    return (luda_network){ .latency = settings[0] * 1e-9, .message = settings[1] * 1e-9,
                        .byte = 1e-6 / settings[2], .combine = 0.16e-9 };
}

/* --- The parts of which the formulas are made --- */

typedef struct quest {
    const luda_network *link;
    double ranks, bytes;
    double parts, part; /* messages of LUDA_PIPE_BYTES that the whole is cut into, and bytes of one */
} quest;

static double one(const quest *q, double bytes)
{
    return q->link->message + bytes * q->link->byte;
}

/* Every rank sends a piece to, and gets one from, every other. */
static double everybody(const quest *q, double piece)
{
    double messages = fmax(1, ceil(piece / LUDA_CHUNK_BYTES));
    return q->link->latency + (q->ranks - 1) * (messages * q->link->message + piece * q->link->byte);
}

/* One turn of a ring, whose parts are passed on while others come in. */
static double turn(const quest *q, double extra)
{
    double piece = q->bytes / q->ranks, parts = fmax(1, ceil(piece / LUDA_PIPE_BYTES)), part = piece / parts;
    double step = q->link->latency + one(q, part) + extra * part, busy = parts * fmax(one(q, part), extra * part);
    return (q->ranks - 1) * fmax(step, busy) + (step < busy ? q->link->latency : busy - one(q, part));
}

static double power_below(double ranks)
{
    return exp2(floor(log2(ranks)));
}

/* A message in parts that are summed while others come in. */
static double summed(const quest *q, double bytes)
{
    double parts = fmax(1, ceil(bytes / LUDA_PIPE_BYTES)), part = bytes / parts, work = q->link->combine * bytes;
    return q->link->latency + fmax(parts * one(q, part) + work / parts, one(q, part) + work);
}

static double whole(const quest *q, double bytes)
{
    return q->link->latency + one(q, bytes);
}

/*
 * log2 P' exchanges of a half, a quarter, … of the whole, P' being the power of two below P; of pieces, a half may hold those
 * of up to as many guests.
 */
static double exchanges(const quest *q, bool pieces, double (*exchange)(const quest *q, double bytes))
{
    double seconds = 0, power = power_below(q->ranks), guests = q->ranks - power;
    for (double blocks = power / 2; blocks >= 1; blocks /= 2)
        seconds += exchange(q, pieces ? q->bytes * (blocks + fmin(blocks, guests)) / q->ranks : q->bytes * blocks / power);
    return seconds;
}

/* Guests fold in, while the first exchange comes in already, and get their result at the end. */
static bool folds(const quest *q)
{
    return power_below(q->ranks) < q->ranks;
}

static double height(const quest *q, int arity)
{
    double levels = 0;
    for (int64_t deep = (int64_t)q->ranks - 1; deep > 0; deep = (deep - 1) / arity)
        levels++;
    return levels;
}

/* The leftmost way down a tree, which is the longest, from the bottom up. */
typedef struct way_up {
    int64_t at, last; /* position, the last position */
    int64_t deepest, stride;
    double children, deep; /* of the parent; those whose subtrees are as deep as the leftmost one */
} way_up;

static void look_at_parent(way_up *w, int arity)
{
    int64_t siblings = w->last - w->at + 1, deep = (w->last - w->deepest) / w->stride + 1;
    w->children = (double)(siblings < arity ? siblings : arity);
    w->deep = (double)(deep < arity ? deep : arity);
}

static way_up bottom(const quest *q, int arity)
{
    way_up w = { .last = (int64_t)q->ranks - 1, .stride = 1 };
    while (w.deepest * arity + 1 <= w.last)
        w.deepest = w.deepest * arity + 1;
    w.at = w.deepest;
    look_at_parent(&w, arity);
    return w;
}

static void step_up(way_up *w, int arity)
{
    w->at = (w->at - 1) / arity;
    w->stride *= arity;
    look_at_parent(w, arity);
}

/* The first part goes up; a node waits for those of its children that are as deep, and sums all. */
static double climb(const quest *q, int arity)
{
    double seconds = 0;
    for (way_up w = bottom(q, arity); w.at > 0; step_up(&w, arity))
        seconds += q->link->latency + w.deep * one(q, q->part) + w.children * q->link->combine * q->part;
    return seconds;
}

/* Most messages in a row over a way to the deepest level: the largest sum of digits + 1 of a number up to `most`. */
static double turns(int64_t most, int64_t place, int64_t levels, int arity)
{
    int64_t best = 0, above = 0;
    for (; levels > 0; levels--, place /= arity) {
        int64_t digit = most / place % arity;
        if (digit > 0 && above + digit + (levels - 1) * arity > best) /* smaller here, largest from here on */
            best = above + digit + (levels - 1) * arity;
        above += digit + 1;
    }
    return (double)(above > best ? above : best);
}

/* The first part goes down; the last child of a node waits for its siblings. */
static double descend(const quest *q, int arity)
{
    int64_t first = 0, level = 1, levels = 0;
    for (; first + level < (int64_t)q->ranks; levels++, level *= arity)
        first += level;
    double messages = arity == 1 ? (double)levels : turns((int64_t)q->ranks - 1 - first, level / arity, levels, arity);
    double above = (double)(levels - 1) * (q->link->latency + arity * one(q, q->part));
    return fmax(above, (double)levels * q->link->latency + messages * one(q, q->part));
}

static double pace(const quest *q, double messages, double sums)
{
    return (q->parts - 1) * fmax(messages * one(q, q->part), sums * q->link->combine * q->part);
}

static double subtree_size(int64_t at, int64_t last, int arity)
{
    int64_t size = 0;
    for (int64_t low = at, high = at; low <= last; low = low * arity + 1, high = high * arity + arity)
        size += (high < last ? high : last) - low + 1;
    return (double)size;
}

/*
 * Whole subtrees go from level to level. A node is ready after those of its children that are as deep as the leftmost, or
 * after all of them, of which the others are ready a level earlier.
 */
static double subtrees(const quest *q, int arity)
{
    double piece = q->bytes / q->ranks, ready = 0, earlier = 0, others = q->ranks - 1;
    if (arity == 1)
        return others * (q->link->latency + q->link->message + piece * q->link->byte * q->ranks / 2);
    for (way_up w = bottom(q, arity); w.at > 0; step_up(&w, arity)) {
        double all = w.children * q->link->message +
                     (subtree_size((w.at - 1) / arity, w.last, arity) - 1) * piece * q->link->byte;
        double deep = w.deep * one(q, subtree_size(w.at, w.last, arity) * piece);
        double next = q->link->latency + fmax(ready + fmin(deep, all), earlier + all);
        earlier = ready;
        ready = next;
    }
    return ready;
}

static double central(const quest *q, double extra)
{
    double others = q->ranks - 1, busy = others * (q->parts * q->link->message + q->bytes * q->link->byte);
    return q->link->latency + fmax(busy + extra * q->part * others, one(q, q->part) * others + extra * q->bytes * others);
}

/* --- Formulas --- */

typedef double (*formula)(const quest *q, int arity);

/* Everybody's slices come in, and are summed in parts. */
static double direct_sums(const quest *q)
{
    double piece = q->bytes / q->ranks, part = fmin(piece, LUDA_CHUNK_BYTES), work = q->link->combine * (q->ranks - 1);
    return fmax(everybody(q, piece) + work * part, everybody(q, part) + work * piece);
}

static double at_once(const quest *q)
{
    return everybody(q, q->bytes) + q->link->combine * (q->ranks - 1) * q->bytes;
}

static double direct_all_reduce(const quest *q, int arity)
{
    if (q->bytes <= LUDA_AT_ONCE_BYTES)
        return at_once(q);
    /* Sums go back while later parts are summed. */
    double piece = q->bytes / q->ranks, part = fmin(piece, LUDA_CHUNK_BYTES);
    return fmax(direct_sums(q) + everybody(q, part),
                2 * everybody(q, piece) + q->link->combine * (q->ranks - 1) * part);
}

static double direct_halfway(const quest *q, int arity)
{
    return direct_sums(q);
}

static double direct_gather(const quest *q, int arity)
{
    return everybody(q, q->bytes / q->ranks);
}

static double direct_broadcast(const quest *q, int arity)
{
    return q->link->latency + (q->ranks - 1) * one(q, q->bytes);
}

static double ring_all_reduce(const quest *q, int arity)
{
    return turn(q, q->link->combine) + turn(q, 0);
}

static double ring_scatter(const quest *q, int arity)
{
    return turn(q, q->link->combine);
}

static double ring_gather(const quest *q, int arity)
{
    return turn(q, 0);
}

static double halving_all_reduce(const quest *q, int arity)
{
    return exchanges(q, false, summed) + exchanges(q, false, whole) +
           (folds(q) ? summed(q, 1.5 * q->bytes) + whole(q, q->bytes) : 0);
}

static double halving_scatter(const quest *q, int arity)
{
    return exchanges(q, true, summed) + (folds(q) ? summed(q, 1.5 * q->bytes) + whole(q, q->bytes / q->ranks) : 0);
}

static double doubling_gather(const quest *q, int arity)
{
    return exchanges(q, true, whole) + (folds(q) ? whole(q, q->bytes / q->ranks) + whole(q, q->bytes) : 0);
}

static double tree_all_reduce(const quest *q, int arity)
{
    /* Both ways share a connection below the top. */
    double children = fmin(arity, q->ranks - 1);
    return climb(q, arity) + descend(q, arity) + pace(q, children + (height(q, arity) > 1), children);
}

static double tree_reduce(const quest *q, int arity)
{
    double children = fmin(arity, q->ranks - 1);
    return climb(q, arity) + pace(q, children, children);
}

static double tree_broadcast(const quest *q, int arity)
{
    return descend(q, arity) + pace(q, fmin(arity, q->ranks - 1), 0);
}

static double tree_gather(const quest *q, int arity)
{
    return subtrees(q, arity);
}

static double central_all_reduce(const quest *q, int arity)
{
    quest last = *q;
    last.parts = 1;
    last.bytes = q->part;
    return central(q, q->link->combine) + central(&last, 0);
}

static double central_reduce(const quest *q, int arity)
{
    return central(q, q->link->combine);
}

static const formula formulas[LUDA_CALL_COUNT][LUDA_ALGORITHM_COUNT] = {
    [LUDA_CALL_ALL_REDUCE] = { [LUDA_ALGORITHM_DIRECT] = direct_all_reduce,
                               [LUDA_ALGORITHM_RING] = ring_all_reduce,
                               [LUDA_ALGORITHM_TREE] = tree_all_reduce,
                               [LUDA_ALGORITHM_HALVING] = halving_all_reduce,
                               [LUDA_ALGORITHM_CENTRALIZED] = central_all_reduce },
    [LUDA_CALL_REDUCE] = { [LUDA_ALGORITHM_DIRECT] = direct_all_reduce,
                           [LUDA_ALGORITHM_TREE] = tree_reduce,
                           [LUDA_ALGORITHM_CENTRALIZED] = central_reduce },
    [LUDA_CALL_BROADCAST] = { [LUDA_ALGORITHM_DIRECT] = direct_broadcast, [LUDA_ALGORITHM_TREE] = tree_broadcast },
    [LUDA_CALL_ALL_GATHER] = { [LUDA_ALGORITHM_DIRECT] = direct_gather,
                               [LUDA_ALGORITHM_RING] = ring_gather,
                               [LUDA_ALGORITHM_HALVING] = doubling_gather },
    [LUDA_CALL_REDUCE_SCATTER] = { [LUDA_ALGORITHM_DIRECT] = direct_halfway,
                                   [LUDA_ALGORITHM_RING] = ring_scatter,
                                   [LUDA_ALGORITHM_HALVING] = halving_scatter },
    [LUDA_CALL_GATHER] = { [LUDA_ALGORITHM_DIRECT] = direct_gather, [LUDA_ALGORITHM_TREE] = tree_gather },
    [LUDA_CALL_SCATTER] = { [LUDA_ALGORITHM_DIRECT] = direct_gather, [LUDA_ALGORITHM_TREE] = tree_gather },
};

double luda__cost(luda_comm_call call, luda_way way, int ranks, double bytes, const luda_network *link)
{
    quest q = { .link = link, .ranks = ranks, .bytes = bytes };
    formula cost = formulas[call][way.algorithm];
    q.parts = fmax(1, ceil(bytes / LUDA_PIPE_BYTES));
    q.part = bytes / q.parts;
    return cost && ranks > 1 ? cost(&q, way.arity) : cost ? 0 : -1;
}

luda_way luda__choose(luda_comm_call call, int ranks, double bytes, const luda_network *link)
{
    static const luda_way others[] = {
        { LUDA_ALGORITHM_HALVING, 0 }, { LUDA_ALGORITHM_RING, 0 }, { LUDA_ALGORITHM_TREE, 1 }, { LUDA_ALGORITHM_TREE, 2 },
        { LUDA_ALGORITHM_TREE, 4 },    { LUDA_ALGORITHM_TREE, 8 }, { LUDA_ALGORITHM_CENTRALIZED, 0 },
    };
    luda_way best = { LUDA_ALGORITHM_DIRECT, 0 };
    /* Direct has the same bits over all transports: another must be worth it. */
    double least = 0.95 * luda__cost(call, best, ranks, bytes, link);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        double cost = luda__cost(call, others[i], ranks, bytes, link);
        if (cost >= 0 && cost < least) {
            least = cost;
            best = others[i];
        }
    }
    return best;
}
