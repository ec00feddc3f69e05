/* What ranks print, by line: to the launcher's own outputs, and to a file for each rank. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    PREFIX = 16,                                        /* "[4095] " and room to spare */
    MOST = LUDA__LINE * (PREFIX / 2 + 1) + LUDA__LINE * 2, /* that one read can become: each byte a line of its own */
    CHUNK = 2048, /* a pipe that polls as writable takes so much without blocking */
};

bool luda__sink_has_room(const luda__sink *sink)
{
    return sink->used + MOST <= LUDA__SINK;
}

static void append(luda__sink *sink, const char *bytes, size_t size)
{
    if (sink->fd < 0 || sink->used + size > LUDA__SINK)
        return;
    memcpy(sink->bytes + sink->used, bytes, size);
    sink->used += size;
}

void luda__sink_say(luda__sink *sink, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    append(sink, text, length < (int)sizeof text ? (size_t)length : sizeof text - 1);
}

void luda__sink_flush(luda__sink *sink)
{
    while (sink->fd >= 0 && sink->sent < sink->used) {
        struct pollfd wait = { .fd = sink->fd, .events = POLLOUT };
        size_t size = sink->used - sink->sent < CHUNK ? sink->used - sink->sent : CHUNK;
        if (poll(&wait, 1, 0) <= 0)
            break;
        ssize_t written = write(sink->fd, sink->bytes + sink->sent, size);
        if (written < 0 && errno != EINTR && errno != EAGAIN)
            sink->fd = -1;
        if (written <= 0)
            break;
        sink->sent += (size_t)written;
    }
    if (sink->fd < 0)
        sink->used = sink->sent = 0;
    memmove(sink->bytes, sink->bytes + sink->sent, sink->used - sink->sent);
    sink->used -= sink->sent;
    sink->sent = 0;
}

/* --- Files --- */

void luda__log_open(luda__rank *rank, const char *folder, bool append_to, luda__sink *problems)
{
    rank->log = -1;
    if (!folder)
        return;
    snprintf(rank->log_path, sizeof rank->log_path, "%s/rank-%d.txt", folder, rank->number);
    rank->log = open(rank->log_path, O_WRONLY | O_CREAT | O_CLOEXEC | (append_to ? O_APPEND : O_TRUNC), 0666);
    if (rank->log < 0)
        luda__sink_say(problems, "luda run: %s is not written: %s\n", rank->log_path, strerror(errno));
}

/* A full disk ends the file, not the run. */
static void write_log(luda__rank *rank, const char *bytes, size_t size, luda__sink *problems)
{
    while (rank->log >= 0 && size > 0) {
        ssize_t written = write(rank->log, bytes, size);
        if (written < 0 && errno != EINTR) {
            luda__sink_say(problems, "luda run: %s ends here, the run goes on: %s\n", rank->log_path, strerror(errno));
            close(rank->log);
            rank->log = -1;
        } else if (written > 0) {
            bytes += written;
            size -= (size_t)written;
        }
    }
}

/* --- Lines --- */

static void pass_line(luda__rank *rank, luda__stream *stream, luda__sink *problems)
{
    char prefix[PREFIX];
    if (rank->prefix)
        append(stream->to, prefix, (size_t)snprintf(prefix, sizeof prefix, "[%d] ", rank->number));
    append(stream->to, stream->line, stream->used);
    write_log(rank, stream->line, stream->used, problems);
    stream->used = 0;
}

void luda__stream_read(luda__rank *rank, luda__stream *stream, luda__sink *problems)
{
    char bytes[LUDA__LINE];
    ssize_t got = read(stream->from, bytes, sizeof bytes);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    for (ssize_t i = 0; i < got; i++) {
        stream->line[stream->used++] = bytes[i];
        if (bytes[i] == '\n' || stream->used == LUDA__LINE)
            pass_line(rank, stream, problems);
    }
    if (got > 0)
        return;
    if (stream->used > 0) {
        stream->line[stream->used++] = '\n'; /* there is room: a full line was passed on */
        pass_line(rank, stream, problems);
    }
    close(stream->from);
    stream->from = -1;
}
