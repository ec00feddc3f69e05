/* full and arange. */
#include "loops.h"

#define EACH "create.inc"
#include "each.h"
