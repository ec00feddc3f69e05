/* The multi-tensor kernels of the level that the kernel table was chosen for. */
#include "kernels/optim.h"

#include <string.h>

extern const luda_optim_kernels luda_optim_kernels_baseline;
extern const luda_optim_kernels luda_optim_kernels_v3, luda_optim_kernels_v4; /* where they are built: LUDA_LEVEL_… */

const luda_optim_kernels *luda__cpu_optim(void)
{
    const char *level = luda__cpu_kernels()->name;
#ifdef LUDA_LEVEL_v4
    if (strcmp(level, "v4") == 0)
        return &luda_optim_kernels_v4;
#endif
#ifdef LUDA_LEVEL_v3
    if (strcmp(level, "v3") == 0)
        return &luda_optim_kernels_v3;
#endif
    return strcmp(level, "baseline") == 0 ? &luda_optim_kernels_baseline : NULL;
}
