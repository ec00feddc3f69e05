/* What the sources of libluda_host share. */
#ifndef LUDA_HOST_H
#define LUDA_HOST_H

#include "../luda_lua.h"

#include <stdbool.h>

/* Writes the calling thread's message and returns the code. */
luda_status luda__host_fail(luda_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
