/* Joining, from a rank's first words to connections with all others: at the rendezvous (meet.c), between ranks (join.c). */
#ifndef LUDA_JOIN_H
#define LUDA_JOIN_H

#include "secret.h"

#include <poll.h>

typedef struct luda_joining {
    int rank, size, listener;
    luda_connection server;
    double timeout, deadline;
    double rest; /* until then nobody is taken in: descriptors ran out */
    bool settled; /* what answers as the rendezvous knows this rank, or is none: another try would change nothing */
    uint8_t session[LUDA_SESSION_BYTES];
    luda_origin origin;
    luda_address *table;                           /* [size] */
    luda_connection (*connections)[LUDA_CHANNELS]; /* [size] */
    struct candidate *candidates; /* connections that are not part of the mesh yet */
    struct pollfd *polls;
    int count, most, strangers;
    uint64_t came;
} luda_joining;

/* What this rank says of itself, on every connection. */
luda_frame luda__introduction(const luda_joining *j, luda_frame_kind kind, int channel);
/* The deadline passed; `missing` has a bit for each rank to blame. */
luda_status luda__late(const luda_joining *j, const uint8_t *missing, const char *what);
/* Joins at the rendezvous, and waits there until all have: fills the table. */
luda_status luda__meet(luda_joining *j, const luda_address *address);

#endif
