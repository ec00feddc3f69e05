/*
 * Inside of the collectives floor. A call goes: comm.c (claim, flight record) - agree.c (what is asked, compared) -
 * board.c (arrival, deadline, blame) - local.c or algorithms.c (data) - comm.c (result or fault).
 */
#ifndef LUDA_COLLECTIVE_H
#define LUDA_COLLECTIVE_H

#include "../core/core.h"
#include "../luda_transport.h"
#include "reduce.h"

#include <pthread.h>
#include <string.h>

/* --- Names (agree.c) --- */

const char *luda__call_name(int call);
bool luda__reduction_fits(luda_reduction reduction, luda_dtype dtype);

/* --- Faults and agreement (agree.c) --- */

void luda__fault(luda_comm_fault *fault, luda_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static inline void luda__blame(luda_comm_fault *fault, int rank)
{
    fault->culprits[rank / 64] |= (uint64_t)1 << (rank % 64);
}
static inline bool luda__blamed(const luda_comm_fault *fault, int rank)
{
    return fault->culprits[rank / 64] >> (rank % 64) & 1;
}
/* "rank 2" or "ranks 0, 2 and 5" of the culprits into buffer, which is returned. */
const char *luda__culprits_text(const luda_comm_fault *fault, int size, char *buffer, size_t room);
/* "all_reduce sum f32 [2, 3] at train.lua:7" into buffer, which is returned. */
const char *luda__asked_text(const luda_announcement *asked, char *buffer, size_t room);
uint64_t luda__asked_hash(const luda_announcement *asked);
/* A copy; most announcements have no words. */
static inline void luda__asked_copy(luda_announcement *to, const luda_announcement *from)
{
    memcpy(to, from, offsetof(luda_announcement, site));
    to->site[0] = to->note[0] = 0;
    if (from->site[0])
        memcpy(to->site, from->site, sizeof to->site);
    if (from->note[0])
        memcpy(to->note, from->note, sizeof to->note);
}
/*
 * Compares what ranks ask for. On LUDA_OK `agreed` is the call with every unknown filled in; else the fault says what
 * differs, and *field which field it is (NULL where a rank refused).
 */
luda_status luda__compare(const luda_announcement *asked, int size, int me, luda_announcement *agreed,
                          luda_comm_fault *fault, const char **field);

/* --- The board (board.c, mail.c) --- */

enum { LUDA_RECORDS = 16 };
enum { LUDA_PRESENT = 0, LUDA_LEFT = 1, LUDA_DIED = 2 };

/* One call, as far as this process knows. */
typedef struct luda_record {
    uint64_t sequence;
    int arrived;
    bool settled; /* all arrived before anything went wrong */
    bool failed;
    double first; /* when the first rank arrived, luda__now */
    luda_comm_fault fault;
    luda_announcement *asked; /* [size] */
    bool *here;               /* [size] */
} luda_record;

/* One rank. */
typedef struct luda_seat {
    pthread_cond_t wake;
    int presence;
    double lost_at;
    char lost_text[128];
    uint64_t sequence; /* the last call it is known to have arrived at, and which */
    int32_t operation;
    bool waiting;
    bool answered; /* since the last query */
    uint64_t over; /* resident: the last call that ended, in whatever way */
    int64_t unsent;    /* resident: messages of the call given to the transport and not out yet */
    int vain;          /* resident: spins in a row that ended in sleep */
    bool held;         /* resident: waits for a moment without a write into its memory */
    luda_mail *first, *last; /* resident: expected and arrived messages */
} luda_seat;

typedef struct luda_lane luda_lane;

struct luda_board {
    atomic_int references;
    int size, resident;
    int spin; /* microseconds */
    atomic_uint pulse; /* counts changes, for spinning */
    bool networked;    /* what happens comes from the network loop: who waits runs it meanwhile */
    atomic_bool troubled; /* aborted, or a rank is lost */
    luda_lane *lane;   /* where all ranks see the same memory, or NULL; set before the first call */
    pthread_mutex_t lock;
    bool aborted;
    luda_comm_fault abort_fault;
    luda_seat *seats;
    luda_record records[LUDA_RECORDS];
};

double luda__now(void); /* monotonic seconds */

/*
 * Runs the network loop on this thread until the pulse is no longer `seen` or the time has come, busily or asleep. False:
 * another waiter runs it, which serves this one too.
 */
bool luda__loop_run(const atomic_uint *pulse, unsigned seen, double until, bool spin);
void luda__loop_wake(void);          /* a pulse changed outside of the loop */
void luda__loop_sleepers(int change); /* so many more threads sleep and count on others to run the loop */

/* What a waiting rank brings along. */
typedef struct luda_wait {
    luda_board *board;
    const luda_transport *transport;
    int rank;
    uint64_t sequence; /* 0: a message of send and recv */
    double timeout, deadline; /* deadline is set by arriving */
    const char *name; /* of the call */
    bool asked, spared, stood_still; /* blame.c */
    double answers_by, awake;        /* until when answers may come; when it meant to look again */
} luda_wait;

void luda__board_arrive(luda_wait *wait, const luda_announcement *asked);
/* Waits for all ranks and compares; `asked` (size entries) is filled on a difference. */
luda_status luda__board_agree(luda_wait *wait, luda_announcement *agreed, luda_announcement *asked,
                              luda_comm_fault *fault, const char **field);
/* The rank ends its call; messages that still come for it are dropped. */
void luda__board_over(luda_board *board, int rank, uint64_t sequence);
/* This rank gives the call up and tells the others. */
void luda__board_give_up(luda_wait *wait, const luda_comm_fault *fault);
/* Puts a message into the list of a resident rank; the data is copied. */
luda_status luda__mail_deliver(luda_board *board, int to, int from, luda_slot_name slot, const void *data,
                               size_t bytes);
/* One message is about to be given to the transport. */
void luda__mail_sending(luda_board *board, int rank);
/* Expects a message. */
luda_status luda__mail_post(luda_board *board, int rank, int from, luda_slot_name slot, void *memory, size_t bytes);
/* Waits for all expected messages of the call up to a step (or, for sequence 0, of one slot from `from`). */
luda_status luda__mail_await(luda_wait *wait, uint32_t step, luda_comm_fault *fault);
luda_status luda__mail_await_message(luda_wait *wait, int from, luda_slot_name slot, luda_comm_fault *fault);
/* Waits until the transport holds copies of no more than so many bytes for a rank. */
luda_status luda__mail_await_room(luda_wait *wait, int to, luda_comm_fault *fault);
void luda__mail_wake(luda_board *board, int rank); /* it may have become less */
/* Waits until everything given to the transport is out. */
luda_status luda__mail_flush(luda_wait *wait, luda_comm_fault *fault);
/* Expects nothing of this call any more: memory given to luda__mail_post is not touched afterwards. */
void luda__mail_withdraw(luda_board *board, int rank, uint64_t sequence);
void luda__mail_withdraw_message(luda_board *board, int rank, int from, luda_slot_name slot);

/* Inside the board only, with its lock held. */
luda_record *luda__board_record(luda_board *board, uint64_t sequence);
void luda__board_wake(luda_board *board);
void luda__board_wake_one(luda_board *board, int rank);
void luda__board_sleep(luda_board *board, int rank, double until);
bool luda__board_complete(const luda_board *board); /* nobody is lost */
/* Which ranks a waiter still needs; false: none. */
typedef bool (*luda_need)(luda_wait *wait, const void *what, bool *due);
/* Waits in the data phase; `still` (NULL: what is needed changes under the lock) says the same for one who goes to sleep. */
luda_status luda__await(luda_wait *wait, luda_need needed, const void *what,
                        bool (*still)(luda_board *board, int rank, const void *what), luda_comm_fault *fault);
/* lane.c: news for a rank that sleeps in the lane; what the slots say, into seats and the record of a call (0: none). */
void luda__lane_ring(const luda_lane *lane, int rank);
void luda__lane_pull(luda_board *board, uint64_t sequence);
void luda__lane_release(luda_lane *lane);
void luda__mail_clear(luda_board *board, int rank);

/* --- Blame (blame.c), with the board's lock held; true: the call is over, for the reason in the fault --- */

bool luda__board_stopped(luda_wait *wait, luda_comm_fault *fault); /* aborted, closed or given up */
bool luda__blame_lost(const luda_wait *wait, const luda_record *record, luda_comm_fault *fault);
/* The deadline is over: before all have arrived; with data due from some (or, due from nobody, not all of ours taken). */
bool luda__blame_absent(luda_wait *wait, const luda_record *record, luda_comm_fault *fault);
bool luda__blame_late(luda_wait *wait, const bool *due, luda_comm_fault *fault);
/* A phase of waiting begins; until when a rank may sleep before it looks again. */
void luda__patience_begin(luda_wait *wait);
double luda__patience_until(luda_wait *wait);

/* --- Communicators (comm.c) --- */

enum { LUDA_FLIGHTS = 128 };
static const double luda__default_timeout = 300; /* seconds */

/* Times in ticks, which are cheaper to read than a clock. */
typedef struct luda_flight_row {
    luda_flight flight; /* under the lock, but for: */
    atomic_int state;
    atomic_ullong started, finished;
} luda_flight_row;

struct luda_comm {
    luda_object base;
    int rank, size;
    luda_transport transport;
    luda_board *board;
    int32_t algorithm, arity;
    int32_t link[3]; /* as in luda_announcement */
    double timeout;
    atomic_bool closed;
    uint64_t sequence;
    luda_comm_fault fault;
    const char *field;
    luda_announcement *asked; /* [size], of the last call that ranks disagreed about */
    char detail[320];
    pthread_mutex_t work_lock; /* of the turn: who is in a call, and what waits for it (work.c) */
    pthread_cond_t turn;
    atomic_bool busy; /* whoever sets it has the turn */
    bool worker;
    atomic_int works; /* started and not done */
    luda_work *first_work, *last_work;
    pthread_mutex_t flight_lock;
    uint64_t flown;
    luda_flight_row flights[LUDA_FLIGHTS];
    uint64_t born; /* ticks */
    double born_at; /* luda__now */
};

/* What the caller of an operation passes. */
typedef struct luda_arguments {
    luda_tensor *tensor;
    luda_reduction reduction;
    int root;
    bool in_place;
    luda_comm_options options; /* complete: zeros where the caller gave none */
} luda_arguments;

/* One call of one rank, from set-up to end. What is large comes last and is not cleared. */
typedef struct luda_collective_run {
    luda_comm *comm; /* lent */
    luda_tensor *input, *output; /* references: contiguous, in host memory; NULL: none. One reference where both are one */
    int64_t *lengths;  /* [2][size], a copy of uneven sizes, and of what is received */
    void *detached;    /* a late result, made on a thread that must not make tensors: `apart` */
    bool apart;
    luda_device device;
    uint64_t flight;
    luda_status local; /* found wrong before agreement; becomes a refusal */
    bool mailed;       /* data went as messages of the board */
    bool fallen;       /* a fault was written into the communicator */
    luda_wait wait;
    luda_announcement asked;
    luda_collective what;
    int64_t detached_shape[LUDA_MAX_DIMS];
    luda_comm_fault fault;
} luda_collective_run;

/* Options as the caller's version of the struct has them; zeros for NULL. */
luda_status luda__options(const luda_comm_options *given, luda_comm_options *out);
/* Checks the communicator and the options. Only if it succeeds, luda__run_end must follow. */
luda_status luda__run_begin(luda_collective_run *run, luda_comm *comm, luda_comm_call call,
                            const luda_comm_options *options);
/* This rank cannot make the call: with luda_last_error() as the reason. */
void luda__run_refuse(luda_collective_run *run, luda_status status);
/* Writes the flight record's row, once the announcement is complete. */
void luda__run_depart(luda_collective_run *run);
/* Exchanges announcements. The communicator must be claimed. */
luda_status luda__run_agree(luda_collective_run *run);
/* A failure after agreement: the others are told, and the communicator remembers. */
luda_status luda__run_fault(luda_collective_run *run, const luda_comm_fault *fault);
/* The same for a status whose message stands already; this rank is to blame. */
luda_status luda__run_fail(luda_collective_run *run, luda_status status);
/* After the exchange, in any case; returns the status with its message. The communicator stays claimed. */
luda_status luda__run_settle(luda_collective_run *run, luda_status status);
/* Frees what the run holds. */
void luda__run_end(luda_collective_run *run);

/* --- The turn (work.c): one call at a time, started ones first --- */

/* A call of the user's thread waits for those that were started before; a second thread is refused. */
luda_status luda__comm_claim(luda_comm *comm, const char *name);
void luda__comm_yield(luda_comm *comm);

/* --- Operations (calls.c), in the parts that may run on different threads --- */

void luda__call_prepare(luda_collective_run *run, const luda_arguments *arguments);
luda_status luda__call_exchange(luda_collective_run *run);
luda_status luda__call_hand_over(luda_collective_run *run, const luda_arguments *arguments, luda_tensor **out);
/* Entry `index` of what ranks asked for, as luda_comm_failure. */
const char *luda__failure_text(const luda_comm *comm, const luda_comm_fault *fault, const luda_announcement *asked,
                               int index, int32_t *rank);

/* --- Uneven pieces (sizes.c) --- */

/* What all_to_all announces in place of a digest: ranks tell each other how much they send, before or beside the data. */
enum { LUDA_SIZES_ASKED = 1, LUDA_SIZES_GIVEN = 2 };

/* Checks options->sizes against this rank's tensor (of `length` along dim; -1: it has none) and announces them. */
luda_status luda__check_sizes(luda_collective_run *run, const luda_comm_options *options, int64_t length);
/* The length along dim of the joined or uncut tensor. */
int64_t luda__sizes_sum(const int64_t *sizes, int count);

/* --- Data (steps.c, moves.c, algorithms.c, local.c) --- */

/* The algorithm a call announces; 0 where the operation has none of that name. */
luda_algorithm luda__algorithm_for(luda_comm_call call, luda_algorithm wanted);
luda_status luda__run_steps(luda_collective_run *run);
/* Uneven all_to_all: every rank tells every other how much it sends; fills what->received. */
luda_status luda__run_counts(luda_collective_run *run);

/* What the choice of an algorithm goes by; seconds. */
typedef struct luda_network {
    double latency; /* from the end of sending a message to its arrival */
    double message; /* a rank's connection is busy with one message, whatever its length */
    double byte, combine; /* to carry and to reduce one byte */
} luda_network;
typedef struct luda_way {
    luda_algorithm algorithm;
    int arity;
} luda_way;

luda_network luda__network(const int32_t settings[3]);
/* Expected seconds of a call over a whole tensor of `bytes`; negative where it has no such algorithm. */
double luda__cost(luda_comm_call call, luda_way way, int ranks, double bytes, const luda_network *link);
/* What `auto` means: the cheapest. The same on all ranks that agree about the arguments. */
luda_way luda__choose(luda_comm_call call, int ranks, double bytes, const luda_network *link);

/* Copies `rows` runs of `bytes` between arrays whose runs lie `to_pitch` and `from_pitch` bytes apart. */
void luda__copy_rows(void *to, int64_t to_pitch, const void *from, int64_t from_pitch, int64_t bytes, int64_t rows);

/*
 * Every rank's `in` is readable here. With `out` its memory is writable as well, and rank r reduces slice r into all of
 * them; NULL: each rank only writes its own.
 */
void luda__share(const luda_collective *call, const void *const *in, void *const *out);

/* The transport `local`, for one rank of a board. */
luda_status luda__local_comm(luda_board *board, int rank, const luda_comm_options *options, luda_comm **out);

/* --- Gradients (gradient.c) --- */

/* Ties the result of a call to its input, where that is tracked. */
luda_status luda__collective_record(luda_comm *comm, const luda_collective *what, luda_tensor *input,
                                    luda_tensor *output);
/* Whether a call of this kind has a gradient. */
bool luda__collective_differentiable(luda_comm_call call, luda_reduction reduction);

#endif
