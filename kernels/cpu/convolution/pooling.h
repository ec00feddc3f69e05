/* Pooling: windows over the planes of [N, C, H, W], a slab of planes at a time. */
#ifndef LUDA_POOLING_H
#define LUDA_POOLING_H

#include "kernels/cpu/kernel.h"

typedef struct pooling {
    const luda_operand *x, *y, *positions; /* images, results (or the gradients of either) */
    luda_pair kernel, stride, padding, dilation;
    int64_t channels, height, width, rows, columns, base;
    int count_padding;
    int64_t planes, per_slab;
    atomic_int failed;
} pooling;

/* The part of a window that lies inside: offsets first, first + step, ... of `count` elements. */
typedef struct reach {
    int64_t first, count;
} reach;

static inline void plan_planes(pooling *p)
{
    p->channels = p->x->shape[1];
    p->height = p->x->shape[2];
    p->width = p->x->shape[3];
    p->rows = p->y->shape[2];
    p->columns = p->y->shape[3];
    p->planes = p->x->shape[0] * p->channels;
    int64_t work = p->height * p->width + p->rows * p->columns * smaller(p->kernel.height * p->kernel.width, 1 << 16);
    p->per_slab = larger(32768 / larger(work, 1), 1);
}

static inline int64_t plane_slabs(const pooling *p)
{
    return ceil_div(p->planes, p->per_slab);
}

static inline reach reach_of(int64_t window, int64_t n, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation)
{
    int64_t start = window * stride - padding, skip = start < 0 ? ceil_div(-start, dilation) : 0;
    int64_t first = start + skip * dilation;
    return (reach){ first, first < n ? smaller(kernel - skip, ceil_div(n - first, dilation)) : 0 };
}

/* Elements of a window that avg_pool2d counts along one dimension: with the padding, whose end the window may pass. */
static inline int64_t counted(int64_t window, int64_t n, int64_t kernel, int64_t stride, int64_t padding, int with_padding)
{
    int64_t start = window * stride - padding, end = smaller(start + kernel, n + padding);
    return with_padding ? end - start : smaller(end, n) - larger(start, 0);
}

static inline int64_t plane_offset(const luda_operand *o, int64_t plane)
{
    return plane / o->shape[1] * o->stride[0] + plane % o->shape[1] * o->stride[1];
}

#endif
