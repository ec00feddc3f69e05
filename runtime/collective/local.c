/* The transport `local`: rank threads of one process share a board, and a lane over which they see each other's memory. */
#include "lane.h"

#include <stdlib.h>
#include <string.h>

typedef struct local {
    luda_board *board;
    int rank;
    bool counted; /* a rank thread of its process, not a part of a split group */
} local;

static luda_status local_send(void *state, int to, luda_slot_name slot, const void *data, size_t bytes)
{
    local *l = state;
    luda_status status = luda__mail_deliver(l->board, to, l->rank, slot, data, bytes);
    if (slot.kind == LUDA_SLOT_STEP)
        luda_board_sent(l->board, l->rank);
    return status;
}

/* Rank threads of this process, of all groups: they divide the workers of the pool. */
static atomic_int rank_threads;

static void count_rank_threads(int change)
{
    luda__pool_ranks(atomic_fetch_add(&rank_threads, change) + change);
}

static void local_release(void *state)
{
    local *l = state;
    if (l->counted)
        count_rank_threads(-1);
    luda_board_release(l->board);
    free(l);
}

static luda_status new_board(int size, luda_board **out)
{
    size_t bytes = luda__lane_bytes(size, false);
    luda_lane_memory *memory;
    luda_board *board;
    LUDA_TRY(luda_board_new(size, -1, &board));
    memory = aligned_alloc(128, (bytes + 127) / 128 * 128);
    if (memory) {
        memset(memory, 0, bytes);
        board->lane = luda__lane_new(memory, size, false);
    }
    if (!board->lane) {
        free(memory);
        luda_board_release(board);
        return luda__fail(LUDA_ENOMEM, "comm: no memory for %d ranks", size);
    }
    *out = board;
    return LUDA_OK;
}

/* The card of a part of the group is the address of its board. */
static luda_status local_lead(void *state, int size, char card[LUDA_CARD_BYTES], void **held)
{
    luda_board *board;
    LUDA_TRY(new_board(size, &board));
    memcpy(card, &board, sizeof board);
    *held = board;
    return LUDA_OK;
}

static void local_dismiss(void *held)
{
    luda_board_release(held);
}

static luda_status local_join(void *state, const char card[LUDA_CARD_BYTES], int rank, int size,
                              const luda_comm_options *options, luda_comm **out)
{
    luda_board *board;
    memcpy(&board, card, sizeof board);
    return luda__local_comm(board, rank, options, out);
}

luda_status luda__local_comm(luda_board *board, int rank, const luda_comm_options *options, luda_comm **out)
{
    luda_transport transport = { .size = sizeof transport, .name = "local", .send = local_send,
                                 .release = local_release, .lead = local_lead, .dismiss = local_dismiss,
                                 .join = local_join };
    local *l = malloc(sizeof *l);
    if (!l)
        return luda__fail(LUDA_ENOMEM, "comm: no memory for a rank");
    l->board = board;
    l->rank = rank;
    l->counted = false;
    luda_board_retain(board);
    transport.state = l;
    return luda_comm_new_over(&transport, board, rank, options, out);
}

static void count_rank(luda_comm *comm)
{
    local *l = comm->transport.state;
    l->counted = true;
    count_rank_threads(1);
}

luda_status luda_comm_new_local_group(int size, const luda_comm_options *options, luda_comm **out)
{
    luda_board *board;
    luda_status status = LUDA_OK;
    int made = 0;
    LUDA_TRY(new_board(size, &board));
    luda_comm **comms = calloc((size_t)size, sizeof *comms);
    if (!comms)
        status = luda__fail(LUDA_ENOMEM, "comm: no memory for %d ranks", size);
    while (status == LUDA_OK && made < size) {
        status = luda__local_comm(board, made, options, &comms[made]);
        made += status == LUDA_OK;
    }
    if (status == LUDA_OK)
        memcpy(out, comms, (size_t)size * sizeof *comms);
    for (int r = 0; status == LUDA_OK && size > 1 && r < size; r++)
        count_rank(comms[r]);
    for (int r = 0; status != LUDA_OK && r < made; r++)
        luda_comm_release(comms[r]);
    free(comms);
    luda_board_release(board);
    return status;
}
