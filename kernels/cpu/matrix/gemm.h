/* Matrix products on one thread: C = A B or C += A B. Row-major; ta: a holds the transpose; ld: row length. */
#ifndef LUDA_GEMM_H
#define LUDA_GEMM_H

#include "kernels/cpu/kernel.h"

typedef void (*gemm_f32)(int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                         int64_t ldb, int accumulate, float *c, int64_t ldc);
typedef void (*gemm_f64)(int ta, int tb, int64_t m, int64_t n, int64_t k, const double *a, int64_t lda, const double *b,
                         int64_t ldb, int accumulate, double *c, int64_t ldc);

/* The installed library's products; an entry is NULL where the built-in one serves. */
typedef struct gemm_library {
    gemm_f32 f32;
    gemm_f64 f64;
} gemm_library;

const gemm_library *luda__gemm_library(void);

/* The library's product or the built-in one; 0 where the built-in one got no memory. */
int LEVEL(luda__gemm_f32)(int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                          int64_t ldb, int accumulate, float *c, int64_t ldc);
int LEVEL(luda__gemm_f64)(int ta, int tb, int64_t m, int64_t n, int64_t k, const double *a, int64_t lda,
                          const double *b, int64_t ldb, int accumulate, double *c, int64_t ldc);

#endif
