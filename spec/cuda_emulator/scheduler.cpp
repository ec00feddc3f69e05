// scheduler.cpp: CUDA threads as fibres. One grid at a time, one block after another, every thread
// on a fibre that runs until it blocks at a barrier or in a warp exchange.
//
// A barrier opens when all threads that have not finished are there; an exchange completes when
// every live lane its mask names is there; no runnable thread left is a deadlock. Compile this file
// without sanitizers: their hooks are weak symbols, found at load time. While a grid runs nothing
// here calls the allocator or memcpy: ThreadSanitizer would see accesses by CUDA threads.
#include "internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#if !defined(__x86_64__) || defined(CUDAEMU_UCONTEXT)
#define EMU_UCONTEXT 1
#include <ucontext.h>
#endif

#define WEAK extern "C" __attribute__((weak))
WEAK void *__tsan_create_fiber(unsigned flags);
WEAK void *__tsan_get_current_fiber();
WEAK void __tsan_switch_to_fiber(void *fiber, unsigned flags);
WEAK void __tsan_acquire(void *address);
WEAK void __tsan_release(void *address);
WEAK void __sanitizer_start_switch_fiber(void **save, const void *bottom, size_t size);
WEAK void __sanitizer_finish_switch_fiber(void *save, const void **bottom, size_t *size);
#undef WEAK

const int warpSize = 32;   // declared by the toolkit

namespace emu {

Geometry geometry;
const uint3 *thread_index;

namespace {

constexpr size_t stack_bytes = 128 << 10, page = 4096, shared_guard = 64;
constexpr unsigned max_threads = 1024;

enum class State : unsigned char { fresh, running, barrier, warp, done };

struct Fiber {
    void *sp;             // the x86-64 switch needs no more
    void *fake_stack;     // AddressSanitizer's
    void *tsan;           // ThreadSanitizer's
    const void *bottom;
    size_t size;
#ifdef EMU_UCONTEXT
    ucontext_t context;
#endif
};

struct Thread {
    uint3 index;
    unsigned linear;
    State state;
    Fiber *fiber;
    const char *file;   // where it waits
    int line;
};

// One warp exchange. Its values stay until every lane that took part has read them.
struct Group {
    unsigned mask, arrived, ballot;
    int unread;
    bool complete;
    Exchange kind;
    char sync;
    uint64_t value[32];
};

struct Warp {
    unsigned live;
    Group groups[32];   // a lane is in one at most
};

struct Scheduler {
    const Launch *launch;
    const Work *body;
    Order order;
    Fiber main, *previous;
    Fiber *idle[max_threads];
    int idle_count;
    Thread threads[max_threads], *current;
    Warp warps[max_threads / 32];
    uint64_t runnable[max_threads / 64];
    int count, live;
    // The barrier. Counts and ThreadSanitizer's variables alternate by generation: with one of each
    // a fast thread's next arrival would change the count and hide races.
    int waiting, trues[2];
    unsigned generation;
    char sync[2], started, finished;
} S;

}  // namespace

// --- faults and orders ---

void fault(const char *format, ...)
{
    va_list arguments;
    fflush(stdout);
    fputs("cuda emulator: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    _exit(9);   // from a fibre, with the lock held: no destructors
}

[[noreturn]] static void fault_here(const std::string &what)
{
    fault("%s, block (%u, %u, %u): %s", S.launch->name, geometry.block.x, geometry.block.y,
          geometry.block.z, what.c_str());
}

static std::string place(const char *file, int line)
{
    return std::string(file) + ":" + std::to_string(line);
}

static uint64_t random_state;

Order order()
{
    static std::string known;
    static Order result;
    const char *text = getenv("CUDAEMU_ORDER");
    text = text && *text ? text : "forward";
    if (known == text)
        return result;
    known = text;
    result = known == "forward" ? Order::forward :
             known == "reverse" ? Order::reverse : Order::random;
    if (result == Order::random && known.compare(0, 7, "random:") != 0)
        fault("CUDAEMU_ORDER=%s: forward, reverse or random:SEED", text);
    random_state = result == Order::random ? strtoull(text + 7, nullptr, 10) : 0;
    return result;
}

uint64_t random_below(uint64_t n)
{
    // Splitmix64: any seed, zero included, gives a good sequence.
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % n;
}

// --- the switch ---

#ifdef EMU_UCONTEXT

static void native_switch(Fiber *from, Fiber *to) { swapcontext(&from->context, &to->context); }

static void prepare(Fiber *f, void (*entry)())
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = const_cast<void *>(f->bottom);
    f->context.uc_stack.ss_size = f->size;
    makecontext(&f->context, entry, 0);
}

#else

extern "C" void luda_emu_switch(void **save, void *to);

// System V: save what a called function must preserve, exchange the stacks, restore.
asm(".text\n.globl luda_emu_switch\n.hidden luda_emu_switch\n"
    ".type luda_emu_switch, @function\n"
    "luda_emu_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
    "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n.size luda_emu_switch, .-luda_emu_switch\n");

static void native_switch(Fiber *from, Fiber *to) { luda_emu_switch(&from->sp, to->sp); }

static void prepare(Fiber *f, void (*entry)())
{
    // From the top: no caller, the entry as return address, six registers.
    void **top = static_cast<void **>(const_cast<void *>(f->bottom)) + f->size / sizeof(void *);
    top[-2] = reinterpret_cast<void *>(entry);
    f->sp = top - 8;
}

#endif

static void after_switch(Fiber *self)
{
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(self->fake_stack, &S.previous->bottom, &S.previous->size);
}

static void switch_fiber(Fiber *from, Fiber *to, bool leaving)
{
    from->fake_stack = nullptr;
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(leaving ? nullptr : &from->fake_stack, to->bottom, to->size);
    S.previous = from;
    native_switch(from, to);
    after_switch(from);
}

static void release(char *variable)
{
    if (__tsan_release)
        __tsan_release(variable);
}

static void acquire(char *variable)
{
    if (__tsan_acquire)
        __tsan_acquire(variable);
}

// --- choosing and running threads ---

static void fiber_main();

static Fiber *take_fiber()
{
    if (S.idle_count > 0)
        return S.idle[--S.idle_count];
    void *p = mmap(nullptr, page + stack_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, page, PROT_NONE))
        fault("no memory for a fibre's stack: %s", strerror(errno));
    char *bottom = static_cast<char *>(p) + page;
    Fiber *f = reinterpret_cast<Fiber *>(bottom + stack_bytes) - 1;   // zeroed by the system
    f->bottom = bottom;
    f->size = (stack_bytes - sizeof *f) / 16 * 16;
    f->tsan = __tsan_create_fiber ? __tsan_create_fiber(0) : nullptr;
    prepare(f, fiber_main);
    return f;
}

static void make_runnable(Thread *t)
{
    S.runnable[t->linear / 64] |= 1ull << t->linear % 64;
}

static int choose()
{
    constexpr int words = max_threads / 64;
    if (S.order == Order::reverse) {
        for (int i = words - 1; i >= 0; i--)
            if (S.runnable[i])
                return i * 64 + 63 - __builtin_clzll(S.runnable[i]);
        return -1;
    }
    uint64_t count = static_cast<uint64_t>(S.count);
    int start = S.order == Order::random ? static_cast<int>(random_below(count)) : 0;
    for (int k = 0; k <= words; k++) {
        int i = (start / 64 + k) % words;
        uint64_t bits = S.runnable[i] & (k ? ~0ull : ~0ull << start % 64);
        if (bits)
            return i * 64 + __builtin_ctzll(bits);
    }
    return -1;
}

static void report_deadlock()
{
    int counts[2] = {0, 0};
    std::string places[2];
    for (int i = 0; i < S.count; i++) {
        const Thread &t = S.threads[i];
        bool warp = t.state == State::warp;
        if (t.state != State::done && counts[warp]++ == 0)
            places[warp] = " (" + place(t.file, t.line) + ")";
    }
    fault_here("deadlock: of " + std::to_string(S.count) + " threads " + std::to_string(counts[0]) +
               " at a barrier" + places[0] + ", " + std::to_string(counts[1]) +
               " in a warp operation" + places[1] + ", " + std::to_string(S.count - S.live) +
               " finished");
}

// Gives the processor to the next thread, or back to run_block after the last. Returns when the
// calling fibre is to go on: with its own thread or, after leaving, with a fresh one.
static void run_next(Fiber *self, bool leaving)
{
    Fiber *to = &S.main;
    if (S.live > 0) {
        int i = choose();
        if (i < 0)
            report_deadlock();
        Thread *t = S.current = &S.threads[i];
        S.runnable[i / 64] &= ~(1ull << i % 64);
        if (t->state == State::fresh)
            t->fiber = take_fiber();
        t->state = State::running;
        thread_index = &t->index;
        to = t->fiber;
    }
    if (__tsan_switch_to_fiber)
        __tsan_switch_to_fiber(to->tsan, 1);   // 1: the switch orders nothing
    if (to != self)
        switch_fiber(self, to, leaving);
}

static void wait_in(State state, const char *file, int line)
{
    S.current->state = state;
    S.current->file = file;
    S.current->line = line;
}

// --- the barrier ---

static void open_barrier_if_complete()
{
    if (S.waiting == 0 || S.waiting < S.live)
        return;
    S.waiting = 0;
    S.generation++;
    S.trues[S.generation & 1] = 0;   // all have arrived, so all have read it
    for (int i = 0; i < S.count; i++)
        if (S.threads[i].state == State::barrier)
            make_runnable(&S.threads[i]);
}

int barrier(bool predicate, const char *file, int line)
{
    static const char *first_file;
    static int first_line;
    Fiber *self = S.current->fiber;
    unsigned side = S.generation & 1;
    if (S.waiting == 0)
        first_file = file, first_line = line;
    else if (first_line != line || strcmp(first_file, file))
        fault_here("divergent barrier: one thread waits in " + place(file, line) + ", others in " +
                   place(first_file, first_line));
    release(&S.sync[side]);
    S.waiting++;
    S.trues[side] += predicate;
    wait_in(State::barrier, file, line);
    open_barrier_if_complete();
    run_next(self, false);
    acquire(&S.sync[side]);
    return S.trues[side];
}

// --- warp exchange ---

unsigned lane() { return S.current->linear % 32; }

unsigned live_lanes() { return S.warps[S.current->linear / 32].live; }

static Group *join(Warp &w, unsigned mask)
{
    Group *unused = nullptr;
    for (Group &g : w.groups) {
        if (g.arrived && !g.complete && g.mask == mask)
            return &g;
        if (!g.arrived)
            unused = &g;
    }
    unused->mask = mask;
    return unused;
}

static void complete_groups(unsigned warp)
{
    for (Group &g : S.warps[warp].groups) {
        if (!g.arrived || g.complete || (g.mask & S.warps[warp].live & ~g.arrived))
            continue;
        g.complete = true;
        g.unread = __builtin_popcount(g.arrived);
        g.ballot = 0;
        for (unsigned i = 0; i < 32; i++)
            if (g.arrived >> i & 1) {
                g.ballot |= static_cast<unsigned>(g.value[i] != 0) << i;
                make_runnable(&S.threads[warp * 32 + i]);
            }
    }
}

uint64_t exchange(Exchange kind, unsigned mask, uint64_t bits, unsigned source, const char *file,
                  int line)
{
    Fiber *self = S.current->fiber;
    unsigned me = lane(), warp = S.current->linear / 32;
    if (!(mask >> me & 1))
        fault_here("the mask of a warp operation leaves its caller out, " + place(file, line));
    Group *g = join(S.warps[warp], mask);
    if (g->arrived && g->kind != kind)
        fault_here("lanes of one warp meet in different operations, " + place(file, line));
    g->kind = kind;
    g->arrived |= 1u << me;
    g->value[me] = bits;
    // Only __syncwarp orders memory: a shuffle that stands in for it is a race.
    if (kind == Exchange::sync)
        release(&g->sync);
    wait_in(State::warp, file, line);
    complete_groups(warp);
    run_next(self, false);
    if (kind == Exchange::sync)
        acquire(&g->sync);
    bits = g->ballot;
    if (kind == Exchange::shuffle)
        bits = g->arrived >> (source % 32) & 1 ? g->value[source % 32] : ~0ull;
    if (--g->unread == 0)
        g->arrived = 0, g->complete = false;
    return bits;
}

// --- threads, blocks, grids ---

static void finish(Thread *t)
{
    release(&S.finished);
    t->state = State::done;
    S.live--;
    S.warps[t->linear / 32].live &= ~(1u << t->linear % 32);
    // Within a block ThreadSanitizer would see the next owner's use of the stack as a race.
    if (!__tsan_create_fiber)
        S.idle[S.idle_count++] = t->fiber;
    open_barrier_if_complete();
    complete_groups(t->linear / 32);
}

static void fiber_main()
{
    Fiber *self = S.current->fiber;
    after_switch(self);
    for (;;) {
        acquire(&S.started);
        (*S.body)();
        finish(S.current);
        run_next(self, true);
    }
}

static void run_block(dim3 block)
{
    unsigned n = 0;
    for (unsigned z = 0; z < block.z; z++)
        for (unsigned y = 0; y < block.y; y++)
            for (unsigned x = 0; x < block.x; x++, n++) {
                S.threads[n] = {{x, y, z}, n, State::fresh, nullptr, "", 0};
                make_runnable(&S.threads[n]);
            }
    S.count = S.live = static_cast<int>(n);
    for (unsigned w = 0; w * 32 < n; w++)
        S.warps[w].live = n - w * 32 >= 32 ? ~0u : (1u << n % 32) - 1;
    S.trues[0] = S.trues[1] = 0;
    release(&S.started);
    run_next(&S.main, false);
    acquire(&S.finished);
    for (unsigned i = 0; __tsan_create_fiber && i < n; i++)
        S.idle[S.idle_count++] = S.threads[i].fiber;
}

void run_grid(const Launch &launch, const Work &body)
{
    // Under AddressSanitizer the end of the allocation is guard enough.
    size_t guard = __sanitizer_start_switch_fiber && !__tsan_create_fiber ? 0 : shared_guard;
    uint64_t n = static_cast<uint64_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
    S.launch = &launch;
    S.body = &body;
    S.order = order();
    S.main.tsan = __tsan_get_current_fiber ? __tsan_get_current_fiber() : nullptr;
    uint64_t start = S.order == Order::random ? random_below(n) : 0;
    void *memory = nullptr;
    if (posix_memalign(&memory, 128, launch.shared + guard))
        fault("%s: no memory for %zu bytes of shared memory", launch.name, launch.shared);
    unsigned char *shared = static_cast<unsigned char *>(memory);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = S.order == Order::reverse ? n - 1 - i : (start + i) % n;
        uint64_t row = at / launch.grid.x;
        memset(shared, 0xff, launch.shared);
        memset(shared + launch.shared, 0xa5, guard);
        geometry = {{static_cast<unsigned>(at % launch.grid.x),
                     static_cast<unsigned>(row % launch.grid.y),
                     static_cast<unsigned>(row / launch.grid.y)},
                    launch.block, launch.grid, shared};
        run_block(launch.block);
        for (size_t j = launch.shared; j < launch.shared + guard; j++)
            if (shared[j] != 0xa5)
                fault_here("a write past the dynamic shared memory");
    }
    free(memory);
}

}  // namespace emu
