/* libFuzzer target: what a rank hears while it joins: a rendezvous that answers anything, then ranks and strangers. */
#include "stream.h"

/* The parsers are the files' own. */
#include <collective/join.c>
#include <collective/meet.c>

enum { RANK = 1, SIZE = 3, MOST_CANDIDATES = 8 };

static void check(const luda_joining *j)
{
    int strangers = 0;
    for (int i = 0; i < j->count; i++)
        strangers += !j->candidates[i].outgoing;
    DEMAND(strangers == j->strangers);
    for (int i = 0; i < LUDA_CHANNELS; i++)
        DEMAND(j->connections[RANK][i].fd < 0);
}

static void hear_rendezvous(luda_joining *j, input *in)
{
    uint8_t piece[MOST_PIECE];
    int pair[2], pieces = take_byte(in) % 8;
    open_pair(pair);
    j->server.fd = pair[0];
    for (int i = 0; i < pieces; i++)
        feed(pair[1], piece, take_piece(in, piece));
    close(pair[1]);
    if ((!j->origin.secret || greet_server(j) == LUDA_OK) && wait_for_all(j) == LUDA_OK)
        for (int r = 0; r < SIZE; r++)
            DEMAND(j->table[r].length > 0 && luda__address_port(&j->table[r]) >= 0);
}

static void hear_ranks(luda_joining *j, input *in)
{
    uint8_t piece[MOST_PIECE];
    int ends[MOST_CANDIDATES], ours[MOST_CANDIDATES];
    for (int i = 0; i < MOST_CANDIDATES; i++) {
        int pair[2];
        open_pair(pair);
        ours[i] = pair[0];
        ends[i] = pair[1];
        j->candidates[j->count++] = (candidate){ .fd = pair[0], .rank = i < LUDA_CHANNELS ? 0 : -1, .channel = i,
                                                 .outgoing = i < LUDA_CHANNELS, .number = j->came++ };
        if (i >= LUDA_CHANNELS)
            luda__greeting_await(&j->candidates[i].greeting, j->origin.secret, RANK);
    }
    j->strangers = MOST_CANDIDATES - LUDA_CHANNELS;
    while (in->left > 0) {
        uint8_t which = take_byte(in);
        size_t count = take_piece(in, piece);
        int fd = ours[which % MOST_CANDIDATES];
        feed(ends[which % MOST_CANDIDATES], piece, count);
        if (which >= 250 && j->strangers > 0)
            forget_oldest_stranger(j);
        for (int i = 0; i < j->count; i++)
            if (j->candidates[i].fd == fd) {
                if (advance(j, &j->candidates[i]) != LUDA_OK)
                    in->left = 0;
                break;
            }
        check(j);
    }
    for (int i = 0; i < MOST_CANDIDATES; i++)
        close(ends[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    luda_joining j = { .rank = RANK, .size = SIZE, .server.fd = -1, .listener = -1, .timeout = 1, .deadline = luda__now() + 60 };
    input in = { data, size };
    uint8_t what = take_byte(&in);
    j.origin.secret = what & 2 ? a_secret() : NULL;
    memcpy(j.session, our_session, sizeof our_session);
    DEMAND(allocate(&j) == LUDA_OK);
    if (what & 1)
        hear_rendezvous(&j, &in);
    else
        hear_ranks(&j, &in);
    close_door(&j);
    free_all(&j, false);
    luda__secret_release(j.origin.secret);
    return 0;
}
