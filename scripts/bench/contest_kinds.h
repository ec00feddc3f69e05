/* Between contest.c and the contestants that it starts. */
#ifndef LUDA_CONTEST_KINDS_H
#define LUDA_CONTEST_KINDS_H

#include "contest.h"

enum { CONTEST_RANKS = 16 };

typedef struct contest_kind {
    const char *name;
    int threads;                            /* ranks are threads of one process */
    void (*prepare)(int ranks, size_t most); /* once, before there are ranks; most: bytes of the largest buffer */
    void (*start)(contestant *c);           /* in each rank: fills what contest.h calls */
    void (*end)(contestant *c);             /* in each rank */
} contest_kind;

extern const contest_kind contest_sum, contest_sum_threads, contest_exchange;
extern const contest_kind contest_threads, contest_common, contest_private, contest_tcp;

/* Memory that processes share from here on, in huge pages where the kernel has them; exits where there is none. */
void *contest_shared(size_t bytes);

#endif
