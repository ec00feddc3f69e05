/*
 * Why a call ends early, and whose fault that is. Near the deadline a rank asks all others, over their control channels,
 * where they are; a network thread answers whatever its main thread does. A rank that waits as we do is blamed only where
 * nobody else can be.
 */
#include "collective.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Seconds: for news of a lost rank's last call; for answers; between looks while they come; overslept by one that was stopped. */
static const double grace = 1.0, answer = 0.25, look = 0.05, stall = 0.1;

/* --- What happened already --- */

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
bool luda__blame_lost(const luda_wait *wait, const luda_record *record, luda_comm_fault *fault)
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

/* --- Patience --- */

void luda__patience_begin(luda_wait *wait)
{
    wait->asked = wait->spared = wait->stood_still = false;
    wait->awake = INFINITY;
}

static double ask_at(const luda_wait *wait)
{
    return wait->deadline - fmax(fmin(wait->timeout / 2, 2.0), fmin(answer, wait->timeout * 0.9));
}

static void ask_everyone(luda_wait *wait)
{
    luda_board *board = wait->board;
    for (int r = 0; r < board->size; r++)
        board->seats[r].answered = false;
    pthread_mutex_unlock(&board->lock);
    wait->transport->query(wait->transport->state);
    pthread_mutex_lock(&board->lock);
}

static bool all_answered(const luda_wait *wait)
{
    for (int r = 0; r < wait->board->size; r++)
        if (r != wait->rank && wait->board->seats[r].presence == LUDA_PRESENT && !wait->board->seats[r].answered)
            return false;
    return true;
}

/*
 * The deadline is over, and everybody has said where they are, or had the time to. A process that itself stood still
 * (stopped, suspended) has not read yet what the others said meanwhile: it asks again.
 */
static bool out_of_time(luda_wait *wait)
{
    double now = luda__now();
    wait->stood_still |= now > wait->awake + stall;
    wait->awake = INFINITY;
    if (!wait->transport->query)
        return now >= wait->deadline;
    if (wait->asked ? wait->stood_still && now >= wait->deadline : now >= ask_at(wait)) {
        wait->answers_by = fmax(wait->deadline, now + answer);
        wait->asked = true;
        wait->stood_still = false;
        ask_everyone(wait);
        return false;
    }
    return now >= wait->deadline && (now >= wait->answers_by || all_answered(wait));
}

double luda__patience_until(luda_wait *wait)
{
    double until = wait->deadline, now = luda__now();
    if (wait->transport->query)
        until = !wait->asked ? ask_at(wait) : fmin(now + look, now < wait->deadline ? wait->deadline : wait->answers_by);
    if (!luda__board_complete(wait->board))
        until = fmin(until, now + grace / 4);
    wait->awake = until;
    return until;
}

/* --- Who is late --- */

static bool silent(const luda_wait *wait, int rank)
{
    return wait->transport->query && rank != wait->rank && !wait->board->seats[rank].answered;
}

/* Not in the call, and not waiting in an earlier one either. */
static bool elsewhere(const luda_wait *wait, int rank)
{
    const luda_seat *seat = &wait->board->seats[rank];
    return wait->sequence && rank != wait->rank && !(seat->waiting && seat->sequence <= wait->sequence);
}

/* Blames those of `among` (NULL: all) that are so; false: nobody is. */
static bool blame_who(const luda_wait *wait, const bool *among, bool (*is)(const luda_wait *, int),
                      luda_comm_fault *fault)
{
    bool any = false;
    for (int r = 0; r < wait->board->size; r++)
        if ((!among || among[r]) && (!is || is(wait, r))) {
            luda__blame(fault, r);
            any = true;
        }
    return any;
}

/*
 * Those who wait as we do may know more, and their deadlines are near as well: their word is waited for, once, and by then
 * all must have answered again.
 */
static bool spare(luda_wait *wait)
{
    if (wait->spared || !wait->transport->query)
        return false;
    wait->spared = true;
    wait->answers_by = wait->deadline = luda__now() + answer;
    ask_everyone(wait);
    return true;
}

/* "all_reduce: timed out after 2 s: rank 3 has not arrived at call 7; rank 3 was last seen at call 6, barrier" */
static void describe(const luda_wait *wait, luda_comm_fault *fault, const char *one, const char *many)
{
    const luda_board *board = wait->board;
    char who[128], seen[96] = "";
    int first = -1, count = 0;
    for (int r = board->size - 1; r >= 0; r--)
        if (luda__blamed(fault, r)) {
            first = r;
            count++;
        }
    if (wait->sequence && first >= 0 && board->seats[first].sequence > 0)
        snprintf(seen, sizeof seen, "; rank %d was last seen at call %llu, %s", first,
                 (unsigned long long)board->seats[first].sequence, luda__call_name(board->seats[first].operation));
    snprintf(fault->text, sizeof fault->text, "%s: timed out after %g s: %s %s%s", wait->name, wait->timeout,
             luda__culprits_text(fault, board->size, who, sizeof who), count == 1 ? one : many, seen);
}

bool luda__blame_absent(luda_wait *wait, const luda_record *record, luda_comm_fault *fault)
{
    bool absent[LUDA_MAX_RANKS];
    char one[64], many[64];
    if (!out_of_time(wait))
        return false;
    for (int r = 0; r < wait->board->size; r++)
        absent[r] = !record->here[r];
    luda__fault(fault, LUDA_ETIMEOUT, "absent");
    snprintf(one, sizeof one, "does not answer rank %d", wait->rank);
    snprintf(many, sizeof many, "do not answer rank %d", wait->rank);
    if (!blame_who(wait, absent, silent, fault)) {
        bool known = blame_who(wait, absent, elsewhere, fault);
        if (!known && !blame_who(wait, NULL, silent, fault)) {
            if (spare(wait))
                return false;
            known = blame_who(wait, absent, NULL, fault);
        }
        if (known) {
            snprintf(one, sizeof one, "has not arrived at call %llu", (unsigned long long)wait->sequence);
            snprintf(many, sizeof many, "have not arrived at call %llu", (unsigned long long)wait->sequence);
        }
    }
    describe(wait, fault, one, many);
    return true;
}

bool luda__blame_late(luda_wait *wait, const bool *due, luda_comm_fault *fault)
{
    char one[64], many[64];
    if (!out_of_time(wait))
        return false;
    luda__fault(fault, LUDA_ETIMEOUT, "late");
    snprintf(one, sizeof one, "does not answer rank %d", wait->rank);
    snprintf(many, sizeof many, "do not answer rank %d", wait->rank);
    /* Whoever is silent in a call holds up those that we wait for; a message has one sender. */
    if (!blame_who(wait, wait->sequence ? NULL : due, silent, fault)) {
        /* Data of a rank that went on may still be on its way here. */
        if (spare(wait))
            return false;
        if (blame_who(wait, due, elsewhere, fault)) {
            snprintf(one, sizeof one, "is no longer in call %llu", (unsigned long long)wait->sequence);
            snprintf(many, sizeof many, "are no longer in call %llu", (unsigned long long)wait->sequence);
        } else {
            bool owed = blame_who(wait, due, NULL, fault);
            snprintf(one, sizeof one, "sent no data");
            snprintf(many, sizeof many, owed ? "sent no data" : "is known to be late; data for others is on its way");
        }
    }
    describe(wait, fault, one, many);
    return true;
}
