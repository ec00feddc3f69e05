/*
 * The loop that every contestant of the section `collectives` runs: each rank writes its whole buffer, all of them sum it
 * in place, each reads it whole. What is reported is the time in the sum, of the slowest rank; a small one costs less than a
 * look at the clock, and there it is what the sum adds to a loop that only writes and reads. Prints {"bytes": of a buffer,
 * "seconds": of one sum} for each size. Plain C without LUDA: the MPI program includes it too.
 */
#ifndef LUDA_CONTEST_H
#define LUDA_CONTEST_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct contestant {
    int rank, size;
    void *state;
    float *(*buffer)(struct contestant *c, size_t count);
    void (*sum)(struct contestant *c, float *x, size_t count); /* in place */
    double (*most)(struct contestant *c, double mine);         /* the largest of all ranks; also keeps them together */
    int sums_nothing; /* only moves bytes */
} contestant;

typedef float contest_vector __attribute__((vector_size(64), aligned(4), may_alias));
static volatile float contest_sink;

static inline double contest_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void contest_write(float *x, size_t count, float value)
{
    contest_vector v = value - (contest_vector){ 0 };
    size_t i = 0;
    for (; i + 16 <= count; i += 16)
        *(contest_vector *)(x + i) = v;
    for (; i < count; i++)
        x[i] = value;
    __asm__ volatile("" : : : "memory");
}

static inline void contest_read(const float *x, size_t count)
{
    contest_vector s[4] = { { 0 }, { 0 }, { 0 }, { 0 } };
    float rest = 0;
    size_t i = 0;
    for (; i + 64 <= count; i += 64)
        for (int j = 0; j < 4; j++)
            s[j] += *(const contest_vector *)(x + i + 16 * j);
    for (; i < count; i++)
        rest += x[i];
    s[0] += (s[1] + s[2]) + s[3];
    contest_sink = s[0][0] + rest;
}

/* Sums of one sample, so that all sizes take about as long. */
static inline int contest_repeats(size_t bytes, double scale)
{
    double n = scale * 4e7 / (double)(bytes + 20000);
    return n < 1 ? 1 : (int)n;
}

enum { CONTEST_SMALL = 256 }; /* floats */

static inline double contest_loop(contestant *c, float *x, size_t count, int repeats, int with)
{
    double start = contest_now(), inside = 0;
    for (int i = 0; i < repeats; i++) {
        contest_write(x, count, (float)(c->rank + 1));
        if (with && count > CONTEST_SMALL) {
            double before = contest_now();
            c->sum(c, x, count);
            inside += contest_now() - before;
        } else if (with) {
            c->sum(c, x, count);
        }
        contest_read(x, count);
    }
    return (count > CONTEST_SMALL ? inside : contest_now() - start) / repeats;
}

static inline int contest_right(const contestant *c, const float *x, size_t count)
{
    float all = (float)(c->size * (c->size + 1) / 2);
    for (size_t i = 0; i < count; i++)
        if (x[i] != all)
            return c->sums_nothing;
    return 1;
}

/* One line a size; exits where an element of the last sum is wrong. */
static inline void contest_run(contestant *c, double scale, int sizes, char *const *bytes)
{
    for (int k = 0; k < sizes; k++) {
        size_t count = strtoull(bytes[k], NULL, 10) / sizeof(float);
        int repeats = contest_repeats(count * sizeof(float), scale);
        float *x = c->buffer(c, count);
        double with, without;
        contest_loop(c, x, count, repeats < 8 ? 1 : repeats / 8, 1);
        c->most(c, 0);
        without = c->most(c, contest_loop(c, x, count, repeats, 0));
        with = c->most(c, contest_loop(c, x, count, repeats, 1));
        if (!contest_right(c, x, count)) {
            fprintf(stderr, "rank %d: the sum of %zu floats is wrong\n", c->rank, count);
            exit(1);
        }
        if (c->rank == 0) {
            printf("{\"bytes\":%zu,\"seconds\":%.9g}\n", count * sizeof(float), with - without);
            fflush(stdout);
        }
    }
}

#endif
