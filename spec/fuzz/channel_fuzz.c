/*
 * libFuzzer target: what members of a group may send to a rank over its connections, in any order and cut anywhere. A rank
 * that has arrived at a call, and expects messages of it, ends the call with a verdict that is safe to use.
 */
#include "stream.h"

#include <collective/mesh.h>

enum { SIZE = 3, EXPECTED = 64 };

static void query_nobody(void *state)
{
}

static const luda_transport silence = { .size = sizeof silence, .name = "silence", .query = query_nobody };

static luda_mesh *open_mesh(uv_loop_t *loop, luda_board *board, int ends[SIZE][LUDA_CHANNELS])
{
    luda_mesh *mesh = calloc(1, sizeof *mesh);
    mesh->links = calloc(SIZE, sizeof *mesh->links);
    mesh->board = board;
    mesh->size = SIZE;
    uv_timer_init(loop, &mesh->linger);
    mesh->linger.data = mesh;
    mesh->handles++;
    for (int r = 0; r < SIZE; r++) {
        luda_link *link = &mesh->links[r];
        link->mesh = mesh;
        link->rank = r;
        for (int i = 0; i < LUDA_CHANNELS; i++) {
            link->channels[i].link = link;
            link->channels[i].connection.fd = ends[r][i] = -1;
        }
        if (r == 0)
            continue;
        uv_timer_init(loop, &link->grace);
        link->grace.data = mesh;
        mesh->handles++;
        for (int i = 0; i < LUDA_CHANNELS; i++) {
            int pair[2];
            open_pair(pair);
            link->channels[i].connection.fd = pair[0];
            ends[r][i] = pair[1];
            DEMAND(luda__channel_open(&link->channels[i], loop) == LUDA_OK);
        }
    }
    return mesh;
}

/* Nothing that ranks say leads outside of what arrays and enums have. */
static void check_verdict(luda_board *board, luda_wait *wait)
{
    luda_announcement agreed, asked[SIZE];
    luda_comm_fault fault = { 0 };
    const char *field;
    char text[320];
    wait->deadline = 0;
    if (luda__board_agree(wait, &agreed, asked, &fault, &field) == LUDA_OK) {
        DEMAND(agreed.root >= 0 && agreed.root < SIZE && agreed.ndim <= LUDA_MAX_DIMS && agreed.dim < LUDA_MAX_DIMS);
        DEMAND(agreed.dtype < LUDA_DTYPE_COUNT && agreed.algorithm < LUDA_ALGORITHM_COUNT);
        luda__asked_text(&agreed, text, sizeof text);
    } else {
        DEMAND(fault.status < LUDA_OK && memchr(fault.text, 0, sizeof fault.text));
        luda__culprits_text(&fault, SIZE, text, sizeof text);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uv_loop_t loop;
    static bool running;
    uint8_t piece[MOST_PIECE], memory[SIZE][EXPECTED + 1];
    input in = { data, size };
    int ends[SIZE][LUDA_CHANNELS];
    luda_board *board;
    luda_mesh *mesh;
    luda_announcement asked = { .sequence = 1, .operation = take_byte(&in) % LUDA_CALL_COUNT, .algorithm = 1,
                                .dtype = -1, .ndim = -1 };
    luda_wait wait = { .transport = &silence, .sequence = 1, .timeout = 1, .name = luda__call_name(asked.operation) };
    if (!running)
        DEMAND(uv_loop_init(&loop) == 0);
    running = true;
    DEMAND(luda_board_new(SIZE, 0, &board) == LUDA_OK);
    mesh = open_mesh(&loop, board, ends);
    luda_board_retain(board);
    wait.board = board;
    asked.root = asked.operation == LUDA_CALL_BROADCAST ? -1 : 0;
    asked.hash = luda__asked_hash(&asked);
    luda__announcement_write(&asked, usual_announcement);
    luda__board_arrive(&wait, &asked, NULL, NULL);
    if (take_byte(&in) % 2) /* one of the two is honest */
        luda_board_announced(board, 2, &asked);
    for (int r = 1; r < SIZE; r++)
        luda__mail_post(board, 0, r, (luda_slot_name){ 1, 0, LUDA_SLOT_STEP }, memory[r], EXPECTED);
    while (in.left > 0) {
        uint8_t where = take_byte(&in);
        int r = 1 + (where & 1), i = where >> 1 & 1;
        size_t count = take_piece(&in, piece), cut = count * (where >> 4) / 15;
        if ((where & 12) == 12)
            shutdown(ends[r][i], SHUT_WR);
        feed(ends[r][i], piece, cut);
        uv_run(&loop, UV_RUN_NOWAIT);
        feed(ends[r][i], piece + cut, count - cut);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    /* What came before it was expected. */
    luda__mail_post(board, 0, 1, (luda_slot_name){ 1, 1, LUDA_SLOT_STEP }, memory[0], EXPECTED);
    luda__mail_post(board, 0, 2, (luda_slot_name){ 7, 0, LUDA_SLOT_MESSAGE }, memory[0], 1);
    uv_run(&loop, UV_RUN_NOWAIT);
    check_verdict(board, &wait);
    luda__mail_withdraw(board, 0, 1);
    luda__mail_withdraw_message(board, 0, 2, (luda_slot_name){ 7, 0, LUDA_SLOT_MESSAGE });
    luda__board_over(board, 0, 1);
    mesh->released = true;
    for (int r = 1; r < SIZE; r++) {
        luda__link_lost(&mesh->links[r], true, NULL);
        for (int i = 0; i < LUDA_CHANNELS; i++)
            close(ends[r][i]);
    }
    luda__mesh_link_ended(mesh);
    uv_run(&loop, UV_RUN_DEFAULT);
    luda_board_release(board);
    return 0;
}
