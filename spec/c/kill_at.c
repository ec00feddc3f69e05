/*
 * For LD_PRELOAD: ends the process with SIGKILL before a chosen system call inside a save, or makes the call fail, so that
 * a test can do so at every moment that differs for what lies on the disk. A save begins when a temporary file ("….luda-…") is created
 * and ends when it is closed; calls of the thread that saves are counted from 1, the creation being the first.
 *
 * KILL_AT="3.5": before the fifth call of the third save of the process. KILL_AT="3.5h": half of that write is done.
 * KILL_AT="3.5e": the call fails, as on a full disk.
 * KILL_LOG=FILE: a line per call, "SAVE.CALL name", written before it is made.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The next function of this name; each wrapper keeps its own. */
#define REAL(name)                                                                                                     \
    static __typeof__(&name) real;                                                                                     \
    if (!real)                                                                                                         \
    real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int saves;          /* of the process */
static __thread int save;  /* that this thread is in; 0: none */
static __thread int calls; /* of this save */
static __thread int saved_fd;

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static void note(const char *name)
{
    const char *log = getenv("KILL_LOG");
    int current = save;
    if (!log)
        return;
    save = 0; /* these calls do not count */
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd >= 0) {
        dprintf(fd, "%d.%d %s\n", current, calls, name);
        close(fd);
    }
    save = current;
}

typedef enum outcome { DO, DO_HALF, FAIL } outcome;

/* Counts a call of the thread that saves, and dies if it is the one. */
static outcome step(const char *name)
{
    int at_save, at_call;
    char how = 0;
    const char *at = getenv("KILL_AT");

    if (!save)
        return DO;
    calls++;
    note(name);
    if (!at || sscanf(at, "%d.%d%c", &at_save, &at_call, &how) < 2 || at_save != save || at_call != calls)
        return DO;
    errno = ENOSPC;
    if (how != 'h' && how != 'e')
        die();
    return how == 'h' ? DO_HALF : FAIL;
}

int open(const char *path, int flags, ...)
{
    REAL(open);
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, mode_t);
        va_end(rest);
    }
    int creates = (flags & O_CREAT) && strstr(path, ".luda-");
    if (creates && !save) {
        save = __atomic_add_fetch(&saves, 1, __ATOMIC_SEQ_CST);
        calls = 0;
        saved_fd = -1;
    }
    if (step("open") == FAIL) {
        save = creates ? 0 : save;
        return -1;
    }
    int fd = real(path, flags, mode);
    if (creates)
        saved_fd = fd;
    return fd;
}

int close(int fd)
{
    REAL(close);
    outcome how = step("close"); /* even one that fails closes */
    if (save && fd == saved_fd)
        save = 0;
    return real(fd) == 0 && how == DO ? 0 : -1;
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    REAL(write);
    outcome how = step("write");
    if (how == DO_HALF) {
        real(fd, data, bytes / 2);
        die();
    }
    if (how == FAIL)
        return -1;
    return real(fd, data, bytes);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t position)
{
    REAL(pwrite);
    outcome how = step("pwrite");
    if (how == DO_HALF) {
        real(fd, data, bytes / 2, position);
        die();
    }
    if (how == FAIL)
        return -1;
    return real(fd, data, bytes, position);
}

#define COUNTED(name, parameters, ...)                                                                                 \
    int name parameters                                                                                                \
    {                                                                                                                  \
        REAL(name);                                                                                                    \
        return step(#name) == FAIL ? -1 : real(__VA_ARGS__);                                                           \
    }

COUNTED(flock, (int fd, int operation), fd, operation)
COUNTED(fchmod, (int fd, mode_t mode), fd, mode)
COUNTED(ftruncate, (int fd, off_t length), fd, length)
COUNTED(fsync, (int fd), fd)
COUNTED(fdatasync, (int fd), fd)
COUNTED(rename, (const char *from, const char *to), from, to)
COUNTED(unlink, (const char *path), path)
