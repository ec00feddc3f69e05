/* See onednn.h. */
#ifdef LUDA_ONEDNN
#include "onednn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ARGUMENTS = 8, KEPT = 256 };

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

/* True if the implementation's name contains `word`. */
static int is_named(const onednn *dnn, const_dnnl_primitive_desc_t description, const char *word)
{
    const char *name = NULL;
    int found = dnn->dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, &name) == dnnl_success;
    return found && name && strstr(name, word);
}

int luda__onednn_is_reference(const onednn *dnn, const_dnnl_primitive_desc_t description)
{
    return is_named(dnn, description, "ref");
}

int luda__onednn_is_product(const onednn *dnn, const_dnnl_primitive_desc_t description)
{
    return is_named(dnn, description, "gemm");
}

int luda__onednn_run(const onednn *dnn, const_dnnl_primitive_t primitive, int count, const int *arguments,
                     const dnnl_memory_desc_t *const *layouts, void *const *data)
{
    dnnl_exec_arg_t list[MOST_ARGUMENTS];
    dnnl_stream_t stream;
    int made = 0;
    if (dnn->dnnl_stream_create(&stream, dnn->engine, dnnl_stream_default_flags) != dnnl_success)
        return 0;
    for (; made < count; made++) {
        list[made].arg = arguments[made];
        if (dnn->dnnl_memory_create(&list[made].memory, layouts[made], dnn->engine, data[made]) != dnnl_success)
            break;
    }
    int done = made == count && dnn->dnnl_primitive_execute(primitive, stream, count, list) == dnnl_success;
    while (made-- > 0)
        dnn->dnnl_memory_destroy(list[made].memory);
    dnn->dnnl_stream_destroy(stream);
    return done;
}

/* --- What is kept --- */

static struct {
    pthread_mutex_t lock;
    onednn_entry *entries[KEPT];
    int count;
    uint64_t uses;
} cache = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void free_entry(const onednn *dnn, onednn_entry *entry)
{
    for (int i = 0; i < ONEDNN_PRIMITIVES; i++)
        if (entry->primitive[i])
            dnn->dnnl_primitive_destroy(entry->primitive[i]);
    free(entry);
}

static onednn_entry *find_entry(const int64_t *key)
{
    for (int i = 0; i < cache.count; i++)
        if (memcmp(cache.entries[i]->key, key, sizeof cache.entries[i]->key) == 0)
            return cache.entries[i];
    return NULL;
}

/* A place for one more, from which the unused entry that was not wanted for longest goes; -1: all are in use. */
static int free_place(const onednn *dnn)
{
    int oldest = -1;
    if (cache.count < KEPT)
        return cache.count++;
    for (int i = 0; i < KEPT; i++)
        if (cache.entries[i]->users == 0 && (oldest < 0 || cache.entries[i]->last_use < cache.entries[oldest]->last_use))
            oldest = i;
    if (oldest >= 0)
        free_entry(dnn, cache.entries[oldest]);
    return oldest;
}

static onednn_entry *add_entry(const onednn *dnn, const int64_t *key,
                               void (*make)(const onednn *dnn, onednn_entry *entry, const void *arg), const void *arg)
{
    onednn_entry *entry = calloc(1, sizeof *entry);
    int place = entry ? free_place(dnn) : -1;
    if (place < 0) {
        free(entry);
        return NULL;
    }
    memcpy(entry->key, key, sizeof entry->key);
    make(dnn, entry, arg);
    return cache.entries[place] = entry;
}

onednn_entry *luda__onednn_take(const onednn *dnn, const int64_t *key,
                                void (*make)(const onednn *dnn, onednn_entry *entry, const void *arg), const void *arg)
{
    pthread_mutex_lock(&cache.lock);
    onednn_entry *entry = find_entry(key);
    if (!entry)
        entry = add_entry(dnn, key, make, arg);
    if (entry)
        entry->last_use = ++cache.uses;
    if (entry && !entry->primitive[0])
        entry = NULL;
    if (entry)
        entry->users++;
    pthread_mutex_unlock(&cache.lock);
    return entry;
}

void luda__onednn_give_back(onednn_entry *entry)
{
    pthread_mutex_lock(&cache.lock);
    entry->users--;
    pthread_mutex_unlock(&cache.lock);
}

#endif
