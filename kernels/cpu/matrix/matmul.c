/*
 * matmul: tiles of the output over the pool. B is packed into panels that stay in the second cache while rows of A pass
 * by, read where they lie if they can be. Halves are multiplied and summed in float and rounded once.
 */
#include "matmul.h"

#include "kernels/cpu/scalar.h"

enum { TINY_WORK = 4096, TINY_N = 64, FEW_ROWS = 96, TURN = 64, CHUNK = 64, MOST_PACKED = 1 << 21 };

/* Four rows of four floats, transposed into rows `width` apart. */
typedef float four_floats __attribute__((vector_size(16)));
INLINE void turn_4x4(const float *a, const float *b, const float *c, const float *d, float *to,
                     int64_t width)
{
    four_floats row[4], ab, cd, out[4];
    memcpy(&row[0], a, sizeof row[0]);
    memcpy(&row[1], b, sizeof row[1]);
    memcpy(&row[2], c, sizeof row[2]);
    memcpy(&row[3], d, sizeof row[3]);
    ab = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
    cd = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
    out[0] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    out[1] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    ab = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
    cd = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
    out[2] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    out[3] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    for (int i = 0; i < 4; i++)
        memcpy(to + i * width, &out[i], sizeof out[i]);
}

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

#define EACH_CLASSES (CLASS_FLOAT | CLASS_INT)
#define EACH "kernels/cpu/matrix/matmul.inc"
#include "kernels/cpu/each.h"
