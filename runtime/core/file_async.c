/*
 * Saving in the background: the caller waits for a copy of the elements into a staging area that is kept between saves;
 * a thread of its own does the rest. Every thread still writing is waited for when the process leaves through exit().
 */
#include "file_save.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* Bytes that one slab copies; a tensor begins at a multiple of LINE in the staging area. */
#define SLAB (8 << 20)
#define LINE 64

struct luda_saver {
    luda__file_plan plan;
    char *strings;        /* path, names and metadata of the plan */
    const char **pointers; /* keys, then values */
    luda_file_entry *entries;
    char *staging;
    size_t staging_bytes;
    pthread_mutex_t joining;
    pthread_t thread;
    pid_t process; /* whose thread it is: a forked child leaves it and its file alone */
    bool busy;     /* there is a thread to join */
    luda_status status;
    char message[512];
    luda_saver *next; /* in `savers` */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static luda_saver *savers; /* of the process, under `lock` */

static luda_status no_memory(size_t bytes)
{
    return luda__fail(LUDA_ENOMEM, "save: no memory for a copy of %zu bytes; save without async", bytes);
}

/* --- What outlives the call --- */

static const char *keep(char **end, const char *text)
{
    size_t bytes = strlen(text) + 1;
    const char *kept = memcpy(*end, text, bytes);
    *end += bytes;
    return kept;
}

/* Makes the strings and lists of the plan the saver's own; whoever checks them later sees NULL where NULL was given. */
static luda_status keep_strings(luda_saver *saver, const char **path, const luda_file_entry *entries, int n,
                                const char *const *keys, const char *const *values, int nmeta)
{
    size_t bytes = *path ? strlen(*path) + 1 : 0;
    for (int i = 0; i < n; i++)
        bytes += entries[i].name ? strlen(entries[i].name) + 1 : 0;
    for (int i = 0; i < nmeta; i++)
        bytes += (keys[i] ? strlen(keys[i]) + 1 : 0) + (values[i] ? strlen(values[i]) + 1 : 0);
    saver->strings = malloc(bytes + 1);
    saver->pointers = calloc(2 * (size_t)nmeta + 1, sizeof *saver->pointers);
    saver->entries = calloc((size_t)n + 1, sizeof *saver->entries);
    if (!saver->strings || !saver->pointers || !saver->entries)
        return no_memory(bytes);
    char *end = saver->strings;
    *path = *path ? keep(&end, *path) : NULL;
    for (int i = 0; i < n; i++)
        saver->entries[i] = (luda_file_entry){ entries[i].name ? keep(&end, entries[i].name) : NULL, entries[i].tensor };
    for (int i = 0; i < nmeta; i++) {
        saver->pointers[i] = keys[i] ? keep(&end, keys[i]) : NULL;
        saver->pointers[nmeta + i] = values[i] ? keep(&end, values[i]) : NULL;
    }
    return LUDA_OK;
}

static void drop_plan(luda_saver *saver)
{
    luda__file_plan_free(&saver->plan);
    free(saver->strings);
    free(saver->pointers);
    free(saver->entries);
    saver->strings = NULL;
    saver->pointers = NULL;
    saver->entries = NULL;
}

typedef struct copying {
    char *to;
    const char *from;
    size_t bytes;
} copying;

#ifdef __SSE2__
/*
 * Around the cache, since the elements go to the disk next, and from four pages in turn, so that the memory has requests
 * for several places: one stream alone is a third slower. Returns how much it did.
 */
static size_t copy_pages(char *to, const char *from, size_t bytes)
{
    enum { PAGE = 4096, PAGES = 4 };
    size_t block = 0;
    for (; block + PAGES * PAGE <= bytes; block += PAGES * PAGE)
        for (size_t at = block; at < block + PAGE; at += 2 * LINE)
            for (size_t place = at; place < at + PAGES * PAGE; place += PAGE) {
                _mm_prefetch(from + place + PAGES * PAGE, _MM_HINT_T0);
                _mm_prefetch(from + place + PAGES * PAGE + LINE, _MM_HINT_T0);
                for (size_t i = place; i < place + 2 * LINE; i += 16)
                    _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
            }
    _mm_sfence(); /* before the thread that writes reads it */
    return block;
}
#else
static size_t copy_pages(char *to, const char *from, size_t bytes)
{
    return 0;
}
#endif

static void copy_slab(void *arg, int64_t slab)
{
    const copying *job = arg;
    size_t begin = (size_t)slab * SLAB, bytes = job->bytes - begin < SLAB ? job->bytes - begin : SLAB;
    char *to = job->to + begin;
    const char *from = job->from + begin;
    size_t done = copy_pages(to, from, bytes);
    memcpy(to + done, from + done, bytes - done);
}

/* Elements of a device arrive when it is synchronised. */
static luda_status stage_item(char *to, luda__file_item *it)
{
    char message[256] = "";
    luda_device cpu = { LUDA_CPU, 0 }, device = luda_tensor_device(it->tensor);
    const luda_device_ops *ops = luda__device(device);
    luda_tensor *copy = NULL;
    luda_status status = LUDA_OK;

    if (!ops)
        return LUDA_EDEVICE;
    LUDA_TRY(luda__file_in_order(it->tensor, &copy));
    copying job = { to, luda__data(copy ? copy : it->tensor), (size_t)it->bytes };
    if (device.type == LUDA_CPU)
        luda__parallel((it->bytes + SLAB - 1) / SLAB, copy_slab, &job);
    else if (ops->copy(cpu, job.to, device, job.from, job.bytes, message) != LUDA_OK ||
             ops->synchronize(device.index, message) != LUDA_OK)
        status = luda__fail(LUDA_ECUDA, "save: tensor '%.100s': %s", it->name, message);
    luda_tensor_release(copy);
    it->staged = to;
    return status;
}

static size_t lines(int64_t bytes)
{
    return ((size_t)bytes + LINE - 1) / LINE * LINE;
}

static luda_status stage(luda_saver *saver)
{
    luda__file_item *items = saver->plan.items;
    size_t bytes = 0;

    for (int i = 0; i < saver->plan.count; i++)
        bytes += lines(items[i].bytes);
    if (bytes > saver->staging_bytes) {
        if (saver->staging)
            luda__cpu_device.free(0, saver->staging, saver->staging_bytes);
        saver->staging = luda__cpu_device.allocate(0, bytes);
        saver->staging_bytes = saver->staging ? bytes : 0;
        if (!saver->staging)
            return no_memory(bytes);
    }
    char *to = saver->staging;
    for (int i = 0; i < saver->plan.count; i++) {
        if (items[i].bytes > 0)
            LUDA_TRY(stage_item(to, &items[i]));
        items[i].tensor = NULL;
        to += lines(items[i].bytes);
    }
    return LUDA_OK;
}

/* --- The thread --- */

static void *write_staged(void *argument)
{
    luda_saver *saver = argument;
    saver->status = luda__file_plan_write(&saver->plan);
    luda__place_close(&saver->plan.place);
    if (saver->status != LUDA_OK)
        snprintf(saver->message, sizeof saver->message, "%s", luda_last_error());
    return NULL;
}

/* Signals are for the program's own threads. */
static luda_status start_thread(luda_saver *saver)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int problem = pthread_create(&saver->thread, NULL, write_staged, saver);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (problem)
        return luda__fail(LUDA_EIO, "save: cannot start a thread: %s", strerror(problem));
    saver->process = getpid();
    saver->busy = true;
    return LUDA_OK;
}

/* Waits for the thread, if there is one; what it said stays in the saver. */
static void join(luda_saver *saver)
{
    pthread_mutex_lock(&saver->joining);
    if (saver->busy && saver->process == getpid()) {
        pthread_join(saver->thread, NULL);
        drop_plan(saver);
    }
    saver->busy = false;
    pthread_mutex_unlock(&saver->joining);
}

static void join_all(void)
{
    pthread_mutex_lock(&lock);
    for (luda_saver *saver = savers; saver; saver = saver->next)
        join(saver);
    pthread_mutex_unlock(&lock);
}

/* --- The face --- */

luda_status luda_saver_new(luda_saver **out)
{
    static bool registered;
    luda_saver *saver = calloc(1, sizeof *saver);
    if (!saver)
        return no_memory(sizeof *saver);
    pthread_mutex_init(&saver->joining, NULL);
    pthread_mutex_lock(&lock);
    if (!registered)
        registered = atexit(join_all) == 0;
    saver->next = savers;
    savers = saver;
    pthread_mutex_unlock(&lock);
    *out = saver;
    return LUDA_OK;
}

luda_status luda_saver_wait(luda_saver *saver)
{
    join(saver);
    luda_status status = saver->status;
    saver->status = LUDA_OK;
    return status == LUDA_OK ? LUDA_OK : luda__fail_text(status, saver->message);
}

luda_status luda_saver_save(luda_saver *saver, const char *path, const luda_file_entry *entries, int n,
                            const char *const *metadata_keys, const char *const *metadata_values, int nmeta)
{
    LUDA_TRY(luda_saver_wait(saver));
    if (n < 0 || nmeta < 0 || (n > 0 && !entries) || (nmeta > 0 && (!metadata_keys || !metadata_values)))
        return luda__fail(LUDA_EINVAL, "save: lists of tensors and metadata are needed");
    saver->plan = (luda__file_plan){ .place.fd = -1 };
    luda_status status = keep_strings(saver, &path, entries, n, metadata_keys, metadata_values, nmeta);
    if (status == LUDA_OK)
        status = luda__file_plan_make(&saver->plan, path, saver->entries, n, saver->pointers, saver->pointers + nmeta,
                                      nmeta);
    if (status == LUDA_OK)
        status = stage(saver);
    if (status == LUDA_OK)
        status = start_thread(saver);
    if (status != LUDA_OK)
        drop_plan(saver);
    return status;
}

void luda_saver_close(luda_saver *saver)
{
    if (!saver)
        return;
    join(saver);
    pthread_mutex_lock(&lock);
    for (luda_saver **at = &savers; *at; at = &(*at)->next)
        if (*at == saver) {
            *at = saver->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    if (saver->staging)
        luda__cpu_device.free(0, saver->staging, saver->staging_bytes);
    pthread_mutex_destroy(&saver->joining);
    free(saver);
}
