/* Sockets, frames and the network thread: what rendezvous, joining and the mesh share. */
#ifndef LUDA_NET_H
#define LUDA_NET_H

#include "collective.h"

#include <sys/socket.h>
#include <netinet/in.h>
#include <uv.h>

/* --- Frames (frame.c): a header of fixed size, little-endian, and a payload --- */

enum { LUDA_FRAME_MAGIC = 0x4144554C, LUDA_FRAME_VERSION = 1, LUDA_FRAME_BYTES = 64, LUDA_SESSION_BYTES = 16 };

/* LUDA_FRAME(kind, most bytes of payload) */
#define LUDA_FRAMES(LUDA_FRAME)                                                                                        \
    LUDA_FRAME(JOIN, 2)       /* rank to server: the port it listens on */                                             \
    LUDA_FRAME(MISSING, 128)  /* server to rank: who has not joined, a bit set */                                      \
    LUDA_FRAME(READY, 19 * LUDA_MAX_RANKS) /* server to rank: everybody's address */                                   \
    LUDA_FRAME(REFUSE, 256)   /* server to rank: why not */                                                            \
    LUDA_FRAME(HELLO, 0)      /* rank to rank, on a new connection; step: which channel */                             \
    LUDA_FRAME(WELCOME, 0)                                                                                             \
    LUDA_FRAME(DATA, (uint64_t)1 << 40)                                                                                \
    LUDA_FRAME(ANNOUNCE, LUDA_ANNOUNCE_BYTES)                                                                          \
    LUDA_FRAME(FAULT, LUDA_FAULT_BYTES)                                                                                \
    LUDA_FRAME(QUERY, 0)                                                                                               \
    LUDA_FRAME(ALIVE, 0)      /* sequence: the call its main thread is at; step: whether it waits there */             \
    LUDA_FRAME(LEAVE, 0)                                                                                               \
    LUDA_FRAME(KNOCK, 33)     /* instead of HELLO where there is a secret: see secret.h */                             \
    LUDA_FRAME(CHALLENGE, 32)                                                                                          \
    LUDA_FRAME(PROOF, 32)

enum { LUDA_ANNOUNCE_BYTES = 10 * 4 + 8 * LUDA_MAX_DIMS + 64 + 160, LUDA_FAULT_BYTES = 4 + LUDA_MAX_RANKS / 8 + 512 };

typedef enum luda_frame_kind {
#define LUDA_FRAME(kind, most) LUDA_FRAME_##kind,
    LUDA_FRAMES(LUDA_FRAME)
#undef LUDA_FRAME
    LUDA_FRAME_COUNT
} luda_frame_kind;

typedef struct luda_frame {
    luda_frame_kind kind;
    uint64_t payload; /* bytes that follow */
    uint64_t sequence, hash;
    uint32_t step, slot;
    uint32_t rank, size; /* of the sender, of its world */
    uint8_t session[LUDA_SESSION_BYTES]; /* zero once a connection is established */
} luda_frame;

void luda__frame_write(const luda_frame *frame, uint8_t bytes[LUDA_FRAME_BYTES]);
/* False for anything that is not a frame of ours, or too long for its kind. */
bool luda__frame_read(const uint8_t bytes[LUDA_FRAME_BYTES], luda_frame *frame);
/* Whether the first `got` bytes may become a frame: what cannot is known from its first byte on. */
bool luda__frame_starts(const uint8_t *bytes, size_t got);
void luda__announcement_write(const luda_announcement *a, uint8_t bytes[LUDA_ANNOUNCE_BYTES]);
/* sequence and hash travel in the frame and stand in `a` already. False for what no rank of `size` can ask. */
bool luda__announcement_read(const uint8_t bytes[LUDA_ANNOUNCE_BYTES], int size, luda_announcement *a);
void luda__fault_write(const luda_comm_fault *fault, uint8_t bytes[LUDA_FAULT_BYTES]);
void luda__fault_read(const uint8_t bytes[LUDA_FAULT_BYTES], luda_comm_fault *fault);
/* Ends a text that came from elsewhere; a terminal that shows it obeys nothing in it. */
void luda__tame(char *text, size_t room);

/* --- Sockets (net.c) --- */

typedef struct luda_address {
    struct sockaddr_storage storage;
    socklen_t length;
} luda_address;

enum { LUDA_ADDRESS_BYTES = 19 }; /* family, 16 bytes, port */

/* "127.0.0.1:4000", "localhost:0", "[::1]:4000". */
luda_status luda__address_parse(const char *text, luda_address *out);
const char *luda__address_text(const luda_address *address, char *buffer, size_t room);
bool luda__address_is_loopback(const luda_address *address);
/* Refuses what other hosts can reach: for groups without a secret. */
luda_status luda__address_check(const luda_address *address, const char *who);
void luda__address_set_port(luda_address *address, int port);
int luda__address_port(const luda_address *address);
void luda__address_write(const luda_address *address, uint8_t bytes[LUDA_ADDRESS_BYTES]);
bool luda__address_read(const uint8_t bytes[LUDA_ADDRESS_BYTES], luda_address *out);
/* A listening socket; `address` becomes what it is bound to. */
luda_status luda__listen(luda_address *address, int backlog, int *out);
/* Non-blocking, closed on exec, without delay. */
int luda__socket_accept(int listener);
/* Whether an accept failed, with this errno, because descriptors or memory ran out: the listener stays readable. */
bool luda__socket_exhausted(int error);
/* -1 with errno, or a socket that connects (poll for writing, then luda__socket_error). */
int luda__socket_connect(const luda_address *address);
int luda__socket_error(int fd);

/* Where strangers may come: connections taken in per turn, milliseconds until the next try where descriptors ran out. */
enum { LUDA_TURN = 64, LUDA_EXHAUSTED_MS = 50, LUDA_BACKLOG = 1024 };

/* A connection on its way from joining to the mesh. */
typedef struct luda_secret luda_secret;
typedef struct luda_seal luda_seal; /* secret.h; NULL where there is no secret */
typedef struct luda_connection {
    int fd; /* -1: none */
    luda_seal *seal;
} luda_connection;

void luda__disconnect(luda_connection *connection);
/* Whole transfers of non-blocking sockets; ETIMEOUT, or EPEER where the other side went away. */
luda_status luda__socket_write(const luda_connection *to, const void *bytes, size_t count, double deadline);
luda_status luda__socket_read(const luda_connection *from, void *bytes, size_t count, double deadline);
bool luda__session_parse(const char *text, uint8_t out[LUDA_SESSION_BYTES]);
luda_status luda__random_bytes(void *bytes, size_t count);

/* --- The network thread (loop.c) --- */

/*
 * One thread per process runs a libuv loop. It is entered through tasks only; a task belongs to whoever posted it until it
 * runs. The thread lives as long as the process and never blocks.
 */
typedef struct luda_task {
    struct luda_task *next;
    void (*run)(struct luda_task *task, uv_loop_t *loop);
} luda_task;

luda_status luda__loop_post(luda_task *task);
/* Posts and waits until it has run. */
luda_status luda__loop_call(void (*run)(void *arg, uv_loop_t *loop), void *arg);

/* --- The mesh (mesh.c) --- */

enum { LUDA_CHANNEL_DATA = 0, LUDA_CHANNEL_CONTROL = 1, LUDA_CHANNELS = 2 };

/* What the parts of a group inherit from it. */
typedef struct luda_origin {
    luda_secret *secret; /* or NULL */
    luda_address here;   /* where this rank is reached; the port is 0 */
} luda_origin;

/* Takes over connections, [size][LUDA_CHANNELS], none for this rank itself; also on failure. */
luda_status luda__mesh_comm(int rank, int size, luda_connection (*connections)[LUDA_CHANNELS], const luda_origin *origin,
                            const luda_comm_options *options, luda_comm **out);

/* --- Meeting, with a secret or NULL (rendezvous.c, join.c) --- */

luda_status luda__rendezvous_new(const char *bind, const char *session, int size, luda_secret *secret,
                                 luda_rendezvous **out);
luda_status luda__comm_connect(const char *address, const char *session, int rank, int size, luda_secret *secret,
                               const luda_comm_options *options, luda_comm **out);

#endif
