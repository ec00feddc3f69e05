/*
 * Where a file comes to be: a temporary file of the same folder, which becomes the file by a rename after everything has
 * reached the disk. Whoever dies at any moment leaves the old file or the new one.
 */
#include "file_save.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FLUSH_BYTES (8 << 20)

static luda_status no_memory(void)
{
    return luda__fail(LUDA_ENOMEM, "save: no memory for the path");
}

static luda_status refused(const luda__place *place, const char *what)
{
    return luda__fail(LUDA_EIO, "save: %s %s: %s", what, place->path, strerror(errno));
}

/* The folder of a path, and the name in it. */
static void split_path(const char *path, const char **folder, int *folder_length, const char **base)
{
    const char *slash = strrchr(path, '/');
    *folder = slash ? path : "./";
    *folder_length = slash ? (int)(slash - path) + 1 : 2;
    *base = slash ? slash + 1 : path;
}

/* Removes what savers to this name left when they were killed: a living one holds the lock of its file. */
static void remove_stale(const char *folder, const char *prefix)
{
    DIR *listing = opendir(folder);
    struct dirent *found;
    if (!listing)
        return;
    while ((found = readdir(listing)) != NULL) {
        if (strncmp(found->d_name, prefix, strlen(prefix)) != 0)
            continue;
        int fd = openat(dirfd(listing), found->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(dirfd(listing), found->d_name, 0);
        close(fd);
    }
    closedir(listing);
}

/* Locks a new file, unless another saver has taken it for a stale one. Some file systems have no locks: nobody gets one. */
static bool is_mine(int fd)
{
    struct stat now;
    bool taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    return !taken && fstat(fd, &now) == 0 && now.st_nlink > 0;
}

/* Opens a new file, the next one where another saver was faster. */
luda_status luda__place_open(luda__place *place)
{
    static atomic_uint counter;
    const char *folder, *base;
    int folder_length;
    char *prefix = NULL, *folder_path = NULL;
    struct stat old;
    luda_status status = LUDA_OK;

    split_path(place->path, &folder, &folder_length, &base);
    if (asprintf(&prefix, ".%.160s.luda-", base) < 0 || asprintf(&folder_path, "%.*s", folder_length, folder) < 0) {
        free(prefix);
        return no_memory();
    }
    remove_stale(folder_path, prefix);
    for (;;) {
        free(place->temporary);
        place->temporary = NULL;
        unsigned number = atomic_fetch_add(&counter, 1);
        if (asprintf(&place->temporary, "%s%s%ld-%u", folder_path, prefix, (long)getpid(), number) < 0) {
            place->temporary = NULL;
            break;
        }
        place->fd = open(place->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (place->fd < 0 && errno == EEXIST)
            continue;
        if (place->fd < 0 || is_mine(place->fd))
            break;
        close(place->fd);
        place->fd = -1;
    }
    if (!place->temporary)
        status = no_memory();
    else if (place->fd < 0)
        status = refused(place, "cannot create a temporary file for");
    free(prefix);
    free(folder_path);
    if (place->fd < 0) {
        free(place->temporary);
        place->temporary = NULL;
        return status;
    }
    if (stat(place->path, &old) == 0 && S_ISREG(old.st_mode) && fchmod(place->fd, old.st_mode & 0777) != 0)
        return refused(place, "cannot keep the mode of");
    return LUDA_OK;
}

/* So that the disk works while the next bytes are checked and copied. It is advice: fsync says what failed. */
static void start_flushing(luda__place *place, int64_t end)
{
#ifdef __linux__
    if (end - place->started >= FLUSH_BYTES) {
        sync_file_range(place->fd, place->started, end - place->started, SYNC_FILE_RANGE_WRITE);
        place->started = end;
    }
#endif
}

luda_status luda__place_write(luda__place *place, const char *data, size_t bytes, int64_t position)
{
    while (bytes > 0) {
        ssize_t written = pwrite(place->fd, data, bytes, position);
        if (written < 0 && errno != EINTR)
            return refused(place, "cannot write");
        if (written > 0) {
            data += written;
            bytes -= (size_t)written;
            position += written;
        }
    }
    start_flushing(place, position);
    return LUDA_OK;
}

static luda_status sync_folder(const luda__place *place)
{
    const char *folder, *base;
    int length;
    char *path = NULL;
    luda_status status = LUDA_OK;

    split_path(place->path, &folder, &length, &base);
    if (asprintf(&path, "%.*s", length, folder) < 0)
        return no_memory();
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot flush a folder and say EINVAL. */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        status = refused(place, "cannot flush the folder of");
    if (fd >= 0)
        close(fd);
    free(path);
    return status;
}

/* The file's name appears only after its bytes have reached the disk. */
luda_status luda__place_publish(luda__place *place)
{
    if (fsync(place->fd) != 0)
        return refused(place, "cannot flush");
    if (rename(place->temporary, place->path) != 0)
        return refused(place, "cannot rename to");
    free(place->temporary);
    place->temporary = NULL;
    return sync_folder(place);
}

void luda__place_close(luda__place *place)
{
    if (place->temporary)
        unlink(place->temporary);
    if (place->fd >= 0)
        close(place->fd);
    free(place->temporary);
    *place = (luda__place){ .path = place->path, .fd = -1 };
}

luda_status luda_file_write(const char *path, const char *bytes, size_t size)
{
    luda__place place = { .path = path, .fd = -1 };

    if (!path || !*path)
        return luda__fail(LUDA_EINVAL, "save: a path is needed");
    luda_status status = luda__place_open(&place);
    if (status == LUDA_OK)
        status = luda__place_write(&place, bytes, size, 0);
    if (status == LUDA_OK)
        status = luda__place_publish(&place);
    luda__place_close(&place);
    return status;
}
