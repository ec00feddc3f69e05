/*
 * index_select and its backward. The backward sorts the positions, so that each element of the result adds up its terms in
 * the order of the positions: the same bits every time.
 */
#include "scalar.cuh"
#include "sort.cuh"

struct slices {
    int op, base;
    int64_t size, stride; /* of the dimension on the whole side */
    luda_cuda_fault *fault;
};

/* --- index_select --- */

/* s: the output, positions, the whole side. */
template <class T>
__global__ void select_slices(space<3> s, slices p, T *out, const int64_t *positions, const T *x)
{
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[3];
        s.locate(i, at);
        int64_t position = positions[at[1]] - p.base;
        if (position < 0 || position >= p.size)
            report(p.fault, FAULT_POSITION, p.op, positions[at[1]], p.size, p.base);
        else
            out[at[0]] = x[at[2] + position * p.stride];
    }
}

template <class T>
static luda_status launch_select(const luda_call *call)
{
    const struct luda_index_select_attrs *a = &call->attrs->index_select;
    const luda_operand *out = &call->out[0], *x = &call->in[0], *positions = &call->in[1];
    luda_cuda_stream *stream = stream_of(call);
    space<3> s = {};
    s.numel = 1;
    for (int d = 0; d < out->ndim; d++) {
        int inner = d - a->dim;
        bool indexed = inner >= 0 && inner < positions->ndim;
        int64_t stride[3] = { out->stride[d], indexed ? positions->stride[inner] : 0,
                              indexed ? 0 : x->stride[inner < 0 ? d : d - positions->ndim + 1] };
        s.add(out->shape[d], stride);
    }
    if (!stream)
        return LUDA_ECUDA;
    if (s.numel == 0)
        return LUDA_OK;
    slices p = { call->op, a->base, x->shape[a->dim], x->stride[a->dim], stream->fault };
    LUDA_LAUNCH((select_slices<T>), blocks_for(s.numel), BLOCK, 0, stream->stream, s, p, static_cast<T *>(out->data),
                static_cast<const int64_t *>(positions->data), static_cast<const T *>(x->numel > 0 ? x->data : NULL));
    return launched(call);
}

/* --- index_select_backward --- */

/* Item i is position i; bad ones, and what pads to a power of two, sort behind all others. */
__global__ void key_positions(space<1> s, slices p, keyed *items, int64_t padded, const int64_t *positions)
{
    for (int64_t i = first_element(); i < padded; i += step()) {
        uint64_t key = ~static_cast<uint64_t>(0);
        if (i < s.numel) {
            int64_t at[1];
            s.locate(i, at);
            int64_t position = positions[at[0]] - p.base;
            if (position < 0 || position >= p.size)
                report(p.fault, FAULT_POSITION, p.op, positions[at[0]], p.size, p.base);
            else
                key = static_cast<uint64_t>(position);
        }
        items[i] = { key, i };
    }
}

/* s: the output, the gradient without its positions, the coordinate along the dimension; order: the gradient by position. */
template <class T, class A>
__global__ void gather_slices(space<3> s, space<1> order, const keyed *items, int64_t count, int accumulate, T *out,
                              const T *g)
{
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[3], low = 0, high = count, from[1];
        s.locate(i, at);
        uint64_t wanted = static_cast<uint64_t>(at[2]);
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (items[middle].key < wanted)
                low = middle + 1;
            else
                high = middle;
        }
        A sum = accumulate ? static_cast<A>(load(out[at[0]])) : 0;
        for (; low < count && items[low].key == wanted; low++) {
            order.locate(items[low].value, from);
            sum += static_cast<A>(load(g[at[1] + from[0]]));
        }
        out[at[0]] = to<T>(sum);
    }
}

template <class T, class A>
static luda_status gather_in(const luda_call *call, luda_cuda_stream *stream, const space<3> &s)
{
    const struct luda_index_select_backward_attrs *a = &call->attrs->index_select_backward;
    const luda_operand *out = &call->out[0], *g = &call->in[0], *positions = &call->in[1];
    slices p = { call->op, a->base, a->size, out->stride[a->dim], stream->fault };
    int64_t count = positions->numel, padded = power_above(count);
    size_t bytes = static_cast<size_t>(padded) * sizeof(keyed);
    keyed *items = static_cast<keyed *>(luda__cuda_scratch(stream, bytes));
    space<1> memory = common_space<1>({ positions }), order = {};
    if (!items)
        return fail_memory(call, bytes);
    order.numel = 1;
    for (int d = 0; d < positions->ndim; d++)
        order.add(positions->shape[d], &g->stride[a->dim + d]);
    LUDA_LAUNCH(key_positions, blocks_for(padded), BLOCK, 0, stream->stream, memory, p, items, padded,
                static_cast<const int64_t *>(count > 0 ? positions->data : NULL));
    luda_status status = launched(call);
    if (status == LUDA_OK)
        status = luda__cuda_sort(call, stream, items, padded, padded);
    if (status != LUDA_OK || s.numel == 0)
        return status;
    LUDA_LAUNCH((gather_slices<T, A>), blocks_for(s.numel), BLOCK, 0, stream->stream, s, order, items, count,
                call->accumulate, static_cast<T *>(out->data), static_cast<const T *>(g->numel > 0 ? g->data : NULL));
    return launched(call);
}

template <class T, class A>
static luda_status gather(const luda_call *call)
{
    const struct luda_index_select_backward_attrs *a = &call->attrs->index_select_backward;
    const luda_operand *out = &call->out[0], *g = &call->in[0];
    luda_cuda_stream *stream = stream_of(call);
    space<3> s = {};
    s.numel = 1;
    for (int d = 0; d < out->ndim; d++) {
        int64_t stride[3] = { out->stride[d], d == a->dim ? 0 : g->stride[d < a->dim ? d : d + call->in[1].ndim - 1], d == a->dim };
        s.add(out->shape[d], stride);
    }
    if (!stream)
        return LUDA_ECUDA;
    pthread_mutex_lock(&stream->lock);
    luda_status status = gather_in<T, A>(call, stream, s);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

#define EACH "../cuda/index.inc"
#include "../cpu/each.h"
