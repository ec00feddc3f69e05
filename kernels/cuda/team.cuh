/*
 * Teams: a block is cut into rows, and the lanes of a row combine their values through shared memory in a fixed tree.
 * Neighbouring threads are lanes of one row where the row's elements lie side by side, else neighbouring rows.
 */
#ifndef LUDA_CUDA_TEAM_H
#define LUDA_CUDA_TEAM_H

#include "cuda.h"

struct tile {
    int lanes, rows; /* powers of two; their product is the block */
    bool across;     /* neighbouring threads are rows */

    __device__ int lane() const { return across ? threadIdx.x / rows : threadIdx.x % lanes; }
    __device__ int row() const { return across ? threadIdx.x % rows : threadIdx.x / lanes; }
    __device__ int spacing() const { return across ? rows : 1; }
    __device__ int64_t first_row() const { return static_cast<int64_t>(blockIdx.x) * rows + row(); }
    unsigned blocks(int64_t all_rows) const { return static_cast<unsigned>((all_rows + rows - 1) / rows); }
};

/* For rows of n elements; `across` where the elements of neighbouring rows lie closer than those of one. */
static inline tile plan_tile(int64_t n, int64_t rows, bool across)
{
    int lanes = 1;
    int most = across && rows >= 32 ? BLOCK / 32 : BLOCK;
    while (lanes < most && lanes < n)
        lanes *= 2;
    return { lanes, BLOCK / lanes, across };
}

/* Every thread of the block calls it with memory for BLOCK values; every lane gets its row's result. */
template <class A, class F>
__device__ A combine_lanes(const tile &t, A *shared, A value, F combine)
{
    int me = static_cast<int>(threadIdx.x), lane = t.lane(), spacing = t.spacing();
    shared[me] = value;
    for (int half = t.lanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half)
            shared[me] = combine(shared[me], shared[me + half * spacing]);
    }
    __syncthreads();
    A result = shared[me - lane * spacing];
    __syncthreads();
    return result;
}

template <class A>
struct add_up {
    __device__ A operator()(A a, A b) const { return a + b; }
};

#endif
