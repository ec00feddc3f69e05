/* sum, mean, amax, amin. Floats add up in double, integers wrap in int64; extrema stay in the compute type. */
#include "reduce.h"
#include "kernels/cpu/scalar.h"

/* APART: columns at once that are not neighbours. AHEAD: bytes that are asked for before they are needed, beyond what the hardware foresees at the end of a page. */
enum { STREAMS = 4, LANES = 8, BLOCK = 4096, COLUMNS = 1024, APART = 64, COLUMN_ROWS = 64, AHEAD = 1024 };

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
