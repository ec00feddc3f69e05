/*
 * The transport `mpi`: a library of its own (libluda_mpi.so), so that libluda needs no MPI. It uses an installed MPI's sends
 * and receives and nothing else of it. All of MPI is called from one thread, the courier, which polls; everything between it
 * and the ranks' threads goes through one lock.
 */
#ifndef LUDA_MPI_H
#define LUDA_MPI_H

#include <luda_transport.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- An installed MPI (installed.c), called by the courier only, but for luda__mpi_load --- */

enum { LUDA_MPI_CONTROL = 0x4C55, LUDA_MPI_DATA = 0x4C56 }; /* tags of our messages among those of the program */

/* A request's memory, whatever the MPI makes of it. */
typedef union luda_mpi_request { void *pointer; int number; } luda_mpi_request;

/* Opens the MPI that is loaded already, or the library LUDA_MPI_LIBRARY, or one of the usual names. LUDA_EIO: there is none. */
luda_status luda__mpi_load(void);
/* Begins, unless the program has (with MPI_THREAD_MULTIPLE: LUDA_ENOTSUP if not), and tells rank and size. */
luda_status luda__mpi_begin(int *rank, int *size);
/* Ends what begin began. */
void luda__mpi_end(void);
bool luda__mpi_send(const void *bytes, size_t count, int to, int tag, luda_mpi_request *request);
bool luda__mpi_receive(void *bytes, size_t count, int from, int tag, luda_mpi_request *request);
typedef enum luda_mpi_progress { LUDA_MPI_PENDING, LUDA_MPI_DONE, LUDA_MPI_FAILED } luda_mpi_progress;
luda_mpi_progress luda__mpi_test(luda_mpi_request *request);
void luda__mpi_cancel(luda_mpi_request *request);

/* --- The courier (courier.c) --- */

enum { LUDA_PACKET_BYTES = 64 << 10 };

typedef enum luda_packet_kind {
    LUDA_PACKET_ANNOUNCE, /* a luda_announcement */
    LUDA_PACKET_FAULT,    /* a luda_comm_fault of call `sequence` */
    LUDA_PACKET_QUERY,
    LUDA_PACKET_ALIVE,    /* the call its thread is at; bytes: whether it waits there */
    LUDA_PACKET_LEAVE,    /* sent twice, behind the data (bytes 1) and behind everything else (bytes 0): either may overtake the other */
    LUDA_PACKET_ENTER,    /* to the leader of a new group: bytes is the sender's rank of the world */
    LUDA_PACKET_TABLE,    /* from the leader: ranks of the world, int32 */
    LUDA_PACKET_DATA,     /* a piece of a message */
} luda_packet_kind;

/* Precedes what a packet carries. All ranks run the same build on one kind of machine. */
typedef struct luda_packet {
    uint64_t group; /* 0: the world */
    int32_t kind, from; /* a rank of the group */
    uint64_t sequence, bytes, offset; /* DATA: of the whole message, and where this piece lies in it */
    luda_slot_name slot;
    uint32_t payload; /* bytes that follow */
} luda_packet;

/* Starts it; tells this process's rank and the size of MPI's world. Once in a process. */
luda_status luda__courier_start(int *rank, int *size);
/* From now on it takes packets in. */
luda_status luda__courier_listen(void);
/* Hands a packet and a copy of its payload to the courier, for a rank of the world. Data packets keep their order. */
luda_status luda__courier_post(int to, const luda_packet *packet, const void *payload);
/* Waits, at most a second, until all packets are out. */
void luda__courier_flush(void);

/* --- Groups (groups.c) --- */

/* The courier brings a packet; the payload is lent. */
void luda__groups_receive(const luda_packet *packet, const void *payload);
/* The courier cannot reach a rank of the world any more. */
void luda__groups_lost(int world_rank);
/* The process ends: leaves every group that is still open. */
void luda__groups_leave(void);

#endif
