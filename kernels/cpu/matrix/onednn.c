/* See onednn.h. */
#ifdef LUDA_ONEDNN
#include "onednn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ARGUMENTS = 8 };

static onednn functions;
static int usable;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void (*omp_set_num_threads)(int);

static void open_library(void)
{
    const char *wanted = getenv("LUDA_GEMM");
    if (wanted && *wanted && strncmp(wanted, "onednn", 6) != 0)
        return;
    char name[32] = "libdnnl.so.2";
    name[strlen(name) - 1] = '0' + DNNL_VERSION_MAJOR;
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return;
    int complete = 1;
#define FIND(name) complete &= (functions.name = (__typeof__(name) *)dlsym(handle, #name)) != NULL;
    ONEDNN_FUNCTIONS(FIND)
#undef FIND
    omp_set_num_threads = (void (*)(int))dlsym(handle, "omp_set_num_threads");
    if (!complete || functions.dnnl_version()->major != DNNL_VERSION_MAJOR)
        return;
    usable = functions.dnnl_engine_create(&functions.engine, dnnl_cpu, 0) == dnnl_success;
}

const onednn *luda__onednn(void)
{
    static _Thread_local int alone;
    pthread_once(&once, open_library);
    if (usable && !alone && omp_set_num_threads)
        omp_set_num_threads(1);
    alone = 1;
    return usable ? &functions : NULL;
}

int luda__onednn_is_fast(const onednn *dnn, const_dnnl_primitive_desc_t description)
{
    const char *name = NULL;
    if (dnn->dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, &name) != dnnl_success || !name)
        return 0;
    return !strstr(name, "ref") && !strstr(name, "gemm");
}

int luda__onednn_run(const onednn *dnn, const_dnnl_primitive_t primitive, int count, const int *arguments,
                     const dnnl_memory_desc_t *const *descriptions, void *const *data)
{
    dnnl_exec_arg_t list[MOST_ARGUMENTS];
    dnnl_stream_t stream;
    int made = 0;
    if (dnn->dnnl_stream_create(&stream, dnn->engine, dnnl_stream_default_flags) != dnnl_success)
        return 0;
    for (; made < count; made++) {
        list[made].arg = arguments[made];
        if (dnn->dnnl_memory_create(&list[made].memory, descriptions[made], dnn->engine, data[made]) != dnnl_success)
            break;
    }
    int done = made == count && dnn->dnnl_primitive_execute(primitive, stream, count, list) == dnnl_success;
    while (made-- > 0)
        dnn->dnnl_memory_destroy(list[made].memory);
    dnn->dnnl_stream_destroy(stream);
    return done;
}

#endif
