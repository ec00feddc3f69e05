/* Elements moved as they are, by their size in bytes. */
#ifndef LUDA_CUDA_MOVE_H
#define LUDA_CUDA_MOVE_H

#include "cuda.h"

/* Copies one operand to another of the same shape and dtype, any strides. */
luda_status luda__cuda_place(const luda_call *call, luda_cuda_stream *stream, const luda_operand *to, const luda_operand *from);

#endif
