// internal.h: what the emulator's own sources share; kernels never include it.
#pragma once

#include "cuda_emulator.h"

#include <memory>
#include <mutex>

struct Stream;

namespace emu {

using Work = std::function<void()>;

// --- scheduler.cpp ---

enum class Order { forward, reverse, random };
Order order();                      // CUDAEMU_ORDER as it stands now; a changed value seeds anew
uint64_t random_below(uint64_t n);  // the next of the seeded sequence
// A fault of the program under test: one line on stderr, exit status 9.
[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
void run_grid(const Launch &launch, const Work &body);

// --- memory.cpp; called under the lock ---

// Device memory can be touched while one of these lives; elsewhere it is PROT_NONE.
struct DeviceWork {
    DeviceWork();
    ~DeviceWork();
};
size_t capacity();   // bytes of one device
void demand_device_pointer(const char *what, int argument, const void *p, int device);
void demand_guards_intact();

// --- runtime.cpp ---

extern std::mutex lock;
long setting(const char *name, long fallback, long least, long most);
int device_count();
int current_device();
Stream *find_stream(cudaStream_t handle);   // NULL if there is no such stream
int stream_device(const Stream *stream);
void enqueue(Stream *stream, Work work);
void drain(Stream *stream);
void drain_device(int device);              // -1: all
cudaError_t done(cudaError_t error);        // records a failure for cudaGetLastError

template <class F>
cudaError_t locked(F call)
{
    std::lock_guard<std::mutex> hold(lock);
    return done(call());
}

}  // namespace emu
