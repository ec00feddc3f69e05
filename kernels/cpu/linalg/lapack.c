/* See lapack.h. */
#include "lapack.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = { LAPACK_NAMES };
enum { COUNT = sizeof names / sizeof *names };

static union {
    lapack functions;
    void *symbols[COUNT];
} found[2]; /* of float and double */
_Static_assert(sizeof(lapack) == COUNT * sizeof(void *), "a field for each name");

static int usable;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Threads of the library's own would make results depend on their number, and every matrix of a batch has a thread. */
static void keep_single(void *handle)
{
    static const char *const setters[] = { "openblas_set_num_threads", "bli_thread_set_num_threads", "MKL_Set_Num_Threads" };
    for (size_t i = 0; i < sizeof setters / sizeof *setters; i++) {
        void *symbol = dlsym(handle, setters[i]);
        void (*set_threads)(int);
        memcpy(&set_threads, &symbol, sizeof symbol);
        if (symbol)
            set_threads(1);
    }
}

static int open_library(const char *file)
{
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    int complete = handle != NULL;
    for (int i = 0; complete && i < 2 * COUNT; i++) {
        char name[16];
        snprintf(name, sizeof name, "%c%s_", "sd"[i / COUNT], names[i % COUNT]);
        complete = (found[i / COUNT].symbols[i % COUNT] = dlsym(handle, name)) != NULL;
    }
    if (complete)
        keep_single(handle);
    return complete;
}

static void find_library(void)
{
    const char *wanted = getenv("LUDA_LAPACK");
    if (wanted && *wanted)
        usable = open_library(wanted);
    else
        usable = open_library("liblapack.so.3") || open_library("libopenblas.so.0");
}

const lapack *luda__lapack(int size)
{
    pthread_once(&once, find_library);
    return usable ? &found[size == sizeof(double)].functions : NULL;
}
