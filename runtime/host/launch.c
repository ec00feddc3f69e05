/*
 * The launcher: one process a rank, output passed on by line, the first failure stops the others. A rank asks the kernel
 * to be killed when its parent dies, so that nothing is left whatever happens to the launcher.
 */
#include "host.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <fcntl.h>
#include <unistd.h>

enum { LINE = 4096, POLL_MS = 20 };

/* One of a rank's two outputs: bytes wait until their line is whole. */
typedef struct stream {
    int from, to;
    size_t used;
    char line[LINE];
} stream;

typedef struct rank {
    pid_t process; /* 0 once it has ended */
    int number;
    stream streams[2];
} rank;

/* Seconds in which ranks that lost one may end by themselves, and say what they saw. */
static const double LAST_WORDS = 1;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- Output --- */

static void write_all(int to, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t written = write(to, bytes, size);
        if (written < 0 && errno != EINTR)
            return; /* whoever read it is gone; the ranks go on */
        if (written > 0) {
            bytes += written;
            size -= (size_t)written;
        }
    }
}

static void flush_line(const rank *rank, stream *stream, bool prefix)
{
    char text[LINE + 32];
    size_t length = prefix ? (size_t)snprintf(text, 32, "[%d] ", rank->number) : 0;
    memcpy(text + length, stream->line, stream->used);
    write_all(stream->to, text, length + stream->used);
    stream->used = 0;
}

/* False when the other end is closed. */
static bool pass_on(const rank *rank, stream *stream, bool prefix)
{
    char bytes[LINE];
    ssize_t got = read(stream->from, bytes, sizeof bytes);
    if (got < 0)
        return errno == EINTR || errno == EAGAIN;
    for (ssize_t i = 0; i < got; i++) {
        stream->line[stream->used++] = bytes[i];
        if (bytes[i] == '\n' || stream->used == LINE)
            flush_line(rank, stream, prefix);
    }
    return got > 0;
}

static void close_stream(const rank *rank, stream *stream, bool prefix)
{
    if (stream->used > 0) {
        if (stream->used < LINE)
            stream->line[stream->used++] = '\n';
        flush_line(rank, stream, prefix);
    }
    close(stream->from);
    stream->from = -1;
}

/* --- Processes --- */

/* Between fork and exec: only what is safe there. */
static void become_rank(const luda_launch_options *options, int index, pid_t parent, int pipes[2][2])
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    dup2(pipes[0][1], 1);
    dup2(pipes[1][1], 2);
    for (const char *const *variable = options->environment[index]; *variable; variable++)
        putenv((char *)(uintptr_t)*variable);
    execvp(options->arguments[0], (char *const *)(uintptr_t)options->arguments);
    dprintf(2, "luda run: %s cannot be started: %s\n", options->arguments[0], strerror(errno));
    _exit(127);
}

static luda_status start_rank(const luda_launch_options *options, int index, rank *rank)
{
    int pipes[2][2] = { { -1, -1 }, { -1, -1 } };
    pid_t parent = getpid();
    bool piped = pipe2(pipes[0], O_CLOEXEC) == 0 && pipe2(pipes[1], O_CLOEXEC) == 0;
    pid_t process = piped ? fork() : -1;
    if (process == 0)
        become_rank(options, index, parent, pipes);
    int problem = errno;
    for (int s = 0; s < 2; s++)
        if (pipes[s][1] >= 0)
            close(pipes[s][1]);
    if (process < 0) {
        for (int s = 0; s < 2; s++)
            if (pipes[s][0] >= 0)
                close(pipes[s][0]);
        return luda__host_fail(LUDA_EIO, "run: rank %d cannot be started: %s", options->first_rank + index, strerror(problem));
    }
    rank->process = process;
    rank->number = options->first_rank + index;
    for (int s = 0; s < 2; s++)
        rank->streams[s] = (stream){ .from = pipes[s][0], .to = s + 1 };
    return LUDA_OK;
}

static void signal_all(rank *ranks, int count, int number)
{
    for (int i = 0; i < count; i++)
        if (ranks[i].process > 0)
            kill(ranks[i].process, number);
}

/* Notes who ended; the first that failed by itself goes into the report, which is open to it. Returns how many still run. */
static int reap(rank *ranks, int count, bool open, luda_launch_report *report)
{
    int running = 0;
    for (int i = 0; i < count; i++) {
        int status;
        if (ranks[i].process > 0 && waitpid(ranks[i].process, &status, WNOHANG) == ranks[i].process) {
            ranks[i].process = 0;
            int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            bool better = report->rank < 0 || (open && report->status == LUDA_EXIT_OTHER_RANK && code != LUDA_EXIT_OTHER_RANK);
            if (code != 0 && better)
                *report = (luda_launch_report){ code, ranks[i].number, WIFSIGNALED(status) ? WTERMSIG(status) : 0 };
        }
        running += ranks[i].process > 0;
    }
    return running;
}

/* Returns how many outputs are still open. */
static int pass_output(rank *ranks, int count, bool prefix, struct pollfd *waits)
{
    int open = 0;
    for (int i = 0; i < 2 * count; i++) {
        waits[i] = (struct pollfd){ .fd = ranks[i / 2].streams[i % 2].from, .events = POLLIN };
        open += waits[i].fd >= 0;
    }
    if (poll(waits, (nfds_t)(2 * count), POLL_MS) <= 0)
        return open;
    for (int i = 0; i < 2 * count; i++) {
        stream *stream = &ranks[i / 2].streams[i % 2];
        if (waits[i].revents && stream->from >= 0 && !pass_on(&ranks[i / 2], stream, prefix)) {
            close_stream(&ranks[i / 2], stream, prefix);
            open--;
        }
    }
    return open;
}

static void supervise(const luda_launch_options *options, rank *ranks, struct pollfd *waits, luda_launch_report *report)
{
    double ask_at = 0, drain_until = 0;
    bool told = false, asked = false;
    for (;;) {
        int open = pass_output(ranks, options->ranks, options->prefix != 0, waits);
        int running = reap(ranks, options->ranks, !asked, report);
        if (luda_stop_requested() && !told) {
            told = true;
            signal_all(ranks, options->ranks, SIGTERM); /* ranks stop at a step they agree on; no grace limit */
        }
        if (report->rank >= 0 && ask_at == 0)
            ask_at = now() + LAST_WORDS;
        if (ask_at > 0 && now() > ask_at && !asked) {
            asked = true;
            signal_all(ranks, options->ranks, SIGTERM);
        }
        if (asked && now() > ask_at + options->grace)
            signal_all(ranks, options->ranks, SIGKILL);
        if (running == 0 && drain_until == 0)
            drain_until = now() + 1; /* a grandchild may hold the pipe open */
        if (running == 0 && (open == 0 || now() > drain_until))
            return;
    }
}

luda_status luda_launch(const luda_launch_options *options, luda_launch_report *report)
{
    luda_launch_report seen = { 0, -1, 0 };
    int started = 0;
    if (options->ranks < 1 || options->ranks > 4096)
        return luda__host_fail(LUDA_EINVAL, "run: %d ranks, 1 to 4096 are possible", options->ranks);
    luda_status status = luda_stop_watch();
    if (status != LUDA_OK)
        return status;
    rank *ranks = calloc((size_t)options->ranks, sizeof *ranks);
    struct pollfd *waits = calloc((size_t)options->ranks * 2, sizeof *waits);
    if (!ranks || !waits)
        status = luda__host_fail(LUDA_ENOMEM, "run: no memory for %d ranks", options->ranks);
    for (; started < options->ranks && status == LUDA_OK; started++)
        status = start_rank(options, started, &ranks[started]);
    if (status == LUDA_OK)
        supervise(options, ranks, waits, &seen);
    else if (ranks)
        signal_all(ranks, started, SIGKILL);
    free(ranks);
    free(waits);
    if (status == LUDA_OK)
        *report = seen;
    return status;
}
