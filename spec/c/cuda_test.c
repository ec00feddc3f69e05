/*
 * The CUDA device: opening, copies, memory, streams, events, the error word, threads, and training steps against the CPU.
 * Runs on what LUDA_CUDA_PLUGIN names; the build sets the emulator. Rows are in cuda_rows_test.c.
 */
#include "../../runtime/core/core.h"
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

static const luda_device cpu = { LUDA_CPU, 0 }, cuda = { LUDA_CUDA, 0 }, second = { LUDA_CUDA, 1 };
static const luda_device_ops *ops; /* the plug-in's own table */
static char message[512];

static luda_tensor *tensor_of(luda_device device, luda_dtype dtype, int64_t n, const double *values)
{
    luda_tensor *t = NULL;
    EXPECT_OK(luda_tensor_new(dtype, device, 1, &n, &t));
    if (values)
        EXPECT_OK(luda_tensor_write(t, LUDA_F64, values, n));
    return t;
}

static luda_tensor *moved(luda_tensor *x, luda_device device)
{
    luda_tensor *y = NULL;
    EXPECT_OK(luda_to(x, &(struct luda_cast_attrs){ -1, device }, &y));
    return y;
}

/* x becomes x + x in the thread's current stream. */
static void double_in_place(luda_tensor *x)
{
    EXPECT_OK(luda_apply_into(LUDA_OP_add, (luda_tensor *[]){ x, x }, 2, NULL, x));
}

static void test_open(void)
{
    void *library = dlopen(getenv("LUDA_CUDA_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    luda_plugin_open open = library ? (luda_plugin_open)(uintptr_t)dlsym(library, "luda_plugin_open_device") : NULL;
    EXPECT(open != NULL);
    EXPECT(open(LUDA_DEVICE_ABI + 1, message, sizeof message) == NULL);
    EXPECT(strstr(message, "build both from one source") != NULL);
    ops = open(LUDA_DEVICE_ABI, message, sizeof message);
    EXPECT(ops != NULL && strcmp(ops->name, "cuda") == 0 && ops->count() == luda_device_count(LUDA_CUDA));
    EXPECT(luda_tensor_new(LUDA_F32, (luda_device){ LUDA_CUDA, 99 }, 0, NULL, &(luda_tensor *){ NULL }) == LUDA_EDEVICE);
}

/* --- Copies --- */

static void test_copies(void)
{
    double values[] = { 1, -2, 3.5, 0, 5 }, back[5];
    luda_tensor *host = tensor_of(cpu, LUDA_F32, 5, values), *one = moved(host, cuda), *two = moved(one, second);
    double_in_place(one); /* the copy to the second device came first */
    luda_tensor *three = moved(two, cuda), *home = moved(one, cpu);
    EXPECT_OK(luda_tensor_read(two, LUDA_F64, back, 5));
    EXPECT(memcmp(back, values, sizeof back) == 0);
    EXPECT_OK(luda_tensor_read(three, LUDA_F64, back, 5));
    EXPECT(memcmp(back, values, sizeof back) == 0);
    EXPECT_OK(luda_tensor_read(home, LUDA_F64, back, 5));
    EXPECT(back[0] == 2 && back[1] == -4 && back[2] == 7 && back[3] == 0 && back[4] == 10);
    double_in_place(two);
    EXPECT_OK(ops->copy(second, luda_tensor_data(two), cuda, luda_tensor_data(three), 20, message));
    EXPECT_OK(luda_tensor_read(two, LUDA_F64, back, 5));
    EXPECT(memcmp(back, values, sizeof back) == 0); /* the second device had doubled before the copy came */
    EXPECT_OK(ops->fill(0, luda_tensor_data(one), 0, 8, message));
    EXPECT_OK(luda_tensor_read(one, LUDA_F64, back, 5));
    EXPECT(back[0] == 0 && back[1] == 0 && back[2] == 7);
    EXPECT_OK(ops->copy(cuda, NULL, cpu, NULL, 0, message));
    EXPECT_OK(ops->fill(0, NULL, 0, 0, message));
    EXPECT_STATUS(LUDA_EDEVICE, luda_apply(LUDA_OP_add, (luda_tensor *[]){ one, two }, 2, NULL, &(luda_tensor *){ NULL }));
    luda_tensor_release(host);
    luda_tensor_release(one);
    luda_tensor_release(two);
    luda_tensor_release(three);
    luda_tensor_release(home);
}

/* --- Memory --- */

static void test_memory(void)
{
    int64_t huge = (int64_t)1 << 44, total, available, n = 3;
    luda_tensor *none = NULL, *some = NULL;
    double value;
    EXPECT_STATUS(LUDA_ENOMEM, luda_tensor_new(LUDA_U8, cuda, 1, &huge, &none));
    EXPECT(none == NULL);
    EXPECT_OK(luda_synchronize(cuda)); /* the failure sticks to nothing */
    EXPECT_OK(luda_full(&(struct luda_create_attrs){ { 1, { n } }, LUDA_F32, cuda, 7, 0 }, &some));
    EXPECT_OK(luda_tensor_get(some, 2, &value));
    EXPECT(value == 7);
    luda_tensor_release(some);
    ops->memory(0, &total, &available);
    EXPECT(total > 0 && available > 0 && available <= total);
    EXPECT(ops->allocate(0, (size_t)huge) == NULL);
    void *memory = ops->allocate(0, 1000);
    EXPECT(memory != NULL && (uintptr_t)memory % 64 == 0);
    ops->free(0, memory, 1000);
}

/* --- The error word --- */

static void expect_fault(luda_status status, const char *text)
{
    EXPECT_STATUS(status, luda_synchronize(cuda));
    EXPECT(strcmp(luda_last_error(), text) == 0);
    if (strcmp(luda_last_error(), text) != 0)
        printf("  %s\n", luda_last_error());
    EXPECT_OK(luda_synchronize(cuda)); /* reported once */
}

static void test_faults(void)
{
    luda_tensor *x = tensor_of(cuda, LUDA_F32, 4, (double[]){ 1, 2, 3, 4 }), *y = NULL;
    luda_tensor *bad = tensor_of(cuda, LUDA_I64, 3, (double[]){ 4, 7, 1 }), *zero = tensor_of(cuda, LUDA_I64, 2, (double[]){ 0, 2 });
    luda_tensor *four = tensor_of(cuda, LUDA_I64, 4, (double[]){ 4, 7, 1, 4 }), *divisor = tensor_of(cuda, LUDA_I32, 2, (double[]){ 3, 0 });
    double back[3];
    EXPECT_OK(luda_index_select(x, bad, &(struct luda_index_select_attrs){ 0, 1 }, &y));
    expect_fault(LUDA_EINDEX, "index_select: position 7 is outside 1 .. 4 (base 1)");
    EXPECT_OK(luda_tensor_read(y, LUDA_F64, back, 3));
    EXPECT(back[0] == 4 && back[2] == 1); /* good positions beside the bad one */
    luda_tensor_release(y);
    EXPECT_OK(luda_index_select(x, zero, &(struct luda_index_select_attrs){ 0, 1 }, &y));
    expect_fault(LUDA_EINDEX, "index_select: position 0 is outside 1 .. 4 (base 1); are these 0-based positions? pass base = 0");
    luda_tensor_release(y);
    EXPECT_OK(luda_index_select(x, bad, &(struct luda_index_select_attrs){ 0, 1 }, &y));
    EXPECT_STATUS(LUDA_EINDEX, luda_tensor_read(y, LUDA_F64, back, 3)); /* reading synchronises */
    EXPECT_OK(luda_synchronize(cuda));
    luda_tensor_release(y);
    EXPECT_OK(luda_index_select_backward(x, four, &(struct luda_index_select_backward_attrs){ 0, 1, 4 }, &y));
    expect_fault(LUDA_EINDEX, "index_select_backward: position 7 is outside 1 .. 4 (base 1)");
    luda_tensor_release(y);
    EXPECT_OK(luda_remainder(zero, divisor, &y));
    expect_fault(LUDA_EINVAL, "remainder: division of integers by zero");
    luda_tensor_release(y);
    luda_tensor_release(x);
    luda_tensor_release(bad);
    luda_tensor_release(zero);
    luda_tensor_release(four);
    luda_tensor_release(divisor);
}

/* --- Streams and events --- */

static void *current_in_thread(void *unused)
{
    return ops->stream_current(0);
}

static void test_streams(void)
{
    void *standard = ops->stream_current(0), *one = ops->stream_new(0), *two = ops->stream_new(0), *event, *seen;
    double ones[600], back[600];
    pthread_t thread;
    for (int i = 0; i < 600; i++)
        ones[i] = 1 + i % 3;
    luda_tensor *x = tensor_of(cuda, LUDA_F32, 600, ones), *y = tensor_of(cuda, LUDA_F32, 600, NULL);
    EXPECT(standard && one && two && one != standard && one != two);
    EXPECT_OK(luda_synchronize(cuda));
    ops->stream_use(0, one);
    EXPECT(ops->stream_current(0) == one);
    pthread_create(&thread, NULL, current_in_thread, NULL);
    pthread_join(thread, &seen);
    EXPECT(seen == standard); /* the choice is the thread's own */
    for (int i = 0; i < 4; i++)
        double_in_place(x);
    event = ops->event_record(0);
    EXPECT(event != NULL);
    ops->stream_use(0, two);
    EXPECT_OK(ops->event_wait(0, event, message));
    EXPECT_OK(luda_apply_into(LUDA_OP_neg, &x, 1, NULL, y));
    void *finished = ops->event_record(0);
    while (!ops->event_done(0, finished))
        ;
    EXPECT(ops->event_done(0, event));
    EXPECT_OK(luda_tensor_read(y, LUDA_F64, back, 600));
    for (int i = 0; i < 600; i++)
        EXPECT(back[i] == -16 * ones[i]);
    ops->event_release(0, event);
    ops->event_release(0, finished);
    ops->stream_release(0, one);
    ops->stream_release(0, two); /* the current one: the default takes its place */
    EXPECT(ops->stream_current(0) == standard);
    luda_tensor_release(x);
    luda_tensor_release(y);
}

/* --- Threads that share a stream: long sums and products use its scratch memory --- */

static void *share_stream(void *argument)
{
    double factor = *(double *)argument, total = -1, element = -1;
    struct luda_create_attrs attrs = { { 2, { 100, 101 } }, LUDA_F32, cuda, factor, 0 };
    luda_tensor *x, *sum, *flipped, *product;
    for (int i = 0; i < 5; i++) {
        EXPECT_OK(luda_full(&attrs, &x));
        EXPECT_OK(luda_sum(x, NULL, &sum));
        EXPECT_OK(luda_transpose(x, &(struct luda_transpose_attrs){ 0, 1 }, &flipped));
        EXPECT_OK(luda_matmul(x, flipped, &product));
        EXPECT_OK(luda_tensor_get(sum, 0, &total));
        EXPECT_OK(luda_tensor_get(product, 9999, &element));
        EXPECT(total == 10100 * factor);
        EXPECT(element == 101 * factor * factor);
        luda_tensor_release(x);
        luda_tensor_release(sum);
        luda_tensor_release(flipped);
        luda_tensor_release(product);
    }
    return NULL;
}

static void test_threads(void)
{
    double factors[] = { 1, 2, 3, 4 };
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, share_stream, &factors[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

/* --- Repeating --- */

static void test_repeats(void)
{
    struct luda_random_attrs attrs = { { 2, { 7, 30001 } }, LUDA_F32, cuda, 0, 0, { .seed = 3, .counter = 1 } };
    luda_tensor *x, *first, *again;
    float a[7], b[7];
    EXPECT_OK(luda_randn(&attrs, &x));
    struct luda_reduce_attrs rows = { { 1, { 1 } }, 0 };
    EXPECT_OK(luda_sum(x, &rows, &first));
    EXPECT_OK(luda_sum(x, &rows, &again));
    EXPECT_OK(luda_tensor_read(first, LUDA_F32, a, 7));
    EXPECT_OK(luda_tensor_read(again, LUDA_F32, b, 7));
    EXPECT(memcmp(a, b, sizeof a) == 0);
    luda_tensor_release(x);
    luda_tensor_release(first);
    luda_tensor_release(again);
}

/* --- Training steps --- */

static void values_of(double *values, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        values[i] = (double)(seed >> 40) * 0x1p-23 - 1;
    }
}

/* A matrix of 900 elements, or 70 in a vector (a matrix for muon). */
static luda_tensor *part_of(luda_device device, int kind, luda_dtype dtype, int p, const double *values)
{
    const int64_t shapes[2][2] = { { 36, 25 }, { kind == LUDA_OPTIM_muon ? 7 : 70, 10 } };
    luda_tensor *host = tensor_of(cpu, dtype, p ? 70 : 900, values), *shaped, *result;
    EXPECT_OK(luda_reshape(host, p && kind != LUDA_OPTIM_muon ? 1 : 2, shapes[p], &shaped));
    result = moved(shaped, device);
    luda_tensor_release(host);
    luda_tensor_release(shaped);
    return result;
}

/* Three steps over two parameters, one of them with two gradients left out; the values after them. */
static void train(luda_device device, int kind, luda_dtype dtype, const luda_optim_settings *settings, double *result)
{
    double values[900];
    luda_tensor *parameters[2];
    luda_optim *optim = NULL;
    for (int p = 0; p < 2; p++) {
        values_of(values, p ? 70 : 900, 5 + (uint64_t)p);
        parameters[p] = part_of(device, kind, dtype, p, values);
        EXPECT_OK(luda_set_requires_grad(parameters[p], 1));
    }
    EXPECT_OK(luda_optim_new(kind, parameters, 2, NULL, NULL, 1, settings, &optim));
    for (int step = 0; step < 3; step++) {
        luda_gradients *gradients;
        EXPECT_OK(luda_gradients_new(&gradients));
        for (int p = 0; p < (step == 1 ? 2 : 1); p++) {
            values_of(values, p ? 70 : 900, 100 + (uint64_t)(step * 2 + p));
            luda_tensor *g = part_of(device, kind, dtype, p, values);
            EXPECT_OK(luda_gradients_set(gradients, luda_tensor_id(parameters[p]), g));
            luda_tensor_release(g);
        }
        EXPECT_OK(luda_optim_step(optim, 0.1, gradients, NULL));
        luda_gradients_release(gradients);
    }
    EXPECT_OK(luda_tensor_read(parameters[0], LUDA_F64, result, 900));
    EXPECT_OK(luda_tensor_read(parameters[1], LUDA_F64, result + 900, 70));
    luda_optim_release(optim);
    luda_tensor_release(parameters[0]);
    luda_tensor_release(parameters[1]);
}

static void test_optim(void)
{
    static const luda_dtype dtypes[] = { LUDA_F64, LUDA_F32, LUDA_BF16, LUDA_F16 };
    static const double tolerance[] = { 1e-13, 2e-6, 1.6e-2, 2e-3 };
    static double host[970], device[970];
    for (int kind = 0; luda_optim_name(kind); kind++)
        for (int d = 0; d < 4; d++)
            for (int variant = 0; variant < 2; variant++) {
                double limit = variant ? 0 : 0.5;
                luda_optim_settings settings = { .max_grad_norm = variant ? 2 : 0,
                                                 .clip_value = kind == LUDA_OPTIM_muon ? 0 : limit,
                                                 .clip_norm = kind == LUDA_OPTIM_muon ? limit : 0,
                                                 .fp32_master = d >= 2 && variant };
                train(cpu, kind, dtypes[d], &settings, host);
                train(cuda, kind, dtypes[d], &settings, device);
                int good = 1;
                for (int i = 0; i < 970; i++)
                    good = good && fabs(host[i] - device[i]) <= tolerance[d] * (1 + fabs(host[i]));
                EXPECT(good);
                if (!good)
                    printf("  %s of %s, variant %d\n", luda_optim_name(kind), luda_dtype_name(dtypes[d]), variant);
            }
}

/* Gradients of a small network's loss, weights first. */
static void network(luda_device device, double *loss, double *gradient)
{
    double values[60];
    int64_t shapes[2][2] = { { 5, 7 }, { 7, 4 } }, batch[2] = { 6, 5 };
    luda_tensor *weights[2], *x = NULL, *hidden, *active, *logits, *labels, *out[2];
    for (int w = 0; w < 3; w++) {
        const int64_t *shape = w < 2 ? shapes[w] : batch;
        luda_tensor *host;
        values_of(values, shape[0] * shape[1], 31 + (uint64_t)w);
        EXPECT_OK(luda_tensor_new(LUDA_F64, cpu, 2, shape, &host));
        EXPECT_OK(luda_tensor_write(host, LUDA_F64, values, shape[0] * shape[1]));
        *(w < 2 ? &weights[w] : &x) = moved(host, device);
        luda_tensor_release(host);
        if (w < 2)
            EXPECT_OK(luda_set_requires_grad(weights[w], 1));
    }
    luda_tensor *host_labels = tensor_of(cpu, LUDA_I64, 6, (double[]){ 0, 3, 1, 2, 3, 3 });
    labels = moved(host_labels, device);
    EXPECT_OK(luda_matmul(x, weights[0], &hidden));
    EXPECT_OK(luda_gelu_tanh(hidden, &active));
    EXPECT_OK(luda_matmul(active, weights[1], &logits));
    EXPECT_OK(luda_apply(LUDA_OP_cross_entropy, (luda_tensor *[]){ logits, labels }, 2, NULL, out));
    luda_gradients *gradients;
    EXPECT_OK(luda_tensor_get(out[0], 0, loss));
    EXPECT_OK(luda_backward(out[0], NULL, NULL, &gradients));
    EXPECT_OK(luda_tensor_read(luda_gradients_get(gradients, luda_tensor_id(weights[0])), LUDA_F64, gradient, 35));
    EXPECT_OK(luda_tensor_read(luda_gradients_get(gradients, luda_tensor_id(weights[1])), LUDA_F64, gradient + 35, 28));
    luda_gradients_release(gradients);
    luda_tensor *all[] = { weights[0], weights[1], x, hidden, active, logits, labels, host_labels, out[0], out[1] };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        luda_tensor_release(all[i]);
}

static void test_network(void)
{
    double loss[2], gradient[2][63];
    network(cpu, &loss[0], gradient[0]);
    network(cuda, &loss[1], gradient[1]);
    EXPECT_NEAR(loss[0], loss[1], 1e-12);
    for (int i = 0; i < 63; i++)
        EXPECT_NEAR(gradient[0][i], gradient[1][i], 1e-12);
}

static void run_all(void)
{
    test_copies();
    test_memory();
    test_faults();
    test_streams();
    test_threads();
    test_repeats();
    test_optim();
    test_network();
}

/* With the emulator, in each order of threads and streams unless CUDAEMU_ORDER names one. */
int main(void)
{
    static const char *const orders[] = { "forward", "reverse", "random:1", "random:2" };
    luda_memory_info before, after;
    const char *chosen = getenv("CUDAEMU_ORDER");
#ifdef LUDA_EMULATOR_PATH
    setenv("LUDA_CUDA_PLUGIN", LUDA_EMULATOR_PATH, 0);
#endif
    luda_set_threads(2);
    test_open();
    if (!ops) {
        printf("no CUDA: %s\n", message);
        return 1;
    }
    EXPECT_OK(luda_memory(cuda, &before));
    for (int i = 0; i < (chosen ? 1 : 4); i++) {
        setenv("CUDAEMU_ORDER", chosen ? chosen : orders[i], 1);
        run_all();
    }
    EXPECT_OK(luda_memory(cuda, &after));
    EXPECT(before.tensors == after.tensors && before.live == after.live);
    return summary("cuda_test");
}
