/*
 * layer_norm and rms_norm over the last dimension and their backward; rms_norm takes the mean as 0. The variance is the mean of squared deviations from a mean in
 * double. Gradients of weight and bias are summed by fixed slabs of rows, and the slabs in order.
 */
#include "affine.cuh"
#include "rows.cuh"

/* --- layer_norm --- */

template <class T, class C>
__global__ void norm_rows(row_plan<2> r, T *out, const T *x, C *means, C *rstds, affine weight, affine bias, double eps)
{
    __shared__ double sums[BLOCK];
    int64_t k = r.t.first_row(), at[2] = { 0, 0 };
    bool inside = k < r.kept.numel;
    double sum = 0, squares = 0;
    if (inside)
        r.kept.locate(k, at);
    for (int64_t j = r.t.lane(); means && inside && j < r.n; j += r.t.lanes)
        sum += static_cast<double>(load(x[at[1] + j * r.stride[1]]));
    double mean = means ? combine_lanes(r.t, sums, sum, add_up<double>()) / static_cast<double>(r.n) : 0;
    for (int64_t j = r.t.lane(); inside && j < r.n; j += r.t.lanes) {
        double deviation = static_cast<C>(static_cast<double>(load(x[at[1] + j * r.stride[1]])) - mean);
        squares += deviation * deviation;
    }
    squares = combine_lanes(r.t, sums, squares, add_up<double>());
    double rstd = 1 / sqrt(squares / static_cast<double>(r.n) + eps);
    for (int64_t j = r.t.lane(); inside && j < r.n; j += r.t.lanes) {
        C y = static_cast<C>(static_cast<double>(load(x[at[1] + j * r.stride[1]])) - mean) * static_cast<C>(rstd);
        y = weight.data ? y * affine_at<T>(weight, j) : y;
        y = bias.data ? y + affine_at<T>(bias, j) : y;
        out[at[0] + j * r.stride[0]] = to<T>(y);
    }
    if (inside && r.t.lane() == 0) {
        if (means)
            means[k] = static_cast<C>(mean);
        rstds[k] = static_cast<C>(rstd);
    }
}

template <class T>
static luda_status launch_norm(const luda_call *call, void *means, void *rstds, const luda_operand *bias)
{
    typedef typename computed_as<T>::type C;
    const luda_operand *x = &call->in[0];
    row_plan<2> r = plan_rows<2>({ &call->out[0], x }, x->ndim - 1);
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (x->numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((norm_rows<T, C>), r.t.blocks(r.kept.numel), BLOCK, 0, stream->stream, r, static_cast<T *>(call->out[0].data),
                static_cast<const T *>(x->data), static_cast<C *>(means), static_cast<C *>(rstds), affine_of(input(call, 1)),
                affine_of(bias), call->attrs->norm.eps);
    return launched(call);
}

/* --- Backward. With h the normalised row and e = g weight: dx = rstd (e - mean(e) - h mean(e h)) --- */

/* kept: dx, g, mean, rstd, x */
template <class T, class C>
__global__ void norm_slope(row_plan<5> r, T *dx, const T *g, const T *x, const C *means, const C *rstds, affine weight)
{
    __shared__ double sums[BLOCK];
    int64_t k = r.t.first_row(), at[5] = { 0, 0, 0, 0, 0 };
    bool inside = k < r.kept.numel;
    double along = 0, across = 0;
    if (inside)
        r.kept.locate(k, at);
    double mean = inside && means ? static_cast<double>(means[at[2]]) : 0;
    C rstd = inside ? rstds[at[3]] : C(0);
    for (int64_t j = r.t.lane(); inside && j < r.n; j += r.t.lanes) {
        C e = load(g[at[1] + j * r.stride[1]]);
        C h = static_cast<C>(static_cast<double>(load(x[at[4] + j * r.stride[4]])) - mean) * rstd;
        e = weight.data ? e * affine_at<T>(weight, j) : e;
        along += static_cast<double>(e);
        across += static_cast<double>(e) * static_cast<double>(h);
    }
    along = combine_lanes(r.t, sums, along, add_up<double>());
    C mean_e = static_cast<C>(means ? along / static_cast<double>(r.n) : 0);
    C mean_eh = static_cast<C>(combine_lanes(r.t, sums, across, add_up<double>()) / static_cast<double>(r.n));
    for (int64_t j = r.t.lane(); inside && j < r.n; j += r.t.lanes) {
        C e = load(g[at[1] + j * r.stride[1]]);
        C h = static_cast<C>(static_cast<double>(load(x[at[4] + j * r.stride[4]])) - mean) * rstd;
        e = weight.data ? e * affine_at<T>(weight, j) : e;
        dx[at[0] + j * r.stride[0]] = to<T>(rstd * (e - mean_e - h * mean_eh));
    }
}

/* Slab blockIdx.y of the rows: partial[slab][0][j] = sum of g h, partial[slab][1][j] = sum of g. */
template <class T, class C>
__global__ void norm_sums(row_plan<5> r, tile t, int64_t slab, double *partial, const T *g, const T *x, const C *means,
                          const C *rstds)
{
    __shared__ double sums[BLOCK];
    int64_t j = t.first_row(), first = blockIdx.y * slab, last = first + slab < r.kept.numel ? first + slab : r.kept.numel;
    double weight = 0, bias = 0;
    for (int64_t k = first + t.lane(); j < r.n && k < last; k += t.lanes) {
        int64_t at[5];
        r.kept.locate(k, at);
        C e = load(g[at[1] + j * r.stride[1]]);
        double mean = means ? static_cast<double>(means[at[2]]) : 0;
        C h = static_cast<C>(static_cast<double>(load(x[at[4] + j * r.stride[4]])) - mean) * rstds[at[3]];
        weight += static_cast<double>(e) * static_cast<double>(h);
        bias += static_cast<double>(e);
    }
    weight = combine_lanes(t, sums, weight, add_up<double>());
    bias = combine_lanes(t, sums, bias, add_up<double>());
    if (j >= r.n || t.lane() != 0)
        return;
    partial[(blockIdx.y * 2) * r.n + j] = weight;
    partial[(blockIdx.y * 2 + 1) * r.n + j] = bias;
}

/* out[j] = sum over slabs; `single`: the output is f32. */
template <class T>
__global__ void add_slabs(int64_t n, int slabs, const double *partial, void *out, bool single)
{
    for (int64_t j = first_element(); j < n; j += step()) {
        double sum = 0;
        for (int s = 0; s < slabs; s++)
            sum += partial[static_cast<int64_t>(s) * 2 * n + j];
        if (single)
            static_cast<float *>(out)[j] = static_cast<float>(sum);
        else
            static_cast<T *>(out)[j] = to<T>(sum);
    }
}

template <class T, class C>
static luda_status launch_sums(const luda_call *call, luda_cuda_stream *stream, const row_plan<5> &r, const void *means,
                               const void *rstds)
{
    const int64_t most = 64, least_rows = 64;
    int64_t slabs = (r.kept.numel + least_rows - 1) / least_rows, n = r.n;
    slabs = slabs < 1 ? 1 : slabs < most ? slabs : most;
    size_t bytes = static_cast<size_t>(slabs * 2 * n) * sizeof(double);
    double *partial = static_cast<double *>(luda__cuda_scratch(stream, bytes));
    if (!partial)
        return fail_memory(call, bytes);
    int64_t slab = (r.kept.numel + slabs - 1) / slabs;
    tile t = plan_tile(slab, n, true);
    LUDA_LAUNCH((norm_sums<T, C>), dim3(t.blocks(n), static_cast<unsigned>(slabs)), BLOCK, 0, stream->stream, r, t, slab, partial,
                static_cast<const T *>(call->in[0].data), static_cast<const T *>(call->in[1].data),
                static_cast<const C *>(means), static_cast<const C *>(rstds));
    luda_status status = launched(call);
    for (int o = 1; o < call->nout && status == LUDA_OK; o++) {
        if (!call->out[o].data)
            continue;
        LUDA_LAUNCH((add_slabs<T>), blocks_for(n), BLOCK, 0, stream->stream, n, static_cast<int>(slabs), partial + (o - 1) * n,
                    call->out[o].data, call->out[o].dtype == LUDA_F32);
        status = launched(call);
    }
    return status;
}

/* [rows] as an operand of the input's shape, repeated along the last dimension. */
static luda_operand repeated(const luda_operand *rows, const luda_operand *x)
{
    luda_operand wide = *rows;
    wide.ndim = x->ndim;
    wide.shape[x->ndim - 1] = x->shape[x->ndim - 1];
    wide.stride[x->ndim - 1] = 0;
    return wide;
}

/* Where rows are centred input 2 is the mean; then come the reciprocal deviation and the weight. */
template <class T>
static luda_status launch_norm_backward(const luda_call *call, bool centred)
{
    typedef typename computed_as<T>::type C;
    const luda_operand *g = &call->in[0], *x = &call->in[1], *dx = call->out[0].data ? &call->out[0] : x;
    int last = centred ? 3 : 2; /* the reciprocal deviation */
    luda_operand mean = repeated(&call->in[2], x), rstd = repeated(&call->in[last], x);
    const void *means = centred ? mean.data : NULL;
    row_plan<5> r = plan_rows<5>({ dx, g, &mean, &rstd, x }, x->ndim - 1);
    luda_cuda_stream *stream = stream_of(call);
    luda_status status = stream ? LUDA_OK : LUDA_ECUDA;
    if (status == LUDA_OK && x->numel > 0 && call->out[0].data) {
        LUDA_LAUNCH((norm_slope<T, C>), r.t.blocks(r.kept.numel), BLOCK, 0, stream->stream, r, static_cast<T *>(dx->data),
                    static_cast<const T *>(g->data), static_cast<const T *>(x->data), static_cast<const C *>(means),
                    static_cast<const C *>(rstd.data), affine_of(input(call, last + 1)));
        status = launched(call);
    }
    bool sums = false;
    for (int o = 1; o < call->nout; o++)
        sums = sums || call->out[o].data;
    if (status != LUDA_OK || r.n == 0 || !sums)
        return status;
    pthread_mutex_lock(&stream->lock);
    status = launch_sums<T, C>(call, stream, r, means, rstd.data);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

#define EACH_CLASSES CLASS_FLOAT
#define EACH "../cuda/norm.inc"
#include "../cpu/each.h"
