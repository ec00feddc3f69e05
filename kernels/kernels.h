/*
 * The kernel floor's contract: what the runtime hands to a kernel, and the tables of kernels.
 *
 * Kernels see plain views: no reference counts, no ownership, no I/O. They validate index data (and only that);
 * shapes, dtypes and devices were checked by the runtime. A kernel never writes through an input view and never
 * allocates what outlives the call.
 */
#ifndef LUDA_KERNELS_H
#define LUDA_KERNELS_H

#include "luda.h"

/* One operand. Strides count elements and may be 0 (a broadcast input) or negative. */
typedef struct luda_operand {
    void *data;
    int32_t dtype; /* enum luda_dtype */
    int32_t ndim;
    int64_t numel;
    int64_t shape[LUDA_MAX_DIMS];
    int64_t stride[LUDA_MAX_DIMS];
} luda_operand;

/* One call. Inputs that a row calls optional and the user left out have data == NULL and numel == -1. */
typedef struct luda_call {
    const luda_operand *in;
    luda_operand *out;
    int32_t nin, nout;
    int32_t op; /* enum luda_op */
    const luda_attrs *attrs;
    int32_t accumulate; /* rows with that fact: the result is added to the output instead of replacing it */
    void *stream; /* of the device; NULL on the CPU */
    /* Where a kernel puts the text of a failure (bad index, no memory); at least 256 bytes. */
    char *message;
} luda_call;

/* Runs one operator. On failure `message` is written and outputs hold no promise. */
typedef luda_status (*luda_kernel)(const luda_call *call);

/*
 * kernels[op][dtype]: NULL where the device does not support the pair. The dtype is that of the first input after
 * promotion (the first *value* input where the row takes a mask first; the output where there is no input).
 */
typedef struct luda_kernel_table {
    const char *name; /* "baseline", "v3", "v4", "cuda" */
    luda_kernel kernels[LUDA_OP_COUNT][LUDA_DTYPE_COUNT];
} luda_kernel_table;

/*
 * One step of an optimizer over one parameter, of a gradient report, of a fill or an addition: work that is not a row
 * has function pointers of its own, in kernels/optim.h, reached through the device.
 */

/* The CPU's table for this processor; LUDA_SIMD=baseline|v3|v4 lowers it. */
const luda_kernel_table *luda__cpu_kernels(void);

/*
 * Level `i` that was built and that this processor has, 0 being the baseline. What it does not make itself is that of the
 * levels below. 0: there is none.
 */
int luda__cpu_level(int i, luda_kernel_table *table);

/* --- The worker pool (kernels/cpu/pool/pool.c) --- */

/*
 * Runs fn(arg, slab) for slab = 0 .. slabs-1 on the calling thread and up to luda_threads()-1 workers, and returns when all
 * are done. The number of slabs must depend on sizes only, never on the number of threads, so that results do not.
 * Inside a slab nested calls run on the calling thread alone.
 */
void luda__parallel(int64_t slabs, void (*fn)(void *arg, int64_t slab), void *arg);

/* Scratch memory of the calling thread, at least `bytes`, valid until its next call in this thread; NULL: no memory. */
void *luda__scratch(size_t bytes);

/* Rank threads of one process divide the workers: `ranks` threads will call from now on (1 at start). */
void luda__pool_ranks(int ranks);

/* --- Philox 4x32-10 (Salmon et al., SC 2011), shared by all devices --- */

/* How many counters a draw of numel elements by this operator uses. */
int64_t luda__random_blocks(luda_op op, int64_t numel);

/* How functions that devices share are declared; CUDA's sources define it before. */
#ifndef LUDA_SHARED
#define LUDA_SHARED static inline
#endif

/* One of the ten rounds: c is four words of state, k the round's key. */
LUDA_SHARED void luda__philox_round(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3, uint32_t k0, uint32_t k1)
{
    uint64_t p0 = (uint64_t)0xD2511F53u * *c0, p1 = (uint64_t)0xCD9E8D57u * *c2;
    *c0 = (uint32_t)(p1 >> 32) ^ *c1 ^ k0;
    *c2 = (uint32_t)(p0 >> 32) ^ *c3 ^ k1;
    *c1 = (uint32_t)p1;
    *c3 = (uint32_t)p0;
}

/* Four 32-bit numbers of block `counter` under `seed`. */
LUDA_SHARED void luda__philox(uint64_t seed, uint64_t counter, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    out[0] = (uint32_t)counter;
    out[1] = (uint32_t)(counter >> 32);
    out[2] = out[3] = 0;
    for (int round = 0; round < 10; round++) {
        luda__philox_round(&out[0], &out[1], &out[2], &out[3], k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

#endif
