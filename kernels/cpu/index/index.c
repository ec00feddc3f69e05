/* index_select and its backward for each dtype: lines added up in double (integers wrap) and rounded once. */
#include "slices.h"

#define EACH "kernels/cpu/index/index.inc"
#include "kernels/cpu/each.h"
