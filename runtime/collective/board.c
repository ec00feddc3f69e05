/*
 * The board: who has arrived at which call, who is lost, who is to blame. Rank threads of one process share one; a rank
 * process has its own, which its transport keeps up to date. One lock; a sleeping rank is woken through its own condition.
 *
 * Whatever ends a call early is written into the call's record once, and every rank that comes to that call, however
 * late, reads the same fault.
 */
#include "collective.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const double grace = 1.0; /* seconds */

double luda__now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* --- Life --- */

/* Spinning pays only where everybody who may wake us has a core: a rank process also has its network thread. */
static int spin_microseconds(int size, int resident)
{
    const char *wish = getenv("LUDA_SPIN_US");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (wish)
        return atoi(wish);
    return (resident < 0 ? size : 2 * size) <= cores && size > 1 ? 50 : 0;
}

static bool is_resident(const luda_board *board, int rank)
{
    return board->resident < 0 || board->resident == rank;
}

static luda_status allocate(luda_board *board)
{
    size_t size = (size_t)board->size;
    pthread_condattr_t monotonic;
    board->seats = calloc(size, sizeof *board->seats);
    if (!board->seats)
        return LUDA_ENOMEM;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    for (size_t r = 0; r < size; r++)
        pthread_cond_init(&board->seats[r].wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (int i = 0; i < LUDA_RECORDS; i++) {
        luda_record *record = &board->records[i];
        record->asked = calloc(size, sizeof *record->asked);
        record->here = calloc(size, sizeof *record->here);
        if (!record->asked || !record->here)
            return LUDA_ENOMEM;
    }
    return LUDA_OK;
}

luda_status luda_board_new(int size, int resident, luda_board **out)
{
    luda_board *board;
    if (size < 1 || size > LUDA_MAX_RANKS || resident < -1 || resident >= size)
        return luda__fail(LUDA_EINVAL, "comm: %d ranks with rank %d here; 1 to %d ranks are possible", size, resident,
                          LUDA_MAX_RANKS);
    board = calloc(1, sizeof *board);
    if (!board)
        return luda__fail(LUDA_ENOMEM, "comm: no memory for %d ranks", size);
    atomic_init(&board->references, 1);
    pthread_mutex_init(&board->lock, NULL);
    board->size = size;
    board->resident = resident;
    board->spin = spin_microseconds(size, resident);
    if (allocate(board) != LUDA_OK) {
        luda_board_release(board);
        return luda__fail(LUDA_ENOMEM, "comm: no memory for %d ranks", size);
    }
    *out = board;
    return LUDA_OK;
}

void luda_board_retain(luda_board *board)
{
    atomic_fetch_add_explicit(&board->references, 1, memory_order_relaxed);
}

void luda_board_release(luda_board *board)
{
    if (!board || atomic_fetch_sub_explicit(&board->references, 1, memory_order_acq_rel) > 1)
        return;
    for (int r = 0; board->seats && r < board->size; r++) {
        luda__mail_clear(board, r);
        pthread_cond_destroy(&board->seats[r].wake);
    }
    for (int i = 0; i < LUDA_RECORDS; i++) {
        free(board->records[i].asked);
        free(board->records[i].here);
    }
    luda__lane_release(board->lane);
    free(board->seats);
    pthread_mutex_destroy(&board->lock);
    free(board);
}

/* --- Waking and sleeping --- */

void luda__board_wake(luda_board *board)
{
    atomic_fetch_add_explicit(&board->pulse, 1, memory_order_release);
    for (int r = 0; r < board->size; r++)
        if (is_resident(board, r)) {
            pthread_cond_broadcast(&board->seats[r].wake);
            if (board->lane)
                luda__lane_ring(board->lane, r);
        }
}

void luda__board_wake_one(luda_board *board, int rank)
{
    atomic_fetch_add_explicit(&board->pulse, 1, memory_order_release);
    pthread_cond_broadcast(&board->seats[rank].wake);
}

static bool spin(luda_board *board, double until)
{
    unsigned pulse = atomic_load_explicit(&board->pulse, memory_order_acquire);
    double end = luda__now() + board->spin * 1e-6;
    bool changed = false;
    pthread_mutex_unlock(&board->lock);
    end = end < until ? end : until;
    while (!changed && luda__now() < end) {
        for (int i = 0; i < 32 && !changed; i++)
            changed = atomic_load_explicit(&board->pulse, memory_order_acquire) != pulse;
    }
    pthread_mutex_lock(&board->lock);
    return changed || atomic_load_explicit(&board->pulse, memory_order_acquire) != pulse;
}

/* On a busy machine whoever would wake us is not running: a rank that spun in vain a few times leaves it for a while. */
static bool spin_with_luck(luda_board *board, luda_seat *seat, double until)
{
    enum { VAIN = 4, REST = 256 };
    if (board->spin == 0 || (seat->vain >= VAIN && seat->vain++ < REST))
        return false;
    if (spin(board, until)) {
        seat->vain = 0;
        return true;
    }
    seat->vain = seat->vain >= REST ? VAIN : seat->vain + 1;
    return false;
}

void luda__board_sleep(luda_board *board, int rank, double until)
{
    struct timespec when;
    if (spin_with_luck(board, &board->seats[rank], until))
        return;
    until = until < 1e15 ? until : 1e15;
    when.tv_sec = (time_t)until;
    when.tv_nsec = (long)((until - (double)when.tv_sec) * 1e9);
    pthread_cond_timedwait(&board->seats[rank].wake, &board->lock, &when);
}

/* --- Records --- */

/* NULL: the call is so old that its record has been used for a later one. */
luda_record *luda__board_record(luda_board *board, uint64_t sequence)
{
    luda_record *record = &board->records[sequence % LUDA_RECORDS];
    if (record->sequence > sequence)
        return NULL;
    if (record->sequence < sequence) {
        record->sequence = sequence;
        record->arrived = 0;
        record->settled = record->failed = false;
        record->first = 0;
        memset(record->here, 0, (size_t)board->size * sizeof *record->here);
    }
    return record;
}

static bool nobody_lost(const luda_board *board)
{
    for (int r = 0; r < board->size; r++)
        if (board->seats[r].presence != LUDA_PRESENT)
            return false;
    return true;
}

static luda_record *arrive(luda_board *board, int from, const luda_announcement *asked)
{
    luda_record *record = luda__board_record(board, asked->sequence);
    luda_seat *seat = &board->seats[from];
    seat->sequence = asked->sequence;
    seat->operation = asked->operation;
    seat->waiting = true;
    if (!record || record->here[from])
        return NULL;
    if (record->arrived++ == 0)
        record->first = luda__now();
    record->here[from] = true;
    record->asked[from] = *asked;
    /* A remote rank may be through with the call, and gone, before the news of the last arrival reaches us. */
    record->settled = record->arrived == board->size && !record->failed && !board->aborted &&
                      (board->resident >= 0 || nobody_lost(board));
    return record;
}

void luda_board_announced(luda_board *board, int from, const luda_announcement *asked)
{
    pthread_mutex_lock(&board->lock);
    arrive(board, from, asked);
    luda__board_wake(board);
    pthread_mutex_unlock(&board->lock);
}

void luda_board_failed(luda_board *board, uint64_t sequence, const luda_comm_fault *fault)
{
    pthread_mutex_lock(&board->lock);
    if (sequence == 0 && !board->aborted) {
        board->aborted = true;
        board->abort_fault = *fault;
        atomic_store(&board->troubled, true);
    } else if (sequence > 0) {
        luda_record *record = luda__board_record(board, sequence);
        if (record && !record->failed) {
            record->failed = true;
            record->fault = *fault;
        }
    }
    luda__board_wake(board);
    pthread_mutex_unlock(&board->lock);
}

void luda_board_lost(luda_board *board, int lost, int left, const char *text)
{
    luda_seat *seat = &board->seats[lost];
    pthread_mutex_lock(&board->lock);
    if (seat->presence == LUDA_PRESENT) {
        seat->presence = left ? LUDA_LEFT : LUDA_DIED;
        seat->lost_at = luda__now();
        snprintf(seat->lost_text, sizeof seat->lost_text, "%s",
                 text   ? text
                 : left ? "left the group"
                        : "connection closed");
        atomic_store(&board->troubled, true);
    }
    luda__board_wake(board);
    pthread_mutex_unlock(&board->lock);
}

void luda_board_alive(luda_board *board, int rank, uint64_t sequence, int waiting)
{
    luda_seat *seat = &board->seats[rank];
    pthread_mutex_lock(&board->lock);
    seat->answered = true;
    seat->waiting = waiting != 0;
    if (sequence > seat->sequence)
        seat->sequence = sequence;
    pthread_mutex_unlock(&board->lock);
}

void luda_board_position(luda_board *board, int rank, uint64_t *sequence, int *waiting)
{
    pthread_mutex_lock(&board->lock);
    if (board->lane)
        luda__lane_pull(board, 0);
    *sequence = board->seats[rank].sequence;
    *waiting = board->seats[rank].waiting;
    pthread_mutex_unlock(&board->lock);
}

/* --- Blame --- */

/* A rank that left right after a call had failed on it, a call that succeeded here: that failure is what happened. */
static bool find_earlier_fault(const luda_wait *wait, int rank, luda_comm_fault *fault)
{
    uint64_t last = wait->board->seats[rank].sequence;
    const luda_record *record = &wait->board->records[last % LUDA_RECORDS];
    if (last == 0 || record->sequence != last || !record->failed || last >= wait->sequence)
        return false;
    *fault = record->fault;
    snprintf(fault->text, sizeof fault->text, "%s: rank %d left after call %llu failed there: %.300s", wait->name, rank,
             (unsigned long long)last, record->fault.text);
    return true;
}

/*
 * Some rank that the call needs is gone: those that died, or, if none did, those that left. One that had arrived may have
 * completed the call (its last) while others are still hearing of it: it gets a moment.
 */
bool luda__board_find_lost(const luda_wait *wait, const luda_record *record, luda_comm_fault *fault)
{
    luda_board *board = wait->board;
    char who[128];
    const char *text = NULL;
    int worst = LUDA_PRESENT;
    for (int r = 0; r < board->size; r++)
        if (!record->here[r] || board->resident < 0 || luda__now() >= board->seats[r].lost_at + grace)
            worst = board->seats[r].presence > worst ? board->seats[r].presence : worst;
    if (worst == LUDA_PRESENT)
        return false;
    for (int r = 0; r < board->size && worst == LUDA_LEFT; r++)
        if (board->seats[r].presence == LUDA_LEFT && find_earlier_fault(wait, r, fault))
            return true;
    luda__fault(fault, LUDA_EPEER, "lost");
    for (int r = board->size - 1; r >= 0; r--)
        if (board->seats[r].presence == worst) {
            luda__blame(fault, r);
            text = board->seats[r].lost_text;
        }
    luda__culprits_text(fault, board->size, who, sizeof who);
    snprintf(fault->text, sizeof fault->text, "%s: lost %s (%s)", wait->name, who, text);
    return true;
}

/* Ranks that have not arrived. Who waits as we do is never among them. */
void luda__board_blame_absent(const luda_wait *wait, const luda_record *record, luda_comm_fault *fault)
{
    luda_board *board = wait->board;
    char who[128], seen[96] = "";
    int first = -1, count = 0;
    luda__fault(fault, LUDA_ETIMEOUT, "absent");
    for (int r = board->size - 1; r >= 0; r--)
        if (!record->here[r]) {
            luda__blame(fault, r);
            first = r;
            count++;
        }
    luda__culprits_text(fault, board->size, who, sizeof who);
    if (first >= 0 && board->seats[first].sequence > 0)
        snprintf(seen, sizeof seen, "; rank %d was last seen at call %llu, %s", first,
                 (unsigned long long)board->seats[first].sequence, luda__call_name(board->seats[first].operation));
    snprintf(fault->text, sizeof fault->text, "%s: timed out after %g s: %s %s not arrived at call %llu%s", wait->name,
             wait->timeout, who, count == 1 ? "has" : "have", (unsigned long long)wait->sequence, seen);
}

bool luda__board_stopped(luda_wait *wait, luda_comm_fault *fault)
{
    luda_board *board = wait->board;
    luda_record *record = wait->sequence ? luda__board_record(board, wait->sequence) : NULL;
    if (board->aborted) {
        *fault = board->abort_fault;
        return true;
    }
    if (board->seats[wait->rank].presence != LUDA_PRESENT) {
        luda__fault(fault, LUDA_ECLOSED, "%s: the communicator was closed", wait->name);
        return true;
    }
    if (wait->sequence && !record) {
        luda__fault(fault, LUDA_ETIMEOUT, "%s: the other ranks gave call %llu up long ago", wait->name,
                    (unsigned long long)wait->sequence);
        luda__blame(fault, wait->rank);
        return true;
    }
    if (record && record->failed) {
        *fault = record->fault;
        if (luda__blamed(fault, wait->rank))
            snprintf(fault->text, sizeof fault->text,
                     "%s: the other ranks gave call %llu up because of rank %d: %.300s", wait->name,
                     (unsigned long long)wait->sequence, wait->rank, record->fault.text);
        return true;
    }
    return false;
}

/* --- A call --- */

double luda__board_patience(const luda_wait *wait)
{
    return nobody_lost(wait->board) ? wait->deadline : fmin(wait->deadline, luda__now() + grace / 4);
}

void luda__board_arrive(luda_wait *wait, const luda_announcement *asked)
{
    luda_board *board = wait->board;
    luda_record *record;
    pthread_mutex_lock(&board->lock);
    record = arrive(board, wait->rank, asked);
    wait->deadline = (record ? record->first : luda__now()) + wait->timeout;
    if (record && board->resident < 0 && record->arrived == board->size)
        luda__board_wake(board);
    pthread_mutex_unlock(&board->lock);
    if (wait->transport->announce)
        wait->transport->announce(wait->transport->state, asked);
}

void luda__board_give_up(luda_wait *wait, const luda_comm_fault *fault)
{
    if (wait->sequence == 0)
        return;
    luda_board_failed(wait->board, wait->sequence, fault);
    if (wait->transport->fail)
        wait->transport->fail(wait->transport->state, wait->sequence, fault);
}

luda_status luda__board_agree(luda_wait *wait, luda_announcement *agreed, luda_announcement *asked,
                              luda_comm_fault *fault, const char **field)
{
    luda_board *board = wait->board;
    bool mine = false; /* this rank found the fault, and tells */
    luda_status status = LUDA_OK;

    pthread_mutex_lock(&board->lock);
    for (;;) {
        luda_record *record = luda__board_record(board, wait->sequence);
        if (record && record->settled) {
            status = luda__compare(record->asked, board->size, wait->rank, agreed, fault, field);
            if (status != LUDA_OK)
                memcpy(asked, record->asked, (size_t)board->size * sizeof *asked);
            break;
        }
        if (luda__board_stopped(wait, fault)) {
            status = (luda_status)fault->status;
            break;
        }
        if (luda__board_find_lost(wait, record, fault)) {
            mine = true;
        } else if (luda__now() >= wait->deadline) {
            luda__board_blame_absent(wait, record, fault);
            mine = true;
        }
        if (mine) {
            status = (luda_status)fault->status;
            record->failed = true;
            record->fault = *fault;
            luda__board_wake(board);
            break;
        }
        luda__board_sleep(board, wait->rank, luda__board_patience(wait));
    }
    pthread_mutex_unlock(&board->lock);
    if (mine && wait->transport->fail)
        wait->transport->fail(wait->transport->state, wait->sequence, fault);
    return status;
}

void luda__board_over(luda_board *board, int rank, uint64_t sequence)
{
    pthread_mutex_lock(&board->lock);
    board->seats[rank].over = sequence;
    board->seats[rank].waiting = false;
    pthread_mutex_unlock(&board->lock);
}
