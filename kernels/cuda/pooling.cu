/*
 * max_pool2d with positions, avg_pool2d, and their gradients: a thread an element of the result. An element's gradient is
 * collected from the windows that it lies in, in order, so that nothing needs atomics.
 */
#include "scalar.cuh"

struct pooling {
    int64_t planes, channels, height, width, rows, columns;
    luda_pair kernel, stride, padding, dilation;
    int64_t x[4], y[4], at[4]; /* strides of images, of results, of positions */
    bool count_padding;
};

static void copy_strides(int64_t *to, const luda_operand *o)
{
    for (int d = 0; d < 4; d++)
        to[d] = o->stride[d];
}

template <class ATTRS>
static pooling plan_pooling(const luda_operand *x, const luda_operand *y, const ATTRS *a, luda_pair dilation)
{
    pooling p = {};
    p.planes = x->shape[0] * x->shape[1];
    p.channels = x->shape[1];
    p.height = x->shape[2];
    p.width = x->shape[3];
    p.rows = y->shape[2];
    p.columns = y->shape[3];
    p.kernel = a->kernel;
    p.stride = a->stride;
    p.padding = a->padding;
    p.dilation = dilation;
    copy_strides(p.x, x);
    copy_strides(p.y, y);
    return p;
}

static INLINE int64_t place(const pooling &p, const int64_t *stride, int64_t plane, int64_t h, int64_t w)
{
    return plane / p.channels * stride[0] + plane % p.channels * stride[1] + h * stride[2] + w * stride[3];
}

/* The windows first .. *last - 1 in which an element may lie. */
static __device__ inline int64_t windows_of(int64_t at, int64_t count, int64_t kernel, int64_t stride, int64_t padding,
                                            int64_t dilation, int64_t *last)
{
    int64_t reach = (kernel - 1) * dilation, end = (at + padding) / stride + 1;
    *last = end < count ? end : count;
    return at + padding <= reach ? 0 : (at + padding - reach + stride - 1) / stride;
}

/* --- max_pool2d --- */

template <class T>
__global__ void pool_largest(pooling p, const T *x, T *y, int64_t *positions)
{
    typedef typename computed_as<T>::type C;
    for (int64_t i = first_element(); i < p.planes * p.rows * p.columns; i += step()) {
        int64_t column = i % p.columns, row = i / p.columns % p.rows, plane = i / p.columns / p.rows, best_at = -1;
        C best = 0;
        for (int64_t ky = 0; ky < p.kernel.height; ky++) {
            int64_t h = row * p.stride.height - p.padding.height + ky * p.dilation.height;
            for (int64_t kx = 0; h >= 0 && h < p.height && kx < p.kernel.width; kx++) {
                int64_t w = column * p.stride.width - p.padding.width + kx * p.dilation.width;
                if (w < 0 || w >= p.width)
                    continue;
                C value = load(x[place(p, p.x, plane, h, w)]);
                if (best_at < 0 || value > best || (value != value && best == best)) {
                    best = value;
                    best_at = h * p.width + w;
                }
            }
        }
        y[place(p, p.y, plane, row, column)] = x[place(p, p.x, plane, best_at / p.width, best_at % p.width)];
        positions[place(p, p.at, plane, row, column)] = best_at;
    }
}

template <class T>
static luda_status launch_max_pool(const luda_call *call)
{
    const struct luda_max_pool_attrs *a = &call->attrs->max_pool;
    pooling p = plan_pooling(&call->in[0], &call->out[0], a, a->dilation);
    copy_strides(p.at, &call->out[1]);
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((pool_largest<T>), blocks_for(call->out[0].numel * ELEMENTS_A_THREAD), BLOCK, 0, stream->stream, p,
                static_cast<const T *>(call->in[0].data), static_cast<T *>(call->out[0].data),
                static_cast<int64_t *>(call->out[1].data));
    return launched(call);
}

struct position_check {
    int op, base;
    luda_cuda_fault *fault;
};

template <class T>
__global__ void pool_largest_back(pooling p, position_check check, const T *g, const int64_t *positions, T *x)
{
    typedef typename computed_as<T>::type C;
    int64_t numel = p.height * p.width, results = p.rows * p.columns;
    for (int64_t i = first_element(); i < p.planes * results; i += step()) {
        int64_t position = positions[place(p, p.at, i / results, i / p.columns % p.rows, i % p.columns)];
        if (position < check.base || position - check.base >= numel)
            report(check.fault, FAULT_POSITION, check.op, position, numel, check.base);
    }
    for (int64_t i = first_element(); i < p.planes * numel; i += step()) {
        int64_t w = i % p.width, h = i / p.width % p.height, plane = i / numel, last_row, last_column;
        C sum = 0;
        int64_t row = windows_of(h, p.rows, p.kernel.height, p.stride.height, p.padding.height, p.dilation.height, &last_row);
        int64_t start =
            windows_of(w, p.columns, p.kernel.width, p.stride.width, p.padding.width, p.dilation.width, &last_column);
        for (; row < last_row; row++)
            for (int64_t column = start; column < last_column; column++)
                if (positions[place(p, p.at, plane, row, column)] - check.base == i % numel)
                    sum += load(g[place(p, p.y, plane, row, column)]);
        x[place(p, p.x, plane, h, w)] = to<T>(sum);
    }
}

template <class T>
static luda_status launch_max_pool_backward(const luda_call *call)
{
    const struct luda_max_pool_backward_attrs *a = &call->attrs->max_pool_backward;
    pooling p = plan_pooling(&call->out[0], &call->in[0], a, a->dilation);
    copy_strides(p.at, &call->in[1]);
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    position_check check = { call->op, a->base, stream->fault };
    LUDA_LAUNCH((pool_largest_back<T>), blocks_for(call->out[0].numel * ELEMENTS_A_THREAD), BLOCK, 0, stream->stream, p, check,
                static_cast<const T *>(call->in[0].data), static_cast<const int64_t *>(call->in[1].data),
                static_cast<T *>(call->out[0].data));
    return launched(call);
}

/* --- avg_pool2d --- */

/* Elements of a window that count along one dimension. */
static __device__ inline int64_t counted(int64_t window, int64_t n, int64_t kernel, int64_t stride, int64_t padding, bool with_padding)
{
    int64_t start = window * stride - padding, end = start + kernel < n + padding ? start + kernel : n + padding;
    if (with_padding)
        return end - start;
    return (end < n ? end : n) - (start > 0 ? start : 0);
}

static __device__ inline int64_t counted(const pooling &p, int64_t row, int64_t column)
{
    return counted(row, p.height, p.kernel.height, p.stride.height, p.padding.height, p.count_padding) *
           counted(column, p.width, p.kernel.width, p.stride.width, p.padding.width, p.count_padding);
}

template <class T, class C>
__global__ void pool_mean(pooling p, const T *x, T *y)
{
    for (int64_t i = first_element(); i < p.planes * p.rows * p.columns; i += step()) {
        int64_t column = i % p.columns, row = i / p.columns % p.rows, plane = i / p.columns / p.rows;
        C sum = 0;
        for (int64_t ky = 0; ky < p.kernel.height; ky++) {
            int64_t h = row * p.stride.height - p.padding.height + ky;
            for (int64_t kx = 0; h >= 0 && h < p.height && kx < p.kernel.width; kx++) {
                int64_t w = column * p.stride.width - p.padding.width + kx;
                if (w >= 0 && w < p.width)
                    sum += load(x[place(p, p.x, plane, h, w)]);
            }
        }
        y[place(p, p.y, plane, row, column)] = to<T>(sum / static_cast<C>(counted(p, row, column)));
    }
}

template <class T, class C>
__global__ void pool_mean_back(pooling p, const T *g, T *x)
{
    int64_t numel = p.height * p.width;
    for (int64_t i = first_element(); i < p.planes * numel; i += step()) {
        int64_t w = i % p.width, h = i / p.width % p.height, plane = i / numel, last_row, last_column;
        C sum = 0;
        int64_t row = windows_of(h, p.rows, p.kernel.height, p.stride.height, p.padding.height, 1, &last_row);
        int64_t start = windows_of(w, p.columns, p.kernel.width, p.stride.width, p.padding.width, 1, &last_column);
        for (; row < last_row; row++)
            for (int64_t column = start; column < last_column; column++)
                sum += load(g[place(p, p.y, plane, row, column)]) / static_cast<C>(counted(p, row, column));
        x[place(p, p.x, plane, h, w)] = to<T>(sum);
    }
}

/* Forward or backward, by the kernel and by which of the operands holds whole images. */
template <class T, class A>
static luda_status launch_mean(const luda_call *call, const luda_operand *images, const luda_operand *windows, const A *a,
                               void (*kernel)(pooling, const T *, T *))
{
    pooling p = plan_pooling(images, windows, a, { 1, 1 });
    p.count_padding = a->count_include_pad;
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((kernel), blocks_for(call->out[0].numel * ELEMENTS_A_THREAD), BLOCK, 0, stream->stream, p,
                static_cast<const T *>(call->in[0].data), static_cast<T *>(call->out[0].data));
    return launched(call);
}

template <class T, class C>
static luda_status launch_avg_pool(const luda_call *call)
{
    return launch_mean<T>(call, &call->in[0], &call->out[0], &call->attrs->avg_pool, pool_mean<T, C>);
}

template <class T, class C>
static luda_status launch_avg_pool_backward(const luda_call *call)
{
    return launch_mean<T>(call, &call->out[0], &call->in[0], &call->attrs->avg_pool_backward, pool_mean_back<T, C>);
}

#define EACH "../cuda/pooling.inc"
#include "../cpu/each.h"
