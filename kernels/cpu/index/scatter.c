/* gather, scatter, scatter_add: elements at positions along a dimension. Lines along it are independent. */
#include "lines.h"
#include "wide.h"

/* Copies x to the output, whose order of elements is its own. */
static void run_copy(const loop_run *run, const void *arg)
{
    int64_t size = *(const int64_t *)arg;
    if (run->stride[0] == 1 && run->stride[1] == 1)
        memcpy(run->data[0], run->data[1], (size_t)(run->count * size));
    else
        for (int64_t i = 0; i < run->count; i++)
            memcpy(run->data[0] + i * run->stride[0] * size, run->data[1] + i * run->stride[1] * size, (size_t)size);
}

static void copy_whole(const luda_operand *out, const luda_operand *x)
{
    const luda_operand *operands[] = { out, x };
    int64_t size = luda__item_size(out->dtype);
    luda__loop(operands, 2, run_copy, &size);
}

#define EACH_SIZE "kernels/cpu/index/scatter_move.inc"
#include "kernels/cpu/each_size.h"

/* Adds up in double (integers wrap) and rounds once. */
static void add_lines(void *arg, int64_t slab)
{
    lines *l = arg;
    const wide_line *wide = &luda__wide_line[l->call->out[0].dtype];
    int64_t last = smaller((slab + 1) * l->per_slab, l->kept.numel), count = l->size[0], size = l->size[2];
    double *sum = luda__scratch((size_t)(size + count) * sizeof *sum), *added = sum + size;
    if (!sum) {
        atomic_store_explicit(&l->failed, 1, memory_order_relaxed);
        return;
    }
    for (int64_t k = slab * l->per_slab; k < last; k++) {
        const int64_t *positions = (const int64_t *)l->data[0] + space_offset(&l->kept, 0, k);
        int64_t whole = space_offset(&l->kept, 2, k);
        wide->load(l->data[1], space_offset(&l->kept, 1, k), l->stride[1], count, added);
        wide->load(l->data[2], whole, l->stride[2], size, sum);
        for (int64_t j = 0; j < count; j++) {
            int64_t position = positions[j * l->stride[0]] - l->base;
            if (wide->is_float)
                sum[position] += added[j];
            else
                ((uint64_t *)sum)[position] += ((uint64_t *)added)[j];
        }
        wide->store(sum, l->data[2], whole, l->stride[2], size);
    }
}

static luda_status move(const luda_call *call, const luda_operand *few, const luda_operand *whole,
                        void (*fn)(void *, int64_t))
{
    const struct luda_gather_attrs *a = &call->attrs->gather;
    const luda_operand *operands[] = { &call->in[1], few, whole };
    int64_t size = call->in[0].ndim > 0 ? call->in[0].shape[a->dim] : 1;
    lines l;
    luda_status status = luda__check_positions(call, &call->in[1], a->base, size, NULL);
    if (status != LUDA_OK)
        return status;
    if (few != &call->out[0])
        copy_whole(&call->out[0], &call->in[0]);
    if (call->in[1].numel == 0)
        return LUDA_OK;
    plan_lines(call, operands, 3, a->dim, &l);
    l.base = a->base;
    return run_lines(&l, l.size[0] + l.size[2], fn);
}

static luda_status gather(const luda_call *call)
{
    static void (*const gather_lines[])(void *, int64_t) = BY_SIZE(gather_lines);
    return move(call, &call->out[0], &call->in[0], gather_lines[SIZE_INDEX(luda__item_size(call->out[0].dtype))]);
}

static luda_status scatter(const luda_call *call)
{
    static void (*const scatter_lines[])(void *, int64_t) = BY_SIZE(scatter_lines);
    return move(call, &call->in[2], &call->out[0], scatter_lines[SIZE_INDEX(luda__item_size(call->out[0].dtype))]);
}

static luda_status scatter_add(const luda_call *call)
{
    return move(call, &call->in[2], &call->out[0], add_lines);
}

#define EACH "kernels/cpu/index/scatter.inc"
#include "kernels/cpu/each.h"
