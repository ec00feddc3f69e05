/* Turning small blocks of floats, for turn.inc. */
#ifndef LUDA_TURN_H
#define LUDA_TURN_H

#include "gemm.h"

enum { TURN = 64 }; /* elements of a row that are turned at a time */

/* Four rows of four floats, transposed into rows `width` apart. */
typedef float four_floats __attribute__((vector_size(16)));
INLINE void turn_4x4(const float *a, const float *b, const float *c, const float *d, float *to,
                     int64_t width)
{
    four_floats row[4], ab, cd, out[4];
    memcpy(&row[0], a, sizeof row[0]);
    memcpy(&row[1], b, sizeof row[1]);
    memcpy(&row[2], c, sizeof row[2]);
    memcpy(&row[3], d, sizeof row[3]);
    ab = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
    cd = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
    out[0] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    out[1] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    ab = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
    cd = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
    out[2] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    out[3] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    for (int i = 0; i < 4; i++)
        memcpy(to + i * width, &out[i], sizeof out[i]);
}

#endif
