/* Splitting: ranks tell each other colors and keys, and each part makes a group of its own by its transport's means. */
#include "collective.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where this rank stands in its part. */
typedef struct part {
    int rank, size, leader; /* leader: a rank of the whole */
} part;

/* Every rank's row of `bytes` bytes, into table [size * bytes]. */
static luda_status exchange(luda_comm *comm, const void *row, int64_t bytes, const luda_comm_options *options,
                            void *table)
{
    luda_device cpu = { LUDA_CPU, 0 };
    luda_tensor *mine, *all = NULL;
    luda_status status;
    LUDA_TRY(luda_tensor_new(LUDA_U8, cpu, 1, &bytes, &mine));
    memcpy(luda_tensor_data(mine), row, (size_t)bytes);
    status = luda_comm_all_gather(comm, mine, options, &all);
    if (status == LUDA_OK)
        memcpy(table, luda_tensor_data(all), (size_t)(bytes * comm->size));
    luda_tensor_release(mine);
    luda_tensor_release(all);
    return status;
}

/* rows[r] = { color, key } */
static part place(const luda_comm *comm, int64_t (*rows)[2])
{
    part p = { .leader = -1 };
    const int64_t *me = rows[comm->rank];
    for (int r = 0; r < comm->size; r++) {
        if (rows[r][0] != me[0])
            continue;
        p.size++;
        p.rank += rows[r][1] < me[1] || (rows[r][1] == me[1] && r < comm->rank);
        if (p.leader < 0 || rows[r][1] < rows[p.leader][1])
            p.leader = r;
    }
    return p;
}

/* A leader's card, behind a byte that says whether there is one. */
typedef struct card { char valid, bytes[LUDA_CARD_BYTES]; } card;

static luda_status meet(luda_comm *comm, const part *p, bool member, card *cards, const luda_comm_options *calls,
                        const luda_comm_options *options, luda_comm **out)
{
    const luda_transport *transport = &comm->transport;
    card mine = { 0 };
    void *held = NULL;
    luda_status status = LUDA_OK, after;
    bool leads = member && p->leader == comm->rank;
    luda_comm *made = NULL;
    if (leads)
        mine.valid = transport->lead(transport->state, p->size, mine.bytes, &held) == LUDA_OK;
    status = exchange(comm, &mine, sizeof mine, calls, cards);
    if (status == LUDA_OK && member) {
        status = cards[p->leader].valid
                     ? transport->join(transport->state, cards[p->leader].bytes, p->rank, p->size, options, &made)
                     : luda__fail(LUDA_EPEER, "split: rank %d could not open a group for %d ranks", p->leader, p->size);
    }
    /* The leader keeps the door open until all have come or given up. */
    after = luda_comm_barrier(comm, calls);
    if (mine.valid)
        transport->dismiss(held);
    if (status == LUDA_OK && after != LUDA_OK) {
        luda_comm_release(made);
        return after;
    }
    if (status == LUDA_OK)
        *out = made;
    return status;
}

luda_status luda_comm_split(luda_comm *comm, int color, int key, const luda_comm_options *options, luda_comm **out)
{
    luda_comm_options given, calls, group;
    const int64_t mine[2] = { color < 0 ? -1 : color, key };
    int64_t (*rows)[2];
    card *cards;
    luda_status status;
    part p;
    if (!comm)
        return luda__fail(LUDA_EINVAL, "split: no communicator");
    if (!comm->transport.lead)
        return luda__fail(LUDA_ENOTSUP, "split: the transport %s cannot", comm->transport.name);
    LUDA_TRY(luda__options(options, &given));
    calls = (luda_comm_options){ .size = sizeof calls, .timeout = given.timeout, .site = given.site };
    group = (luda_comm_options){ .size = sizeof group, .timeout = given.timeout > 0 ? given.timeout : comm->timeout,
                                 .algorithm = given.algorithm ? given.algorithm : comm->algorithm };
    rows = calloc((size_t)comm->size, sizeof *rows);
    cards = calloc((size_t)comm->size, sizeof *cards);
    status = rows && cards ? exchange(comm, mine, sizeof mine, &calls, rows)
                           : luda__fail(LUDA_ENOMEM, "split: no memory for %d ranks", comm->size);
    if (status == LUDA_OK) {
        p = place(comm, rows);
        status = meet(comm, &p, color >= 0, cards, &calls, &group, out);
    }
    if (status == LUDA_OK && color < 0)
        *out = NULL;
    free(cards);
    free(rows);
    return status;
}
