/*
 * For LD_PRELOAD: ends the process with SIGKILL before the system call number LUDA_KILL_CALL of the save number
 * LUDA_KILL_SAVE (both from 1). A save begins where a temporary file is made; its calls on that file, the rename and the
 * calls on its folder count, also the first one after its end.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static int saves, calls, file = -1, folder = -1;

static int wanted(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

static void count(const char *what)
{
    calls++;
    if (saves != wanted("LUDA_KILL_SAVE") || calls != wanted("LUDA_KILL_CALL"))
        return;
    fprintf(stderr, "killed before %s, call %d of save %d\n", what, calls, saves);
    raise(SIGKILL);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int opening(const char *path, int flags, mode_t mode)
{
    int temporary = strstr(path, ".luda-") != NULL && (flags & O_CREAT) != 0;
    int after = saves > 0 && folder < 0 && (flags & O_DIRECTORY) != 0;

    if (temporary) {
        saves++;
        calls = 0;
        folder = -1;
        count("open");
    } else if (after) {
        count("open of the folder");
    }
    int fd = NEXT(open)(path, flags, mode);
    if (temporary)
        file = fd;
    else if (after)
        folder = fd;
    return fd;
}

#define OPEN(name)                                                                                                                 \
    int name(const char *path, int flags, ...)                                                                                     \
    {                                                                                                                              \
        va_list arguments;                                                                                                         \
        va_start(arguments, flags);                                                                                                \
        mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;                                                             \
        va_end(arguments);                                                                                                         \
        return opening(path, flags, mode);                                                                                         \
    }
OPEN(open)
OPEN(open64)

int flock(int fd, int operation)
{
    if (fd == file)
        count("flock");
    return NEXT(flock)(fd, operation);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t position)
{
    if (fd == file)
        count("pwrite");
    return NEXT(pwrite)(fd, data, bytes, position);
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t position)
{
    if (fd == file)
        count("pwrite");
    return NEXT(pwrite64)(fd, data, bytes, position);
}

int fsync(int fd)
{
    if (fd == file || (fd == folder && fd >= 0))
        count(fd == file ? "fsync" : "fsync of the folder");
    return NEXT(fsync)(fd);
}

int rename(const char *from, const char *to)
{
    if (strstr(from, ".luda-"))
        count("rename");
    return NEXT(rename)(from, to);
}

int close(int fd)
{
    if (fd >= 0 && (fd == file || fd == folder))
        count(fd == file ? "close" : "close of the folder");
    if (fd == file)
        file = -1;
    return NEXT(close)(fd);
}
