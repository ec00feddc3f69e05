/*
 * Random numbers by element, the same for every device and number of threads: what element i of a draw is, as a
 * function of seed, counter and i. Blocks are those of luda__philox; a block has four 32-bit words.
 *
 *   narrow   word i % 4 of block counter + i / 4
 *   wide     words 2 (i % 2) (low) and 2 (i % 2) + 1 (high) of block counter + i / 2, as one 64-bit word
 *
 *   rand     f32, f16, bf16: the top 24, 11, 8 bits of the narrow word, as a fraction; f64: the top 53 of the wide word
 *   randn    Box-Muller. f32 and halves: words a = i - i % 2 and a + 1, both narrow; f64: wide words a and a + 1.
 *            The first gives the radius, the second the angle; even elements take the cosine, odd ones the sine
 *   randint  Lemire's bounded number from the wide word; a rejected one is drawn again from block counter + i / 2
 *            under the seed luda__redraw_seed(seed, attempt), attempt = 1, 2, ...
 *   randperm positions sorted by wide words, equal ones (probability about n^2 / 2^65) by position
 *   dropout, and attention's weights (index (batch T + t) S + s): kept where the f32 of rand is >= p
 *
 * A draw of n elements uses luda__random_blocks(op, n) counters, whatever the operator and dtype.
 */
#ifndef LUDA_RANDOM_H
#define LUDA_RANDOM_H

#include <stdint.h>

#ifndef LUDA_SHARED
#define LUDA_SHARED static inline
#endif

LUDA_SHARED uint64_t luda__redraw_seed(uint64_t seed, uint64_t attempt)
{
    return seed + attempt * 0x9E3779B97F4A7C15u;
}

LUDA_SHARED uint64_t luda__wide_word(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

/* [0, 1) with `bits` bits, of which all are kept. */
LUDA_SHARED float luda__fraction(uint32_t word, int bits)
{
    return (float)(word >> (32 - bits)) * (1.0f / (float)((uint32_t)1 << bits));
}

LUDA_SHARED double luda__fraction_wide(uint64_t word)
{
    return (double)(word >> 11) * 0x1p-53;
}

/* (0, 1] for logarithms. */
LUDA_SHARED float luda__positive_fraction(uint32_t word)
{
    return ((float)word + 1.0f) * 0x1p-32f;
}

LUDA_SHARED double luda__positive_fraction_wide(uint64_t word)
{
    return ((double)(word >> 11) + 1.0) * 0x1p-53;
}

#endif
