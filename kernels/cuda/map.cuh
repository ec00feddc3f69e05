/* Elementwise operators: a functor per row of LUDA_MAP, one kernel template per number of inputs, and their launchers. */
#ifndef LUDA_CUDA_MAP_H
#define LUDA_CUDA_MAP_H

#include "special.cuh"

/* --- The rows --- */

#define ARGUMENTS_1 C x
#define ARGUMENTS_2 C x, C y
#define LUDA_PLAIN(...)
#define LUDA_MAP(name, nin, nout, types, expression, ...)                                                              \
    struct scalar_##name {                                                                                             \
        template <class C>                                                                                             \
        __device__ auto operator()(ARGUMENTS_##nin) const                                                              \
        {                                                                                                              \
            return expression;                                                                                         \
        }                                                                                                              \
    };
#include "../ops.def"
#undef ARGUMENTS_1
#undef ARGUMENTS_2

/* A comparison gives 0 or 1, everything else the input's type. */
template <class F, class T, class R>
__global__ void map_one(space<2> s, R *out, const T *x)
{
    typedef typename computed_as<R>::type C;
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[2];
        s.locate(i, at);
        out[at[0]] = to<R>(static_cast<C>(F()(load(x[at[1]]))));
    }
}

template <class F, class T, class R>
__global__ void map_two(space<3> s, R *out, const T *x, const T *y)
{
    typedef typename computed_as<R>::type C;
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[3];
        s.locate(i, at);
        out[at[0]] = to<R>(static_cast<C>(F()(load(x[at[1]]), load(y[at[2]]))));
    }
}

/* Integers only: a divisor of 0 is reported, and the result there holds no promise. */
template <class T>
__global__ void find_zero(space<1> s, luda_cuda_fault *fault, int op, const T *divisor)
{
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[1];
        s.locate(i, at);
        if (divisor[at[0]] == T(0))
            report(fault, FAULT_DIVISOR, op, 0, 0, 0);
    }
}

template <class T>
luda_status check_divisor(const luda_call *call, luda_cuda_stream *stream)
{
    space<1> s = common_space<1>({ &call->in[1] });
    LUDA_LAUNCH((find_zero<T>), blocks_for(s.numel), BLOCK, 0, stream->stream, s, stream->fault, call->op,
                static_cast<const T *>(call->in[1].data));
    return launched(call);
}

template <class F>
struct divides {
    static const bool value = false;
};
template <>
struct divides<scalar_remainder> {
    static const bool value = true;
};
template <>
struct divides<scalar_floor_divide> {
    static const bool value = true;
};
template <>
struct divides<scalar_fmod> {
    static const bool value = true;
};
template <class T>
struct has_fractions {
    static const bool value = static_cast<typename computed_as<T>::type>(0.5) != 0;
};

template <class F, class T, class R>
luda_status map_1(const luda_call *call)
{
    space<2> s = common_space<2>({ &call->out[0], &call->in[0] });
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (s.numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((map_one<F, T, R>), blocks_for(s.numel), BLOCK, 0, stream->stream, s, static_cast<R *>(call->out[0].data),
                static_cast<const T *>(call->in[0].data));
    return launched(call);
}

template <class F, class T, class R>
luda_status map_2(const luda_call *call)
{
    space<3> s = common_space<3>({ &call->out[0], &call->in[0], &call->in[1] });
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (s.numel == 0)
        return LUDA_OK;
    if constexpr (divides<F>::value && !has_fractions<T>::value) {
        luda_status status = check_divisor<T>(call, stream);
        if (status != LUDA_OK)
            return status;
    }
    LUDA_LAUNCH((map_two<F, T, R>), blocks_for(s.numel), BLOCK, 0, stream->stream, s, static_cast<R *>(call->out[0].data),
                static_cast<const T *>(call->in[0].data), static_cast<const T *>(call->in[1].data));
    return launched(call);
}

#endif
