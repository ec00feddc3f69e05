/* Products of bf16 matrices on one thread, by a library. */
#ifndef LUDA_GEMM_BF16_H
#define LUDA_GEMM_BF16_H

#include <stdint.h>

/*
 * C = A B as in gemm.h, summed in float and rounded once; 0: not here, or no memory. It is done where the processor
 * multiplies bf16 (AVX512-BF16), elsewhere only if LUDA_GEMM=onednn_bf16 asks for it.
 */
int luda__gemm_bf16(int ta, int tb, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b,
                    int64_t ldb, uint16_t *c, int64_t ldc);

#endif
