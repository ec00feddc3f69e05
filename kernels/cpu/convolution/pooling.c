/* max_pool2d with positions, avg_pool2d, and their gradients: plane by plane, so that sums have one order. */
#include "pooling.h"
#include "kernels/cpu/index/positions.h"

/* NaN beats all but NaN; for integers the test vanishes. */
#define BEATS(a, b) ((a) > (b) || ((a) != (a) && (b) == (b)))
#define EACH "kernels/cpu/convolution/pooling_max.inc"
#include "kernels/cpu/each.h"

#define EACH_CLASSES CLASS_FLOAT
#define EACH "kernels/cpu/convolution/pooling_mean.inc"
#include "kernels/cpu/each.h"
