/* softmax, log_softmax and softmax_backward along any dimension. */
#include "rows.h"
#include "kernels/cpu/scalar.h"

/* Rows of a group start a cache line apart from where a power of two would put them. */
static inline int64_t row_pitch(const rows *r)
{
    return r->n + 16;
}

#define EACH_CLASSES CLASS_FLOAT
#define EACH "kernels/cpu/rows/softmax.inc"
#include "kernels/cpu/each.h"
