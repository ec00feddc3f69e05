/*
 * The transport `local`: rank threads of one process share a board and read each other's memory. All-reduce moves every
 * byte once: rank r sums slice r of everybody's input and writes it into everybody's output. No rank leaves before all are
 * through, so nothing is touched after a call returned.
 */
#include "collective.h"

#include <stdlib.h>
#include <string.h>

typedef struct local {
    luda_board *board;
    int rank;
    bool counted; /* a rank thread of its process, not a part of a split group */
} local;

void luda__copy_rows(void *to, int64_t to_pitch, const void *from, int64_t from_pitch, int64_t bytes, int64_t rows)
{
    for (int64_t r = 0; r < rows && bytes > 0; r++)
        memcpy((char *)to + r * to_pitch, (const char *)from + r * from_pitch, (size_t)bytes);
}

/* What a rank needs of everybody's memory. */
typedef struct view {
    const luda_collective *call;
    const void *in[LUDA_MAX_RANKS];
    void *out[LUDA_MAX_RANKS];
    int64_t whole, piece; /* bytes of one outer row: the joined tensor's, one rank's */
} view;

static void reduce_slice(view *v, int first, int targets)
{
    const luda_collective *c = v->call;
    const void *sources[LUDA_MAX_RANKS];
    void *results[LUDA_MAX_RANKS];
    int64_t start, count, width = luda_dtype_size((luda_dtype)c->agreed.dtype);
    luda__slice(c->outer * c->count * c->inner, c->size, c->rank, &start, &count);
    if (count == 0)
        return;
    for (int q = 0; q < c->size; q++)
        sources[q] = (const char *)v->in[q] + start * width;
    for (int t = 0; t < targets; t++)
        results[t] = (char *)v->out[first + t] + start * width;
    luda__reduce_ranks((luda_dtype)c->agreed.dtype, (luda_reduction)c->agreed.reduction, sources, c->size, results,
                       targets, count);
}

static void all_reduce(view *v)
{
    reduce_slice(v, 0, v->call->size);
}

static void reduce(view *v)
{
    reduce_slice(v, v->call->agreed.root, 1);
}

static void broadcast(view *v)
{
    if (v->call->out)
        luda__copy_rows(v->call->out, 0, v->in[v->call->agreed.root], 0, v->whole * v->call->outer, 1);
}

static void join(view *v)
{
    const luda_collective *c = v->call;
    for (int q = 0; q < c->size && c->out; q++)
        luda__copy_rows((char *)c->out + q * v->piece, v->whole, v->in[q], v->piece, v->piece, c->outer);
}

static void reduce_scatter(view *v)
{
    const luda_collective *c = v->call;
    const void *sources[LUDA_MAX_RANKS];
    int64_t count = v->piece / luda_dtype_size((luda_dtype)c->agreed.dtype);
    for (int64_t o = 0; o < c->outer && count > 0; o++) {
        void *result = (char *)c->out + o * v->piece;
        for (int q = 0; q < c->size; q++)
            sources[q] = (const char *)v->in[q] + o * v->whole + c->rank * v->piece;
        luda__reduce_ranks((luda_dtype)c->agreed.dtype, (luda_reduction)c->agreed.reduction, sources, c->size, &result,
                           1, count);
    }
}

static void scatter(view *v)
{
    const luda_collective *c = v->call;
    if (c->out)
        luda__copy_rows(c->out, v->piece, (const char *)v->in[c->agreed.root] + c->rank * v->piece, v->whole, v->piece,
                        c->outer);
}

static void all_to_all(view *v)
{
    const luda_collective *c = v->call;
    for (int q = 0; q < c->size; q++)
        luda__copy_rows((char *)c->out + q * v->piece, v->whole, (const char *)v->in[q] + c->rank * v->piece, v->whole,
                        v->piece, c->outer);
}

static luda_status local_collective(void *state, const luda_collective *call)
{
    static void (*const moves[LUDA_CALL_COUNT])(view *) = {
        [LUDA_CALL_ALL_REDUCE] = all_reduce,
        [LUDA_CALL_REDUCE] = reduce,
        [LUDA_CALL_BROADCAST] = broadcast,
        [LUDA_CALL_ALL_GATHER] = join,
        [LUDA_CALL_REDUCE_SCATTER] = reduce_scatter,
        [LUDA_CALL_GATHER] = join,
        [LUDA_CALL_SCATTER] = scatter,
        [LUDA_CALL_ALL_TO_ALL] = all_to_all,
    };
    local *l = state;
    view v;
    if (call->agreed.algorithm != LUDA_ALGORITHM_DIRECT)
        return LUDA_ENOTSUP;
    v.call = call;
    v.whole =
        call->count * call->inner * (call->agreed.dtype < 0 ? 0 : luda_dtype_size((luda_dtype)call->agreed.dtype));
    v.piece = v.whole / call->size;
    luda__board_addresses(l->board, call->agreed.sequence, v.in, v.out);
    if (v.whole * call->outer > 0) {
        moves[call->agreed.operation](&v);
        luda__board_depart(l->board, call->rank, call->agreed.sequence);
    }
    return LUDA_OK;
}

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

/* The card of a part of the group is the address of its board. */
static luda_status local_lead(void *state, int size, char card[LUDA_CARD_BYTES], void **held)
{
    luda_board *board;
    LUDA_TRY(luda_board_new(size, -1, &board));
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
                                 .collective = local_collective, .release = local_release, .lead = local_lead,
                                 .dismiss = local_dismiss, .join = local_join };
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
    LUDA_TRY(luda_board_new(size, -1, &board));
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
