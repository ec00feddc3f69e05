/* Scaled dot-product attention: what its kernels share, and how the work is cut. */
#ifndef LUDA_ATTENTION_H
#define LUDA_ATTENTION_H

#include "kernels/cpu/matrix/turn.h"

/* Queries of a tile; keys of a block, forward and backward; with fewer batch elements queries are cut into slabs. */
enum { TILE = 64, KEYS = 480, BACKWARD_KEYS = 240, MANY_BATCHES = 16, SLAB_QUERIES = 256 };

/* Operands are [..., rows, width] with equal leading dimensions; lse is [..., T]. */
typedef struct attention {
    const luda_operand *q, *k, *v, *out, *lse; /* inputs of the backward, or what the forward writes */
    const luda_operand *gradient, *dq, *dk, *dv;
    int64_t batch, queries, keys, width, value_width; /* B, T, S, D, E */
    int causal;
    double scale, dropout;
    uint64_t seed, counter;
    int64_t query_slabs, per_slab;
    atomic_int failed;
} attention;

static inline attention attention_plan(const luda_call *call, const luda_operand *q, const luda_operand *k,
                                       const luda_operand *v)
{
    const struct luda_attention_attrs *a = &call->attrs->attention;
    int n = q->ndim;
    attention w = { .q = q,
                    .k = k,
                    .v = v,
                    .queries = q->shape[n - 2],
                    .keys = k->shape[n - 2],
                    .width = q->shape[n - 1],
                    .value_width = v->shape[n - 1],
                    .causal = a->is_causal,
                    .scale = a->scale,
                    .dropout = a->dropout_p,
                    .seed = a->generator.seed,
                    .counter = a->generator.counter,
                    .batch = 1 };
    for (int d = 0; d < n - 2; d++)
        w.batch *= q->shape[d];
    if (w.scale == 0)
        w.scale = 1 / sqrt((double)larger(w.width, 1));
    w.per_slab = w.batch >= MANY_BATCHES ? larger(w.queries, 1) : SLAB_QUERIES;
    w.query_slabs = ceil_div(w.queries, w.per_slab);
    return w;
}

/* The offset of row `row` of batch element `batch`; `lead` leading dimensions, then the rows. */
static inline int64_t attention_row(const luda_operand *o, int lead, int64_t batch, int64_t row)
{
    int64_t offset = row * o->stride[lead];
    for (int d = lead - 1; d >= 0; d--) {
        offset += batch % o->shape[d] * o->stride[d];
        batch /= o->shape[d];
    }
    return offset;
}

/* How many of the keys from `first` on, at most `count`, query `query` sees. */
static inline int64_t visible_keys(const attention *w, int64_t query, int64_t first, int64_t count)
{
    if (!w->causal)
        return count;
    return larger(smaller(query + w->keys - w->queries - first + 1, count), 0);
}

#endif
