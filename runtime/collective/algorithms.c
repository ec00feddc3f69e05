/*
 * The other reducing algorithms, by name. Sums travel in the partial type (float for halves), so that each element is
 * rounded once; an element's sum is finished on one rank and copied to the others, so that all have the same bits.
 */
#include "steps.h"

#include <string.h>

static int64_t partial_width(const luda_steps *s)
{
    return luda_dtype_size(luda__reducer(s->dtype)->partial);
}

/* This rank's values in the partial type. */
static char *load_partial(luda_steps *s, const void *in)
{
    char *partial = luda__steps_scratch(s, s->numel * partial_width(s));
    if (partial)
        luda__reducer(s->dtype)->load(in, partial, s->numel);
    return partial;
}

static void combine(const luda_steps *s, void *partial, const void *source, int64_t count)
{
    luda__reducer(luda__reducer(s->dtype)->partial)->combine[s->reduction](partial, source, count);
}

static void finish(const luda_steps *s, const void *partial, void *out, int64_t count)
{
    luda__reducer(s->dtype)->store(partial, s->reduction == LUDA_REDUCE_MEAN ? s->size : 1, out, count);
}

/* --- Ring: 2 (P-1) steps, 2 S (P-1)/P bytes per rank, to the next rank only --- */

void luda__ring_reduce(luda_steps *s, const void *in, void *out, int root)
{
    int next = (s->rank + 1) % s->size, before = (s->rank + s->size - 1) % s->size, rounds = s->size - 1, mine = next;
    int64_t start, count, first, most, width = partial_width(s);
    char *partial = load_partial(s, in), *incoming;
    luda__slice(s->numel, s->size, 0, &first, &most);
    incoming = luda__steps_scratch(s, most * width);
    if (!incoming)
        return;
    for (int step = 0; step < rounds; step++) {
        luda__slice(s->numel, s->size, (s->rank - step + s->size) % s->size, &start, &count);
        luda__give(s, next, (uint32_t)step, partial + start * width, count * width);
        luda__slice(s->numel, s->size, (s->rank - step - 1 + 2 * s->size) % s->size, &start, &count);
        luda__expect(s, before, (uint32_t)step, incoming, count * width);
        if (!luda__arrived(s, (uint32_t)step))
            return;
        combine(s, partial + start * width, incoming, count);
    }
    luda__slice(s->numel, s->size, mine, &start, &count);
    finish(s, partial + start * width, (char *)out + start * s->width, count);
    for (int step = 0; step < rounds; step++) {
        luda__slice(s->numel, s->size, (mine - step + s->size) % s->size, &start, &count);
        luda__give(s, next, (uint32_t)(rounds + step), (char *)out + start * s->width, count * s->width);
        luda__slice(s->numel, s->size, (mine - step - 1 + 2 * s->size) % s->size, &start, &count);
        luda__expect(s, before, (uint32_t)(rounds + step), (char *)out + start * s->width, count * s->width);
        if (!luda__arrived(s, (uint32_t)(rounds + step)))
            return;
    }
}

/* --- Tree: 2 log2 P steps, S bytes up and S down each edge --- */

enum { ARITY = 2 };

/* Ranks as positions in a tree whose top is the root. */
static int position(const luda_steps *s, int root)
{
    return (s->rank - root + s->size) % s->size;
}

void luda__tree_broadcast(luda_steps *s, void *data, int64_t bytes, int root, uint32_t first_step)
{
    int at = position(s, root);
    if (at > 0) {
        luda__expect(s, ((at - 1) / ARITY + root) % s->size, first_step, data, bytes);
        if (!luda__arrived(s, first_step))
            return;
    }
    for (int child = ARITY * at + 1; child <= ARITY * at + ARITY && child < s->size; child++)
        luda__give(s, (child + root) % s->size, first_step, data, bytes);
}

void luda__tree_reduce(luda_steps *s, const void *in, void *out, int root)
{
    int top = root < 0 ? 0 : root, at = position(s, top);
    int64_t bytes = s->numel * partial_width(s);
    char *partial = load_partial(s, in), *incoming = luda__steps_scratch(s, bytes);
    for (int i = 1; i <= ARITY && ARITY * at + i < s->size; i++) {
        luda__expect(s, (ARITY * at + i + top) % s->size, (uint32_t)i, incoming, bytes);
        if (!luda__arrived(s, (uint32_t)i))
            return;
        combine(s, partial, incoming, s->numel);
    }
    if (s->status != LUDA_OK)
        return;
    if (at > 0)
        luda__give(s, ((at - 1) / ARITY + top) % s->size, (uint32_t)((at - 1) % ARITY + 1), partial, bytes);
    else
        finish(s, partial, out, s->numel);
    if (root < 0)
        luda__tree_broadcast(s, out, s->numel * s->width, top, ARITY + 1);
}

/* --- Halving and doubling: 2 log2 P steps, 2 S (P-1)/P bytes per rank; ranks beyond a power of two fold in first --- */

typedef struct range { int64_t start, count; } range;

static range half(range whole, bool upper)
{
    int64_t low = whole.count / 2;
    return upper ? (range){ whole.start + low, whole.count - low } : (range){ whole.start, low };
}

void luda__halving_reduce(luda_steps *s, const void *in, void *out, int root)
{
    enum { FOLD = 0, UNFOLD = 1, HALVE = 2, DOUBLE = 34, LEVELS = 32 };
    int power = 1, level = 0;
    range kept[LEVELS] = { { 0, s->numel } };
    int64_t width = partial_width(s);
    char *partial = load_partial(s, in), *incoming = luda__steps_scratch(s, s->numel * width);
    while (power * 2 <= s->size)
        power *= 2;
    if (s->rank >= power) {
        luda__give(s, s->rank - power, FOLD, partial, s->numel * width);
        luda__expect(s, s->rank - power, UNFOLD, out, s->numel * s->width);
        luda__arrived(s, UNFOLD);
        return;
    }
    if (s->rank + power < s->size) {
        luda__expect(s, s->rank + power, FOLD, incoming, s->numel * width);
        if (!luda__arrived(s, FOLD))
            return;
        combine(s, partial, incoming, s->numel);
    }
    for (int distance = power / 2; distance > 0 && s->status == LUDA_OK; distance /= 2, level++) {
        bool upper = s->rank & distance;
        range mine = half(kept[level], upper), theirs = half(kept[level], !upper);
        uint32_t step = (uint32_t)(HALVE + level);
        luda__give(s, s->rank ^ distance, step, partial + theirs.start * width, theirs.count * width);
        luda__expect(s, s->rank ^ distance, step, incoming, mine.count * width);
        if (!luda__arrived(s, step))
            return;
        combine(s, partial + mine.start * width, incoming, mine.count);
        kept[level + 1] = mine;
    }
    if (s->status != LUDA_OK)
        return;
    finish(s, partial + kept[level].start * width, (char *)out + kept[level].start * s->width, kept[level].count);
    for (int distance = 1; distance < power; distance *= 2, level--) {
        range theirs = half(kept[level - 1], !(s->rank & distance));
        uint32_t step = (uint32_t)(DOUBLE + LEVELS - level);
        luda__give(s, s->rank ^ distance, step, (char *)out + kept[level].start * s->width,
                   kept[level].count * s->width);
        luda__expect(s, s->rank ^ distance, step, (char *)out + theirs.start * s->width, theirs.count * s->width);
        if (!luda__arrived(s, step))
            return;
    }
    if (s->rank + power < s->size)
        luda__give(s, s->rank + power, UNFOLD, out, s->numel * s->width);
}

/* --- Centralized: 2 steps, the root receives and sends S (P-1) bytes --- */

void luda__centralized_reduce(luda_steps *s, const void *in, void *out, int root)
{
    int center = root < 0 ? 0 : root;
    int64_t bytes = s->numel * s->width;
    const void *sources[LUDA_MAX_RANKS];
    char *scratch;
    if (s->rank != center) {
        luda__give(s, center, 0, in, bytes);
        if (root < 0)
            luda__expect(s, center, 1, out, bytes);
        luda__arrived(s, 1);
        return;
    }
    scratch = luda__steps_scratch(s, bytes * s->size);
    for (int q = 0; q < s->size && scratch; q++) {
        sources[q] = q == center ? (const char *)in : scratch + q * bytes;
        if (q != center)
            luda__expect(s, q, 0, scratch + q * bytes, bytes);
    }
    if (!luda__arrived(s, 0))
        return;
    luda__reduce_ranks(s->dtype, s->reduction, sources, s->size, &out, 1, s->numel);
    for (int q = 0; q < s->size && root < 0; q++)
        if (q != center)
            luda__give(s, q, 1, out, bytes);
}
