/*
 * matmul: tiles of the output over the pool. B is packed into panels that stay in the second cache while rows of A pass
 * by, read where they lie if they can be. Halves are multiplied and summed in float and rounded once.
 */
#include "matmul.h"
#include "gemm_bf16.h"

#include "kernels/cpu/scalar.h"
#include "turn.h"

enum { TINY_WORK = 4096, TINY_N = 64, FEW_ROWS = 96, CHUNK = 64, SMALL = 1 << 13, MOST_PACKED = 1 << 21 };

/* As matmul's operands: x with a row dimension, the weight repeated over x's leading dimensions. */
static void linear_operands(luda_operand *out, luda_operand *x, luda_operand *weight)
{
    luda_operand *rows[] = { out, x };
    for (int i = 0; i < 2; i++)
        if (rows[i]->ndim == 1) {
            rows[i]->shape[1] = rows[i]->shape[0];
            rows[i]->stride[1] = rows[i]->stride[0];
            rows[i]->shape[0] = 1;
            rows[i]->stride[0] = rows[i]->shape[1];
            rows[i]->ndim = 2;
        }
    int lead = x->ndim - 2;
    for (int d = 1; d >= 0; d--) {
        weight->shape[lead + d] = weight->shape[d];
        weight->stride[lead + d] = weight->stride[d];
    }
    for (int d = 0; d < lead; d++) {
        weight->shape[d] = x->shape[d];
        weight->stride[d] = 0;
    }
    weight->ndim = x->ndim;
}

/* The register kernels of f64 are worth a level. */
#if !((LUDA_CLASSES) & CLASS_DOUBLE)
#undef LUDA_CLASSES
#define LUDA_CLASSES (CLASS_FLOAT | CLASS_DOUBLE)
#endif
#define EACH_CLASSES (CLASS_FLOAT | CLASS_INT)
#define EACH "kernels/cpu/matrix/matmul.inc"
#include "kernels/cpu/each.h"
