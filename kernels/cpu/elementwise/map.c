/* Elementwise operators: one function per row of LUDA_MAP and dtype, and where. */
#include "loops.h"
#include "kernels/cpu/halves.h"
#include "kernels/cpu/scalar.h"

#ifndef MAP_CLASSES
#define MAP_CLASSES (CLASS_INT | CLASS_BOOL)
#undef LUDA_CLASSES /* made wherever this file is compiled */
#define LUDA_CLASSES CLASS_ANY
#endif
#define EACH_CLASSES MAP_CLASSES
#define EACH "kernels/cpu/elementwise/map.inc"
#include "kernels/cpu/each.h"
