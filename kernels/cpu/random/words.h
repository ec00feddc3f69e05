/* The words of random.h for runs of elements: blocks are made in batches, so that Philox vectorises. */
#ifndef LUDA_WORDS_H
#define LUDA_WORDS_H

#include "kernels/random.h"
#include "kernels/cpu/kernel.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

enum { WORD_BLOCKS = 16 };

typedef struct words {
    uint64_t seed, counter;
    uint64_t first;              /* block number of word[0], relative to the counter; 2^63: none yet */
    uint32_t word[4][WORD_BLOCKS];
} words;

static inline void words_start(words *w, uint64_t seed, uint64_t counter)
{
    w->seed = seed;
    w->counter = counter;
    w->first = (uint64_t)1 << 63;
}

/* Several numbers at once; PRODUCT multiplies the even ones, 32 bits each, to 64. */
#if defined(__AVX512F__)
#define PRODUCT(a, b) (wide) _mm512_mul_epu32((__m512i)(a), (__m512i)(b))
enum { LANE_BYTES = 64 };
#elif defined(__AVX2__)
#define PRODUCT(a, b) (wide) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
enum { LANE_BYTES = 32 };
#elif defined(__SSE2__)
#define PRODUCT(a, b) (wide) _mm_mul_epu32((__m128i)(a), (__m128i)(b))
enum { LANE_BYTES = 16 };
#else
#define PRODUCT(a, b) (((wide)(a) & 0xFFFFFFFFu) * ((wide)(b) & 0xFFFFFFFFu))
enum { LANE_BYTES = 16 };
#endif
typedef uint32_t lanes __attribute__((vector_size(LANE_BYTES)));
typedef uint64_t wide __attribute__((vector_size(LANE_BYTES)));

/* Both halves of x factor, of every lane. */
static inline void multiply(lanes x, lanes factor, lanes *high, lanes *low)
{
    wide even = PRODUCT(x, factor), odd = PRODUCT((wide)x >> 32, factor);
    *low = (lanes)((even & 0xFFFFFFFFu) | odd << 32);
    *high = (lanes)(even >> 32 | (odd & ~(uint64_t)0xFFFFFFFFu));
}

/* luda__philox for WORD_BLOCKS blocks at once. */
static inline void words_fill(words *w, uint64_t block)
{
    const lanes zero = { 0 }, first = zero + 0xD2511F53u, second = zero + 0xCD9E8D57u;
    w->first = block;
    for (int b = 0; b < WORD_BLOCKS; b++) {
        w->word[0][b] = (uint32_t)(w->counter + block + (uint64_t)b);
        w->word[1][b] = (uint32_t)((w->counter + block + (uint64_t)b) >> 32);
    }
    for (int b = 0; b < WORD_BLOCKS; b += LANE_BYTES / 4) {
        lanes c0, c1, c2 = zero, c3 = zero, high0, high1;
        uint32_t k0 = (uint32_t)w->seed, k1 = (uint32_t)(w->seed >> 32);
        memcpy(&c0, &w->word[0][b], sizeof c0);
        memcpy(&c1, &w->word[1][b], sizeof c1);
        for (int round = 0; round < 10; round++) {
            lanes before1 = c1, before3 = c3;
            multiply(c0, first, &high0, &c3);
            multiply(c2, second, &high1, &c1);
            c0 = high1 ^ before1 ^ k0;
            c2 = high0 ^ before3 ^ k1;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        memcpy(&w->word[0][b], &c0, sizeof c0);
        memcpy(&w->word[1][b], &c1, sizeof c1);
        memcpy(&w->word[2][b], &c2, sizeof c2);
        memcpy(&w->word[3][b], &c3, sizeof c3);
    }
}

/* Makes sure that a block is there and returns its place. */
static inline int words_block(words *w, uint64_t block)
{
    if (block - w->first >= WORD_BLOCKS)
        words_fill(w, block);
    return (int)(block - w->first);
}

static inline uint32_t narrow_word(words *w, int64_t element)
{
    int block = words_block(w, (uint64_t)element / 4);
    return w->word[(uint64_t)element % 4][block];
}

/* Narrow words 4 WORD_BLOCKS chunk .. 4 WORD_BLOCKS (chunk + 1) - 1. */
static inline void narrow_words(words *w, int64_t chunk, uint32_t *to)
{
    if (w->first != (uint64_t)chunk * WORD_BLOCKS)
        words_fill(w, (uint64_t)chunk * WORD_BLOCKS);
#pragma omp simd
    for (int b = 0; b < WORD_BLOCKS; b++) {
        to[b * 4] = w->word[0][b];
        to[b * 4 + 1] = w->word[1][b];
        to[b * 4 + 2] = w->word[2][b];
        to[b * 4 + 3] = w->word[3][b];
    }
}

/* An element is kept where the top 24 bits of its word are at least this: word 2^-24 >= p, exactly. */
static inline uint32_t dropout_threshold(double p)
{
    return (uint32_t)ceil(p * 0x1p24);
}

static inline uint64_t wide_word(words *w, int64_t element)
{
    int block = words_block(w, (uint64_t)element / 2);
    int low = (int)((uint64_t)element % 2 * 2);
    return luda__wide_word(w->word[low][block], w->word[low + 1][block]);
}

#endif
