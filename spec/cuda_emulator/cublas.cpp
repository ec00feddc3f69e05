// cublas.cpp: the cuBLAS products that a plug-in needs, in plain loops, through the stream queue.
//
// Column-major, f32 accumulation (f64 for doubles), one rounding at the end. Scalars are host
// pointers, read at the call. Tensor-core and TF32 rounding are not imitated.
#include "internal.h"

#include <algorithm>
#include <cublas_v2.h>

struct cublasContext {
    cudaStream_t stream;
};

namespace {

struct Matrix {
    const void *data;     // or, in a batch by pointers, a device array of them
    cudaDataType type;
    int ld;
    long long stride;
};

struct Product {
    cublasOperation_t ta, tb;
    int m, n, k;
    double alpha, beta;
    Matrix a, b, c;
    int batch;
    bool by_pointers;
};

double load(const void *p, cudaDataType type, size_t i)
{
    switch (type) {
    case CUDA_R_64F: return static_cast<const double *>(p)[i];
    case CUDA_R_32F: return static_cast<const float *>(p)[i];
    case CUDA_R_16F: return __half2float(static_cast<const __half *>(p)[i]);
    default: return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
    }
}

void store(void *p, cudaDataType type, size_t i, double value)
{
    float single = static_cast<float>(value);   // exact: sums are f32 unless C is f64
    switch (type) {
    case CUDA_R_64F: static_cast<double *>(p)[i] = value; break;
    case CUDA_R_32F: static_cast<float *>(p)[i] = single; break;
    case CUDA_R_16F: static_cast<__half *>(p)[i] = __float2half(single); break;
    default: static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16(single);
    }
}

const void *item(const Matrix &x, bool by_pointers, int i)
{
    if (by_pointers)
        return static_cast<const void *const *>(x.data)[i];
    size_t width = x.type == CUDA_R_64F ? 8 : x.type == CUDA_R_32F ? 4 : 2;
    return static_cast<const char *>(x.data) + x.stride * i * width;
}

// Rows of op(A), or columns of op(B), one after another.
template <class T>
std::vector<T> unpack(const Matrix &x, const void *data, int outer, size_t k, bool as_stored)
{
    std::vector<T> out(outer * k);
    size_t at = 0, ld = x.ld;
    for (int o = 0; o < outer; o++)
        for (size_t i = 0; i < k; i++)
            out[at++] = static_cast<T>(load(data, x.type, as_stored ? i + o * ld : o + i * ld));
    return out;
}

template <class T>
void multiply(const Product &p, int index)
{
    size_t k = p.k;
    auto a = unpack<T>(p.a, item(p.a, p.by_pointers, index), p.m, k, p.ta != CUBLAS_OP_N);
    auto b = unpack<T>(p.b, item(p.b, p.by_pointers, index), p.n, k, p.tb == CUBLAS_OP_N);
    void *c = const_cast<void *>(item(p.c, p.by_pointers, index));
    for (int j = 0; j < p.n; j++)
        for (int i = 0; i < p.m; i++) {
            size_t at = i + static_cast<size_t>(j) * p.c.ld;
            T sum = 0;
            for (size_t l = 0; l < k; l++)
                sum += a[i * k + l] * b[j * k + l];
            sum *= static_cast<T>(p.alpha);
            if (p.beta != 0)   // C may be uninitialised otherwise
                sum += static_cast<T>(p.beta) * static_cast<T>(load(c, p.c.type, at));
            store(c, p.c.type, at, static_cast<double>(sum));
        }
}

bool supported(const Product &p, bool doubles)
{
    auto real = [](cudaDataType t) {
        return t == CUDA_R_64F || t == CUDA_R_32F || t == CUDA_R_16F || t == CUDA_R_16BF;
    };
    if (!real(p.a.type) || p.a.type != p.b.type || doubles != (p.a.type == CUDA_R_64F))
        return false;
    return p.c.type == p.a.type || (p.c.type == CUDA_R_32F && !doubles);
}

cublasStatus_t run(cublasHandle_t handle, Product p, const void *alpha, const void *beta,
                   cublasComputeType_t compute)
{
    bool doubles = compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC;
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0 || !alpha || !beta ||
        p.c.ld < std::max(1, p.m) || p.a.ld < std::max(1, p.ta == CUBLAS_OP_N ? p.m : p.k) ||
        p.b.ld < std::max(1, p.tb == CUBLAS_OP_N ? p.k : p.n))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (compute == CUBLAS_COMPUTE_16F || compute == CUBLAS_COMPUTE_32I || !supported(p, doubles))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    p.alpha = doubles ? *static_cast<const double *>(alpha) : *static_cast<const float *>(alpha);
    p.beta = doubles ? *static_cast<const double *>(beta) : *static_cast<const float *>(beta);
    cudaError_t error = emu::locked([&] {
        Stream *stream = emu::find_stream(handle->stream);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        int argument = 0;
        for (const Matrix *x : {&p.a, &p.b, &p.c})
            emu::demand_device_pointer("gemm", ++argument, x->data, emu::stream_device(stream));
        emu::enqueue(stream, [=] {
            for (int i = 0; i < p.batch; i++)
                doubles ? multiply<double>(p, i) : multiply<float>(p, i);
        });
        return cudaSuccess;
    });
    return error ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

}  // namespace

// --- the API ---

#define API extern "C" cublasStatus_t
#define SHAPE cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k
#define HOW cublasComputeType_t compute, cublasGemmAlgo_t algo
using Scalar = const void *;
using Type = cudaDataType;

API cublasCreate_v2(cublasHandle_t *h) { return *h = new cublasContext(), CUBLAS_STATUS_SUCCESS; }
API cublasDestroy_v2(cublasHandle_t h) { return delete h, CUBLAS_STATUS_SUCCESS; }
API cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
API cublasSetStream_v2(cublasHandle_t h, cudaStream_t s)
{
    return h->stream = s, CUBLAS_STATUS_SUCCESS;
}

extern "C" const char *cublasGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "failure in the cuBLAS emulation";
}

API cublasGemmStridedBatchedEx(SHAPE, Scalar alpha, const void *A, Type at, int lda, long long sa,
                               const void *B, Type bt, int ldb, long long sb, Scalar beta, void *C,
                               Type ct, int ldc, long long sc, int batch, HOW)
{
    (void)algo;
    return run(h, {ta, tb, m, n, k, 0, 0, {A, at, lda, sa}, {B, bt, ldb, sb}, {C, ct, ldc, sc},
                   batch, false}, alpha, beta, compute);
}

API cublasGemmBatchedEx(SHAPE, Scalar alpha, const void *const A[], Type at, int lda,
                        const void *const B[], Type bt, int ldb, Scalar beta, void *const C[],
                        Type ct, int ldc, int batch, HOW)
{
    (void)algo;
    return run(h, {ta, tb, m, n, k, 0, 0, {A, at, lda, 0}, {B, bt, ldb, 0}, {C, ct, ldc, 0},
                   batch, true}, alpha, beta, compute);
}

API cublasGemmEx(SHAPE, Scalar alpha, const void *A, Type at, int lda, const void *B, Type bt,
                 int ldb, Scalar beta, void *C, Type ct, int ldc, HOW)
{
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, A, at, lda, 0, B, bt, ldb, 0,
                                      beta, C, ct, ldc, 0, 1, compute, algo);
}

#define GEMM(T, gemm, strided, type, compute)                                                     \
    API strided(SHAPE, const T *alpha, const T *A, int lda, long long sa, const T *B, int ldb,    \
                long long sb, const T *beta, T *C, int ldc, long long sc, int batch)              \
    {                                                                                             \
        return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, A, type, lda, sa, B, type,   \
                                          ldb, sb, beta, C, type, ldc, sc, batch, compute,        \
                                          CUBLAS_GEMM_DEFAULT);                                   \
    }                                                                                             \
    API gemm(SHAPE, const T *alpha, const T *A, int lda, const T *B, int ldb, const T *beta,      \
             T *C, int ldc)                                                                       \
    {                                                                                             \
        return strided(h, ta, tb, m, n, k, alpha, A, lda, 0, B, ldb, 0, beta, C, ldc, 0, 1);      \
    }

GEMM(float, cublasSgemm_v2, cublasSgemmStridedBatched, CUDA_R_32F, CUBLAS_COMPUTE_32F)
GEMM(double, cublasDgemm_v2, cublasDgemmStridedBatched, CUDA_R_64F, CUBLAS_COMPUTE_64F)
