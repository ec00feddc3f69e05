/*
 * Reading tensor files. Nothing in a file is trusted: the whole header is checked when the file is opened, against
 * itself and against the file's size, and the bytes of a tensor when they are read. Files of other writers carry no
 * checksums and are checked for everything else.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct stored {
    const char *name; /* lent by the header */
    int dtype, ndim;
    int64_t shape[LUDA_MAX_DIMS];
    int64_t begin, end; /* from the end of the header */
    uint32_t crc;
} stored;

struct luda_file {
    int fd;
    char *path;
    json_t *header;
    json_t *metadata; /* lent by header; NULL: none */
    stored *tensors;  /* by name */
    int count;
    const char **keys; /* of the metadata, without LUDA's own, sorted */
    int key_count;
    int64_t data; /* position of the first element */
    int64_t data_bytes;
    int64_t checksum; /* of the header; -1: the file has no checksums */
};

static int type_from_name(const char *name)
{
    for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++)
        if (strcmp(name, luda__dtype_file_name((luda_dtype)dtype)) == 0)
            return dtype;
    return -1;
}

static luda_status damaged(const luda_file *file, const char *what)
{
    return luda__fail(LUDA_ECORRUPT, "load: %s: header: %s", file->path, what);
}

static luda_status damaged_tensor(const luda_file *file, const char *name, const char *what)
{
    return luda__fail(LUDA_ECORRUPT, "load: %s: header: tensor '%.100s': %s", file->path, name, what);
}

static luda_status no_memory(void)
{
    return luda__fail(LUDA_ENOMEM, "load: no memory for the header");
}

/* Reads exactly `bytes` bytes; *got says how many there were. Returns errno. */
static int read_all(const luda_file *file, char *data, size_t bytes, int64_t position, size_t *got)
{
    *got = 0;
    while (*got < bytes) {
        ssize_t count = pread(file->fd, data + *got, bytes - *got, position + (int64_t)*got);
        if (count == 0)
            return 0;
        if (count < 0 && errno != EINTR)
            return errno;
        if (count > 0)
            *got += (size_t)count;
    }
    return 0;
}

static luda_status unreadable(const luda_file *file, int problem)
{
    return luda__fail(LUDA_EIO, "load: cannot read %s: %s", file->path, strerror(problem));
}

/* --- The header --- */

static luda_status parse_header(luda_file *file, const char *text, size_t length)
{
    json_error_t problem;
    char what[200];

    if (length == 0 || text[0] != '{')
        return damaged(file, "does not begin with an object");
    file->header = json_loadb(text, length, JSON_REJECT_DUPLICATES, &problem);
    if (!file->header) {
        snprintf(what, sizeof what, "not valid JSON at byte %d: %.120s", problem.position, problem.text);
        return damaged(file, what);
    }
    file->metadata = json_object_get(file->header, KEY_METADATA);
    if (file->metadata && !json_is_object(file->metadata))
        return damaged(file, KEY_METADATA " is not an object");
    return LUDA_OK;
}

static bool parse_digits(const char *text, uint32_t *out)
{
    if (strlen(text) != CRC_DIGITS || strspn(text, "0123456789abcdef") != CRC_DIGITS)
        return false;
    *out = (uint32_t)strtoul(text, NULL, 16);
    return true;
}

/* Finds out whether LUDA wrote the file and, if so, checks the header as a whole. */
static luda_status check_header(luda_file *file, char *text, size_t length)
{
    const char *key, *recorded = json_string_value(json_object_get(file->metadata, KEY_HEADER));
    json_t *value;
    bool ours = false;
    uint32_t crc;
    char *digits;

    json_object_foreach(file->metadata, key, value) {
        if (!json_is_string(value))
            return damaged(file, "a metadata value is not a string");
        ours = ours || strncmp(key, KEY_PREFIX, strlen(KEY_PREFIX)) == 0;
    }
    if (!ours)
        return LUDA_OK;
    digits = header_digits(text, length);
    if (!recorded || !digits || !parse_digits(recorded, &crc))
        return damaged(file, "the file was written by LUDA and its header checksum is missing");
    if (header_checksum(text, length, digits) != crc)
        return damaged(file, "the checksum does not match");
    file->checksum = crc;
    return LUDA_OK;
}

/* Shape and type against the byte range; the sizes are the file's claim and may overflow. */
static luda_status check_extent(const luda_file *file, const stored *it)
{
    int64_t bytes = luda_dtype_size((luda_dtype)it->dtype);
    bool empty = false;

    for (int d = 0; d < it->ndim; d++)
        empty = empty || it->shape[d] == 0;
    for (int d = 0; d < it->ndim && !empty; d++)
        if (__builtin_mul_overflow(bytes, it->shape[d], &bytes))
            return damaged_tensor(file, it->name, "its shape has more elements than a file can hold");
    if (it->begin > it->end || it->end > file->data_bytes)
        return damaged_tensor(file, it->name, "its offsets lie outside the file");
    if (it->end - it->begin != (empty ? 0 : bytes))
        return damaged_tensor(file, it->name, "its shape and its byte range disagree");
    return LUDA_OK;
}

static luda_status parse_tensor(const luda_file *file, const char *name, json_t *entry, stored *out)
{
    json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape");
    json_t *offsets = json_object_get(entry, "data_offsets"), *begin = json_array_get(offsets, 0),
           *end = json_array_get(offsets, 1);
    size_t ndim = json_array_size(shape);

    *out = (stored){ .name = name, .ndim = (int)ndim };
    if (!json_is_string(dtype) || !json_is_array(shape) || json_array_size(offsets) != 2 || !json_is_integer(begin) ||
        !json_is_integer(end))
        return damaged_tensor(file, name, "not an object of dtype, shape and data_offsets");
    out->dtype = type_from_name(json_string_value(dtype));
    if (out->dtype < 0)
        return luda__fail(LUDA_EDTYPE, "load: %s: tensor '%.100s' has the unknown element type '%.20s'", file->path,
                          name, json_string_value(dtype));
    if (ndim > LUDA_MAX_DIMS)
        return luda__fail(LUDA_ENOTSUP, "load: %s: tensor '%.100s' has %zu dimensions, at most %d are possible",
                          file->path, name, ndim, (int)LUDA_MAX_DIMS);
    for (size_t d = 0; d < ndim; d++) {
        json_t *size = json_array_get(shape, d);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return damaged_tensor(file, name, "a size in its shape is not a whole number");
        out->shape[d] = json_integer_value(size);
    }
    out->begin = json_integer_value(begin);
    out->end = json_integer_value(end);
    if (out->begin < 0)
        return damaged_tensor(file, name, "its offsets are negative");
    return check_extent(file, out);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const stored *)a)->name, ((const stored *)b)->name);
}

static int compare_offsets(const void *a, const void *b)
{
    const stored *x = *(stored *const *)a, *y = *(stored *const *)b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* The byte ranges must cover the file's data once and completely. */
static luda_status check_cover(const luda_file *file)
{
    const stored **order = malloc(((size_t)file->count + 1) * sizeof *order);
    int64_t covered = 0;
    luda_status status = LUDA_OK;

    if (!order)
        return no_memory();
    for (int i = 0; i < file->count; i++)
        order[i] = &file->tensors[i];
    qsort(order, (size_t)file->count, sizeof *order, compare_offsets);
    for (int i = 0; i < file->count && status == LUDA_OK; i++) {
        if (order[i]->begin != covered)
            status = damaged_tensor(file, order[i]->name, order[i]->begin < covered ? "it overlaps another tensor"
                                                                                   : "there is a gap before it");
        covered = order[i]->end;
    }
    free(order);
    if (status == LUDA_OK && covered != file->data_bytes)
        return damaged(file, "the tensors do not end where the file ends");
    return status;
}

static luda_status parse_tensors(luda_file *file)
{
    size_t count = json_object_size(file->header) - (file->metadata != NULL);
    const char *name;
    json_t *entry;

    file->tensors = calloc(count + 1, sizeof *file->tensors);
    if (!file->tensors)
        return no_memory();
    json_object_foreach(file->header, name, entry) {
        if (entry != file->metadata)
            LUDA_TRY(parse_tensor(file, name, entry, &file->tensors[file->count++]));
    }
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_names);
    return check_cover(file);
}

static luda_status parse_checksums(luda_file *file)
{
    const char *text = json_string_value(json_object_get(file->metadata, KEY_TENSORS));
    json_t *checksums;
    luda_status status = LUDA_OK;

    if (file->checksum < 0)
        return LUDA_OK;
    checksums = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    for (int i = 0; i < file->count && status == LUDA_OK; i++) {
        const char *digits = json_string_value(json_object_get(checksums, file->tensors[i].name));
        if (!digits || !parse_digits(digits, &file->tensors[i].crc))
            status = damaged_tensor(file, file->tensors[i].name, "its checksum is missing");
    }
    json_decref(checksums);
    return status;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static luda_status list_keys(luda_file *file)
{
    const char *key;
    json_t *value;

    file->keys = malloc((json_object_size(file->metadata) + 1) * sizeof *file->keys);
    if (!file->keys)
        return no_memory();
    json_object_foreach(file->metadata, key, value) {
        if (strcmp(key, KEY_HEADER) != 0 && strcmp(key, KEY_TENSORS) != 0)
            file->keys[file->key_count++] = key;
    }
    qsort(file->keys, (size_t)file->key_count, sizeof *file->keys, compare_keys);
    return LUDA_OK;
}

static luda_status read_header(luda_file *file)
{
    struct stat facts;
    uint64_t length = 0;
    size_t got;
    char *text;
    luda_status status;

    if (fstat(file->fd, &facts) != 0 || !S_ISREG(facts.st_mode))
        return luda__fail(LUDA_EIO, "load: %s is not a file", file->path);
    int problem = read_all(file, (char *)&length, LENGTH_BYTES, 0, &got);
    if (problem)
        return unreadable(file, problem);
    if (got < LENGTH_BYTES || length > (uint64_t)facts.st_size - LENGTH_BYTES)
        return damaged(file, "longer than the file");
    if (length > HEADER_LIMIT)
        return damaged(file, "longer than 100 MiB");
    file->data = LENGTH_BYTES + (int64_t)length;
    file->data_bytes = facts.st_size - file->data;
    text = malloc(length + 1);
    if (!text)
        return no_memory();
    problem = read_all(file, text, length, LENGTH_BYTES, &got);
    status = problem ? unreadable(file, problem) : LUDA_OK;
    if (status == LUDA_OK && got < length)
        status = damaged(file, "longer than the file");
    if (status == LUDA_OK)
        status = parse_header(file, text, length);
    if (status == LUDA_OK)
        status = check_header(file, text, length);
    free(text);
    if (status == LUDA_OK)
        status = parse_tensors(file);
    if (status == LUDA_OK)
        status = parse_checksums(file);
    return status == LUDA_OK ? list_keys(file) : status;
}

luda_status luda_file_open(const char *path, luda_file **out)
{
    luda_file *file = calloc(1, sizeof *file);
    luda_status status;

    if (!file || !path || !(file->path = strdup(path))) {
        free(file);
        return path ? no_memory() : luda__fail(LUDA_EINVAL, "load: a path is needed");
    }
    file->checksum = -1;
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    status = file->fd < 0 ? luda__fail(LUDA_EIO, "load: cannot open %s: %s", path, strerror(errno)) : read_header(file);
    if (status != LUDA_OK) {
        luda_file_close(file);
        return status;
    }
    *out = file;
    return LUDA_OK;
}

void luda_file_close(luda_file *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    json_decref(file->header);
    free(file->keys);
    free(file->tensors);
    free(file->path);
    free(file);
}

/* --- What the header says --- */

int luda_file_count(const luda_file *file)
{
    return file->count;
}

static const stored *at(const luda_file *file, int index)
{
    return index >= 0 && index < file->count ? &file->tensors[index] : NULL;
}

const char *luda_file_name(const luda_file *file, int index)
{
    const stored *it = at(file, index);
    return it ? it->name : NULL;
}

int luda_file_find(const luda_file *file, const char *name)
{
    stored wanted = { .name = name };
    const stored *found = bsearch(&wanted, file->tensors, (size_t)file->count, sizeof wanted, compare_names);
    return found ? (int)(found - file->tensors) : -1;
}

int luda_file_dtype(const luda_file *file, int index)
{
    const stored *it = at(file, index);
    return it ? it->dtype : -1;
}

int luda_file_ndim(const luda_file *file, int index)
{
    const stored *it = at(file, index);
    return it ? it->ndim : -1;
}

const int64_t *luda_file_shape(const luda_file *file, int index)
{
    const stored *it = at(file, index);
    return it ? it->shape : NULL;
}

const char *luda_file_metadata_key(const luda_file *file, int index)
{
    return index >= 0 && index < file->key_count ? file->keys[index] : NULL;
}

const char *luda_file_metadata(const luda_file *file, const char *key)
{
    return json_string_value(json_object_get(file->metadata, key));
}

int64_t luda_file_checksum(const luda_file *file)
{
    return file->checksum;
}

/* --- Elements --- */

/* Bytes that one slab reads. */
#define SLAB (4 << 20)

typedef struct slab_result {
    uint32_t crc;
    unsigned char bits; /* that any byte has */
    bool shorter;       /* the file ended */
    int problem;        /* errno */
} slab_result;

typedef struct reading {
    const luda_file *file;
    const stored *it;
    char *data;
    slab_result *results;
} reading;

static void read_slab(void *arg, int64_t slab)
{
    const reading *job = arg;
    const stored *it = job->it;
    slab_result result = { 0 };
    int64_t begin = slab * SLAB, end = it->end - it->begin < begin + SLAB ? it->end - it->begin : begin + SLAB;

    while (begin < end && !result.problem && !result.shorter) {
        size_t chunk = end - begin < CHUNK ? (size_t)(end - begin) : (size_t)CHUNK, got;
        char *data = job->data + begin;
        result.problem = read_all(job->file, data, chunk, job->file->data + it->begin + begin, &got);
        result.shorter = got < chunk;
        result.crc = luda__crc32c(result.crc, data, got);
        for (size_t i = 0; it->dtype == LUDA_BOOL && i < got; i++)
            result.bits |= (unsigned char)data[i];
        begin += (int64_t)chunk;
    }
    job->results[slab] = result;
}

/* Slabs are read and checked by all threads; their checksums join to the tensor's. */
static luda_status read_elements(const luda_file *file, const stored *it, char *data)
{
    int64_t bytes = it->end - it->begin, slabs = (bytes + SLAB - 1) / SLAB;
    slab_result one, *results = slabs == 1 ? &one : malloc((size_t)slabs * sizeof *results);
    reading job = { file, it, data, results };
    slab_result all = { 0 };

    if (!results)
        return no_memory();
    if (slabs > 1)
        posix_fadvise(file->fd, 0, 0, POSIX_FADV_SEQUENTIAL); /* the system reads further ahead */
    luda__parallel(slabs, read_slab, &job);
    for (int64_t i = 0; i < slabs; i++) {
        all.crc = luda__crc32c_join(all.crc, results[i].crc, (size_t)(i < slabs - 1 ? SLAB : bytes - i * SLAB));
        all.bits |= results[i].bits;
        all.shorter |= results[i].shorter;
        all.problem = all.problem ? all.problem : results[i].problem;
    }
    if (results != &one)
        free(results);
    if (all.problem)
        return unreadable(file, all.problem);
    if (all.shorter)
        return luda__fail(LUDA_ECORRUPT, "load: %s: tensor '%.100s': the file became shorter", file->path, it->name);
    if (file->checksum >= 0 && all.crc != it->crc)
        return luda__fail(LUDA_ECORRUPT, "load: %s: tensor '%.100s': the checksum does not match", file->path,
                          it->name);
    if (all.bits > 1)
        return luda__fail(LUDA_ECORRUPT, "load: %s: tensor '%.100s': a truth value is neither 0 nor 1", file->path,
                          it->name);
    return LUDA_OK;
}

luda_status luda_file_read(const luda_file *file, int index, luda_tensor **out)
{
    const stored *it = at(file, index);
    luda_device cpu = { LUDA_CPU, 0 };
    luda_tensor *tensor = NULL;
    luda_status status;

    if (!it)
        return luda__fail(LUDA_EINDEX, "load: %s has %d tensors, there is no position %d", file->path, file->count,
                          index);
    LUDA_TRY(luda_tensor_new((luda_dtype)it->dtype, cpu, it->ndim, it->shape, &tensor));
    status = it->end > it->begin ? read_elements(file, it, luda__data(tensor)) : LUDA_OK;
    if (status != LUDA_OK) {
        luda_tensor_release(tensor);
        return status;
    }
    *out = tensor;
    return LUDA_OK;
}
