/* One connection of the mesh: frames in, frames out, and how it ends. */
#include "mesh.h"
#include "secret.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

/* One turn of a connection; then the others, and the control channels with them, have theirs. */
enum { ROUNDS = 16, PIECE = 1 << 17 };

static void on_poll(uv_poll_t *poll, int status, int events);

static luda_mesh *mesh_of(const luda_channel *c)
{
    return c->link->mesh;
}

static bool is_data(const luda_channel *c)
{
    return c == &c->link->channels[LUDA_CHANNEL_DATA];
}

/* --- The end --- */

void luda__outgoing_free(luda_outgoing *outgoing)
{
    free(outgoing->owned);
    free(outgoing);
}

static void shut(luda_channel *c)
{
    if (!c->open) {
        luda__disconnect(&c->connection);
        return;
    }
    c->open = false;
    if (c->mail)
        luda_mail_drop(c->mail);
    c->mail = NULL;
    uv_poll_stop(&c->poll);
    uv_close((uv_handle_t *)&c->poll, luda__mesh_handle_closed);
    luda__disconnect(&c->connection);
    while (c->first) {
        luda_outgoing *o = c->first;
        c->first = o->next;
        luda__outgoing_free(o);
    }
    c->last = NULL;
}

void luda__link_lost(luda_link *link, bool left, const char *text)
{
    if (link->lost)
        return;
    link->lost = true;
    for (int i = 0; i < LUDA_CHANNELS; i++)
        shut(&link->channels[i]);
    uv_close((uv_handle_t *)&link->grace, luda__mesh_handle_closed);
    luda_board_lost(link->mesh->board, link->rank, left, text);
    luda__mesh_link_ended(link->mesh);
}

static void on_grace(uv_timer_t *timer)
{
    luda_link *link = (luda_link *)((char *)timer - offsetof(luda_link, grace));
    luda__link_lost(link, false, "connection closed");
}

/* What the rank said last may still be on the other connection. */
static void end(luda_channel *c, const char *why)
{
    enum { GRACE_MS = 200 };
    luda_link *link = c->link;
    luda_channel *other = &link->channels[is_data(c) ? LUDA_CHANNEL_CONTROL : LUDA_CHANNEL_DATA];
    if (c->ended)
        return;
    c->ended = true;
    if (c->left && other->left) {
        luda__link_lost(link, true, NULL);
    } else if (other->ended) {
        luda__link_lost(link, false, why);
    } else {
        uv_poll_stop(&c->poll);
        uv_timer_start(&link->grace, on_grace, GRACE_MS, 0);
    }
}

/* --- Out --- */

static void watch(luda_channel *c)
{
    bool writing = luda__channel_busy(c);
    if (!c->open || c->ended || writing == c->writing)
        return;
    c->writing = writing;
    uv_poll_start(&c->poll, writing ? UV_READABLE | UV_WRITABLE : UV_READABLE, on_poll);
}

static ssize_t write_some(luda_channel *c, const luda_outgoing *o)
{
    struct iovec pieces[2];
    size_t count = 0;
    size_t skip = o->sent < LUDA_FRAME_BYTES ? 0 : (size_t)(o->sent - LUDA_FRAME_BYTES);
    if (o->sent < LUDA_FRAME_BYTES)
        pieces[count++] =
            (struct iovec){ (void *)(o->header + o->sent), (size_t)(LUDA_FRAME_BYTES - o->sent) };
    if (o->bytes > skip)
        pieces[count++] =
            (struct iovec){ (void *)(o->data + skip), (size_t)(o->bytes - skip < PIECE ? o->bytes - skip : PIECE) };
    return luda__sealed_send(c->connection.seal, c->connection.fd, pieces, count);
}

bool luda__channel_busy(const luda_channel *c)
{
    return c->first || luda__sealed_pending(c->connection.seal);
}

static void write_frames(luda_channel *c)
{
    for (int round = 0; round < ROUNDS && c->first && c->open && !c->ended; round++) {
        luda_outgoing *o = c->first;
        ssize_t n = write_some(c, o);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0) {
            end(c, strerror(errno));
            return;
        }
        o->sent += (uint64_t)n;
        if (o->sent < LUDA_FRAME_BYTES + o->bytes)
            continue;
        c->first = o->next;
        if (!c->first)
            c->last = NULL;
        if (o->counted)
            luda_board_sent(mesh_of(c)->board, mesh_of(c)->rank);
        luda__outgoing_free(o);
    }
    if (!c->first && luda__sealed_flush(c->connection.seal, c->connection.fd) < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
        end(c, strerror(errno));
        return;
    }
    watch(c);
}

void luda__channel_send(luda_outgoing *outgoing)
{
    luda_channel *c = outgoing->channel;
    outgoing->next = NULL;
    if (!c->open || c->ended) {
        luda__outgoing_free(outgoing);
        return;
    }
    if (c->last)
        c->last->next = outgoing;
    else
        c->first = outgoing;
    c->last = outgoing;
    if (c->first == outgoing)
        write_frames(c);
}

/* --- In --- */

static void answer(luda_channel *c)
{
    luda_outgoing *o = c->first;
    luda_frame frame = { .kind = LUDA_FRAME_ALIVE }, queued;
    int waiting;
    luda_board_position(mesh_of(c)->board, mesh_of(c)->rank, &frame.sequence, &waiting);
    frame.step = (uint32_t)waiting;
    /* Whoever asks and asks and reads nothing gets one answer: the last. */
    while (o && (o->sent > 0 || !luda__frame_read(o->header, &queued) || queued.kind != LUDA_FRAME_ALIVE))
        o = o->next;
    if (o) {
        luda__frame_write(&frame, o->header);
    } else if ((o = calloc(1, sizeof *o))) {
        luda__frame_write(&frame, o->header);
        o->channel = c;
        luda__channel_send(o);
    }
}

/* A rank announces call after call; what it says of a call comes after its announcement, except that it is alive there. */
static void announced(luda_channel *c)
{
    luda_announcement a = { .sequence = c->frame.sequence, .hash = c->frame.hash };
    if (!luda__announcement_read(c->payload, mesh_of(c)->size, &a) || a.sequence != c->announced + 1) {
        luda__link_lost(c->link, false, "it announced a call that no rank makes");
        return;
    }
    c->announced = a.sequence;
    luda_board_announced(mesh_of(c)->board, c->link->rank, &a);
}

static void faulted(luda_channel *c)
{
    luda_comm_fault fault;
    if (c->frame.sequence > c->announced) {
        luda__link_lost(c->link, false, "it gave up a call that it never announced");
        return;
    }
    luda__fault_read(c->payload, &fault);
    luda_board_failed(mesh_of(c)->board, c->frame.sequence, &fault);
}

static void alive(luda_channel *c)
{
    if (c->frame.sequence > c->announced + 1)
        luda__link_lost(c->link, false, "it waits at a call that it never announced");
    else
        luda_board_alive(mesh_of(c)->board, c->link->rank, c->frame.sequence, (int)c->frame.step);
}

static void left(luda_channel *c)
{
    c->left = true;
    if (c->link->channels[LUDA_CHANNEL_DATA].left && c->link->channels[LUDA_CHANNEL_CONTROL].left)
        luda__link_lost(c->link, true, NULL);
}

/* What a complete control frame does. */
static void (*const handlers[LUDA_FRAME_COUNT])(luda_channel *) = {
    [LUDA_FRAME_ANNOUNCE] = announced, [LUDA_FRAME_FAULT] = faulted, [LUDA_FRAME_QUERY] = answer,
    [LUDA_FRAME_ALIVE] = alive,        [LUDA_FRAME_LEAVE] = left,
};

static bool exact(const luda_frame *frame)
{
    return (frame->kind != LUDA_FRAME_DATA || frame->slot <= LUDA_SLOT_MESSAGE) &&
           (frame->kind != LUDA_FRAME_ANNOUNCE || frame->payload == LUDA_ANNOUNCE_BYTES) &&
           (frame->kind != LUDA_FRAME_FAULT || frame->payload == LUDA_FAULT_BYTES);
}

static void finish_frame(luda_channel *c)
{
    c->got = 0;
    c->mail = NULL;
    if (c->frame.kind != LUDA_FRAME_DATA)
        handlers[c->frame.kind](c);
}

static void begin_frame(luda_channel *c)
{
    luda_mesh *mesh = mesh_of(c);
    bool known = luda__frame_read(c->header, &c->frame) && exact(&c->frame);
    c->payload_got = 0;
    if (!known || (c->frame.kind == LUDA_FRAME_DATA) != (is_data(c) && c->frame.kind != LUDA_FRAME_LEAVE) ||
        (c->frame.kind != LUDA_FRAME_DATA && !handlers[c->frame.kind])) {
        luda__link_lost(c->link, false, "it sent what is no frame");
        return;
    }
    if (c->frame.kind == LUDA_FRAME_DATA) {
        luda_slot_name slot = { c->frame.sequence, c->frame.step, c->frame.slot };
        c->mail = luda_mail_begin(mesh->board, mesh->rank, c->link->rank, slot, (size_t)c->frame.payload);
    }
    if (c->frame.payload == 0)
        finish_frame(c);
}

static ssize_t read_payload(luda_channel *c)
{
    static uint8_t unwanted[PIECE]; /* of the network thread */
    size_t room = (size_t)(c->frame.payload - c->payload_got);
    ssize_t n;
    if (c->frame.kind != LUDA_FRAME_DATA) {
        n = luda__sealed_recv(c->connection.seal, c->connection.fd, c->payload + c->payload_got, room);
    } else {
        void *memory = c->mail ? luda_mail_take(c->mail, &room) : NULL;
        room = room < PIECE ? room : PIECE;
        n = luda__sealed_recv(c->connection.seal, c->connection.fd, memory ? memory : unwanted, room);
        if (c->mail)
            luda_mail_give(c->mail, n > 0 ? (size_t)n : 0);
    }
    if (n > 0)
        c->payload_got += (uint64_t)n;
    return n;
}

/* False when there is nothing more to read now. */
static bool read_frames(luda_channel *c)
{
    for (int round = 0; (round < ROUNDS || luda__sealed_ready(c->connection.seal)) && c->open && !c->ended; round++) {
        bool header = c->got < LUDA_FRAME_BYTES;
        ssize_t n = header ? luda__sealed_recv(c->connection.seal, c->connection.fd, c->header + c->got,
                                               LUDA_FRAME_BYTES - c->got)
                           : read_payload(c);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return false;
        if (n < 0 && errno == EBADMSG) {
            luda__link_lost(c->link, false, "what it sent was altered or replayed on the way");
            return false;
        }
        if (n <= 0) {
            end(c, n < 0 ? strerror(errno) : "connection closed");
            return false;
        }
        if (header) {
            c->got += (size_t)n;
            if (c->got == LUDA_FRAME_BYTES)
                begin_frame(c);
        } else if (c->payload_got == c->frame.payload) {
            finish_frame(c);
        }
    }
    return c->open && !c->ended;
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    luda_channel *c = (luda_channel *)((char *)poll - offsetof(luda_channel, poll));
    if (status < 0) {
        /* Reading says what is wrong, after what is still there. */
        while (read_frames(c))
            ;
        if (c->open)
            end(c, uv_strerror(status));
        return;
    }
    if (events & UV_READABLE)
        read_frames(c);
    if (events & UV_WRITABLE)
        write_frames(c);
}

luda_status luda__channel_open(luda_channel *c, uv_loop_t *loop)
{
    int error = uv_poll_init_socket(loop, &c->poll, c->connection.fd);
    if (error)
        return luda__fail(LUDA_EIO, "network: %s", uv_strerror(error));
    c->open = true;
    c->poll.data = mesh_of(c);
    mesh_of(c)->handles++;
    uv_poll_start(&c->poll, UV_READABLE, on_poll);
    return LUDA_OK;
}
