/*
 * conv2d and its two gradients as matrix products: the elements under each position of the kernel become the columns of a
 * matrix (Chellapilla, Puri and Simard 2006), for a tile of rows of the result at a time, so that it stays in the cache.
 * Slabs of images go to the workers; halves are multiplied and summed in float and rounded once.
 */
#include "conv.h"
#include "conv_library.h"
#include "kernels/cpu/scalar.h"

enum { TILE_ELEMENTS = 1 << 16, MOST_SLABS = 64, MOST_PARTIALS = 16, PARTIAL_ELEMENTS = 1 << 24 };

/* The result's rows of a tile. */
static int64_t tile_rows(const conv *c)
{
    return smaller(larger(TILE_ELEMENTS / larger(c->columns * larger(c->depth, c->outputs), 1), 1), larger(c->rows, 1));
}

static int dense(const luda_operand *o)
{
    int64_t step = 1;
    for (int d = o->ndim - 1; d >= 0; d--) {
        if (o->shape[d] != 1 && o->stride[d] != step)
            return 0;
        step *= o->shape[d];
    }
    return 1;
}

/* The elements under a kernel of 1 x 1 are the image itself. */
static int pointwise(const conv *c)
{
    return c->kernel.height == 1 && c->kernel.width == 1 && c->stride.height == 1 && c->stride.width == 1 &&
           c->padding.height == 0 && c->padding.width == 0;
}

static void set_failed(conv *c)
{
    atomic_store_explicit(&c->failed, 1, memory_order_relaxed);
}

/* Columns of the result whose element under kernel column `kx` lies inside the image: first .. *last - 1. */
static int64_t inside(const conv *c, int64_t kx, int64_t *last)
{
    int64_t shift = c->padding.width - kx * c->dilation.width, stride = c->stride.width;
    int64_t first = shift > 0 ? ceil_div(shift, stride) : 0, end = c->width + shift;
    *last = end > 0 ? smaller(ceil_div(end, stride), c->columns) : 0;
    first = smaller(first, c->columns);
    *last = larger(*last, first);
    return first;
}

#define EACH_CLASSES CLASS_FLOAT
#define EACH "kernels/cpu/convolution/conv.inc"
#include "kernels/cpu/each.h"
