/*
 * Runs the step lists of collectives against a model of a network instead of a transport: the same files, another machine
 * under them. Ranks are coroutines with clocks of their own; a message keeps the sender's and the receiver's side of a
 * connection busy for message + bytes * byte and is under way for `latency`; events are worked off in the order of time.
 * No data is moved: memory has addresses and nothing else.
 *
 * Reads requests, one a line, from the file it is given, and answers each with a line:
 *   run CALL ALGORITHM ARITY RANKS ELEMENTS LATENCY MESSAGE SPEED    (ns, ns, MB/s; elements of 4 bytes)
 *     -> seconds, most messages and bytes sent by a rank, most received, the model's forecast of the seconds
 *   auto CALL RANKS ELEMENTS LATENCY MESSAGE SPEED -> algorithm and arity that the model chooses
 */
#include "../../runtime/collective/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

static _Noreturn void fail(const char *why)
{
    fprintf(stderr, "collective_simulator: %s\n", why);
    exit(1);
}

/* --- Ranks, messages, time --- */

enum { STACK = 64 << 10, TABLES = 8 };

typedef struct due { uint32_t step; int from; } due;

typedef struct sim_rank {
    ucontext_t context;
    luda_steps steps;
    luda_collective what;
    double clock, out_free, in_free; /* seconds */
    due *dues;                       /* a heap by step */
    int ndues, dues_room;
    bool blocked, finished;
    uint32_t wait_step;
    int64_t missing; /* of what it waits for */
    int64_t messages, bytes, received;
    void *tables[TABLES];
    int ntables;
} sim_rank;

typedef struct event {
    double time; /* the first byte reaches the receiver's side */
    uint64_t order;
    int to, from;
    uint32_t step;
    int64_t bytes;
} event;

/* A message by receiver, sender and step: announced by either side. */
typedef struct parcel {
    uint64_t pair; /* to * ranks + from + 1; 0: free */
    uint32_t step;
    bool expected, delivered;
    int64_t bytes;
    double time;
} parcel;

static luda_network network;
static sim_rank *ranks;
static int nranks, current;
static ucontext_t outside;
static event *heap;
static size_t nheap, heap_room;
static uint64_t orders;
static parcel *parcels;
static size_t nparcels, parcels_room;

static void *grown(void *memory, size_t bytes)
{
    memory = realloc(memory, bytes);
    if (!memory)
        fail("no memory");
    return memory;
}

static bool earlier(const event *a, const event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void push_event(event e)
{
    size_t at = nheap++;
    if (nheap > heap_room)
        heap = grown(heap, (heap_room = heap_room ? 2 * heap_room : 1024) * sizeof *heap);
    for (; at > 0 && earlier(&e, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = e;
}

static event pop_event(void)
{
    event first = heap[0], last = heap[--nheap];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < nheap; at = child) {
        child += child + 1 < nheap && earlier(&heap[child + 1], &heap[child]);
        if (!earlier(&heap[child], &last))
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return first;
}

static void push_due(sim_rank *r, due d)
{
    int at = r->ndues++;
    if (r->ndues > r->dues_room)
        r->dues = grown(r->dues, (size_t)(r->dues_room = r->dues_room ? 2 * r->dues_room : 16) * sizeof *r->dues);
    for (; at > 0 && d.step < r->dues[(at - 1) / 2].step; at = (at - 1) / 2)
        r->dues[at] = r->dues[(at - 1) / 2];
    r->dues[at] = d;
}

static due pop_due(sim_rank *r)
{
    due first = r->dues[0], last = r->dues[--r->ndues];
    int at = 0;
    for (int child; (child = 2 * at + 1) < r->ndues; at = child) {
        child += child + 1 < r->ndues && r->dues[child + 1].step < r->dues[child].step;
        if (r->dues[child].step >= last.step)
            break;
        r->dues[at] = r->dues[child];
    }
    r->dues[at] = last;
    return first;
}

static parcel *find_parcel(uint64_t pair, uint32_t step)
{
    size_t at = (size_t)((pair * 0x9E3779B97F4A7C15u ^ step * 0xC2B2AE3D27D4EB4Fu) >> 20) & (parcels_room - 1);
    while (parcels[at].pair && (parcels[at].pair != pair || parcels[at].step != step))
        at = (at + 1) & (parcels_room - 1);
    return &parcels[at];
}

static parcel *parcel_of(int to, int from, uint32_t step)
{
    uint64_t pair = (uint64_t)to * (uint64_t)nranks + (uint64_t)from + 1;
    parcel *p;
    if (2 * nparcels >= parcels_room) {
        parcel *old = parcels;
        size_t room = parcels_room;
        parcels_room = room ? 2 * room : 1024;
        parcels = calloc(parcels_room, sizeof *parcels);
        if (!parcels)
            fail("no memory");
        for (size_t i = 0; i < room; i++)
            if (old[i].pair)
                *find_parcel(old[i].pair, old[i].step) = old[i];
        free(old);
    }
    p = find_parcel(pair, step);
    if (!p->pair) {
        *p = (parcel){ .pair = pair, .step = step, .bytes = -1 };
        nparcels++;
    }
    return p;
}

static void agree_on_bytes(parcel *p, int64_t bytes)
{
    if (p->bytes >= 0 && p->bytes != bytes)
        fail("a message is not as long as its receiver expects");
    p->bytes = bytes;
}

/* --- The machine under the lists --- */

void luda__give(luda_steps *s, int to, uint32_t step, const void *data, int64_t bytes)
{
    sim_rank *r = &ranks[s->rank];
    double start = r->clock > r->out_free ? r->clock : r->out_free;
    if (bytes == 0)
        return;
    if (to == s->rank || to < 0 || to >= nranks)
        fail("a message to nobody");
    r->out_free = start + network.message + (double)bytes * network.byte;
    r->messages++;
    r->bytes += bytes;
    push_event((event){ start + network.latency, orders++, to, s->rank, step, bytes });
}

void luda__expect(luda_steps *s, int from, uint32_t step, void *memory, int64_t bytes)
{
    parcel *p;
    if (bytes == 0)
        return;
    p = parcel_of(s->rank, from, step);
    if (p->expected)
        fail("a message is expected twice");
    p->expected = true;
    agree_on_bytes(p, bytes);
    push_due(&ranks[s->rank], (due){ step, from });
}

bool luda__arrived(luda_steps *s, uint32_t step)
{
    sim_rank *r = &ranks[s->rank];
    int ncleared = 0;
    due *cleared = grown(NULL, (size_t)(r->ndues ? r->ndues : 1) * sizeof *cleared);
    r->missing = 0;
    while (r->ndues > 0 && r->dues[0].step <= step) {
        cleared[ncleared] = pop_due(r);
        r->missing += !parcel_of(s->rank, cleared[ncleared].from, cleared[ncleared].step)->delivered;
        ncleared++;
    }
    if (r->missing > 0) {
        r->blocked = true;
        r->wait_step = step;
        swapcontext(&r->context, &outside);
    }
    for (int i = 0; i < ncleared; i++) {
        double time = parcel_of(s->rank, cleared[i].from, cleared[i].step)->time;
        r->clock = time > r->clock ? time : r->clock;
    }
    free(cleared);
    return true;
}

/* Addresses that nobody may use. */
void *luda__steps_scratch(luda_steps *s, int64_t bytes)
{
    return (void *)(uintptr_t)0x100000000000;
}

void *luda__steps_table(luda_steps *s, int64_t bytes)
{
    sim_rank *r = &ranks[s->rank];
    if (r->ntables == TABLES)
        fail("too many tables");
    return r->tables[r->ntables++] = grown(NULL, (size_t)bytes);
}

void luda__steps_copy(luda_steps *s, void *to, const void *from, int64_t bytes)
{
}

void luda__steps_refuse(luda_steps *s, int from, int64_t length)
{
    fail("a length that was not expected");
}

void luda__copy_rows(void *to, int64_t to_pitch, const void *from, int64_t from_pitch, int64_t bytes, int64_t rows)
{
}

/* --- Arithmetic: takes time --- */

int luda_dtype_size(luda_dtype dtype)
{
    return 4;
}

static void combine(void *partial, const void *source, int64_t count)
{
    ranks[current].clock += network.combine * 4 * (double)count;
}

static void load(const void *source, void *partial, int64_t count)
{
}

static void store(const void *partial, int divisor, void *target, int64_t count)
{
}

const luda_reducer *luda__reducer(luda_dtype dtype)
{
    static const luda_reducer reducer = { .partial = LUDA_F32, .load = load, .store = store,
                                          .combine[LUDA_REDUCE_SUM] = combine };
    return &reducer;
}

void luda__reduce_ranks(luda_dtype dtype, luda_reduction reduction, const void *const *sources, int nsources,
                        void *const *targets, int ntargets, int64_t count)
{
    for (int q = 1; q < nsources; q++)
        combine(NULL, NULL, count);
}

/* --- One run --- */

static void rank_body(void)
{
    sim_rank *r = &ranks[current];
    luda__steps_run(&r->steps);
    r->finished = true;
    swapcontext(&r->context, &outside);
}

static void resume(int rank)
{
    ranks[rank].blocked = false;
    current = rank;
    swapcontext(&outside, &ranks[rank].context);
}

static void deliver(const event *e)
{
    sim_rank *r = &ranks[e->to];
    parcel *p = parcel_of(e->to, e->from, e->step);
    if (p->delivered)
        fail("a message is sent twice");
    agree_on_bytes(p, e->bytes);
    r->in_free = (e->time > r->in_free ? e->time : r->in_free) + network.message + (double)e->bytes * network.byte;
    r->received += e->bytes;
    p->delivered = true;
    p->time = r->in_free;
    if (r->blocked && p->expected && e->step <= r->wait_step && --r->missing == 0)
        resume(e->to);
}

typedef struct quest {
    luda_comm_call call;
    luda_way way;
    int64_t elements;
} quest;

static void set_up(const quest *q, char *stacks)
{
    for (int i = 0; i < nranks; i++) {
        sim_rank *r = &ranks[i];
        void *nowhere = luda__steps_scratch(NULL, 0);
        r->what = (luda_collective){ .rank = i, .size = nranks, .in = nowhere, .out = nowhere, .outer = 1,
                                     .count = q->elements, .inner = 1 };
        r->what.agreed.operation = (int32_t)q->call;
        r->what.agreed.algorithm = (int32_t)q->way.algorithm;
        r->what.agreed.arity = q->way.arity;
        r->steps = (luda_steps){ .what = &r->what, .rank = i, .size = nranks, .operation = (int)q->call, .dtype = LUDA_F32,
                                 .reduction = LUDA_REDUCE_SUM, .width = 4, .numel = q->elements };
        getcontext(&r->context);
        r->context.uc_stack.ss_sp = stacks + (size_t)i * STACK;
        r->context.uc_stack.ss_size = STACK;
        r->context.uc_link = NULL;
        makecontext(&r->context, rank_body, 0);
    }
}

static void run(const quest *q)
{
    size_t room = (size_t)nranks * STACK;
    char *stacks = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    double seconds = 0;
    int64_t messages = 0, bytes = 0, received = 0;
    ranks = calloc((size_t)nranks, sizeof *ranks);
    if (!ranks || stacks == MAP_FAILED)
        fail("no memory");
    set_up(q, stacks);
    for (int i = 0; i < nranks; i++)
        resume(i);
    while (nheap > 0) {
        event e = pop_event();
        deliver(&e);
    }
    for (int i = 0; i < nranks; i++) {
        sim_rank *r = &ranks[i];
        if (!r->finished)
            fail("a rank waits for what nobody sends");
        seconds = r->clock > seconds ? r->clock : seconds;
        messages = r->messages > messages ? r->messages : messages;
        bytes = r->bytes > bytes ? r->bytes : bytes;
        received = r->received > received ? r->received : received;
        for (int t = 0; t < r->ntables; t++)
            free(r->tables[t]);
        free(r->dues);
    }
    for (size_t i = 0; i < parcels_room; i++)
        if (parcels[i].pair && parcels[i].expected != parcels[i].delivered)
            fail("a message nobody expects, or nobody sends");
    free(ranks);
    free(parcels);
    munmap(stacks, room);
    parcels = NULL;
    nparcels = parcels_room = 0;
    printf("%.9g %lld %lld %lld %.9g\n", seconds, (long long)messages, (long long)bytes, (long long)received,
           luda__cost(q->call, q->way, nranks, (double)q->elements * 4, &network));
}

/* --- Requests --- */

static const char *const calls[] = {
#define LUDA_CALL(name, NAME) #name,
#include "../../runtime/collective/names.def"
};

static const char *const algorithms[] = {
#define LUDA_ALGORITHM(name, NAME) #name,
#include "../../runtime/collective/names.def"
};

static int find(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    fail("an unknown name");
}

static void answer(const char *line)
{
    char call[32], algorithm[32];
    long long elements;
    int arity, link[3];
    quest q;
    if (sscanf(line, "run %31s %31s %d %d %lld %d %d %d", call, algorithm, &arity, &nranks, &elements, &link[0], &link[1],
               &link[2]) == 8) {
        network = luda__network((int32_t[]){ link[0], link[1], link[2] });
        q = (quest){ (luda_comm_call)find(calls, LUDA_CALL_COUNT, call),
                     { (luda_algorithm)find(algorithms, LUDA_ALGORITHM_COUNT, algorithm), arity }, elements };
        if (luda__algorithm_for(q.call, q.way.algorithm) != q.way.algorithm)
            fail("the call has no such algorithm");
        run(&q);
    } else if (sscanf(line, "auto %31s %d %lld %d %d %d", call, &nranks, &elements, &link[0], &link[1], &link[2]) == 6) {
        network = luda__network((int32_t[]){ link[0], link[1], link[2] });
        q.way = luda__choose((luda_comm_call)find(calls, LUDA_CALL_COUNT, call), nranks, (double)elements * 4, &network);
        printf("%s %d\n", algorithms[q.way.algorithm], q.way.arity);
    } else {
        fail("a request is not understood");
    }
}

int main(int argc, char **argv)
{
    char line[256];
    FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!file)
        fail("usage: collective_simulator FILE");
    while (fgets(line, sizeof line, file))
        answer(line);
    fclose(file);
    free(heap);
    return 0;
}
