/*
 * libluda_host: LUDA inside Lua states. Lua's own symbols come from the program (luajit, build/luda, or a host that
 * links LuaJIT); the library itself names none.
 */
#ifndef LUDA_LUA_H
#define LUDA_LUA_H

#include "luda.h"

#ifndef LUDA_CDEF
#ifdef __cplusplus
extern "C" {
#endif
struct lua_State;
/* Makes `require "luda"` work in a state and leaves the module on its stack; on failure an error message, and returns 1. */
LUDA_API int luda_lua_open(struct lua_State *L);
#endif

/* --- Rank threads: new Lua states on new threads --- */

typedef struct luda_rank_threads luda_rank_threads;

/*
 * Starts `count` threads. Each makes a Lua state, runs the Lua source `bootstrap` and calls what it returned with its index
 * (from 0) and its payload; the call must return a string. package_path is the new states' package.path.
 */
LUDA_API luda_status luda_rank_threads_start(int count, const char *package_path, const char *bootstrap, const char *const *payloads,
                                        const size_t *sizes, luda_rank_threads **out);
/* Waits until one more thread has ended: its index, or -1 after the last, or -2 when timeout_ms (negative: none) has passed. */
LUDA_API int luda_rank_threads_wait(luda_rank_threads *threads, int timeout_ms);
/* What an ended thread returned; *failed is 1 where it is the text of an error outside the bootstrap. Lent. */
LUDA_API const char *luda_rank_threads_result(luda_rank_threads *threads, int index, size_t *size, int *failed);
/* Joins all threads; blocks until they have ended. */
LUDA_API void luda_rank_threads_release(luda_rank_threads *threads);

/* --- Messages between processes: how the nodes of registered peers speak with their orchestrator --- */

typedef struct luda_post luda_post;

/* One thread at a time uses a post; retain, release and stop may come from any. Loopback addresses only. */
LUDA_API luda_status luda_post_new(luda_post **out);
LUDA_API void luda_post_retain(luda_post *post);
LUDA_API void luda_post_release(luda_post *post);
/* From now on receive lets others in. "127.0.0.1:0" takes a free port; see luda_post_address. */
LUDA_API luda_status luda_post_listen(luda_post *post, const char *address);
LUDA_API const char *luda_post_address(const luda_post *post);
/* *to is the number of the new connection. LUDA_EIO: nobody answers there, or not in time. */
LUDA_API luda_status luda_post_connect(luda_post *post, const char *address, double timeout, int *to);
/* Whole, or the connection ends. LUDA_EPEER: it has ended. */
LUDA_API luda_status luda_post_send(luda_post *post, int to, const char *text, size_t size);
/*
 * The next message and the number of its connection; *text is NULL when that one has ended. Lent until the next call.
 * LUDA_ETIMEOUT: nothing came, or a signal did. LUDA_ECANCELLED: stopped.
 */
LUDA_API luda_status luda_post_receive(luda_post *post, double timeout, int *from, const char **text, size_t *size);
/* A connection that is not kept ends a few seconds after it was made. */
LUDA_API void luda_post_keep(luda_post *post, int who);
/* Ends a connection when what was sent has left. */
LUDA_API void luda_post_drop(luda_post *post, int who);
/* receive and connect, running or later, get LUDA_ECANCELLED. */
LUDA_API void luda_post_stop(luda_post *post);

/* --- Registered peers: callers of one process, on any threads, who meet under numbers --- */

enum { LUDA_MOST_PEERS = 1024 };
/*
 * Waits until `wanted` peers have come, at most `timeout` seconds from the first. All must bring the same settings.
 * LUDA_EINVAL: the number is registered. LUDA_EMISMATCH: other settings, or the group is complete. LUDA_ECANCELLED: reset.
 */
LUDA_API luda_status luda_peer_register(int64_t peer, int wanted, const char *settings, double timeout, uint64_t *ticket);
/*
 * The communicator of those who are registered now, with a reference; a finish makes another one, of the remaining. peers,
 * of LUDA_MOST_PEERS entries, gets the number of each rank. LUDA_ECLOSED: not registered (any more). LUDA_EPEER: one is lost.
 */
LUDA_API luda_status luda_peer_comm(uint64_t ticket, int64_t *peers, luda_comm **out);
/*
 * For a group of several nodes: retains what is not NULL, for as long as the group lives. The last finish closes `nodes`,
 * the communicator of the nodes, and hands `post`, the line to the orchestrator, to its caller; a reset stops and closes both.
 */
LUDA_API luda_status luda_peer_attach(uint64_t ticket, luda_comm *nodes, luda_post *post);
/* The communicator of the nodes, with a reference. LUDA_ECANCELLED: the group was reset. */
LUDA_API luda_status luda_peer_nodes(uint64_t ticket, luda_comm **out);
/*
 * Leaves; calls that wait for this peer fail, and those of the smaller group go on. lost: the peer went away without a word,
 * and every later call of the group is LUDA_EPEER. *post: see luda_peer_attach; NULL where others remain, or nothing was
 * attached. LUDA_ECLOSED: nobody is registered. LUDA_EINVAL: this peer is not.
 */
LUDA_API luda_status luda_peer_finish(uint64_t ticket, int lost, luda_post **post);
/*
 * Forgets all registrations; whoever waits, in register or in a call, gets LUDA_ECANCELLED. ticket: only if the group is the
 * one that it belongs to; 0: any.
 */
LUDA_API void luda_peers_reset(uint64_t ticket);

/* --- Numbered work between threads: the same order, however many workers --- */

typedef struct luda_queue luda_queue;

/* At most `ahead` results are made before the consumer has read them. */
LUDA_API luda_status luda_queue_new(int ahead, luda_queue **out);
/* The workers' threads, which the queue joins when it is released. */
LUDA_API void luda_queue_own(luda_queue *queue, luda_rank_threads *threads);
/* Lets the workers end after what they are doing, waits for them, and gives unread results back. */
LUDA_API void luda_queue_release(luda_queue *queue);
/* Workers: the next number, from 0; waits while there is no room. -1: the queue is being released. */
LUDA_API int64_t luda_queue_take(luda_queue *queue);
/* The result of a number that was taken; once each. The bytes are copied, the tensors retained. */
LUDA_API luda_status luda_queue_put(luda_queue *queue, int64_t number, const char *bytes, size_t size, luda_tensor *const *tensors,
                                int count);
/* The consumer: 1 when the next result is there, 0 after timeout_ms. */
LUDA_API int luda_queue_wait(luda_queue *queue, int timeout_ms);
/* The next result, which must be there; lent until luda_queue_next. */
LUDA_API const char *luda_queue_result(luda_queue *queue, size_t *size, luda_tensor *const **tensors);
LUDA_API void luda_queue_next(luda_queue *queue);

/* --- Processes: the launcher --- */

/* Is called as `luda run`: see lua/luda/cli/run.lua. Environments are NAME=VALUE, ended by NULL, for each rank. */
typedef struct luda_launch_options {
    uint32_t size;
    int32_t ranks;
    int32_t first_rank;              /* of this host */
    int32_t prefix;                  /* 1: each line of output begins with its rank */
    const char *const *arguments;    /* ended by NULL; arguments[0] is the program */
    const char *const *const *environment; /* [ranks]; added to the launcher's own */
    double grace;                    /* seconds between SIGTERM and SIGKILL when a rank failed */
    double stop_grace;               /* the same when the launcher was asked to stop */
    const char *log_folder;          /* gets rank-R.txt with what rank R prints; NULL: none */
    int32_t log_append;              /* 1: behind what is there */
} luda_launch_options;

/* With this status a rank ends that only suffered from another one's end; the report names it if no other failed. */
enum { LUDA_EXIT_OTHER_RANK = 75 };

/*
 * The rank that failed first by itself, how, and whether the launcher had been asked to stop. Rank -1 with status 0: all ended
 * well; with another status: the process that kept the ranks was killed.
 */
typedef struct luda_launch_report { int32_t status, rank, signal, stopped; } luda_launch_report;

typedef struct luda_launch luda_launch;

/*
 * Starts the ranks. The first failure stops the others. All ranks, and whatever they started, end with the calling process,
 * however it ends, and with the launch. SIGTERM, SIGINT and SIGHUP ask the ranks to stop; after the grace, or at the second
 * request, they are killed. The process must have no children of its own. The options must outlive the launch.
 */
LUDA_API luda_status luda_launch_new(const luda_launch_options *options, luda_launch **out);
/* 1 when all have ended and the report is written, 0 after timeout_ms. Requests to stop are passed on in here. */
LUDA_API int luda_launch_wait(luda_launch *launch, int timeout_ms, luda_launch_report *report);
/* Kills what still runs. */
LUDA_API void luda_launch_release(luda_launch *launch);

/* Refuses a file that holds too little for a secret, or that others than its owner may read. */
LUDA_API luda_status luda_secret_file_check(const char *path);

/* --- Stopping --- */

/* From now on SIGTERM, SIGINT and SIGHUP (unless it is ignored) are counted; a second SIGINT ends the process. */
LUDA_API luda_status luda_stop_watch(void);
/* How many have come. */
LUDA_API int luda_stop_requested(void);

#ifndef LUDA_CDEF
#ifdef __cplusplus
}
#endif
#endif
#endif
