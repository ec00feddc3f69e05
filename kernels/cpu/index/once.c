/* Kernels that gain nothing from an instruction set are compiled once (order.c, scatter.c) and entered from each level. */
#include "kernels/cpu/kernel.h"

#define EACH "kernels/cpu/index/once.inc"
#include "kernels/cpu/each.h"
