/* Work on rows: lines of the elements along one dimension, a team of lanes for each. */
#ifndef LUDA_CUDA_ROWS_H
#define LUDA_CUDA_ROWS_H

#include "scalar.cuh"
#include "team.cuh"

template <int N>
struct row_plan {
    tile t;
    space<N> kept; /* all dimensions but one */
    int64_t n;     /* elements of a row */
    int64_t stride[N];
};

/* Operands of one shape; a 0-d operand is one row of one element. */
template <int N>
row_plan<N> plan_rows(const luda_operand *const (&operands)[N], int dim)
{
    row_plan<N> r = {};
    const luda_operand *first = operands[0];
    int64_t near = 0;
    r.kept.numel = r.n = 1;
    for (int d = 0; d < first->ndim; d++) {
        int64_t stride[N];
        for (int o = 0; o < N; o++)
            stride[o] = operands[o]->stride[d];
        if (d != dim) {
            r.kept.add(first->shape[d], stride);
            continue;
        }
        r.n = first->shape[d];
        for (int o = 0; o < N; o++)
            r.stride[o] = stride[o];
    }
    if (r.kept.ndim > 0)
        near = distance(r.kept.stride[N - 1][r.kept.ndim - 1]);
    r.t = plan_tile(r.n, r.kept.numel, near != 0 && near < distance(r.stride[N - 1]));
    return r;
}

template <class C>
struct take_larger {
    __device__ C operator()(C a, C b) const { return MAXIMUM(a, b); }
};

/* The largest element of a row, in every lane. `x` is NULL for lanes beyond the last row. */
template <class T, class C>
__device__ C row_top(const tile &t, C *shared, const T *x, int64_t n, int64_t stride)
{
    C top = -static_cast<C>(INFINITY);
    for (int64_t j = t.lane(); x && j < n; j += t.lanes)
        top = MAXIMUM(load(x[j * stride]), top);
    return combine_lanes(t, shared, top, take_larger<C>());
}

/* The sum of exp(x - top), in every lane. */
template <class T, class C>
__device__ double row_exp_sum(const tile &t, double *shared, const T *x, int64_t n, int64_t stride, C top)
{
    double sum = 0;
    for (int64_t j = t.lane(); x && j < n; j += t.lanes)
        sum += static_cast<double>(exp(load(x[j * stride]) - top));
    return combine_lanes(t, shared, sum, add_up<double>());
}

#endif
