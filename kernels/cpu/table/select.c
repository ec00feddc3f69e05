/* Which of the kernel tables this processor runs: the highest level it has, lowered by LUDA_SIMD. */
#include "kernels/kernels.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern const luda_kernel_table luda_kernel_table_baseline;
extern const luda_kernel_table luda_kernel_table_v3, luda_kernel_table_v4; /* where they are built: LUDA_LEVEL_… */

static luda_kernel_table selected;
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

int luda__cpu_level(int i, luda_kernel_table *table)
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
    if (i >= count)
        return 0;
    *table = *levels[i];
    while (i-- > 0)
        for (int op = 0; op < LUDA_OP_COUNT; op++)
            for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++)
                if (!table->kernels[op][dtype])
                    table->kernels[op][dtype] = levels[i]->kernels[op][dtype];
    return 1;
}

static void select_table(void)
{
    const char *wanted = getenv("LUDA_SIMD");
    luda_kernel_table table;
    for (int i = 0; luda__cpu_level(i, &table); i++) {
        selected = table;
        if (wanted && strcmp(table.name, wanted) == 0)
            return;
    }
}

const luda_kernel_table *luda__cpu_kernels(void)
{
    pthread_once(&once, select_table);
    return &selected;
}

const char *luda_simd(void)
{
    return luda__cpu_kernels()->name;
}
