/* Lines of any element type as doubles (of the floating types) or as int64_t (of the others). */
#ifndef LUDA_WIDE_H
#define LUDA_WIDE_H

#include "kernels/cpu/kernel.h"

/* `offset` and `stride` count elements of `line`. Storing rounds once; integers wrap. */
typedef struct wide_line {
    void (*load)(const void *line, int64_t offset, int64_t stride, int64_t n, void *wide);
    void (*store)(const void *wide, void *line, int64_t offset, int64_t stride, int64_t n);
    int is_float;
} wide_line;

extern const wide_line luda__wide_line[LUDA_DTYPE_COUNT];

#endif
