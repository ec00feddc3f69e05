/* index_select and its backward: slices of one dimension at positions of any shape. */
#include "slices.h"

#include "positions.h"

enum { GRAIN = 16384, SUM_BYTES = 8 };

/*
 * The sliced side ([before, positions, after]; operand 0) against the whole side ([before, size, after]; operand 2).
 * `rows` runs over before and positions (operand 1: the positions), `after` over the rest.
 */
typedef struct slices {
    space rows, before, after;
    int64_t size, stride; /* of the dimension on the whole side */
    int64_t per_slab, inner; /* inner: the last dimension of `after`, at least 1 */
    int64_t step0, step2;    /* its strides */
    char *sliced, *whole;
    const int64_t *positions;
    int32_t base;
    /* backward: positions sorted by where they point: order[starts[d] .. starts[d + 1] - 1] are those of d */
    int64_t *starts, *order;
    int64_t count;
    int accumulate;
    const line_sums *sums;
    atomic_int failed;
} slices;

static void plan_slices(const luda_operand *sliced, const luda_operand *positions, const luda_operand *whole, int dim,
                        int32_t base, slices *s)
{
    *s = (slices){ .rows = { .numel = 1 }, .before = { .numel = 1 }, .after = { .numel = 1 }, .inner = 1, .step0 = 1,
                   .step2 = 1, .size = whole->shape[dim], .stride = whole->stride[dim], .sliced = sliced->data,
                   .whole = whole->data, .positions = positions->data, .base = base, .count = positions->numel };
    for (int d = 0; d < dim; d++) {
        int64_t stride[3] = { sliced->stride[d], 0, whole->stride[d] };
        luda__space_add(&s->rows, 3, sliced->shape[d], stride);
        luda__space_add(&s->before, 3, sliced->shape[d], stride);
    }
    for (int d = 0; d < positions->ndim; d++) {
        int64_t stride[3] = { sliced->stride[dim + d], positions->stride[d], 0 };
        luda__space_add(&s->rows, 3, positions->shape[d], stride);
    }
    for (int d = dim + 1; d < whole->ndim; d++) {
        int64_t stride[3] = { sliced->stride[d + positions->ndim - 1], 0, whole->stride[d] };
        luda__space_add(&s->after, 3, whole->shape[d], stride);
    }
    if (s->after.ndim > 0) {
        s->inner = s->after.shape[s->after.ndim - 1];
        s->step0 = s->after.stride[0][s->after.ndim - 1];
        s->step2 = s->after.stride[2][s->after.ndim - 1];
    }
    s->per_slab = larger(GRAIN / larger(s->after.numel, 1), 1);
}

/* --- index_select --- */

#define EACH_SIZE "kernels/cpu/index/slices.inc"
#include "kernels/cpu/each_size.h"

luda_status luda__select_slices(const luda_call *call)
{
    static void (*const select_slab[])(void *, int64_t) = BY_SIZE(select_slab);
    const struct luda_index_select_attrs *a = &call->attrs->index_select;
    slices s;
    luda_status status = luda__check_positions(call, &call->in[1], a->base, call->in[0].shape[a->dim], NULL);
    if (status != LUDA_OK || call->out[0].numel == 0)
        return status;
    plan_slices(&call->out[0], &call->in[1], &call->in[0], a->dim, a->base, &s);
    luda__parallel(ceil_div(s.rows.numel, s.per_slab), select_slab[SIZE_INDEX(luda__item_size(call->out[0].dtype))], &s);
    return LUDA_OK;
}

/* --- Its backward --- */

/* Counting sort, so that each slice of the result is summed by one thread in the order of the positions. */
static int sort_positions(slices *s, const luda_operand *positions)
{
    space all = { .numel = 1 };
    for (int d = 0; d < positions->ndim; d++)
        luda__space_add(&all, 1, positions->shape[d], &positions->stride[d]);
    s->starts = calloc((size_t)(s->size + 2), sizeof *s->starts);
    s->order = malloc((size_t)(s->count + 1) * sizeof *s->order);
    if (!s->starts || !s->order)
        return 0;
    for (int64_t i = 0; i < s->count; i++)
        s->starts[s->positions[space_offset(&all, 0, i)] - s->base + 2]++;
    for (int64_t d = 0; d <= s->size; d++)
        s->starts[d + 1] += s->starts[d];
    for (int64_t i = 0; i < s->count; i++)
        s->order[s->starts[s->positions[space_offset(&all, 0, i)] - s->base + 1]++] = i;
    return 1;
}

/* One slice of the result: the sum of the slices whose position it is, rounded once. */
static void sum_slice(const slices *s, int64_t before, int64_t position, char *sum)
{
    int64_t to = space_offset(&s->before, 2, before) + position * s->stride;
    if (s->accumulate && s->starts[position] == s->starts[position + 1])
        return;
    memset(sum, 0, (size_t)s->after.numel * SUM_BYTES);
    for (int64_t q = s->starts[position]; q < s->starts[position + 1]; q++) {
        int64_t from = space_offset(&s->rows, 0, before * s->count + s->order[q]);
        for (int64_t i = 0; i < s->after.numel; i += s->inner)
            s->sums->add(sum + i * SUM_BYTES, s->sliced, from + space_offset(&s->after, 0, i), s->step0, s->inner);
    }
    for (int64_t i = 0; i < s->after.numel; i += s->inner) {
        int64_t place = to + space_offset(&s->after, 2, i);
        if (s->accumulate)
            s->sums->add(sum + i * SUM_BYTES, s->whole, place, s->step2, s->inner);
        s->sums->store(sum + i * SUM_BYTES, s->whole, place, s->step2, s->inner);
    }
}

static void sum_slab(void *arg, int64_t slab)
{
    slices *s = arg;
    int64_t last = smaller((slab + 1) * s->per_slab, s->before.numel * s->size);
    char *sum = luda__scratch((size_t)s->after.numel * SUM_BYTES);
    if (!sum) {
        atomic_store_explicit(&s->failed, 1, memory_order_relaxed);
        return;
    }
    for (int64_t i = slab * s->per_slab; i < last; i++)
        sum_slice(s, i / s->size, i % s->size, sum);
}

luda_status luda__add_slices(const luda_call *call, const line_sums *sums)
{
    const struct luda_index_select_backward_attrs *a = &call->attrs->index_select_backward;
    slices s;
    luda_status status = luda__check_positions(call, &call->in[1], a->base, a->size, NULL);
    if (status != LUDA_OK || call->out[0].numel == 0)
        return status;
    plan_slices(&call->in[0], &call->in[1], &call->out[0], a->dim, a->base, &s);
    s.accumulate = call->accumulate;
    s.sums = sums;
    if (sort_positions(&s, &call->in[1]))
        luda__parallel(ceil_div(s.before.numel * s.size, s.per_slab), sum_slab, &s);
    else
        s.failed = 1;
    free(s.starts);
    free(s.order);
    return s.failed ? fail_memory(call, (size_t)(s.size + s.count) * sizeof(int64_t)) : LUDA_OK;
}
