/* Elementwise operators on floating types. */
#include "map.cuh"

#define EACH_CLASSES CLASS_FLOAT
#define EACH "../cuda/map.inc"
#include "../cpu/each.h"
