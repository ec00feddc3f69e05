/* libFuzzer target: any bytes as a tensor file are refused, or read, without a crash. */
#include <luda.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    luda_file *file;
    if (fd < 0) {
        fd = memfd_create("fuzz", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        return 0;
    if (luda_file_open(path, &file) != LUDA_OK)
        return 0;
    for (int i = 0; i < luda_file_count(file); i++) {
        luda_tensor *tensor;
        if (luda_file_read(file, i, &tensor) == LUDA_OK)
            luda_tensor_release(tensor);
    }
    const char *key;
    for (int i = 0; (key = luda_file_metadata_key(file, i)) != NULL; i++)
        if (!luda_file_metadata(file, key))
            __builtin_trap(); /* a key that is listed has a text */
    for (int i = 0; i < luda_file_count(file); i++)
        if (luda_file_find(file, luda_file_name(file, i)) != i)
            __builtin_trap();
    luda_file_close(file);
    return 0;
}
