/*
 * Recursive halving to reduce and doubling to gather, over blocks, one for each rank below the largest power of two P'.
 * Ranks from P' on fold in first: rank r hands its part to rank r - P' and gets its result from there at the end. log2 P'
 * steps and S (P'-1)/P' bytes each way; folding costs one step and up to S more, twice.
 */
#include "steps.h"

/* Step numbers in units of `parts`, of which a message has no more; a part is summed while the next one comes in. */
enum { FOLD = 0, HALVE = 1, DOUBLE = 32, UNFOLD = 63 };

typedef struct blocks {
    int power;
    int64_t part; /* elements of the partial type */
    uint32_t parts;
    int64_t *start; /* [power + 1], elements: block b ends where block b + 1 starts */
    int64_t *at;    /* [size]: where the call's pieces lie, that of rank b + power behind that of rank b; NULL: slices */
} blocks;

static bool make_blocks(luda_steps *s, const luda_pieces *p, blocks *b)
{
    int64_t end = 0;
    b->power = 1;
    b->part = LUDA_PIPE_BYTES / luda__partial_width(s);
    b->parts = luda__parts(s->numel, b->part);
    while (b->power * 2 <= s->size)
        b->power *= 2;
    b->start = luda__steps_table(s, (b->power + 1 + s->size) * (int64_t)sizeof *b->start);
    if (!b->start)
        return false;
    b->at = p ? b->start + b->power + 1 : NULL;
    b->start[b->power] = s->numel;
    for (int q = 0; q < b->power; q++) {
        int64_t count;
        if (!p) {
            luda__slice(s->numel, b->power, q, &b->start[q], &count);
            continue;
        }
        b->start[q] = end;
        for (int r = q; r < s->size; r += b->power) {
            b->at[r] = end;
            end += p->count[r];
        }
    }
    return true;
}

static bool has_guest(const luda_steps *s, const blocks *b)
{
    return s->rank + b->power < s->size;
}

static void give_parts(luda_steps *s, const blocks *b, int to, uint32_t step, const char *partial, int64_t count)
{
    int64_t width = luda__partial_width(s);
    for (uint32_t c = 0; c * b->part < count; c++)
        luda__give(s, to, step * b->parts + c, partial + c * b->part * width, luda__part_bytes(count, b->part, c, width));
}

static bool take_parts(luda_steps *s, const blocks *b, int from, uint32_t step, char *partial, char *incoming, int64_t count)
{
    int64_t width = luda__partial_width(s);
    for (uint32_t c = 0; c * b->part < count; c++)
        luda__expect(s, from, step * b->parts + c, incoming + c * b->part * width,
                     luda__part_bytes(count, b->part, c, width));
    for (uint32_t c = 0; c * b->part < count; c++) {
        if (!luda__arrived(s, step * b->parts + c))
            return false;
        luda__combine(s, partial + c * b->part * width, incoming + c * b->part * width,
                      luda__part_bytes(count, b->part, c, 1));
    }
    return s->status == LUDA_OK;
}

/* Block `rank` of the sums is complete here afterwards; only ranks below the power take part. */
static void halve(luda_steps *s, const blocks *b, char *partial, char *incoming)
{
    int64_t width = luda__partial_width(s);
    int low = 0, high = b->power;
    uint32_t step = HALVE;
    for (int distance = b->power / 2; distance > 0; distance /= 2, step++) {
        int middle = low + distance;
        bool upper = s->rank & distance;
        int64_t kept = b->start[upper ? middle : low], kept_count = b->start[upper ? high : middle] - kept;
        int64_t given = b->start[upper ? low : middle], given_count = b->start[upper ? middle : high] - given;
        give_parts(s, b, s->rank ^ distance, step, partial + given * width, given_count);
        if (!take_parts(s, b, s->rank ^ distance, step, partial + kept * width, incoming, kept_count))
            return;
        *(upper ? &low : &high) = middle;
    }
}

/* Block `rank` of data becomes that of all ranks below the power. */
static void redouble(luda_steps *s, const blocks *b, char *data)
{
    uint32_t step = DOUBLE * b->parts;
    for (int distance = 1; distance < b->power; distance *= 2, step += b->parts) {
        int mine = s->rank & ~(distance - 1), theirs = mine ^ distance;
        int64_t start = b->start[mine], other = b->start[theirs];
        luda__give(s, s->rank ^ distance, step, data + start * s->width, (b->start[mine + distance] - start) * s->width);
        luda__expect(s, s->rank ^ distance, step, data + other * s->width,
                     (b->start[theirs + distance] - other) * s->width);
        if (!luda__arrived(s, step))
            return;
    }
}

/* Takes in the guest's values and halves. */
static void fold_and_halve(luda_steps *s, const blocks *b, char *partial, char *incoming)
{
    if (has_guest(s, b) && !take_parts(s, b, s->rank + b->power, FOLD, partial, incoming, s->numel))
        return;
    halve(s, b, partial, incoming);
}

/* Scratch 2 S in the partial type. */
void luda__halving_reduce(luda_steps *s, const void *in, void *out, int root)
{
    blocks b;
    int64_t width = luda__partial_width(s), start;
    char *partial = luda__steps_scratch(s, s->numel * width), *incoming = luda__steps_scratch(s, s->numel * width);
    if (!make_blocks(s, NULL, &b))
        return;
    luda__load(s, in, partial, 0, s->numel);
    if (s->rank >= b.power) {
        give_parts(s, &b, s->rank - b.power, FOLD, partial, s->numel);
        luda__expect(s, s->rank - b.power, UNFOLD * b.parts, out, s->numel * s->width);
        luda__arrived(s, UNFOLD * b.parts);
        return;
    }
    fold_and_halve(s, &b, partial, incoming);
    if (s->status != LUDA_OK)
        return;
    start = b.start[s->rank];
    luda__finish(s, partial + start * width, (char *)out + start * s->width, b.start[s->rank + 1] - start);
    redouble(s, &b, out);
    if (has_guest(s, &b))
        luda__give(s, s->rank + b.power, UNFOLD * b.parts, out, s->numel * s->width);
}

/* Scratch 2 S in the partial type, S where there is something in front of the axis, and a piece. */
void luda__halving_scatter(luda_steps *s)
{
    blocks b;
    luda_pieces p;
    int64_t width = luda__partial_width(s);
    const char *in = luda__pieces(s, s->what->sizes, &p) ? luda__packed_input(s, &p) : NULL;
    char *partial = luda__steps_scratch(s, s->numel * width), *incoming, *guest;
    if (!partial || !make_blocks(s, &p, &b))
        return;
    for (int q = 0; q < s->size; q++)
        luda__reducer(s->dtype)->load(in + p.start[q] * s->width, partial + b.at[q] * width, p.count[q]);
    if (s->rank >= b.power) {
        give_parts(s, &b, s->rank - b.power, FOLD, partial, s->numel);
        luda__expect(s, s->rank - b.power, UNFOLD * b.parts, s->what->out, p.count[s->rank] * s->width);
        luda__arrived(s, UNFOLD * b.parts);
        return;
    }
    incoming = luda__steps_scratch(s, s->numel * width);
    fold_and_halve(s, &b, partial, incoming);
    if (s->status != LUDA_OK)
        return;
    luda__finish(s, partial + b.at[s->rank] * width, s->what->out, p.count[s->rank]);
    if (!has_guest(s, &b))
        return;
    guest = luda__steps_scratch(s, p.count[s->rank + b.power] * s->width);
    if (!guest)
        return;
    luda__finish(s, partial + b.at[s->rank + b.power] * width, guest, p.count[s->rank + b.power]);
    luda__give(s, s->rank + b.power, UNFOLD * b.parts, guest, p.count[s->rank + b.power] * s->width);
}

/* Scratch S. */
void luda__doubling_gather(luda_steps *s)
{
    blocks b;
    luda_pieces p;
    int64_t width = s->width, bytes;
    char *packed = luda__pieces(s, s->what->sizes, &p) ? luda__steps_scratch(s, s->numel * width) : NULL;
    if (!packed || !make_blocks(s, &p, &b))
        return;
    bytes = p.count[s->rank] * width;
    if (s->rank >= b.power) {
        luda__give(s, s->rank - b.power, FOLD, s->what->in, bytes);
        luda__expect(s, s->rank - b.power, UNFOLD * b.parts, packed, s->numel * width);
        if (luda__arrived(s, UNFOLD * b.parts))
            luda__unpack(s, &p, b.at, packed, s->what->out);
        return;
    }
    luda__steps_copy(s, packed + b.at[s->rank] * width, s->what->in, bytes);
    if (has_guest(s, &b)) {
        int guest = s->rank + b.power;
        luda__expect(s, guest, FOLD, packed + b.at[guest] * width, p.count[guest] * width);
    }
    if (!luda__arrived(s, FOLD))
        return;
    redouble(s, &b, packed);
    if (has_guest(s, &b))
        luda__give(s, s->rank + b.power, UNFOLD * b.parts, packed, s->numel * width);
    luda__unpack(s, &p, b.at, packed, s->what->out);
}
