/* libFuzzer target: guests of a rendezvous that come, say anything and go, in any order. The server's count stays right. */
#include "stream.h"

/* The parsers are the file's own. */
#include <collective/rendezvous.c>

enum { SIZE = 3, MOST_GUESTS = 6 };

static luda_rendezvous *open_home(uv_loop_t *loop, luda_secret *secret, int *other)
{
    luda_rendezvous *home = calloc(1, sizeof *home);
    int pair[2];
    open_pair(pair);
    *other = pair[1];
    luda__object_init(home, &rendezvous_class);
    pthread_mutex_init(&home->lock, NULL);
    home->joined = calloc(SIZE, sizeof *home->joined);
    home->size = SIZE;
    home->fd = pair[0];
    home->secret = secret;
    memcpy(home->session, our_session, sizeof our_session);
    open_server(home, loop);
    return home;
}

static void check(luda_rendezvous *home)
{
    int32_t missing[SIZE];
    int strangers = 0, joined = 0;
    for (guest *g = home->guests; g; g = g->next) {
        DEMAND(g->rank < SIZE && (g->rank < 0 || home->joined[g->rank] == g));
        strangers += g->rank < 0;
        joined += g->rank >= 0;
    }
    DEMAND(strangers == home->strangers);
    DEMAND(luda_rendezvous_missing(home, missing, SIZE) == (home->complete ? 0 : SIZE - joined));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uv_loop_t loop;
    static bool running;
    uint8_t piece[MOST_PIECE];
    input in = { data, size };
    int ends[MOST_GUESTS], other;
    luda_rendezvous *home;
    if (!running)
        DEMAND(uv_loop_init(&loop) == 0);
    running = true;
    home = open_home(&loop, take_byte(&in) % 2 ? a_secret() : NULL, &other);
    for (int i = 0; i < MOST_GUESTS; i++)
        ends[i] = -1;
    while (in.left > 0) {
        uint8_t what = take_byte(&in);
        int *end = &ends[what % MOST_GUESTS];
        size_t count = take_piece(&in, piece), cut = count * (what >> 4) / 15;
        if (what / MOST_GUESTS % 8 == 0 && *end >= 0) {
            close(*end);
            *end = -1;
        } else {
            if (*end < 0) {
                int pair[2];
                open_pair(pair);
                *end = pair[1];
                take_in(home, &loop, pair[0]);
            }
            feed(*end, piece, cut);
            uv_run(&loop, UV_RUN_NOWAIT);
            feed(*end, piece + cut, count - cut);
        }
        uv_run(&loop, UV_RUN_NOWAIT);
        check(home);
    }
    close_server(home, &loop);
    uv_run(&loop, UV_RUN_DEFAULT);
    luda__release(home);
    for (int i = 0; i < MOST_GUESTS; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    close(other);
    return 0;
}
