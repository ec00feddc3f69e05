/* See loops.h. Nothing here depends on the instruction set of the kernels. */
#include "loops.h"

#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

static const int64_t item_size[LUDA_DTYPE_COUNT] = {
#define LUDA_DTYPE(suffix, NAME, stored, ...) [LUDA_##NAME] = sizeof(stored),
#include "kernels/dtypes.def"
};

int64_t luda__item_size(int32_t dtype)
{
    return item_size[dtype];
}

int64_t luda__space_offset(const space *s, int operand, int64_t index)
{
    int64_t offset = 0;
    for (int d = s->ndim - 1; d > 0; d--) {
        offset += index % s->shape[d] * s->stride[operand][d];
        index /= s->shape[d];
    }
    return s->ndim > 0 ? offset + index * s->stride[operand][0] : 0;
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

/* --- Stores around the caches --- */

/* Half of the last-level cache, of which the operands of one call can hope to find their part there again. */
static int64_t cached_bytes(void)
{
    static atomic_llong known;
    int64_t bytes = atomic_load_explicit(&known, memory_order_relaxed);
    if (bytes > 0)
        return bytes;
    long size = -1;
#ifdef _SC_LEVEL3_CACHE_SIZE
    size = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    bytes = size > 0 ? size / 2 : 16 << 20;
    atomic_store_explicit(&known, bytes, memory_order_relaxed);
    return bytes;
}

int luda__streams(const luda_operand *const *operands, int count)
{
    int64_t bytes = 0;
    for (int o = 0; o < count; o++) {
        bytes += operands[o]->numel * item_size[operands[o]->dtype];
        if (o > 0 && operands[o]->data == operands[0]->data)
            return 0;
    }
    return bytes > cached_bytes();
}

void luda__stream(void *to, const void *from, size_t bytes)
{
#ifdef __SSE2__
    char *target = to;
    const char *source = from;
    size_t head = -(uintptr_t)target & 63;
    if (head < bytes) {
        memcpy(target, source, head);
        for (; head + 64 <= bytes; head += 64)
            for (int part = 0; part < 64; part += 16)
                _mm_stream_si128((__m128i *)(target + head + part),
                                 _mm_loadu_si128((const __m128i *)(source + head + part)));
        memcpy(target + head, source + head, bytes - head);
        return;
    }
#endif
    memcpy(to, from, bytes);
}

/* Before another thread may read what was streamed. */
static void end_stream(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

/* --- Elementwise loops --- */

enum { LEAST_STREAMED = 1024 }; /* bytes of a run */

typedef struct loop {
    space space;
    int operands;
    char *data[LOOP_OPERANDS];
    int64_t size[LOOP_OPERANDS];
    int64_t inner; /* the last dimension, at least 1 */
    int64_t slab;  /* elements */
    int stream, packed;
    loop_function fn;
    const void *arg;
} loop;

/* In pieces that are made in the first-level cache and then stored around the others. */
static void stream_run(const loop *l, const loop_run *run)
{
    _Alignas(64) char made[STREAM_BYTES];
    loop_run piece = *run;
    int64_t size = l->size[0];
    for (int64_t done = 0; done < run->count; done += piece.count) {
        char *target = run->data[0] + done * size;
        int64_t most = (STREAM_BYTES - (int64_t)((uintptr_t)target & 63)) / size; /* pieces end with a line */
        piece.data[0] = made;
        piece.count = smaller(most, run->count - done);
        piece.first = run->first + done;
        for (int o = 1; o < l->operands; o++)
            piece.data[o] = run->data[o] + done * run->stride[o] * l->size[o];
        l->fn(&piece, l->arg);
        luda__stream(target, made, (size_t)(piece.count * size));
    }
}

static void call_run(const loop *l, const loop_run *run)
{
    if (l->stream)
        stream_run(l, run);
    else
        l->fn(run, l->arg);
}

/* A place in the dimensions outside of the runs. */
typedef struct place {
    int64_t index[LUDA_MAX_DIMS];
    char *data[LOOP_OPERANDS];
} place;

static void set_place(const loop *l, int64_t row, place *p)
{
    for (int o = 0; o < l->operands; o++)
        p->data[o] = l->data[o];
    for (int d = l->space.ndim - 2; d >= 0; d--) {
        p->index[d] = row % l->space.shape[d];
        row /= l->space.shape[d];
        for (int o = 0; o < l->operands; o++)
            p->data[o] += p->index[d] * l->space.stride[o][d] * l->size[o];
    }
}

static void next_place(const loop *l, place *p)
{
    for (int d = l->space.ndim - 2; d >= 0; d--) {
        for (int o = 0; o < l->operands; o++)
            p->data[o] += l->space.stride[o][d] * l->size[o];
        if (++p->index[d] < l->space.shape[d])
            break;
        for (int o = 0; o < l->operands; o++)
            p->data[o] -= l->space.shape[d] * l->space.stride[o][d] * l->size[o];
        p->index[d] = 0;
    }
}

/* Elements first .. last-1 in row-major order. */
static void run_range(const loop *l, int64_t first, int64_t last)
{
    int inner = l->space.ndim - 1;
    int64_t column = first % l->inner;
    loop_run run;
    place p;
    set_place(l, first / l->inner, &p);
    for (int o = 0; o < l->operands; o++)
        run.stride[o] = inner >= 0 ? l->space.stride[o][inner] : 1;
    for (int64_t done = first; done < last; done += run.count) {
        run.count = smaller(l->inner - column, last - done);
        run.first = done;
        for (int o = 0; o < l->operands; o++)
            run.data[o] = p.data[o] + column * run.stride[o] * l->size[o];
        call_run(l, &run);
        column = 0;
        next_place(l, &p);
    }
}

/* --- Rows so short that a call for each would cost more than they: inputs are packed, several rows to a run --- */

enum { SHORT_ROW = 64, PACKED = 1024 };

static int is_whole(const loop *l, int operand)
{
    int64_t step = 1;
    for (int d = l->space.ndim - 1; d >= 0; d--) {
        if (l->space.stride[operand][d] != step)
            return 0;
        step *= l->space.shape[d];
    }
    return 1;
}

static int is_repeated(const loop *l, int operand)
{
    for (int d = 0; d < l->space.ndim - 1; d++)
        if (l->space.stride[operand][d] != 0)
            return 0;
    return 1;
}

static int wants_packing(const loop *l)
{
    return l->operands > 1 && l->space.ndim > 1 && l->inner < SHORT_ROW && l->space.numel >= PACKED && is_whole(l, 0);
}

INLINE void pack_elements(const char *from, int64_t stride, int64_t n, size_t size, char *to)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * (int64_t)size, from + i * stride * (int64_t)size, size);
}

static void pack_row(const char *from, int64_t stride, int64_t n, int64_t size, char *to)
{
    if (size == 4)
        pack_elements(from, stride, n, 4, to);
    else if (size == 2)
        pack_elements(from, stride, n, 2, to);
    else if (size == 8)
        pack_elements(from, stride, n, 8, to);
    else
        pack_elements(from, stride, n, 1, to);
}

/* Whole rows from element `first` on. */
static void run_packed(const loop *l, int64_t first, int64_t last)
{
    _Alignas(64) char packed[LOOP_OPERANDS - 1][PACKED * 8];
    int inner = l->space.ndim - 1, packs[LOOP_OPERANDS] = { 0 }, moves = 0;
    int64_t rows = PACKED / l->inner;
    loop_run run = { .stride = { 1, 1, 1, 1 } };
    place p;
    for (int o = 1; o < l->operands; o++) {
        packs[o] = is_whole(l, o) ? 0 : is_repeated(l, o) ? 1 : 2; /* 1: once */
        moves |= packs[o] == 2;
    }
    set_place(l, first / l->inner, &p);
    for (int64_t done = first; done < last; done += run.count) {
        run.count = smaller(rows * l->inner, last - done);
        run.first = done;
        for (int o = 0; o < l->operands; o++)
            run.data[o] = packs[o] ? packed[o - 1] : l->data[o] + done * l->size[o];
        for (int64_t row = 0; row < run.count && (moves || done == first); row += l->inner) {
            for (int o = 1; o < l->operands; o++)
                if (packs[o] == 2 || (packs[o] == 1 && done == first))
                    pack_row(p.data[o], l->space.stride[o][inner], l->inner, l->size[o], packed[o - 1] + row * l->size[o]);
            next_place(l, &p);
        }
        call_run(l, &run);
    }
}

static void run_slab(void *arg, int64_t slab)
{
    const loop *l = arg;
    int64_t first = slab * l->slab, last = smaller(first + l->slab, l->space.numel);
    if (l->packed)
        run_packed(l, first, last);
    else
        run_range(l, first, last);
    if (l->stream)
        end_stream();
}

/* --- Inputs that are contiguous along the last dimension but one: blocks of them are transposed into a buffer --- */

enum { BLOCK_ROWS = 16, BLOCK_COLUMNS = 64, BLOCKS_PER_SLAB = 32, SMALLEST_BLOCKED = 1 << 12, PAGE = 4096 };

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

#ifdef __SSE2__
/* Elements of four bytes: squares of four by four, and the rest one by one. */
static void transpose_words(const char *from, int64_t step, int64_t rows, int64_t columns, char *to)
{
    int64_t whole_rows = rows & -4, whole_columns = columns & -4;
    for (int64_t c = 0; c < whole_columns; c += 4)
        for (int64_t r = 0; r < whole_rows; r += 4) {
            __m128i x[4], low[2], high[2];
            for (int i = 0; i < 4; i++)
                x[i] = _mm_loadu_si128((const __m128i *)(from + ((c + i) * step + r) * 4));
            for (int i = 0; i < 2; i++) {
                low[i] = _mm_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
                high[i] = _mm_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
            }
            __m128i *out = (__m128i *)(to + (r * BLOCK_COLUMNS + c) * 4);
            out[0] = _mm_unpacklo_epi64(low[0], low[1]);
            out[BLOCK_COLUMNS / 4] = _mm_unpackhi_epi64(low[0], low[1]);
            out[2 * BLOCK_COLUMNS / 4] = _mm_unpacklo_epi64(high[0], high[1]);
            out[3 * BLOCK_COLUMNS / 4] = _mm_unpackhi_epi64(high[0], high[1]);
        }
    transpose(from + whole_columns * step * 4, step, rows, columns - whole_columns, 4, to + whole_columns * 4);
    transpose(from + whole_rows * 4, step, rows - whole_rows, whole_columns, 4, to + whole_rows * BLOCK_COLUMNS * 4);
}
#else
static void transpose_words(const char *from, int64_t step, int64_t rows, int64_t columns, char *to)
{
    transpose(from, step, rows, columns, 4, to);
}
#endif

static void transpose_block(const char *from, int64_t step, int64_t rows, int64_t columns, int64_t size, char *to)
{
    if (size == 1)
        transpose(from, step, rows, columns, 1, to);
    else if (size == 2)
        transpose(from, step, rows, columns, 2, to);
    else if (size == 4)
        transpose_words(from, step, rows, columns, to);
    else
        transpose(from, step, rows, columns, 8, to);
}

/* What a block writes, and the first line of what the next one reads: the hardware does not foresee either. */
static void ask_written(const char *to, int64_t step, int64_t rows, int64_t bytes)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t at = 0; at < bytes; at += 64)
            __builtin_prefetch(to + r * step + at, 1, 2);
}

static void ask_read(const char *from, int64_t step, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        __builtin_prefetch(from + r * step, 0, 2);
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
        if (o == 0 && !l->stream)
            ask_written(data, l->space.stride[o][last - 1] * l->size[o], rows, columns * l->size[o]);
        if (moved && !l->stream && l->space.stride[o][last] * l->size[o] >= PAGE)
            ask_read(data + rows * l->size[o], l->space.stride[o][last] * l->size[o], columns);
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
        call_run(l, &run);
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
    if (l->stream)
        end_stream();
}

static void run_blocks(loop *l)
{
    int64_t rows = l->space.shape[l->space.ndim - 2];
    int64_t blocks =
        l->space.numel / (rows * l->inner) * ceil_div(rows, BLOCK_ROWS) * ceil_div(l->inner, BLOCK_COLUMNS);
    luda__parallel(ceil_div(blocks, BLOCKS_PER_SLAB), run_block_slab, l);
}

static void run_loop(const luda_operand *const *operands, int count, int stream, loop_function fn, const void *arg)
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
    l.packed = wants_packing(&l);
    l.slab = l.packed ? LOOP_SLAB / l.inner * l.inner : LOOP_SLAB;
    l.stream = stream && l.space.ndim > 0 && l.space.stride[0][l.space.ndim - 1] == 1 &&
               (l.packed || l.inner * l.size[0] >= LEAST_STREAMED);
    if (wants_blocks(&l))
        run_blocks(&l);
    else
        luda__parallel(ceil_div(l.space.numel, l.slab), run_slab, &l);
}

/* Few elements in one dimension of all operands: one run, without a plan. */
static int run_short(const luda_operand *const *operands, int count, loop_function fn, const void *arg)
{
    int64_t numel = operands[0]->numel;
    loop_run run = { .count = numel };
    if (numel > LOOP_SLAB || numel == 0)
        return 0;
    for (int o = 0; o < count; o++) {
        if (operands[o]->ndim != 1 || operands[o]->shape[0] != numel)
            return 0;
        run.data[o] = operands[o]->data;
        run.stride[o] = operands[o]->stride[0];
    }
    fn(&run, arg);
    return 1;
}

void luda__loop(const luda_operand *const *operands, int count, loop_function fn, const void *arg)
{
    if (run_short(operands, count, fn, arg))
        return;
    run_loop(operands, count, luda__streams(operands, count), fn, arg);
}

void luda__loop_over(const luda_operand *operand, loop_function fn, const void *arg)
{
    run_loop(&operand, 1, 0, fn, arg);
}
