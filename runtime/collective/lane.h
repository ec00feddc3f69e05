/*
 * The lane: memory that all ranks of a group on one host see. Rank threads have it on the heap, rank processes map one
 * memfd. A rank comes to a call by writing its sequence number into its slot, beside a hash of what it asks for and, where
 * they are few, the bytes it brings; who finds all numbers there, no failure noted and all hashes equal goes on without a
 * message, a lock or a system call. Everything else is the board's: deadlines, lost ranks, blame, and what differs. Before
 * the board judges, the slots' state is pulled into it.
 *
 * Whether all came or the call failed is one decision. Who gives up while waiting says so in its slot first (LEAVING) and
 * looks again: if somebody is still absent, that rank will see the note when it comes, so the failure is written down and
 * holds for all; else everybody may have gone on already, and so does it. All these stores and loads are in one order.
 *
 * What a rank writes for call n is overwritten for call n + 2 at the earliest, when all have come to n + 1 and so are done
 * with n. After failures somebody may be further behind: results are checked against the slots before they count.
 */
#ifndef LUDA_LANE_H
#define LUDA_LANE_H

#include "collective.h"

enum {
    LUDA_LANE_RANKS = 64,
    LUDA_LANE_TINY = 16,          /* bytes beside the sequence number */
    LUDA_LANE_SMALL = 1024,       /* in the slot */
    LUDA_LANE_MEDIUM = 64 << 10,  /* processes: staged before arriving */
    LUDA_LANE_WINDOW = 256 << 10, /* processes: staged at once of more */
    LUDA_LANE_VERDICTS = 64,
    LUDA_LANE_TOKEN = 16
};

/* How a rank stands to the call in its slot. */
enum { LUDA_LANE_CAME = 0, LUDA_LANE_LEAVING = 1, LUDA_LANE_GONE = 2, LUDA_LANE_PLACES = 4 };

/* How far a rank is with moving data. */
enum { LUDA_LANE_STAGED, LUDA_LANE_REDUCED, LUDA_LANE_TAKEN, LUDA_LANE_STEPS };

typedef struct luda_lane_slot {
    /* What everybody reads in every call lies in one line. */
    _Alignas(128) atomic_ullong place; /* LUDA_LANE_PLACES * the call + how it stands */
    atomic_ullong hash[2];             /* of even and odd calls, like all pairs here */
    atomic_int asleep;
    atomic_uint bell; /* futex */
    unsigned char tiny[2][LUDA_LANE_TINY];
    _Alignas(64) atomic_ullong progress[LUDA_LANE_STEPS]; /* luda__lane_mark */
    atomic_ullong over;                                   /* the last call that ended */
    atomic_ullong since;                                  /* microseconds: when it began to sleep in a call */
    atomic_ullong in[2], out[2]; /* threads: addresses; processes: where in a common area, 0 for private memory */
    atomic_int operation;
    luda_announcement asked[2];
    unsigned char small[2][LUDA_LANE_SMALL];
} luda_lane_slot;

typedef struct luda_lane_memory {
    uint8_t token[LUDA_LANE_TOKEN];
    _Alignas(64) atomic_ullong failed[LUDA_LANE_VERDICTS]; /* of each residue the last call that was given up */
    luda_lane_slot slots[];
} luda_lane_memory;

struct luda_lane {
    uint64_t number; /* of all lanes of this process */
    bool processes;
    int size, spin; /* microseconds */
    bool crowded;   /* more ranks than cores: waiting starts with giving the core away */
    size_t bytes;
    luda_lane_memory *memory;
    unsigned char *staging; /* [size] of LUDA_LANE_STAGING: a pair of MEDIUM, a pair of WINDOW */
};

enum { LUDA_LANE_STAGING = 2 * (LUDA_LANE_MEDIUM + LUDA_LANE_WINDOW) };

static inline luda_lane_slot *luda__lane_slot(const luda_lane *lane, int rank)
{
    return &lane->memory->slots[rank];
}

/* The mark of round `round` of a call: larger than all marks of earlier rounds and calls. */
static inline uint64_t luda__lane_mark(uint64_t sequence, int64_t round)
{
    return (sequence << 24) + (uint64_t)round + 1;
}

/* --- lane.c --- */

size_t luda__lane_bytes(int size, bool processes);
/* Over memory of that size, zeroed where it is new; takes it over. NULL without memory. */
luda_lane *luda__lane_new(luda_lane_memory *memory, int size, bool processes);
void luda__lane_release(luda_lane *lane);
/* Comes to the call, waits for all, compares. */
luda_status luda__lane_agree(luda_collective_run *run, luda_announcement *asked, luda_comm_fault *fault,
                             const char **field);
/* Whether a rank should go on waiting; without the board's lock. */
typedef bool (*luda_lane_still)(luda_board *board, int rank, const void *arg);
/* With the board's lock, which is free while this sleeps: until a ring, a change of the board, or the time. */
void luda__lane_sleep(luda_board *board, int rank, double until, luda_lane_still still, const void *arg);
/* False: others gave this call up and went on, and what was read may be theirs. */
bool luda__lane_intact(const luda_lane *lane, uint64_t sequence);
luda_status luda__lane_overtaken(const luda_wait *wait, luda_comm_fault *fault);
void luda__lane_advance(luda_wait *wait, int step, uint64_t mark);
/* Waits until all ranks, or `from`, have come so far. */
luda_status luda__lane_await(luda_wait *wait, int step, int from, uint64_t mark, luda_comm_fault *fault);
/* Rank threads: waits until all are through with each other's memory, whatever happens; nobody can be stuck in between. */
void luda__lane_depart(luda_wait *wait);
/* The call ended here. */
void luda__lane_over(const luda_wait *wait);

/* --- lane_move.c --- */

luda_status luda__lane_collective(luda_collective_run *run);
/* Before arriving: puts a tensor's bytes where others read them, or says where it lies in memory that they have too. */
void luda__lane_stage(const luda_collective_run *run, int64_t bytes, uint64_t *in, uint64_t *out);

/* --- lane_open.c --- */

/* For a new group of rank processes: all of them get a lane, or none. */
luda_status luda__lane_open(luda_comm *comm, double deadline);
/*
 * Memory that all ranks map: `bytes` of zeros but for the token at the start, or NULL on all of them. `call` tells one such
 * exchange from another.
 */
luda_status luda__lane_map(luda_wait *wait, size_t bytes, uint64_t call, void **out, luda_comm_fault *fault);

/* --- empty.c --- */

/* Where a tensor lies in memory that other ranks have too, in their terms; 0: it does not. */
uint64_t luda__area_place(const luda_lane *lane, const luda_tensor *tensor);
/* The memory at such a place, if it lies in the same area as a tensor of this rank; else NULL. */
void *luda__area_memory(const luda_lane *lane, const luda_tensor *mine, uint64_t place, int64_t bytes);

#endif
