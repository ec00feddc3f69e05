/* Tensors in memory that ranks have in common. Rank threads share all memory as it is. */
#include "collective.h"

luda_status luda_comm_empty(luda_comm *comm, luda_dtype dtype, int ndim, const int64_t *shape,
                            const luda_comm_options *options, luda_tensor **out)
{
    if (!comm)
        return luda__fail(LUDA_EINVAL, "empty: no communicator");
    return luda_tensor_new(dtype, (luda_device){ LUDA_CPU, 0 }, ndim, shape, out);
}
