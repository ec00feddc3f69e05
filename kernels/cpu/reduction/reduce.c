/* sum, mean, amax, amin. Floats add up in double, integers wrap in int64; extrema stay in the compute type. */
#include "reduce.h"
#include "kernels/cpu/scalar.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

/*
 * TOGETHER: lines at once. APART: columns at once that are not neighbours. NARROW: rows of so many elements or fewer
 * are joined. AHEAD: bytes that are asked for before they are needed, beyond what the hardware foresees at the end of a
 * page.
 */
enum { STREAMS = 4, LANES = 8, BLOCK = 4096, TOGETHER = 32, AHEAD = 1024 };
enum { COLUMNS = 1024, APART = 64, COLUMN_ROWS = 64, NARROW = 32 };

static inline double sum_double(double a, double b)
{
    return a + b;
}

static inline int64_t sum_i64(int64_t a, int64_t b)
{
    return a + b;
}

#define EACH "kernels/cpu/reduction/reduce_each.inc"
#include "kernels/cpu/each.h"
