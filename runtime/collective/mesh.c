/* The transport `tcp` over a mesh of connections: what the main thread asks of the network thread. */
#include "mesh.h"
#include "secret.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- Life, on the network thread --- */

static void free_mesh(luda_mesh *mesh)
{
    luda_board_release(mesh->board);
    luda__secret_release(mesh->origin.secret);
    for (int r = 0; r < mesh->size; r++)
        free(mesh->links[r].channels);
    free(mesh->links);
    free(mesh);
}

void luda__mesh_handle_closed(uv_handle_t *handle)
{
    luda_mesh *mesh = handle->data;
    if (--mesh->handles == 0)
        free_mesh(mesh);
}

typedef struct opening {
    luda_mesh *mesh;
    luda_status status;
    char text[256];
} opening;

static luda_status open_link(luda_link *link, uv_loop_t *loop)
{
    luda_status status = LUDA_OK;
    uv_timer_init(loop, &link->grace);
    link->grace.data = link->mesh;
    link->mesh->handles++;
    for (int i = 0; i < link->mesh->channels && status == LUDA_OK; i++)
        status = luda__channel_open(&link->channels[i], loop);
    return status;
}

static void open_mesh(void *arg, uv_loop_t *loop)
{
    opening *o = arg;
    luda_mesh *mesh = o->mesh;
    uv_timer_init(loop, &mesh->linger);
    mesh->linger.data = mesh;
    mesh->handles++;
    for (int r = 0; r < mesh->size; r++)
        if (r != mesh->rank) {
            luda_status status = open_link(&mesh->links[r], loop);
            o->status = o->status == LUDA_OK ? status : o->status;
        }
    if (o->status != LUDA_OK)
        strncpy(o->text, luda_last_error(), sizeof o->text - 1);
}

static void drop_links(luda_mesh *mesh)
{
    for (int r = 0; r < mesh->size; r++)
        if (r != mesh->rank)
            luda__link_lost(&mesh->links[r], true, NULL);
    luda__mesh_link_ended(mesh);
}

void luda__mesh_link_ended(luda_mesh *mesh)
{
    for (int r = 0; r < mesh->size; r++)
        if (r != mesh->rank && !mesh->links[r].lost)
            return;
    if (mesh->released && !uv_is_closing((uv_handle_t *)&mesh->linger))
        uv_close((uv_handle_t *)&mesh->linger, luda__mesh_handle_closed);
}

static void on_linger(uv_timer_t *timer)
{
    drop_links(timer->data);
}

/* The others read to the end and close; who does not is left behind. */
static void release_mesh(void *arg, uv_loop_t *loop)
{
    enum { LINGER_MS = 1000 };
    luda_mesh *mesh = arg;
    mesh->released = true;
    for (int r = 0; r < mesh->size; r++)
        for (int i = 0; i < mesh->channels && r != mesh->rank; i++)
            if (mesh->links[r].channels[i].open)
                shutdown(mesh->links[r].channels[i].connection.fd, SHUT_WR);
    uv_timer_start(&mesh->linger, on_linger, LINGER_MS, 0);
    luda__mesh_link_ended(mesh);
}

/* --- Frames from the main thread --- */

static void run_send(luda_task *task, uv_loop_t *loop)
{
    luda__channel_send((luda_outgoing *)task);
}

static luda_status post_frame(luda_mesh *mesh, int to, int channel, const luda_frame *frame, const void *data,
                              bool copy)
{
    luda_outgoing *o = calloc(1, sizeof *o);
    luda_status status;
    if (!o || (copy && frame->payload > 0 && !(o->owned = malloc(frame->payload)))) {
        free(o);
        return luda__fail(LUDA_ENOMEM, "network: no memory for a message");
    }
    if (o->owned && data)
        memcpy(o->owned, data, frame->payload);
    o->task.run = run_send;
    o->channel = &mesh->links[to].channels[channel];
    o->data = o->owned ? o->owned : data;
    o->bytes = frame->payload;
    o->counted = !copy;
    if (frame->kind == LUDA_FRAME_DATA && copy) {
        o->held = true;
        atomic_fetch_add(&mesh->links[to].held, o->bytes);
    }
    luda__frame_write(frame, o->header);
    status = luda__loop_post(&o->task);
    if (status != LUDA_OK)
        luda__outgoing_free(o);
    return status;
}

static luda_status post_to_all(luda_mesh *mesh, int channel, const luda_frame *frame, const void *data)
{
    luda_status status = LUDA_OK;
    for (int r = 0; r < mesh->size; r++)
        if (r != mesh->rank) {
            luda_status one = post_frame(mesh, r, channel, frame, data, true);
            status = status == LUDA_OK ? one : status;
        }
    return status;
}

/* --- The transport --- */

static luda_status mesh_announce(void *state, const luda_announcement *a)
{
    uint8_t bytes[LUDA_ANNOUNCE_BYTES];
    luda_frame frame = {
        .kind = LUDA_FRAME_ANNOUNCE, .payload = sizeof bytes, .sequence = a->sequence, .hash = a->hash
    };
    luda__announcement_write(a, bytes);
    return post_to_all(state, LUDA_CHANNEL_CONTROL, &frame, bytes);
}

static void mesh_fail(void *state, uint64_t sequence, const luda_comm_fault *fault)
{
    uint8_t bytes[LUDA_FAULT_BYTES];
    luda_frame frame = { .kind = LUDA_FRAME_FAULT, .payload = sizeof bytes, .sequence = sequence };
    luda__fault_write(fault, bytes);
    post_to_all(state, LUDA_CHANNEL_CONTROL, &frame, bytes);
}

static void mesh_query(void *state)
{
    post_to_all(state, LUDA_CHANNEL_CONTROL, &(luda_frame){ .kind = LUDA_FRAME_QUERY }, NULL);
}

static luda_status mesh_send(void *state, int to, luda_slot_name slot, const void *data, size_t bytes)
{
    luda_frame frame = {
        .kind = LUDA_FRAME_DATA, .payload = bytes, .sequence = slot.sequence, .step = slot.step, .slot = slot.kind
    };
    /* Equal slots, and messages of equal tags, take the same connection: there they arrive in order. */
    uint64_t which = slot.kind == LUDA_SLOT_MESSAGE ? slot.sequence : slot.step;
    int channel = (int)(which % (uint64_t)(((luda_mesh *)state)->channels - 1));
    return post_frame(state, to, channel == 0 ? LUDA_CHANNEL_DATA : LUDA_CHANNEL_CONTROL + channel, &frame, data,
                      slot.kind == LUDA_SLOT_MESSAGE);
}

/* A frame that is partly out must be finished, from a copy. */
static luda_outgoing *withdraw_frame(luda_outgoing *o)
{
    luda_outgoing *next = o->next;
    uint64_t skip;
    if (!o->counted)
        return o;
    if (o->sent == 0) {
        luda__outgoing_free(o);
        return next;
    }
    skip = o->sent < LUDA_FRAME_BYTES ? 0 : o->sent - LUDA_FRAME_BYTES;
    o->owned = malloc(o->bytes - skip);
    if (o->owned)
        memcpy(o->owned, o->data + skip, o->bytes - skip);
    o->data = o->owned;
    o->bytes -= skip;
    o->sent -= skip;
    o->counted = false;
    return o;
}

static void withdraw_channel(luda_channel *c)
{
    luda_outgoing *kept = NULL, *last = NULL;
    for (luda_outgoing *o = c->first; o;) {
        luda_outgoing *next = o->next, *left = withdraw_frame(o);
        if (left == o) {
            o->next = NULL;
            if (last)
                last->next = o;
            else
                kept = o;
            last = o;
        }
        o = next;
    }
    c->first = kept;
    c->last = last;
    if (kept && !kept->data && kept->bytes > 0)
        luda__link_lost(c->link, false, "no memory for what was on its way");
}

static void run_withdraw(void *arg, uv_loop_t *loop)
{
    luda_mesh *mesh = arg;
    for (int r = 0; r < mesh->size; r++)
        for (int i = 0; i < mesh->channels && r != mesh->rank; i++)
            withdraw_channel(&mesh->links[r].channels[i]);
}

static void mesh_withdraw(void *state)
{
    luda__loop_call(run_withdraw, state);
}

typedef struct pending {
    luda_mesh *mesh;
    bool any;
} pending;

static void run_pending(void *arg, uv_loop_t *loop)
{
    pending *p = arg;
    p->any = false;
    for (int r = 0; r < p->mesh->size; r++)
        for (int i = 0; i < p->mesh->channels && r != p->mesh->rank; i++)
            p->any |= luda__channel_busy(&p->mesh->links[r].channels[i]);
}

/* The process may end right after: what was sent should be out. A rank that reads nothing is not waited for long. */
static void mesh_close(void *state)
{
    luda_mesh *mesh = state;
    pending p = { mesh, true };
    luda_frame frame = { .kind = LUDA_FRAME_LEAVE };
    double end = luda__now() + 1;
    for (int i = 0; i < mesh->channels; i++)
        post_to_all(mesh, i, &frame, NULL);
    while (p.any && luda__now() < end && luda__loop_call(run_pending, &p) == LUDA_OK)
        if (p.any)
            usleep(1000);
}

static void mesh_release(void *state)
{
    luda__loop_call(release_mesh, state);
}

/* A part of the group meets at a rendezvous of its own; the card is its session and address. */
static luda_status mesh_lead(void *state, int size, char card[LUDA_CARD_BYTES], void **held)
{
    const luda_mesh *mesh = state;
    char here[80];
    luda_rendezvous *home;
    luda__address_text(&mesh->origin.here, here, sizeof here);
    LUDA_TRY(luda__rendezvous_new(here, NULL, size, mesh->origin.secret, &home));
    snprintf(card, LUDA_CARD_BYTES, "%s %s", luda_rendezvous_session(home), luda_rendezvous_address(home));
    *held = home;
    return LUDA_OK;
}

static void mesh_dismiss(void *held)
{
    luda_rendezvous_release(held);
}

static luda_status mesh_join(void *state, const char card[LUDA_CARD_BYTES], int rank, int size,
                             const luda_comm_options *options, luda_comm **out)
{
    const luda_mesh *mesh = state;
    char session[2 * LUDA_SESSION_BYTES + 1] = "";
    luda_comm_options chosen;
    LUDA_TRY(luda__options(options, &chosen));
    chosen.size = sizeof chosen;
    chosen.connections = mesh->channels - 1;
    memcpy(session, card, sizeof session - 1);
    return luda__comm_connect(card + sizeof session, session, rank, size, mesh->origin.secret, &chosen, out);
}

static unsigned long long mesh_held(void *state, int to)
{
    return atomic_load(&((luda_mesh *)state)->links[to].held);
}

static bool fill_link(luda_link *link, luda_mesh *mesh, int rank, const luda_connection *connections)
{
    link->mesh = mesh;
    link->rank = rank;
    if (rank == mesh->rank)
        return true;
    link->channels = calloc((size_t)mesh->channels, sizeof *link->channels);
    for (int i = 0; i < mesh->channels && link->channels; i++) {
        link->channels[i].link = link;
        link->channels[i].connection = connections[i];
    }
    return link->channels;
}

static luda_mesh *new_mesh(int rank, int size, int channels, luda_connection (*connections)[LUDA_CHANNELS],
                           const luda_origin *origin)
{
    luda_mesh *mesh = calloc(1, sizeof *mesh);
    bool whole = true;
    if (!mesh || !(mesh->links = calloc((size_t)size, sizeof *mesh->links)) ||
        luda_board_new(size, rank, &mesh->board) != LUDA_OK) {
        if (mesh)
            free(mesh->links);
        free(mesh);
        return NULL;
    }
    mesh->board->networked = true;
    mesh->rank = rank;
    mesh->size = size;
    mesh->channels = channels;
    mesh->origin = *origin;
    luda__secret_retain(mesh->origin.secret);
    for (int r = 0; r < size; r++)
        whole = fill_link(&mesh->links[r], mesh, r, connections[r]) && whole;
    if (!whole) {
        free_mesh(mesh);
        return NULL;
    }
    return mesh;
}

luda_status luda__mesh_comm(int rank, int size, int channels, luda_connection (*connections)[LUDA_CHANNELS], const luda_origin *origin,
                            const luda_comm_options *options, luda_comm **out)
{
    luda_transport transport = { .size = sizeof transport,
                                 .name = "tcp",
                                 .announce = mesh_announce,
                                 .fail = mesh_fail,
                                 .query = mesh_query,
                                 .send = mesh_send,
                                 .withdraw = mesh_withdraw,
                                 .close = mesh_close,
                                 .release = mesh_release,
                                 .lead = mesh_lead,
                                 .dismiss = mesh_dismiss,
                                 .join = mesh_join,
                                 .held = mesh_held };
    luda_mesh *mesh = new_mesh(rank, size, channels, connections, origin);
    opening o = { .mesh = mesh };
    luda_status status =
        mesh ? luda__loop_call(open_mesh, &o) : luda__fail(LUDA_ENOMEM, "network: no memory for %d ranks", size);
    if (status != LUDA_OK) {
        for (int r = 0; r < size; r++)
            for (int i = 0; i < channels && r != rank; i++)
                luda__disconnect(&connections[r][i]);
        if (mesh)
            free_mesh(mesh);
        return status;
    }
    if (o.status != LUDA_OK) {
        mesh_release(mesh);
        return luda__fail_text(o.status, o.text);
    }
    transport.state = mesh;
    return luda_comm_new_over(&transport, mesh->board, rank, options, out);
}
