/*
 * What carries the bytes of a communicator. Algorithms, agreement, deadlines and blame are written once, over this
 * struct; `local` and `tcp` are built in, and a third party makes another: it opens a board, starts whatever tells the
 * board about arrivals, fills a luda_transport and hands both to luda_comm_new_over.
 *
 * The board is where everything that concerns the ranks of this process comes together: who has arrived at which call,
 * who is lost, which messages are expected and which have come. A transport pushes into it, from any thread.
 */
#ifndef LUDA_TRANSPORT_H
#define LUDA_TRANSPORT_H

#include "luda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LUDA_MAX_RANKS = 1024, LUDA_CARD_BYTES = 128 };

/* What a rank asks for. Compared: everything from `operation` to `shape`; -1 is "unknown" and matches anything. */
typedef struct luda_announcement {
    uint64_t sequence;
    uint64_t hash; /* of what is compared; equal hashes need no further look */
    int32_t operation; /* LUDA_CALL rows */
    int32_t reduction, root, algorithm, dim, tracked;
    int32_t dtype, ndim;
    int32_t arity;    /* of a tree */
    int32_t link[3];  /* algorithm auto: what the choice goes by; nanoseconds, nanoseconds, megabytes a second */
    int64_t sizes;    /* 0: even pieces; else a digest of the uneven ones, or how all_to_all learns them */
    int64_t shape[LUDA_MAX_DIMS]; /* -1: an extent that differs by rank */
    int32_t sender;   /* broadcast: this rank passes a tensor */
    int32_t refused;  /* a status: the rank cannot make the call; `note` says why */
    char site[64];    /* the words come last: most announcements have none */
    char note[160];   /* why it refuses, or its uneven sizes in words */
} luda_announcement;

/* Why a call failed, for every rank. */
typedef struct luda_comm_fault {
    int32_t status;
    uint64_t culprits[LUDA_MAX_RANKS / 64]; /* bit set */
    char text[512];
} luda_comm_fault;

/* Names one message between two ranks. Messages with equal slots from one rank arrive in order. */
typedef struct luda_slot_name {
    uint64_t sequence; /* of the call; the tag for messages of send and recv */
    uint32_t step;
    uint32_t kind;
} luda_slot_name;
enum { LUDA_SLOT_STEP = 0, LUDA_SLOT_MESSAGE = 1 };

/* A collective between agreement and completion, as a transport with collectives of its own sees it. */
typedef struct luda_collective {
    luda_announcement agreed; /* with every unknown filled in */
    int rank, size;
    const void *in; /* contiguous; NULL where the rank passes nothing */
    void *out;      /* contiguous; NULL where the rank gets nothing; may equal `in` */
    int64_t outer, count, inner; /* of the *whole* tensor: [outer, count, inner], cut or joined along count */
    /* Uneven pieces, along count, [size]; NULL: even ones. Such calls go by step lists, never to `collective`. */
    const int64_t *sizes;    /* of each rank; all_to_all: what this rank sends to each */
    const int64_t *received; /* all_to_all: what this rank gets from each */
} luda_collective;

typedef struct luda_board luda_board;

/* Every entry returns at once; NULL entries: see each. Entries with a `state` are called by one thread at a time. */
typedef struct luda_transport {
    uint32_t size; /* sizeof(luda_transport) */
    const char *name;
    void *state;
    /* Tells the other ranks; NULL where ranks share the board. */
    luda_status (*announce)(void *state, const luda_announcement *announcement);
    /* Tells the other ranks that a call failed here (sequence 0: every call, an abort). NULL where they share the board. */
    void (*fail)(void *state, uint64_t sequence, const luda_comm_fault *fault);
    /* Asks all others to answer with luda_board_alive. NULL where a rank cannot be silent. */
    void (*query)(void *state);
    /*
     * Sends; the memory stays valid until luda_board_sent was told, or withdraw. LUDA_SLOT_MESSAGE: until the return only.
     */
    luda_status (*send)(void *state, int to, luda_slot_name slot, const void *data, size_t bytes);
    /* Gives up what is not sent yet: afterwards memory given to `send` is not read any more. */
    void (*withdraw)(void *state);
    /* Runs a whole collective natively, or answers LUDA_ENOTSUP at once. NULL: the step lists do everything. */
    luda_status (*collective)(void *state, const luda_collective *call);
    /* Leaves; the others see luda_board_lost(…, left = 1). What was sent still arrives. */
    void (*close)(void *state);
    void (*release)(void *state);
    /*
     * For luda_comm_split, all three or none: the first rank of a part leads and writes a card, which reaches the part's
     * other ranks; all of them join with it; then the leader dismisses what it held.
     */
    luda_status (*lead)(void *state, int size, char card[LUDA_CARD_BYTES], void **held);
    luda_status (*join)(void *state, const char card[LUDA_CARD_BYTES], int rank, int size,
                        const luda_comm_options *options, luda_comm **out);
    void (*dismiss)(void *held);
} luda_transport;

/* A board for `size` ranks of which `resident` lives here, -1: all. */
LUDA_API luda_status luda_board_new(int size, int resident, luda_board **out);
LUDA_API void luda_board_retain(luda_board *board);
LUDA_API void luda_board_release(luda_board *board);

/* A communicator of one rank over a transport; takes over the transport's state, also on failure, and retains the board. */
LUDA_API luda_status luda_comm_new_over(const luda_transport *transport, luda_board *board, int rank,
                                        const luda_comm_options *options, luda_comm **out);

/* Rank `from` has arrived at a call. */
LUDA_API void luda_board_announced(luda_board *board, int from, const luda_announcement *announcement);
/* Rank `from` gave a call up (sequence 0: all of them). The first report of a call counts. */
LUDA_API void luda_board_failed(luda_board *board, uint64_t sequence, const luda_comm_fault *fault);
/* Rank `lost` went away: orderly (left) or not. */
LUDA_API void luda_board_lost(luda_board *board, int lost, int left, const char *text);
/* An answer to `query`: the call the rank is at, and whether it waits there for others. */
LUDA_API void luda_board_alive(luda_board *board, int rank, uint64_t sequence, int waiting);
/* One LUDA_SLOT_STEP message given to `send` by resident rank `rank` is out: its memory is not read any more. */
LUDA_API void luda_board_sent(luda_board *board, int rank);
/* What a query should be answered with. */
LUDA_API void luda_board_position(luda_board *board, int rank, uint64_t *sequence, int *waiting);

/*
 * An incoming message for resident rank `to`: begin, then any number of take/give pairs around writing up to *room bytes to
 * the returned address, until all bytes were given. take returns NULL for bytes nobody wants: read and drop them. The
 * message belongs to the transport until its last byte was given; a connection lost half-way calls luda_mail_drop.
 */
typedef struct luda_mail luda_mail;
LUDA_API luda_mail *luda_mail_begin(luda_board *board, int to, int from, luda_slot_name slot, size_t bytes);
LUDA_API void *luda_mail_take(luda_mail *mail, size_t *room);
LUDA_API void luda_mail_give(luda_mail *mail, size_t written); /* the mail is gone after the last byte */
LUDA_API void luda_mail_drop(luda_mail *mail);

#ifdef __cplusplus
}
#endif
#endif
