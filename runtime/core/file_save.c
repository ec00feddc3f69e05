/*
 * Writing tensor files: one pass over the elements into a temporary file of the same folder, which becomes the file by
 * a rename after everything has reached the disk. The header is written last, since it holds the checksums.
 */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct item {
    const char *name;
    luda_tensor *tensor;
    int64_t begin, bytes;
    uint32_t crc;
} item;

typedef struct saver {
    const char *path;
    item *items; /* in the order of their bytes */
    int count;
    const char *const *keys, *const *values;
    int metadata_count;
    char *header;
    size_t header_length;
    int fd;
    char *temporary; /* its path; NULL: there is none */
    char *buffer;
    size_t used;
} saver;

static luda_status no_memory(void)
{
    return luda__fail(LUDA_ENOMEM, "save: no memory for the header and the write buffer");
}

static luda_status refused(const saver *s, const char *what)
{
    return luda__fail(LUDA_EIO, "save: %s %s: %s", what, s->path, strerror(errno));
}

/* --- The header --- */

/* Wide elements first, so that every tensor is aligned without gaps; then by name. */
static int compare_items(const void *a, const void *b)
{
    const item *x = a, *y = b;
    int width = luda_dtype_size(luda_tensor_dtype(y->tensor)) - luda_dtype_size(luda_tensor_dtype(x->tensor));
    return width ? width : strcmp(x->name, y->name);
}

static json_t *tensor_entry(const item *it)
{
    int ndim = luda_tensor_ndim(it->tensor);
    const int64_t *shape = luda_tensor_shape(it->tensor);
    json_t *sizes = json_array();
    for (int d = 0; d < ndim; d++)
        json_array_append_new(sizes, json_integer(shape[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", luda__dtype_file_name(luda_tensor_dtype(it->tensor)), "shape",
                     sizes, "data_offsets", (json_int_t)it->begin, (json_int_t)(it->begin + it->bytes));
}

/* The metadata object; NULL and an error. */
static luda_status make_metadata(const saver *s, json_t **out)
{
    json_t *checksums = json_object(), *metadata = json_object();
    char digits[CRC_DIGITS + 1] = "00000000";
    char *text;

    for (int i = 0; i < s->count; i++) {
        put_digits(digits, s->items[i].crc);
        json_object_set_new(checksums, s->items[i].name, json_string(digits));
    }
    text = json_dumps(checksums, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(checksums);
    json_object_set_new(metadata, KEY_TENSORS, json_string(text ? text : ""));
    free(text);
    json_object_set_new(metadata, KEY_HEADER, json_string("00000000"));
    for (int i = 0; i < s->metadata_count; i++) {
        json_t *value = json_string(s->values[i]);
        if (!value || json_object_set_new(metadata, s->keys[i], value) != 0) {
            json_decref(metadata);
            return luda__fail(LUDA_EINVAL, "save: metadata '%.100s' is not UTF-8 text", s->keys[i]);
        }
    }
    *out = metadata;
    return LUDA_OK;
}

/* Builds the header from the items' checksums. Its length does not depend on them. */
static luda_status make_header(saver *s)
{
    json_t *metadata = NULL, *root;
    char *text, *padded;
    size_t length;

    LUDA_TRY(make_metadata(s, &metadata));
    root = json_object();
    json_object_set_new(root, KEY_METADATA, metadata);
    for (int i = 0; i < s->count; i++) {
        if (json_object_set_new(root, s->items[i].name, tensor_entry(&s->items[i])) != 0) {
            json_decref(root);
            return luda__fail(LUDA_EINVAL, "save: the name '%.100s' is not UTF-8 text", s->items[i].name);
        }
    }
    text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(root);
    if (!text)
        return no_memory();
    length = strlen(text);
    s->header_length = (length + 7) / 8 * 8;
    padded = realloc(text, s->header_length + 1);
    if (!padded) {
        free(text);
        return no_memory();
    }
    memset(padded + length, ' ', s->header_length - length);
    free(s->header);
    s->header = padded;
    if (s->header_length > HEADER_LIMIT)
        return luda__fail(LUDA_EINVAL, "save: a header of %zu bytes, readers accept %d; fewer tensors or less metadata",
                          s->header_length, (int)HEADER_LIMIT);
    char *digits = header_digits(s->header, s->header_length);
    put_digits(digits, header_checksum(s->header, s->header_length, digits));
    return LUDA_OK;
}

static luda_status check_metadata(const saver *s)
{
    for (int i = 0; i < s->metadata_count; i++) {
        if (!s->keys[i] || !s->values[i])
            return luda__fail(LUDA_EINVAL, "save: metadata %d has no key or no value", i);
        if (strcmp(s->keys[i], KEY_HEADER) == 0 || strcmp(s->keys[i], KEY_TENSORS) == 0)
            return luda__fail(LUDA_EINVAL, "save: the metadata key '%s' is the file's own", s->keys[i]);
        for (int j = 0; j < i; j++)
            if (strcmp(s->keys[i], s->keys[j]) == 0)
                return luda__fail(LUDA_EINVAL, "save: the metadata key '%.100s' is given twice", s->keys[i]);
    }
    return LUDA_OK;
}

/* Checks names and lays the tensors out. */
static luda_status plan_items(saver *s, const luda_file_entry *entries)
{
    int64_t offset = 0;

    for (int i = 0; i < s->count; i++) {
        if (!entries[i].name || !entries[i].tensor)
            return luda__fail(LUDA_EINVAL, "save: entry %d has no name or no tensor", i);
        if (strcmp(entries[i].name, KEY_METADATA) == 0)
            return luda__fail(LUDA_EINVAL, "save: the name '%s' is the format's own", KEY_METADATA);
        s->items[i] = (item){ .name = entries[i].name, .tensor = entries[i].tensor };
    }
    qsort(s->items, (size_t)s->count, sizeof *s->items, compare_items);
    for (int i = 0; i < s->count; i++) {
        item *it = &s->items[i];
        it->begin = offset;
        it->bytes = luda_tensor_numel(it->tensor) * luda_dtype_size(luda_tensor_dtype(it->tensor));
        offset += it->bytes;
    }
    return LUDA_OK;
}

static luda_status check_names(const saver *s)
{
    json_t *seen = json_object();
    luda_status status = LUDA_OK;
    for (int i = 0; i < s->count && status == LUDA_OK; i++) {
        if (json_object_get(seen, s->items[i].name))
            status = luda__fail(LUDA_EINVAL, "save: two tensors are called '%.100s'", s->items[i].name);
        else
            json_object_set_new(seen, s->items[i].name, json_true());
    }
    json_decref(seen);
    return status;
}

/* --- The temporary file --- */

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

/* Opens and locks a new file; another saver may take it for a stale one before it is locked, then the next is tried. */
static luda_status open_temporary(saver *s)
{
    static atomic_uint counter;
    const char *folder, *base;
    int folder_length;
    char *prefix = NULL, *folder_path = NULL;
    struct stat now, old;

    split_path(s->path, &folder, &folder_length, &base);
    if (asprintf(&prefix, ".%.160s.luda-", base) < 0 || asprintf(&folder_path, "%.*s", folder_length, folder) < 0) {
        free(prefix);
        return no_memory();
    }
    remove_stale(folder_path, prefix);
    for (;;) {
        free(s->temporary);
        s->temporary = NULL;
        unsigned number = atomic_fetch_add(&counter, 1);
        if (asprintf(&s->temporary, "%s%s%ld-%u", folder_path, prefix, (long)getpid(), number) < 0) {
            s->temporary = NULL;
            break;
        }
        s->fd = open(s->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (s->fd < 0 && errno == EEXIST)
            continue;
        if (s->fd < 0 || (flock(s->fd, LOCK_EX | LOCK_NB) == 0 && fstat(s->fd, &now) == 0 && now.st_nlink > 0))
            break;
        close(s->fd);
        s->fd = -1;
    }
    free(prefix);
    free(folder_path);
    if (!s->temporary)
        return no_memory();
    if (s->fd < 0) {
        free(s->temporary);
        s->temporary = NULL;
        return refused(s, "cannot create a temporary file for");
    }
    if (stat(s->path, &old) == 0 && S_ISREG(old.st_mode) && fchmod(s->fd, old.st_mode & 0777) != 0)
        return refused(s, "cannot keep the mode of");
    return LUDA_OK;
}

static luda_status write_all(const saver *s, const char *data, size_t bytes, int64_t position)
{
    while (bytes > 0) {
        ssize_t written = pwrite(s->fd, data, bytes, position);
        if (written < 0 && errno != EINTR)
            return refused(s, "cannot write");
        if (written > 0) {
            data += written;
            bytes -= (size_t)written;
            position += written;
        }
    }
    return LUDA_OK;
}

static luda_status sync_folder(const saver *s)
{
    const char *folder, *base;
    int length;
    char *path = NULL;
    luda_status status = LUDA_OK;

    split_path(s->path, &folder, &length, &base);
    if (asprintf(&path, "%.*s", length, folder) < 0)
        return no_memory();
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(path);
    /* Some file systems cannot flush a folder and say EINVAL. */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        status = refused(s, "cannot flush the folder of");
    if (fd >= 0)
        close(fd);
    return status;
}

/* --- The elements --- */

static luda_status flush(saver *s, int64_t end)
{
    size_t used = s->used;
    s->used = 0;
    return write_all(s, s->buffer, used, end - (int64_t)used);
}

/* Writes a contiguous tensor on any device in chunks; small ones gather in the buffer. */
static luda_status write_elements(saver *s, item *it, const luda_tensor *tensor)
{
    char message[256] = "";
    luda_device cpu = { LUDA_CPU, 0 }, device = luda_tensor_device(tensor);
    const luda_device_ops *ops = luda__device(device);
    const char *data = it->bytes ? luda__data(tensor) : NULL;
    int64_t start = LENGTH_BYTES + (int64_t)s->header_length + it->begin;

    if (!ops)
        return LUDA_EDEVICE;
    for (int64_t done = 0; done < it->bytes;) {
        size_t bytes = it->bytes - done < CHUNK ? (size_t)(it->bytes - done) : (size_t)CHUNK;
        const char *chunk = data + done;
        if (s->used + bytes > CHUNK)
            LUDA_TRY(flush(s, start + done));
        if (device.type != LUDA_CPU || bytes < CHUNK) {
            if (device.type == LUDA_CPU)
                memcpy(s->buffer + s->used, chunk, bytes);
            else if (ops->copy(cpu, s->buffer + s->used, device, chunk, bytes, message) != LUDA_OK ||
                     ops->synchronize(device.index, message) != LUDA_OK)
                return luda__fail(LUDA_ECUDA, "save: tensor '%.100s': %s", it->name, message);
            it->crc = luda__crc32c(it->crc, s->buffer + s->used, bytes);
            s->used += bytes;
        } else {
            it->crc = luda__crc32c(it->crc, chunk, bytes);
            LUDA_TRY(write_all(s, chunk, bytes, start + done));
        }
        done += (int64_t)bytes;
    }
    return LUDA_OK;
}

static luda_status write_tensors(saver *s)
{
    int64_t end = LENGTH_BYTES + (int64_t)s->header_length;
    for (int i = 0; i < s->count; i++) {
        item *it = &s->items[i];
        luda_tensor *copy = NULL;
        luda_status status = LUDA_OK;
        if (!luda_tensor_is_contiguous(it->tensor)) {
            LUDA_TRY(luda__tensor_like(it->tensor, &copy));
            status = luda__copy(it->tensor, copy);
        }
        if (status == LUDA_OK)
            status = write_elements(s, it, copy ? copy : it->tensor);
        luda_tensor_release(copy);
        LUDA_TRY(status);
        end = LENGTH_BYTES + (int64_t)s->header_length + it->begin + it->bytes;
    }
    return flush(s, end);
}

/* The file's name appears only after its bytes have reached the disk. */
static luda_status publish(saver *s)
{
    if (fsync(s->fd) != 0)
        return refused(s, "cannot flush");
    if (rename(s->temporary, s->path) != 0)
        return refused(s, "cannot rename to");
    free(s->temporary);
    s->temporary = NULL;
    return sync_folder(s);
}

static luda_status write_file(saver *s)
{
    uint64_t length = s->header_length;

    LUDA_TRY(open_temporary(s));
    LUDA_TRY(write_tensors(s));
    LUDA_TRY(make_header(s));
    if (s->header_length != length)
        return luda__fail(LUDA_EINTERNAL, "save: the header grew from %llu to %zu bytes", (unsigned long long)length,
                          s->header_length);
    LUDA_TRY(write_all(s, (const char *)&length, LENGTH_BYTES, 0));
    LUDA_TRY(write_all(s, s->header, s->header_length, LENGTH_BYTES));
    return publish(s);
}

static void clean_up(saver *s)
{
    if (s->temporary)
        unlink(s->temporary);
    if (s->fd >= 0)
        close(s->fd);
    free(s->temporary);
    free(s->header);
    free(s->buffer);
    free(s->items);
}

luda_status luda_file_write(const char *path, const char *bytes, size_t size)
{
    saver s = { .path = path, .fd = -1 };

    if (!path || !*path)
        return luda__fail(LUDA_EINVAL, "save: a path is needed");
    luda_status status = open_temporary(&s);
    if (status == LUDA_OK)
        status = write_all(&s, bytes, size, 0);
    if (status == LUDA_OK)
        status = publish(&s);
    clean_up(&s);
    return status;
}

luda_status luda_file_save(const char *path, const luda_file_entry *entries, int n, const char *const *metadata_keys,
                           const char *const *metadata_values, int nmeta)
{
    saver s = { .path = path, .count = n, .keys = metadata_keys, .values = metadata_values, .fd = -1 };
    luda_status status;

    if (!path || !*path || n < 0 || nmeta < 0 || (n > 0 && !entries) ||
        (nmeta > 0 && (!metadata_keys || !metadata_values)))
        return luda__fail(LUDA_EINVAL, "save: a path and lists of tensors and metadata are needed");
    s.metadata_count = nmeta;
    s.items = calloc((size_t)n + 1, sizeof *s.items);
    s.buffer = malloc(CHUNK);
    status = s.items && s.buffer ? LUDA_OK : no_memory();
    if (status == LUDA_OK)
        status = plan_items(&s, entries);
    if (status == LUDA_OK)
        status = check_names(&s);
    if (status == LUDA_OK)
        status = check_metadata(&s);
    if (status == LUDA_OK)
        status = make_header(&s);
    if (status == LUDA_OK)
        status = write_file(&s);
    clean_up(&s);
    return status;
}
