/* Elementwise operators on integers and booleans. */
#include "map.cuh"

#define EACH_CLASSES (CLASS_INT | CLASS_BOOL)
#define EACH "../cuda/map.inc"
#include "../cpu/each.h"
