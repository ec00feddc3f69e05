/* Inside of the pool that these kernels share: scratch memory by use, so that nested helpers do not collide. */
#ifndef LUDA_POOL_H
#define LUDA_POOL_H

#include "kernels/kernels.h"

typedef enum scratch_use {
    SCRATCH_SLAB, /* what luda__scratch returns: the slab that runs */
    SCRATCH_GEMM, /* packed panels inside a matrix product */
    SCRATCH_BIAS, /* a bias in the compute type; belongs to the thread that starts the product */
    SCRATCH_PACKED, /* operands packed for all slabs of a product; belongs to the thread that starts it */
    SCRATCH_LIBRARY, /* layouts and work space of a library's primitive */
    SCRATCH_COUNT
} scratch_use;

void *luda__scratch_for(scratch_use use, size_t bytes);

#endif
