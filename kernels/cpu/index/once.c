/* The entries of kernels that gain nothing from an instruction set (order.c, scatter.c): in the baseline alone. */
#include "kernels/cpu/kernel.h"

#define EACH "kernels/cpu/index/once.inc"
#include "kernels/cpu/each.h"
