/*
 * conv2d and its gradients for images and kernels: a thread an element of the result, which adds its products in one order,
 * so that nothing needs atomics. Halves add up in float. No tensor cores.
 */
#include "scalar.cuh"

struct strides {
    int64_t n, c, h, w;
};

/* x [N, C, H, W], w [O, C / groups, KH, KW], y [N, O, OH, OW]; one of them is the result. */
struct conv {
    int64_t batch, groups, channels, outputs; /* channels, outputs: of a group */
    int64_t height, width, rows, columns;
    luda_pair kernel, stride, padding, dilation;
    strides x, w, y;
    int64_t bias; /* stride */
};

static strides strides_of(const luda_operand *o)
{
    return { o->stride[0], o->stride[1], o->stride[2], o->stride[3] };
}

template <class ATTRS>
static conv plan_conv(const luda_operand *x, const luda_operand *w, const luda_operand *y, const ATTRS *a)
{
    conv c = {};
    c.batch = x->shape[0];
    c.groups = a->groups;
    c.channels = w->shape[1];
    c.outputs = w->shape[0] / a->groups;
    c.height = x->shape[2];
    c.width = x->shape[3];
    c.rows = y->shape[2];
    c.columns = y->shape[3];
    c.kernel = { w->shape[2], w->shape[3] };
    c.stride = a->stride;
    c.padding = a->padding;
    c.dilation = a->dilation;
    c.x = strides_of(x);
    c.w = strides_of(w);
    c.y = strides_of(y);
    return c;
}

static INLINE int64_t place(const strides &s, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return n * s.n + c * s.c + h * s.h + w * s.w;
}

/* --- Forward --- */

/* B: the bias, which may be float beside halves. */
template <class T, class C, class B>
__global__ void convolve(conv c, const T *x, const T *w, const B *bias, T *y)
{
    int64_t outputs = c.groups * c.outputs, count = c.batch * outputs * c.rows * c.columns;
    for (int64_t i = first_element(); i < count; i += step()) {
        int64_t column = i % c.columns, row = i / c.columns % c.rows, o = i / c.columns / c.rows % outputs;
        int64_t n = i / c.columns / c.rows / outputs, first = o / c.outputs * c.channels;
        C sum = 0;
        for (int64_t k = 0; k < c.channels; k++)
            for (int64_t ky = 0; ky < c.kernel.height; ky++) {
                int64_t h = row * c.stride.height - c.padding.height + ky * c.dilation.height;
                for (int64_t kx = 0; h >= 0 && h < c.height && kx < c.kernel.width; kx++) {
                    int64_t v = column * c.stride.width - c.padding.width + kx * c.dilation.width;
                    if (v >= 0 && v < c.width)
                        sum += load(x[place(c.x, n, first + k, h, v)]) * load(w[place(c.w, o, k, ky, kx)]);
                }
            }
        if (bias)
            sum += static_cast<C>(load(bias[o * c.bias]));
        y[place(c.y, n, o, row, column)] = to<T>(sum);
    }
}

template <class T, class C, class B>
static luda_status run_convolve(const luda_call *call, luda_cuda_stream *stream, conv c, const luda_operand *bias)
{
    c.bias = bias ? bias->stride[0] : 0;
    LUDA_LAUNCH((convolve<T, C, B>), blocks_for(call->out[0].numel * ELEMENTS_A_THREAD), BLOCK, 0, stream->stream, c,
                static_cast<const T *>(call->in[0].data), static_cast<const T *>(call->in[1].data),
                bias ? static_cast<const B *>(bias->data) : static_cast<const B *>(NULL), static_cast<T *>(call->out[0].data));
    return launched(call);
}

template <class T, class C>
static luda_status launch_conv(const luda_call *call)
{
    const luda_operand *bias = input(call, 2);
    conv c = plan_conv(&call->in[0], &call->in[1], &call->out[0], &call->attrs->conv);
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    if (bias && bias->dtype == LUDA_F32)
        return run_convolve<T, C, float>(call, stream, c, bias);
    return run_convolve<T, C, T>(call, stream, c, bias);
}

/* --- The gradient for the images --- */

/* The window whose element at kernel position `k` is this one; -1: there is none. */
static __device__ inline int64_t window_of(int64_t at, int64_t k, int64_t count, int64_t stride, int64_t padding, int64_t dilation)
{
    int64_t start = at + padding - k * dilation;
    return start >= 0 && start % stride == 0 && start / stride < count ? start / stride : -1;
}

template <class T, class C>
__global__ void convolve_back(conv c, const T *y, const T *w, T *x)
{
    int64_t channels = c.groups * c.channels, count = c.batch * channels * c.height * c.width;
    for (int64_t i = first_element(); i < count; i += step()) {
        int64_t v = i % c.width, h = i / c.width % c.height, k = i / c.width / c.height % channels;
        int64_t n = i / c.width / c.height / channels, first = k / c.channels * c.outputs;
        C sum = 0;
        for (int64_t o = first; o < first + c.outputs; o++)
            for (int64_t ky = 0; ky < c.kernel.height; ky++) {
                int64_t row = window_of(h, ky, c.rows, c.stride.height, c.padding.height, c.dilation.height);
                for (int64_t kx = 0; row >= 0 && kx < c.kernel.width; kx++) {
                    int64_t column = window_of(v, kx, c.columns, c.stride.width, c.padding.width, c.dilation.width);
                    if (column >= 0)
                        sum += load(y[place(c.y, n, o, row, column)]) * load(w[place(c.w, o, k % c.channels, ky, kx)]);
                }
            }
        x[place(c.x, n, k, h, v)] = to<T>(sum);
    }
}

template <class T, class C>
static luda_status launch_conv_input(const luda_call *call)
{
    conv c = plan_conv(&call->out[0], &call->in[1], &call->in[0], &call->attrs->conv_backward);
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((convolve_back<T, C>), blocks_for(call->out[0].numel * ELEMENTS_A_THREAD), BLOCK, 0, stream->stream, c,
                static_cast<const T *>(call->in[0].data), static_cast<const T *>(call->in[1].data),
                static_cast<T *>(call->out[0].data));
    return launched(call);
}

/* --- The gradient for the kernels: sums of rows of images, added up image by image, so that errors stay small --- */

template <class T, class C>
__global__ void correlate(conv c, const T *y, const T *x, T *w)
{
    int64_t count = c.groups * c.outputs * c.channels * c.kernel.height * c.kernel.width;
    for (int64_t i = first_element(); i < count; i += step()) {
        int64_t kx = i % c.kernel.width, ky = i / c.kernel.width % c.kernel.height;
        int64_t k = i / c.kernel.width / c.kernel.height % c.channels, o = i / c.kernel.width / c.kernel.height / c.channels;
        int64_t channel = o / c.outputs * c.channels + k;
        C sum = 0;
        for (int64_t n = 0; n < c.batch; n++) {
            C image = 0;
            for (int64_t row = 0; row < c.rows; row++) {
                int64_t h = row * c.stride.height - c.padding.height + ky * c.dilation.height;
                C line = 0;
                for (int64_t column = 0; h >= 0 && h < c.height && column < c.columns; column++) {
                    int64_t v = column * c.stride.width - c.padding.width + kx * c.dilation.width;
                    if (v >= 0 && v < c.width)
                        line += load(y[place(c.y, n, o, row, column)]) * load(x[place(c.x, n, channel, h, v)]);
                }
                image += line;
            }
            sum += image;
        }
        w[place(c.w, o, k, ky, kx)] = to<T>(sum);
    }
}

template <class T, class C>
static luda_status launch_conv_weight(const luda_call *call)
{
    conv c = plan_conv(&call->in[1], &call->out[0], &call->in[0], &call->attrs->conv_backward);
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((correlate<T, C>), blocks_for(call->out[0].numel * ELEMENTS_A_THREAD), BLOCK, 0, stream->stream, c,
                static_cast<const T *>(call->in[0].data), static_cast<const T *>(call->in[1].data),
                static_cast<T *>(call->out[0].data));
    return launched(call);
}

#define EACH_CLASSES CLASS_FLOAT
#define EACH "../cuda/conv.inc"
#include "../cpu/each.h"
