/* See loops.h. Nothing here depends on the instruction set. */
#include "loops.h"

static const int64_t item_size[LUDA_DTYPE_COUNT] = {
#define LUDA_DTYPE(suffix, NAME, stored, ...) [LUDA_##NAME] = sizeof(stored),
#include "kernels/dtypes.def"
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

/* --- Inputs that are contiguous along the last dimension but one: blocks of them are transposed into a buffer --- */

enum { BLOCK_ROWS = 16, BLOCK_COLUMNS = 64, BLOCKS_PER_SLAB = 32, SMALLEST_BLOCKED = 1 << 12 };

static int is_transposed(const loop *l, int operand)
{
    int last = l->space.ndim - 1;
    int64_t step = l->space.stride[operand][last];
    return l->space.stride[operand][last - 1] == 1 && step != 1 && step != 0;
}

static int wants_blocks(const loop *l)
{
    int last = l->space.ndim - 1;
    if (last < 1 || l->space.numel < SMALLEST_BLOCKED || l->space.shape[last] < 8 || l->space.shape[last - 1] < 8)
        return 0;
    for (int o = 1; o < l->operands; o++)
        if (is_transposed(l, o))
            return 1;
    return 0;
}

/* rows x columns elements, read along the rows, into a buffer whose rows are BLOCK_COLUMNS apart. */
INLINE void transpose(const char *from, int64_t step, int64_t rows, int64_t columns, size_t size, char *to)
{
    for (int64_t c = 0; c < columns; c++)
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + (size_t)(r * BLOCK_COLUMNS + c) * size, from + (c * step + r) * (int64_t)size, size);
}

static void transpose_block(const char *from, int64_t step, int64_t rows, int64_t columns, int64_t size, char *to)
{
    if (size == 1)
        transpose(from, step, rows, columns, 1, to);
    else if (size == 2)
        transpose(from, step, rows, columns, 2, to);
    else if (size == 4)
        transpose(from, step, rows, columns, 4, to);
    else
        transpose(from, step, rows, columns, 8, to);
}

/* One block: the elements from index `first` on, `rows` by `columns`. */
static void run_block(const loop *l, int64_t first, int64_t rows, int64_t columns)
{
    _Alignas(64) char buffer[LOOP_OPERANDS - 1][BLOCK_ROWS * BLOCK_COLUMNS * 8];
    int last = l->space.ndim - 1;
    const char *start[LOOP_OPERANDS];
    int64_t pitch[LOOP_OPERANDS]; /* bytes between rows */
    loop_run run = { .count = columns };
    for (int o = 0; o < l->operands; o++) {
        char *data = l->data[o] + space_offset(&l->space, o, first) * l->size[o];
        int moved = o > 0 && is_transposed(l, o);
        if (moved)
            transpose_block(data, l->space.stride[o][last], rows, columns, l->size[o], buffer[o - 1]);
        run.stride[o] = moved ? 1 : l->space.stride[o][last];
        pitch[o] = (moved ? BLOCK_COLUMNS : l->space.stride[o][last - 1]) * l->size[o];
        start[o] = moved ? buffer[o - 1] : data;
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int o = 0; o < l->operands; o++)
            run.data[o] = (char *)start[o] + r * pitch[o];
        run.first = first + r * l->inner;
        l->fn(&run, l->arg);
    }
}

static void run_block_slab(void *arg, int64_t slab)
{
    const loop *l = arg;
    int64_t rows = l->space.shape[l->space.ndim - 2], wide = ceil_div(l->inner, BLOCK_COLUMNS),
            high = ceil_div(rows, BLOCK_ROWS);
    int64_t last = smaller((slab + 1) * BLOCKS_PER_SLAB, l->space.numel / (rows * l->inner) * high * wide);
    for (int64_t b = slab * BLOCKS_PER_SLAB; b < last; b++) {
        int64_t row = b % high * BLOCK_ROWS, column = b / high % wide * BLOCK_COLUMNS, outer = b / (wide * high);
        run_block(l, (outer * rows + row) * l->inner + column, smaller(BLOCK_ROWS, rows - row),
                  smaller(BLOCK_COLUMNS, l->inner - column));
    }
}

static void run_blocks(loop *l)
{
    int64_t rows = l->space.shape[l->space.ndim - 2];
    int64_t blocks =
        l->space.numel / (rows * l->inner) * ceil_div(rows, BLOCK_ROWS) * ceil_div(l->inner, BLOCK_COLUMNS);
    luda__parallel(ceil_div(blocks, BLOCKS_PER_SLAB), run_block_slab, l);
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
    if (wants_blocks(&l))
        run_blocks(&l);
    else if (l.space.numel <= LOOP_SLAB)
        run_range(&l, 0, l.space.numel);
    else
        luda__parallel(ceil_div(l.space.numel, LOOP_SLAB), run_slab, &l);
}
