/* `to`: conversion between any two element types, by the rules of convert.h. */
#include "kernels/cpu/halves.h"

#define EACH "kernels/cpu/elementwise/cast.inc"
#include "kernels/cpu/each.h"
