/*
 * The caching allocator: freed memory is kept by size class and handed out again, so that steady state neither
 * calls the system nor faults pages. One locked pool a device, small caches a thread for small CPU blocks.
 * Sizes are rounded up to one of four steps an octave (at most a fifth is lost), from 1 MiB on of 32 (a thirty-third).
 */
#include "core.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = LUDA__COARSE_CLASSES + 32 * 28 };
enum { MAX_DEVICES = 17, THREAD_CLASSES = 28, THREAD_DEPTH = 32, THREAD_BYTES = 1 << 20 };

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

/* --- Thread caches: CPU only. Counters gather here as well, and are added to the pool's now and then --- */

enum { GATHERED = 1 << 20 }; /* bytes that counters of a thread may lag behind */

typedef struct thread_cache {
    free_block *blocks[THREAD_CLASSES];
    uint16_t count[THREAD_CLASSES]; /* at most THREAD_BYTES of 64 bytes */
    bool registered;
    int64_t live, top, cached, tensors; /* since they were added; top: the largest live */
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

static void raise_peak(pool *pool, long long live)
{
    long long peak = atomic_load_explicit(&pool->peak, memory_order_relaxed);
    while (live > peak &&
           !atomic_compare_exchange_weak_explicit(&pool->peak, &peak, live, memory_order_relaxed, memory_order_relaxed))
        ;
}

static void add_counters(void)
{
    pool *pool = &pools[0];
    long long before = atomic_fetch_add_explicit(&pool->live, cache.live, memory_order_relaxed);
    raise_peak(pool, before + cache.top);
    atomic_fetch_add_explicit(&pool->cached, cache.cached, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->tensors, cache.tensors, memory_order_relaxed);
    cache.live = cache.top = cache.cached = cache.tensors = 0;
}

static void *take_cached(int class)
{
    free_block *block = cache.blocks[class];
    if (block) {
        cache.blocks[class] = block->next;
        cache.count[class]--;
    }
    return block;
}

static void flush_thread_cache(void *unused)
{
    pool *pool = &pools[0];
    pthread_mutex_lock(&pool->lock);
    for (int class = 0; class < THREAD_CLASSES; class++)
        for (void *memory; (memory = take_cached(class));)
            give_back(pool, class, memory);
    pthread_mutex_unlock(&pool->lock);
    add_counters();
    cache.registered = false;
}

static void make_key(void)
{
    pthread_key_create(&cache_key, flush_thread_cache);
}

static void register_thread(void)
{
    if (cache.registered)
        return;
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

static bool count_in(luda_device device, pool *pool, int64_t bytes)
{
    int64_t limit = atomic_load_explicit(&pool->limit, memory_order_relaxed);
    if (device.type == LUDA_CPU && limit == 0) {
        cache.live += bytes;
        cache.top = cache.live > cache.top ? cache.live : cache.top;
        if (cache.live > GATHERED)
            add_counters();
        return true;
    }
    if (device.type == LUDA_CPU)
        add_counters();
    int64_t live = atomic_fetch_add_explicit(&pool->live, bytes, memory_order_relaxed) + bytes;
    if (limit > 0 && live > limit) {
        atomic_fetch_sub_explicit(&pool->live, bytes, memory_order_relaxed);
        return false;
    }
    raise_peak(pool, live);
    return true;
}

static void count_out(luda_device device, pool *pool, int64_t bytes)
{
    if (device.type != LUDA_CPU) {
        atomic_fetch_sub_explicit(&pool->live, bytes, memory_order_relaxed);
        return;
    }
    cache.live -= bytes;
    if (cache.live < -GATHERED)
        add_counters();
}

static void count_cached(luda_device device, pool *pool, int64_t bytes)
{
    if (device.type == LUDA_CPU)
        cache.cached += bytes;
    else
        atomic_fetch_add_explicit(&pool->cached, bytes, memory_order_relaxed);
}

/* --- Allocate, release, trim --- */

static void trim(luda_device device, const luda_device_ops *ops, pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    for (int class = 0; class < CLASSES; class++)
        for (void *memory; (memory = take_block(device, pool, class));) {
            ops->free(device.index, memory, luda__class_bytes(class));
            count_cached(device, pool, -(int64_t)luda__class_bytes(class));
        }
    pthread_mutex_unlock(&pool->lock);
}

void *luda__allocate(luda_device device, size_t bytes)
{
    const luda_device_ops *ops = luda__device(device);
    pool *pool = pool_of(device);
    int class = luda__size_class(bytes);
    if (!ops || class >= CLASSES)
        return NULL;
    size_t rounded = luda__class_bytes(class);
    register_thread();
    if (!count_in(device, pool, (int64_t)rounded))
        return NULL;
    void *memory = NULL;
    if (device.type == LUDA_CPU && class < THREAD_CLASSES)
        memory = take_cached(class);
    if (!memory) {
        pthread_mutex_lock(&pool->lock);
        memory = take_block(device, pool, class);
        pthread_mutex_unlock(&pool->lock);
    }
    if (memory) {
        count_cached(device, pool, -(int64_t)rounded);
        return memory;
    }
    atomic_fetch_add_explicit(&pool->allocations, 1, memory_order_relaxed);
    memory = ops->allocate(device.index, rounded);
    if (!memory) {
        trim(device, ops, pool);
        memory = ops->allocate(device.index, rounded);
    }
    if (!memory)
        count_out(device, pool, (int64_t)rounded);
    return memory;
}

void luda__deallocate(luda_device device, void *memory, size_t bytes)
{
    pool *pool = pool_of(device);
    int class = luda__size_class(bytes);
    size_t rounded = luda__class_bytes(class);
    if (!memory)
        return;
    register_thread();
    count_out(device, pool, (int64_t)rounded);
    count_cached(device, pool, (int64_t)rounded);
    if (device.type == LUDA_CPU && class < THREAD_CLASSES &&
        (cache.count[class] < THREAD_DEPTH || (size_t)cache.count[class] * rounded < THREAD_BYTES)) {
        free_block *block = memory;
        block->next = cache.blocks[class];
        cache.blocks[class] = block;
        cache.count[class]++;
        return;
    }
    pthread_mutex_lock(&pool->lock);
    bool kept = keep_block(device, pool, class, memory);
    pthread_mutex_unlock(&pool->lock);
    if (!kept) {
        count_cached(device, pool, -(int64_t)rounded);
        luda__device(device)->free(device.index, memory, rounded);
    }
}

/* --- Objects: from the same thread caches, uncounted --- */

void *luda__object_take(int class, size_t class_bytes)
{
    void *memory = class < THREAD_CLASSES ? take_cached(class) : NULL;
    if (!memory)
        return posix_memalign(&memory, 64, class_bytes) == 0 ? memory : NULL;
    cache.cached -= (int64_t)class_bytes;
    return memory;
}

void luda__object_give(int class, size_t class_bytes, void *memory)
{
    if (class >= THREAD_CLASSES || (size_t)cache.count[class] * class_bytes >= THREAD_BYTES) {
        free(memory);
        return;
    }
    register_thread();
    free_block *block = memory;
    block->next = cache.blocks[class];
    cache.blocks[class] = block;
    cache.count[class]++;
    cache.cached += (int64_t)class_bytes;
}

void luda__count_tensor(luda_device device, int change)
{
    register_thread();
    if (device.type == LUDA_CPU)
        cache.tensors += change;
    else
        atomic_fetch_add_explicit(&pool_of(device)->tensors, change, memory_order_relaxed);
}

luda_status luda_memory(luda_device device, luda_memory_info *out)
{
    if (!luda__device(device))
        return LUDA_EDEVICE;
    pool *pool = pool_of(device);
    add_counters();
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
    add_counters();
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
