/* index_select and its backward: slices of one dimension at positions of any shape. */
#include "positions.h"

enum { GRAIN = 16384 };

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

#define EACH "kernels/cpu/index/index.inc"
#include "kernels/cpu/each.h"
