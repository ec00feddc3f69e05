/* sort, cummax, cummin, searchsorted, nonzero, linear_scan. A scan takes a line a thread, so it wants many lines. */
#include "lines.cuh"

#include "../order.h"

/* --- Keys --- */

template <class T, class WORD>
INLINE uint64_t bits_of(T v)
{
    WORD bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

INLINE uint64_t key_of(double v) { return luda__float_key(bits_of<double, uint64_t>(v), 64, 0x7FF0000000000000u); }
INLINE uint64_t key_of(float v) { return luda__float_key(bits_of<float, uint32_t>(v), 32, 0x7F800000u); }
INLINE uint64_t key_of(__half v) { return luda__float_key(bits_of<__half, uint16_t>(v), 16, 0x7C00u); }
INLINE uint64_t key_of(__nv_bfloat16 v) { return luda__float_key(bits_of<__nv_bfloat16, uint16_t>(v), 16, 0x7F80u); }
INLINE uint64_t key_of(uint8_t v) { return v; }
INLINE uint64_t key_of(bool v) { return v; }
INLINE uint64_t key_of(int64_t v) { return bits_of<int64_t, uint64_t>(v) ^ 0x8000000000000000u; }
INLINE uint64_t key_of(int32_t v) { return bits_of<int32_t, uint32_t>(v) ^ 0x80000000u; }
INLINE uint64_t key_of(int16_t v) { return bits_of<int16_t, uint16_t>(v) ^ 0x8000u; }
INLINE uint64_t key_of(int8_t v) { return bits_of<int8_t, uint8_t>(v) ^ 0x80u; }

template <class T>
INLINE uint64_t all_bits()
{
    return ~static_cast<uint64_t>(0) >> (64 - 8 * sizeof(T));
}

/* --- sort. Operands of the lines: values, positions, x --- */

template <class T>
__global__ void key_lines(lines l, uint64_t flip, keyed *items, int64_t padded, const T *x)
{
    for (int64_t i = first_element(); i < l.kept.numel * padded; i += step()) {
        int64_t at[3], j = i % padded;
        l.kept.locate(i / padded, at);
        items[i] = { j < l.size[0] ? key_of(x[at[2] + j * l.stride[2]]) ^ flip : ~static_cast<uint64_t>(0), j };
    }
}

template <class T>
__global__ void place_sorted(lines l, const keyed *items, int64_t padded, T *values, int64_t *positions, const T *x)
{
    for (int64_t i = first_element(); i < l.kept.numel * l.size[0]; i += step()) {
        int64_t at[3], j = i % l.size[0], line = i / l.size[0], from = items[line * padded + j].value;
        l.kept.locate(line, at);
        values[at[0] + j * l.stride[0]] = x[at[2] + from * l.stride[2]];
        positions[at[1] + j * l.stride[1]] = from + l.base;
    }
}

template <class T>
static luda_status sort_in(const luda_call *call, luda_cuda_stream *stream, const lines &l)
{
    int64_t padded = power_above(l.size[0]), count = l.kept.numel * padded;
    size_t bytes = static_cast<size_t>(count) * sizeof(keyed);
    keyed *items = static_cast<keyed *>(luda__cuda_scratch(stream, bytes));
    const T *x = static_cast<const T *>(call->in[0].data);
    if (!items)
        return fail_memory(call, bytes);
    LUDA_LAUNCH((key_lines<T>), blocks_for(count), BLOCK, 0, stream->stream, l,
                call->attrs->sort.descending ? all_bits<T>() : 0, items, padded, x);
    luda_status status = launched(call);
    if (status == LUDA_OK)
        status = luda__cuda_sort(call, stream, items, count, padded);
    if (status != LUDA_OK)
        return status;
    LUDA_LAUNCH((place_sorted<T>), blocks_for(call->out[0].numel), BLOCK, 0, stream->stream, l, items, padded,
                static_cast<T *>(call->out[0].data), static_cast<int64_t *>(call->out[1].data), x);
    return launched(call);
}

template <class T>
static luda_status launch_sort(const luda_call *call)
{
    const struct luda_sort_attrs *a = &call->attrs->sort;
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (call->in[0].numel == 0)
        return LUDA_OK;
    pthread_mutex_lock(&stream->lock);
    luda_status status = sort_in<T>(call, stream, plan_lines(&call->out[0], &call->out[1], &call->in[0], a->dim, a->base));
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* --- cummax, cummin --- */

template <class T, bool SMALLEST, bool FLOATING>
__global__ void extreme_lines(lines l, T *values, int64_t *positions, const T *x)
{
    for (int64_t i = first_element(); i < l.kept.numel; i += step()) {
        int64_t at[3], position = 0;
        uint64_t best = 0;
        l.kept.locate(i, at);
        for (int64_t j = 0; j < l.size[0]; j++) {
            uint64_t key = key_of(x[at[2] + j * l.stride[2]]);
            if (SMALLEST && !(FLOATING && key == all_bits<T>()))
                key = all_bits<T>() - key;
            if (j == 0 || key >= best) {
                best = key;
                position = j;
            }
            values[at[0] + j * l.stride[0]] = x[at[2] + position * l.stride[2]];
            positions[at[1] + j * l.stride[1]] = position + l.base;
        }
    }
}

template <class T, bool SMALLEST, bool FLOATING>
static luda_status launch_extreme(const luda_call *call)
{
    luda_cuda_stream *stream = stream_of(call);
    lines l = plan_lines(&call->out[0], &call->out[1], &call->in[0], call->attrs->gather.dim, call->attrs->gather.base);
    if (!stream)
        return LUDA_ECUDA;
    if (call->in[0].numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((extreme_lines<T, SMALLEST, FLOATING>), blocks_for(l.kept.numel), BLOCK, 0, stream->stream, l,
                static_cast<T *>(call->out[0].data), static_cast<int64_t *>(call->out[1].data),
                static_cast<const T *>(call->in[0].data));
    return launched(call);
}

/* --- searchsorted. Operands of the lines: result, values, sorted --- */

template <class T>
__global__ void search_lines(lines l, int right, int64_t *out, const T *values, const T *sorted)
{
    for (int64_t i = first_element(); i < l.kept.numel * l.size[0]; i += step()) {
        int64_t at[3], j = i % l.size[0], low = 0, high = l.size[2];
        l.kept.locate(i / l.size[0], at);
        uint64_t wanted = key_of(values[at[1] + j * l.stride[1]]);
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            uint64_t key = key_of(sorted[at[2] + middle * l.stride[2]]);
            if (right ? key <= wanted : key < wanted)
                low = middle + 1;
            else
                high = middle;
        }
        out[at[0] + j * l.stride[0]] = low + l.base;
    }
}

template <class T>
static luda_status launch_search(const luda_call *call)
{
    luda_cuda_stream *stream = stream_of(call);
    int ndim = call->out[0].ndim, dim = ndim > 0 ? ndim - 1 : 0;
    luda_operand sorted = call->in[0];
    if (sorted.ndim < ndim) { /* one row for all */
        sorted.shape[dim] = sorted.shape[0];
        sorted.stride[dim] = sorted.stride[0];
        for (int d = 0; d < dim; d++)
            sorted.stride[d] = 0;
        sorted.ndim = ndim;
    }
    lines l = plan_lines(&call->out[0], &call->in[1], &sorted, dim, call->attrs->search.base);
    if (!stream)
        return LUDA_ECUDA;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((search_lines<T>), blocks_for(call->out[0].numel), BLOCK, 0, stream->stream, l, call->attrs->search.right,
                static_cast<int64_t *>(call->out[0].data), static_cast<const T *>(call->in[1].data),
                static_cast<const T *>(sorted.data));
    return launched(call);
}

/* --- nonzero: one block; each thread counts and then writes a part of its own --- */

struct grid {
    space<1> memory;
    int ndim, base;
    int64_t shape[LUDA_MAX_DIMS];
};

template <class T>
__global__ void find_nonzero(grid g, int64_t *out, int64_t *total, const T *x)
{
    __shared__ int64_t counts[BLOCK];
    int64_t part = (g.memory.numel + BLOCK - 1) / BLOCK, first = threadIdx.x * part, count = 0, at[1];
    int64_t last = first + part < g.memory.numel ? first + part : g.memory.numel;
    for (int64_t i = first; i < last; i++) {
        g.memory.locate(i, at);
        count += load(x[at[0]]) != 0;
    }
    counts[threadIdx.x] = count;
    __syncthreads();
    int64_t place = 0;
    for (unsigned t = 0; t < threadIdx.x; t++)
        place += counts[t];
    if (threadIdx.x == BLOCK - 1)
        *total = place + count;
    for (int64_t i = first; i < last; i++) {
        g.memory.locate(i, at);
        if (!(load(x[at[0]]) != 0))
            continue;
        int64_t rest = i;
        for (int d = g.ndim - 1; d >= 0; d--) {
            out[place * g.ndim + d] = rest % g.shape[d] + g.base;
            rest /= g.shape[d];
        }
        place++;
    }
}

template <class T>
static luda_status launch_nonzero(const luda_call *call)
{
    const luda_operand *x = &call->in[0], *out = &call->out[0];
    luda_cuda_stream *stream = stream_of(call);
    grid g = { common_space<1>({ x }), x->ndim, call->attrs->nonzero.base, {} };
    if (!stream)
        return LUDA_ECUDA;
    for (int d = 0; d < x->ndim; d++)
        g.shape[d] = x->shape[d];
    if (out->numel > 0)
        cudaMemsetAsync(out->data, 0, static_cast<size_t>(out->numel) * sizeof(int64_t), stream->stream);
    LUDA_LAUNCH((find_nonzero<T>), 1, BLOCK, 0, stream->stream, g, static_cast<int64_t *>(out->data),
                static_cast<int64_t *>(call->out[1].data), static_cast<const T *>(x->data));
    return launched(call);
}

/* --- linear_scan. Operands of the lines: y, x, a --- */

/* RUNNING: double, or uint64_t for integers, which wrap. */
template <class T, class RUNNING, class RESULT>
__global__ void scan_lines(lines l, int reverse, T *y, const T *x, const T *a)
{
    for (int64_t i = first_element(); i < l.kept.numel; i += step()) {
        int64_t at[3], j = reverse ? l.size[0] - 1 : 0;
        RUNNING so_far = 0;
        l.kept.locate(i, at);
        for (int64_t k = 0; k < l.size[0]; k++, j += reverse ? -1 : 1) {
            T term = x[at[1] + j * l.stride[1]];
            so_far = k == 0 ? static_cast<RUNNING>(load(term))
                            : static_cast<RUNNING>(load(term)) + static_cast<RUNNING>(load(a[at[2] + j * l.stride[2]])) * so_far;
            y[at[0] + j * l.stride[0]] = k == 0 ? term : to<T>(static_cast<RESULT>(so_far));
        }
    }
}

template <class T, class RUNNING, class RESULT>
static luda_status launch_scan(const luda_call *call)
{
    luda_cuda_stream *stream = stream_of(call);
    lines l = plan_lines(&call->out[0], &call->in[0], &call->in[1], call->attrs->scan.dim, 0);
    if (!stream)
        return LUDA_ECUDA;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((scan_lines<T, RUNNING, RESULT>), blocks_for(l.kept.numel), BLOCK, 0, stream->stream, l, call->attrs->scan.reverse,
                static_cast<T *>(call->out[0].data), static_cast<const T *>(call->in[0].data),
                static_cast<const T *>(call->in[1].data));
    return launched(call);
}

#define EACH "../cuda/order.inc"
#include "../cpu/each.h"
