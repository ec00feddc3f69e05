/* The floating half of map.c, compiled beside it. */
#define MAP_CLASSES CLASS_FLOAT
#include "map.c"
