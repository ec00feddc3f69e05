/* Reductions of plain arrays across ranks: always in rank order, so that no slicing and no thread count shows. */
#include "reduce.h"

#include "../../kernels/cpu/kernel.h"

#define WRAP C
#define UNORDERED(v) ((v) != (v))
#define EACH_CLASSES CLASS_FLOAT
#define EACH "runtime/collective/reduce.inc"
#include "../../kernels/cpu/each.h"
#undef WRAP
#undef UNORDERED
#define WRAP uint64_t
#define UNORDERED(v) 0
#define EACH_CLASSES (CLASS_INT | CLASS_BOOL)
#define EACH "runtime/collective/reduce.inc"
#include "../../kernels/cpu/each.h"
#undef WRAP
#undef UNORDERED

const luda_reducer *luda__reducer(luda_dtype dtype)
{
    static const luda_reducer *const reducers[] = {
#define LUDA_DTYPE(suffix, ...) &reducer_##suffix,
#include "../../kernels/dtypes.def"
    };
    return reducers[dtype];
}

enum { BLOCK = 2048, SLAB = 16 * BLOCK }; /* elements: a block's partial sums stay in the first cache */

typedef struct job {
    const luda_reducer *reducer;
    luda_reduction reduction;
    const void *const *sources;
    void *const *targets;
    int nsources, ntargets, width;
    int64_t count;
} job;

static void reduce_slab(void *arg, int64_t slab)
{
    const job *j = arg;
    double partial[BLOCK]; /* of any compute type */
    int64_t end = smaller(j->count, (slab + 1) * SLAB);
    int divisor = j->reduction == LUDA_REDUCE_MEAN ? j->nsources : 1;
    for (int64_t at = slab * SLAB; at < end; at += BLOCK) {
        int64_t n = smaller(BLOCK, end - at);
        size_t offset = (size_t)(at * j->width), bytes = (size_t)(n * j->width);
        j->reducer->load((const char *)j->sources[0] + offset, partial, n);
        for (int s = 1; s < j->nsources; s++)
            j->reducer->combine[j->reduction](partial, (const char *)j->sources[s] + offset, n);
        j->reducer->store(partial, divisor, (char *)j->targets[0] + offset, n);
        for (int t = 1; t < j->ntargets; t++)
            memcpy((char *)j->targets[t] + offset, (char *)j->targets[0] + offset, bytes);
    }
}

void luda__reduce_ranks(luda_dtype dtype, luda_reduction reduction, const void *const *sources, int nsources,
                        void *const *targets, int ntargets, int64_t count)
{
    job j = { luda__reducer(dtype), reduction, sources, targets, nsources, ntargets, luda_dtype_size(dtype), count };
    if (count <= SLAB)
        reduce_slab(&j, 0);
    else
        luda__parallel(ceil_div(count, SLAB), reduce_slab, &j);
}
