// emulator_test.h: what emulator_test.cu, compiled by either compiler, offers to emulator_test.cpp.
#pragma once

#include <cuda_runtime_api.h>

enum test_fault { FAULT_NONE, FAULT_NO_BARRIER, FAULT_DIVERGENT, FAULT_DEADLOCK, FAULT_LOCKSTEP };

struct atomic_results {
    double d;
    unsigned long long u64;
    float f;
    int i, most, least;
    unsigned bits, last, cas;
};

void test_axpy(int n, float a, const float *x, float *y, cudaStream_t s);
void test_fill(int *out, int n, int value, cudaStream_t s);
void test_sum(const float *x, int n, float *out, int block, test_fault fault, cudaStream_t s);
void test_warp(int *out, cudaStream_t s);                    // 8 answers of every lane, 40 threads
void test_atomics(atomic_results *out, int n, cudaStream_t s);
void test_half(const float *x, float *out, int n, cudaStream_t s);
void test_limits(int block, int shared_bytes, int grid, cudaStream_t s);
void test_raise_shared(int bytes);
void test_overrun(float *x, int index, cudaStream_t s);
