/* Vectors of parameters beside activations. */
#ifndef LUDA_CUDA_AFFINE_CUH
#define LUDA_CUDA_AFFINE_CUH

#include "scalar.cuh"

/* A weight or bias: the input's dtype, or f32. NULL where it is absent. */
struct affine {
    const void *data;
    int64_t stride;
    bool single; /* f32 */
};

static affine affine_of(const luda_operand *o)
{
    return o ? affine{ o->data, o->stride[0], o->dtype == LUDA_F32 } : affine{ NULL, 0, false };
}

template <class T>
__device__ typename computed_as<T>::type affine_at(const affine &a, int64_t j)
{
    if (a.single)
        return static_cast<const float *>(a.data)[j * a.stride];
    return load(static_cast<const T *>(a.data)[j * a.stride]);
}

#endif
