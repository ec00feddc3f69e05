/*
 * The kernel table of one instruction set. A kernel is a function luda__<operator>_<dtype>_<level>; the declarations are
 * weak, so that a pair for which no family defines one is NULL: "not supported" and "no such function" are one fact.
 */
#include "kernel.h"

#define EACH "table_declare.inc"
#include "each.h"

#define LEVEL_TABLE PASTE2(luda_kernel_table_, LUDA_ISA)
#define LEVEL_TEXT(level) LEVEL_QUOTE(level)
#define LEVEL_QUOTE(level) #level

extern const luda_kernel_table LEVEL_TABLE;

const luda_kernel_table LEVEL_TABLE = {
    .name = LEVEL_TEXT(LUDA_ISA),
    .kernels = {
#define EACH "table_entry.inc"
#include "each.h"
    },
};
