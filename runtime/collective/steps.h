/* Algorithms as step lists over a transport's messages. A step is (number, peer, piece of memory); sends never block. */
#ifndef LUDA_STEPS_H
#define LUDA_STEPS_H

#include "collective.h"

/* The data phase of one call. Sticky: after the first failure nothing more is done. */
typedef struct luda_steps {
    luda_collective_run *run;
    const luda_collective *what;
    int rank, size, operation;
    luda_dtype dtype;
    luda_reduction reduction;
    int64_t width;   /* bytes of an element */
    int64_t numel;   /* of the joined tensor */
    luda_status status;
    void *scratch[4]; /* freed at the end, when nothing is on its way any more */
    int scratches;
} luda_steps;

void luda__give(luda_steps *s, int to, uint32_t step, const void *data, int64_t bytes);
void luda__expect(luda_steps *s, int from, uint32_t step, void *memory, int64_t bytes);
/* Waits for everything expected up to a step; false after a failure. */
bool luda__arrived(luda_steps *s, uint32_t step);
/* Memory until the end of the call; NULL after a failure. */
void *luda__steps_scratch(luda_steps *s, int64_t bytes);

/* The reducing algorithms: from `in` (numel elements) to `out` on every rank, or on `root` only (-1: every rank). */
void luda__ring_reduce(luda_steps *s, const void *in, void *out, int root);
void luda__tree_reduce(luda_steps *s, const void *in, void *out, int root);
void luda__halving_reduce(luda_steps *s, const void *in, void *out, int root);
void luda__centralized_reduce(luda_steps *s, const void *in, void *out, int root);
/* From the root's `in` to everybody's `out`, down a binary tree. */
void luda__tree_broadcast(luda_steps *s, void *data, int64_t bytes, int root, uint32_t first_step);

#endif
