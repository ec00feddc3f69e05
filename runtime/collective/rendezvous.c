/*
 * The rendezvous: a server on the network thread that waits for every rank of one session and then tells each where the
 * others listen. Data never passes it. Whoever does not say the right first words in time is turned away, and the session
 * goes on waiting for the right ones. In a crowd the stranger who has been silent longest goes first; a rank that was
 * taken for one comes again (join.c).
 */
#include "secret.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GUESTS = 256, PATIENCE_MS = 5000, SWEEP_MS = 1000 }; /* strangers at a time; for one's first words */

typedef struct guest {
    struct guest *next;
    luda_rendezvous *home;
    uv_poll_t poll;
    luda_connection connection;
    int rank; /* -1: has not said yet */
    double since;
    size_t got;
    uint8_t bytes[LUDA_GREETING_BYTES];
    luda_address address;
    luda_greeting greeting; /* where there is a secret */
    uint32_t claimed;       /* the rank it says it is, before it has proved anything */
} guest;

struct luda_rendezvous {
    luda_object base;
    int fd, size;
    uv_poll_t poll;
    uv_timer_t sweep;
    uint8_t session[LUDA_SESSION_BYTES];
    luda_secret *secret; /* or NULL */
    char session_text[2 * LUDA_SESSION_BYTES + 1], address_text[80];
    guest *guests;
    int strangers;
    pthread_mutex_t lock; /* of what other threads ask: */
    guest **joined; /* [size] */
    bool complete;
};

/* --- Guests --- */

static void on_guest_closed(uv_handle_t *handle)
{
    luda_rendezvous *home = handle->data;
    free((char *)handle - offsetof(guest, poll));
    luda__release(home);
}

static void tell(guest *g, luda_frame_kind kind, const void *payload, size_t bytes)
{
    uint8_t buffer[LUDA_FRAME_BYTES + LUDA_ADDRESS_BYTES * LUDA_MAX_RANKS];
    const struct iovec whole = { buffer, LUDA_FRAME_BYTES + bytes };
    luda_frame frame = { .kind = kind, .payload = bytes, .size = (uint32_t)g->home->size };
    luda__frame_write(&frame, buffer);
    if (bytes > 0)
        memcpy(buffer + LUDA_FRAME_BYTES, payload, bytes);
    /* A new connection's buffer holds more than this; a guest that lets it fill up is none of ours. */
    if (luda__sealed_send(g->connection.seal, g->connection.fd, &whole, 1) != (ssize_t)whole.iov_len ||
        luda__sealed_pending(g->connection.seal))
        shutdown(g->connection.fd, SHUT_RDWR);
}

static void tell_missing(luda_rendezvous *home)
{
    uint8_t missing[LUDA_MAX_RANKS / 8] = { 0 };
    for (int r = 0; r < home->size; r++)
        if (!home->joined[r])
            missing[r / 8] |= (uint8_t)(1 << (r % 8));
    for (int r = 0; r < home->size; r++)
        if (home->joined[r])
            tell(home->joined[r], LUDA_FRAME_MISSING, missing, sizeof missing);
}

static void dismiss(guest *g)
{
    luda_rendezvous *home = g->home;
    guest **at = &home->guests;
    int rank = g->rank;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    uv_poll_stop(&g->poll);
    uv_close((uv_handle_t *)&g->poll, on_guest_closed);
    luda__disconnect(&g->connection);
    if (rank < 0) {
        home->strangers--;
    } else if (!home->complete) {
        pthread_mutex_lock(&home->lock);
        home->joined[rank] = NULL;
        pthread_mutex_unlock(&home->lock);
        tell_missing(home);
    }
}

static void refuse(guest *g, const char *why)
{
    tell(g, LUDA_FRAME_REFUSE, why, strlen(why));
    dismiss(g);
}

static void send_everybody_on(luda_rendezvous *home)
{
    uint8_t table[LUDA_ADDRESS_BYTES * LUDA_MAX_RANKS];
    for (int r = 0; r < home->size; r++)
        luda__address_write(&home->joined[r]->address, table + r * LUDA_ADDRESS_BYTES);
    pthread_mutex_lock(&home->lock);
    home->complete = true;
    pthread_mutex_unlock(&home->lock);
    for (int r = 0; r < home->size; r++) {
        tell(home->joined[r], LUDA_FRAME_READY, table, (size_t)home->size * LUDA_ADDRESS_BYTES);
        dismiss(home->joined[r]);
    }
}

/* Turns away who does not belong to this session. */
static bool belongs(guest *g, const luda_frame *frame)
{
    luda_rendezvous *home = g->home;
    char why[160];
    if (memcmp(frame->session, home->session, LUDA_SESSION_BYTES) != 0) {
        refuse(g, "this is another session");
        return false;
    }
    if (frame->size != (uint32_t)home->size) {
        snprintf(why, sizeof why, "rank %u expects %u ranks, the session has %d", frame->rank, frame->size, home->size);
        refuse(g, why);
        return false;
    }
    if (frame->rank >= frame->size) {
        snprintf(why, sizeof why, "rank %u of %d ranks", frame->rank, home->size);
        refuse(g, why);
        return false;
    }
    return true;
}

static void join(guest *g, const luda_frame *frame)
{
    luda_rendezvous *home = g->home;
    char why[160];
    bool all = true;
    if (!belongs(g, frame))
        return;
    if (home->complete || home->joined[frame->rank]) {
        snprintf(why, sizeof why,
                 home->complete ? "the group is complete already" : "another process is rank %u already", frame->rank);
        refuse(g, why);
        return;
    }
    for (int r = 0; r < home->size; r++)
        if (home->joined[r] && home->joined[r]->greeting.encrypt != g->greeting.encrypt) {
            snprintf(why, sizeof why, "rank %d encrypts and rank %d does not; encrypt must be equal on all ranks",
                     g->greeting.encrypt ? (int)frame->rank : r, g->greeting.encrypt ? r : (int)frame->rank);
            refuse(g, why);
            return;
        }
    luda__address_set_port(&g->address, g->bytes[LUDA_FRAME_BYTES] | g->bytes[LUDA_FRAME_BYTES + 1] << 8);
    g->rank = (int)frame->rank;
    home->strangers--;
    pthread_mutex_lock(&home->lock);
    home->joined[g->rank] = g;
    pthread_mutex_unlock(&home->lock);
    for (int r = 0; r < home->size; r++)
        all = all && home->joined[r];
    if (all)
        send_everybody_on(home);
    else
        tell_missing(home);
}

/* A whole message came. False when the guest is gone or has become a rank. */
static bool take_message(guest *g, const luda_frame *frame)
{
    luda_rendezvous *home = g->home;
    uint8_t answer[LUDA_GREETING_BYTES];
    char why[160];
    size_t bytes;
    if (!home->secret && frame->kind == LUDA_FRAME_KNOCK) {
        snprintf(why, sizeof why, "rank %u has a secret and the session has none", frame->rank);
        refuse(g, why);
        return false;
    }
    if (home->secret && !g->connection.seal && frame->kind == LUDA_FRAME_JOIN) {
        snprintf(why, sizeof why, "rank %u has no secret and the session has one; give it the same secret= (luda run "
                 "--secret-file)", frame->rank);
        refuse(g, why);
        return false;
    }
    if (frame->kind == LUDA_FRAME_JOIN) {
        join(g, frame);
        return false;
    }
    if (frame->kind == LUDA_FRAME_KNOCK) {
        if (!belongs(g, frame))
            return false;
        g->claimed = frame->rank;
    }
    if (luda__greeting_take(&g->greeting, frame, g->bytes + LUDA_FRAME_BYTES, answer, &bytes, &g->connection.seal) ==
        LUDA_GREETED_WRONG) {
        snprintf(why, sizeof why, "rank %u does not know the secret", g->claimed);
        refuse(g, why);
        return false;
    }
    if (send(g->connection.fd, answer, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        shutdown(g->connection.fd, SHUT_RDWR);
    return true;
}

/* Whether a guest may say this at all; all of it has room in g->bytes. */
static bool expected(const guest *g, const luda_frame *frame)
{
    return (frame->kind == LUDA_FRAME_JOIN && frame->payload == 2) ||
           (frame->kind == LUDA_FRAME_KNOCK && frame->payload == LUDA_NONCE_BYTES + 1) ||
           (frame->kind == LUDA_FRAME_PROOF && g->home->secret);
}

/* False when there is nothing more to read now, or nobody to read from. */
static bool listen_to(guest *g)
{
    enum { MAGIC_BYTES = 4 };
    luda_frame frame = { .payload = 0 };
    ssize_t n;
    if (g->got >= LUDA_FRAME_BYTES)
        luda__frame_read(g->bytes, &frame);
    n = luda__sealed_recv(g->connection.seal, g->connection.fd, g->bytes + g->got,
                          LUDA_FRAME_BYTES + frame.payload - g->got);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    g->got += n > 0 ? (size_t)n : 0;
    if (n <= 0 || !luda__frame_starts(g->bytes, g->got < MAGIC_BYTES ? g->got : MAGIC_BYTES)) {
        dismiss(g);
        return false;
    }
    if (!luda__frame_starts(g->bytes, g->got) ||
        (g->got >= LUDA_FRAME_BYTES && (!luda__frame_read(g->bytes, &frame) || !expected(g, &frame)))) {
        refuse(g, "no rank of this version of LUDA says that");
        return false;
    }
    if (g->got < LUDA_FRAME_BYTES)
        return true;
    if (g->got < LUDA_FRAME_BYTES + frame.payload)
        return true;
    g->got = 0;
    return take_message(g, &frame);
}

static void on_guest(uv_poll_t *poll, int status, int events)
{
    guest *g = (guest *)((char *)poll - offsetof(guest, poll));
    if (g->rank >= 0) {
        /* A rank that waits says nothing more: it can only go away. */
        if (status < 0 || recv(g->connection.fd, g->bytes, 1, MSG_DONTWAIT | MSG_PEEK) >= 0 || errno != EAGAIN)
            dismiss(g);
    } else if (status < 0) {
        dismiss(g);
    } else {
        while (listen_to(g))
            ;
    }
}

/* --- The server --- */

static void dismiss_oldest_stranger(luda_rendezvous *home)
{
    guest *oldest = NULL;
    for (guest *g = home->guests; g; g = g->next)
        oldest = g->rank < 0 ? g : oldest;
    dismiss(oldest);
}

static void take_in(luda_rendezvous *home, uv_loop_t *loop, int fd)
{
    guest *g = calloc(1, sizeof *g);
    if (!g || uv_poll_init_socket(loop, &g->poll, fd) != 0) {
        free(g);
        close(fd);
        return;
    }
    if (home->strangers >= GUESTS)
        dismiss_oldest_stranger(home);
    g->address.length = sizeof g->address.storage;
    getpeername(fd, (struct sockaddr *)&g->address.storage, &g->address.length);
    g->home = g->poll.data = luda__retain(home);
    g->connection.fd = fd;
    g->rank = -1;
    luda__greeting_await(&g->greeting, home->secret, LUDA_ANSWERER_SERVER);
    g->since = luda__now();
    g->next = home->guests;
    home->guests = g;
    home->strangers++;
    uv_poll_start(&g->poll, UV_READABLE, on_guest);
    while (listen_to(g)) /* who waited long before the door has spoken already, and is no stranger in a crowd */
        ;
}

static void on_sweep(uv_timer_t *timer);

static void on_guests(uv_poll_t *poll, int status, int events)
{
    luda_rendezvous *home = (luda_rendezvous *)((char *)poll - offsetof(luda_rendezvous, poll));
    for (int i = 0; i < LUDA_TURN; i++) {
        int fd = luda__socket_accept(home->fd);
        if (fd >= 0) {
            take_in(home, poll->loop, fd);
        } else if (!luda__socket_exhausted(errno)) {
            return;
        } else if (home->strangers > 0) {
            dismiss_oldest_stranger(home);
        } else {
            uv_poll_stop(poll);
            uv_timer_start(&home->sweep, on_sweep, LUDA_EXHAUSTED_MS, SWEEP_MS);
            return;
        }
    }
}

static void on_sweep(uv_timer_t *timer)
{
    luda_rendezvous *home = timer->data;
    guest *next;
    uv_poll_start(&home->poll, UV_READABLE, on_guests); /* it may have stopped for want of descriptors */
    for (guest *g = home->guests; g; g = next) {
        next = g->next;
        if (g->rank < 0 && luda__now() > g->since + PATIENCE_MS / 1000.0)
            dismiss(g);
    }
}

static void on_server_closed(uv_handle_t *handle)
{
    luda_rendezvous *home = handle->data;
    luda__release(home);
}

static void open_server(void *arg, uv_loop_t *loop)
{
    luda_rendezvous *home = arg;
    uv_poll_init_socket(loop, &home->poll, home->fd);
    uv_timer_init(loop, &home->sweep);
    home->poll.data = luda__retain(home);
    home->sweep.data = luda__retain(home);
    uv_poll_start(&home->poll, UV_READABLE, on_guests);
    uv_timer_start(&home->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
}

static void close_server(void *arg, uv_loop_t *loop)
{
    luda_rendezvous *home = arg;
    if (uv_is_closing((uv_handle_t *)&home->poll))
        return;
    pthread_mutex_lock(&home->lock);
    home->complete = true; /* nobody is told who is missing any more */
    pthread_mutex_unlock(&home->lock);
    while (home->guests)
        refuse(home->guests, "the rendezvous was closed");
    uv_poll_stop(&home->poll);
    uv_close((uv_handle_t *)&home->poll, on_server_closed);
    uv_close((uv_handle_t *)&home->sweep, on_server_closed);
    close(home->fd);
    home->fd = -1;
}

static void destroy(void *object)
{
    luda_rendezvous *home = object;
    if (home->fd >= 0)
        close(home->fd);
    pthread_mutex_destroy(&home->lock);
    luda__secret_release(home->secret);
    free(home->joined);
    free(home);
}

static const luda_class rendezvous_class = { "rendezvous", destroy };

static luda_status listen_at(luda_rendezvous *home, const char *bind)
{
    luda_address address;
    LUDA_TRY(luda__address_parse(bind ? bind : "127.0.0.1:0", &address));
    if (!home->secret)
        LUDA_TRY(luda__address_check(&address, "rendezvous"));
    LUDA_TRY(luda__listen(&address, LUDA_BACKLOG, &home->fd));
    luda__address_text(&address, home->address_text, sizeof home->address_text);
    return LUDA_OK;
}

luda_status luda__rendezvous_new(const char *bind, const char *session, int size, luda_secret *secret,
                                 luda_rendezvous **out)
{
    luda_rendezvous *home;
    luda_status status;
    if (size < 1 || size > LUDA_MAX_RANKS)
        return luda__fail(LUDA_EINVAL, "rendezvous: %d ranks; 1 to %d are possible", size, LUDA_MAX_RANKS);
    home = calloc(1, sizeof *home);
    if (!home || !(home->joined = calloc((size_t)size, sizeof *home->joined))) {
        free(home);
        return luda__fail(LUDA_ENOMEM, "rendezvous: no memory for %d ranks", size);
    }
    luda__object_init(home, &rendezvous_class);
    pthread_mutex_init(&home->lock, NULL);
    home->size = size;
    home->fd = -1;
    home->secret = luda__secret_retain(secret);
    status = luda__random_bytes(home->session, LUDA_SESSION_BYTES);
    if (status == LUDA_OK && session && !luda__session_parse(session, home->session))
        status = luda__fail(LUDA_EINVAL, "rendezvous: a session is %d hexadecimal digits", 2 * LUDA_SESSION_BYTES);
    for (int i = 0; i < LUDA_SESSION_BYTES; i++)
        snprintf(home->session_text + 2 * i, 3, "%02x", home->session[i]);
    if (status == LUDA_OK)
        status = listen_at(home, bind);
    if (status == LUDA_OK)
        status = luda__loop_call(open_server, home);
    if (status == LUDA_OK)
        *out = home;
    else
        luda__release(home);
    return status;
}

luda_status luda_rendezvous_new(const char *bind, const char *session, int size, const luda_comm_options *options,
                                luda_rendezvous **out)
{
    luda_comm_options given;
    luda_secret *secret;
    luda_status status;
    LUDA_TRY(luda__options(options, &given));
    given.encrypt = 0;
    LUDA_TRY(luda__secret_new(&given, "rendezvous", &secret));
    status = luda__rendezvous_new(bind, session, size, secret, out);
    luda__secret_release(secret);
    return status;
}

const char *luda_rendezvous_address(const luda_rendezvous *rendezvous)
{
    return rendezvous->address_text;
}

const char *luda_rendezvous_session(const luda_rendezvous *rendezvous)
{
    return rendezvous->session_text;
}

int luda_rendezvous_missing(luda_rendezvous *rendezvous, int32_t *ranks, int capacity)
{
    int count = 0;
    pthread_mutex_lock(&rendezvous->lock);
    for (int r = 0; r < rendezvous->size && !rendezvous->complete; r++)
        if (!rendezvous->joined[r]) {
            if (count < capacity)
                ranks[count] = r;
            count++;
        }
    pthread_mutex_unlock(&rendezvous->lock);
    return count;
}

void luda_rendezvous_close(luda_rendezvous *rendezvous)
{
    if (rendezvous)
        luda__loop_call(close_server, rendezvous);
}

void luda_rendezvous_release(luda_rendezvous *rendezvous)
{
    luda_rendezvous_close(rendezvous);
    luda__release(rendezvous);
}
