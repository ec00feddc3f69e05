// emulator_test.cpp: the emulator's own test. Without arguments it runs everything: each planted
// fault in a child process, then good programs in every order. `emulator_test NAME` runs one fault
// here (under ThreadSanitizer, say); its exit status is 0 for a right answer, 1 for a wrong one.
#include "emulator_test.h"

#include <cublas_v2.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

static int passed, failed;

static void check(const char *name, bool good)
{
    printf("%s %s\n", good ? "ok" : "FAILED", name);
    (good ? passed : failed)++;
}

template <class T>
static T *device_array(size_t n, const T *from = nullptr)
{
    void *p = nullptr;
    if (cudaMalloc(&p, n * sizeof(T)) == cudaSuccess && from)
        cudaMemcpy(p, from, n * sizeof(T), cudaMemcpyHostToDevice);
    return static_cast<T *>(p);
}

template <class T>
static std::vector<T> host(const T *p, size_t n)
{
    std::vector<T> out(n);
    cudaMemcpy(out.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost);
    return out;
}

// --- good programs ---

static bool axpy()
{
    std::vector<float> x(1000, 2), y(1000, 1);
    float *dx = device_array(1000, x.data()), *dy = device_array(1000, y.data());
    test_axpy(1000, 3, dx, dy, nullptr);
    bool good = cudaGetLastError() == cudaSuccess && host(dy, 1000) == std::vector<float>(1000, 7);
    cudaFree(dx);
    cudaFree(dy);
    return good;
}

static float sum_of_ones(test_fault fault)
{
    std::vector<float> ones(4096, 1);
    float zero = 0, *x = device_array(4096, ones.data()), *out = device_array(1, &zero);
    test_sum(x, 4096, out, 128, fault, nullptr);
    zero = host(out, 1)[0];
    cudaFree(x);
    cudaFree(out);
    return zero;
}

static bool warp()
{
    int *out = device_array<int>(40 * 8);
    test_warp(out, nullptr);
    std::vector<int> got = host(out, 40 * 8);
    cudaFree(out);
    for (int t = 0; t < 40; t++) {
        int lane = t % 32, full = t < 32;
        int want[8] = {3, lane % 8 < 2 ? lane : lane - 2, lane % 8 == 7 ? lane : lane + 1, lane ^ 1,
                       full ? static_cast<int>(0xaaaaaaaau) : 0xaa, 2 + !full, 2, lane % 2 ? 1 : 2};
        if (memcmp(want, &got[static_cast<size_t>(t) * 8], sizeof want))
            return false;
    }
    return true;
}

static bool atomics()
{
    atomic_results zero = {}, *out = device_array(1, &zero);
    test_atomics(out, 300, nullptr);
    atomic_results r = host(out, 1)[0];
    cudaFree(out);
    return r.f == 300 && r.d == 150 && r.i == -300 && r.u64 == 300ull << 32 && r.most == 299 &&
           r.least == -299 && r.bits == ~0u && r.last == 7 && r.cas == 600;
}

static bool half_types()
{
    std::vector<float> x = {0.5f, 1, 2, -4};
    float *dx = device_array(4, x.data()), *out = device_array<float>(4);
    test_half(dx, out, 4, nullptr);
    bool good = host(out, 4) == std::vector<float>{3.5f, 4.5f, 7.5f, -3.5f};
    cudaFree(dx);
    cudaFree(out);
    return good;
}

// A producer and a consumer stream; wait = false is the planted fault.
static bool streams(bool wait)
{
    std::vector<float> x(256, 1), y(256, 0);
    float *dx = device_array(256, x.data()), *dy = device_array(256, y.data()), ms = -1;
    cudaStream_t producer, consumer;
    cudaEvent_t start, ready;
    cudaStreamCreate(&producer);
    cudaStreamCreateWithFlags(&consumer, cudaStreamNonBlocking);
    cudaEventCreate(&start);
    cudaEventCreate(&ready);
    cudaEventRecord(start, producer);
    for (int i = 0; i < 4; i++)
        test_axpy(256, 1, dx, dx, producer);   // 16
    cudaEventRecord(ready, producer);
    if (wait)
        cudaStreamWaitEvent(consumer, ready, 0);
    test_axpy(256, 1, dx, dy, consumer);
    cudaStreamSynchronize(consumer);
    bool good = host(dy, 256) == std::vector<float>(256, 16);
    while (cudaEventQuery(ready) == cudaErrorNotReady)
        good = good && cudaGetLastError() == cudaErrorNotReady;
    good = good && cudaEventElapsedTime(&ms, start, ready) == cudaSuccess && ms >= 0;
    cudaEventDestroy(start);
    cudaEventDestroy(ready);
    cudaStreamDestroy(producer);
    cudaStreamDestroy(consumer);
    cudaFree(dx);
    cudaFree(dy);
    return good;
}

static bool gemm()
{
    // Column-major: A = [1 3; 2 4], B = [5 7; 6 8], A B = [23 31; 34 46], A' B = [17 23; 39 53].
    float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, one = 1, none = 0, two = 2;
    float *da = device_array(4, a), *db = device_array(4, b), *dc = device_array<float>(4);
    double e[8] = {1, 2, 3, 4, 1, 0, 0, 1}, unit = 1, nil = 0;
    double *de = device_array(8, e), *df = device_array<double>(8);
    unsigned short h[4] = {0x3f80, 0x4000, 0x4040, 0x4080};   // a in bf16
    unsigned short *dh = device_array(4, h);
    void *pointers[4] = {da, db, db, da}, **dp = device_array(4, pointers);
    float *out[2] = {device_array<float>(4), device_array<float>(4)};
    void **dout = device_array<void *>(2, reinterpret_cast<void **>(out));
    cublasHandle_t handle;
    cublasCreate(&handle);
    const cublasOperation_t N = CUBLAS_OP_N, T = CUBLAS_OP_T;
    cublasSgemm(handle, N, N, 2, 2, 2, &one, da, 2, db, 2, &none, dc, 2);
    cublasSgemm(handle, T, N, 2, 2, 2, &two, da, 2, db, 2, &one, dc, 2);
    bool good = host(dc, 4) == std::vector<float>{57, 112, 77, 152};
    cublasDgemmStridedBatched(handle, N, N, 2, 2, 2, &unit, de, 2, 0, de, 2, 4, &nil, df, 2, 4, 2);
    good = good && host(df, 8) == std::vector<double>{7, 10, 15, 22, 1, 2, 3, 4};
    cublasGemmEx(handle, N, T, 2, 2, 2, &one, dh, CUDA_R_16BF, 2, dh, CUDA_R_16BF, 2, &none, dc,
                 CUDA_R_32F, 2, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    good = good && host(dc, 4) == std::vector<float>{10, 14, 14, 20};
    cublasGemmBatchedEx(handle, N, N, 2, 2, 2, &one, dp, CUDA_R_32F, 2, dp + 1, CUDA_R_32F, 2,
                        &none, dout, CUDA_R_32F, 2, 2, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    good = good && host(out[0], 4) == std::vector<float>{23, 34, 31, 46} &&
           host(out[1], 4) == std::vector<float>{67, 78, 91, 106};
    good = good && cublasSgemm(handle, N, N, 2, 2, 2, &one, da, 1, db, 2, &none, dc, 2) ==
           CUBLAS_STATUS_INVALID_VALUE;
    cublasDestroy(handle);
    for (void *p : {(void *)da, (void *)db, (void *)dc, (void *)de, (void *)df, (void *)dh,
                    (void *)dp, (void *)dout, (void *)out[0], (void *)out[1]})
        cudaFree(p);
    return good;
}

static cudaError_t limits(int block, int shared, int grid)
{
    test_limits(block, shared, grid, nullptr);
    return cudaGetLastError();
}

static bool errors()
{
    void *p = nullptr, *q = nullptr;
    float x[4];
    bool good = limits(1024, 48 << 10, 1) == cudaSuccess && cudaPeekAtLastError() == cudaSuccess;
    good = good && limits(2048, 0, 1) == cudaErrorInvalidConfiguration;
    good = good && limits(32, 0, 0) == cudaErrorInvalidConfiguration;
    good = good && limits(32, 49 << 10, 1) == cudaErrorInvalidValue;
    test_raise_shared(64 << 10);
    good = good && limits(32, 49 << 10, 1) == cudaSuccess;
    good = good && cudaMalloc(&p, size_t(1) << 40) == cudaErrorMemoryAllocation && !p;
    good = good && cudaGetLastError() == cudaErrorMemoryAllocation;
    good = good && cudaMalloc(&p, 200 << 20) == cudaSuccess;
    good = good && cudaFreeAsync(p, nullptr) == cudaSuccess;
    good = good && cudaMalloc(&q, 200 << 20) == cudaSuccess;   // room once the stream has run
    good = good && cudaMemcpy(x, q, sizeof x, cudaMemcpyHostToDevice) == cudaErrorInvalidValue;
    good = good && cudaFree(x) == cudaErrorInvalidValue;
    good = good && isnan(host(static_cast<float *>(q), 1)[0]);
    good = good && cudaMemset(q, 0, 8) == cudaSuccess && host(static_cast<float *>(q), 1)[0] == 0;
    cudaFree(q);
    cudaGetLastError();
    return good && !strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

static bool threads()
{
    bool good[4] = {};
    std::vector<std::thread> all;
    for (int t = 0; t < 4; t++)
        all.emplace_back([&good, t] {
            good[t] = cudaSetDevice(t % 2) == cudaSuccess;
            for (int i = 0; i < 5; i++)
                good[t] = good[t] && axpy() && sum_of_ones(FAULT_NONE) == 4096 && streams(true);
        });
    for (std::thread &t : all)
        t.join();
    return good[0] && good[1] && good[2] && good[3];
}

static bool asynchronous(bool synchronise)
{
    int *pinned, *p = device_array<int>(100);
    cudaStream_t s;
    cudaMallocHost(reinterpret_cast<void **>(&pinned), 100 * sizeof(int));
    cudaStreamCreate(&s);
    test_fill(p, 100, 7, s);
    cudaMemcpyAsync(pinned, p, 100 * sizeof(int), cudaMemcpyDeviceToHost, s);
    if (synchronise)
        cudaStreamSynchronize(s);
    bool good = pinned[99] == 7;
    cudaStreamDestroy(s);
    cudaFree(p);
    cudaFreeHost(pinned);
    return good;
}

// --- planted faults ---

struct Planted {
    const char *name;
    bool (*run)();   // gives whether the answer is right
};

static const Planted planted[] = {
    {"none", [] { return sum_of_ones(FAULT_NONE) == 4096; }},
    {"no_barrier", [] { return sum_of_ones(FAULT_NO_BARRIER) == 4096; }},
    {"lockstep", [] { return sum_of_ones(FAULT_LOCKSTEP) == 4096; }},
    {"divergent", [] { return sum_of_ones(FAULT_DIVERGENT) == 4096; }},
    {"deadlock", [] { return sum_of_ones(FAULT_DEADLOCK) == 4096; }},
    {"event", [] { return streams(false); }},
    {"early_read", [] { return asynchronous(false); }},
    {"overrun", [] {
         float *x = device_array<float>(10);
         test_overrun(x, 10, nullptr);
         return cudaFree(x) == cudaSuccess;
     }},
    {"host_pointer", [] {
         float x[10];
         test_overrun(x, 0, nullptr);
         return cudaDeviceSynchronize() == cudaSuccess;
     }},
    {"dereference", [] { return *static_cast<volatile float *>(device_array<float>(1)) != 0; }},
};

static bool run_fault(const char *name)
{
    for (const Planted &p : planted)
        if (!strcmp(p.name, name))
            return p.run();
    fprintf(stderr, "no fault %s\n", name);
    exit(2);
}

// The exit status, or minus the signal, of one fault in a child process with that order.
static int outcome(const char *fault, const char *order)
{
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv("CUDAEMU_ORDER", order, 1);
        alarm(20);
        _exit(!run_fault(fault));
    }
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void check_faults()
{
    int wrong = 0;
    check("no fault, no report", outcome("none", "random:1") == 0);
    check("missing barrier, forward", outcome("no_barrier", "forward") == 1);
    check("missing barrier, random", outcome("no_barrier", "random:1") == 1);
    check("trust in lockstep, forward", outcome("lockstep", "forward") == 1);
    check("divergent barrier", outcome("divergent", "forward") == 9);
    check("deadlock", outcome("deadlock", "reverse") == 9);
    check("missing event wait, forward", outcome("event", "forward") == 1);
    for (const char *order : {"random:1", "random:2", "random:3", "random:4"})
        wrong += outcome("event", order);
    check("missing event wait, most seeds", wrong >= 2);
    check("read before synchronise", outcome("early_read", "forward") == 1);
    check("host pointer as argument", outcome("host_pointer", "forward") == 9);
#ifndef CUDAEMU_MALLOC   // AddressSanitizer sees the first itself and cannot see the second
    check("write past an allocation", outcome("overrun", "forward") == 9);
    int crash = outcome("dereference", "forward");   // a signal, or a sanitizer's exit status
    check("host code follows a device pointer", crash != 0 && crash != 1);
#endif
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return !run_fault(argv[1]);
    check_faults();   // first: the children must not inherit this process's state
    for (const char *order : {"forward", "reverse", "random:1", "random:2", "random:3"}) {
        printf("order %s\n", order);
        setenv("CUDAEMU_ORDER", order, 1);
        check("axpy", axpy());
        check("block sum", sum_of_ones(FAULT_NONE) == 4096);
        check("warp", warp());
        check("atomics", atomics());
        check("half types", half_types());
        check("streams and events", streams(true));
        check("asynchronous copy", asynchronous(true));
        check("gemm", gemm());
    }
    check("errors", errors());
    check("host threads", threads());
    setenv("CUDAEMU_EAGER", "1", 1);
    check("eager: no wait needed", streams(false) && asynchronous(false));
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
