/* full and arange. */
#include "loops.h"

#define EACH "kernels/cpu/elementwise/create.inc"
#include "kernels/cpu/each.h"
