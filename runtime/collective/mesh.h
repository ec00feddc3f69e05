/*
 * The mesh: two connections to every other rank, one for data and one for control. Everything here belongs to the network
 * thread; the main thread only posts tasks.
 */
#ifndef LUDA_MESH_H
#define LUDA_MESH_H

#include "net.h"

typedef struct luda_mesh luda_mesh;
typedef struct luda_link luda_link;
typedef struct luda_channel luda_channel;

/* One frame on its way out, and the task that brings it to the network thread. */
typedef struct luda_outgoing {
    luda_task task;
    struct luda_outgoing *next;
    luda_channel *channel;
    uint8_t header[LUDA_FRAME_BYTES];
    const uint8_t *data;
    uint8_t *owned; /* what is freed with it, or NULL */
    uint64_t bytes, sent; /* of data; of header and data together */
    bool counted;   /* the board hears when it is out */
} luda_outgoing;

struct luda_channel {
    luda_link *link;
    luda_connection connection;
    bool open, writing;
    bool left, ended; /* the other side said so; the connection ended */
    uv_poll_t poll;
    luda_outgoing *first, *last;
    /* the incoming frame */
    uint8_t header[LUDA_FRAME_BYTES];
    size_t got;
    luda_frame frame;
    uint64_t payload_got;
    uint64_t announced; /* the last call, on a control channel */
    uint8_t payload[LUDA_FAULT_BYTES]; /* of control frames, of which a fault's is the longest */
    luda_mail *mail;
};

struct luda_link {
    luda_mesh *mesh;
    int rank;
    bool lost;
    luda_channel channels[LUDA_CHANNELS];
    uv_timer_t grace; /* one of the connections ended: the other is read a moment longer */
};

struct luda_mesh {
    luda_board *board;
    int rank, size;
    int handles; /* open libuv handles; the mesh is freed after the last */
    bool released;
    uv_timer_t linger;
    luda_link *links; /* [size] */
    luda_origin origin;
};

/* --- channel.c --- */

luda_status luda__channel_open(luda_channel *channel, uv_loop_t *loop);
void luda__channel_send(luda_outgoing *outgoing);
void luda__outgoing_free(luda_outgoing *outgoing);
/* Something is not out yet. */
bool luda__channel_busy(const luda_channel *channel);
/* The rank is gone: closes both connections and tells the board. */
void luda__link_lost(luda_link *link, bool left, const char *text);
void luda__mesh_handle_closed(uv_handle_t *handle); /* with handle->data the mesh */
/* Frees a released mesh after its last link. */
void luda__mesh_link_ended(luda_mesh *mesh);

#endif
