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

/* What is done to the rows of a product while they are in the first cache. */
typedef struct epilogue {
    const void *bias; /* a value of the compute type for each column, or NULL */
    int activation;   /* LUDA_ACTIVATION_... */
    void *before;     /* receives the sums before the activation, in the stored type, or NULL */
    int64_t before_row;
} epilogue;

/* Both operands of a product as its tiles read them; NULL: every tile packs what it needs. */
typedef struct packed_operands {
    void *a, *b;
    int64_t rows, columns; /* of the whole output, columns of all strips */
    int64_t depth;
} packed_operands;

enum { DEPTH = 384, STRIP = 384 }; /* most of k and of the columns that are packed at a time */

typedef struct products {
    matrix out, a, b; /* of batch element 0 */
    space batch;      /* operands: out, a, b */
    int64_t m, n, k;
    int64_t tile_m, tile_n, tiles_m, tiles_n;
    int64_t tiles, per_slab; /* all tiles of all batch elements; how many of them a slab computes */
    const epilogue *finish;  /* NULL: none */
    const packed_operands *packed; /* NULL: none */
    int bf16;                /* a library multiplies the tiles */
    int accumulate;          /* adds to the output */
    atomic_int failed;       /* no memory */
} products;

void luda__plan_products(const luda_operand *out, const luda_operand *a, const luda_operand *b, products *p);

#endif
