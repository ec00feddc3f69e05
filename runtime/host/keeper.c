/*
 * The keeper: the parent of the ranks, in a process group of its own, so that what is sent to the launcher's group (a
 * terminal's Ctrl-C, `timeout`) reaches the ranks once, through the launcher. A keeper that was stopped goes on at the
 * launcher's end, as its group has no parent then (POSIX). It adopts what ranks leave behind and ends it with them. A rank
 * asks the kernel to be killed with the keeper; what such a rank leaves is adopted by the launcher.
 */
#include "launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POLL_MS = 20 };

/* Seconds: in which ranks that lost one may end by themselves, and say what they saw; in which a second request to stop
 * is taken for an echo of the first (`timeout` sends each signal twice); for outputs to close after the last rank, which
 * what it started may hold open; for killed processes to go. */
static const double LAST_WORDS = 1, ECHO = 1, DRAIN = 1, SHORT_DRAIN = 0.1, DEATH = 10;

typedef struct keeper {
    const luda_launch_options *options;
    int orders; /* -1: the launcher is gone */
    luda__rank *ranks;
    struct pollfd *waits;
    luda__sink sinks[2];
    int running, stops, heard;
    bool told, hurried, asked, swept, quiet;
    double told_at, ask_at, kill_at, ended_at; /* 0: not yet */
    luda_launch_report seen;
} keeper;

double luda__host_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- What is left behind --- */

static pid_t parent_of(const char *process)
{
    char path[300], text[512];
    snprintf(path, sizeof path, "/proc/%s/stat", process);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[size > 0 ? size : 0] = 0;
    const char *name_end = strrchr(text, ')'); /* a name may hold anything, also ')' */
    int parent = 0;
    return name_end && sscanf(name_end + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

void luda__end_children(void)
{
    double until = luda__host_now() + DEATH;
    while (luda__host_now() < until) {
        pid_t process;
        while ((process = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (process < 0)
            return; /* no child is left; those of a killed one would be ours by now */
        DIR *processes = opendir("/proc");
        for (struct dirent *entry; processes && (entry = readdir(processes));)
            if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && parent_of(entry->d_name) == getpid())
                kill(atoi(entry->d_name), SIGKILL);
        if (processes)
            closedir(processes);
        usleep(2000);
    }
}

/* Sockets of the launcher: their other ends must see when it closes them. Other descriptors stay: libraries know theirs. */
static void close_sockets(void)
{
    DIR *open_files = opendir("/proc/self/fd");
    for (struct dirent *entry; open_files && (entry = readdir(open_files));) {
        struct stat file;
        int fd = atoi(entry->d_name), flags = fd > 2 ? fcntl(fd, F_GETFD) : 0;
        if (flags > 0 && (flags & FD_CLOEXEC) && fstat(fd, &file) == 0 && S_ISSOCK(file.st_mode))
            close(fd);
    }
    if (open_files)
        closedir(open_files);
}

/* --- Ranks --- */

/* Between fork and exec: only what is safe there. */
_Noreturn static void become_rank(const luda_launch_options *options, int index, pid_t parent, int pipes[2][2])
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    signal(SIGPIPE, SIG_DFL);
    if (isatty(0)) { /* not the terminal's foreground group: reading would stop the rank */
        int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
        dup2(nothing, 0);
    }
    dup2(pipes[0][1], 1);
    dup2(pipes[1][1], 2);
    for (const char *const *variable = options->environment[index]; *variable; variable++)
        putenv((char *)(uintptr_t)*variable);
    execvp(options->arguments[0], (char *const *)(uintptr_t)options->arguments);
    dprintf(2, "luda run: %s cannot be started: %s\n", options->arguments[0], strerror(errno));
    _exit(127);
}

static bool start_rank(keeper *k, int index)
{
    luda__rank *rank = &k->ranks[index];
    int pipes[2][2] = { { -1, -1 }, { -1, -1 } };
    pid_t parent = getpid();
    rank->number = k->options->first_rank + index;
    rank->prefix = k->options->prefix != 0;
    bool piped = pipe2(pipes[0], O_CLOEXEC) == 0 && pipe2(pipes[1], O_CLOEXEC) == 0;
    pid_t process = piped ? fork() : -1;
    if (process == 0)
        become_rank(k->options, index, parent, pipes);
    int problem = errno;
    for (int s = 0; s < 2; s++) {
        if (pipes[s][1] >= 0)
            close(pipes[s][1]);
        rank->streams[s] = (luda__stream){ .from = pipes[s][0], .to = &k->sinks[s] };
    }
    luda__log_open(rank, k->options->log_folder, k->options->log_append != 0, &k->sinks[1]);
    rank->process = process > 0 ? process : 0;
    k->running += process > 0;
    if (process > 0)
        return true;
    luda__sink_say(&k->sinks[1], "luda run: rank %d cannot be started: %s\n", rank->number, strerror(problem));
    for (int s = 0; s < 2; s++) {
        if (pipes[s][0] >= 0)
            close(pipes[s][0]);
        rank->streams[s].from = -1;
    }
    k->seen = (luda_launch_report){ .status = 127, .rank = rank->number };
    return false;
}

static void signal_all(const keeper *k, int number)
{
    for (int i = 0; i < k->options->ranks; i++)
        if (k->ranks[i].process > 0)
            kill(k->ranks[i].process, number);
}

/* Notes who ended. The first that failed by itself goes into the report, until the others were asked to end. */
static void reap(keeper *k)
{
    int status;
    pid_t process;
    while ((process = waitpid(-1, &status, WNOHANG)) > 0) {
        int i = 0;
        while (i < k->options->ranks && k->ranks[i].process != process)
            i++;
        if (i == k->options->ranks)
            continue; /* what a rank had left behind */
        k->ranks[i].process = 0;
        k->running--;
        int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        luda_launch_report *seen = &k->seen;
        bool better = seen->rank < 0 || (!k->asked && seen->status == LUDA_EXIT_OTHER_RANK && code != LUDA_EXIT_OTHER_RANK);
        if (code != 0 && better) {
            seen->status = code;
            seen->rank = k->ranks[i].number;
            seen->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        }
    }
}

/* --- Orders and output --- */

static void read_orders(keeper *k)
{
    char orders[64];
    ssize_t got = read(k->orders, orders, sizeof orders);
    if (got > 0)
        k->stops += (int)got;
    if (got == 0) {
        close(k->orders);
        k->orders = -1;
    }
}

/* Waits for something to happen, a short while. Returns how many outputs are still open, or not yet passed on. */
static int pass_output(keeper *k)
{
    int count = 2 * k->options->ranks, open = 0;
    struct pollfd *waits = k->waits;
    for (int i = 0; i < count; i++) {
        const luda__stream *stream = &k->ranks[i / 2].streams[i % 2];
        bool room = luda__sink_has_room(stream->to);
        waits[i] = (struct pollfd){ .fd = room ? stream->from : -1, .events = POLLIN };
    }
    for (int s = 0; s < 2; s++) {
        bool waiting = k->sinks[s].used > 0;
        waits[count + s] = (struct pollfd){ .fd = waiting ? k->sinks[s].fd : -1, .events = POLLOUT };
    }
    waits[count + 2] = (struct pollfd){ .fd = k->orders, .events = POLLIN };
    int ready = poll(waits, (nfds_t)count + 3, POLL_MS);
    k->quiet = ready == 0 && k->sinks[0].used == 0 && k->sinks[1].used == 0;
    for (int i = 0; i < count; i++) {
        luda__stream *stream = &k->ranks[i / 2].streams[i % 2];
        if (ready > 0 && waits[i].revents && luda__sink_has_room(stream->to))
            luda__stream_read(&k->ranks[i / 2], stream, &k->sinks[1]);
        open += stream->from >= 0;
    }
    if (ready > 0 && waits[count + 2].revents)
        read_orders(k);
    for (int s = 0; s < 2; s++) {
        luda__sink_flush(&k->sinks[s]);
        open += k->sinks[s].used > 0;
    }
    return open;
}

/* --- The whole --- */

/* Requests to stop: ranks end at a step they agree on, within the grace; a second request means now. */
static void pass_on_stop(keeper *k)
{
    double now = luda__host_now();
    int stops = k->stops + luda_stop_requested();
    if (stops == k->heard)
        return;
    k->heard = stops;
    if (!k->told) {
        k->told = true;
        k->seen.stopped = 1;
        k->told_at = now;
        k->kill_at = now + k->options->stop_grace;
        signal_all(k, SIGTERM);
    } else if (now > k->told_at + ECHO) {
        k->hurried = true;
        k->kill_at = now;
    }
}

static void end_after_failure(keeper *k)
{
    double now = luda__host_now();
    if (k->seen.rank >= 0 && k->ask_at == 0)
        k->ask_at = now + LAST_WORDS;
    if (k->ask_at > 0 && now >= k->ask_at && !k->asked) {
        k->asked = true;
        k->kill_at = now + k->options->grace;
        if (!k->told)
            signal_all(k, SIGTERM);
    }
}

static void supervise(keeper *k)
{
    for (;;) {
        int open = pass_output(k);
        reap(k);
        if (k->orders < 0)
            return;
        pass_on_stop(k);
        end_after_failure(k);
        if (k->kill_at > 0 && luda__host_now() >= k->kill_at)
            signal_all(k, SIGKILL);
        if (k->running > 0)
            continue;
        if (k->ended_at == 0)
            k->ended_at = luda__host_now();
        /* An output may be held open by a stranger; whoever asked twice does not wait for a reader either. */
        if (open == 0 || (k->swept && (k->hurried || k->quiet)))
            return;
        double drain = k->told || k->seen.rank >= 0 ? SHORT_DRAIN : DRAIN;
        if (!k->swept && luda__host_now() > k->ended_at + drain) {
            k->swept = true; /* what holds an output open */
            luda__end_children();
        }
    }
}

_Noreturn void luda__keep(const luda_launch_options *options, int orders, int answer)
{
    keeper *k = calloc(1, sizeof *k);
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    size_t ranks = (size_t)options->ranks;
    setpgid(0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigaction(SIGPIPE, &ignore, NULL);
    close_sockets();
    if (!k || !(k->ranks = calloc(ranks, sizeof *k->ranks)) || !(k->waits = calloc(2 * ranks + 3, sizeof *k->waits)))
        _exit(127);
    k->options = options;
    k->orders = orders;
    k->sinks[0].fd = 1;
    k->sinks[1].fd = 2;
    k->seen.rank = -1;
    for (int i = 0; i < options->ranks; i++)
        k->ranks[i].streams[0] = k->ranks[i].streams[1] = (luda__stream){ .from = -1, .to = &k->sinks[1] };
    for (int i = 0; i < options->ranks && start_rank(k, i); i++)
        ;
    supervise(k);
    luda__end_children();
    if (k->orders >= 0 && write(answer, &k->seen, sizeof k->seen) < 0)
        _exit(1);
    _exit(0);
}
