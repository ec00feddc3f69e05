/*
 * Who holds memory: storages marked with the place in a program that made them, and how much of each place is live.
 * Places are kept for good, so that a storage may point to its own without a reference; there are as many as lines.
 */
#include "core.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct luda__site {
    struct luda__site *next; /* of those with the same hash */
    atomic_llong bytes, storages;
    char name[];
};

enum { BUCKETS = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct luda__site *buckets[BUCKETS];

static struct luda__site *find_site(const char *name)
{
    uint32_t hash = 2166136261u;
    for (const char *c = name; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    struct luda__site **list = &buckets[hash % BUCKETS], *site = *list;
    while (site && strcmp(site->name, name) != 0)
        site = site->next;
    if (!site && (site = calloc(1, sizeof *site + strlen(name) + 1))) {
        strcpy(site->name, name);
        site->next = *list;
        *list = site;
    }
    return site;
}

luda_status luda_memory_mark(luda_tensor *tensor, const char *name)
{
    luda_storage *storage = tensor->storage;
    if (storage->site)
        return LUDA_OK;
    pthread_mutex_lock(&lock);
    struct luda__site *site = find_site(name);
    pthread_mutex_unlock(&lock);
    if (!site)
        return luda__fail(LUDA_ENOMEM, "memory: no memory for the name of a site");
    atomic_fetch_add_explicit(&site->bytes, (long long)storage->bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&site->storages, 1, memory_order_relaxed);
    storage->site = site;
    return LUDA_OK;
}

const char *luda__site_name(const luda_storage *storage)
{
    return storage->site ? storage->site->name : NULL;
}

void luda__site_leave(luda_storage *storage)
{
    atomic_fetch_sub_explicit(&storage->site->bytes, (long long)storage->bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&storage->site->storages, 1, memory_order_relaxed);
}

const char *luda_memory_site(int index, int64_t *bytes, int64_t *storages)
{
    const struct luda__site *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS && !found; i++)
        for (found = buckets[i]; found && index-- > 0; found = found->next)
            ;
    pthread_mutex_unlock(&lock);
    if (!found)
        return NULL;
    *bytes = atomic_load_explicit(&found->bytes, memory_order_relaxed);
    *storages = atomic_load_explicit(&found->storages, memory_order_relaxed);
    return found->name;
}
