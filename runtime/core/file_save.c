/*
 * Writing tensor files: one pass over the elements, checksums while they are in the cache. The header is written last,
 * since it holds the checksums.
 */
#include "file_save.h"

#include <jansson.h>
#include <stdlib.h>

static luda_status no_memory(void)
{
    return luda__fail(LUDA_ENOMEM, "save: no memory for the header and the write buffer");
}

/* --- The header --- */

/* Wide elements first, so that every tensor is aligned without gaps; then by name. */
static int compare_items(const void *a, const void *b)
{
    const luda__file_item *x = a, *y = b;
    int width = luda_dtype_size((luda_dtype)y->dtype) - luda_dtype_size((luda_dtype)x->dtype);
    return width ? width : strcmp(x->name, y->name);
}

static json_t *tensor_entry(const luda__file_item *it)
{
    json_t *sizes = json_array();
    for (int d = 0; d < it->ndim; d++)
        json_array_append_new(sizes, json_integer(it->shape[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", luda__dtype_file_name((luda_dtype)it->dtype), "shape", sizes,
                     "data_offsets", (json_int_t)it->begin, (json_int_t)(it->begin + it->bytes));
}

/* The metadata object; NULL and an error. */
static luda_status make_metadata(const luda__file_plan *s, json_t **out)
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
static luda_status make_header(luda__file_plan *s)
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

static luda_status check_metadata(const luda__file_plan *s)
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
static luda_status plan_items(luda__file_plan *s, const luda_file_entry *entries)
{
    for (int i = 0; i < s->count; i++) {
        const luda_tensor *tensor = entries[i].tensor;
        luda__file_item *it = &s->items[i];
        if (!entries[i].name || !tensor)
            return luda__fail(LUDA_EINVAL, "save: entry %d has no name or no tensor", i);
        if (strcmp(entries[i].name, KEY_METADATA) == 0)
            return luda__fail(LUDA_EINVAL, "save: the name '%s' is the format's own", KEY_METADATA);
        *it = (luda__file_item){ .name = entries[i].name, .tensor = tensor, .dtype = luda_tensor_dtype(tensor),
                                 .ndim = luda_tensor_ndim(tensor) };
        memcpy(it->shape, luda_tensor_shape(tensor), (size_t)it->ndim * sizeof *it->shape);
    }
    qsort(s->items, (size_t)s->count, sizeof *s->items, compare_items);
    for (int i = 0; i < s->count; i++) {
        luda__file_item *it = &s->items[i];
        it->begin = s->bytes;
        it->bytes = luda_tensor_numel(it->tensor) * luda_dtype_size((luda_dtype)it->dtype);
        s->bytes += it->bytes;
    }
    return LUDA_OK;
}

static luda_status check_names(const luda__file_plan *s)
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

/* --- The elements --- */

static luda_status flush(luda__file_plan *s, int64_t end)
{
    size_t used = s->used;
    s->used = 0;
    return luda__place_write(&s->place, s->buffer, used, end - (int64_t)used);
}

/* Writes contiguous elements on any device in chunks; small ones gather in the buffer. */
static luda_status write_elements(luda__file_plan *s, luda__file_item *it, const char *data, luda_device device)
{
    char message[256] = "";
    luda_device cpu = { LUDA_CPU, 0 };
    const luda_device_ops *ops = luda__device(device);
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
            LUDA_TRY(luda__place_write(&s->place, chunk, bytes, start + done));
        }
        done += (int64_t)bytes;
    }
    return LUDA_OK;
}

luda_status luda__file_in_order(const luda_tensor *tensor, luda_tensor **copy)
{
    luda_tensor *made = NULL;
    if (!luda_tensor_is_contiguous(tensor)) {
        LUDA_TRY(luda__tensor_like(tensor, &made));
        luda_status status = luda__copy(tensor, made);
        if (status != LUDA_OK) {
            luda_tensor_release(made);
            return status;
        }
    }
    *copy = made;
    return LUDA_OK;
}

static luda_status write_item(luda__file_plan *s, luda__file_item *it)
{
    luda_device cpu = { LUDA_CPU, 0 };
    luda_tensor *copy = NULL;

    if (!it->tensor)
        return write_elements(s, it, it->staged, cpu);
    LUDA_TRY(luda__file_in_order(it->tensor, &copy));
    const luda_tensor *tensor = copy ? copy : it->tensor;
    luda_status status =
        write_elements(s, it, it->bytes ? luda__data(tensor) : NULL, luda_tensor_device(tensor));
    luda_tensor_release(copy);
    return status;
}

luda_status luda__file_plan_write(luda__file_plan *s)
{
    uint64_t length = s->header_length;

    LUDA_TRY(luda__place_open(&s->place));
    for (int i = 0; i < s->count; i++)
        LUDA_TRY(write_item(s, &s->items[i]));
    LUDA_TRY(flush(s, LENGTH_BYTES + (int64_t)s->header_length + s->bytes));
    LUDA_TRY(make_header(s));
    if (s->header_length != length)
        return luda__fail(LUDA_EINTERNAL, "save: the header grew from %llu to %zu bytes", (unsigned long long)length,
                          s->header_length);
    LUDA_TRY(luda__place_write(&s->place, (const char *)&length, LENGTH_BYTES, 0));
    LUDA_TRY(luda__place_write(&s->place, s->header, s->header_length, LENGTH_BYTES));
    return luda__place_publish(&s->place);
}

/* --- Plans --- */

luda_status luda__file_plan_make(luda__file_plan *s, const char *path, const luda_file_entry *entries, int n,
                                 const char *const *keys, const char *const *values, int nmeta)
{
    *s = (luda__file_plan){ .place = { .path = path, .fd = -1 }, .count = n, .keys = keys, .values = values,
                            .metadata_count = nmeta };
    if (!path || !*path || n < 0 || nmeta < 0 || (n > 0 && !entries) || (nmeta > 0 && (!keys || !values)))
        return luda__fail(LUDA_EINVAL, "save: a path and lists of tensors and metadata are needed");
    s->items = calloc((size_t)n + 1, sizeof *s->items);
    s->buffer = malloc(CHUNK);
    if (!s->items || !s->buffer)
        return no_memory();
    LUDA_TRY(plan_items(s, entries));
    LUDA_TRY(check_names(s));
    LUDA_TRY(check_metadata(s));
    return make_header(s);
}

void luda__file_plan_free(luda__file_plan *s)
{
    luda__place_close(&s->place);
    free(s->header);
    free(s->buffer);
    free(s->items);
}

luda_status luda_file_save(const char *path, const luda_file_entry *entries, int n, const char *const *metadata_keys,
                           const char *const *metadata_values, int nmeta)
{
    luda__file_plan plan;
    luda_status status = luda__file_plan_make(&plan, path, entries, n, metadata_keys, metadata_values, nmeta);
    if (status == LUDA_OK)
        status = luda__file_plan_write(&plan);
    luda__file_plan_free(&plan);
    return status;
}
