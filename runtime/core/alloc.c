/*
 * The caching allocator: freed memory is kept by size class and handed out again, so that steady state neither
 * calls the system nor faults pages. One locked pool a device, small caches a thread for small CPU blocks.
 * Sizes are rounded up to one of four steps an octave (at most a fifth is lost), from 1 MiB on of 32 (a thirty-third).
 */
#include "core.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MINIMUM_SHIFT = 6, FINE_SHIFT = 20, COARSE_CLASSES = 4 * (FINE_SHIFT - MINIMUM_SHIFT), CLASSES = COARSE_CLASSES + 32 * 28 };
enum { MAX_DEVICES = 17, THREAD_CLASSES = 28, THREAD_DEPTH = 32 };

typedef struct free_block {
    struct free_block *next;
} free_block;

typedef struct pool {
    pthread_mutex_t lock;
    /* Of CPU blocks the link lies in the block itself; a device's memory cannot be written, so links lie apart. */
    free_block *classes[CLASSES];
    atomic_llong live, peak, cached, limit, allocations, tensors;
} pool;

static pool pools[MAX_DEVICES];

__attribute__((constructor)) static void make_pools(void)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        pthread_mutex_init(&pools[i].lock, NULL);
}

static pool *pool_of(luda_device device)
{
    int index = device.type == LUDA_CPU ? 0 : 1 + device.index;
    return &pools[index < MAX_DEVICES ? index : MAX_DEVICES - 1];
}

/* --- Size classes --- */

static int class_of(size_t bytes)
{
    if (bytes <= (size_t)1 << MINIMUM_SHIFT)
        return 0;
    int top = 63 - __builtin_clzll(bytes - 1); /* 2^top < bytes <= 2^(top+1) */
    if (top >= FINE_SHIFT)
        return COARSE_CLASSES + 32 * (top - FINE_SHIFT) + ((int)((bytes - 1) >> (top - 5)) & 31) + 1;
    int quarter = (int)((bytes - 1) >> (top - 2)) & 3;
    return 4 * (top - MINIMUM_SHIFT) + quarter + 1;
}

static size_t class_bytes(int class)
{
    if (class == 0)
        return (size_t)1 << MINIMUM_SHIFT;
    bool fine = class > COARSE_CLASSES;
    int steps = fine ? 32 : 4, index = class - 1 - (fine ? COARSE_CLASSES : 0);
    int top = index / steps + (fine ? FINE_SHIFT : MINIMUM_SHIFT);
    return ((size_t)1 << top) + (size_t)(index % steps + 1) * (((size_t)1 << top) / (size_t)steps);
}

/* --- Thread caches: CPU only --- */

typedef struct thread_cache {
    void *blocks[THREAD_CLASSES][THREAD_DEPTH];
    int count[THREAD_CLASSES];
    bool registered;
} thread_cache;

static _Thread_local thread_cache cache;
static pthread_key_t cache_key;
static pthread_once_t cache_once = PTHREAD_ONCE_INIT;

static void give_back(pool *pool, int class, void *memory)
{
    free_block *block = memory;
    block->next = pool->classes[class];
    pool->classes[class] = block;
}

static void flush_thread_cache(void *unused)
{
    pool *pool = &pools[0];
    pthread_mutex_lock(&pool->lock);
    for (int class = 0; class < THREAD_CLASSES; class++)
        while (cache.count[class] > 0)
            give_back(pool, class, cache.blocks[class][--cache.count[class]]);
    pthread_mutex_unlock(&pool->lock);
    cache.registered = false;
}

static void make_key(void)
{
    pthread_key_create(&cache_key, flush_thread_cache);
}

static void register_thread(void)
{
    pthread_once(&cache_once, make_key);
    pthread_setspecific(cache_key, &cache); /* any non-NULL value makes the destructor run */
    cache.registered = true;
}

/* --- Links of device blocks, whose memory the host cannot write --- */

typedef struct device_block {
    free_block link;
    void *memory;
} device_block;

static void *take_block(luda_device device, pool *pool, int class)
{
    free_block *block = pool->classes[class];
    if (!block)
        return NULL;
    pool->classes[class] = block->next;
    if (device.type == LUDA_CPU)
        return block;
    void *memory = ((device_block *)block)->memory;
    free(block);
    return memory;
}

static bool keep_block(luda_device device, pool *pool, int class, void *memory)
{
    if (device.type == LUDA_CPU) {
        give_back(pool, class, memory);
        return true;
    }
    device_block *block = malloc(sizeof *block);
    if (!block)
        return false;
    block->memory = memory;
    give_back(pool, class, block);
    return true;
}

/* --- Counters --- */

static bool count_in(pool *pool, int64_t bytes)
{
    int64_t live = atomic_fetch_add_explicit(&pool->live, bytes, memory_order_relaxed) + bytes;
    int64_t limit = atomic_load_explicit(&pool->limit, memory_order_relaxed);
    if (limit > 0 && live > limit) {
        atomic_fetch_sub_explicit(&pool->live, bytes, memory_order_relaxed);
        return false;
    }
    long long peak = atomic_load_explicit(&pool->peak, memory_order_relaxed);
    while (live > peak && !atomic_compare_exchange_weak_explicit(&pool->peak, &peak, live, memory_order_relaxed, memory_order_relaxed))
        ;
    return true;
}

/* --- Allocate, release, trim --- */

static void trim(luda_device device, const luda_device_ops *ops, pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    for (int class = 0; class < CLASSES; class++)
        for (void *memory; (memory = take_block(device, pool, class));) {
            ops->free(device.index, memory, class_bytes(class));
            atomic_fetch_sub_explicit(&pool->cached, (long long)class_bytes(class), memory_order_relaxed);
        }
    pthread_mutex_unlock(&pool->lock);
}

void *luda__allocate(luda_device device, size_t bytes)
{
    const luda_device_ops *ops = luda__device(device);
    pool *pool = pool_of(device);
    int class = class_of(bytes);
    if (!ops || class >= CLASSES)
        return NULL;
    size_t rounded = class_bytes(class);
    if (!count_in(pool, (int64_t)rounded))
        return NULL;
    void *memory = NULL;
    if (device.type == LUDA_CPU && class < THREAD_CLASSES && cache.count[class] > 0) {
        memory = cache.blocks[class][--cache.count[class]];
    } else {
        pthread_mutex_lock(&pool->lock);
        memory = take_block(device, pool, class);
        pthread_mutex_unlock(&pool->lock);
    }
    if (memory) {
        atomic_fetch_sub_explicit(&pool->cached, (long long)rounded, memory_order_relaxed);
        return memory;
    }
    atomic_fetch_add_explicit(&pool->allocations, 1, memory_order_relaxed);
    memory = ops->allocate(device.index, rounded);
    if (!memory) {
        trim(device, ops, pool);
        memory = ops->allocate(device.index, rounded);
    }
    if (!memory)
        atomic_fetch_sub_explicit(&pool->live, (long long)rounded, memory_order_relaxed);
    return memory;
}

void luda__deallocate(luda_device device, void *memory, size_t bytes)
{
    pool *pool = pool_of(device);
    int class = class_of(bytes);
    size_t rounded = class_bytes(class);
    if (!memory)
        return;
    atomic_fetch_sub_explicit(&pool->live, (long long)rounded, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->cached, (long long)rounded, memory_order_relaxed);
    if (device.type == LUDA_CPU && class < THREAD_CLASSES && cache.count[class] < THREAD_DEPTH) {
        if (!cache.registered)
            register_thread();
        cache.blocks[class][cache.count[class]++] = memory;
        return;
    }
    pthread_mutex_lock(&pool->lock);
    bool kept = keep_block(device, pool, class, memory);
    pthread_mutex_unlock(&pool->lock);
    if (!kept) {
        atomic_fetch_sub_explicit(&pool->cached, (long long)rounded, memory_order_relaxed);
        luda__device(device)->free(device.index, memory, rounded);
    }
}

void luda__count_tensor(luda_device device, int change)
{
    atomic_fetch_add_explicit(&pool_of(device)->tensors, change, memory_order_relaxed);
}

luda_status luda_memory(luda_device device, luda_memory_info *out)
{
    if (!luda__device(device))
        return LUDA_EDEVICE;
    pool *pool = pool_of(device);
    out->live = atomic_load(&pool->live);
    out->peak = atomic_load(&pool->peak);
    out->cached = atomic_load(&pool->cached);
    out->limit = atomic_load(&pool->limit);
    out->tensors = atomic_load(&pool->tensors);
    out->allocations = atomic_load(&pool->allocations);
    return LUDA_OK;
}

luda_status luda_set_memory_limit(luda_device device, int64_t bytes)
{
    if (bytes < 0)
        return luda__fail(LUDA_EINVAL, "set_memory_limit: %lld bytes", (long long)bytes);
    if (!luda__device(device))
        return LUDA_EDEVICE;
    atomic_store(&pool_of(device)->limit, bytes);
    return LUDA_OK;
}

void luda_memory_reset_peak(luda_device device)
{
    pool *pool = pool_of(device);
    atomic_store(&pool->peak, atomic_load(&pool->live));
}

void luda_memory_trim(luda_device device)
{
    const luda_device_ops *ops = luda__device(device);
    if (!ops)
        return;
    if (device.type == LUDA_CPU)
        flush_thread_cache(NULL);
    trim(device, ops, pool_of(device));
}
