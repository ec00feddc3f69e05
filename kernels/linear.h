/* linear as a matrix product, for every device. */
#ifndef LUDA_LINEAR_H
#define LUDA_LINEAR_H

#include "kernels/kernels.h"

/* As matmul's operands: x with a row dimension, the weight repeated over x's leading dimensions. */
static inline void linear_operands(luda_operand *out, luda_operand *x, luda_operand *weight)
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

#endif
