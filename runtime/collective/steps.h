/*
 * Algorithms as step lists over a transport's messages. A step is (number, peer, piece of memory); sends never block. The
 * lists (moves.c, algorithms.c) know the machine only by what stands here, so that a simulator can take its place.
 */
#ifndef LUDA_STEPS_H
#define LUDA_STEPS_H

#include "collective.h"

/* The data phase of one call. Sticky: after the first failure nothing more is done. */
typedef struct luda_steps {
    luda_collective_run *run; /* for the machine alone */
    const luda_collective *what;
    int rank, size, operation;
    luda_dtype dtype;
    luda_reduction reduction;
    int64_t width;   /* bytes of an element */
    int64_t numel;   /* of the joined tensor */
    luda_status status;
    void *scratch[8]; /* freed at the end, when nothing is on its way any more */
    int scratches;
} luda_steps;

/* --- The machine (steps.c) --- */

void luda__give(luda_steps *s, int to, uint32_t step, const void *data, int64_t bytes);
void luda__expect(luda_steps *s, int from, uint32_t step, void *memory, int64_t bytes);
/* Waits for everything expected up to a step; false after a failure. */
bool luda__arrived(luda_steps *s, uint32_t step);
/* Memory until the end of the call, for messages or for a list's own tables; NULL after a failure. */
void *luda__steps_scratch(luda_steps *s, int64_t bytes);
void *luda__steps_table(luda_steps *s, int64_t bytes);
void luda__steps_copy(luda_steps *s, void *to, const void *from, int64_t bytes);
/* Ends the call: a rank sends another length than this rank was told to expect. */
void luda__steps_refuse(luda_steps *s, int from, int64_t length);

/* --- Lists (moves.c): what every rank of the call does --- */

void luda__steps_run(luda_steps *s);
void luda__steps_counts(luda_steps *s, int64_t *received);

enum {
    LUDA_AT_ONCE_BYTES = 1 << 10, /* direct: a sum of no more than this is made by all, of what all send to all */
    LUDA_CHUNK_BYTES = 1 << 20, /* direct: a slice is summed in pieces of this while later ones travel */
    LUDA_PIPE_BYTES = 1 << 18   /* the others: what is passed on while more comes in */
};

/* One piece a rank, where they lie together rank after rank; elements. */
typedef struct luda_pieces {
    int64_t *start, *count;
    int64_t most;
} luda_pieces;

static inline int64_t luda__part_bytes(int64_t count, int64_t part, uint32_t index, int64_t width)
{
    int64_t left = count - index * part;
    return (left < 0 ? 0 : left < part ? left : part) * width;
}

static inline uint32_t luda__parts(int64_t count, int64_t part)
{
    return (uint32_t)((count + part - 1) / part);
}

/* False after a failure. luda__slices: balanced ones of the whole; luda__pieces: as the call cuts or joins. */
bool luda__slices(luda_steps *s, luda_pieces *p);
bool luda__pieces(luda_steps *s, const int64_t *sizes, luda_pieces *p);
/* Between a tensor whose pieces lie along an axis and pieces that lie together, piece q at at[q]. */
void luda__pack(luda_steps *s, const luda_pieces *p, const int64_t *at, const void *loose, void *packed);
void luda__unpack(luda_steps *s, const luda_pieces *p, const int64_t *at, const void *packed, void *loose);
/* The call's input with pieces together: itself, where it has nothing in front of the axis. */
const void *luda__packed_input(luda_steps *s, const luda_pieces *p);

/*
 * Sums in the partial type (float for halves), so that each element is rounded once: elements [start, start + count) of
 * `in` are loaded, met by others in the partial type, and finished.
 */
static inline int64_t luda__partial_width(const luda_steps *s)
{
    return luda_dtype_size(luda__reducer(s->dtype)->partial);
}

static inline void luda__load(const luda_steps *s, const void *in, char *partial, int64_t start, int64_t count)
{
    if (s->status == LUDA_OK)
        luda__reducer(s->dtype)->load((const char *)in + start * s->width, partial + start * luda__partial_width(s), count);
}

static inline void luda__combine(const luda_steps *s, void *partial, const void *source, int64_t count)
{
    luda__reducer(luda__reducer(s->dtype)->partial)->combine[s->reduction](partial, source, count);
}

static inline void luda__finish(const luda_steps *s, const void *partial, void *out, int64_t count)
{
    luda__reducer(s->dtype)->store(partial, s->reduction == LUDA_REDUCE_MEAN ? s->size : 1, out, count);
}

/* --- Lists of named algorithms (algorithms.c, halving.c): on every rank, or on `root` only (-1: every rank) --- */

void luda__ring_reduce(luda_steps *s, const void *in, void *out, int root);
void luda__tree_reduce(luda_steps *s, const void *in, void *out, int root);
void luda__halving_reduce(luda_steps *s, const void *in, void *out, int root);
void luda__centralized_reduce(luda_steps *s, const void *in, void *out, int root);
void luda__ring_scatter(luda_steps *s);
void luda__halving_scatter(luda_steps *s);
void luda__ring_gather(luda_steps *s);
void luda__doubling_gather(luda_steps *s);
void luda__tree_broadcast(luda_steps *s);
void luda__tree_gather(luda_steps *s);
void luda__tree_scatter(luda_steps *s);

#endif
