/*
 * attention: softmax(q k^T scale) v with a running maximum and sum (Milakov and Gimelshein 2018; Dao et al. 2022), a block
 * for each query, a thread for each key of a tile of keys; so the weights of all keys never exist at once. The backward
 * makes the weights again from the stored log-sum-exp: a block a query for dQ, a block a key for dK and dV, so that
 * nothing is added up by atomics. Rows and widths of any size that shared memory holds; no tensor cores.
 */
#include "rows.cuh"
#include "words.cuh"

/* [..., rows, width]: `lead` walks over the batch. */
struct attention {
    int64_t batch, queries, keys, width, value_width;
    bool causal;
    double scale, dropout;
    draw random;
};

/* Operands in the order q, k, v, output, log-sum-exp, gradient, dq, dk, dv; a kernel uses those that it was given. */
enum { Q, K, V, OUT, LSE, GRADIENT, DQ, DK, DV, OPERANDS };
struct layouts {
    space<OPERANDS> lead;
    int64_t row[OPERANDS], column[OPERANDS];
};

static attention plan_attention(const luda_call *call, const luda_operand *q, const luda_operand *k, const luda_operand *v)
{
    const struct luda_attention_attrs *a = &call->attrs->attention;
    int n = q->ndim;
    attention w = {};
    w.batch = 1;
    for (int d = 0; d < n - 2; d++)
        w.batch *= q->shape[d];
    w.queries = q->shape[n - 2];
    w.keys = k->shape[n - 2];
    w.width = q->shape[n - 1];
    w.value_width = v->shape[n - 1];
    w.causal = a->is_causal;
    w.scale = a->scale != 0 ? a->scale : 1 / sqrt(static_cast<double>(w.width > 0 ? w.width : 1));
    w.dropout = a->dropout_p;
    w.random = draw_of(&a->generator);
    return w;
}

/* operands[o] NULL: not used. The log-sum-exp has one dimension less. */
static layouts plan_layouts(const luda_operand *const *operands)
{
    layouts l = {};
    int lead = operands[Q]->ndim - 2;
    l.lead.numel = 1;
    for (int d = 0; d < lead; d++) {
        int64_t stride[OPERANDS];
        for (int o = 0; o < OPERANDS; o++)
            stride[o] = operands[o] ? operands[o]->stride[d] : 0;
        l.lead.add(operands[Q]->shape[d], stride);
    }
    for (int o = 0; o < OPERANDS; o++) {
        l.row[o] = operands[o] ? operands[o]->stride[lead] : 0;
        l.column[o] = operands[o] && o != LSE ? operands[o]->stride[lead + 1] : 0;
    }
    return l;
}

/* Keys before this one are seen by a query. */
static __device__ inline int64_t visible(const attention &w, int64_t query)
{
    int64_t most = query + w.keys - w.queries + 1;
    return !w.causal || most > w.keys ? w.keys : most < 0 ? 0 : most;
}

/* 0 where dropout takes the weight away, else what it is multiplied with. */
template <class C>
__device__ C mask_of(const attention &w, int64_t batch, int64_t query, int64_t key)
{
    if (w.dropout == 0)
        return 1;
    float u = luda__fraction(narrow_word(w.random, (batch * w.queries + query) * w.keys + key), 24);
    return static_cast<double>(u) >= w.dropout ? static_cast<C>(1 / (1 - w.dropout)) : C(0);
}

template <class T, class C>
__device__ C dot_rows(const T *a, int64_t a_stride, const T *b, int64_t b_stride, int64_t n)
{
    C sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += load(a[d * a_stride]) * load(b[d * b_stride]);
    return sum;
}

/* --- Forward --- */

template <class T, class C>
__global__ void attend(attention w, layouts l, const T *q, const T *k, const T *v, T *out, C *lse)
{
    __shared__ C weights[BLOCK], tops[BLOCK];
    __shared__ double sums[BLOCK];
    LUDA_DYN_SHARED(C, sum); /* [value_width] */
    const tile t = { BLOCK, 1, false };
    int64_t batch = blockIdx.x / w.queries, query = blockIdx.x % w.queries, seen = visible(w, query), at[OPERANDS];
    int me = static_cast<int>(threadIdx.x);
    C top = -static_cast<C>(INFINITY);
    double total = 0;
    l.lead.locate(batch, at);
    q += at[Q] + query * l.row[Q];
    for (int64_t e = me; e < w.value_width; e += BLOCK)
        sum[e] = 0;
    for (int64_t first = 0; first < seen; first += BLOCK) {
        int64_t key = first + me;
        C score = -static_cast<C>(INFINITY);
        if (key < seen)
            score = dot_rows<T, C>(q, l.column[Q], k + at[K] + key * l.row[K], l.column[K], w.width) * static_cast<C>(w.scale);
        C tile_top = combine_lanes(t, tops, score, take_larger<C>()), before = top;
        top = tile_top > top ? tile_top : top;
        C decay = before == top ? C(1) : exp(before - top), weight = key < seen ? exp(score - top) : C(0);
        total = total * static_cast<double>(decay) + combine_lanes(t, sums, static_cast<double>(weight), add_up<double>());
        weights[me] = key < seen ? weight * mask_of<C>(w, batch, query, key) : C(0);
        __syncthreads();
        for (int64_t e = me; e < w.value_width; e += BLOCK) {
            C add = 0;
            for (int j = 0; j < BLOCK && first + j < seen; j++)
                add += weights[j] * load(v[at[V] + (first + j) * l.row[V] + e * l.column[V]]);
            sum[e] = sum[e] * decay + add;
        } /* no thread gets to the next weights before the barriers of combine_lanes */
    }
    bool empty = seen == 0;
    for (int64_t e = me; e < w.value_width; e += BLOCK)
        out[at[OUT] + query * l.row[OUT] + e * l.column[OUT]] = to<T>(empty ? C(0) : sum[e] * static_cast<C>(1 / total));
    if (me == 0)
        lse[at[LSE] + query * l.row[LSE]] = empty ? -static_cast<C>(INFINITY) : static_cast<C>(static_cast<double>(top) + log(total));
}

/* Shared memory for `elements`, or a failure. */
template <class C>
static luda_status check_width(const luda_call *call, int64_t elements, size_t *bytes)
{
    const size_t most = 32 << 10; /* beside static arrays, in the 48 KiB that every device has */
    *bytes = static_cast<size_t>(elements) * sizeof(C);
    if (*bytes <= most)
        return LUDA_OK;
    return fail(call, LUDA_ENOTSUP, "%s: rows of %lld elements, %lld are possible on cuda", op_name(call), (long long)elements,
                (long long)(most / sizeof(C)));
}

template <class T, class C>
static luda_status launch_attention(const luda_call *call)
{
    const luda_operand *q = &call->in[0], *k = &call->in[1], *v = &call->in[2], *out = &call->out[0], *lse = &call->out[1];
    const luda_operand *operands[OPERANDS] = { q, k, v, out, lse };
    attention w = plan_attention(call, q, k, v);
    size_t bytes;
    luda_status status = check_width<C>(call, w.value_width, &bytes);
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (status != LUDA_OK || w.batch * w.queries == 0)
        return status;
    LUDA_LAUNCH((attend<T, C>), static_cast<unsigned>(w.batch * w.queries), BLOCK, bytes, stream->stream, w, plan_layouts(operands),
                static_cast<const T *>(q->numel > 0 ? q->data : NULL), static_cast<const T *>(k->numel > 0 ? k->data : NULL),
                static_cast<const T *>(v->numel > 0 ? v->data : NULL), static_cast<T *>(out->numel > 0 ? out->data : NULL),
                static_cast<C *>(lse->data));
    return launched(call);
}

/* --- Backward. P the weights, M the mask, G the gradient: dS = P (M (G V^T) - rowsum(G out)) --- */

template <class T>
struct tensors {
    const T *q, *k, *v, *out, *gradient;
    const typename computed_as<T>::type *lse;
};

/* P and dS of one query and key; `dot` is rowsum(G out). */
template <class T, class C>
__device__ void slope_of(const attention &w, const layouts &l, const tensors<T> &x, const int64_t *at, int64_t batch, int64_t query,
                         int64_t key, C dot, C *weight, C *slope)
{
    C score = dot_rows<T, C>(x.q + at[Q] + query * l.row[Q], l.column[Q], x.k + at[K] + key * l.row[K], l.column[K], w.width) *
              static_cast<C>(w.scale);
    C p = exp(score - x.lse[at[LSE] + query * l.row[LSE]]), mask = mask_of<C>(w, batch, query, key);
    C g = dot_rows<T, C>(x.gradient + at[GRADIENT] + query * l.row[GRADIENT], l.column[GRADIENT],
                         x.v + at[V] + key * l.row[V], l.column[V], w.value_width);
    *weight = p * mask;
    *slope = p * (g * mask - dot);
}

template <class T, class C>
__device__ C dot_of(const attention &w, const layouts &l, const tensors<T> &x, const int64_t *at, int64_t query)
{
    return dot_rows<T, C>(x.gradient + at[GRADIENT] + query * l.row[GRADIENT], l.column[GRADIENT], x.out + at[OUT] + query * l.row[OUT],
                          l.column[OUT], w.value_width);
}

/* dQ = scale dS K: a block a query. */
template <class T, class C>
__global__ void attend_slope_q(attention w, layouts l, tensors<T> x, T *dq)
{
    __shared__ C slopes[BLOCK];
    LUDA_DYN_SHARED(C, sum); /* [width] */
    int64_t batch = blockIdx.x / w.queries, query = blockIdx.x % w.queries, seen = visible(w, query), at[OPERANDS];
    int me = static_cast<int>(threadIdx.x);
    l.lead.locate(batch, at);
    C dot = dot_of<T, C>(w, l, x, at, query);
    for (int64_t d = me; d < w.width; d += BLOCK)
        sum[d] = 0;
    for (int64_t first = 0; first < seen; first += BLOCK) {
        C weight, slope = 0;
        if (first + me < seen)
            slope_of<T, C>(w, l, x, at, batch, query, first + me, dot, &weight, &slope);
        slopes[me] = slope;
        __syncthreads();
        for (int64_t d = me; d < w.width; d += BLOCK)
            for (int j = 0; j < BLOCK && first + j < seen; j++)
                sum[d] += slopes[j] * load(x.k[at[K] + (first + j) * l.row[K] + d * l.column[K]]);
        __syncthreads();
    }
    for (int64_t d = me; d < w.width; d += BLOCK)
        dq[at[DQ] + query * l.row[DQ] + d * l.column[DQ]] = to<T>(sum[d] * static_cast<C>(w.scale));
}

/* dK = scale dS^T Q, dV = (P M)^T G: a block a key. */
template <class T, class C>
__global__ void attend_slope_kv(attention w, layouts l, tensors<T> x, T *dk, T *dv)
{
    __shared__ C slopes[BLOCK], weights[BLOCK];
    LUDA_DYN_SHARED(C, sum); /* [width], then [value_width] */
    int64_t batch = blockIdx.x / w.keys, key = blockIdx.x % w.keys, at[OPERANDS];
    int me = static_cast<int>(threadIdx.x);
    C *sum_v = sum + w.width;
    int64_t start = w.causal && key + w.queries > w.keys ? key + w.queries - w.keys : 0; /* the first query that sees the key */
    l.lead.locate(batch, at);
    for (int64_t d = me; d < w.width + w.value_width; d += BLOCK)
        sum[d] = 0;
    for (int64_t first = start; first < w.queries; first += BLOCK) {
        int64_t query = first + me;
        C weight = 0, slope = 0;
        if (query < w.queries)
            slope_of<T, C>(w, l, x, at, batch, query, key, dot_of<T, C>(w, l, x, at, query), &weight, &slope);
        slopes[me] = slope;
        weights[me] = weight;
        __syncthreads();
        for (int64_t d = me; d < w.width; d += BLOCK)
            for (int j = 0; j < BLOCK && first + j < w.queries; j++)
                sum[d] += slopes[j] * load(x.q[at[Q] + (first + j) * l.row[Q] + d * l.column[Q]]);
        for (int64_t e = me; e < w.value_width; e += BLOCK)
            for (int j = 0; j < BLOCK && first + j < w.queries; j++)
                sum_v[e] += weights[j] * load(x.gradient[at[GRADIENT] + (first + j) * l.row[GRADIENT] + e * l.column[GRADIENT]]);
        __syncthreads();
    }
    for (int64_t d = me; d < w.width; d += BLOCK)
        dk[at[DK] + key * l.row[DK] + d * l.column[DK]] = to<T>(sum[d] * static_cast<C>(w.scale));
    for (int64_t e = me; e < w.value_width; e += BLOCK)
        dv[at[DV] + key * l.row[DV] + e * l.column[DV]] = to<T>(sum_v[e]);
}

template <class T, class C>
static luda_status launch_attention_backward(const luda_call *call)
{
    const luda_operand *in = call->in, *out = call->out;
    const luda_operand *operands[OPERANDS] = { &in[1], &in[2], &in[3], &in[4], &in[5], &in[0], &out[0], &out[1], &out[2] };
    attention w = plan_attention(call, &in[1], &in[2], &in[3]);
    layouts l = plan_layouts(operands);
    tensors<T> x = { static_cast<const T *>(in[1].data), static_cast<const T *>(in[2].data), static_cast<const T *>(in[3].data),
                     static_cast<const T *>(in[4].data), static_cast<const T *>(in[0].data), static_cast<const C *>(in[5].data) };
    size_t bytes_q, bytes_kv;
    luda_status status = check_width<C>(call, w.width + w.value_width, &bytes_kv);
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (status == LUDA_OK)
        status = check_width<C>(call, w.width, &bytes_q);
    if (status == LUDA_OK && w.batch * w.queries > 0) {
        LUDA_LAUNCH((attend_slope_q<T, C>), static_cast<unsigned>(w.batch * w.queries), BLOCK, bytes_q, stream->stream, w, l, x,
                    static_cast<T *>(out[0].numel > 0 ? out[0].data : NULL));
        status = launched(call);
    }
    if (status != LUDA_OK || w.batch * w.keys == 0)
        return status;
    LUDA_LAUNCH((attend_slope_kv<T, C>), static_cast<unsigned>(w.batch * w.keys), BLOCK, bytes_kv, stream->stream, w, l, x,
                static_cast<T *>(out[1].numel > 0 ? out[1].data : NULL), static_cast<T *>(out[2].numel > 0 ? out[2].data : NULL));
    return launched(call);
}

#define EACH_CLASSES CLASS_FLOAT
#define EACH "../cuda/attention.inc"
#include "../cpu/each.h"
