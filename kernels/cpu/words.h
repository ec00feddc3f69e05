/* The words of random.h for runs of elements: blocks are made in batches, so that Philox vectorises. */
#ifndef LUDA_WORDS_H
#define LUDA_WORDS_H

#include "../random.h"
#include "kernel.h"

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

/* Makes sure that a block is there and returns its place. */
static inline int words_block(words *w, uint64_t block)
{
    if (block - w->first >= WORD_BLOCKS) {
        w->first = block;
#pragma omp simd
        for (int b = 0; b < WORD_BLOCKS; b++) {
            uint32_t out[4];
            luda__philox(w->seed, w->counter + block + (uint64_t)b, out);
            w->word[0][b] = out[0];
            w->word[1][b] = out[1];
            w->word[2][b] = out[2];
            w->word[3][b] = out[3];
        }
    }
    return (int)(block - w->first);
}

static inline uint32_t narrow_word(words *w, int64_t element)
{
    int block = words_block(w, (uint64_t)element / 4);
    return w->word[element % 4][block];
}

static inline uint64_t wide_word(words *w, int64_t element)
{
    int block = words_block(w, (uint64_t)element / 2);
    return luda__wide_word(w->word[element % 2 * 2][block], w->word[element % 2 * 2 + 1][block]);
}

#endif
