/* full and arange. */
#include "scalar.cuh"

/* --- full --- */

template <class T>
__global__ void fill(space<1> s, T *out, T value)
{
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[1];
        s.locate(i, at);
        out[at[0]] = value;
    }
}

template <class T>
static luda_status launch_fill(const luda_call *call)
{
    space<1> s = common_space<1>({ &call->out[0] });
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (s.numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((fill<T>), blocks_for(s.numel), BLOCK, 0, stream->stream, s, static_cast<T *>(call->out[0].data),
                to<T>(call->attrs->create.low));
    return launched(call);
}

/* --- arange --- */

template <class T>
__global__ void progress(space<1> s, T *out, double low, double high)
{
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[1];
        s.locate(i, at);
        out[at[0]] = to<T>(low + static_cast<double>(i) * high);
    }
}

template <class T>
static luda_status launch_progress(const luda_call *call)
{
    space<1> s = common_space<1>({ &call->out[0] });
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (s.numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((progress<T>), blocks_for(s.numel), BLOCK, 0, stream->stream, s, static_cast<T *>(call->out[0].data),
                call->attrs->create.low, call->attrs->create.high);
    return launched(call);
}

#define EACH "../cuda/create.inc"
#include "../cpu/each.h"
