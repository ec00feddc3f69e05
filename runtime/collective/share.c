/*
 * Collectives where ranks read each other's memory. All-reduce moves every byte once if they also write it: rank r sums
 * slice r of everybody's input and writes it into everybody's output.
 */
#include "collective.h"

#include <string.h>

void luda__copy_rows(void *to, int64_t to_pitch, const void *from, int64_t from_pitch, int64_t bytes, int64_t rows)
{
    for (int64_t r = 0; r < rows && bytes > 0; r++)
        memcpy((char *)to + r * to_pitch, (const char *)from + r * from_pitch, (size_t)bytes);
}

/* What a rank needs of everybody's memory. */
typedef struct view {
    const luda_collective *call;
    const void *const *in;
    void *const *out; /* NULL: only this rank's own */
    int64_t whole, piece; /* bytes of one outer row: the joined tensor's, one rank's */
} view;

/* Sums a slice, or all, into the outputs of `targets` ranks. */
static void reduce_slice(const view *v, int first, int targets)
{
    const luda_collective *c = v->call;
    const void *sources[LUDA_MAX_RANKS];
    void *results[LUDA_MAX_RANKS];
    int64_t start, count, width = luda_dtype_size((luda_dtype)c->agreed.dtype);
    luda__slice(c->outer * c->count * c->inner, v->out ? c->size : 1, v->out ? c->rank : 0, &start, &count);
    if (count == 0)
        return;
    for (int q = 0; q < c->size; q++)
        sources[q] = (const char *)v->in[q] + start * width;
    for (int t = 0; t < targets; t++)
        results[t] = (char *)(v->out ? v->out[first + t] : c->out) + start * width;
    luda__reduce_ranks((luda_dtype)c->agreed.dtype, (luda_reduction)c->agreed.reduction, sources, c->size, results,
                       targets, count);
}

static void all_reduce(const view *v)
{
    reduce_slice(v, 0, v->out ? v->call->size : 1);
}

static void reduce(const view *v)
{
    if (v->out || v->call->rank == v->call->agreed.root)
        reduce_slice(v, v->call->agreed.root, 1);
}

static void broadcast(const view *v)
{
    if (v->call->out)
        luda__copy_rows(v->call->out, 0, v->in[v->call->agreed.root], 0, v->whole * v->call->outer, 1);
}

static void join(const view *v)
{
    const luda_collective *c = v->call;
    for (int q = 0; q < c->size && c->out; q++)
        luda__copy_rows((char *)c->out + q * v->piece, v->whole, v->in[q], v->piece, v->piece, c->outer);
}

static void reduce_scatter(const view *v)
{
    const luda_collective *c = v->call;
    const void *sources[LUDA_MAX_RANKS];
    int64_t count = v->piece / luda_dtype_size((luda_dtype)c->agreed.dtype);
    for (int64_t o = 0; o < c->outer && count > 0; o++) {
        void *result = (char *)c->out + o * v->piece;
        for (int q = 0; q < c->size; q++)
            sources[q] = (const char *)v->in[q] + o * v->whole + c->rank * v->piece;
        luda__reduce_ranks((luda_dtype)c->agreed.dtype, (luda_reduction)c->agreed.reduction, sources, c->size, &result,
                           1, count);
    }
}

static void scatter(const view *v)
{
    const luda_collective *c = v->call;
    if (c->out)
        luda__copy_rows(c->out, v->piece, (const char *)v->in[c->agreed.root] + c->rank * v->piece, v->whole, v->piece,
                        c->outer);
}

static void all_to_all(const view *v)
{
    const luda_collective *c = v->call;
    for (int q = 0; q < c->size; q++)
        luda__copy_rows((char *)c->out + q * v->piece, v->whole, (const char *)v->in[q] + c->rank * v->piece, v->whole,
                        v->piece, c->outer);
}

void luda__share(const luda_collective *call, const void *const *in, void *const *out)
{
    static void (*const moves[LUDA_CALL_COUNT])(const view *) = {
        [LUDA_CALL_ALL_REDUCE] = all_reduce,
        [LUDA_CALL_REDUCE] = reduce,
        [LUDA_CALL_BROADCAST] = broadcast,
        [LUDA_CALL_ALL_GATHER] = join,
        [LUDA_CALL_REDUCE_SCATTER] = reduce_scatter,
        [LUDA_CALL_GATHER] = join,
        [LUDA_CALL_SCATTER] = scatter,
        [LUDA_CALL_ALL_TO_ALL] = all_to_all,
    };
    view v = { .call = call, .in = in, .out = out };
    v.whole = call->count * call->inner * luda_dtype_size((luda_dtype)call->agreed.dtype);
    v.piece = v.whole / call->size;
    moves[call->agreed.operation](&v);
}
