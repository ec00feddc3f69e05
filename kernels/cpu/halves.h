/*
 * Lines of halves in float and back. Kernels convert a block that stays in the first cache and then run the loops of
 * f32 on it, so that those exist once.
 */
#ifndef LUDA_HALVES_H
#define LUDA_HALVES_H

#include "kernels/cpu/elementwise/loops.h"

/* Elements a block. */
enum { HALVES = 512 };

void LEVEL(luda__load_line_f16)(const uint16_t *x, int64_t stride, int64_t n, float *to);
void LEVEL(luda__load_line_bf16)(const uint16_t *x, int64_t stride, int64_t n, float *to);
void LEVEL(luda__store_line_f16)(const float *x, int64_t n, int64_t stride, uint16_t *to);
void LEVEL(luda__store_line_bf16)(const float *x, int64_t n, int64_t stride, uint16_t *to);

/*
 * A run whose inputs are halves by a function for f32. The output is of the same halves, or of elements of `size` bytes
 * that the function writes itself.
 */
void LEVEL(luda__run_f16)(const loop_run *run, int inputs, size_t size, loop_function f32);
void LEVEL(luda__run_bf16)(const loop_run *run, int inputs, size_t size, loop_function f32);

#endif
