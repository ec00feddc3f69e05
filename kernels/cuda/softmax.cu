/* softmax, log_softmax and the gradient through softmax: a row's largest element is taken off before exp. */
#include "rows.cuh"

/* --- softmax, log_softmax --- */

template <class T, bool LOG>
__global__ void normalise_rows(row_plan<2> r, T *out, const T *x)
{
    typedef typename computed_as<T>::type C;
    __shared__ C tops[BLOCK];
    __shared__ double sums[BLOCK];
    int64_t k = r.t.first_row(), at[2] = { 0, 0 };
    bool inside = k < r.kept.numel;
    if (inside)
        r.kept.locate(k, at);
    const T *row = inside ? x + at[1] : NULL;
    C top = row_top<T, C>(r.t, tops, row, r.n, r.stride[1]);
    double sum = row_exp_sum(r.t, sums, row, r.n, r.stride[1], top);
    C whole = static_cast<C>(LOG ? log(sum) : sum);
    for (int64_t j = r.t.lane(); inside && j < r.n; j += r.t.lanes) {
        C shifted = load(row[j * r.stride[1]]) - top;
        out[at[0] + j * r.stride[0]] = to<T>(LOG ? shifted - whole : exp(shifted) / whole);
    }
}

template <class T, bool LOG>
static luda_status launch_softmax(const luda_call *call)
{
    row_plan<2> r = plan_rows<2>({ &call->out[0], &call->in[0] }, call->attrs->softmax.dim);
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((normalise_rows<T, LOG>), r.t.blocks(r.kept.numel), BLOCK, 0, stream->stream, r,
                static_cast<T *>(call->out[0].data), static_cast<const T *>(call->in[0].data));
    return launched(call);
}

/* --- softmax_backward: y (g - sum(g y)) --- */

template <class T>
__global__ void softmax_slope(row_plan<3> r, T *out, const T *g, const T *y)
{
    typedef typename computed_as<T>::type C;
    __shared__ double sums[BLOCK];
    int64_t k = r.t.first_row(), at[3] = { 0, 0, 0 };
    bool inside = k < r.kept.numel;
    double sum = 0;
    if (inside)
        r.kept.locate(k, at);
    for (int64_t j = r.t.lane(); inside && j < r.n; j += r.t.lanes)
        sum += static_cast<double>(load(g[at[1] + j * r.stride[1]])) * static_cast<double>(load(y[at[2] + j * r.stride[2]]));
    C dot = static_cast<C>(combine_lanes(r.t, sums, sum, add_up<double>()));
    for (int64_t j = r.t.lane(); inside && j < r.n; j += r.t.lanes)
        out[at[0] + j * r.stride[0]] = to<T>(load(y[at[2] + j * r.stride[2]]) * (load(g[at[1] + j * r.stride[1]]) - dot));
}

template <class T>
static luda_status launch_slope(const luda_call *call)
{
    row_plan<3> r = plan_rows<3>({ &call->out[0], &call->in[0], &call->in[1] }, call->attrs->softmax.dim);
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((softmax_slope<T>), r.t.blocks(r.kept.numel), BLOCK, 0, stream->stream, r, static_cast<T *>(call->out[0].data),
                static_cast<const T *>(call->in[0].data), static_cast<const T *>(call->in[1].data));
    return launched(call);
}

#define EACH_CLASSES CLASS_FLOAT
#define EACH "../cuda/softmax.inc"
#include "../cpu/each.h"
