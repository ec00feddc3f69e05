/* where, cat and narrow_backward: elements go elsewhere unchanged, so that kernels differ by the size of an element only. */
#include "move.cuh"

/* --- place --- */

template <class T>
__global__ void place(space<2> s, T *out, const T *x)
{
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[2];
        s.locate(i, at);
        out[at[0]] = x[at[1]];
    }
}

template <class T>
static luda_status launch_place(const luda_call *call, luda_cuda_stream *stream, const luda_operand *to, const luda_operand *from)
{
    space<2> s = common_space<2>({ to, from });
    if (s.numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((place<T>), blocks_for(s.numel), BLOCK, 0, stream->stream, s, static_cast<T *>(to->data),
                static_cast<const T *>(from->data));
    return launched(call);
}

luda_status luda__cuda_place(const luda_call *call, luda_cuda_stream *stream, const luda_operand *to, const luda_operand *from)
{
    switch (item_size(to->dtype)) {
    case 1: return launch_place<uint8_t>(call, stream, to, from);
    case 2: return launch_place<uint16_t>(call, stream, to, from);
    case 4: return launch_place<uint32_t>(call, stream, to, from);
    default: return launch_place<uint64_t>(call, stream, to, from);
    }
}

/* --- where --- */

template <class T>
__global__ void choose(space<4> s, T *out, const bool *mask, const T *x, const T *y)
{
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[4];
        s.locate(i, at);
        out[at[0]] = mask[at[1]] ? x[at[2]] : y[at[3]];
    }
}

template <class T>
static luda_status launch_choose(const luda_call *call)
{
    space<4> s = common_space<4>({ &call->out[0], &call->in[0], &call->in[1], &call->in[2] });
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (s.numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((choose<T>), blocks_for(s.numel), BLOCK, 0, stream->stream, s, static_cast<T *>(call->out[0].data),
                static_cast<const bool *>(call->in[0].data), static_cast<const T *>(call->in[1].data),
                static_cast<const T *>(call->in[2].data));
    return launched(call);
}

/* --- cat, narrow_backward --- */

/* Positions start, start + step, ... of one dimension. */
static luda_operand part_of(const luda_operand *whole, int dim, int64_t start, int64_t length, int64_t step)
{
    luda_operand part = *whole;
    part.data = static_cast<char *>(whole->data) + start * whole->stride[dim] * static_cast<int64_t>(item_size(whole->dtype));
    part.shape[dim] = length;
    part.stride[dim] *= step;
    return part;
}

static luda_status join(const luda_call *call)
{
    luda_cuda_stream *stream = stream_of(call);
    luda_status status = stream ? LUDA_OK : LUDA_ECUDA;
    int dim = call->attrs->cat.dim;
    int64_t start = 0;
    for (int i = 0; i < call->nin && status == LUDA_OK; i++) {
        luda_operand part = part_of(&call->out[0], dim, start, call->in[i].shape[dim], 1);
        status = luda__cuda_place(call, stream, &part, &call->in[i]);
        start += call->in[i].shape[dim];
    }
    return status;
}

static luda_status narrow_backward(const luda_call *call)
{
    const struct luda_narrow_backward_attrs *a = &call->attrs->narrow_backward;
    const luda_operand *out = &call->out[0], *x = &call->in[0];
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (out->numel > 0)
        cudaMemsetAsync(out->data, 0, static_cast<size_t>(out->numel) * item_size(out->dtype), stream->stream);
    luda_status status = launched(call);
    if (status != LUDA_OK || x->numel == 0)
        return status;
    luda_operand part = part_of(out, a->dim, a->start, x->shape[a->dim], a->step);
    return luda__cuda_place(call, stream, &part, x);
}

#define EACH "../cuda/move.inc"
#include "../cpu/each.h"
