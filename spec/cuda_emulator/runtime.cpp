// runtime.cpp: devices, streams, events and launches with the C ABI of the real CUDA runtime.
//
// A stream is a queue of work that runs only when somebody must wait for it, as late as a device
// might run it. CUDAEMU_ORDER also decides between streams: forward runs just what is waited for,
// reverse all other streams first, random any that can go on. CUDAEMU_EAGER=1 runs work at once.
// One mutex is held during every call, device work included; there are no threads of our own.
#include "internal.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

using Clock = std::chrono::steady_clock;

// A point in a stream: one recording of an event.
struct Mark {
    Stream *stream;
    bool done;
    Clock::time_point when;
};

struct Task {
    uint64_t sequence;
    std::shared_ptr<Mark> after;
    emu::Work run;
};

struct Stream {
    int device;
    bool legacy, blocking;
    std::deque<Task> tasks;
};

struct CUevent_st {
    bool timing;
    int device;
    std::shared_ptr<Mark> mark;   // the latest recording
};

namespace emu {

std::mutex lock;

static constexpr int max_devices = 16;
static constexpr size_t shared_default = 48 << 10, shared_most = 227 << 10;
// Never destroyed: the program may synchronise while it ends.
static auto &streams = *new std::vector<Stream *>;   // by age
static auto &events = *new std::vector<cudaEvent_t>;
static Stream *defaults[max_devices];
static auto &shared_limits = *new std::map<const void *, size_t>;
static uint64_t sequence;
static thread_local int device_now;
static thread_local cudaError_t last_error = cudaSuccess;

long setting(const char *name, long fallback, long least, long most)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return fallback;
    long value = strtol(text, &end, 10);
    if (*end || value < least || value > most)
        fault("%s=%s: a number from %ld to %ld", name, text, least, most);
    return value;
}

int device_count()
{
    static int count = static_cast<int>(setting("CUDAEMU_DEVICES", 2, 0, max_devices));
    return count;
}

int current_device() { return device_now; }
int stream_device(const Stream *stream) { return stream->device; }

cudaError_t done(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

// --- streams ---

template <class T>
static bool contains(const std::vector<T> &list, T item)
{
    return std::find(list.begin(), list.end(), item) != list.end();
}

template <class T>
static void forget(std::vector<T> &list, T item)
{
    list.erase(std::find(list.begin(), list.end(), item));
    delete item;
}

Stream *find_stream(cudaStream_t handle)
{
    Stream *s = reinterpret_cast<Stream *>(handle);
    if (device_count() == 0)
        return nullptr;
    if (handle && handle != cudaStreamLegacy && handle != cudaStreamPerThread)
        return contains(streams, s) ? s : nullptr;
    if (!defaults[device_now])
        streams.push_back(defaults[device_now] = new Stream{device_now, true, false, {}});
    return defaults[device_now];
}

// The stream that must go on before this one can; NULL if this one can. The default stream and the
// blocking streams wait for each other's older work. Only older work blocks, so this ends.
static Stream *blocker(const Stream *s)
{
    const Task &t = s->tasks.front();
    if (t.after && !t.after->done)
        return t.after->stream;
    for (Stream *o : streams)
        if (o->device == s->device && !o->tasks.empty() && o->tasks.front().sequence < t.sequence &&
            ((s->legacy && o->blocking) || (o->legacy && s->blocking)))
            return o;
    return nullptr;
}

static Stream *pick(Stream *target)
{
    std::vector<Stream *> able;
    Order how = order();
    for (Stream *s : streams)
        if (how != Order::forward && !s->tasks.empty() && !blocker(s))
            able.push_back(s);
    if (how == Order::random)
        return able[random_below(able.size())];
    for (size_t i = able.size(); i-- > 0;)
        if (able[i] != target)
            return able[i];
    while (Stream *other = blocker(target))
        target = other;
    return target;
}

static void step(Stream *target)
{
    Stream *s = pick(target);
    Task task = std::move(s->tasks.front());
    s->tasks.pop_front();
    if (task.run)
        task.run();
}

void drain(Stream *stream)
{
    DeviceWork work;
    while (!stream->tasks.empty())
        step(stream);
}

void drain_device(int device)
{
    for (Stream *s : streams)
        if (device < 0 || s->device == device)
            drain(s);
}

static void append(Stream *stream, std::shared_ptr<Mark> after, Work run)
{
    stream->tasks.push_back({sequence++, std::move(after), std::move(run)});
    if (setting("CUDAEMU_EAGER", 0, 0, 1))
        drain(stream);
}

void enqueue(Stream *stream, Work work) { append(stream, nullptr, std::move(work)); }

// Goes on by one step, so that a loop of queries ends.
static cudaError_t poll(Stream *stream, bool finished)
{
    if (finished)
        return cudaSuccess;
    DeviceWork work;
    step(stream);
    return cudaErrorNotReady;
}

static cudaError_t new_stream(cudaStream_t *out, unsigned flags)
{
    if (device_count() == 0)
        return cudaErrorNoDevice;
    streams.push_back(new Stream{device_now, false, flags != cudaStreamNonBlocking, {}});
    *out = reinterpret_cast<cudaStream_t>(streams.back());
    return cudaSuccess;
}

template <class F>
static cudaError_t with_stream(cudaStream_t handle, F call)
{
    return locked([&] {
        Stream *s = find_stream(handle);
        return s ? call(s) : cudaErrorInvalidResourceHandle;
    });
}

// --- events ---

template <class F>
static cudaError_t with_event(cudaEvent_t event, F call)
{
    return locked([&] {
        return contains(events, event) ? call() : cudaErrorInvalidResourceHandle;
    });
}

static bool passed(cudaEvent_t event) { return !event->mark || event->mark->done; }

static cudaError_t record(cudaEvent_t event, Stream *s)
{
    if (!s || event->device != s->device)
        return cudaErrorInvalidResourceHandle;
    auto mark = event->mark = std::make_shared<Mark>(Mark{s, false, {}});
    enqueue(s, [mark] {
        mark->done = true;
        mark->when = Clock::now();
    });
    return cudaSuccess;
}

static cudaError_t elapsed(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    if (!contains(events, end) || !start->mark || !end->mark || !start->timing || !end->timing)
        return cudaErrorInvalidResourceHandle;
    if (!passed(start) || !passed(end))
        return cudaErrorNotReady;
    *ms = std::chrono::duration<float, std::milli>(end->mark->when - start->mark->when).count();
    return cudaSuccess;
}

// --- launches and devices ---

static cudaError_t check_launch(const Launch &l, const Stream *stream)
{
    auto limit = shared_limits.find(l.function);
    if (!stream || stream->device != device_now)
        return cudaErrorInvalidResourceHandle;
    if (!l.block.x || !l.block.y || !l.block.z || l.block.x > 1024 || l.block.y > 1024 ||
        l.block.z > 64 || l.block.x * l.block.y * l.block.z > 1024)
        return cudaErrorInvalidConfiguration;
    if (!l.grid.x || !l.grid.y || !l.grid.z || l.grid.x > 0x7fffffff || l.grid.y > 65535 ||
        l.grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (l.shared > (limit == shared_limits.end() ? shared_default : limit->second))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

void launch(const Launch &l, const std::vector<const void *> &pointers, Work body)
{
    locked([&] {
        Stream *stream = find_stream(l.stream);
        if (cudaError_t error = check_launch(l, stream))
            return error;
        for (size_t i = 0; i < pointers.size(); i++)
            demand_device_pointer(l.name, static_cast<int>(i) + 1, pointers[i], stream->device);
        enqueue(stream, [=] { run_grid(l, body); });
        return cudaSuccess;
    });
}

static cudaError_t limit_shared(const void *function, cudaFuncAttribute attribute, int value)
{
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || static_cast<size_t>(value) > shared_most)
        return cudaErrorInvalidValue;
    shared_limits[function] = static_cast<size_t>(value);
    return cudaSuccess;
}

static cudaError_t properties(cudaDeviceProp *p, int device)
{
    if (device < 0 || device >= device_count())
        return cudaErrorInvalidDevice;
    *p = cudaDeviceProp();
    snprintf(p->name, sizeof p->name, "LUDA CUDA emulator");
    p->totalGlobalMem = capacity();
    p->sharedMemPerBlock = shared_default;
    p->sharedMemPerBlockOptin = p->sharedMemPerMultiprocessor = shared_most;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = 9;
    p->multiProcessorCount = 4;
    p->maxThreadsPerMultiProcessor = 2048;
    p->l2CacheSize = 1 << 20;
    p->concurrentKernels = p->asyncEngineCount = p->unifiedAddressing = 1;
    p->memoryPoolsSupported = 1;
    p->pciBusID = device;
    return cudaSuccess;
}

static cudaError_t attribute(int *value, cudaDeviceAttr name, int device)
{
    cudaDeviceProp p;
    if (cudaError_t error = properties(&p, device))
        return error;
    switch (name) {
    case cudaDevAttrMaxThreadsPerBlock: return *value = p.maxThreadsPerBlock, cudaSuccess;
    case cudaDevAttrMaxGridDimX: return *value = p.maxGridSize[0], cudaSuccess;
    case cudaDevAttrWarpSize: return *value = p.warpSize, cudaSuccess;
    case cudaDevAttrMultiProcessorCount: return *value = p.multiProcessorCount, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock: return *value = shared_default, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return *value = shared_most, cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: return *value = p.major, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: return *value = p.minor, cudaSuccess;
    case cudaDevAttrMemoryPoolsSupported: return *value = p.memoryPoolsSupported, cudaSuccess;
    default: return cudaErrorInvalidValue;
    }
}

static const char *describe(cudaError_t error, bool name)
{
#define ERROR(code, text) \
    if (error == code)    \
        return name ? #code : text;
    ERROR(cudaSuccess, "no error")
    ERROR(cudaErrorInvalidValue, "invalid argument")
    ERROR(cudaErrorMemoryAllocation, "out of memory")
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument")
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected")
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal")
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle")
    ERROR(cudaErrorNotReady, "device not ready")
#undef ERROR
    return name ? "cudaErrorUnknown" : "unknown error";
}

}  // namespace emu

// --- the API ---

using namespace emu;

// The parameters in parentheses, then the body as an expression of type cudaError_t.
#define API(name, parameters, call) \
    extern "C" cudaError_t name parameters { return call; }

API(cudaGetDeviceCount, (int *n), done((*n = device_count()) ? cudaSuccess : cudaErrorNoDevice))
API(cudaGetDevice, (int *d), (*d = device_now, cudaSuccess))
API(cudaGetDeviceProperties, (cudaDeviceProp *p, int device), done(properties(p, device)))
API(cudaDeviceGetAttribute, (int *v, cudaDeviceAttr a, int device), done(attribute(v, a, device)))
API(cudaRuntimeGetVersion, (int *version), (*version = CUDART_VERSION, cudaSuccess))
API(cudaDriverGetVersion, (int *version), (*version = CUDART_VERSION, cudaSuccess))
API(cudaPeekAtLastError, (), last_error)
API(cudaGetLastError, (), std::exchange(last_error, cudaSuccess))
API(cudaFuncSetAttribute, (const void *function, cudaFuncAttribute a, int value),
    locked([&] { return limit_shared(function, a, value); }))
API(cudaStreamCreate, (cudaStream_t *out), locked([&] { return new_stream(out, 0); }))
API(cudaStreamCreateWithFlags, (cudaStream_t *out, unsigned flags),
    locked([&] { return new_stream(out, flags); }))
API(cudaStreamSynchronize, (cudaStream_t stream),
    with_stream(stream, [](Stream *s) { return drain(s), cudaSuccess; }))
API(cudaStreamQuery, (cudaStream_t stream),
    with_stream(stream, [](Stream *s) { return poll(s, s->tasks.empty()); }))
API(cudaEventDestroy, (cudaEvent_t e),
    with_event(e, [&] { return forget(events, e), cudaSuccess; }))
API(cudaEventRecord, (cudaEvent_t e, cudaStream_t stream),
    with_event(e, [&] { return record(e, find_stream(stream)); }))
API(cudaEventQuery, (cudaEvent_t e),
    with_event(e, [&] { return poll(e->mark ? e->mark->stream : nullptr, passed(e)); }))
API(cudaEventElapsedTime, (float *ms, cudaEvent_t start, cudaEvent_t end),
    with_event(start, [&] { return elapsed(ms, start, end); }))
API(cudaEventCreate, (cudaEvent_t *out), cudaEventCreateWithFlags(out, cudaEventDefault))

#undef API

const char *cudaGetErrorName(cudaError_t error) { return describe(error, true); }
const char *cudaGetErrorString(cudaError_t error) { return describe(error, false); }

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= device_count())
        return done(cudaErrorInvalidDevice);
    device_now = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    return locked([] {
        drain_device(device_now);
        demand_guards_intact();
        return cudaSuccess;
    });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return with_stream(stream, [](Stream *s) {
        if (s->legacy)
            return cudaErrorInvalidResourceHandle;
        drain(s);
        forget(streams, s);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    return with_stream(stream, [&](Stream *s) {
        if (!contains(events, event))
            return cudaErrorInvalidResourceHandle;
        if (!passed(event))
            append(s, event->mark, nullptr);
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    return locked([&] {
        *out = new CUevent_st{!(flags & cudaEventDisableTiming), device_now, nullptr};
        events.push_back(*out);
        return cudaSuccess;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return with_event(event, [&] {
        DeviceWork work;
        while (!passed(event))
            step(event->mark->stream);
        return cudaSuccess;
    });
}
