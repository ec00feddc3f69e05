/* Lines of elements along one dimension of up to three operands; operand 0 has the sizes. */
#ifndef LUDA_CUDA_LINES_H
#define LUDA_CUDA_LINES_H

#include "scalar.cuh"
#include "sort.cuh"

struct lines {
    space<3> kept; /* all dimensions but one */
    int64_t size[3], stride[3];
    int base;
};

static inline lines plan_lines(const luda_operand *a, const luda_operand *b, const luda_operand *c, int dim, int base)
{
    const luda_operand *operands[] = { a, b, c };
    lines l = {};
    l.kept.numel = 1;
    l.base = base;
    for (int o = 0; o < 3; o++) {
        l.size[o] = operands[o]->ndim > 0 ? operands[o]->shape[dim] : 1;
        l.stride[o] = operands[o]->ndim > 0 ? operands[o]->stride[dim] : 1;
    }
    for (int d = 0; d < a->ndim; d++) {
        int64_t stride[3] = { a->stride[d], b->stride[d], c->stride[d] };
        if (d != dim)
            l.kept.add(a->shape[d], stride);
    }
    return l;
}

#endif
