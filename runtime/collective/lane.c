/* Coming to a call over the lane, waiting there, and waiting while data moves (lane.h). */
#include "lane.h"

#include <linux/futex.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* --- Life --- */

size_t luda__lane_bytes(int size, bool processes)
{
    size_t slots = sizeof(luda_lane_memory) + (size_t)size * sizeof(luda_lane_slot);
    return (slots + 4095) / 4096 * 4096 + (processes ? (size_t)size * LUDA_LANE_STAGING : 0);
}

luda_lane *luda__lane_new(luda_lane_memory *memory, int size, bool processes)
{
    static atomic_ullong lanes;
    luda_lane *lane = calloc(1, sizeof *lane);
    const char *wish = getenv("LUDA_SPIN_US");
    if (!lane)
        return NULL;
    lane->number = atomic_fetch_add(&lanes, 1) + 1;
    lane->processes = processes;
    lane->size = size;
    lane->memory = memory;
    lane->bytes = luda__lane_bytes(size, processes);
    lane->staging = (unsigned char *)memory + lane->bytes - (processes ? (size_t)size * LUDA_LANE_STAGING : 0);
    lane->crowded = size > sysconf(_SC_NPROCESSORS_ONLN);
    lane->spin = wish ? atoi(wish) : 200;
    return lane;
}

void luda__lane_release(luda_lane *lane)
{
    if (!lane)
        return;
    if (lane->processes)
        munmap(lane->memory, lane->bytes);
    else
        free(lane->memory);
    free(lane);
}

/* --- Sleeping and waking --- */

static void ring(luda_lane_slot *slot)
{
    atomic_fetch_add(&slot->bell, 1);
    if (atomic_load(&slot->asleep))
        syscall(SYS_futex, &slot->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void luda__lane_ring(const luda_lane *lane, int rank)
{
    ring(luda__lane_slot(lane, rank));
}

/* After a store that others may wait for. */
static void tell_sleepers(const luda_lane *lane, int rank)
{
    for (int q = 0; q < lane->size; q++)
        if (q != rank && atomic_load(&luda__lane_slot(lane, q)->asleep))
            ring(luda__lane_slot(lane, q));
}

void luda__lane_sleep(luda_board *board, int rank, double until, luda_lane_still still, const void *arg)
{
    luda_lane_slot *slot = luda__lane_slot(board->lane, rank);
    unsigned bell = atomic_load(&slot->bell);
    struct timespec when;
    /* A rank killed between its store and its call wakes nobody; its loss does, or this. */
    until = fmin(until, luda__now() + 0.5);
    when.tv_sec = (time_t)until;
    when.tv_nsec = (long)((until - (double)when.tv_sec) * 1e9);
    atomic_store(&slot->asleep, 1);
    if (still(board, rank, arg)) {
        pthread_mutex_unlock(&board->lock);
        syscall(SYS_futex, &slot->bell, FUTEX_WAIT_BITSET, bell, &when, NULL, FUTEX_BITSET_MATCH_ANY);
        pthread_mutex_lock(&board->lock);
    }
    atomic_store(&slot->asleep, 0);
}

/*
 * Spins until there is something to look at. On a busy machine whoever is waited for is not running: a rank that spun in
 * vain a few times leaves it for a while.
 */
static bool spin(luda_board *board, int rank, luda_lane_still still, const void *arg)
{
    enum { VAIN = 4, REST = 64, GLANCES = 32 };
    const luda_lane *lane = board->lane;
    luda_seat *seat = &board->seats[rank];
    unsigned pulse = atomic_load_explicit(&board->pulse, memory_order_acquire);
    double end = 0;
    if (lane->spin == 0 || (seat->vain >= VAIN && seat->vain++ < REST))
        return false;
    do {
        for (int i = 0; i < (lane->crowded ? 1 : GLANCES); i++) {
            if (!still(board, rank, arg)) {
                seat->vain = 0;
                return true;
            }
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        if (lane->crowded)
            sched_yield();
        end = end > 0 ? end : luda__now() + lane->spin * 1e-6;
    } while (atomic_load_explicit(&board->pulse, memory_order_acquire) == pulse && luda__now() < end);
    seat->vain = seat->vain >= REST ? VAIN : seat->vain + 1;
    return false;
}

/* --- Coming --- */

enum { COMING, ALL_CAME, FAILED };

static bool given_up(const luda_lane *lane, uint64_t sequence)
{
    return atomic_load(&lane->memory->failed[sequence % LUDA_LANE_VERDICTS]) >= sequence;
}

static int look(const luda_lane *lane, uint64_t sequence)
{
    uint64_t here = sequence * LUDA_LANE_PLACES;
    bool all = true;
    for (int q = 0; q < lane->size && all; q++)
        all = atomic_load(&luda__lane_slot(lane, q)->place) >= here;
    /* A rank may have changed its mind before the last one came. */
    for (int q = 0; q < lane->size && all; q++)
        all = atomic_load(&luda__lane_slot(lane, q)->place) != here + LUDA_LANE_LEAVING;
    if (given_up(lane, sequence))
        return FAILED;
    return all ? ALL_CAME : COMING;
}

static bool still_coming(luda_board *board, int rank, const void *sequence)
{
    return look(board->lane, *(const uint64_t *)sequence) == COMING;
}

static void note_failure(const luda_lane *lane, int rank, uint64_t sequence)
{
    if (!given_up(lane, sequence))
        atomic_store(&lane->memory->failed[sequence % LUDA_LANE_VERDICTS], sequence);
    atomic_store(&luda__lane_slot(lane, rank)->place, sequence * LUDA_LANE_PLACES + LUDA_LANE_GONE);
    tell_sleepers(lane, rank);
}

/* False: all have come after all, and the call goes on. */
static bool leave(const luda_lane *lane, int rank, uint64_t sequence)
{
    luda_lane_slot *mine = luda__lane_slot(lane, rank);
    uint64_t here = sequence * LUDA_LANE_PLACES;
    bool absent = false;
    atomic_store(&mine->place, here + LUDA_LANE_LEAVING);
    for (int q = 0; q < lane->size; q++)
        absent |= atomic_load(&luda__lane_slot(lane, q)->place) < here;
    if (absent) {
        note_failure(lane, rank, sequence);
    } else {
        atomic_store(&mine->place, here + LUDA_LANE_CAME);
        tell_sleepers(lane, rank);
    }
    return absent;
}

void luda__lane_pull(luda_board *board, uint64_t sequence)
{
    luda_record *record = sequence ? luda__board_record(board, sequence) : NULL;
    for (int q = 0; q < board->size; q++) {
        luda_lane_slot *slot = luda__lane_slot(board->lane, q);
        luda_seat *seat = &board->seats[q];
        uint64_t at = atomic_load(&slot->place) / LUDA_LANE_PLACES;
        if (at > seat->sequence) {
            seat->sequence = at;
            seat->operation = atomic_load_explicit(&slot->operation, memory_order_relaxed);
        }
        seat->waiting = at > atomic_load_explicit(&slot->over, memory_order_relaxed);
        if (record)
            record->here[q] = at >= sequence;
    }
}

static void announce(luda_collective_run *run)
{
    const luda_collective *what = &run->what;
    luda_lane *lane = run->wait.board->lane;
    luda_lane_slot *mine = luda__lane_slot(lane, run->wait.rank);
    int pair = run->wait.sequence & 1;
    int64_t bytes = run->input ? luda_tensor_numel(run->input) * luda__dtype_bytes[run->asked.dtype] : 0;
    uint64_t in = (uint64_t)(uintptr_t)what->in, out = (uint64_t)(uintptr_t)what->out;
    luda__asked_copy(&mine->asked[pair], &run->asked);
    atomic_store_explicit(&mine->hash[pair], run->asked.hash, memory_order_relaxed);
    atomic_store_explicit(&mine->operation, run->asked.operation, memory_order_relaxed);
    if (bytes > 0 && bytes <= LUDA_LANE_TINY)
        memcpy(mine->tiny[pair], what->in, (size_t)bytes);
    else if (bytes > 0 && bytes <= LUDA_LANE_SMALL)
        memcpy(mine->small[pair], what->in, (size_t)bytes);
    else if (bytes > 0 && lane->processes)
        luda__lane_stage(run, bytes, &in, &out);
    atomic_store_explicit(&mine->in[pair], in, memory_order_relaxed);
    atomic_store_explicit(&mine->out[pair], out, memory_order_relaxed);
    if (atomic_load_explicit(&mine->since, memory_order_relaxed))
        atomic_store_explicit(&mine->since, 0, memory_order_relaxed);
}

/* --- Waiting for all --- */

/* The clock of a call starts when the first rank waits. */
static double deadline_of(const luda_wait *wait)
{
    const luda_lane *lane = wait->board->lane;
    double now = luda__now(), first = now;
    atomic_store(&luda__lane_slot(lane, wait->rank)->since, (uint64_t)(now * 1e6));
    for (int q = 0; q < lane->size; q++) {
        luda_lane_slot *slot = luda__lane_slot(lane, q);
        double since = (double)atomic_load(&slot->since) * 1e-6;
        if (since > 0 && atomic_load(&slot->place) / LUDA_LANE_PLACES == wait->sequence)
            first = fmin(first, since);
    }
    return fmax(first + wait->timeout, now - 1);
}

/* Somebody gave the call up; why is on its way to the board. */
static luda_status await_reason(luda_wait *wait, luda_comm_fault *fault)
{
    enum { PATIENCE = 2 };
    luda_board *board = wait->board;
    double until = luda__now() + PATIENCE;
    for (;;) {
        if (luda__board_stopped(wait, fault) ||
            luda__board_find_lost(wait, luda__board_record(board, wait->sequence), fault))
            return (luda_status)fault->status;
        if (luda__now() >= until)
            break;
        luda__board_sleep(board, wait->rank, until);
    }
    luda__fault(fault, LUDA_ETIMEOUT, "%s: another rank gave call %llu up and did not say why", wait->name,
                (unsigned long long)wait->sequence);
    return LUDA_ETIMEOUT;
}

/* Why this rank should not wait any longer. With the lock held. */
static bool ended(luda_wait *wait, luda_comm_fault *fault, bool *mine)
{
    luda_record *record = luda__board_record(wait->board, wait->sequence);
    *mine = false;
    if (luda__board_stopped(wait, fault))
        return true;
    *mine = true;
    if (luda__board_find_lost(wait, record, fault))
        return true;
    if (wait->deadline > 0 && luda__now() >= wait->deadline) {
        luda__board_blame_absent(wait, record, fault);
        return true;
    }
    return false;
}

/* With the lock held; for the others too, where the reason is this rank's finding. */
static luda_status give_up(luda_wait *wait, const luda_comm_fault *fault, bool mine)
{
    luda_record *record = luda__board_record(wait->board, wait->sequence);
    if (mine && record && !record->failed) {
        record->failed = true;
        record->fault = *fault;
        luda__board_wake(wait->board);
    }
    if (mine && wait->transport->fail)
        wait->transport->fail(wait->transport->state, wait->sequence, fault);
    return (luda_status)fault->status;
}

static luda_status await_all(luda_wait *wait, luda_comm_fault *fault)
{
    luda_board *board = wait->board;
    luda_status status = LUDA_OK;
    bool mine;
    if (spin(board, wait->rank, still_coming, &wait->sequence) && look(board->lane, wait->sequence) == ALL_CAME)
        return LUDA_OK;
    pthread_mutex_lock(&board->lock);
    for (;;) {
        int how = look(board->lane, wait->sequence);
        if (how == FAILED)
            status = await_reason(wait, fault);
        if (how != COMING)
            break;
        if (wait->deadline == 0)
            wait->deadline = deadline_of(wait);
        luda__lane_pull(board, wait->sequence);
        if (ended(wait, fault, &mine)) {
            if (!leave(board->lane, wait->rank, wait->sequence))
                continue;
            status = give_up(wait, fault, mine);
            break;
        }
        luda__lane_sleep(board, wait->rank, luda__board_patience(wait), still_coming, &wait->sequence);
    }
    pthread_mutex_unlock(&board->lock);
    return status;
}

/* Something is wrong with the group: a rank that has not come yet may still stay away, and the call fails for all. */
static luda_status stay_away(luda_wait *wait, luda_comm_fault *fault)
{
    luda_board *board = wait->board;
    luda_status status = LUDA_OK;
    bool mine;
    pthread_mutex_lock(&board->lock);
    luda__lane_pull(board, wait->sequence);
    if (luda__board_record(board, wait->sequence))
        luda__board_record(board, wait->sequence)->here[wait->rank] = true;
    if (ended(wait, fault, &mine)) {
        note_failure(board->lane, wait->rank, wait->sequence);
        status = give_up(wait, fault, mine);
    }
    pthread_mutex_unlock(&board->lock);
    return status;
}

luda_status luda__lane_overtaken(const luda_wait *wait, luda_comm_fault *fault)
{
    luda__fault(fault, LUDA_ETIMEOUT, "%s: the other ranks gave call %llu up long ago", wait->name,
                (unsigned long long)wait->sequence);
    luda__blame(fault, wait->rank);
    return LUDA_ETIMEOUT;
}

bool luda__lane_intact(const luda_lane *lane, uint64_t sequence)
{
    for (int q = 0; q < lane->size; q++)
        if (atomic_load(&luda__lane_slot(lane, q)->place) / LUDA_LANE_PLACES > sequence + 1)
            return false;
    return true;
}

/* --- Agreement --- */

/* A rank that died while it wrote leaves anything. */
static void read_asked(const luda_lane_slot *slot, int pair, luda_announcement *asked)
{
    luda__asked_copy(asked, &slot->asked[pair]);
    asked->site[sizeof asked->site - 1] = asked->note[sizeof asked->note - 1] = 0;
    if (asked->ndim > LUDA_MAX_DIMS || asked->dtype >= LUDA_DTYPE_COUNT || asked->refused > LUDA_OK) {
        asked->ndim = asked->dtype = -1;
        asked->refused = LUDA_EINTERNAL;
    }
}

static bool all_ask_the_same(const luda_lane *lane, const luda_announcement *mine)
{
    int pair = mine->sequence & 1;
    /* Who sends a broadcast of unknown root, and why a rank refuses, the hash does not tell. */
    bool same = !mine->refused && (mine->operation != LUDA_CALL_BROADCAST || mine->root >= 0);
    for (int q = 0; q < lane->size && same; q++)
        same = atomic_load_explicit(&luda__lane_slot(lane, q)->hash[pair], memory_order_relaxed) == mine->hash;
    return same;
}

luda_status luda__lane_agree(luda_collective_run *run, luda_announcement *asked, luda_comm_fault *fault,
                             const char **field)
{
    luda_wait *wait = &run->wait;
    luda_lane *lane = wait->board->lane;
    luda_lane_slot *mine = luda__lane_slot(lane, wait->rank);
    announce(run);
    if (atomic_load(&wait->board->troubled))
        LUDA_TRY(stay_away(wait, fault));
    atomic_store(&mine->place, wait->sequence * LUDA_LANE_PLACES + LUDA_LANE_CAME);
    tell_sleepers(lane, wait->rank);
    if (look(lane, wait->sequence) != ALL_CAME)
        LUDA_TRY(await_all(wait, fault));
    if (all_ask_the_same(lane, &run->asked)) {
        luda__asked_copy(&run->what.agreed, &run->asked);
        return LUDA_OK;
    }
    for (int q = 0; q < lane->size; q++)
        read_asked(luda__lane_slot(lane, q), wait->sequence & 1, &asked[q]);
    if (!luda__lane_intact(lane, wait->sequence))
        return luda__lane_overtaken(wait, fault);
    return luda__compare(asked, lane->size, wait->rank, &run->what.agreed, fault, field);
}

/* --- While data moves --- */

void luda__lane_advance(luda_wait *wait, int step, uint64_t mark)
{
    atomic_store(&luda__lane_slot(wait->board->lane, wait->rank)->progress[step], mark);
    tell_sleepers(wait->board->lane, wait->rank);
}

typedef struct lateness {
    int step, from;
    uint64_t mark;
} lateness;

static bool behind(const luda_lane *lane, const lateness *l, int rank)
{
    return (l->from < 0 || l->from == rank) && atomic_load(&luda__lane_slot(lane, rank)->progress[l->step]) < l->mark;
}

static bool still_behind(luda_board *board, int rank, const void *arg)
{
    for (int q = 0; q < board->size; q++)
        if (q != rank && behind(board->lane, arg, q))
            return true;
    return false;
}

static bool need_progress(luda_wait *wait, const void *arg, bool *due)
{
    bool any = false;
    luda__lane_pull(wait->board, 0);
    for (int q = 0; q < wait->board->size; q++)
        if (q != wait->rank && behind(wait->board->lane, arg, q))
            any = due[q] = true;
    return any;
}

luda_status luda__lane_await(luda_wait *wait, int step, int from, uint64_t mark, luda_comm_fault *fault)
{
    luda_board *board = wait->board;
    lateness l = { step, from, mark };
    if (!still_behind(board, wait->rank, &l) || spin(board, wait->rank, still_behind, &l))
        return LUDA_OK;
    return luda__await(wait, need_progress, &l, still_behind, fault);
}

void luda__lane_depart(luda_wait *wait)
{
    luda_board *board = wait->board;
    lateness l = { LUDA_LANE_TAKEN, -1, luda__lane_mark(wait->sequence, 0) };
    luda__lane_advance(wait, l.step, l.mark);
    if (!still_behind(board, wait->rank, &l) || spin(board, wait->rank, still_behind, &l))
        return;
    pthread_mutex_lock(&board->lock);
    while (still_behind(board, wait->rank, &l))
        luda__lane_sleep(board, wait->rank, luda__now() + 1, still_behind, &l);
    pthread_mutex_unlock(&board->lock);
}

void luda__lane_over(const luda_wait *wait)
{
    atomic_store_explicit(&luda__lane_slot(wait->board->lane, wait->rank)->over, wait->sequence, memory_order_relaxed);
}
