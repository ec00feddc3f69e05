/*
 * Messages of the board. Whoever comes first, the receiver or the message, leaves a mail in the rank's list; the other
 * finds it there. A transport writes into the receiver's memory directly where the receiver came first. `busy` marks the
 * moments in which it writes without the lock; withdrawing waits for their end.
 */
#include "collective.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct luda_mail {
    luda_mail *next;
    luda_board *board;
    int to, from;
    luda_slot_name slot;
    size_t bytes, got;
    size_t room;  /* of memory: what nobody expected yet gets more as it comes, never all of a length that is only said */
    char *memory; /* NULL: nobody wants it */
    bool posted;  /* the memory is a receiver's */
    bool begun;   /* the transport has it */
    bool busy;
    bool listed;
};

static bool complete(const luda_mail *mail)
{
    return mail->begun && mail->got == mail->bytes;
}

static bool same_slot(const luda_mail *mail, int from, luda_slot_name slot)
{
    return mail->from == from && mail->slot.sequence == slot.sequence && mail->slot.step == slot.step &&
           mail->slot.kind == slot.kind;
}

/* --- The list of a rank --- */

static void append(luda_seat *seat, luda_mail *mail)
{
    mail->listed = true;
    if (seat->last)
        seat->last->next = mail;
    else
        seat->first = mail;
    seat->last = mail;
}

static void detach(luda_seat *seat, luda_mail *mail)
{
    luda_mail *before = NULL;
    for (luda_mail *m = seat->first; m != mail; m = m->next)
        before = m;
    if (before)
        before->next = mail->next;
    else
        seat->first = mail->next;
    if (seat->last == mail)
        seat->last = before;
    mail->next = NULL;
    mail->listed = false;
}

static luda_mail *find(luda_seat *seat, int from, luda_slot_name slot, bool posted)
{
    for (luda_mail *m = seat->first; m; m = m->next)
        if (m->posted == posted && m->begun != posted && same_slot(m, from, slot))
            return m;
    return NULL;
}

static void discard(luda_mail *mail)
{
    if (!mail->posted)
        free(mail->memory);
    free(mail);
}

/* Waits for a moment without a write in progress. */
static void hold(luda_board *board, luda_seat *seat, const luda_mail *mail)
{
    seat->held = true;
    while (mail->busy)
        luda__board_sleep(board, mail->to, luda__now() + 1);
    seat->held = false;
}

/* Takes a mail out of the list; what the transport still has in hand is freed by the transport's last give. */
static void remove_mail(luda_board *board, luda_seat *seat, luda_mail *mail)
{
    hold(board, seat, mail);
    detach(seat, mail);
    if (mail->begun && mail->got < mail->bytes) {
        if (!mail->posted)
            free(mail->memory);
        mail->memory = NULL;
    } else {
        discard(mail);
    }
}

void luda__mail_clear(luda_board *board, int rank)
{
    luda_mail *next;
    for (luda_mail *m = board->seats[rank].first; m; m = next) {
        next = m->next;
        discard(m);
    }
}

static luda_mail *new_mail(luda_board *board, int to, int from, luda_slot_name slot, size_t bytes)
{
    luda_mail *mail = calloc(1, sizeof *mail);
    if (!mail)
        return NULL;
    mail->board = board;
    mail->to = to;
    mail->from = from;
    mail->slot = slot;
    mail->bytes = bytes;
    return mail;
}

/* --- The transport's side --- */

enum { FIRST_ROOM = 1 << 20 };

/* Of a call that is over, or of one that no rank can be at. */
static bool stale(const luda_seat *seat, luda_slot_name slot)
{
    return slot.kind == LUDA_SLOT_STEP &&
           (slot.sequence <= seat->over || slot.sequence > seat->sequence + LUDA_RECORDS);
}

/* Room for more of what nobody expects yet; without memory the rest is dropped as it comes. */
static void make_room(luda_seat *seat, luda_mail *mail)
{
    size_t room = mail->room > mail->bytes / 2 ? mail->bytes : 2 * mail->room;
    char *memory;
    if (mail->posted || !mail->memory || mail->got < mail->room || mail->room == mail->bytes)
        return;
    memory = realloc(mail->memory, room);
    if (memory) {
        mail->memory = memory;
        mail->room = room;
    } else {
        detach(seat, mail);
        free(mail->memory);
        mail->memory = NULL;
    }
}

luda_mail *luda_mail_begin(luda_board *board, int to, int from, luda_slot_name slot, size_t bytes)
{
    luda_seat *seat = &board->seats[to];
    luda_mail *mail;
    pthread_mutex_lock(&board->lock);
    mail = find(seat, from, slot, true);
    if (mail && mail->bytes != bytes) {
        /* The receiver keeps waiting for the right one, and the deadline names the sender. */
        mail = NULL;
    }
    if (mail) {
        mail->begun = true;
    } else {
        mail = new_mail(board, to, from, slot, bytes);
        if (mail) {
            mail->begun = true;
            mail->room = bytes < FIRST_ROOM ? bytes : FIRST_ROOM;
            mail->memory = stale(seat, slot) ? NULL : malloc(bytes ? mail->room : 1);
            if (mail->memory)
                append(seat, mail);
        }
    }
    if (mail && bytes == 0) {
        if (!mail->listed)
            discard(mail);
        luda__board_wake_one(board, to);
        mail = NULL;
    }
    pthread_mutex_unlock(&board->lock);
    return mail;
}

void *luda_mail_take(luda_mail *mail, size_t *room)
{
    luda_board *board = mail->board;
    void *memory = NULL;
    pthread_mutex_lock(&board->lock);
    make_room(&board->seats[mail->to], mail);
    *room = (mail->memory ? mail->room : mail->bytes) - mail->got;
    if (mail->memory) {
        mail->busy = true;
        memory = mail->memory + mail->got;
    }
    pthread_mutex_unlock(&board->lock);
    return memory;
}

void luda_mail_give(luda_mail *mail, size_t written)
{
    luda_board *board = mail->board;
    int to = mail->to;
    bool wanted;
    pthread_mutex_lock(&board->lock);
    mail->busy = false;
    mail->got += written;
    wanted = complete(mail) || board->seats[to].held;
    if (complete(mail) && !mail->listed)
        discard(mail);
    if (wanted)
        luda__board_wake_one(board, to);
    pthread_mutex_unlock(&board->lock);
}

void luda_mail_drop(luda_mail *mail)
{
    luda_board *board = mail->board;
    pthread_mutex_lock(&board->lock);
    mail->busy = false;
    if (mail->listed)
        mail->begun = false; /* it never completes; the lost sender is found by whoever waits */
    else
        discard(mail);
    pthread_mutex_unlock(&board->lock);
}

luda_status luda__mail_deliver(luda_board *board, int to, int from, luda_slot_name slot, const void *data, size_t bytes)
{
    luda_mail *mail = luda_mail_begin(board, to, from, slot, bytes);
    const char *at = data;
    if (!mail)
        return bytes == 0 ? LUDA_OK : luda__fail(LUDA_ENOMEM, "comm: no memory for a message of %zu bytes", bytes);
    while (bytes > 0) {
        size_t room;
        void *memory = luda_mail_take(mail, &room);
        if (memory)
            memcpy(memory, at, room);
        at += room;
        bytes -= room;
        luda_mail_give(mail, room);
    }
    return LUDA_OK;
}

void luda__mail_sending(luda_board *board, int rank)
{
    pthread_mutex_lock(&board->lock);
    board->seats[rank].unsent++;
    pthread_mutex_unlock(&board->lock);
}

void luda_board_sent(luda_board *board, int rank)
{
    pthread_mutex_lock(&board->lock);
    board->seats[rank].unsent--;
    luda__board_wake_one(board, rank);
    pthread_mutex_unlock(&board->lock);
}

/* --- The receiver's side --- */

luda_status luda__mail_post(luda_board *board, int rank, int from, luda_slot_name slot, void *memory, size_t bytes)
{
    luda_seat *seat = &board->seats[rank];
    luda_mail *mail;
    luda_status status = LUDA_OK;
    pthread_mutex_lock(&board->lock);
    mail = find(seat, from, slot, false);
    if (mail && mail->bytes == bytes) {
        hold(board, seat, mail);
        memcpy(memory, mail->memory, mail->got);
        free(mail->memory);
        mail->memory = memory;
        mail->room = bytes;
        mail->posted = true;
    } else {
        mail = new_mail(board, rank, from, slot, bytes);
        if (mail) {
            mail->memory = memory;
            mail->room = bytes;
            mail->posted = true;
            append(seat, mail);
        } else {
            status = luda__fail(LUDA_ENOMEM, "comm: no memory for a message");
        }
    }
    pthread_mutex_unlock(&board->lock);
    return status;
}

/* Ranks that keep us waiting in the data phase: the silent ones, else those elsewhere, else those whose data is due. */
static void blame_late(luda_wait *wait, const bool *due, luda_comm_fault *fault)
{
    luda_board *board = wait->board;
    char who[128];
    const char *text = "no answer from";
    bool found = false;
    luda__fault(fault, LUDA_ETIMEOUT, "late");
    for (int r = 0; r < board->size && wait->transport->query; r++)
        if (r != wait->rank && !board->seats[r].answered) {
            luda__blame(fault, r);
            found = true;
        }
    if (!found) {
        text = "no longer in this call:";
        for (int r = 0; r < board->size; r++)
            if (r != wait->rank && due[r] && wait->sequence &&
                (board->seats[r].sequence != wait->sequence || !board->seats[r].waiting)) {
                luda__blame(fault, r);
                found = true;
            }
    }
    if (!found) {
        text = "no data from";
        for (int r = 0; r < board->size; r++)
            if (due[r])
                luda__blame(fault, r);
    }
    luda__culprits_text(fault, board->size, who, sizeof who);
    snprintf(fault->text, sizeof fault->text, "%s: timed out after %g s: %s %s", wait->name, wait->timeout, text, who);
}

/* Which ranks a waiter still needs; false: none. */
typedef bool (*need)(luda_wait *wait, uint64_t what, const luda_slot_name *slot, bool *due);

static bool need_steps(luda_wait *wait, uint64_t step, const luda_slot_name *slot, bool *due)
{
    bool any = false;
    for (luda_mail *m = wait->board->seats[wait->rank].first; m; m = m->next)
        if (m->posted && m->slot.kind == LUDA_SLOT_STEP && m->slot.sequence == wait->sequence && m->slot.step <= step &&
            !complete(m))
            any = due[m->from] = true;
    return any;
}

static bool need_message(luda_wait *wait, uint64_t from, const luda_slot_name *slot, bool *due)
{
    bool any = false;
    for (luda_mail *m = wait->board->seats[wait->rank].first; m; m = m->next)
        if (m->posted && same_slot(m, (int)from, *slot) && !complete(m))
            any = due[m->from] = true;
    return any;
}

/* Nobody in particular takes our data: found out by asking. */
static bool need_flush(luda_wait *wait, uint64_t unused, const luda_slot_name *slot, bool *due)
{
    return wait->board->seats[wait->rank].unsent > 0;
}

static bool lost_among(luda_wait *wait, const bool *due, bool all, luda_comm_fault *fault)
{
    luda_board *board = wait->board;
    for (int r = 0; r < board->size; r++)
        if ((due[r] || all) && r != wait->rank && board->seats[r].presence != LUDA_PRESENT) {
            luda__fault(fault, LUDA_EPEER, "%s: lost rank %d (%s)", wait->name, r, board->seats[r].lost_text);
            luda__blame(fault, r);
            return true;
        }
    return false;
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

/* The one loop of the data phase. Near the deadline all others are asked where they are. */
static luda_status await(luda_wait *wait, need needed, uint64_t what, const luda_slot_name *slot,
                         luda_comm_fault *fault)
{
    luda_board *board = wait->board;
    double ask_at = wait->deadline - fmin(wait->timeout / 2, 2.0);
    bool asked = wait->transport->query == NULL, due[LUDA_MAX_RANKS];
    luda_status status = LUDA_OK;

    pthread_mutex_lock(&board->lock);
    for (;;) {
        double now;
        memset(due, 0, (size_t)board->size);
        if (!needed(wait, what, slot, due))
            break;
        now = luda__now();
        if (luda__board_stopped(wait, fault) || lost_among(wait, due, needed == need_flush, fault)) {
            status = (luda_status)fault->status;
            break;
        }
        if (asked && now >= wait->deadline) {
            blame_late(wait, due, fault);
            status = LUDA_ETIMEOUT;
            break;
        }
        if (!asked && now >= ask_at) {
            /* A call that comes here late, with its deadline near, still gives the others time to answer. */
            wait->deadline = fmax(wait->deadline, now + 0.1);
            ask_everyone(wait);
            asked = true;
            continue;
        }
        luda__board_sleep(board, wait->rank, asked ? wait->deadline : ask_at);
    }
    pthread_mutex_unlock(&board->lock);
    return status;
}

luda_status luda__mail_await(luda_wait *wait, uint32_t step, luda_comm_fault *fault)
{
    return await(wait, need_steps, step, NULL, fault);
}

luda_status luda__mail_await_message(luda_wait *wait, int from, luda_slot_name slot, luda_comm_fault *fault)
{
    return await(wait, need_message, (uint64_t)from, &slot, fault);
}

luda_status luda__mail_flush(luda_wait *wait, luda_comm_fault *fault)
{
    return await(wait, need_flush, 0, NULL, fault);
}

void luda__mail_withdraw(luda_board *board, int rank, uint64_t sequence)
{
    luda_seat *seat = &board->seats[rank];
    luda_mail *mail;
    pthread_mutex_lock(&board->lock);
    seat->unsent = 0;
    do {
        mail = seat->first;
        while (mail && !(mail->slot.kind == LUDA_SLOT_STEP && mail->slot.sequence <= sequence))
            mail = mail->next;
        if (mail)
            remove_mail(board, seat, mail);
    } while (mail);
    pthread_mutex_unlock(&board->lock);
}

void luda__mail_withdraw_message(luda_board *board, int rank, int from, luda_slot_name slot)
{
    luda_seat *seat = &board->seats[rank];
    luda_mail *mail;
    pthread_mutex_lock(&board->lock);
    do {
        mail = seat->first;
        while (mail && !(mail->posted && same_slot(mail, from, slot)))
            mail = mail->next;
        if (mail)
            remove_mail(board, seat, mail);
    } while (mail);
    pthread_mutex_unlock(&board->lock);
}
