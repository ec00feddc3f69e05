/*
 * sort, cummax, cummin, searchsorted, nonzero, linear_scan: lines of elements taken in order. What compares works on keys,
 * what moves on elements of a size, what adds on doubles or int64_t.
 */
#include "lines.h"
#include "wide.h"

#include "kernels/order.h"

enum { SHORT = 48 }; /* lines up to this size are sorted by insertion */

typedef struct entry {
    uint64_t key;
    int64_t position;
} entry;

static void sort_short(entry *line, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        entry moving = line[i];
        int64_t j = i;
        for (; j > 0 && line[j - 1].key > moving.key; j--)
            line[j] = line[j - 1];
        line[j] = moving;
    }
}

/* By one byte of the keys after the other, from the least; stable. Returns where the result lies. */
static entry *sort_line(entry *line, entry *other, int64_t n, int bytes)
{
    if (n <= SHORT) {
        sort_short(line, n);
        return line;
    }
    for (int byte = 0; byte < bytes; byte++) {
        int64_t starts[257] = { 0 };
        for (int64_t i = 0; i < n; i++)
            starts[(line[i].key >> 8 * byte & 255) + 1]++;
        if (starts[(line[0].key >> 8 * byte & 255) + 1] == n)
            continue;
        for (int digit = 0; digit < 256; digit++)
            starts[digit + 1] += starts[digit];
        for (int64_t i = 0; i < n; i++)
            other[starts[line[i].key >> 8 * byte & 255]++] = line[i];
        entry *swap = line;
        line = other;
        other = swap;
    }
    return line;
}

static inline uint64_t key_f64(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return luda__float_key(bits, 64, 0x7FF0000000000000u);
}

static inline uint64_t key_f32(float v) { return luda__float_key(float_bits(v), 32, 0x7F800000u); }
static inline uint64_t key_f16(uint16_t v) { return luda__float_key(v, 16, 0x7C00u); }
static inline uint64_t key_bf16(uint16_t v) { return luda__float_key(v, 16, 0x7F80u); }
static inline uint64_t key_i64(int64_t v) { return (uint64_t)v ^ (uint64_t)1 << 63; }
static inline uint64_t key_i32(int32_t v) { return (uint32_t)v ^ 0x80000000u; }
static inline uint64_t key_i16(int16_t v) { return (uint16_t)(v ^ 0x8000); }
static inline uint64_t key_i8(int8_t v) { return (uint8_t)(v ^ 0x80); }
static inline uint64_t key_u8(uint8_t v) { return v; }
static inline uint64_t key_bool(uint8_t v) { return v != 0; }

#define EACH "kernels/cpu/index/order.inc"
#include "kernels/cpu/each.h"

/* Writes the keys of n elements of `line`, from `offset` on, `stride` apart, `step` keys apart. */
static void (*const keys_of[LUDA_DTYPE_COUNT])(const void *line, int64_t offset, int64_t stride, int64_t n, uint64_t *keys,
                                               int64_t step) = {
#define LUDA_DTYPE(suffix, NAME, ...) [LUDA_##NAME] = keys_##suffix,
#include "kernels/dtypes.def"
};

#define EACH_SIZE "kernels/cpu/index/order_move.inc"
#include "kernels/cpu/each_size.h"

/* values(j) = x(position of j), for line k. Operands of the lines: values, positions, x. */
static void pick(const lines *l, int64_t k)
{
    static void (*const pick_line[])(const lines *, int64_t) = BY_SIZE(pick_line);
    pick_line[SIZE_INDEX(luda__item_size(l->call->in[0].dtype))](l, k);
}

static void *scratch_for(lines *l, size_t bytes)
{
    void *memory = luda__scratch(bytes);
    if (!memory)
        atomic_store_explicit(&l->failed, 1, memory_order_relaxed);
    return memory;
}

/* --- sort, cummax, cummin: values, positions, x --- */

static uint64_t all_bits(const lines *l)
{
    return ~(uint64_t)0 >> (64 - 8 * luda__item_size(l->call->in[0].dtype));
}

static void sort_lines(void *arg, int64_t slab)
{
    lines *l = arg;
    int64_t last = smaller((slab + 1) * l->per_slab, l->kept.numel), n = l->size[0];
    int dtype = l->call->in[0].dtype, bytes = (int)luda__item_size(dtype);
    uint64_t flip = l->call->attrs->sort.descending ? all_bits(l) : 0;
    entry *work = scratch_for(l, (size_t)n * 2 * sizeof *work);
    for (int64_t k = slab * l->per_slab; work && k < last; k++) {
        int64_t *positions = (int64_t *)l->data[1] + space_offset(&l->kept, 1, k);
        keys_of[dtype](l->data[2], space_offset(&l->kept, 2, k), l->stride[2], n, &work[0].key, 2);
        for (int64_t j = 0; j < n; j++) {
            work[j].key ^= flip;
            work[j].position = j;
        }
        const entry *sorted = sort_line(work, work + n, n, bytes);
        for (int64_t j = 0; j < n; j++)
            positions[j * l->stride[1]] = sorted[j].position + l->base;
        pick(l, k);
    }
}

static void extreme_lines(void *arg, int64_t slab)
{
    lines *l = arg;
    int64_t last = smaller((slab + 1) * l->per_slab, l->kept.numel), n = l->size[0];
    int dtype = l->call->in[0].dtype, smallest = l->call->op == LUDA_OP_cummin;
    uint64_t all = all_bits(l), *keys = scratch_for(l, (size_t)n * sizeof *keys);
    for (int64_t k = slab * l->per_slab; keys && k < last; k++) {
        int64_t *positions = (int64_t *)l->data[1] + space_offset(&l->kept, 1, k);
        keys_of[dtype](l->data[2], space_offset(&l->kept, 2, k), l->stride[2], n, keys, 1);
        uint64_t best = 0;
        int64_t position = 0;
        for (int64_t j = 0; j < n; j++) {
            uint64_t key = keys[j];
            if (smallest && !(luda__wide_line[dtype].is_float && key == all))
                key = all - key;
            if (key >= best) {
                best = key;
                position = j;
            }
            positions[j * l->stride[1]] = position + l->base;
        }
        pick(l, k);
    }
}

static luda_status in_order(const luda_call *call, int dim, int base, int64_t cost, void (*fn)(void *, int64_t))
{
    const luda_operand *operands[] = { &call->out[0], &call->out[1], &call->in[0] };
    lines l;
    if (call->in[0].numel == 0)
        return LUDA_OK;
    plan_lines(call, operands, 3, dim, &l);
    l.base = base;
    return run_lines(&l, l.size[0] * cost, fn);
}

static luda_status sort(const luda_call *call)
{
    return in_order(call, call->attrs->sort.dim, call->attrs->sort.base, 16, sort_lines);
}

static luda_status running_extreme(const luda_call *call)
{
    return in_order(call, call->attrs->gather.dim, call->attrs->gather.base, 1, extreme_lines);
}

/* --- searchsorted: result, values, sorted (one row for all of them where it has one dimension) --- */

static void search_lines(void *arg, int64_t slab)
{
    lines *l = arg;
    int64_t last = smaller((slab + 1) * l->per_slab, l->kept.numel), n = l->size[0];
    int right = l->call->attrs->search.right, dtype = l->call->in[0].dtype;
    int64_t size = l->size[2], loaded = size <= 4 * n ? size : 0; /* few values: the keys that are met, one by one */
    uint64_t key, *wanted = scratch_for(l, (size_t)(n + loaded) * sizeof *wanted), *row = wanted + n;
    for (int64_t k = slab * l->per_slab; wanted && k < last; k++) {
        int64_t *out = (int64_t *)l->data[0] + space_offset(&l->kept, 0, k);
        int64_t sorted = space_offset(&l->kept, 2, k);
        keys_of[dtype](l->data[1], space_offset(&l->kept, 1, k), l->stride[1], n, wanted, 1);
        keys_of[dtype](l->data[2], sorted, l->stride[2], loaded, row, 1);
        for (int64_t j = 0; j < n; j++) {
            int64_t low = 0, high = size;
            while (low < high) {
                int64_t middle = low + (high - low) / 2;
                if (loaded)
                    key = row[middle];
                else
                    keys_of[dtype](l->data[2], sorted + middle * l->stride[2], 1, 1, &key, 1);
                if (right ? key <= wanted[j] : key < wanted[j])
                    low = middle + 1;
                else
                    high = middle;
            }
            out[j * l->stride[0]] = low + l->base;
        }
    }
}

static luda_status searchsorted(const luda_call *call)
{
    int ndim = call->out[0].ndim, dim = larger(ndim - 1, 0);
    luda_operand sorted = call->in[0];
    if (sorted.ndim < ndim) { /* one row for all */
        sorted.shape[dim] = sorted.shape[0];
        sorted.stride[dim] = sorted.stride[0];
        memset(sorted.stride, 0, (size_t)dim * sizeof *sorted.stride);
        sorted.ndim = ndim;
    }
    const luda_operand *operands[] = { &call->out[0], &call->in[1], &sorted };
    lines l;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    plan_lines(call, operands, 3, dim, &l);
    l.base = call->attrs->search.base;
    return run_lines(&l, l.size[0] * 16, search_lines);
}

/* --- nonzero --- */

static luda_status nonzero(const luda_call *call)
{
    static int64_t (*const write_places[])(const luda_operand *, int, int64_t, int64_t *) = BY_SIZE(write_places);
    const luda_operand *x = &call->in[0];
    int64_t *out = call->out[0].data;
    int64_t count = write_places[SIZE_INDEX(luda__item_size(x->dtype))](x, luda__wide_line[x->dtype].is_float,
                                                                       call->attrs->nonzero.base, out);
    if ((x->numel - count) * x->ndim > 0)
        memset(out + count * x->ndim, 0, (size_t)((x->numel - count) * x->ndim) * sizeof *out);
    *(int64_t *)call->out[1].data = count;
    return LUDA_OK;
}

/* --- linear_scan: y, x, a; floats run in double and are rounded where they are stored --- */

static void scan_doubles(double *y, const double *a, int64_t n, int reverse)
{
    for (int64_t i = 1; i < n; i++) {
        int64_t j = reverse ? n - 1 - i : i, before = reverse ? j + 1 : j - 1;
        y[j] += a[j] * y[before];
    }
}

static void scan_integers(uint64_t *y, const uint64_t *a, int64_t n, int reverse)
{
    for (int64_t i = 1; i < n; i++) {
        int64_t j = reverse ? n - 1 - i : i, before = reverse ? j + 1 : j - 1;
        y[j] += a[j] * y[before];
    }
}

static void scan_lines(void *arg, int64_t slab)
{
    lines *l = arg;
    const wide_line *wide = &luda__wide_line[l->call->out[0].dtype];
    int64_t last = smaller((slab + 1) * l->per_slab, l->kept.numel), n = l->size[0];
    int reverse = l->call->attrs->scan.reverse;
    uint64_t *y = scratch_for(l, (size_t)n * 2 * sizeof *y), *a = y + n;
    for (int64_t k = slab * l->per_slab; y && k < last; k++) {
        wide->load(l->data[1], space_offset(&l->kept, 1, k), l->stride[1], n, y);
        wide->load(l->data[2], space_offset(&l->kept, 2, k), l->stride[2], n, a);
        if (wide->is_float)
            scan_doubles((double *)y, (const double *)a, n, reverse);
        else
            scan_integers(y, a, n, reverse);
        wide->store(y, l->data[0], space_offset(&l->kept, 0, k), l->stride[0], n);
    }
}

static luda_status linear_scan(const luda_call *call)
{
    const luda_operand *operands[] = { &call->out[0], &call->in[0], &call->in[1] };
    lines l;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    plan_lines(call, operands, 3, call->attrs->scan.dim, &l);
    return run_lines(&l, l.size[0], scan_lines);
}

#define EACH "kernels/cpu/index/order_rows.inc"
#include "kernels/cpu/each.h"
