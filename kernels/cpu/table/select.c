/* Which of the kernel tables this processor runs: the highest level it has, lowered by LUDA_SIMD. */
#include "kernels/kernels.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern const luda_kernel_table luda_kernel_table_baseline;
extern const luda_kernel_table luda_kernel_table_v3, luda_kernel_table_v4; /* where they are built: LUDA_LEVEL_… */

static const luda_kernel_table *selected;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#ifdef LUDA_LEVEL_v3
static int has_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
#endif

#ifdef LUDA_LEVEL_v4
static int has_v4(void)
{
    return __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

static void select_table(void)
{
    const luda_kernel_table *levels[3] = { &luda_kernel_table_baseline };
    int count = 1;
#ifdef LUDA_LEVEL_v3
    if (has_v3())
        levels[count++] = &luda_kernel_table_v3;
#endif
#ifdef LUDA_LEVEL_v4
    if (has_v4())
        levels[count++] = &luda_kernel_table_v4;
#endif
    const char *wanted = getenv("LUDA_SIMD");
    selected = levels[count - 1];
    for (int i = 0; wanted && i < count; i++)
        if (strcmp(levels[i]->name, wanted) == 0)
            selected = levels[i];
}

const luda_kernel_table *luda__cpu_kernels(void)
{
    pthread_once(&once, select_table);
    return selected;
}

const char *luda_simd(void)
{
    return luda__cpu_kernels()->name;
}
