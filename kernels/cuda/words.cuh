/* The words of kernels/random.h, by element. */
#ifndef LUDA_CUDA_WORDS_H
#define LUDA_CUDA_WORDS_H

#include "cuda.h"

#include "../random.h"

struct draw {
    uint64_t seed, counter;
};

static __device__ inline uint32_t narrow_word(draw d, int64_t element)
{
    uint32_t block[4];
    luda__philox(d.seed, d.counter + static_cast<uint64_t>(element) / 4, block);
    return block[element % 4];
}

static __device__ inline uint64_t wide_word_of(uint64_t seed, uint64_t block_number, int64_t element)
{
    uint32_t block[4];
    luda__philox(seed, block_number, block);
    return element % 2 ? luda__wide_word(block[2], block[3]) : luda__wide_word(block[0], block[1]);
}

static __device__ inline uint64_t wide_word(draw d, int64_t element)
{
    return wide_word_of(d.seed, d.counter + static_cast<uint64_t>(element) / 2, element);
}

static inline draw draw_of(const luda_random *generator)
{
    return { generator->seed, generator->counter };
}

#endif
