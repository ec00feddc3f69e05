/*
 * Tensor files: every dtype and layout comes back, equal content gives equal bytes, no damage of any single bit or at
 * any length loads, hostile headers are refused, failures leave the old file.
 */

#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const luda_device cpu = { LUDA_CPU, 0 };
static char folder[] = "/tmp/luda-file-test-XXXXXX";
static char path[128], other[128];

/* --- Helpers --- */

static luda_tensor *tensor_of(luda_dtype dtype, int ndim, const int64_t *shape, const void *bytes)
{
    luda_tensor *tensor = NULL;
    EXPECT_OK(luda_tensor_new(dtype, cpu, ndim, shape, &tensor));
    if (luda_tensor_numel(tensor) > 0)
        memcpy(luda_tensor_data(tensor), bytes, (size_t)luda_tensor_numel(tensor) * (size_t)luda_dtype_size(dtype));
    return tensor;
}

static size_t read_file(const char *name, unsigned char **out)
{
    FILE *file = fopen(name, "rb");
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    *out = malloc(size + 1);
    EXPECT(fread(*out, 1, size, file) == size);
    fclose(file);
    return size;
}

static void write_file(const char *name, const void *bytes, size_t size)
{
    unlink(name); /* some file systems flush a file that is truncated and rewritten */
    FILE *file = fopen(name, "wb");
    EXPECT(size == 0 || fwrite(bytes, 1, size, file) == size);
    fclose(file);
}

/* A file of other programs: header text as it is, then `size` bytes counting up from 0. */
static void write_foreign(const char *header, size_t size)
{
    unsigned char bytes[4096];
    uint64_t length = strlen(header);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < size; i++)
        bytes[8 + length + i] = (unsigned char)i;
    write_file(path, bytes, 8 + length + size);
}

/* Opens the file and reads every tensor: the first failure. */
static luda_status load_all(const char *name)
{
    luda_file *file = NULL;
    luda_status status = luda_file_open(name, &file);
    for (int i = 0; status == LUDA_OK && i < luda_file_count(file); i++) {
        luda_tensor *tensor = NULL;
        status = luda_file_read(file, i, &tensor);
        luda_tensor_release(tensor);
    }
    luda_file_close(file);
    return status;
}

static int temporary_files(void)
{
    DIR *listing = opendir(folder);
    struct dirent *entry;
    int count = 0;
    while ((entry = readdir(listing)) != NULL)
        count += entry->d_name[0] == '.' && strstr(entry->d_name, ".luda-") != NULL;
    closedir(listing);
    return count;
}

/* --- Round trips --- */

static void every_dtype_comes_back(void)
{
    unsigned char bytes[64];
    luda_file_entry entries[LUDA_DTYPE_COUNT];
    luda_tensor *back = NULL;
    luda_file *file = NULL;
    int64_t shape[2] = { 2, 3 };

    for (int i = 0; i < 64; i++)
        bytes[i] = (unsigned char)(i * 37 + 129);
    for (int d = 0; d < LUDA_DTYPE_COUNT; d++) {
        static const unsigned char flags[6] = { 1, 0, 0, 1, 1, 0 };
        entries[d].name = luda_dtype_name((luda_dtype)d);
        entries[d].tensor = tensor_of((luda_dtype)d, 2, shape, d == LUDA_BOOL ? flags : bytes);
    }
    EXPECT_OK(luda_file_save(path, entries, LUDA_DTYPE_COUNT, NULL, NULL, 0));
    EXPECT_OK(luda_file_open(path, &file));
    EXPECT(luda_file_count(file) == LUDA_DTYPE_COUNT);
    for (int d = 0; d < LUDA_DTYPE_COUNT; d++) {
        int at = luda_file_find(file, entries[d].name);
        EXPECT(at >= 0 && strcmp(luda_file_name(file, at), entries[d].name) == 0);
        EXPECT(luda_file_dtype(file, at) == d && luda_file_ndim(file, at) == 2);
        EXPECT(luda_file_shape(file, at)[0] == 2 && luda_file_shape(file, at)[1] == 3);
        EXPECT_OK(luda_file_read(file, at, &back));
        EXPECT(memcmp(luda_tensor_data(back), luda_tensor_data(entries[d].tensor),
                      6 * (size_t)luda_dtype_size((luda_dtype)d)) == 0);
        luda_tensor_release(back);
        luda_tensor_release(entries[d].tensor);
    }
    EXPECT(luda_file_find(file, "f33") == -1 && luda_file_name(file, LUDA_DTYPE_COUNT) == NULL);
    EXPECT_STATUS(LUDA_EINDEX, luda_file_read(file, LUDA_DTYPE_COUNT, &back));
    luda_file_close(file);
}

static void layouts_come_back(void)
{
    float values[6] = { 1.5f, -2.25f, 3, -4, 5.125f, -6 };
    int64_t shape[2] = { 2, 3 }, none[2] = { 2, 0 };
    luda_tensor *x = tensor_of(LUDA_F32, 2, shape, values), *empty = tensor_of(LUDA_I16, 2, none, NULL), *turned = NULL;
    luda_tensor *scalar = NULL, *back = NULL;
    luda_file *file = NULL;

    EXPECT_OK(luda_transpose(x, &(struct luda_transpose_attrs){ 0, 1 }, &turned));
    EXPECT_OK(luda_tensor_scalar(-0.1, LUDA_F64, &scalar));
    luda_file_entry entries[] = { { "turned", turned }, { "empty", empty }, { "scalar", scalar } };
    EXPECT_OK(luda_file_save(path, entries, 3, NULL, NULL, 0));
    EXPECT_OK(luda_file_open(path, &file));
    EXPECT_OK(luda_file_read(file, luda_file_find(file, "turned"), &back));
    const float by_column[6] = { 1.5f, -4, -2.25f, 5.125f, 3, -6 };
    EXPECT(memcmp(luda_tensor_data(back), by_column, sizeof by_column) == 0 && luda_tensor_shape(back)[0] == 3);
    luda_tensor_release(back);
    EXPECT_OK(luda_file_read(file, luda_file_find(file, "empty"), &back));
    EXPECT(luda_tensor_numel(back) == 0 && luda_tensor_shape(back)[0] == 2 && luda_tensor_shape(back)[1] == 0);
    luda_tensor_release(back);
    EXPECT_OK(luda_file_read(file, luda_file_find(file, "scalar"), &back));
    EXPECT(luda_tensor_ndim(back) == 0 && *(double *)luda_tensor_data(back) == -0.1);
    luda_tensor_release(back);
    luda_file_close(file);
    luda_tensor_release(turned);
    luda_tensor_release(x);
    luda_tensor_release(empty);
    luda_tensor_release(scalar);
}

static void large_tensors_stream(void)
{
    int64_t shape[1] = { 1300003 }; /* several chunks and a rest */
    luda_tensor *x = NULL, *y = NULL;
    luda_file *file = NULL;
    EXPECT_OK(luda_tensor_new(LUDA_F32, cpu, 1, shape, &x));
    float *values = luda_tensor_data(x);
    for (int64_t i = 0; i < shape[0]; i++)
        values[i] = (float)(i % 977) - 488.5f;
    luda_file_entry entries[] = { { "b", x }, { "a", x } };
    EXPECT_OK(luda_file_save(path, entries, 2, NULL, NULL, 0));
    EXPECT_OK(luda_file_open(path, &file));
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(luda_file_read(file, i, &y));
        EXPECT(memcmp(luda_tensor_data(y), values, (size_t)shape[0] * 4) == 0);
        luda_tensor_release(y);
    }
    luda_file_close(file);
    luda_tensor_release(x);
}

/* The same content in another order of entries and keys. */
static void equal_content_gives_equal_bytes(void)
{
    int64_t shape[1] = { 3 };
    const float f[3] = { 1, -2, 3 };
    const uint8_t u[3] = { 7, 8, 9 };
    const char *keys[] = { "beta", "alpha" }, *values[] = { "2", "\xc3\xbc\n\"" };
    const char *keys2[] = { "alpha", "beta" }, *values2[] = { "\xc3\xbc\n\"", "2" };
    luda_tensor *a = tensor_of(LUDA_F32, 1, shape, f), *b = tensor_of(LUDA_U8, 1, shape, u);
    luda_file_entry one[] = { { "a", a }, { "b", b }, { "c", a } }, two[] = { { "c", a }, { "b", b }, { "a", a } };
    unsigned char *first, *second;
    luda_file *file = NULL;

    EXPECT_OK(luda_file_save(path, one, 3, keys, values, 2));
    EXPECT_OK(luda_file_save(other, two, 3, keys2, values2, 2));
    size_t size = read_file(path, &first);
    EXPECT(read_file(other, &second) == size && memcmp(first, second, size) == 0);
    uint64_t length;
    memcpy(&length, first, 8);
    EXPECT(length % 8 == 0);
    EXPECT_OK(luda_file_open(path, &file));
    EXPECT(strcmp(luda_file_metadata(file, "alpha"), values[1]) == 0);
    EXPECT(strcmp(luda_file_metadata_key(file, 0), "alpha") == 0 &&
           strcmp(luda_file_metadata_key(file, 1), "beta") == 0);
    EXPECT(luda_file_metadata_key(file, 2) == NULL && luda_file_metadata(file, "gamma") == NULL);
    EXPECT(luda_file_checksum(file) >= 0);
    luda_file_close(file);
    free(first);
    free(second);
    luda_tensor_release(a);
    luda_tensor_release(b);
}

/* --- Damage --- */

static void no_damage_loads(void)
{
    int64_t shape[1] = { 2 };
    const double d[2] = { 0.5, -3 };
    const uint8_t flags[2] = { 1, 0 };
    const char *keys[] = { "note" }, *values[] = { "x" };
    luda_tensor *a = tensor_of(LUDA_F64, 1, shape, d), *b = tensor_of(LUDA_BOOL, 1, shape, flags);
    luda_file_entry entries[] = { { "weight", a }, { "mask", b } };
    unsigned char *bytes;
    uint64_t length;

    EXPECT_OK(luda_file_save(path, entries, 2, keys, values, 1));
    size_t size = read_file(path, &bytes);
    memcpy(&length, bytes, 8);
    for (size_t cut = 0; cut < size; cut++) {
        write_file(other, bytes, cut);
        EXPECT_STATUS(LUDA_ECORRUPT, load_all(other));
    }
    bytes[size] = 0;
    write_file(other, bytes, size + 1);
    EXPECT_STATUS(LUDA_ECORRUPT, load_all(other));
    for (size_t bit = 0; bit < size * 8; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        write_file(other, bytes, size);
        EXPECT_STATUS(LUDA_ECORRUPT, load_all(other));
        const char *named = bit / 8 < 8 + length ? "header" : bit / 8 < 8 + length + 16 ? "'weight'" : "'mask'";
        EXPECT(strstr(luda_last_error(), named) != NULL);
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    free(bytes);
    luda_tensor_release(a);
    luda_tensor_release(b);
}

static void foreign_files_load(void)
{
    luda_file *file = NULL;
    luda_tensor *x = NULL;

    write_foreign(
        "{\"w\":{\"shape\":[2,2],\"dtype\":\"U8\",\"data_offsets\":[4,8]}, \"__metadata__\":{\"format\":\"pt\"},\n"
        " \"v\" : {\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[0,4]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[0,9223372036854775807],\"data_offsets\":[4,4]}}   ",
        8);
    EXPECT_OK(luda_file_open(path, &file));
    EXPECT(luda_file_count(file) == 3 && luda_file_checksum(file) == -1);
    EXPECT(strcmp(luda_file_metadata(file, "format"), "pt") == 0);
    EXPECT_OK(luda_file_read(file, luda_file_find(file, "w"), &x));
    EXPECT(memcmp(luda_tensor_data(x), "\4\5\6\7", 4) == 0);
    luda_tensor_release(x);
    EXPECT_OK(luda_file_read(file, luda_file_find(file, "v"), &x));
    EXPECT(((int16_t *)luda_tensor_data(x))[1] == 0x0302);
    luda_tensor_release(x);
    luda_file_close(file);
    write_foreign("{}", 0);
    EXPECT_OK(load_all(path));
    write_foreign("{\"b\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
    EXPECT_STATUS(LUDA_ECORRUPT, load_all(path));
}

/* One tensor "t" in a file of 8 data bytes. */
static luda_status load_entry(const char *dtype, const char *shape, const char *offsets)
{
    char header[512];
    snprintf(header, sizeof header, "{\"t\":{\"dtype\":%s,\"shape\":%s,\"data_offsets\":%s}}", dtype, shape, offsets);
    write_foreign(header, 8);
    return load_all(path);
}

static void hostile_headers_are_refused(void)
{
    static const struct { const char *shape, *offsets; } bad[] = {
        { "[2]", "[0,7]" }, { "[2]", "[0,9]" }, { "[2]", "[0,16]" }, { "[2]", "[8,0]" }, { "[2]", "[-8,0]" },
        { "[2]", "[1,8]" }, { "[3]", "[0,8]" }, { "[-2]", "[0,8]" }, { "[-1,-2]", "[0,8]" }, { "[2.0]", "[0,8]" },
        { "[2]", "[0,8.0]" }, { "[2]", "[0]" }, { "[2]", "[0,8,8]" }, { "[2]", "8" }, { "2", "[0,8]" },
        { "null", "[0,8]" }, { "[[2]]", "[0,8]" }, { "[\"2\"]", "[0,8]" }, { "[4611686018427387904,2]", "[0,8]" },
        { "[4294967296,4294967296,2]", "[0,8]" }, { "[2]", "[0,9223372036854775808]" },
        { "[2]", "[9223372036854775800,8]" }, { "[2147483648]", "[0,8]" }, { "[0]", "[0,8]" }, { "[]", "[0,8]" },
        { "[2],\"shape\":[2]", "[0,8]" },
    };
    /* beside "a" of bytes 0 to 4: overlap, gap, the same bytes, the same name */
    static const struct { const char *name, *shape, *offsets; } second[] = {
        { "b", "[5]", "[3,8]" }, { "b", "[3]", "[5,8]" }, { "b", "[4]", "[0,4]" }, { "a", "[4]", "[4,8]" },
    };
    static const char *const headers[] = {
        "", " ", "[]", "1", "\"a\"", "{", "{\"t\":1}", "{\"t\":null}", "{\"t\":{}}", "{\"__metadata__\":1}",
        "{\"__metadata__\":{\"a\":1}}", "{\"__metadata__\":{\"luda.format\":\"1\"}}", "{} {}",
    };
    char deep[3000];

    EXPECT_OK(load_entry("\"F32\"", "[2]", "[0,8]"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT_STATUS(LUDA_ECORRUPT, load_entry("\"F32\"", bad[i].shape, bad[i].offsets));
    EXPECT_STATUS(LUDA_ECORRUPT, load_entry("7", "[2]", "[0,8]"));
    EXPECT_STATUS(LUDA_EDTYPE, load_entry("\"F8_E4M3\"", "[8]", "[0,8]"));
    EXPECT_STATUS(LUDA_ENOTSUP, load_entry("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]"));
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        write_foreign(headers[i], 8);
        EXPECT_STATUS(LUDA_ECORRUPT, load_all(path));
    }
    for (size_t i = 0; i < sizeof second / sizeof *second; i++) {
        char header[512];
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                 "\"%s\":{\"dtype\":\"U8\",\"shape\":%s,\"data_offsets\":%s}}", second[i].name, second[i].shape,
                 second[i].offsets);
        write_foreign(header, 8);
        EXPECT_STATUS(LUDA_ECORRUPT, load_all(path));
    }
    strcpy(deep, "{\"a\":");
    memset(deep + 5, '[', 2900);
    deep[2905] = '\0';
    write_foreign(deep, 8);
    EXPECT_STATUS(LUDA_ECORRUPT, load_all(path));
    static const uint64_t lengths[] = { 1ull << 63, UINT64_MAX, UINT64_MAX - 7, 1ull << 32, 9, 200ull << 20 };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        unsigned char bytes[16] = { 0 };
        memcpy(bytes, &lengths[i], 8);
        memcpy(bytes + 8, "{}      ", 8);
        write_file(path, bytes, 16);
        EXPECT_STATUS(LUDA_ECORRUPT, load_all(path));
    }
}

/* --- Failures of the system and of callers --- */

static void failures_keep_the_old_file(void)
{
    int64_t shape[1] = { 400000 };
    luda_tensor *small = NULL, *large = NULL;
    luda_file_entry entry = { "x", NULL }, twice[2];
    struct rlimit old_limit, limit;
    unsigned char *before, *after;
    const char *key[] = { "k" }, *text[] = { "\xff" }, *reserved[] = { "luda.crc32c" }, *plain[] = { "v" };

    EXPECT_OK(luda_tensor_scalar(3, LUDA_F32, &small));
    EXPECT_OK(luda_tensor_new(LUDA_F64, cpu, 1, shape, &large));
    memset(luda_tensor_data(large), 0, 3200000);
    entry.tensor = small;
    EXPECT_OK(luda_file_save(path, &entry, 1, NULL, NULL, 0));
    size_t size = read_file(path, &before);

    entry.tensor = large;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old_limit);
    limit = old_limit;
    for (rlim_t bytes = 0; bytes < 3300000; bytes += 300000) { /* stops the saver after each of its writes */
        limit.rlim_cur = bytes;
        setrlimit(RLIMIT_FSIZE, &limit);
        luda_status status = luda_file_save(path, &entry, 1, NULL, NULL, 0);
        setrlimit(RLIMIT_FSIZE, &old_limit);
        EXPECT(status == (bytes < 3200000 ? LUDA_EIO : LUDA_OK));
        if (status != LUDA_OK) {
            EXPECT(read_file(path, &after) == size && memcmp(before, after, size) == 0);
            free(after);
        }
        EXPECT(temporary_files() == 0);
    }
    entry.tensor = small;
    twice[0] = twice[1] = entry;
    EXPECT_STATUS(LUDA_EINVAL, luda_file_save(path, twice, 2, NULL, NULL, 0));
    EXPECT_STATUS(LUDA_EINVAL, luda_file_save(path, &entry, 1, key, text, 1));
    EXPECT_STATUS(LUDA_EINVAL, luda_file_save(path, &entry, 1, reserved, plain, 1));
    EXPECT_STATUS(LUDA_EINVAL, luda_file_save(path, &(luda_file_entry){ "\xff", small }, 1, NULL, NULL, 0));
    EXPECT_STATUS(LUDA_EINVAL, luda_file_save(path, &(luda_file_entry){ "__metadata__", small }, 1, NULL, NULL, 0));
    EXPECT_STATUS(LUDA_EIO, luda_file_save("/tmp/luda-no-such-folder/x", &entry, 1, NULL, NULL, 0));
    EXPECT_STATUS(LUDA_EIO, luda_file_save(folder, &entry, 1, NULL, NULL, 0));
    EXPECT_STATUS(LUDA_EIO, load_all("/tmp/luda-no-such-file"));
    EXPECT(strstr(luda_last_error(), strerror(ENOENT)) != NULL);
    EXPECT_STATUS(LUDA_EIO, load_all(folder));
    EXPECT(temporary_files() == 0);
    free(before);
    luda_tensor_release(small);
    luda_tensor_release(large);
}

/* A saver that was killed leaves a file without a lock, one that runs has it locked. */
static void stale_files_go(void)
{
    char stale[160], alive[160];
    luda_tensor *x = NULL;
    struct stat facts;

    EXPECT_OK(luda_tensor_scalar(1, LUDA_F32, &x));
    luda_file_entry entry = { "x", x };
    snprintf(stale, sizeof stale, "%s/.a.safetensors.luda-1-0", folder);
    snprintf(alive, sizeof alive, "%s/.a.safetensors.luda-2-0", folder);
    write_file(stale, "x", 1);
    write_file(alive, "x", 1);
    int fd = open(alive, O_RDONLY);
    EXPECT(flock(fd, LOCK_EX | LOCK_NB) == 0);
    chmod(path, 0664);
    EXPECT_OK(luda_file_save(path, &entry, 1, NULL, NULL, 0));
    EXPECT(access(stale, F_OK) != 0 && access(alive, F_OK) == 0);
    EXPECT(stat(path, &facts) == 0 && (facts.st_mode & 0777) == 0664);
    close(fd);
    unlink(alive);
    luda_tensor_release(x);
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/a.safetensors", folder);
    snprintf(other, sizeof other, "%s/b.safetensors", folder);
    every_dtype_comes_back();
    layouts_come_back();
    large_tensors_stream();
    equal_content_gives_equal_bytes();
    no_damage_loads();
    foreign_files_load();
    hostile_headers_are_refused();
    failures_keep_the_old_file();
    stale_files_go();
    unlink(path);
    unlink(other);
    EXPECT(rmdir(folder) == 0);
    return summary("file_test");
}
