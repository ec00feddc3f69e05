/* `to`: conversion between any two element types, by the rules of convert.h. */
#include "loops.h"

#define EACH "cast.inc"
#include "each.h"
