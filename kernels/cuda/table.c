/* The kernel table of CUDA, made as those of the CPU: a row without a kernel here is NULL, "not supported". */
#define LUDA_ISA cuda
#define KERNEL_LINKAGE __attribute__((weak, visibility("hidden")))
#include "kernels/cpu/table/table.c"
