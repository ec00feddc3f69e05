// memory.cpp: the emulated devices' memory, pinned host memory, copies and fills.
//
// All devices share one reserved range, PROT_NONE except while device work runs, so that host code
// which follows a device pointer crashes. New and freed memory is 0xFF (NaN). Every allocation is
// followed by guard bytes, checked whenever one is freed and when a device is synchronised.
// With CUDAEMU_MALLOC defined device memory comes from malloc, for AddressSanitizer.
#include "internal.h"

#include <map>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace emu {

enum class Place { device, pinned, pageable, invalid };

struct Allocation {
    size_t size;
    int device;     // -1: pinned host memory
    bool freeing;   // cudaFreeAsync has been called
};

static constexpr size_t unit = 256;
// Never destroyed: the program may free memory while it ends.
static auto &allocations = *new std::map<uintptr_t, Allocation>;

static void *pointer(uintptr_t at) { return reinterpret_cast<void *>(at); }
static uintptr_t address(const void *p) { return reinterpret_cast<uintptr_t>(p); }
static size_t block_size(size_t size) { return (size + unit - 1) / unit * unit + unit; }

size_t capacity()
{
    static size_t bytes = static_cast<size_t>(setting("CUDAEMU_MEMORY_MB", 256, 1, 1 << 16)) << 20;
    return bytes;
}

#ifdef CUDAEMU_MALLOC

DeviceWork::DeviceWork() {}
DeviceWork::~DeviceWork() {}
void demand_guards_intact() {}
static void set_guard(uintptr_t, size_t) {}
static bool in_arena(uintptr_t) { return false; }
static void give_back(uintptr_t at, size_t) { free(pointer(at)); }

static uintptr_t find_room(int, size_t size)
{
    void *p = nullptr;
    return posix_memalign(&p, unit, size) ? 0 : address(p);
}

#else

static int working;

static size_t arena_size() { return capacity() * static_cast<size_t>(device_count()); }

static uintptr_t arena()
{
    static void *base = mmap(nullptr, arena_size(), PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        fault("cannot reserve %zu bytes of device memory", arena_size());
    return address(base);
}

static bool in_arena(uintptr_t at) { return at - arena() < arena_size(); }

DeviceWork::DeviceWork()
{
    if (working++ == 0)
        mprotect(pointer(arena()), arena_size(), PROT_READ | PROT_WRITE);
}

DeviceWork::~DeviceWork()
{
    if (--working == 0)
        mprotect(pointer(arena()), arena_size(), PROT_NONE);
}

// First fit.
static uintptr_t find_room(int device, size_t size)
{
    uintptr_t at = arena() + capacity() * static_cast<size_t>(device), end = at + capacity();
    for (const auto &[base, a] : allocations) {
        if (a.device != device)
            continue;
        if (base - at >= block_size(size))
            return at;
        at = base + block_size(a.size);
    }
    return end - at >= block_size(size) ? at : 0;
}

// Large blocks go back to the system: changing the protection takes time for every page in use.
static void give_back(uintptr_t at, size_t size)
{
    uintptr_t first = (at + 4095) / 4096 * 4096, end = (at + size) / 4096 * 4096;
    if (size > 1 << 20)
        madvise(pointer(first), end - first, MADV_DONTNEED);
    else
        memset(pointer(at), 0xff, size);
}

static void set_guard(uintptr_t at, size_t size)
{
    memset(pointer(at + size), 0xa5, block_size(size) - size);
}

void demand_guards_intact()
{
    DeviceWork work;
    for (const auto &[base, a] : allocations)
        for (size_t i = a.size; a.device >= 0 && i < block_size(a.size); i++)
            if (static_cast<unsigned char *>(pointer(base))[i] != 0xa5)
                fault("a write %zu bytes past the end of a device allocation of %zu bytes",
                      i - a.size, a.size);
}

#endif

static size_t used(int device)
{
    size_t sum = 0;
    for (const auto &[base, a] : allocations)
        sum += a.device == device ? block_size(a.size) : 0;
    return sum;
}

// The allocation that p points into, or just past.
static std::map<uintptr_t, Allocation>::iterator find(const void *p)
{
    auto it = allocations.upper_bound(address(p));
    if (it == allocations.begin())
        return allocations.end();
    --it;
    return address(p) <= it->first + it->second.size ? it : allocations.end();
}

static Place place_of(const void *p, size_t bytes)
{
    auto it = find(p);
    if (it == allocations.end())
        return !p || in_arena(address(p)) ? Place::invalid : Place::pageable;
    if (bytes > it->first + it->second.size - address(p))
        return Place::invalid;
    return it->second.device < 0 ? Place::pinned : Place::device;
}

void demand_device_pointer(const char *what, int argument, const void *p, int device)
{
    auto it = find(p);
    if (p && it == allocations.end())
        fault("%s: argument %d, %p, is no device memory", what, argument, p);
    if (p && it->second.device >= 0 && it->second.device != device)
        fault("%s: argument %d is memory of device %d, its stream is on device %d", what, argument,
              it->second.device, device);
}

static void release(uintptr_t at)
{
    demand_guards_intact();
    DeviceWork work;
    give_back(at, allocations[at].size);
    allocations.erase(at);
}

// An asynchronous allocation is filled in the stream's own time: whoever uses it in another stream
// without waiting finds the fill on top of his data.
static cudaError_t allocate(void **out, size_t size, Stream *stream, bool later)
{
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    int device = stream_device(stream);
    uintptr_t at = 0;
    *out = nullptr;
    for (int attempt = 0; attempt < 2 && size && !at; attempt++) {
        if (attempt == 1)
            drain_device(device);   // frees may wait in a stream
        if (size <= capacity() && block_size(size) <= capacity() - used(device))
            at = find_room(device, size);
    }
    if (!at)
        return size ? cudaErrorMemoryAllocation : cudaSuccess;
    DeviceWork work;
    allocations[at] = {size, device, false};
    set_guard(at, size);
    *out = pointer(at);
    if (later)
        enqueue(stream, [=] { memset(pointer(at), 0xff, size); });
    else
        memset(pointer(at), 0xff, size);
    return cudaSuccess;
}

static cudaError_t allocate_pinned(void **out, size_t size)
{
    if (posix_memalign(out, unit, size ? size : 1))
        return cudaErrorMemoryAllocation;
    memset(*out, 0xff, size);
    allocations[address(*out)] = {size, -1, false};
    return cudaSuccess;
}

static cudaError_t free_pinned(void *p)
{
    auto it = allocations.find(address(p));
    if (p && (it == allocations.end() || it->second.device >= 0))
        return cudaErrorInvalidValue;
    drain_device(-1);
    if (p)
        allocations.erase(it);
    free(p);
    return cudaSuccess;
}

static cudaError_t free_device(void *p, Stream *stream, bool later)
{
    uintptr_t at = address(p);
    auto it = allocations.find(at);
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (!p)
        return cudaSuccess;
    if (it == allocations.end() || it->second.device < 0 || it->second.freeing)
        return cudaErrorInvalidValue;
    it->second.freeing = true;
    if (later) {
        enqueue(stream, [=] { release(at); });
    } else {
        drain_device(it->second.device);
        release(at);
    }
    return cudaSuccess;
}

static bool allowed(cudaMemcpyKind kind, Place to, Place from)
{
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (to == Place::invalid || from == Place::invalid)
        return false;
    return kind == cudaMemcpyDefault || (to_device == (to == Place::device) &&
                                         from_device == (from == Place::device));
}

// As the manual has it: pageable sources are taken at the call, pageable targets are there when the
// call returns, and only pinned memory is read or written later.
static cudaError_t copy(void *to, const void *from, size_t n, cudaMemcpyKind kind, Stream *stream,
                        bool later)
{
    Place target = n ? place_of(to, n) : Place::device, source = n ? place_of(from, n) : target;
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (n && !allowed(kind, target, source))
        return cudaErrorInvalidValue;
    if (source == Place::pageable && later) {
        const char *bytes = static_cast<const char *>(from);
        std::vector<char> staged(bytes, bytes + n);
        enqueue(stream, [=] { memcpy(to, staged.data(), n); });
    } else if (n) {
        enqueue(stream, [=] { memmove(to, from, n); });
    }
    bool on_device = target == Place::device && source == Place::device;
    if ((!later && !on_device) || target == Place::pageable)
        drain(stream);
    return cudaSuccess;
}

static cudaError_t fill(void *p, int value, size_t n, Stream *stream)
{
    Place place = n ? place_of(p, n) : Place::device;
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (place != Place::device && place != Place::pinned)
        return cudaErrorInvalidValue;
    if (n)
        enqueue(stream, [=] { memset(p, value, n); });
    return cudaSuccess;
}

static cudaError_t memory_info(size_t *free, size_t *total)
{
    *total = capacity();
    *free = capacity() - used(current_device());
    return cudaSuccess;
}

}  // namespace emu

// --- the API ---

using namespace emu;
using Kind = cudaMemcpyKind;

#define API(name, parameters, call) \
    extern "C" cudaError_t name parameters { return locked([&] { return call; }); }

API(cudaMalloc, (void **out, size_t n), allocate(out, n, find_stream(nullptr), false))
API(cudaMallocAsync, (void **out, size_t n, cudaStream_t s), allocate(out, n, find_stream(s), true))
API(cudaFree, (void *p), free_device(p, find_stream(nullptr), false))
API(cudaFreeAsync, (void *p, cudaStream_t s), free_device(p, find_stream(s), true))
API(cudaMallocHost, (void **out, size_t n), allocate_pinned(out, n))
API(cudaHostAlloc, (void **out, size_t n, unsigned), allocate_pinned(out, n))
API(cudaFreeHost, (void *p), free_pinned(p))
API(cudaMemGetInfo, (size_t *free, size_t *total), memory_info(free, total))
API(cudaMemcpy, (void *to, const void *from, size_t n, Kind kind),
    copy(to, from, n, kind, find_stream(nullptr), false))
API(cudaMemcpyAsync, (void *to, const void *from, size_t n, Kind kind, cudaStream_t s),
    copy(to, from, n, kind, find_stream(s), true))
API(cudaMemset, (void *p, int value, size_t n), fill(p, value, n, find_stream(nullptr)))
API(cudaMemsetAsync, (void *p, int value, size_t n, cudaStream_t s),
    fill(p, value, n, find_stream(s)))

#undef API
