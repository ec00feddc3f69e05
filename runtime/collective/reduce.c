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

/* --- Sums of floats, the gradients of most models: read once and written once, as fast as memory allows --- */

typedef float wide __attribute__((vector_size(32), aligned(4), may_alias));
enum { WIDE = sizeof(wide) / sizeof(float) };
typedef void (*summer)(const void *const *sources, int nsources, void *const *targets, int ntargets, float divisor,
                       size_t offset, int64_t count);

static inline __attribute__((always_inline)) void sum_all(const void *const *sources, int nsources,
                                                          void *const *targets, int ntargets, float divisor,
                                                          size_t offset, int64_t count)
{
#define AT(pointer, type) (*(type *)((char *)(pointer) + offset))
    for (; count >= WIDE; count -= WIDE, offset += sizeof(wide)) {
        wide x = AT(sources[0], wide);
        for (int s = 1; s < nsources; s++)
            x += AT(sources[s], wide);
        if (divisor != 1)
            x /= divisor;
        for (int t = 0; t < ntargets; t++)
            AT(targets[t], wide) = x;
    }
    for (; count > 0; count--, offset += sizeof(float)) {
        float x = AT(sources[0], float);
        for (int s = 1; s < nsources; s++)
            x += AT(sources[s], float);
        if (divisor != 1)
            x /= divisor;
        for (int t = 0; t < ntargets; t++)
            AT(targets[t], float) = x;
    }
#undef AT
}

#define SUMMER(name, target)                                                                                           \
    target static void name(const void *const *sources, int nsources, void *const *targets, int ntargets,              \
                            float divisor, size_t offset, int64_t count)                                               \
    {                                                                                                                  \
        if (nsources == 2 && ntargets == 2)                                                                            \
            sum_all(sources, 2, targets, 2, divisor, offset, count);                                                   \
        else                                                                                                           \
            sum_all(sources, nsources, targets, ntargets, divisor, offset, count);                                     \
    }
SUMMER(sum_plain, )
#if defined(__x86_64__)
SUMMER(sum_avx512, __attribute__((target("avx512f"))))
#endif
#undef SUMMER

static summer best_summer(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return sum_avx512;
#endif
    return sum_plain;
}

/* --- All reductions --- */

enum { BLOCK = 2048, SLAB = 16 * BLOCK }; /* elements: a block's partial sums stay in the first cache */

typedef struct job {
    const luda_reducer *reducer;
    luda_reduction reduction;
    const void *const *sources;
    void *const *targets;
    int nsources, ntargets, width;
    summer sum; /* or NULL */
    int64_t count;
} job;

static void reduce_slab(void *arg, int64_t slab)
{
    const job *j = arg;
    double partial[BLOCK]; /* of any compute type */
    int64_t end = smaller(j->count, (slab + 1) * SLAB);
    int divisor = j->reduction == LUDA_REDUCE_MEAN ? j->nsources : 1;
    if (j->sum) {
        j->sum(j->sources, j->nsources, j->targets, j->ntargets, (float)divisor, (size_t)(slab * SLAB * j->width),
               end - slab * SLAB);
        return;
    }
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
    job j = { luda__reducer(dtype), reduction, sources, targets, nsources, ntargets, luda_dtype_size(dtype), NULL, count };
    if (dtype == LUDA_F32 && (reduction == LUDA_REDUCE_SUM || reduction == LUDA_REDUCE_MEAN))
        j.sum = best_summer();
    if (count <= SLAB)
        reduce_slab(&j, 0);
    else
        luda__parallel(ceil_div(count, SLAB), reduce_slab, &j);
}
