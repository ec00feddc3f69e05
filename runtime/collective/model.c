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
    double step = q->link->latency + one(q, part) + extra * part, busy = parts * one(q, part);
    return (q->ranks - 1) * fmax(step, busy) + (step < busy ? q->link->latency : busy - one(q, part));
}

static double power_below(double ranks)
{
    return exp2(floor(log2(ranks)));
}

/* log2 P exchanges of a half, a quarter, … of the whole. */
static double exchanges(const quest *q, double extra)
{
    double power = power_below(q->ranks);
    return log2(power) * (q->link->latency + q->link->message) +
           q->bytes * (power - 1) / power * (q->link->byte + extra);
}

static double fold(const quest *q, double bytes, double extra)
{
    return power_below(q->ranks) == q->ranks ? 0 : q->link->latency + one(q, bytes) + extra * bytes;
}

static double height(const quest *q, int arity)
{
    double levels = 0;
    for (int64_t deep = (int64_t)q->ranks - 1; deep > 0; deep = (deep - 1) / arity)
        levels++;
    return levels;
}

/* The first part goes through all levels, the others follow at the pace of one node. */
static double through_tree(const quest *q, int arity, double extra)
{
    double children = fmin(arity, q->ranks - 1), pace = children * one(q, q->part), work = children * extra * q->part;
    return height(q, arity) * (q->link->latency + pace + work) + (q->parts - 1) * fmax(pace, work);
}

/* Whole subtrees go from level to level. */
static double subtrees(const quest *q, int arity)
{
    double children = fmin(arity, q->ranks - 1), levels = height(q, arity), carried = q->bytes, sum = 0;
    for (double level = 0; level < levels; level++, carried = (carried - q->bytes / q->ranks) / arity)
        sum += q->link->latency + children * q->link->message + carried * q->link->byte;
    return sum;
}

static double central(const quest *q, double extra)
{
    double others = q->ranks - 1;
    return q->link->latency + others * (q->parts * q->link->message + q->bytes * q->link->byte) + extra * q->part * others;
}

/* --- Formulas --- */

typedef double (*formula)(const quest *q, int arity);

static double combine_share(const quest *q)
{
    double piece = q->bytes / q->ranks;
    return q->link->combine * (q->ranks - 1) * fmin(piece, LUDA_CHUNK_BYTES);
}

static double direct_all_reduce(const quest *q, int arity)
{
    return 2 * everybody(q, q->bytes / q->ranks) + combine_share(q);
}

static double direct_halfway(const quest *q, int arity)
{
    return everybody(q, q->bytes / q->ranks) + combine_share(q);
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
    return fold(q, q->bytes, q->link->combine) + exchanges(q, q->link->combine) + exchanges(q, 0) + fold(q, q->bytes, 0);
}

static double halving_scatter(const quest *q, int arity)
{
    return fold(q, q->bytes, q->link->combine) + exchanges(q, q->link->combine) + fold(q, q->bytes / q->ranks, 0);
}

static double doubling_gather(const quest *q, int arity)
{
    return fold(q, q->bytes / q->ranks, 0) + exchanges(q, 0) + fold(q, q->bytes, 0);
}

static double tree_all_reduce(const quest *q, int arity)
{
    quest first = *q;
    first.parts = 1; /* down: the last part follows the way up, and has only to come to the leaves */
    return through_tree(q, arity, q->link->combine) + through_tree(&first, arity, 0);
}

static double tree_reduce(const quest *q, int arity)
{
    return through_tree(q, arity, q->link->combine);
}

static double tree_broadcast(const quest *q, int arity)
{
    return through_tree(q, arity, 0);
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
    double least = 0.9 * luda__cost(call, best, ranks, bytes, link);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        double cost = luda__cost(call, others[i], ranks, bytes, link);
        if (cost >= 0 && cost < least) {
            least = cost;
            best = others[i];
        }
    }
    return best;
}
