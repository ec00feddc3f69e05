/* gather, scatter, scatter_add: elements at positions along a dimension. Lines along it are independent. */
#include "lines.h"

/* Copies x to the output, whose order of elements is its own. */
static void run_copy(const loop_run *run, const void *arg)
{
    int64_t size = *(const int64_t *)arg;
    for (int64_t i = 0; i < run->count; i++)
        memcpy(run->data[0] + i * run->stride[0] * size, run->data[1] + i * run->stride[1] * size, (size_t)size);
}

static void copy_whole(const luda_operand *out, const luda_operand *x)
{
    const luda_operand *operands[] = { out, x };
    int64_t size = luda__item_size(out->dtype);
    luda__loop(operands, 2, run_copy, &size);
}

#define EACH "kernels/cpu/index/scatter.inc"
#include "kernels/cpu/each.h"
