/*
 * The launcher is two processes: the caller (launch.c), and a keeper that it forks (keeper.c), who is the parent of the ranks
 * and adopts what they leave behind. Either of them ends everything when the other is gone.
 */
#ifndef LUDA_HOST_LAUNCH_H
#define LUDA_HOST_LAUNCH_H

#include "host.h"

#include <poll.h>
#include <sys/types.h>

/*
 * The keeper's process, from fork to its end. A byte of orders is a request to stop, its end means that the caller is gone; the
 * report is the answer.
 */
_Noreturn void luda__keep(const luda_launch_options *options, int orders, int answer);
/* Kills and reaps all children of this process, and theirs, whom it adopts as a subreaper. */
void luda__end_children(void);
double luda__host_now(void);

/* --- What ranks print (output.c) --- */

enum { LUDA__LINE = 4096, LUDA__SINK = 1 << 17 };

/* The launcher's own output, or error output: waits for its reader without ever blocking the keeper. */
typedef struct luda__sink {
    int fd; /* -1: whoever read it is gone; the ranks go on */
    size_t used, sent;
    char bytes[LUDA__SINK];
} luda__sink;

/* One of a rank's two outputs: bytes wait until their line is whole. */
typedef struct luda__stream {
    int from;
    luda__sink *to;
    size_t used;
    char line[LUDA__LINE];
} luda__stream;

typedef struct luda__rank {
    pid_t process; /* 0 once it has ended */
    int number, log; /* log: a file, or -1 */
    bool prefix;
    char log_path[512];
    luda__stream streams[2];
} luda__rank;

/* Whether a whole read of lines still fits behind what waits. */
bool luda__sink_has_room(const luda__sink *sink);
void luda__sink_say(luda__sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes what the reader takes at once. */
void luda__sink_flush(luda__sink *sink);
void luda__log_open(luda__rank *rank, const char *folder, bool append, luda__sink *problems);
/* Reads what has come, passes on whole lines; at the end of the stream closes it. */
void luda__stream_read(luda__rank *rank, luda__stream *stream, luda__sink *problems);

#endif
