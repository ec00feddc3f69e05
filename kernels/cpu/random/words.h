/* The words of random.h for runs of elements: blocks are made in batches, so that Philox vectorises. */
#ifndef LUDA_WORDS_H
#define LUDA_WORDS_H

#include "kernels/random.h"
#include "kernels/cpu/kernel.h"

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

/* luda__philox for WORD_BLOCKS blocks at once, round by round. */
static inline void words_fill(words *w, uint64_t block)
{
    uint32_t(*c)[WORD_BLOCKS] = w->word;
    uint32_t k0 = (uint32_t)w->seed, k1 = (uint32_t)(w->seed >> 32);
    w->first = block;
    for (int b = 0; b < WORD_BLOCKS; b++) {
        c[0][b] = (uint32_t)(w->counter + block + (uint64_t)b);
        c[1][b] = (uint32_t)((w->counter + block + (uint64_t)b) >> 32);
        c[2][b] = c[3][b] = 0;
    }
    for (int round = 0; round < 10; round++) {
#pragma omp simd
        for (int b = 0; b < WORD_BLOCKS; b++)
            luda__philox_round(&c[0][b], &c[1][b], &c[2][b], &c[3][b], k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
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
    for (int b = 0; b < WORD_BLOCKS; b++)
        for (int lane = 0; lane < 4; lane++)
            to[b * 4 + lane] = w->word[lane][b];
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
