/*
 * matmul: tiles of the output over the pool. B is packed into panels that stay in the second cache while rows of A pass
 * by, read where they lie if they can be. Halves are multiplied and summed in float and rounded once.
 */
#include "matmul.h"
#include "gemm_bf16.h"

#include "kernels/cpu/scalar.h"
#include "kernels/linear.h"
#include "turn.h"

enum { TINY_WORK = 4096, TINY_N = 64, FEW_ROWS = 96, CHUNK = 64, SMALL = 1 << 13, MOST_PACKED = 1 << 21 };

/* The register kernels of f64 are worth a level. */
#if !((LUDA_CLASSES) & CLASS_DOUBLE)
#undef LUDA_CLASSES
#define LUDA_CLASSES (CLASS_FLOAT | CLASS_DOUBLE)
#endif
#define EACH_CLASSES (CLASS_FLOAT | CLASS_INT)
#define EACH "kernels/cpu/matrix/matmul.inc"
#include "kernels/cpu/each.h"
