/* max, min along a dimension with positions, and the rows that use such positions. */
#include "rows.cuh"

/* --- max, min: NaN wins, the first of equals --- */

template <class C>
struct candidate {
    C value;
    int64_t position; /* -1: none */
};

template <class C, bool LARGEST>
struct better {
    __device__ static bool beats(C a, C b) { return (LARGEST ? a > b : a < b) || (a != a && b == b); }
    __device__ candidate<C> operator()(candidate<C> a, candidate<C> b) const
    {
        if (a.position < 0 || b.position < 0)
            return a.position < 0 ? b : a;
        if (beats(a.value, b.value) || beats(b.value, a.value))
            return beats(a.value, b.value) ? a : b;
        return a.position < b.position ? a : b;
    }
};

template <class T, bool LARGEST>
__global__ void find_extremum(row_plan<3> r, T *values, int64_t *positions, const T *x, int base)
{
    typedef typename computed_as<T>::type C;
    __shared__ candidate<C> shared[BLOCK];
    int64_t k = r.t.first_row(), at[3] = { 0, 0, 0 };
    bool inside = k < r.kept.numel;
    candidate<C> best = { 0, -1 };
    if (inside)
        r.kept.locate(k, at);
    for (int64_t j = r.t.lane(); inside && j < r.n; j += r.t.lanes)
        best = better<C, LARGEST>()(best, { load(x[at[2] + j * r.stride[2]]), j });
    best = combine_lanes(r.t, shared, best, better<C, LARGEST>());
    if (!inside || r.t.lane() != 0)
        return;
    values[at[0]] = x[at[2] + best.position * r.stride[2]];
    positions[at[1]] = best.position + base;
}

/* A result without `dim` as an operand of the full shape, repeated along it. */
static luda_operand along(const luda_operand *kept, const luda_operand *full, int dim)
{
    luda_operand wide = *full;
    bool keepdim = kept->ndim == full->ndim;
    wide.data = kept->data;
    wide.dtype = kept->dtype;
    for (int d = 0; d < full->ndim; d++)
        wide.stride[d] = d == dim ? 0 : kept->stride[keepdim || d < dim ? d : d - 1];
    return wide;
}

template <class T, bool LARGEST>
static luda_status launch_extremum(const luda_call *call)
{
    const struct luda_extremum_attrs *a = &call->attrs->extremum;
    const luda_operand *x = &call->in[0];
    luda_operand values = along(&call->out[0], x, a->dim), positions = along(&call->out[1], x, a->dim);
    row_plan<3> r = plan_rows<3>({ &values, &positions, x }, a->dim);
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((find_extremum<T, LARGEST>), r.t.blocks(r.kept.numel), BLOCK, 0, stream->stream, r,
                static_cast<T *>(call->out[0].data), static_cast<int64_t *>(call->out[1].data), static_cast<const T *>(x->data),
                a->base);
    return launched(call);
}

/* --- take_along, max_backward: one element a row, at the row's position --- */

struct positions_of {
    int op, base;
    int64_t size, stride; /* of the dimension on the full side */
    luda_cuda_fault *fault;
};

/* kept: one element a row, positions, the full side. PUT: to the full side, else from it. */
template <class T, bool PUT>
__global__ void move_along(space<3> kept, positions_of p, T *few, const int64_t *positions, T *full)
{
    for (int64_t i = first_element(); i < kept.numel; i += step()) {
        int64_t at[3];
        kept.locate(i, at);
        int64_t position = positions[at[1]] - p.base;
        if (position < 0 || position >= p.size) {
            report(p.fault, FAULT_POSITION, p.op, positions[at[1]], p.size, p.base);
            continue;
        }
        if (PUT)
            full[at[2] + position * p.stride] = few[at[0]];
        else
            few[at[0]] = full[at[2] + position * p.stride];
    }
}

template <class T, bool PUT>
static luda_status launch_along(const luda_call *call, luda_cuda_stream *stream, const luda_operand *few,
                                const luda_operand *full, int dim, int base)
{
    luda_operand one = along(few, full, dim), at = along(&call->in[1], full, dim);
    row_plan<3> r = plan_rows<3>({ &one, &at, full }, dim);
    positions_of p = { call->op, base, r.n, r.stride[2], stream->fault };
    if (few->numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((move_along<T, PUT>), blocks_for(r.kept.numel), BLOCK, 0, stream->stream, r.kept, p, static_cast<T *>(few->data),
                static_cast<const int64_t *>(call->in[1].data), static_cast<T *>(full->data));
    return launched(call);
}

template <class T>
static luda_status take_along(const luda_call *call)
{
    const struct luda_extremum_attrs *a = &call->attrs->extremum;
    luda_cuda_stream *stream = stream_of(call);
    return stream ? launch_along<T, false>(call, stream, &call->out[0], &call->in[0], a->dim, a->base) : LUDA_ECUDA;
}

template <class T>
static luda_status max_backward(const luda_call *call)
{
    const struct luda_extremum_backward_attrs *a = &call->attrs->extremum_backward;
    const luda_operand *out = &call->out[0];
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (out->numel == 0)
        return LUDA_OK;
    cudaMemsetAsync(out->data, 0, static_cast<size_t>(out->numel) * item_size(out->dtype), stream->stream);
    luda_status status = launched(call);
    return status == LUDA_OK ? launch_along<T, true>(call, stream, &call->in[0], out, a->dim, a->base) : status;
}

#define EACH "../cuda/extremum.inc"
#include "../cpu/each.h"
