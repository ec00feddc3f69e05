/*
 * The kernel table of one instruction set or device. A kernel is a function luda__<operator>_<dtype>_<level>; which
 * pairs there are follows from the types column. A device or level that lacks some of them sets KERNEL_LINKAGE to weak:
 * an entry without a function is then NULL, "not supported" or left to the level below.
 */
#include "kernels/cpu/kernel.h"

#undef LUDA_CLASSES
#define LUDA_CLASSES CLASS_ANY

#ifndef KERNEL_LINKAGE
#define KERNEL_LINKAGE
#endif

#define EACH "kernels/cpu/table/table_declare.inc"
#include "kernels/cpu/each.h"

#define LEVEL_TABLE PASTE2(luda_kernel_table_, LUDA_ISA)
#define LEVEL_TEXT(level) LEVEL_QUOTE(level)
#define LEVEL_QUOTE(level) #level

extern const luda_kernel_table LEVEL_TABLE;

const luda_kernel_table LEVEL_TABLE = {
    .name = LEVEL_TEXT(LUDA_ISA),
    .kernels = {
#define EACH "kernels/cpu/table/table_entry.inc"
#include "kernels/cpu/each.h"
    },
};
