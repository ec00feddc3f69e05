/*
 * matmul: floats by cuBLAS, which multiplies column-major matrices, so that it is given the transposed product B' A' = C'.
 * Operands that it can read in place are not copied. Halves add up in float. Integers go through a plain kernel.
 */
#include "affine.cuh"
#include "kernels/linear.h"
#include "move.cuh"

#include <limits.h>

/* Element (i, j) is data[i * row + j * column]. */
struct matrix {
    void *data;
    int64_t row, column;
};

struct products {
    matrix out, a, b; /* of batch element 0 */
    space<3> batch;   /* out, a, b */
    int64_t m, n, k;
};

static matrix last_two(const luda_operand *o)
{
    return { o->data, o->stride[o->ndim - 2], o->stride[o->ndim - 1] };
}

static products plan_products(const luda_operand *out, const luda_operand *a, const luda_operand *b)
{
    products p = {};
    p.out = last_two(out);
    p.a = last_two(a);
    p.b = last_two(b);
    p.m = out->shape[out->ndim - 2];
    p.n = out->shape[out->ndim - 1];
    p.k = a->shape[a->ndim - 1];
    p.batch.numel = 1;
    for (int d = 0; d < out->ndim - 2; d++) {
        int64_t stride[3] = { out->stride[d], a->stride[d], b->stride[d] };
        p.batch.add(out->shape[d], stride);
    }
    return p;
}

/* --- Integers: one thread an element of the output; sums wrap --- */

template <class T>
__global__ void multiply(products p, T *out, const T *a, const T *b)
{
    typedef uint64_t W;
    for (int64_t i = first_element(); i < p.batch.numel * p.m * p.n; i += step()) {
        int64_t at[3], row = i / p.n % p.m, column = i % p.n;
        W sum = 0;
        p.batch.locate(i / p.n / p.m, at);
        for (int64_t q = 0; q < p.k; q++)
            sum += static_cast<W>(a[at[1] + row * p.a.row + q * p.a.column]) *
                   static_cast<W>(b[at[2] + q * p.b.row + column * p.b.column]);
        out[at[0] + row * p.out.row + column * p.out.column] = static_cast<T>(sum);
    }
}

template <class T>
static luda_status multiply_integers(const luda_call *call, luda_cuda_stream *stream)
{
    products p = plan_products(&call->out[0], &call->in[0], &call->in[1]);
    LUDA_LAUNCH((multiply<T>), blocks_for(call->out[0].numel * ELEMENTS_A_THREAD), BLOCK, 0, stream->stream, p,
                static_cast<T *>(p.out.data), static_cast<const T *>(p.a.data), static_cast<const T *>(p.b.data));
    return launched(call);
}

/* --- Floats --- */

/* How cuBLAS reads rows x columns: -1 not at all, else whether its transpose (the row-major matrix as it lies) needs T. */
static int layout(const matrix *x, int64_t rows, int64_t columns, int64_t *ld)
{
    if ((x->column == 1 || columns == 1) && (x->row >= columns || rows == 1)) {
        *ld = rows == 1 ? columns : x->row;
        return 0;
    }
    if ((x->row == 1 || rows == 1) && (x->column >= rows || columns == 1)) {
        *ld = columns == 1 ? rows : x->column;
        return 1;
    }
    *ld = 0;
    return -1;
}

static bool readable(const luda_operand *o)
{
    matrix x = last_two(o);
    int64_t ld;
    return layout(&x, o->shape[o->ndim - 2], o->shape[o->ndim - 1], &ld) >= 0;
}

/* The operand laid out densely; dimensions that only repeat stay repeated. */
static luda_operand dense(const luda_operand *o)
{
    luda_operand d = *o;
    d.numel = 1;
    for (int i = o->ndim - 1; i >= 0; i--) {
        bool repeats = i < o->ndim - 2 && o->stride[i] == 0;
        d.stride[i] = repeats ? 0 : d.numel;
        d.numel *= repeats ? 1 : o->shape[i];
    }
    return d;
}

/* Copies what `packed` holds of `o` to `memory`. */
static luda_status pack(const luda_call *call, luda_cuda_stream *stream, const luda_operand *o, luda_operand *packed, char *memory)
{
    packed->data = memory;
    luda_operand to = *packed, from = *o;
    for (int i = 0; i < o->ndim - 2; i++)
        if (o->stride[i] == 0)
            to.shape[i] = from.shape[i] = 1;
    return luda__cuda_place(call, stream, &to, &from);
}

/* A batch against one matrix is one product with more rows, where the rows are evenly spaced. */
static void fold_batch(products *p)
{
    const space<3> *batch = &p->batch;
    if (batch->ndim != 1 || batch->stride[2][0] != 0 || p->a.column != 1)
        return;
    if (p->m != 1 && (batch->stride[0][0] != p->m * p->out.row || batch->stride[1][0] != p->m * p->a.row))
        return;
    if (p->m == 1) {
        if (batch->stride[1][0] < p->k)
            return;
        p->out.row = batch->stride[0][0];
        p->a.row = batch->stride[1][0];
    }
    p->m *= batch->numel;
    p->batch = {};
    p->batch.numel = 1;
}

struct precision {
    cudaDataType_t type;
    cublasComputeType_t compute;
};
template <class T>
precision precision_of();
template <>
precision precision_of<double>()
{
    return { CUDA_R_64F, CUBLAS_COMPUTE_64F };
}
template <>
precision precision_of<float>()
{
    return { CUDA_R_32F, CUBLAS_COMPUTE_32F };
}
template <>
precision precision_of<__half>()
{
    return { CUDA_R_16F, CUBLAS_COMPUTE_32F };
}
template <>
precision precision_of<__nv_bfloat16>()
{
    return { CUDA_R_16BF, CUBLAS_COMPUTE_32F };
}

/* One call of cuBLAS for each index of all batch dimensions but the last. */
template <class T>
static luda_status run_products(const luda_call *call, cublasHandle_t blas, const products &p)
{
    const double one = 1, zero = 0;
    const float one_f32 = 1, zero_f32 = 0;
    const bool wide = sizeof(T) == 8;
    const precision how = precision_of<T>();
    int64_t lda, ldb, ldc;
    int ta = layout(&p.a, p.m, p.k, &lda), tb = layout(&p.b, p.k, p.n, &ldb), tc = layout(&p.out, p.m, p.n, &ldc);
    if (p.m > INT_MAX || p.n > INT_MAX || p.k > INT_MAX || lda > INT_MAX || ldb > INT_MAX || ldc > INT_MAX || tc != 0)
        return fail(call, LUDA_ENOTSUP, "matmul: a product of %lld x %lld x %lld is too large for cuBLAS", (long long)p.m,
                    (long long)p.k, (long long)p.n);
    int last = p.batch.ndim - 1;
    int64_t count = last < 0 ? 1 : p.batch.shape[last], none[3] = { 0, 0, 0 };
    for (int64_t i = 0; i < p.batch.numel; i += count) {
        int64_t at[3], *by = none, apart[3];
        p.batch.locate(i, at);
        for (int o = 0; last >= 0 && o < 3; o++)
            (by = apart)[o] = p.batch.stride[o][last];
        cublasStatus_t status = cublasGemmStridedBatchedEx(
            blas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, static_cast<int>(p.n), static_cast<int>(p.m),
            static_cast<int>(p.k), wide ? static_cast<const void *>(&one) : &one_f32, static_cast<const T *>(p.b.data) + at[2],
            how.type, static_cast<int>(ldb), by[2], static_cast<const T *>(p.a.data) + at[1], how.type, static_cast<int>(lda),
            by[1], wide ? static_cast<const void *>(&zero) : &zero_f32, static_cast<T *>(p.out.data) + at[0], how.type,
            static_cast<int>(ldc), by[0], static_cast<int>(count), how.compute, CUBLAS_GEMM_DEFAULT);
        if (status != CUBLAS_STATUS_SUCCESS)
            return fail(call, LUDA_ECUDA, "matmul: cuBLAS: %s", cublasGetStatusString(status));
    }
    return LUDA_OK;
}

template <class T>
static luda_status multiply_locked(const luda_call *call, luda_cuda_stream *stream)
{
    luda_operand a = call->in[0], b = call->in[1];
    bool pack_a = !readable(&a), pack_b = !readable(&b);
    if (pack_a)
        a = dense(&call->in[0]);
    if (pack_b)
        b = dense(&call->in[1]);
    size_t bytes_a = pack_a ? static_cast<size_t>(a.numel) * sizeof(T) : 0;
    size_t bytes_b = pack_b ? static_cast<size_t>(b.numel) * sizeof(T) : 0;
    bytes_a = (bytes_a + 255) / 256 * 256;
    char *scratch = pack_a || pack_b ? static_cast<char *>(luda__cuda_scratch(stream, bytes_a + bytes_b)) : NULL;
    if ((pack_a || pack_b) && !scratch)
        return fail_memory(call, bytes_a + bytes_b);
    luda_status status = pack_a ? pack(call, stream, &call->in[0], &a, scratch) : LUDA_OK;
    if (status == LUDA_OK && pack_b)
        status = pack(call, stream, &call->in[1], &b, scratch + bytes_a);
    cublasHandle_t blas = status == LUDA_OK ? luda__cuda_blas(stream, call->message) : NULL;
    if (!blas)
        return status == LUDA_OK ? LUDA_ECUDA : status;
    products p = plan_products(&call->out[0], &a, &b);
    fold_batch(&p);
    return run_products<T>(call, blas, p);
}

template <class T>
static luda_status multiply_floats(const luda_call *call, luda_cuda_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    luda_status status = multiply_locked<T>(call, stream);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

static luda_status product(const luda_call *call, luda_status (*run)(const luda_call *, luda_cuda_stream *))
{
    luda_cuda_stream *stream = stream_of(call);
    const luda_operand *out = &call->out[0], *a = &call->in[0];
    if (!stream)
        return LUDA_ECUDA;
    if (out->numel == 0)
        return LUDA_OK;
    if (a->shape[a->ndim - 1] > 0)
        return run(call, stream);
    cudaMemsetAsync(out->data, 0, static_cast<size_t>(out->numel) * item_size(out->dtype), stream->stream);
    return launched(call);
}

/* --- linear: the product, then bias and activation in one pass over its contiguous result --- */

template <class T>
__global__ void finish_linear(T *out, T *before, int64_t numel, int64_t columns, affine bias, int activation)
{
    for (int64_t i = first_element(); i < numel; i += step()) {
        typename computed_as<T>::type sum = load(out[i]);
        if (bias.data)
            sum += affine_at<T>(bias, i % columns);
        if (before) {
            before[i] = to<T>(sum);
            sum = load(before[i]); /* the activation can be made again from what is kept */
        }
        if (activation == LUDA_ACTIVATION_RELU)
            sum = RELU(sum);
        else if (activation == LUDA_ACTIVATION_GELU_TANH)
            sum = GELU_TANH(sum);
        out[i] = to<T>(sum);
    }
}

template <class T>
static luda_status linear(const luda_call *call)
{
    luda_operand out = call->out[0], in[] = { call->in[0], call->in[1] };
    luda_call inner = *call;
    linear_operands(&out, &in[0], &in[1]);
    inner.in = in;
    inner.out = &out;
    luda_status status = product(&inner, multiply_floats<T>);
    if (status != LUDA_OK)
        return status;
    int activation = call->attrs->linear.activation;
    T *before = call->out[1].numel > 0 ? static_cast<T *>(call->out[1].data) : NULL;
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (out.numel == 0 || (!input(call, 2) && !before))
        return LUDA_OK;
    LUDA_LAUNCH((finish_linear<T>), blocks_for(out.numel), BLOCK, 0, stream->stream, static_cast<T *>(call->out[0].data), before,
                out.numel, out.shape[out.ndim - 1], affine_of(input(call, 2)), activation);
    return launched(call);
}

#define EACH_CLASSES (CLASS_FLOAT | CLASS_INT)
#define EACH "../cuda/matmul.inc"
#include "../cpu/each.h"
