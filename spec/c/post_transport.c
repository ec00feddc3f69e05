/*
 * A transport of a third party, as a library: ranks are threads of one process that name the same address, and messages go
 * through the board. spec/transport_spec.lua loads it at run time.
 */
#include <luda_transport.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct office {
    struct office *next;
    char address[64];
    int size, opened;
    luda_board *board;
} office;

typedef struct post { luda_board *board; int rank; } post;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static office *offices;

static luda_status send_message(void *state, int to, luda_slot_name slot, const void *data, size_t bytes)
{
    post *p = state;
    luda_mail *mail = luda_mail_begin(p->board, to, p->rank, slot, bytes);
    if (mail) {
        size_t room;
        void *memory = luda_mail_take(mail, &room);
        if (memory)
            memcpy(memory, data, bytes);
        luda_mail_give(mail, bytes);
    }
    if (slot.kind == LUDA_SLOT_STEP)
        luda_board_sent(p->board, p->rank);
    return LUDA_OK;
}

static void release(void *state)
{
    luda_board_release(((post *)state)->board);
    free(state);
}

/* The board of an address; the last rank takes the office away. */
static luda_status board_at(const char *address, int size, luda_board **out)
{
    office **at = &offices, *found;
    while (*at && strcmp((*at)->address, address) != 0)
        at = &(*at)->next;
    if (!*at) {
        found = calloc(1, sizeof *found);
        if (!found || luda_board_new(size, -1, &found->board) != LUDA_OK) {
            free(found);
            return LUDA_ENOMEM;
        }
        strncpy(found->address, address, sizeof found->address - 1);
        found->size = size;
        *at = found;
    }
    found = *at;
    if (found->size != size)
        return luda_set_error(LUDA_EINVAL, "post: the ranks name different sizes");
    *out = found->board;
    luda_board_retain(found->board);
    if (++found->opened == size) {
        *at = found->next;
        luda_board_release(found->board);
        free(found);
    }
    return LUDA_OK;
}

static luda_status open_post(const char *address, const char *session, int rank, int size, const luda_comm_options *options,
                             luda_comm **out)
{
    luda_transport transport = { .size = sizeof transport, .name = "post", .send = send_message, .release = release };
    post *p;
    luda_status status;
    if (!address || rank < 0 || rank >= size)
        return luda_set_error(LUDA_EINVAL, "post: needs an address, a rank and a size");
    p = calloc(1, sizeof *p);
    if (!p)
        return luda_set_error(LUDA_ENOMEM, "post: no memory");
    pthread_mutex_lock(&lock);
    status = board_at(address, size, &p->board);
    pthread_mutex_unlock(&lock);
    if (status != LUDA_OK) {
        free(p);
        return status;
    }
    p->rank = rank;
    transport.state = p;
    return luda_comm_new_over(&transport, p->board, rank, options, out);
}

__attribute__((visibility("default"))) luda_status luda_transport_start(void)
{
    return luda_transport_register("post", open_post);
}
