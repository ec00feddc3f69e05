/* rand, randn, randint, randperm and dropout; random.h says what each element is. */
#include "kernels/cpu/elementwise/loops.h"
#include "kernels/cpu/scalar.h"
#include "words.h"

typedef struct draw {
    uint64_t seed, counter;
    int64_t low;
    uint64_t range; /* of randint; 0: all 2^64 */
    uint32_t threshold; /* of dropout */
    double scale;
} draw;

static draw draw_of(const struct luda_random_attrs *a)
{
    return (draw){ .seed = a->generator.seed, .counter = a->generator.counter, .low = a->low,
                   .range = (uint64_t)a->high - (uint64_t)a->low };
}

/* cos(2 pi u) for u in -1/4 .. 1, as the sine of a quarter turn less |u|; branch-free. */
INLINE float cosine_of_turn(float u)
{
    float v = 0.25f - float_abs(u > 0.5f ? u - 1.0f : u), z = v * v;
    float p = MADD(z, 39.7616171f, -76.5813964f);
    p = MADD(p, z, 81.6024851f);
    p = MADD(p, z, -41.3416807f);
    return v * MADD(p, z, 6.28318528f);
}

/* Lemire, "Fast random integer generation in an interval" (2019). */
static uint64_t bounded(words *w, uint64_t range, int64_t element)
{
    uint64_t word = wide_word(w, element);
    if (range == 0)
        return word;
    __uint128_t product = (__uint128_t)word * range;
    if ((uint64_t)product < range) {
        uint64_t least = (0 - range) % range;
        for (uint64_t attempt = 1; (uint64_t)product < least; attempt++) {
            uint32_t block[4];
            luda__philox(luda__redraw_seed(w->seed, attempt), w->counter + (uint64_t)element / 2, block);
            product = (__uint128_t)luda__wide_word(block[element % 2 * 2], block[element % 2 * 2 + 1]) * range;
        }
    }
    return (uint64_t)(product >> 64);
}

/* --- Permutations: positions sorted by random keys --- */

typedef struct keyed {
    uint64_t key;
    int64_t position;
} keyed;

/* A stable sort by the bytes of the key, lowest first; the result ends in `items`. */
static void sort_keys(keyed *items, keyed *other, int64_t n)
{
    for (int shift = 0; shift < 64; shift += 8) {
        int64_t starts[257] = { 0 };
        for (int64_t i = 0; i < n; i++)
            starts[(items[i].key >> shift & 255) + 1]++;
        for (int b = 0; b < 256; b++)
            starts[b + 1] += starts[b];
        for (int64_t i = 0; i < n; i++)
            other[starts[items[i].key >> shift & 255]++] = items[i];
        keyed *swap = items;
        items = other;
        other = swap;
    }
}

/* NULL: no memory. */
static keyed *permutation(const draw *d, int64_t n)
{
    keyed *items = (uint64_t)n > SIZE_MAX / sizeof(keyed) / 2 ? NULL : malloc((size_t)(n ? n : 1) * 2 * sizeof *items);
    words w;
    if (!items)
        return NULL;
    words_start(&w, d->seed, d->counter);
    for (int64_t i = 0; i < n; i++)
        items[i] = (keyed){ wide_word(&w, i), i };
    sort_keys(items, items + n, n);
    return items;
}

#define EACH "kernels/cpu/random/random.inc"
#include "kernels/cpu/each.h"
