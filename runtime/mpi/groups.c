/*
 * Communicators over the courier: the world, and parts of it made by luda_comm_split. A part has a number that its leader
 * drew; each member enters at the leader, who sends everyone the table of who is where once all have.
 */
#include "mpi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct group {
    struct group *next;
    uint64_t id;
    luda_board *board;
    int rank, size;
    bool known; /* `world` is filled in */
    int32_t *world;   /* [size], ranks of MPI's world */
    luda_mail **mail; /* [size], of messages that have come in part */
    uint8_t *left;    /* [size], which of its two farewells have come, a bit each */
} group;

/* A part that its leader waits to be complete. */
typedef struct forming {
    struct forming *next;
    uint64_t id;
    int size, entered;
    int32_t *world; /* [size], -1: has not entered */
} forming;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the lists and of what is in them */
static pthread_cond_t changed;
static group *groups;
static forming *formings;
static int world_rank, world_size;
static bool opened;
static uint64_t drawn;

/* --- Life --- */

static void free_group(group *g)
{
    for (int r = 0; g->mail && r < g->size; r++)
        if (g->mail[r])
            luda_mail_drop(g->mail[r]);
    luda_board_release(g->board);
    free(g->world);
    free(g->mail);
    free(g->left);
    free(g);
}

/* Entered into the list: from here on packets reach it. */
static luda_status new_group(uint64_t id, int rank, int size, group **out)
{
    group *g = calloc(1, sizeof *g);
    if (g) {
        g->id = id;
        g->rank = rank;
        g->size = size;
        g->world = calloc((size_t)size, sizeof *g->world);
        g->mail = calloc((size_t)size, sizeof *g->mail);
        g->left = calloc((size_t)size, sizeof *g->left);
    }
    if (!g || !g->world || !g->mail || !g->left || luda_board_new(size, rank, &g->board) != LUDA_OK) {
        if (g)
            free_group(g);
        return luda_set_error(LUDA_ENOMEM, "mpi: no memory for a group");
    }
    pthread_mutex_lock(&lock);
    g->next = groups;
    groups = g;
    pthread_mutex_unlock(&lock);
    *out = g;
    return LUDA_OK;
}

static void remove_group(group *g)
{
    group **at = &groups;
    pthread_mutex_lock(&lock);
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    free_group(g);
    pthread_mutex_unlock(&lock);
}

/* --- The transport --- */

static luda_status post_to_all(const group *g, const luda_packet *packet, const void *payload)
{
    luda_status status = LUDA_OK;
    for (int r = 0; r < g->size && g->known; r++)
        if (r != g->rank) {
            luda_status one = luda__courier_post(g->world[r], packet, payload);
            status = status == LUDA_OK ? one : status;
        }
    return status;
}

static luda_packet packet_of(const group *g, luda_packet_kind kind)
{
    return (luda_packet){ .group = g->id, .kind = kind, .from = g->rank };
}

static luda_status mpi_announce(void *state, const luda_announcement *announcement)
{
    luda_packet packet = packet_of(state, LUDA_PACKET_ANNOUNCE);
    packet.payload = sizeof *announcement;
    return post_to_all(state, &packet, announcement);
}

static void mpi_fail(void *state, uint64_t sequence, const luda_comm_fault *fault)
{
    luda_packet packet = packet_of(state, LUDA_PACKET_FAULT);
    packet.sequence = sequence;
    packet.payload = sizeof *fault;
    post_to_all(state, &packet, fault);
}

static void mpi_query(void *state)
{
    luda_packet packet = packet_of(state, LUDA_PACKET_QUERY);
    post_to_all(state, &packet, NULL);
}

static luda_status mpi_send(void *state, int to, luda_slot_name slot, const void *data, size_t bytes)
{
    const group *g = state;
    luda_packet packet = packet_of(g, LUDA_PACKET_DATA);
    luda_status status = LUDA_OK;
    packet.slot = slot;
    packet.bytes = bytes;
    do {
        size_t left = bytes - packet.offset;
        packet.payload = left < LUDA_PACKET_BYTES ? (uint32_t)left : LUDA_PACKET_BYTES;
        status = luda__courier_post(g->world[to], &packet, (const char *)data + packet.offset);
        packet.offset += packet.payload;
    } while (status == LUDA_OK && packet.offset < bytes);
    if (slot.kind == LUDA_SLOT_STEP)
        luda_board_sent(g->board, g->rank);
    return status;
}

static void say_farewell(const group *g)
{
    luda_packet packet = packet_of(g, LUDA_PACKET_LEAVE);
    for (packet.bytes = 0; packet.bytes < 2; packet.bytes++)
        post_to_all(g, &packet, NULL);
}

static void mpi_close(void *state)
{
    say_farewell(state);
    luda__courier_flush();
}

static void mpi_release(void *state)
{
    remove_group(state);
}

/* --- Parts --- */

typedef struct card {
    uint64_t id;
    int32_t leader; /* a rank of the world */
} card;

/* With the lock: the table is complete. */
static void learn(group *g, const int32_t *world)
{
    memcpy(g->world, world, (size_t)g->size * sizeof *world);
    g->known = true;
    pthread_cond_broadcast(&changed);
}

static group *find_group(uint64_t id)
{
    group *g = groups;
    while (g && g->id != id)
        g = g->next;
    return g;
}

/* With the lock: on the leader, a member has come. */
static void enter(uint64_t id, int rank, int32_t from)
{
    forming *f = formings;
    luda_packet table = { .group = id, .kind = LUDA_PACKET_TABLE };
    while (f && f->id != id)
        f = f->next;
    if (!f || rank < 0 || rank >= f->size || f->world[rank] >= 0)
        return;
    f->world[rank] = from;
    if (++f->entered < f->size)
        return;
    table.payload = (uint32_t)((size_t)f->size * sizeof *f->world);
    for (int r = 0; r < f->size; r++)
        if (f->world[r] != world_rank)
            luda__courier_post(f->world[r], &table, f->world);
        else if (find_group(id))
            learn(find_group(id), f->world);
}

static luda_status mpi_lead(void *state, int size, char bytes[LUDA_CARD_BYTES], void **held)
{
    forming *f = calloc(1, sizeof *f);
    card c = { .leader = world_rank };
    if (!f || !(f->world = malloc((size_t)size * sizeof *f->world))) {
        free(f);
        return luda_set_error(LUDA_ENOMEM, "mpi: no memory for a group");
    }
    f->size = size;
    for (int r = 0; r < size; r++)
        f->world[r] = -1;
    pthread_mutex_lock(&lock);
    f->id = c.id = (uint64_t)(world_rank + 1) << 40 | ++drawn;
    f->next = formings;
    formings = f;
    pthread_mutex_unlock(&lock);
    memcpy(bytes, &c, sizeof c);
    *held = f;
    return LUDA_OK;
}

static void mpi_dismiss(void *held)
{
    forming *f = held, **at = &formings;
    pthread_mutex_lock(&lock);
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    pthread_mutex_unlock(&lock);
    free(f->world);
    free(f);
}

static luda_status mpi_join(void *state, const char card[LUDA_CARD_BYTES], int rank, int size, const luda_comm_options *options,
                            luda_comm **out);

static luda_status communicator(group *g, const luda_comm_options *options, luda_comm **out)
{
    luda_transport transport = { .size = sizeof transport, .name = "mpi", .state = g, .announce = mpi_announce, .fail = mpi_fail,
                                 .query = mpi_query, .send = mpi_send, .close = mpi_close, .release = mpi_release,
                                 .lead = mpi_lead, .join = mpi_join, .dismiss = mpi_dismiss };
    return luda_comm_new_over(&transport, g->board, g->rank, options, out);
}

static luda_status wait_for_table(group *g, double timeout)
{
    struct timespec end;
    int expired = 0;
    bool known;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += (time_t)timeout;
    end.tv_nsec += (long)((timeout - (double)(time_t)timeout) * 1e9);
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    while (!g->known && expired == 0)
        expired = pthread_cond_timedwait(&changed, &lock, &end);
    known = g->known;
    pthread_mutex_unlock(&lock);
    return known ? LUDA_OK : luda_set_error(LUDA_ETIMEOUT, "split: not all ranks of the part came in time");
}

static luda_status mpi_join(void *state, const char bytes[LUDA_CARD_BYTES], int rank, int size, const luda_comm_options *options,
                            luda_comm **out)
{
    group *g;
    card c;
    luda_packet packet = { .kind = LUDA_PACKET_ENTER, .from = rank, .bytes = (uint64_t)world_rank };
    luda_status status;
    memcpy(&c, bytes, sizeof c);
    status = new_group(c.id, rank, size, &g);
    if (status != LUDA_OK)
        return status;
    packet.group = c.id;
    if (c.leader != world_rank) {
        status = luda__courier_post(c.leader, &packet, NULL);
    } else {
        pthread_mutex_lock(&lock);
        enter(c.id, rank, world_rank);
        pthread_mutex_unlock(&lock);
    }
    if (status == LUDA_OK)
        status = wait_for_table(g, options && options->timeout > 0 ? options->timeout : 300);
    if (status != LUDA_OK) {
        remove_group(g);
        return status;
    }
    return communicator(g, options, out);
}

/* --- What comes --- */

static void receive_data(group *g, const luda_packet *packet, const char *payload)
{
    luda_mail **mail = &g->mail[packet->from];
    size_t left = packet->payload;
    if (packet->offset == 0) {
        if (*mail)
            luda_mail_drop(*mail);
        *mail = luda_mail_begin(g->board, g->rank, packet->from, packet->slot, packet->bytes);
    }
    while (*mail && left > 0) {
        size_t room;
        char *to = luda_mail_take(*mail, &room);
        room = room < left ? room : left;
        if (to)
            memcpy(to, payload, room);
        luda_mail_give(*mail, room);
        payload += room;
        left -= room;
    }
    if (packet->offset + packet->payload >= packet->bytes)
        *mail = NULL;
}

static void answer(const group *g, int to)
{
    luda_packet packet = packet_of(g, LUDA_PACKET_ALIVE);
    int waiting;
    luda_board_position(g->board, g->rank, &packet.sequence, &waiting);
    packet.bytes = waiting != 0;
    if (g->known)
        luda__courier_post(g->world[to], &packet, NULL);
}

static void receive(group *g, const luda_packet *packet, const void *payload)
{
    switch ((luda_packet_kind)packet->kind) {
    case LUDA_PACKET_ANNOUNCE:
        if (packet->payload == sizeof(luda_announcement))
            luda_board_announced(g->board, packet->from, payload);
        break;
    case LUDA_PACKET_FAULT:
        if (packet->payload == sizeof(luda_comm_fault))
            luda_board_failed(g->board, packet->sequence, payload);
        break;
    case LUDA_PACKET_QUERY:
        answer(g, packet->from);
        break;
    case LUDA_PACKET_ALIVE:
        luda_board_alive(g->board, packet->from, packet->sequence, packet->bytes != 0);
        break;
    case LUDA_PACKET_LEAVE:
        g->left[packet->from] |= (uint8_t)(1u << (packet->bytes & 1));
        if (g->left[packet->from] == 3)
            luda_board_lost(g->board, packet->from, 1, NULL);
        break;
    case LUDA_PACKET_TABLE:
        if (packet->payload == (size_t)g->size * sizeof *g->world)
            learn(g, payload);
        break;
    case LUDA_PACKET_DATA:
        receive_data(g, packet, payload);
        break;
    case LUDA_PACKET_ENTER:
        break;
    }
}

void luda__groups_receive(const luda_packet *packet, const void *payload)
{
    group *g;
    pthread_mutex_lock(&lock);
    g = find_group(packet->group);
    if (packet->kind == LUDA_PACKET_ENTER)
        enter(packet->group, packet->from, (int32_t)packet->bytes);
    else if (g && packet->from >= 0 && packet->from < g->size)
        receive(g, packet, payload);
    pthread_mutex_unlock(&lock);
}

void luda__groups_lost(int rank)
{
    pthread_mutex_lock(&lock);
    for (group *g = groups; g; g = g->next)
        for (int r = 0; r < g->size && g->known; r++)
            if (g->world[r] == rank)
                luda_board_lost(g->board, r, 0, "MPI cannot reach it");
    pthread_mutex_unlock(&lock);
}

void luda__groups_leave(void)
{
    pthread_mutex_lock(&lock);
    for (group *g = groups; g; g = g->next)
        say_farewell(g);
    pthread_mutex_unlock(&lock);
}

/* --- The world --- */

/* Another MPI than the one that started the processes makes each a world of its own. */
static luda_status check_launcher(void)
{
    const char *started = getenv("OMPI_COMM_WORLD_SIZE");
    char text[200];
    started = started ? started : getenv("PMI_SIZE");
    if (!started || atoi(started) == world_size)
        return LUDA_OK;
    snprintf(text, sizeof text, "mpi: %.20s processes were started, but the MPI that was opened sees %d; name the launcher's in "
                                "LUDA_MPI_LIBRARY", started, world_size);
    return luda_set_error(LUDA_EIO, text);
}

static luda_status check_world(int rank, int size)
{
    char text[200];
    if ((rank < 0 || rank == world_rank) && (size <= 0 || size == world_size))
        return check_launcher();
    snprintf(text, sizeof text, "mpi: rank %d of %d was asked for, but MPI made this process rank %d of %d", rank, size, world_rank,
             world_size);
    return luda_set_error(LUDA_EINVAL, text);
}

static luda_status open_world(const char *address, const char *session, int rank, int size, const luda_comm_options *options,
                              luda_comm **out)
{
    group *g;
    bool second;
    luda_status status;
    if (options && options->size >= sizeof *options && (options->secret || options->encrypt))
        return luda_set_error(LUDA_ENOTSUP, "mpi: what MPI carries is neither authenticated nor encrypted by LUDA; leave secret "
                                            "and encrypt out, or use the transport tcp");
    pthread_mutex_lock(&lock);
    second = opened;
    opened = true;
    pthread_mutex_unlock(&lock);
    if (second)
        return luda_set_error(LUDA_ENOTSUP, "mpi: this process is a rank already, and MPI gives it only one; keep the communicator, "
                                            "split it, or use processes instead of rank threads");
    status = luda__courier_start(&world_rank, &world_size);
    if (status == LUDA_OK)
        status = check_world(rank, size);
    if (status == LUDA_OK && world_size == 1)
        return luda_comm_new_local_group(1, options, out);
    if (status == LUDA_OK)
        status = new_group(0, world_rank, world_size, &g);
    if (status != LUDA_OK) {
        opened = false;
        return status;
    }
    for (int r = 0; r < world_size; r++)
        g->world[r] = r;
    g->known = true;
    luda__courier_listen();
    return communicator(g, options, out);
}

__attribute__((visibility("default"))) luda_status luda_transport_start(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return luda_transport_register("mpi", open_world);
}
