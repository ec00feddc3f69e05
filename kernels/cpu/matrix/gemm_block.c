/*
 * The built-in product: panels of A and B are packed, a register block of GEMM_ROWS x 2 vectors runs over them (the
 * scheme of Goto and van de Geijn, 2008). This file is compiled with -ffp-contract=fast for fused multiply-add.
 */
#include "gemm.h"

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define GEMM_ROWS 12
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#define GEMM_ROWS 6
#else
#define VECTOR_BYTES 16
#define GEMM_ROWS 4
#endif

enum { BLOCK_M = 96, BLOCK_N = 512, BLOCK_K = 256 };
_Static_assert(BLOCK_M % GEMM_ROWS == 0, "whole register blocks");

#define R float
#define ENTRY f32
#define GN(name) name##_f32
#include "gemm_block.inc"
#undef R
#undef ENTRY
#undef GN
#define R double
#define ENTRY f64
#define GN(name) name##_f64
#include "gemm_block.inc"
#undef R
#undef ENTRY
#undef GN
