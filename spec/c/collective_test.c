/*
 * Collectives between rank threads: values, agreement, deadlines, lost ranks, gradients. Every part runs on the shared
 * memory of `local`, on a transport of messages that a third party could have written, and over TCP.
 */
#include "collective_ranks.h"

/* --- Values --- */

static const int64_t counts[] = { 0, 1, 3, 5, 257 };

static luda_tensor *rank_tensor(luda_dtype dtype, int rank, int64_t n)
{
    double values[257];
    for (int64_t i = 0; i < n; i++)
        values[i] = entry(dtype, rank, i);
    return vector(dtype, n, values);
}

static void check_all_reduce(luda_comm *comm, int rank, luda_dtype dtype, luda_reduction reduction,
                             luda_algorithm algorithm, int64_t n)
{
    luda_comm_options options = { .size = sizeof options, .algorithm = (int32_t)algorithm };
    luda_tensor *x = rank_tensor(dtype, rank, n), *before = rank_tensor(dtype, rank, n), *y = NULL;
    EXPECT_OK(luda_comm_all_reduce(comm, x, reduction, &options, &y));
    EXPECT(y && luda_tensor_dtype(y) == dtype && luda_tensor_numel(y) == n);
    for (int64_t i = 0; i < n; i++) {
        double right = expected(reduction, dtype, luda_comm_size(comm), i);
        EXPECT_NEAR(item(y, i), right, tolerance(dtype, right));
    }
    if (n > 0)
        EXPECT(memcmp(luda_tensor_data(x), luda_tensor_data(before), (size_t)(n * luda_dtype_size(dtype))) == 0);
    luda_tensor_release(x);
    luda_tensor_release(before);
    luda_tensor_release(y);
}

static void all_reduces(luda_comm *comm, int rank, void *arg)
{
    for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++)
        for (int reduction = 0; reduction < LUDA_REDUCE_COUNT; reduction++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                if (offered((luda_reduction)reduction, (luda_dtype)dtype))
                    check_all_reduce(comm, rank, (luda_dtype)dtype, (luda_reduction)reduction,
                                     c % 2 ? LUDA_ALGORITHM_DIRECT : LUDA_ALGORITHM_AUTO, counts[c]);
    for (int algorithm = LUDA_ALGORITHM_RING; algorithm < LUDA_ALGORITHM_AUTO; algorithm++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            check_all_reduce(comm, rank, LUDA_F32, LUDA_REDUCE_SUM, (luda_algorithm)algorithm, counts[c]);
            check_all_reduce(comm, rank, LUDA_BF16, LUDA_REDUCE_MEAN, (luda_algorithm)algorithm, counts[c]);
            check_all_reduce(comm, rank, LUDA_I8, LUDA_REDUCE_PROD, (luda_algorithm)algorithm, counts[c]);
        }
}

/* Values whose float sum depends on the order. Bits: in rank order for direct; equal on all ranks for every algorithm. */
typedef struct bits { float sum[LUDA_ALGORITHM_COUNT][MOST][257], mean[MOST][257]; } bits;

static float awkward(int r, int i)
{
    return (float)(sin(i * 12.9898 + r * 78.233) * pow(10, (i + r) % 7 - 3));
}

static void sum_awkward(luda_comm *comm, int rank, void *arg)
{
    bits *b = arg;
    for (int algorithm = LUDA_ALGORITHM_DIRECT; algorithm < LUDA_ALGORITHM_AUTO; algorithm++) {
        luda_comm_options options = { .size = sizeof options, .algorithm = algorithm };
        double values[257];
        for (int i = 0; i < 257; i++)
            values[i] = awkward(rank, i);
        luda_tensor *x = vector(LUDA_F32, 257, values), *mean;
        EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_MEAN, NULL, &mean));
        memcpy(b->mean[rank], luda_tensor_data(mean), sizeof b->mean[rank]);
        luda_tensor_release(mean);
        EXPECT_OK(luda_comm_all_reduce_into(comm, x, LUDA_REDUCE_SUM, &options));
        memcpy(b->sum[algorithm][rank], luda_tensor_data(x), sizeof b->sum[algorithm][rank]);
        luda_tensor_release(x);
    }
}

static void test_bits(void)
{
    static bits local, others[CARRIERS];
    for (int size = 2; size <= MOST; size++) {
        memset(&local, 0, sizeof local);
        for (int carrier = 0; carrier < CARRIERS; carrier++)
            run_over(carrier, size, sum_awkward, carrier == LOCAL ? &local : &others[carrier]);
        for (int i = 0; i < 257; i++) {
            float sum = awkward(0, i);
            for (int r = 1; r < size; r++)
                sum += awkward(r, i);
            EXPECT(local.sum[LUDA_ALGORITHM_DIRECT][0][i] == sum);
            EXPECT(local.sum[LUDA_ALGORITHM_CENTRALIZED][0][i] == sum);
            EXPECT(local.mean[size - 1][i] == sum / (float)size);
        }
        for (int a = LUDA_ALGORITHM_DIRECT; a < LUDA_ALGORITHM_AUTO; a++)
            for (int r = 0; r < size; r++) {
                EXPECT(memcmp(local.sum[a][r], local.sum[a][0], sizeof local.sum[a][0]) == 0);
                for (int carrier = COURIER; carrier < CARRIERS; carrier++)
                    EXPECT(memcmp(others[carrier].sum[a][r], local.sum[a][0], sizeof local.sum[a][0]) == 0);
            }
    }
}

/* Averages and accumulation in known corners. */
static void corners(luda_comm *comm, int rank, void *arg)
{
    const double small[] = { 256, 1, 1, 1 }, half = 40000;
    const int64_t odd = 9007199254740993, scalar = 1;
    luda_tensor *x, *y, *z = NULL;
    int64_t exact = 0;

    x = vector(LUDA_F16, 1, &half);
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_MEAN, NULL, &y));
    EXPECT_NEAR(item(y, 0), 40000, 0);
    luda_tensor_release(x);
    luda_tensor_release(y);
    /* 259 lies between the bf16 numbers 258 and 260; 256 + 1 would stay 256. */
    x = vector(LUDA_BF16, 1, &small[rank]);
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
    EXPECT_NEAR(item(y, 0), 260, 0);
    luda_tensor_release(x);
    luda_tensor_release(y);
    EXPECT_OK(luda_tensor_new(LUDA_I64, cpu, 1, &scalar, &x));
    EXPECT_OK(luda_tensor_write(x, LUDA_I64, &odd, 1));
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_MAX, NULL, &y));
    EXPECT_OK(luda_tensor_get_i64(y, 0, &exact));
    EXPECT(exact == odd);
    luda_tensor_release(y);
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
    EXPECT_OK(luda_tensor_get_i64(y, 0, &exact));
    EXPECT(exact == 4 * odd);
    luda_tensor_release(y);
    EXPECT_STATUS(LUDA_EDTYPE, luda_comm_all_reduce(comm, x, LUDA_REDUCE_MEAN, NULL, &z));
    EXPECT(z == NULL);
    luda_tensor_release(x);
    x = vector(LUDA_F32, 1, rank == 2 ? (double[]){ NAN } : (double[]){ 1 });
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_MIN, NULL, &y));
    EXPECT(isnan(item(y, 0)));
    luda_tensor_release(x);
    luda_tensor_release(y);
}

/* Element [o, k, i] of rank r's [2, k, 3] tensor says where it comes from. */
static luda_tensor *labelled(int rank, int64_t length)
{
    double values[2 * 10 * 3];
    for (int64_t i = 0; i < 2 * length * 3; i++)
        values[i] = rank * 1000 + (double)i;
    /* Handed over transposed, so that the input is strided. */
    luda_tensor *t = filled(LUDA_I32, 3, (int64_t[]){ 2, length, 3 }, values), *copy, *view;
    EXPECT_OK(luda_transpose(t, &(struct luda_transpose_attrs){ .dim0 = 0, .dim1 = 2 }, &view));
    EXPECT_OK(luda_contiguous(view, &copy));
    luda_tensor_release(view);
    EXPECT_OK(luda_transpose(copy, &(struct luda_transpose_attrs){ .dim0 = 0, .dim1 = 2 }, &view));
    EXPECT(!luda_tensor_is_contiguous(view) || length == 0);
    luda_tensor_release(copy);
    luda_tensor_release(t);
    return view;
}

static double label(int rank, int64_t length, int64_t o, int64_t k, int64_t i)
{
    return rank * 1000 + (double)((o * length + k) * 3 + i);
}

static void movements(luda_comm *comm, int rank, void *arg)
{
    int size = luda_comm_size(comm), root = size - 1;
    luda_tensor *piece = labelled(rank, 2), *whole = labelled(rank, 2 * size), *y = NULL;
    luda_comm_options along = { .size = sizeof along, .dim = -2 };

    for (int ring = 0; ring < 2; ring++) {
        luda_comm_options by = { .size = sizeof by, .dim = 1, .algorithm = ring ? LUDA_ALGORITHM_RING : 0 };
        EXPECT_OK(luda_comm_all_gather(comm, piece, &by, &y));
        EXPECT(luda_tensor_shape(y)[1] == 2 * size);
        for (int64_t e = 0; e < luda_tensor_numel(y); e++)
            EXPECT(item(y, e) == label((int)(e / 3 % (2 * size) / 2), 2, e / 3 / (2 * size), e / 3 % 2, e % 3));
        luda_tensor_release(y);
    }
    EXPECT_OK(luda_comm_gather(comm, piece, root, &along, &y));
    EXPECT((y != NULL) == (rank == root));
    for (int64_t e = 0; y && e < luda_tensor_numel(y); e++)
        EXPECT(item(y, e) == label((int)(e / 3 % (2 * size) / 2), 2, e / 3 / (2 * size), e / 3 % 2, e % 3));
    luda_tensor_release(y);
    EXPECT_OK(luda_comm_scatter(comm, rank == root ? whole : NULL, root, &along, &y));
    for (int64_t e = 0; e < 2 * 2 * 3; e++)
        EXPECT(item(y, e) == label(root, 2 * size, e / 6, 2 * rank + e / 3 % 2, e % 3));
    luda_tensor_release(y);
    EXPECT_OK(luda_comm_all_to_all(comm, whole, &along, &y));
    for (int64_t e = 0; e < luda_tensor_numel(y); e++)
        EXPECT(item(y, e) ==
               label((int)(e / 3 % (2 * size) / 2), 2 * size, e / 3 / (2 * size), 2 * rank + e / 3 % 2, e % 3));
    luda_tensor_release(y);
    EXPECT_OK(luda_comm_reduce_scatter(comm, whole, LUDA_REDUCE_SUM, &along, &y));
    for (int64_t e = 0; e < 2 * 2 * 3; e++)
        EXPECT(item(y, e) ==
               1000.0 * size * (size - 1) / 2 + size * label(0, 2 * size, e / 6, 2 * rank + e / 3 % 2, e % 3));
    luda_tensor_release(y);
    for (int tree = 0; tree < 2; tree++) {
        luda_comm_options by = { .size = sizeof by, .algorithm = tree ? LUDA_ALGORITHM_TREE : 0 };
        EXPECT_OK(luda_comm_reduce(comm, piece, LUDA_REDUCE_MAX, root, &by, &y));
        EXPECT((y != NULL) == (rank == root));
        for (int64_t e = 0; y && e < 12; e++)
            EXPECT(item(y, e) == label(root, 2, e / 6, e / 3 % 2, e % 3));
        luda_tensor_release(y);
        EXPECT_OK(luda_comm_broadcast(comm, rank == root ? piece : NULL, tree ? -1 : root, &by, &y));
        EXPECT(luda_tensor_ndim(y) == 3 && luda_tensor_dtype(y) == LUDA_I32);
        for (int64_t e = 0; e < 12; e++)
            EXPECT(item(y, e) == label(root, 2, e / 6, e / 3 % 2, e % 3));
        luda_tensor_release(y);
    }
    /* In place on a strided tensor. */
    EXPECT_OK(luda_comm_all_reduce_into(comm, piece, LUDA_REDUCE_MIN, NULL));
    for (int64_t e = 0; e < 12; e++)
        EXPECT(item(piece, e) == label(0, 2, e / 6, e / 3 % 2, e % 3));
    luda_tensor_release(piece);
    luda_tensor_release(whole);
    piece = labelled(rank, 0);
    EXPECT_OK(luda_comm_all_gather(comm, piece, &along, &y));
    EXPECT(luda_tensor_numel(y) == 0 && luda_tensor_shape(y)[1] == 0);
    luda_tensor_release(y);
    luda_tensor_release(piece);
    EXPECT_OK(luda_comm_barrier(comm, NULL));
}

/* A slice larger than what travels at once, with a tail. */
static void large(luda_comm *comm, int rank, void *arg)
{
    int64_t n = 3 * 700001;
    luda_tensor *x, *y;
    EXPECT_OK(luda_tensor_new(LUDA_F32, cpu, 1, &n, &x));
    for (int64_t i = 0; i < n; i++)
        ((float *)luda_tensor_data(x))[i] = (float)((i % 1001) * (rank + 1));
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++)
        wrong += ((float *)luda_tensor_data(y))[i] != (float)((i % 1001) * 6);
    EXPECT(wrong == 0);
    luda_tensor_release(x);
    luda_tensor_release(y);
}

/* Calls of every kind in a row, ranks delayed at random: a fast rank is one call ahead of a slow one. */
static void many_calls(luda_comm *comm, int rank, void *arg)
{
    uint32_t dice = (uint32_t)rank * 2654435761u + 1;
    for (int call = 0; call < 300; call++) {
        double mine = call * 10 + rank;
        luda_tensor *x = one(mine), *y = NULL;
        int root = call % luda_comm_size(comm);
        dice = dice * 1664525u + 1013904223u;
        if (dice >> 28 == 0)
            usleep(dice >> 20 & 1023);
        if (call % 3 == 0) {
            EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_MAX, NULL, &y));
            EXPECT(item(y, 0) == call * 10 + luda_comm_size(comm) - 1);
        } else if (call % 3 == 1) {
            EXPECT_OK(luda_comm_reduce(comm, x, LUDA_REDUCE_MIN, root, NULL, &y));
            EXPECT(rank == root ? item(y, 0) == call * 10 : y == NULL);
        } else {
            EXPECT_OK(luda_comm_broadcast(comm, rank == root ? x : NULL, root, NULL, &y));
            EXPECT(item(y, 0) == call * 10 + root);
        }
        luda_tensor_release(x);
        luda_tensor_release(y);
    }
}

static void messages(luda_comm *comm, int rank, void *arg)
{
    luda_comm_options tag1 = { .size = sizeof tag1, .tag = 1 }, soon = { .size = sizeof soon, .timeout = 0.1 };
    int32_t culprit = -1;
    luda_tensor *a = one(10 + rank), *b = one(20 + rank), *y = NULL,
                *none = filled(LUDA_I16, 2, (int64_t[]){ 0, 3 }, NULL);
    int other = 1 - rank;
    /* Both send before either receives; tags are fetched in another order. */
    EXPECT_OK(luda_comm_send(comm, a, other, NULL));
    EXPECT_OK(luda_comm_send(comm, b, other, &tag1));
    EXPECT_OK(luda_comm_send(comm, none, other, NULL));
    EXPECT_OK(luda_comm_send(comm, b, rank, NULL));
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    EXPECT_OK(luda_comm_recv(comm, other, &tag1, &y));
    EXPECT(item(y, 0) == 20 + other);
    luda_tensor_release(y);
    EXPECT_OK(luda_comm_recv(comm, other, NULL, &y));
    EXPECT(item(y, 0) == 10 + other);
    luda_tensor_release(y);
    EXPECT_OK(luda_comm_recv(comm, other, NULL, &y));
    EXPECT(luda_tensor_dtype(y) == LUDA_I16 && luda_tensor_shape(y)[1] == 3);
    luda_tensor_release(y);
    EXPECT_OK(luda_comm_recv(comm, rank, NULL, &y));
    EXPECT(item(y, 0) == 20 + rank);
    luda_tensor_release(y);
    EXPECT_STATUS(LUDA_ETIMEOUT, luda_comm_recv(comm, other, &soon, &y));
    EXPECT(luda_comm_culprits(comm, &culprit, 1) == 1 && culprit == other);
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    luda_tensor_release(a);
    luda_tensor_release(b);
    luda_tensor_release(none);
}

/* Sums go in rank order whatever carries them, also where all bytes go to everybody: in the other order the 1 is lost. */
static void rank_order(luda_comm *comm, int rank, void *arg)
{
    static const double brings[4] = { 1e8, -1e8, 1, 0 };
    static const int64_t lengths[] = { 1, 3, 255, 257, 5001 };
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        int64_t n = lengths[k], wrong = 0;
        luda_tensor *x, *sum = NULL, *there = NULL;
        EXPECT_OK(luda_tensor_new(LUDA_F32, cpu, 1, &n, &x));
        for (int64_t i = 0; i < n; i++)
            ((float *)luda_tensor_data(x))[i] = (float)brings[rank];
        EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &sum));
        EXPECT_OK(luda_comm_reduce(comm, x, LUDA_REDUCE_SUM, 1, NULL, &there));
        EXPECT_OK(luda_comm_all_reduce_into(comm, x, LUDA_REDUCE_SUM, NULL));
        for (int64_t i = 0; i < n; i++)
            wrong += ((float *)luda_tensor_data(sum))[i] != 1 || ((float *)luda_tensor_data(x))[i] != 1 ||
                     (there && ((float *)luda_tensor_data(there))[i] != 1);
        EXPECT(wrong == 0 && (there != NULL) == (rank == 1));
        luda_tensor_release(x);
        luda_tensor_release(sum);
        luda_tensor_release(there);
    }
}

int main(void)
{
    luda_memory_info before, after;
    luda_tensor *warm = one(1);
    luda_tensor_release(warm);
    EXPECT_OK(luda_memory(cpu, &before));
    for (int size = 1; size <= MOST; size++) {
        run_everywhere(size, all_reduces, NULL);
        run_everywhere(size, movements, NULL);
        run_everywhere(size, many_calls, NULL);
    }
    test_bits();
    run_everywhere(4, corners, NULL);
    run_everywhere(4, rank_order, NULL);
    run_everywhere(3, large, NULL);
    run_everywhere(2, messages, NULL);
    EXPECT_OK(luda_memory(cpu, &after));
    EXPECT(after.tensors == before.tensors);
    return summary("collective");
}
