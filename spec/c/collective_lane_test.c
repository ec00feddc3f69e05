/*
 * Memory in common between rank processes of a host: every operation against plain arithmetic and, bit by bit, against
 * sockets and rank threads; disagreement, late, killed and stopped ranks; groups that cannot have it; tensors in it.
 */
#include "collective_processes.h"

#include <luda_transport.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static const int64_t lengths[] = { 1, 5, 301, 9001, 70001 };
enum { FEW = 1 };
#else
static const int64_t lengths[] = { 1, 3, 5, 129, 301, 9001, 70001, 150001 };
enum { FEW = 2 };
#endif

/* How many mappings of memory in common this process has. */
static int mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    while (maps && fgets(line, sizeof line, maps))
        count += strstr(line, "/memfd:luda") != NULL;
    if (maps)
        fclose(maps);
    return count;
}

/* --- Values --- */

/* Of all results of a rank, in order. */
static void fold(uint64_t *digest, luda_tensor *t)
{
    const unsigned char *at = luda_tensor_data(t);
    size_t bytes = (size_t)luda_tensor_numel(t) * (size_t)luda_dtype_size(luda_tensor_dtype(t));
    for (size_t i = 0; i < bytes; i++)
        *digest = (*digest ^ at[i]) * 0x100000001B3u;
}

/* What element i of a result must be; a row has `columns`. */
typedef struct truth {
    luda_dtype dtype;
    luda_reduction reduction;
    int size, rank, from; /* from: rank whose values these are, -1: all ranks' reduction */
    int64_t rows, columns, first; /* the first is element `first` of that rank's row of `width` */
    int64_t width;
} truth;

static int64_t differences(luda_tensor *t, const truth *e, int64_t start)
{
    int64_t n = luda_tensor_numel(t), columns = luda_tensor_shape(t)[luda_tensor_ndim(t) - 1], wrong = 0;
    double *got = malloc((size_t)n * sizeof *got);
    EXPECT_OK(luda_tensor_read(t, LUDA_F64, got, n));
    for (int64_t row = 0; row < e->rows; row++)
        for (int64_t c = 0; c < e->columns; c++) {
            int64_t i = row * e->width + e->first + c;
            double x = e->from < 0 ? expected(e->reduction, e->dtype, e->size, i) : entry(e->dtype, e->from, i);
            wrong += !(fabs(got[row * columns + start + c] - x) <= (e->from < 0 ? tolerance(e->dtype, x) : 0));
        }
    free(got);
    return wrong;
}

static luda_tensor *make(luda_dtype dtype, int rank, int ndim, const int64_t *shape)
{
    int64_t n = ndim == 1 ? shape[0] : shape[0] * shape[1];
    double *values = malloc((size_t)n * sizeof *values);
    luda_tensor *t;
    for (int64_t i = 0; i < n; i++)
        values[i] = entry(dtype, rank, i);
    t = filled(dtype, ndim, shape, values);
    free(values);
    return t;
}

static void reductions(luda_comm *comm, int rank, luda_dtype dtype, int64_t n, uint64_t *digest)
{
    int size = luda_comm_size(comm), root = size - 1;
    luda_tensor *x = make(dtype, rank, 1, &n), *y = NULL;
    for (int op = 0; op < LUDA_REDUCE_COUNT; op++) {
        truth e = { dtype, (luda_reduction)op, size, rank, -1, 1, n, 0, n };
        if (!offered((luda_reduction)op, dtype) || (n > 1000 && op != LUDA_REDUCE_SUM && op != LUDA_REDUCE_MAX))
            continue;
        EXPECT_OK(luda_comm_all_reduce(comm, x, (luda_reduction)op, NULL, &y));
        EXPECT(differences(y, &e, 0) == 0);
        fold(digest, y);
        luda_tensor_release(y);
        EXPECT_OK(luda_comm_reduce(comm, x, (luda_reduction)op, root, NULL, &y));
        EXPECT((y != NULL) == (rank == root));
        if (y) {
            EXPECT(differences(y, &e, 0) == 0);
            fold(digest, y);
            luda_tensor_release(y);
        }
    }
    luda_tensor_release(x);
}

/* [rows, size * k] in all ways along the second axis. */
static void pieces(luda_comm *comm, int rank, luda_dtype dtype, int64_t rows, int64_t k, uint64_t *digest)
{
    luda_comm_options along = { .size = sizeof along, .dim = 1 };
    int size = luda_comm_size(comm), root = size / 2;
    int64_t whole[] = { rows, size * k }, part[] = { rows, k };
    luda_tensor *x = make(dtype, rank, 2, whole), *p = make(dtype, rank, 2, part), *y = NULL;
    truth e = { dtype, LUDA_REDUCE_MAX, size, rank, -1, rows, k, rank * k, size * k };

    EXPECT_OK(luda_comm_reduce_scatter(comm, x, LUDA_REDUCE_MAX, &along, &y));
    EXPECT(differences(y, &e, 0) == 0);
    fold(digest, y);
    luda_tensor_release(y);

    EXPECT_OK(luda_comm_scatter(comm, rank == root ? x : NULL, root, &along, &y));
    e.from = root;
    EXPECT(differences(y, &e, 0) == 0);
    luda_tensor_release(y);

    EXPECT_OK(luda_comm_all_to_all(comm, x, &along, &y));
    for (e.from = 0; e.from < size; e.from++)
        EXPECT(differences(y, &e, e.from * k) == 0);
    fold(digest, y);
    luda_tensor_release(y);

    e.first = 0;
    e.width = k;
    EXPECT_OK(luda_comm_all_gather(comm, p, &along, &y));
    for (e.from = 0; e.from < size; e.from++)
        EXPECT(differences(y, &e, e.from * k) == 0);
    luda_tensor_release(y);
    EXPECT_OK(luda_comm_gather(comm, p, root, &along, &y));
    EXPECT((y != NULL) == (rank == root));
    for (e.from = 0; y && e.from < size; e.from++)
        EXPECT(differences(y, &e, e.from * k) == 0);
    luda_tensor_release(y);

    EXPECT_OK(luda_comm_broadcast(comm, rank == root ? p : NULL, -1, NULL, &y));
    e.from = root;
    EXPECT(differences(y, &e, 0) == 0);
    fold(digest, y);
    luda_tensor_release(y);
    luda_tensor_release(x);
    luda_tensor_release(p);
}

/* Values that round: the order of the sums shows in the bits. */
static void rounding(luda_comm *comm, int rank, luda_dtype dtype, int64_t n, uint64_t *digest)
{
    double *values = malloc((size_t)n * sizeof *values);
    luda_tensor *x, *y = NULL;
    for (int64_t i = 0; i < n; i++)
        values[i] = sin((double)(i * 31 + rank * 17)) * pow(10, (double)(rank - 1));
    x = vector(dtype, n, values);
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_MEAN, NULL, &y));
    fold(digest, y);
    luda_tensor_release(y);
    EXPECT_OK(luda_comm_all_reduce_into(comm, x, LUDA_REDUCE_SUM, NULL));
    fold(digest, x);
    luda_tensor_release(x);
    free(values);
}

static void sweep(luda_comm *comm, int rank, void *digests)
{
    uint64_t *digest = (uint64_t *)digests + rank;
    *digest = 1;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int d = 0; d < LUDA_DTYPE_COUNT; d++) {
            if (lengths[i] > 1000 && d != LUDA_F32 && (lengths[i] > 10000 * FEW || (d != LUDA_BF16 && d != LUDA_I64)))
                continue;
            reductions(comm, rank, (luda_dtype)d, lengths[i], digest);
            pieces(comm, rank, (luda_dtype)d, 3, (lengths[i] + 2) / 3, digest);
            if (d <= LUDA_BF16)
                rounding(comm, rank, (luda_dtype)d, lengths[i], digest);
        }
    EXPECT_OK(luda_comm_barrier(comm, NULL));
}

/* --- What a rank process does --- */

static void values_in_process(luda_comm *comm, int rank)
{
    uint64_t digests[MOST];
    EXPECT(mappings() == 1);
    sweep(comm, rank, digests);
    EXPECT(write(STDIN_FILENO, (uint64_t[]){ digests[rank], (uint64_t)rank }, 16) == 16);
}

/* One rank refuses, and nobody has it. */
static void refused(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank), *y = NULL;
    EXPECT(mappings() == 0);
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_MAX, NULL, &y));
    EXPECT(item(y, 0) == luda_comm_size(comm) - 1);
    luda_tensor_release(y);
    EXPECT_OK(luda_comm_empty(comm, LUDA_F32, 1, (int64_t[]){ 5 }, NULL, &y));
    EXPECT(mappings() == 0);
    luda_tensor_release(y);
    luda_tensor_release(x);
}

static luda_tensor *common(luda_comm *comm, int64_t n, double x)
{
    luda_tensor *t = NULL;
    EXPECT_OK(luda_comm_empty(comm, LUDA_F32, 1, &n, NULL, &t));
    for (int64_t i = 0; i < n; i++)
        ((float *)luda_tensor_data(t))[i] = (float)(x + (double)(i % 3));
    return t;
}

static int64_t unlike(luda_tensor *t, double x, double step)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < luda_tensor_numel(t); i++)
        wrong += ((float *)luda_tensor_data(t))[i] != (float)(x + step * (double)(i % 3));
    return wrong;
}

static void tensors_in_common(luda_comm *comm, int rank)
{
    int size = luda_comm_size(comm), all = size * (size - 1) / 2;
    int64_t n = 100003, odd = rank == 1 ? 4 : 3;
    luda_tensor *t = common(comm, n, rank), *other, *y = NULL;
    EXPECT(mappings() == 2);
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(luda_comm_all_reduce_into(comm, t, LUDA_REDUCE_SUM, NULL));
        EXPECT(unlike(t, all, size) == 0);
        for (int64_t k = 0; k < n; k++)
            ((float *)luda_tensor_data(t))[k] = (float)(rank + k % 3);
    }
    /* Tensors of different calls; not in place, where the largest is rank 0's sum. */
    other = common(comm, n, rank);
    EXPECT_OK(luda_comm_all_reduce_into(comm, rank == 0 ? t : other, LUDA_REDUCE_SUM, NULL));
    EXPECT(unlike(rank == 0 ? t : other, all, size) == 0);
    luda_tensor_release(other);
    EXPECT(mappings() == 2);
    EXPECT_OK(luda_comm_all_reduce(comm, t, LUDA_REDUCE_MAX, NULL, &y));
    EXPECT(unlike(y, all, size) == 0);
    luda_tensor_release(y);
    /* A disagreement changes nothing. */
    for (int64_t k = 0; k < n; k++)
        ((float *)luda_tensor_data(t))[k] = 1;
    EXPECT_STATUS(LUDA_EMISMATCH, luda_comm_all_reduce_into(comm, t, rank == 1 ? LUDA_REDUCE_MAX : LUDA_REDUCE_SUM, NULL));
    EXPECT(unlike(t, 1, 0) == 0);
    EXPECT_STATUS(LUDA_EMISMATCH, luda_comm_empty(comm, LUDA_F32, 1, &odd, NULL, &y));
    /* Operators work on it, and it outlives the communicator. */
    EXPECT_OK(luda_comm_all_reduce_into(comm, t, LUDA_REDUCE_SUM, NULL));
    luda_comm_close(comm);
    EXPECT(unlike(t, size, 0) == 0);
    EXPECT_OK(luda_apply(LUDA_OP_add, (luda_tensor *[]){ t, t }, 2, NULL, &y));
    EXPECT(unlike(y, 2 * size, 0) == 0);
    luda_tensor_release(y);
    luda_tensor_release(t);
    EXPECT(mappings() == 1);
}

static void killed_in_common(luda_comm *comm, int rank)
{
    luda_tensor *t = common(comm, BIG, rank);
    until(comm, t, true, LUDA_ALGORITHM_DIRECT, LUDA_EPEER, LOST);
    EXPECT_STATUS(LUDA_EPEER, luda_comm_barrier(comm, NULL));
    expect_only_blames(comm, LOST);
    luda_tensor_release(t);
}

static void stopped_in_common(luda_comm *comm, int rank)
{
    luda_tensor *t = common(comm, BIG, rank);
    until(comm, t, true, LUDA_ALGORITHM_DIRECT, LUDA_ETIMEOUT, LOST);
    luda_tensor_release(t);
}

static void killed(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank);
    until(comm, x, false, LUDA_ALGORITHM_DIRECT, LUDA_EPEER, LOST);
    EXPECT_STATUS(LUDA_EPEER, luda_comm_barrier(comm, NULL));
    luda_tensor_release(x);
}

static void stopped(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank);
    until(comm, x, false, LUDA_ALGORITHM_DIRECT, LUDA_ETIMEOUT, LOST);
    luda_tensor_release(x);
}

/* Disagreement and late ranks, between calls that work. */
static void trouble(luda_comm *comm, int rank)
{
    luda_comm_options soon = { .size = sizeof soon, .timeout = 0.3 };
    luda_tensor *x = one(rank + 1.0), *y = NULL;
    int size = luda_comm_size(comm);
    for (int round = 0; round < 3; round++) {
        EXPECT_STATUS(LUDA_EMISMATCH,
                      luda_comm_all_reduce(comm, x, rank == round ? LUDA_REDUCE_MAX : LUDA_REDUCE_SUM, NULL, &y));
        expect_only_blames(comm, round);
        EXPECT(strcmp(luda_comm_difference(comm), "reduction") == 0);
        EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
        EXPECT(item(y, 0) == size * (size + 1) / 2);
        luda_tensor_release(y);
        if (rank == round)
            pause_ms(800);
        EXPECT_STATUS(LUDA_ETIMEOUT, luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, &soon, &y));
        expect_only_blames(comm, round);
        EXPECT_OK(luda_comm_barrier(comm, NULL));
    }
    luda_tensor_release(x);
}

static const scenario scenarios[] = { { "values", values_in_process },
                                      { "refused", refused },
                                      { "tensors", tensors_in_common },
                                      { "killed", killed },
                                      { "killed_in_common", killed_in_common },
                                      { "stopped", stopped },
                                      { "stopped_in_common", stopped_in_common },
                                      { "trouble", trouble },
                                      { NULL, NULL } };

/* --- All of it --- */

/* Threads over sockets, over memory and as threads of one board, and processes: the same bits. */
static void test_values(int size)
{
    uint64_t digests[CARRIERS][MOST], seen[MOST][2];
    for (int carrier = 0; carrier < CARRIERS; carrier++) {
        if (carrier == COURIER)
            continue;
        run_over(carrier, size, sweep, digests[carrier]);
        for (int r = 0; r < size; r++)
            EXPECT(digests[carrier][r] == digests[LOCAL][r]);
    }
    reports = seen;
    report_bytes = (size_t)size * sizeof *seen;
    run_processes("values", size, 0, 0);
    reports = NULL;
    for (int r = 0; r < size; r++)
        EXPECT(seen[r][1] < (uint64_t)size && seen[r][0] == digests[LOCAL][seen[r][1] % MOST]);
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc == 7 && strcmp(argv[1], "rank") == 0) {
        if (strcmp(argv[2], "refused") == 0 && strcmp(argv[3], "1") == 0)
            setenv("LUDA_LANE", "off", 1);
        return run_as_rank(argv, scenarios);
    }
    for (int size = 2; size <= 4; size++)
        test_values(size);
    EXPECT(mappings() == 0);
    run_processes("refused", 3, 0, 0);
    run_processes("tensors", 2, 0, 0);
    run_processes("tensors", 4, 0, 0);
    run_processes("trouble", 4, 0, 0);
    for (int i = 0; i < FEW; i++) {
        run_processes("killed", 4, 3 + 35 * i, SIGKILL);
        run_processes("killed_in_common", 4, 2 + 20 * i, SIGKILL);
    }
    run_processes("stopped", 4, 10, SIGSTOP);
    run_processes("stopped_in_common", 4, 10, SIGSTOP);
    return summary("collective lane");
}
