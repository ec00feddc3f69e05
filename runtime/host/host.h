/* What the sources of libluda_host share. */
#ifndef LUDA_HOST_H
#define LUDA_HOST_H

#include "../luda_lua.h"

#include <stdbool.h>
#include <time.h>

/* Writes the calling thread's message and returns the code. */
luda_status luda__host_fail(luda_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* When so many milliseconds from now have passed, as pthread_cond_timedwait asks. */
static inline struct timespec luda__host_after(int milliseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += milliseconds / 1000;
    until.tv_nsec += milliseconds % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    return until;
}

#endif
