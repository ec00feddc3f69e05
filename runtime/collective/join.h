/* What a rank knows while it joins: for join.c, and meet.c, which is the part of it at the rendezvous. */
#ifndef LUDA_JOIN_H
#define LUDA_JOIN_H

#include "secret.h"

typedef struct luda_joining {
    int rank, size, listener;
    luda_connection server;
    double timeout, deadline;
    double rest; /* until then nobody is taken in: descriptors ran out */
    bool answered; /* by the rendezvous */
    uint8_t session[LUDA_SESSION_BYTES];
    luda_origin origin;
    luda_address *table;                           /* [size] */
    luda_connection (*connections)[LUDA_CHANNELS]; /* [size] */
    struct candidate *candidates;
    struct pollfd *polls;
    int count, most, strangers;
    uint64_t came;
} luda_joining;

/* --- meet.c --- */

/* Joins at the rendezvous and waits for all others: fills the table, and listens. */
luda_status luda__meet(luda_joining *joining, const luda_address *rendezvous);
/* What this rank says of itself, on every connection. */
luda_frame luda__introduction(const luda_joining *joining, luda_frame_kind kind, int channel);
/* LUDA_ETIMEOUT with the names of the missing ranks, a bit set. */
luda_status luda__late(const luda_joining *joining, const uint8_t *missing, const char *what);

#endif
