/* Products of bf16 matrices on one thread, by a library. */
#ifndef LUDA_GEMM_BF16_H
#define LUDA_GEMM_BF16_H

#include <stdint.h>

/* Whether the processor multiplies bf16 (AVX512-BF16) and the library is there, or LUDA_GEMM=onednn_bf16 asks for it. */
int luda__has_gemm_bf16(void);

/* C = A B as in gemm.h, in float; 0: refused, or no memory. */
int luda__gemm_bf16(int ta, int tb, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b,
                    int64_t ldb, float *c, int64_t ldc);

#endif
