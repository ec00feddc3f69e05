/* max_pool2d with positions, avg_pool2d, and their gradients: plane by plane, so that sums have one order. */
#include "kernels/cpu/index/positions.h"
#include "kernels/cpu/kernel.h"

/*
 * The elements of a window that lie inside along one dimension: the first, and how many, a dilation apart. Shapes were
 * checked: 32 bits suffice, and vectorise.
 */
typedef struct reach {
    int32_t first, count;
} reach;

typedef struct pooling {
    const luda_operand *x, *y, *positions; /* images, results (or the gradients of either) */
    luda_pair kernel, stride, padding, dilation;
    int64_t height, width, rows, columns, base;
    int count_padding;
    const int32_t *first, *count; /* of each column of the result: its reach */
    int64_t planes, per_slab;
    atomic_int failed;
} pooling;

static void plan_planes(pooling *p)
{
    p->height = p->x->shape[2];
    p->width = p->x->shape[3];
    p->rows = p->y->shape[2];
    p->columns = p->y->shape[3];
    p->planes = p->x->shape[0] * p->x->shape[1];
    int64_t window = smaller(p->kernel.height * p->kernel.width, 1 << 16);
    p->per_slab = larger(32768 / larger(p->height * p->width + p->rows * p->columns * window, 1), 1);
}

static reach reach_of(int64_t window, int64_t n, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation)
{
    int64_t start = window * stride - padding, skip = start < 0 ? ceil_div(-start, dilation) : 0;
    int64_t first = start + skip * dilation;
    int64_t count = first < n ? smaller(kernel - skip, ceil_div(n - first, dilation)) : 0;
    return (reach){ (int32_t)first, (int32_t)count };
}

/* Elements of a window that a mean counts along one dimension: with the padding, whose end the window may pass. */
static int64_t counted(int64_t window, int64_t n, int64_t kernel, int64_t stride, int64_t padding, int with_padding)
{
    int64_t start = window * stride - padding, end = smaller(start + kernel, n + padding);
    return with_padding ? end - start : smaller(end, n) - larger(start, 0);
}

static int64_t counted_in_window(const pooling *p, int64_t r, int64_t c)
{
    return counted(r, p->height, p->kernel.height, p->stride.height, p->padding.height, p->count_padding) *
           counted(c, p->width, p->kernel.width, p->stride.width, p->padding.width, p->count_padding);
}

static int64_t plane_offset(const luda_operand *o, int64_t plane)
{
    return plane / o->shape[1] * o->stride[0] + plane % o->shape[1] * o->stride[1];
}

/* `size`: of an element of work space, of which a slab needs a plane at most. */
static luda_status run_planes(const luda_call *call, pooling *p, void (*slab)(void *, int64_t), size_t size)
{
    plan_planes(p);
    if (p->planes == 0)
        return LUDA_OK;
    int32_t *across = malloc(2 * (size_t)p->columns * sizeof *across);
    for (int64_t c = 0; across && c < p->columns; c++) {
        reach r = reach_of(c, p->width, p->kernel.width, p->stride.width, p->padding.width, p->dilation.width);
        across[c] = r.first;
        across[p->columns + c] = r.count;
    }
    p->first = across;
    p->count = across + p->columns;
    p->failed = !across;
    if (across)
        luda__parallel(ceil_div(p->planes, p->per_slab), slab, p);
    free(across);
    return p->failed ? fail_memory(call, (size_t)(p->height * p->width) * size) : LUDA_OK;
}

/* NaN beats all but NaN; for integers the test vanishes. Without branches, which no processor could foresee. */
#define BEATS(a, b) (((a) > (b)) | (((a) != (a)) & ((b) == (b))))
#define EACH "kernels/cpu/convolution/pooling_max.inc"
#include "kernels/cpu/each.h"

#define EACH_CLASSES CLASS_FLOAT
#define EACH "kernels/cpu/convolution/pooling_mean.inc"
#include "kernels/cpu/each.h"
