/*
 * Convolution: what its kernels share. The images x are [N, C, H, W], the kernels w [O, C / groups, KH, KW], the result y is
 * [N, O, OH, OW]; each of the three rows computes one of them from the other two.
 */
#ifndef LUDA_CONV_H
#define LUDA_CONV_H

#include "kernels/cpu/matrix/gemm.h"

typedef struct conv {
    const luda_operand *x, *w, *y, *bias; /* bias may be NULL */
    int64_t batch, groups;
    int64_t channels, outputs; /* of a group */
    int64_t height, width, rows, columns; /* of an image, of a result */
    luda_pair kernel, stride, padding, dilation;
    int64_t depth;           /* channels * kernel.height * kernel.width: terms of a sum */
    int64_t per_slab, slabs; /* images of a slab; both follow from sizes only */
    const void *weight;      /* w, dense, in the compute type */
    const void *shift;       /* the bias, dense, in the compute type; or NULL */
    void *partial;           /* [slabs, O, depth]: each slab's part of the gradient for w */
    const struct conv_library *library; /* runs the slabs, where not NULL */
    atomic_int failed;       /* no memory */
} conv;

/* most_slabs: as many partial results will be kept. */
static inline void plan_conv(conv *c, const luda_operand *x, const luda_operand *w, const luda_operand *y,
                             const struct luda_conv_backward_attrs *a, int64_t most_slabs)
{
    const double slab_work = 1 << 20; /* multiplications that outweigh handing over a slab */
    *c = (conv){ .x = x, .w = w, .y = y, .batch = x->shape[0], .groups = a->groups, .channels = w->shape[1],
                 .outputs = w->shape[0] / a->groups, .height = x->shape[2], .width = x->shape[3], .rows = y->shape[2],
                 .columns = y->shape[3], .kernel = { w->shape[2], w->shape[3] }, .stride = a->stride,
                 .padding = a->padding, .dilation = a->dilation };
    c->depth = w->shape[1] * w->shape[2] * w->shape[3];
    double work = (double)larger(w->shape[0] * c->depth, 1) * (double)(c->rows * c->columns);
    int64_t least = work < slab_work ? (int64_t)ceil(slab_work / work) : 1;
    c->per_slab = larger(ceil_div(c->batch, most_slabs), least);
    c->slabs = ceil_div(c->batch, c->per_slab);
}

#endif
