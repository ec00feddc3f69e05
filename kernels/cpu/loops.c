/* See loops.h. Nothing here depends on the instruction set. */
#include "loops.h"

static const int64_t item_size[LUDA_DTYPE_COUNT] = {
#define LUDA_DTYPE(suffix, NAME, stored, ...) [LUDA_##NAME] = sizeof(stored),
#include "../dtypes.def"
};

int64_t luda__item_size(int32_t dtype)
{
    return item_size[dtype];
}

void luda__space_add(space *s, int operands, int64_t size, const int64_t *stride)
{
    s->numel *= size;
    if (size == 1)
        return;
    int joins = s->ndim > 0;
    for (int o = 0; joins && o < operands; o++)
        joins = s->stride[o][s->ndim - 1] == stride[o] * size;
    if (joins)
        s->shape[s->ndim - 1] *= size;
    else
        s->shape[s->ndim++] = size;
    for (int o = 0; o < operands; o++)
        s->stride[o][s->ndim - 1] = stride[o];
}

/* --- Elementwise loops --- */

typedef struct loop {
    space space;
    int operands;
    char *data[LOOP_OPERANDS];
    int64_t size[LOOP_OPERANDS];
    int64_t inner; /* the last dimension, at least 1 */
    loop_function fn;
    const void *arg;
} loop;

/* Elements first .. last-1 in row-major order. */
static void run_range(const loop *l, int64_t first, int64_t last)
{
    int outer = l->space.ndim - 1; /* number of dimensions outside of the run */
    int64_t index[LUDA_MAX_DIMS] = { 0 };
    loop_run run;
    int64_t rest = first / l->inner, column = first % l->inner;
    for (int d = outer - 1; d >= 0; d--) {
        index[d] = rest % l->space.shape[d];
        rest /= l->space.shape[d];
    }
    for (int o = 0; o < l->operands; o++) {
        run.stride[o] = l->space.ndim > 0 ? l->space.stride[o][outer] : 1;
        run.data[o] = l->data[o];
        for (int d = 0; d < outer; d++)
            run.data[o] += index[d] * l->space.stride[o][d] * l->size[o];
    }
    for (int64_t done = first; done < last;) {
        run.count = smaller(l->inner - column, last - done);
        run.first = done;
        for (int o = 0; o < l->operands; o++)
            run.data[o] += column * run.stride[o] * l->size[o];
        l->fn(&run, l->arg);
        done += run.count;
        if (done >= last)
            return;
        for (int o = 0; o < l->operands; o++)
            run.data[o] -= column * run.stride[o] * l->size[o];
        column = 0;
        for (int d = outer - 1; d >= 0; d--) {
            for (int o = 0; o < l->operands; o++)
                run.data[o] += l->space.stride[o][d] * l->size[o];
            if (++index[d] < l->space.shape[d])
                break;
            for (int o = 0; o < l->operands; o++)
                run.data[o] -= l->space.shape[d] * l->space.stride[o][d] * l->size[o];
            index[d] = 0;
        }
    }
}

static void run_slab(void *arg, int64_t slab)
{
    const loop *l = arg;
    run_range(l, slab * LOOP_SLAB, smaller((slab + 1) * LOOP_SLAB, l->space.numel));
}

void luda__loop(const luda_operand *const *operands, int count, loop_function fn, const void *arg)
{
    const luda_operand *out = operands[0];
    loop l = { .space = { .numel = 1 }, .operands = count, .inner = 1, .fn = fn, .arg = arg };
    for (int o = 0; o < count; o++) {
        l.data[o] = operands[o]->data;
        l.size[o] = item_size[operands[o]->dtype];
    }
    for (int d = 0; d < out->ndim; d++) {
        int64_t stride[LOOP_OPERANDS];
        for (int o = 0; o < count; o++) {
            int at = d - (out->ndim - operands[o]->ndim);
            stride[o] = at < 0 || (operands[o]->shape[at] == 1 && out->shape[d] != 1) ? 0 : operands[o]->stride[at];
        }
        luda__space_add(&l.space, count, out->shape[d], stride);
    }
    if (l.space.numel == 0)
        return;
    if (l.space.ndim > 0)
        l.inner = l.space.shape[l.space.ndim - 1];
    if (l.space.numel <= LOOP_SLAB)
        run_range(&l, 0, l.space.numel);
    else
        luda__parallel(ceil_div(l.space.numel, LOOP_SLAB), run_slab, &l);
}
