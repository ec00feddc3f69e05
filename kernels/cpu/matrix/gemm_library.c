/*
 * oneDNN (float) and OpenBLAS (double, and float where there is no oneDNN), opened when the first product is computed.
 * Both run on the calling thread alone. LUDA_GEMM=onednn|onednn_bf16|openblas|builtin asks for one of them only.
 */
#include "gemm.h"

#include <dlfcn.h>
#include <pthread.h>

typedef int (*dnnl_sgemm_function)(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                                   int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
typedef void (*cblas_sgemm_function)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                                     int lda, const float *b, int ldb, float beta, float *c, int ldc);
typedef void (*cblas_dgemm_function)(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a,
                                     int lda, const double *b, int ldb, double beta, double *c, int ldc);

enum { CBLAS_ROW_MAJOR = 101, CBLAS_NO_TRANSPOSE = 111, CBLAS_TRANSPOSE = 112 };

static gemm_library library;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static dnnl_sgemm_function dnnl_sgemm;
static void (*omp_set_num_threads)(int);
static cblas_sgemm_function cblas_sgemm;
static cblas_dgemm_function cblas_dgemm;

static void onednn_f32(int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                       int64_t ldb, int accumulate, float *c, int64_t ldc)
{
    static _Thread_local int alone;
    if (!alone && omp_set_num_threads)
        omp_set_num_threads(1);
    alone = 1;
    dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1, a, lda, b, ldb, accumulate ? 1 : 0, c, ldc);
}

static void openblas_f32(int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                         int64_t ldb, int accumulate, float *c, int64_t ldc)
{
    cblas_sgemm(CBLAS_ROW_MAJOR, ta ? CBLAS_TRANSPOSE : CBLAS_NO_TRANSPOSE, tb ? CBLAS_TRANSPOSE : CBLAS_NO_TRANSPOSE,
                (int)m, (int)n, (int)k, 1, a, (int)lda, b, (int)ldb, accumulate ? 1 : 0, c, (int)ldc);
}

static void openblas_f64(int ta, int tb, int64_t m, int64_t n, int64_t k, const double *a, int64_t lda, const double *b,
                         int64_t ldb, int accumulate, double *c, int64_t ldc)
{
    cblas_dgemm(CBLAS_ROW_MAJOR, ta ? CBLAS_TRANSPOSE : CBLAS_NO_TRANSPOSE, tb ? CBLAS_TRANSPOSE : CBLAS_NO_TRANSPOSE,
                (int)m, (int)n, (int)k, 1, a, (int)lda, b, (int)ldb, accumulate ? 1 : 0, c, (int)ldc);
}

static void open_onednn(void)
{
    void *handle = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        handle = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return;
    dnnl_sgemm = (dnnl_sgemm_function)dlsym(handle, "dnnl_sgemm");
    omp_set_num_threads = (void (*)(int))dlsym(handle, "omp_set_num_threads");
    if (dnnl_sgemm)
        library.f32 = onednn_f32;
}

/* A build without threads keeps its buffers unlocked, so that several workers could not use it. */
static void open_openblas(void)
{
    void *handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return;
    int (*get_parallel)(void) = (int (*)(void))dlsym(handle, "openblas_get_parallel");
    void (*set_threads)(int) = (void (*)(int))dlsym(handle, "openblas_set_num_threads");
    cblas_sgemm = (cblas_sgemm_function)dlsym(handle, "cblas_sgemm");
    cblas_dgemm = (cblas_dgemm_function)dlsym(handle, "cblas_dgemm");
    if (!get_parallel || get_parallel() != 1 || !set_threads || !cblas_sgemm || !cblas_dgemm)
        return;
    set_threads(1);
    library.f64 = openblas_f64;
    if (!library.f32)
        library.f32 = openblas_f32;
}

static void open_library(void)
{
    const char *wanted = getenv("LUDA_GEMM");
    int any = !wanted || !*wanted;
    if (any || strncmp(wanted, "onednn", 6) == 0)
        open_onednn();
    if (any || strcmp(wanted, "openblas") == 0)
        open_openblas();
}

const gemm_library *luda__gemm_library(void)
{
    pthread_once(&once, open_library);
    return &library;
}
