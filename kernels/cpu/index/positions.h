/* Index data: positions that were checked before anything is read or written through them. */
#ifndef LUDA_POSITIONS_H
#define LUDA_POSITIONS_H

#include "kernels/cpu/elementwise/loops.h"

/* Every position less `base` must lie in 0 .. size-1, or equal *ignored where that is given. */
luda_status luda__check_positions(const luda_call *call, const luda_operand *positions, int32_t base, int64_t size,
                                  const int64_t *ignored);

#endif
