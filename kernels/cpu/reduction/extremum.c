/* max and min with positions. */
#include "along.h"

#include "kernels/cpu/scalar.h"

enum { COLUMNS = 32, LANES = 16 };

#define EACH "kernels/cpu/reduction/extremum.inc"
#include "kernels/cpu/each.h"
