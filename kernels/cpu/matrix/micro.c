/*
 * The register kernel of matrix products: a block of up to GEMM_ROWS x 3 vectors of the output in registers, one column
 * of A and one row of B a step (the scheme of Goto and van de Geijn, 2008). This file is compiled with
 * -ffp-contract=fast for fused multiply-add.
 */
#include "gemm.h"

#define R float
#define GN(name) name##_f32
#include "micro.inc"
#undef R
#undef GN
#define R double
#define GN(name) name##_f64
#include "micro.inc"
#undef R
#undef GN
