/*
 * Products of matrices on one thread: the register kernels, and C = A B or C += A B in the compute types. Row-major; ta:
 * a holds the transpose; ld: row length.
 */
#ifndef LUDA_GEMM_H
#define LUDA_GEMM_H

#include "kernels/cpu/kernel.h"

/*
 * The register block: GEMM_ROWS rows of three vectors, or fewer. With 32 registers 8 x 3 sums, with 16 registers 4 x 3;
 * three vectors of B a step need fewer loads for each multiplication than two would.
 */
#if defined(__AVX512F__)
#define GEMM_VECTOR 64
#elif defined(__AVX2__)
#define GEMM_VECTOR 32
#else
#define GEMM_VECTOR 16
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
#define GEMM_ROWS 8
#define GEMM_HEIGHT_COUNT 4
#define GEMM_HEIGHTS GEMM_HEIGHT(1) GEMM_HEIGHT(2) GEMM_HEIGHT(4) GEMM_HEIGHT(8)
#else
#define GEMM_ROWS 4
#define GEMM_HEIGHT_COUNT 3
#define GEMM_HEIGHTS GEMM_HEIGHT(1) GEMM_HEIGHT(2) GEMM_HEIGHT(4)
#endif
#define GEMM_VECTORS 3
#define GEMM_LENGTH(R) (GEMM_VECTOR / (int64_t)sizeof(R))

/*
 * c[i][j] (+)= sum over p of a[i * row + p * step] b[p * b_step + j]. Entry [h][v] of a table has 2^h rows and v + 1
 * vectors of columns.
 */
typedef void (*gemm_micro_f32)(int64_t k, const float *a, int64_t row, int64_t step, const float *b, int64_t b_step,
                               int accumulate, float *c, int64_t ldc);
typedef void (*gemm_micro_f64)(int64_t k, const double *a, int64_t row, int64_t step, const double *b, int64_t b_step,
                               int accumulate, double *c, int64_t ldc);
extern const gemm_micro_f32 LEVEL(luda__gemm_micro_f32)[GEMM_HEIGHT_COUNT][GEMM_VECTORS];
extern const gemm_micro_f64 LEVEL(luda__gemm_micro_f64)[GEMM_HEIGHT_COUNT][GEMM_VECTORS];

/* 0: no memory. */
int LEVEL(luda__gemm_f32)(int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                          int64_t ldb, int accumulate, float *c, int64_t ldc);
int LEVEL(luda__gemm_f64)(int ta, int tb, int64_t m, int64_t n, int64_t k, const double *a, int64_t lda,
                          const double *b, int64_t ldb, int accumulate, double *c, int64_t ldc);

#endif
