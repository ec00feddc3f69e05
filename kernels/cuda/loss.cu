/*
 * cross_entropy of logits [N, C] and labels [N], and its gradient.
 *
 * With s the smoothing and v the class weights, row i costs (1 - s) v[y] (l - x[y]) + s / C sum_c v[c] (l - x[c]), where l
 * is the row's log-sum-exp. A mean divides by the sum of v[y] over the counted rows; over none it is 0.
 */
#include "rows.cuh"

struct loss {
    int op;
    struct luda_cross_entropy_attrs attrs;
    int64_t rows, classes;
    const int64_t *labels;
    int64_t label_stride;
    const void *weight; /* per class, or NULL */
    int64_t weight_stride;
    bool single;        /* weights are f32 */
    luda_cuda_fault *fault;
};

static loss plan_loss(const luda_call *call, luda_cuda_stream *stream, const luda_operand *logits, const luda_operand *labels,
                      const luda_operand *weight)
{
    loss l = {};
    l.op = call->op;
    l.attrs = call->attrs->cross_entropy;
    l.rows = logits->shape[0];
    l.classes = logits->shape[1];
    l.labels = static_cast<const int64_t *>(l.rows > 0 ? labels->data : NULL);
    l.label_stride = labels->stride[0];
    l.weight = weight ? weight->data : NULL;
    l.weight_stride = weight ? weight->stride[0] : 0;
    l.single = weight && weight->dtype == LUDA_F32;
    l.fault = stream->fault;
    return l;
}

template <class T>
__device__ double class_weight(const loss &l, int64_t c)
{
    if (!l.weight)
        return 1;
    if (l.single)
        return static_cast<double>(static_cast<const float *>(l.weight)[c * l.weight_stride]);
    return static_cast<double>(load(static_cast<const T *>(l.weight)[c * l.weight_stride]));
}

/* The class of a row, or -1 where it does not count; a bad label is reported and does not count. */
static __device__ inline int64_t class_of(const loss &l, int64_t row)
{
    int64_t label = l.labels[row * l.label_stride], position = label - l.attrs.base;
    if (label == l.attrs.ignore_index)
        return -1;
    if (position >= 0 && position < l.classes)
        return position;
    report(l.fault, FAULT_POSITION, l.op, label, l.classes, l.attrs.base);
    return -1;
}

/* --- Rows --- */

template <class T, class C>
__global__ void loss_rows(row_plan<1> r, loss l, const T *x, C *lse, int64_t lse_stride, double *row_loss)
{
    __shared__ C tops[BLOCK];
    __shared__ double sums[BLOCK];
    int64_t k = r.t.first_row(), at[1] = { 0 };
    bool inside = k < r.kept.numel;
    if (inside)
        r.kept.locate(k, at);
    const T *row = inside ? x + at[0] : NULL;
    C top = row_top<T, C>(r.t, tops, row, r.n, r.stride[0]);
    double log_sum = log(row_exp_sum(r.t, sums, row, r.n, r.stride[0], top));
    double whole = static_cast<double>(top) + log_sum, smooth = 0, smoothing = l.attrs.label_smoothing;
    for (int64_t c = r.t.lane(); inside && smoothing > 0 && c < r.n; c += r.t.lanes)
        smooth += class_weight<T>(l, c) * (whole - static_cast<double>(load(row[c * r.stride[0]])));
    smooth = combine_lanes(r.t, sums, smooth, add_up<double>());
    if (!inside || r.t.lane() != 0)
        return;
    int64_t c = class_of(l, k);
    lse[k * lse_stride] = static_cast<C>(whole);
    row_loss[k] = 0;
    if (c < 0)
        return;
    double value = static_cast<double>(top) - static_cast<double>(load(row[c * r.stride[0]])) + log_sum;
    row_loss[k] = (1 - smoothing) * class_weight<T>(l, c) * value + smooth * smoothing / static_cast<double>(r.n);
}

/* --- Totals: one block adds up all rows --- */

template <class T>
__global__ void loss_total(loss l, const double *row_loss, T *out)
{
    __shared__ double sums[BLOCK];
    const tile t = { BLOCK, 1, false };
    double sum = 0, weight = 0;
    for (int64_t i = t.lane(); i < l.rows; i += BLOCK) {
        int64_t c = class_of(l, i);
        sum += row_loss[i];
        weight += c < 0 ? 0 : class_weight<T>(l, c);
    }
    sum = combine_lanes(t, sums, sum, add_up<double>());
    weight = combine_lanes(t, sums, weight, add_up<double>());
    if (t.lane() != 0)
        return;
    if (l.attrs.reduction == LUDA_REDUCTION_MEAN)
        sum = weight == 0 ? 0 : sum / weight;
    *out = to<T>(sum);
}

/* What a gradient is multiplied with: 1, or for a mean 1 / (sum of the rows' weights). */
template <class T>
__global__ void loss_factor(loss l, double *factor)
{
    __shared__ double sums[BLOCK];
    const tile t = { BLOCK, 1, false };
    double weight = 0;
    for (int64_t i = t.lane(); i < l.rows; i += BLOCK) {
        int64_t c = class_of(l, i);
        weight += c < 0 ? 0 : class_weight<T>(l, c);
    }
    weight = combine_lanes(t, sums, weight, add_up<double>());
    if (t.lane() == 0)
        *factor = l.attrs.reduction != LUDA_REDUCTION_MEAN ? 1 : weight == 0 ? 0 : 1 / weight;
}

template <class T>
__global__ void copy_losses(int64_t n, const double *row_loss, T *out, int64_t stride)
{
    for (int64_t i = first_element(); i < n; i += step())
        out[i * stride] = to<T>(row_loss[i]);
}

template <class T, class C>
static luda_status loss_in(const luda_call *call, luda_cuda_stream *stream)
{
    const luda_operand *x = &call->in[0], *out = &call->out[0], *lse = &call->out[1];
    loss l = plan_loss(call, stream, x, &call->in[1], input(call, 2));
    row_plan<1> r = plan_rows<1>({ x }, 1);
    size_t bytes = static_cast<size_t>(l.rows + 1) * sizeof(double);
    double *row_loss = static_cast<double *>(luda__cuda_scratch(stream, bytes));
    if (!row_loss)
        return fail_memory(call, bytes);
    if (l.rows > 0) {
        LUDA_LAUNCH((loss_rows<T, C>), r.t.blocks(l.rows), BLOCK, 0, stream->stream, r, l, static_cast<const T *>(x->data),
                    static_cast<C *>(lse->data), lse->stride[0], row_loss);
        luda_status status = launched(call);
        if (status != LUDA_OK)
            return status;
    }
    if (l.attrs.reduction != LUDA_REDUCTION_NONE)
        LUDA_LAUNCH((loss_total<T>), 1, BLOCK, 0, stream->stream, l, row_loss, static_cast<T *>(out->data));
    else if (l.rows > 0)
        LUDA_LAUNCH((copy_losses<T>), blocks_for(l.rows), BLOCK, 0, stream->stream, l.rows, row_loss, static_cast<T *>(out->data),
                    out->stride[0]);
    return launched(call);
}

/* --- Backward: dx[c] = f (exp(x[c] - lse) total - s / C v[c] - (1 - s) v[y] at the label) --- */

struct loss_inputs {
    int64_t lse_stride, gradient_stride; /* gradient_stride 0: one number for all rows */
};

template <class T, class C>
__global__ void loss_slope(row_plan<2> r, loss l, loss_inputs w, T *dx, const T *x, const C *lse, const T *gradient,
                           const double *factor)
{
    __shared__ double sums[BLOCK];
    int64_t k = r.t.first_row(), at[2] = { 0, 0 };
    bool inside = k < r.kept.numel;
    double smoothing = l.attrs.label_smoothing, even = smoothing / static_cast<double>(r.n), weights = 0;
    if (inside)
        r.kept.locate(k, at);
    for (int64_t c = r.t.lane(); smoothing > 0 && c < r.n; c += r.t.lanes)
        weights += class_weight<T>(l, c);
    weights = combine_lanes(r.t, sums, weights, add_up<double>());
    if (!inside)
        return;
    int64_t label = class_of(l, k);
    double f = static_cast<double>(load(gradient[k * w.gradient_stride])) * *factor;
    double hit = label < 0 ? 0 : (1 - smoothing) * class_weight<T>(l, label);
    C total = static_cast<C>(f * (hit + even * weights)), row_lse = lse[k * w.lse_stride];
    for (int64_t c = r.t.lane(); c < r.n; c += r.t.lanes) {
        C d = exp(load(x[at[1] + c * r.stride[1]]) - row_lse) * total;
        if (smoothing > 0)
            d -= static_cast<C>(f * even * class_weight<T>(l, c));
        if (c == label)
            d -= static_cast<C>(f * hit);
        dx[at[0] + c * r.stride[0]] = to<T>(label < 0 ? C(0) : d);
    }
}

template <class T, class C>
static luda_status loss_backward_in(const luda_call *call, luda_cuda_stream *stream)
{
    const luda_operand *g = &call->in[0], *x = &call->in[1], *lse = &call->in[3], *dx = &call->out[0];
    loss l = plan_loss(call, stream, x, &call->in[2], input(call, 4));
    row_plan<2> r = plan_rows<2>({ dx, x }, 1);
    loss_inputs w = { lse->stride[0], l.attrs.reduction == LUDA_REDUCTION_NONE ? g->stride[0] : 0 };
    double *factor = static_cast<double *>(luda__cuda_scratch(stream, sizeof *factor));
    if (!factor)
        return fail_memory(call, sizeof *factor);
    LUDA_LAUNCH((loss_factor<T>), 1, BLOCK, 0, stream->stream, l, factor);
    luda_status status = launched(call);
    if (status != LUDA_OK)
        return status;
    LUDA_LAUNCH((loss_slope<T, C>), r.t.blocks(l.rows), BLOCK, 0, stream->stream, r, l, w, static_cast<T *>(dx->data),
                static_cast<const T *>(x->data), static_cast<const C *>(lse->data), static_cast<const T *>(g->data), factor);
    return launched(call);
}

/* --- Kernels --- */

static luda_status locked(const luda_call *call, luda_status (*run)(const luda_call *, luda_cuda_stream *))
{
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    pthread_mutex_lock(&stream->lock);
    luda_status status = run(call, stream);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

#define EACH_CLASSES CLASS_FLOAT
#define EACH "../cuda/loss.inc"
#include "../cpu/each.h"
