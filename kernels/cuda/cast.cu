/* `to`: conversion between any two element types. */
#include "scalar.cuh"

template <class T, class R>
__global__ void convert(space<2> s, R *out, const T *x)
{
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[2];
        s.locate(i, at);
        out[at[0]] = to<R>(load(x[at[1]]));
    }
}

template <class T, class R>
static luda_status launch_convert(const luda_call *call)
{
    space<2> s = common_space<2>({ &call->out[0], &call->in[0] });
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (s.numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((convert<T, R>), blocks_for(s.numel), BLOCK, 0, stream->stream, s, static_cast<R *>(call->out[0].data),
                static_cast<const T *>(call->in[0].data));
    return launched(call);
}

/* ORDER dtype: one entry for each. */
template <class T>
static luda_status convert_to(const luda_call *call)
{
    static const luda_kernel targets[LUDA_DTYPE_COUNT] = {
#define LUDA_DTYPE(suffix, ...) launch_convert<T, stored_##suffix>,
#include "../dtypes.def"
    };
    return targets[call->out[0].dtype](call);
}

#define EACH "../cuda/cast.inc"
#include "../cpu/each.h"
