/* See wide.h. */
#include "wide.h"

#define EACH "kernels/cpu/index/wide.inc"
#include "kernels/cpu/each.h"

const wide_line luda__wide_line[LUDA_DTYPE_COUNT] = {
#define LUDA_DTYPE(suffix, NAME, stored, compute, class, ...)                                                          \
    [LUDA_##NAME] = { load_line_##suffix, store_line_##suffix, CLASS_##class == CLASS_FLOAT },
#include "kernels/dtypes.def"
};
