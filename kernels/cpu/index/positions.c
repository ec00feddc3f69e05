/* See positions.h. Nothing here depends on the instruction set. */
#include "positions.h"

typedef struct check {
    int64_t base, size;
    const int64_t *ignored;
    atomic_llong *bad; /* row-major number of the first bad position */
} check;

static void run_check(const loop_run *run, const void *arg)
{
    const check *c = arg;
    const int64_t *positions = (const int64_t *)run->data[0];
    for (int64_t i = 0; i < run->count; i++) {
        int64_t position = positions[i * run->stride[0]];
        if ((position >= c->base && position - c->base < c->size) || (c->ignored && position == *c->ignored))
            continue;
        long long seen = atomic_load_explicit(c->bad, memory_order_relaxed);
        while (run->first + i < seen && !atomic_compare_exchange_weak(c->bad, &seen, run->first + i))
            ;
        return;
    }
}

luda_status luda__check_positions(const luda_call *call, const luda_operand *positions, int32_t base, int64_t size,
                                  const int64_t *ignored)
{
    atomic_llong bad = INT64_MAX;
    check c = { base, size, ignored, &bad };
    luda__loop_over(positions, run_check, &c);
    if (bad == INT64_MAX)
        return LUDA_OK;
    int64_t offset = 0, index = bad;
    for (int d = positions->ndim - 1; d >= 0; d--) {
        offset += index % positions->shape[d] * positions->stride[d];
        index /= positions->shape[d];
    }
    long long value = ((const int64_t *)positions->data)[offset];
    if (size == 0)
        return fail(call, LUDA_EINDEX, "%s: position %lld of an empty dimension (base %d)", op_name(call), value,
                    (int)base);
    return fail(call, LUDA_EINDEX, "%s: position %lld is outside %d .. %lld (base %d)%s", op_name(call), value,
                (int)base, (long long)size + base - 1, (int)base,
                value == 0 && base == 1 ? "; are these 0-based positions? pass base = 0" : "");
}
