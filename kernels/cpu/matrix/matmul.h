/* The plan of a batch of matrix products: tiles of the output, cut by sizes only. */
#ifndef LUDA_MATMUL_H
#define LUDA_MATMUL_H

#include "gemm.h"
#include "kernels/cpu/elementwise/loops.h"

/* A matrix in memory: element (i, j) is data[i * row + j * column]. */
typedef struct matrix {
    char *data;
    int64_t row, column;
} matrix;

typedef struct products {
    matrix out, a, b; /* of batch element 0 */
    space batch;      /* operands: out, a, b */
    int64_t m, n, k;
    int64_t tile_m, tile_n, tiles_m, tiles_n;
    int64_t tiles, per_slab; /* all tiles of all batch elements; how many of them a slab computes */
    atomic_int failed;       /* no memory */
} products;

/* most_n: widest tile of columns. */
void luda__plan_products(const luda_call *call, int64_t most_n, products *p);

#endif
