/*
 * sum, mean, amax, amin. Floats add up in double, as on the CPU (memory is the bound, not the additions), integers in
 * int64. Long reductions of few outputs are cut into pieces, by sizes only, whose results a second launch combines; so
 * the same sizes give the same bits.
 */
#include "scalar.cuh"
#include "team.cuh"

#include <math.h>

/* --- The ways to reduce: A accumulates, O is stored --- */

template <class A>
struct summing {
    static INLINE A start() { return 0; }
    __device__ A operator()(A a, A b) const { return a + b; }
};

template <class A>
INLINE A infinite()
{
    const bool is_signed = static_cast<A>(-1) < static_cast<A>(0);
    const uint64_t ones = ~static_cast<uint64_t>(0) >> (64 - 8 * sizeof(A) + is_signed);
    return static_cast<A>(ones);
}
template <>
INLINE float infinite<float>()
{
    return HUGE_VALF;
}
template <>
INLINE double infinite<double>()
{
    return HUGE_VAL;
}

/* Extrema start from the lowest value there is, so that no element is special. */
template <class A>
struct largest {
    static INLINE A start() { return static_cast<A>(-infinite<A>() - (static_cast<A>(0.5) == 0)); }
    __device__ A operator()(A a, A b) const { return MAXIMUM(a, b); }
};

template <class A>
struct smallest {
    static INLINE A start() { return infinite<A>(); }
    __device__ A operator()(A a, A b) const { return MINIMUM(a, b); }
};

/* --- The kernel: block (x, y) reduces piece y of the rows of tile x --- */

template <class OP, class A, class O, class T>
__global__ void reduce_tile(tile t, space<2> kept, space<1> reduced, int64_t piece, double divisor, O *out, A *partial,
                            const T *x)
{
    __shared__ A shared[BLOCK];
    int64_t k = t.first_row(), first = blockIdx.y * piece, last = first + piece < reduced.numel ? first + piece : reduced.numel;
    int64_t at[2] = { 0, 0 }, from[1];
    A value = OP::start();
    if (k < kept.numel) {
        kept.locate(k, at);
        for (int64_t i = first + t.lane(); i < last; i += t.lanes) {
            reduced.locate(i, from);
            value = OP()(value, static_cast<A>(load(x[at[1] + from[0]])));
        }
    }
    value = combine_lanes(t, shared, value, OP());
    if (k >= kept.numel || t.lane() != 0)
        return;
    if (partial)
        partial[blockIdx.y * kept.numel + k] = value;
    else
        out[at[0]] = to<O>(static_cast<typename computed_as<A>::type>(divisor == 1 ? value : static_cast<A>(value / divisor)));
}

/* --- Launching --- */

struct reduction {
    space<2> kept;    /* output, input */
    space<1> reduced; /* input */
    bool across;
    int64_t piece, pieces;
};

static bool is_reduced(const luda_dims *dims, int d)
{
    for (int i = 0; i < dims->count; i++)
        if (dims->dim[i] == d)
            return true;
    return dims->count == 0;
}

static reduction plan_reduction(const luda_operand *in, const luda_operand *out, const luda_dims *dims)
{
    const int64_t grain = 4096, most_pieces = 512, enough_rows = 512;
    reduction r = {};
    bool keepdim = out->ndim == in->ndim;
    r.kept.numel = r.reduced.numel = 1;
    for (int d = 0, at = 0; d < in->ndim; d++) {
        bool reduced = is_reduced(dims, d);
        int64_t stride[2] = { reduced ? 0 : out->stride[keepdim ? d : at], in->stride[d] };
        if (reduced)
            r.reduced.add(in->shape[d], &stride[1]);
        else
            r.kept.add(in->shape[d], stride);
        at += !reduced;
    }
    if (r.kept.ndim > 0 && r.reduced.ndim > 0)
        r.across = distance(r.kept.stride[1][r.kept.ndim - 1]) < distance(r.reduced.stride[0][r.reduced.ndim - 1]);
    r.pieces = 1;
    if (r.kept.numel < enough_rows * 32 && r.reduced.numel > grain)
        r.pieces = (r.reduced.numel + grain - 1) / grain;
    r.pieces = r.pieces < most_pieces ? r.pieces : most_pieces;
    r.piece = (r.reduced.numel + r.pieces - 1) / r.pieces;
    return r;
}

template <class OP, class A, class O, class T>
static luda_status launch_tiles(const luda_call *call, luda_cuda_stream *stream, const reduction &r, double divisor, O *out,
                                A *partial, const T *x)
{
    tile t = plan_tile(r.piece, r.kept.numel, r.across);
    dim3 grid(t.blocks(r.kept.numel), static_cast<unsigned>(r.pieces));
    LUDA_LAUNCH((reduce_tile<OP, A, O, T>), grid, BLOCK, 0, stream->stream, t, r.kept, r.reduced, r.piece, divisor, out,
                partial, x);
    return launched(call);
}

/* The second launch reads [pieces][kept]. */
static reduction plan_pieces(const reduction &r)
{
    reduction second = {};
    int64_t stride = r.kept.numel, below = r.kept.numel;
    second.kept.numel = second.reduced.numel = second.pieces = 1;
    for (int d = 0; d < r.kept.ndim; d++) {
        below /= r.kept.shape[d];
        int64_t strides[2] = { r.kept.stride[0][d], below };
        second.kept.add(r.kept.shape[d], strides);
    }
    second.reduced.add(r.pieces, &stride);
    second.piece = r.pieces;
    second.across = r.kept.numel > 1;
    return second;
}

template <class OP, class A, class O, class T>
static luda_status reduce_pieces(const luda_call *call, luda_cuda_stream *stream, const reduction &r, double divisor, O *out,
                                 const T *x)
{
    size_t bytes = static_cast<size_t>(r.pieces * r.kept.numel) * sizeof(A);
    A *partial = static_cast<A *>(luda__cuda_scratch(stream, bytes));
    if (!partial)
        return fail_memory(call, bytes);
    luda_status status = launch_tiles<OP, A, O, T>(call, stream, r, 1, out, partial, x);
    if (status != LUDA_OK)
        return status;
    return launch_tiles<OP, A, O, A>(call, stream, plan_pieces(r), divisor, out, static_cast<A *>(NULL), partial);
}

template <class OP, class A, class O, class T>
static luda_status reduce(const luda_call *call, double divisor)
{
    reduction r = plan_reduction(&call->in[0], &call->out[0], &call->attrs->reduce.dim);
    luda_cuda_stream *stream = stream_of(call);
    O *out = static_cast<O *>(call->out[0].data);
    const T *x = static_cast<const T *>(call->in[0].numel > 0 ? call->in[0].data : NULL);
    if (!stream)
        return LUDA_ECUDA;
    if (r.kept.numel == 0)
        return LUDA_OK;
    if (r.pieces == 1)
        return launch_tiles<OP, A, O, T>(call, stream, r, divisor, out, static_cast<A *>(NULL), x);
    pthread_mutex_lock(&stream->lock);
    luda_status status = reduce_pieces<OP, A, O, T>(call, stream, r, divisor, out, x);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

#define EACH "../cuda/reduce.inc"
#include "../cpu/each.h"
