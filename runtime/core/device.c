/* Devices: the built-in CPU, and the CUDA plug-in that is opened when CUDA is first asked for. */
#include "core.h"
#include "../../kernels/optim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* --- CPU --- */

enum { HUGE_PAGE = 2 << 20 };

static int cpu_count(void)
{
    return 1;
}

/*
 * Blocks of middle size are cut from chunks of huge pages, one behind the other: a walk over two thousand of them then
 * misses the page tables as rarely as one over a single large block. A chunk goes back when all of its blocks did.
 */
enum { LEAST_CUT = 16 << 10, LARGE = 2 * HUGE_PAGE, CHUNK = 32 << 20, CHUNK_HEADER = 64 };

typedef struct chunk {
    size_t used;
    int64_t blocks;
} chunk;

static pthread_mutex_t chunk_lock = PTHREAD_MUTEX_INITIALIZER;
static chunk *open_chunk;

static bool is_cut(size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    return false; /* each block has its own bounds */
#else
    return bytes >= LEAST_CUT && bytes < LARGE;
#endif
}

static void *huge_pages(size_t bytes, size_t alignment)
{
    void *memory = NULL;
    if (posix_memalign(&memory, alignment, bytes) != 0)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE); /* advice: failing changes nothing */
    return memory;
}

static void *cut(size_t bytes)
{
    void *memory = NULL;
    pthread_mutex_lock(&chunk_lock);
    if (!open_chunk || open_chunk->used + bytes > CHUNK) {
        open_chunk = huge_pages(CHUNK, CHUNK); /* the one before goes with its last block */
        if (open_chunk)
            *open_chunk = (chunk){ CHUNK_HEADER, 0 };
    }
    if (open_chunk) {
        memory = (char *)open_chunk + open_chunk->used;
        open_chunk->used += bytes;
        open_chunk->blocks++;
    }
    pthread_mutex_unlock(&chunk_lock);
    return memory;
}

static void give_back_cut(void *memory)
{
    chunk *from = (chunk *)((uintptr_t)memory & ~(uintptr_t)(CHUNK - 1));
    pthread_mutex_lock(&chunk_lock);
    bool last = --from->blocks == 0;
    if (last && from == open_chunk)
        open_chunk = NULL;
    pthread_mutex_unlock(&chunk_lock);
    if (last)
        free(from);
}

static void *cpu_allocate(int index, size_t bytes)
{
    void *memory = NULL;
    if (is_cut(bytes))
        return cut(bytes);
    if (bytes >= LARGE)
        return huge_pages(bytes, HUGE_PAGE);
    return posix_memalign(&memory, 64, bytes) == 0 ? memory : NULL;
}

static void cpu_free(int index, void *memory, size_t bytes)
{
    if (is_cut(bytes))
        give_back_cut(memory);
    else
        free(memory);
}

static luda_status cpu_copy(luda_device to, void *target, luda_device from, const void *source, size_t bytes, char *message)
{
    if (bytes > 0)
        memcpy(target, source, bytes);
    return LUDA_OK;
}

static luda_status cpu_fill(int index, void *target, int byte, size_t bytes, char *message)
{
    if (bytes > 0)
        memset(target, byte, bytes);
    return LUDA_OK;
}

static luda_status cpu_synchronize(int index, char *message)
{
    return LUDA_OK;
}

static void cpu_memory(int index, int64_t *total, int64_t *available)
{
    *total = *available = 0;
}

static const luda_kernel_table *cpu_kernels(int index)
{
    return luda__cpu_kernels();
}

static const struct luda_optim_kernels *cpu_optim(int index)
{
    return luda__cpu_optim();
}

const luda_device_ops luda__cpu_device = {
    .abi = LUDA_DEVICE_ABI,
    .name = "cpu",
    .count = cpu_count,
    .allocate = cpu_allocate,
    .free = cpu_free,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .synchronize = cpu_synchronize,
    .memory = cpu_memory,
    .kernels = cpu_kernels,
    .optim = cpu_optim,
};

/* --- The plug-in --- */

static const luda_device_ops *cuda;
static char cuda_problem[512];
static pthread_once_t cuda_once = PTHREAD_ONCE_INIT;

/* Beside libluda, unless LUDA_CUDA_PLUGIN names another file. */
static void plugin_path(char *path, size_t size)
{
    const char *chosen = getenv("LUDA_CUDA_PLUGIN");
    Dl_info info;
    if (chosen && *chosen) {
        snprintf(path, size, "%s", chosen);
        return;
    }
    snprintf(path, size, "libluda_cuda.so");
    if (dladdr((const void *)&luda__cpu_device, &info) && info.dli_fname) {
        const char *slash = strrchr(info.dli_fname, '/');
        if (slash)
            snprintf(path, size, "%.*s/libluda_cuda.so", (int)(slash - info.dli_fname), info.dli_fname);
    }
}

static void open_cuda(void)
{
    char path[1024];
    plugin_path(path, sizeof path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(cuda_problem, sizeof cuda_problem, "%s", dlerror());
        return;
    }
    luda_plugin_open open = (luda_plugin_open)(uintptr_t)dlsym(library, "luda_plugin_open_device");
    if (!open) {
        snprintf(cuda_problem, sizeof cuda_problem, "%.400s is not a LUDA plug-in", path);
        return;
    }
    cuda = open(LUDA_DEVICE_ABI, cuda_problem, sizeof cuda_problem);
}

/* --- Asking --- */

const luda_device_ops *luda__device(luda_device device)
{
    if (device.type == LUDA_CPU && device.index == 0)
        return &luda__cpu_device;
    if (device.type == LUDA_CUDA) {
        pthread_once(&cuda_once, open_cuda);
        if (cuda && device.index >= 0 && device.index < cuda->count())
            return cuda;
        luda__fail(LUDA_EDEVICE, "device: there is no cuda:%d; %s", device.index, cuda ? "the index is too large" : cuda_problem);
        return NULL;
    }
    luda__fail(LUDA_EDEVICE, "device: there is no device of type %d with index %d", device.type, device.index);
    return NULL;
}

int luda_device_count(int type)
{
    if (type == LUDA_CPU)
        return 1;
    if (type != LUDA_CUDA)
        return 0;
    pthread_once(&cuda_once, open_cuda);
    return cuda ? cuda->count() : 0;
}

const char *luda_device_problem(int type)
{
    return type == LUDA_CUDA && luda_device_count(type) == 0 ? cuda_problem : "";
}

luda_status luda_synchronize(luda_device device)
{
    const luda_device_ops *ops = luda__device(device);
    char message[512] = "";
    if (!ops)
        return LUDA_EDEVICE;
    luda_status status = ops->synchronize(device.index, message);
    return status == LUDA_OK ? LUDA_OK : luda__fail_text(status, message);
}

luda_status luda_library_keep(const void *address)
{
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname)
        return luda__fail(LUDA_EINVAL, "library_keep: the address is of no library");
    dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE); /* not found: the program itself, which stays anyway */
    return LUDA_OK;
}
