/*
 * gather, scatter, scatter_add. The two that write sort the positions of each line, so that an element of the result takes
 * its terms in the order of the positions, whatever thread comes first.
 */
#include "lines.cuh"

struct target {
    int op, base;
    int64_t size; /* of the dimension on the whole side */
    luda_cuda_fault *fault;
};

/* Operands of the lines: positions, the side of their shape, the whole side. */
template <class T>
__global__ void gather_along(lines l, target p, const int64_t *positions, T *few, const T *whole)
{
    for (int64_t i = first_element(); i < l.kept.numel * l.size[0]; i += step()) {
        int64_t at[3], j = i % l.size[0];
        l.kept.locate(i / l.size[0], at);
        int64_t given = positions[at[0] + j * l.stride[0]], position = given - p.base;
        if (position < 0 || position >= p.size)
            report(p.fault, FAULT_POSITION, p.op, given, p.size, p.base);
        else
            few[at[1] + j * l.stride[1]] = whole[at[2] + position * l.stride[2]];
    }
}

__global__ void key_along(lines l, target p, keyed *items, int64_t padded, const int64_t *positions)
{
    for (int64_t i = first_element(); i < l.kept.numel * padded; i += step()) {
        int64_t at[3], j = i % padded;
        uint64_t key = ~static_cast<uint64_t>(0);
        if (j < l.size[0]) {
            l.kept.locate(i / padded, at);
            int64_t given = positions[at[0] + j * l.stride[0]], position = given - p.base;
            if (position < 0 || position >= p.size)
                report(p.fault, FAULT_POSITION, p.op, given, p.size, p.base);
            else
                key = static_cast<uint64_t>(position);
        }
        items[i] = { key, j };
    }
}

/* ADD: what is there plus all terms, else the last of them. */
template <class T, class A, bool ADD>
__global__ void put_along(lines l, const keyed *items, int64_t padded, const T *few, T *whole)
{
    for (int64_t i = first_element(); i < l.kept.numel * l.size[2]; i += step()) {
        const keyed *line = items + i / l.size[2] * padded;
        int64_t at[3], low = 0, high = l.size[0];
        uint64_t wanted = static_cast<uint64_t>(i % l.size[2]);
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (line[middle].key < wanted)
                low = middle + 1;
            else
                high = middle;
        }
        if (low == l.size[0] || line[low].key != wanted)
            continue;
        l.kept.locate(i / l.size[2], at);
        T *out = whole + at[2] + static_cast<int64_t>(wanted) * l.stride[2];
        A sum = static_cast<A>(load(*out));
        for (; low < l.size[0] && line[low].key == wanted; low++) {
            T term = few[at[1] + line[low].value * l.stride[1]];
            if (ADD)
                sum += static_cast<A>(load(term));
            else
                *out = term;
        }
        if (ADD)
            *out = to<T>(sum);
    }
}

template <class T>
__global__ void copy_elements(space<2> s, T *out, const T *x)
{
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[2];
        s.locate(i, at);
        out[at[0]] = x[at[1]];
    }
}

static target target_of(const luda_call *call, luda_cuda_stream *stream)
{
    const luda_operand *x = &call->in[0];
    return { call->op, call->attrs->gather.base, x->ndim > 0 ? x->shape[call->attrs->gather.dim] : 1, stream->fault };
}

template <class T>
static luda_status launch_gather(const luda_call *call)
{
    luda_cuda_stream *stream = stream_of(call);
    lines l = plan_lines(&call->in[1], &call->out[0], &call->in[0], call->attrs->gather.dim, call->attrs->gather.base);
    if (!stream)
        return LUDA_ECUDA;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((gather_along<T>), blocks_for(call->out[0].numel), BLOCK, 0, stream->stream, l, target_of(call, stream),
                static_cast<const int64_t *>(call->in[1].data), static_cast<T *>(call->out[0].data),
                static_cast<const T *>(call->in[0].data));
    return launched(call);
}

template <class T, class A, bool ADD>
static luda_status put(const luda_call *call, luda_cuda_stream *stream)
{
    const luda_operand *out = &call->out[0], *positions = &call->in[1];
    lines l = plan_lines(positions, &call->in[2], out, call->attrs->gather.dim, call->attrs->gather.base);
    int64_t padded = power_above(l.size[0]), count = l.kept.numel * padded;
    size_t bytes = static_cast<size_t>(count) * sizeof(keyed);
    keyed *items = static_cast<keyed *>(luda__cuda_scratch(stream, bytes));
    if (!items)
        return fail_memory(call, bytes);
    LUDA_LAUNCH(key_along, blocks_for(count), BLOCK, 0, stream->stream, l, target_of(call, stream), items, padded,
                static_cast<const int64_t *>(positions->data));
    luda_status status = launched(call);
    if (status == LUDA_OK)
        status = luda__cuda_sort(call, stream, items, count, padded);
    if (status != LUDA_OK || out->numel == 0)
        return status;
    LUDA_LAUNCH((put_along<T, A, ADD>), blocks_for(l.kept.numel * l.size[2]), BLOCK, 0, stream->stream, l, items, padded,
                static_cast<const T *>(call->in[2].data), static_cast<T *>(out->data));
    return launched(call);
}

template <class T, class A, bool ADD>
static luda_status launch_put(const luda_call *call)
{
    const luda_operand *out = &call->out[0];
    luda_cuda_stream *stream = stream_of(call);
    luda_status status = LUDA_OK;
    if (!stream)
        return LUDA_ECUDA;
    if (out->numel > 0) {
        LUDA_LAUNCH((copy_elements<T>), blocks_for(out->numel), BLOCK, 0, stream->stream, common_space<2>({ out, &call->in[0] }),
                    static_cast<T *>(out->data), static_cast<const T *>(call->in[0].data));
        status = launched(call);
    }
    if (status != LUDA_OK || call->in[1].numel == 0)
        return status;
    pthread_mutex_lock(&stream->lock);
    status = put<T, A, ADD>(call, stream);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

#define EACH "../cuda/scatter.inc"
#include "../cpu/each.h"
