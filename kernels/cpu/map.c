/* Elementwise operators: one function per row of LUDA_MAP and dtype, and where. */
#include "loops.h"
#include "scalar.h"

#ifndef MAP_CLASSES
#define MAP_CLASSES (CLASS_INT | CLASS_BOOL)
#endif
#define EACH_CLASSES MAP_CLASSES
#define EACH "map.inc"
#include "each.h"
