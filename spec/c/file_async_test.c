/*
 * Saving in the background: what a file holds is what the tensors held at the call, on any layout and from many threads;
 * failures come once, from the next call; a saver that is closed has written everything.
 */

#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT_FAILS(status, text, call)                                                                               \
    do {                                                                                                               \
        EXPECT_STATUS(status, call);                                                                                   \
        EXPECT(strstr(luda_last_error(), text) != NULL);                                                               \
    } while (0)

static const luda_device cpu = { LUDA_CPU, 0 };
static char folder[] = "/tmp/luda-async-test-XXXXXX";
static char path[128], missing[128];

static luda_tensor *counting(int64_t count, float first)
{
    luda_tensor *tensor = NULL;
    EXPECT_OK(luda_tensor_new(LUDA_F32, cpu, 1, &count, &tensor));
    for (int64_t i = 0; i < count; i++)
        ((float *)luda_tensor_data(tensor))[i] = first + (float)i;
    return tensor;
}

/* The first and the last element of a tensor of a file. */
static void expect_in_file(const char *name, const char *tensor_name, float first, float last)
{
    luda_file *file = NULL;
    luda_tensor *tensor = NULL;
    EXPECT_OK(luda_file_open(name, &file));
    if (!file)
        return;
    EXPECT_OK(luda_file_read(file, luda_file_find(file, tensor_name), &tensor));
    if (tensor) {
        const float *data = luda_tensor_data(tensor);
        EXPECT(data[0] == first && data[luda_tensor_numel(tensor) - 1] == last);
    }
    luda_tensor_release(tensor);
    luda_file_close(file);
}

static void holds_what_was_there(void)
{
    luda_saver *saver = NULL;
    luda_tensor *row = counting(3000000, 1), *wide = NULL, *turned = NULL;
    int64_t shape[2] = { 1000, 3000 };
    struct luda_permute_attrs turn = { { 2, { 1, 0 } } };
    EXPECT_OK(luda_reshape(row, 2, shape, &wide));
    EXPECT_OK(luda_permute(wide, &turn, &turned));
    luda_file_entry entries[2] = { { "row", row }, { "turned", turned } };
    const char *key = "note", *value = "text";
    EXPECT_OK(luda_saver_new(&saver));
    for (int i = 0; i < 3; i++) {
        char name[16] = "row", text[16] = "text"; /* the strings may go, too */
        entries[0].name = name;
        value = text;
        EXPECT_OK(luda_saver_save(saver, path, entries, 2, &key, &value, 1));
        memset(name, 'x', 3);
        memset(text, 'y', 4);
        memset(luda_tensor_data(row), 0, 12000000);
        EXPECT_OK(luda_saver_wait(saver));
        expect_in_file(path, "row", 1, 3000000);
        expect_in_file(path, "turned", 1, 3000000);
        luda_file *file = NULL;
        EXPECT_OK(luda_file_open(path, &file));
        EXPECT(strcmp(luda_file_metadata(file, "note"), "text") == 0);
        luda_file_close(file);
        for (int64_t at = 0; at < 3000000; at++)
            ((float *)luda_tensor_data(row))[at] = 1 + (float)at;
    }
    EXPECT_OK(luda_saver_wait(saver));
    luda_saver_close(saver);
    luda_saver_close(NULL);
    luda_tensor_release(turned);
    luda_tensor_release(wide);
    luda_tensor_release(row);
}

static void fails_once(void)
{
    luda_saver *saver = NULL;
    luda_tensor *tensor = counting(10, 5);
    luda_file_entry entries[2] = { { "x", tensor }, { "x", tensor } };
    EXPECT_OK(luda_saver_new(&saver));
    EXPECT_OK(luda_saver_save(saver, missing, entries, 1, NULL, NULL, 0));
    unlink(path);
    EXPECT_FAILS(LUDA_EIO, "cannot create a temporary file", luda_saver_save(saver, path, entries, 1, NULL, NULL, 0));
    EXPECT(access(path, F_OK) != 0);
    EXPECT_OK(luda_saver_wait(saver));
    EXPECT_OK(luda_saver_save(saver, path, entries, 1, NULL, NULL, 0));
    EXPECT_OK(luda_saver_wait(saver));
    expect_in_file(path, "x", 5, 14);
    EXPECT_FAILS(LUDA_EINVAL, "two tensors are called 'x'", luda_saver_save(saver, path, entries, 2, NULL, NULL, 0));
    EXPECT_FAILS(LUDA_EINVAL, "lists", luda_saver_save(saver, path, NULL, 1, NULL, NULL, 0));
    EXPECT_FAILS(LUDA_EINVAL, "a path", luda_saver_save(saver, NULL, entries, 1, NULL, NULL, 0));
    entries[0].name = NULL;
    EXPECT_FAILS(LUDA_EINVAL, "no name", luda_saver_save(saver, path, entries, 1, NULL, NULL, 0));
    const char *key = NULL, *value = "v";
    EXPECT_FAILS(LUDA_EINVAL, "no key", luda_saver_save(saver, path, NULL, 0, &key, &value, 1));
    EXPECT_OK(luda_saver_wait(saver));
    luda_saver_close(saver);
    luda_tensor_release(tensor);
}

static void *save_often(void *argument)
{
    luda_saver *saver = NULL;
    luda_context *context = NULL;
    const int number = *(int *)argument;
    char name[160];
    snprintf(name, sizeof name, "%s/many-%d", folder, number);
    EXPECT_OK(luda_context_new(&context));
    luda_context_use(context);
    EXPECT_OK(luda_saver_new(&saver));
    for (int i = 0; i < 20; i++) {
        luda_tensor *tensor = counting(1000 * (i + 1), (float)number);
        luda_file_entry entry = { "x", tensor };
        EXPECT_OK(luda_saver_save(saver, name, &entry, 1, NULL, NULL, 0));
        luda_tensor_release(tensor);
    }
    luda_saver_close(saver); /* waits */
    expect_in_file(name, "x", (float)number, (float)number + 19999);
    unlink(name);
    luda_context_use(NULL);
    luda_context_release(context);
    return NULL;
}

static void many_threads_save(void)
{
    pthread_t threads[4];
    int numbers[4] = { 100, 200, 300, 400 };
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, save_often, &numbers[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

/* exit() waits; a child of fork, which has no such thread, does not. */
static void leaves_complete(void)
{
    luda_tensor *tensor = counting(2000000, 3);
    luda_file_entry entry = { "x", tensor };
    int status = 0;
    unlink(path);
    pid_t child = fork();
    if (child == 0) {
        luda_saver *saver = NULL;
        if (luda_saver_new(&saver) != LUDA_OK || luda_saver_save(saver, path, &entry, 1, NULL, NULL, 0) != LUDA_OK)
            _exit(1);
        pid_t grandchild = fork();
        if (grandchild == 0)
            exit(7);
        int left = 0;
        waitpid(grandchild, &left, 0);
        exit(WEXITSTATUS(left));
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    expect_in_file(path, "x", 3, 2000002);
    luda_tensor_release(tensor);
}

int main(void)
{
    EXPECT(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(missing, sizeof missing, "%s/none/file", folder);
    leaves_complete(); /* before there are threads */
    holds_what_was_there();
    fails_once();
    many_threads_save();
    unlink(path);
    EXPECT(rmdir(folder) == 0);
    return summary("file_async_test");
}
