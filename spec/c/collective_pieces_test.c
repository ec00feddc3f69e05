/*
 * Pieces of different lengths, and every algorithm of every operation: element by element against labels that say where a
 * value comes from, over all carriers. Messages of several parts; trees of arity 1 to more than there are ranks.
 */
#include "collective_ranks.h"

enum { OUTER = 2, INNER = 3 };

/* Element [o, k, i] of rank r's tensor [OUTER, length, INNER]. */
static double label(int r, int64_t length, int64_t o, int64_t k, int64_t i)
{
    return r * 1000 + (double)((o * length + k) * INNER + i);
}

/* Strided: it is handed over as a transposed view. */
static luda_tensor *labelled(int r, int64_t length)
{
    double values[OUTER * INNER * 40];
    luda_tensor *t, *view;
    int64_t n = 0;
    for (int64_t i = 0; i < INNER; i++)
        for (int64_t k = 0; k < length; k++)
            for (int64_t o = 0; o < OUTER; o++)
                values[n++] = label(r, length, o, k, i);
    t = filled(LUDA_I32, 3, (int64_t[]){ INNER, length, OUTER }, values);
    EXPECT_OK(luda_transpose(t, &(struct luda_transpose_attrs){ .dim0 = 0, .dim1 = 2 }, &view));
    luda_tensor_release(t);
    return view;
}

static int64_t sum(const int64_t *sizes, int count)
{
    int64_t all = 0;
    for (int q = 0; q < count; q++)
        all += sizes[q];
    return all;
}

/* y is rank r's rows [from, from + length) of its `whole` rows, at `place` in y's rows. */
static void expect_rows(const luda_tensor *y, int64_t place, int64_t length, int r, int64_t whole, int64_t from,
                        double plus, double times)
{
    int64_t rows = luda_tensor_shape(y)[1], wrong = 0;
    for (int64_t o = 0; o < OUTER; o++)
        for (int64_t k = 0; k < length; k++)
            for (int64_t i = 0; i < INNER; i++)
                wrong += item(y, (o * rows + place + k) * INNER + i) != plus + times * label(r, whole, o, from + k, i);
    EXPECT(wrong == 0);
}

static void joined(luda_comm *comm, int rank, const int64_t *sizes, const luda_comm_options *by, int root)
{
    int size = luda_comm_size(comm);
    luda_tensor *x = labelled(rank, sizes[rank]), *y = NULL;
    int64_t place = 0;
    if (root < 0)
        EXPECT_OK(luda_comm_all_gather(comm, x, by, &y));
    else
        EXPECT_OK(luda_comm_gather(comm, x, root, by, &y));
    EXPECT((y != NULL) == (root < 0 || root == rank));
    if (y) {
        EXPECT(luda_tensor_shape(y)[0] == OUTER && luda_tensor_shape(y)[1] == sum(sizes, size));
        for (int q = 0; q < size; place += sizes[q++])
            expect_rows(y, place, sizes[q], q, sizes[q], 0, 0, 1);
    }
    luda_tensor_release(x);
    luda_tensor_release(y);
}

static void cut(luda_comm *comm, int rank, const int64_t *sizes, const luda_comm_options *by, int root)
{
    int size = luda_comm_size(comm);
    int64_t all = sum(sizes, size), from = sum(sizes, rank);
    luda_tensor *x = labelled(rank, all), *y = NULL;
    if (root < 0) {
        EXPECT_OK(luda_comm_reduce_scatter(comm, x, LUDA_REDUCE_SUM, by, &y));
        if (y) /* the sum of rank * 1000 + c over ranks */
            expect_rows(y, 0, sizes[rank], 0, all, from, 1000.0 * size * (size - 1) / 2, size);
    } else {
        EXPECT_OK(luda_comm_scatter(comm, rank == root ? x : NULL, root, by, &y));
        if (y)
            expect_rows(y, 0, sizes[rank], root, all, from, 0, 1);
    }
    EXPECT(y && luda_tensor_shape(y)[1] == sizes[rank]);
    luda_tensor_release(x);
    luda_tensor_release(y);
}

static const struct { luda_algorithm algorithm; int arity; } ways[] = {
    { LUDA_ALGORITHM_DIRECT, 0 }, { LUDA_ALGORITHM_RING, 0 }, { LUDA_ALGORITHM_HALVING, 0 },
    { LUDA_ALGORITHM_CENTRALIZED, 0 }, { LUDA_ALGORITHM_AUTO, 0 }, { LUDA_ALGORITHM_TREE, 1 },
    { LUDA_ALGORITHM_TREE, 2 }, { LUDA_ALGORITHM_TREE, 3 }, { LUDA_ALGORITHM_TREE, 9 },
};
enum { WAYS = sizeof ways / sizeof *ways };

static bool rooted_way(int w)
{
    return ways[w].algorithm != LUDA_ALGORITHM_RING && ways[w].algorithm != LUDA_ALGORITHM_HALVING;
}

static bool everywhere_way(int w)
{
    return ways[w].algorithm != LUDA_ALGORITHM_TREE && ways[w].algorithm != LUDA_ALGORITHM_CENTRALIZED;
}

static void pieces(luda_comm *comm, int rank, void *arg)
{
    static const int64_t table[][MOST] = { { 3, 0, 5, 1, 2 }, { 0, 0, 0, 0, 0 }, { 0, 7, 0, 0, 0 }, { 2, 2, 2, 2, 2 } };
    int size = luda_comm_size(comm);
    for (size_t t = 0; t < sizeof table / sizeof *table; t++)
        for (int w = 0; w < WAYS; w++) {
            luda_comm_options by = { .size = sizeof by, .dim = w % 2 ? 1 : -2, .sizes = table[t], .pieces = size,
                                     .algorithm = (int32_t)ways[w].algorithm, .arity = ways[w].arity };
            luda_comm_options even = by;
            even.sizes = NULL;
            for (int root = -1; root < size; root++)
                if (root < 0 ? everywhere_way(w) : rooted_way(w)) {
                    joined(comm, rank, table[t], &by, root);
                    cut(comm, rank, table[t], &by, root);
                    if (t == 3) { /* the same lengths without saying so */
                        joined(comm, rank, table[t], &even, root);
                        cut(comm, rank, table[t], &even, root);
                    }
                }
        }
}

/* What rank r sends to rank q. */
static int64_t sent(int r, int q)
{
    return (r * 3 + q * 5 + r * q) % 4;
}

static void exchanges(luda_comm *comm, int rank, void *arg)
{
    int size = luda_comm_size(comm);
    int64_t sizes[MOST], received[MOST];
    for (int q = 0; q < size; q++) {
        sizes[q] = sent(rank, q);
        received[q] = sent(q, rank);
    }
    for (int given = 0; given < 2; given++) {
        luda_comm_options by = { .size = sizeof by, .dim = 1, .sizes = sizes, .pieces = size };
        luda_tensor *x = labelled(rank, sum(sizes, size)), *y = NULL;
        int64_t place = 0;
        if (given)
            by.received = received;
        EXPECT_OK(luda_comm_all_to_all(comm, x, &by, &y));
        EXPECT(y && luda_tensor_shape(y)[1] == sum(received, size));
        for (int q = 0; q < size && y; place += received[q++]) {
            int64_t whole = 0, before = 0;
            for (int p = 0; p < size; p++) {
                whole += sent(q, p);
                before += p < rank ? sent(q, p) : 0;
            }
            expect_rows(y, place, received[q], q, whole, before, 0, 1);
        }
        luda_tensor_release(x);
        luda_tensor_release(y);
    }
}

/* Several parts a message, and a tail; in place too. */
static void many_parts(luda_comm *comm, int rank, void *arg)
{
    int64_t n = 150001;
    int size = luda_comm_size(comm), all = size * (size + 1) / 2;
    luda_tensor *x, *y;
    EXPECT_OK(luda_tensor_new(LUDA_F32, cpu, 1, &n, &x));
    for (int w = 0; w < WAYS; w++) {
        luda_comm_options by = { .size = sizeof by, .algorithm = (int32_t)ways[w].algorithm, .arity = ways[w].arity };
        for (int in_place = 0; in_place < 2; in_place++) {
            int64_t wrong = 0;
            for (int64_t i = 0; i < n; i++)
                ((float *)luda_tensor_data(x))[i] = (float)((i % 1001) * (rank + 1));
            if (in_place)
                EXPECT_OK(luda_comm_all_reduce_into(comm, x, LUDA_REDUCE_SUM, &by));
            else
                EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, &by, &y));
            for (int64_t i = 0; i < n; i++)
                wrong += ((float *)luda_tensor_data(in_place ? x : y))[i] != (float)((i % 1001) * all);
            EXPECT(wrong == 0);
            if (!in_place)
                luda_tensor_release(y);
        }
        for (int root = 0; root < size && rooted_way(w); root += size > 1 ? size - 1 : 1) {
            int64_t wrong = 0;
            for (int64_t i = 0; i < n; i++)
                ((float *)luda_tensor_data(x))[i] = (float)((i % 1001) * (rank + 1));
            EXPECT_OK(luda_comm_reduce(comm, x, LUDA_REDUCE_MAX, root, &by, &y));
            for (int64_t i = 0; i < n && rank == root; i++)
                wrong += ((float *)luda_tensor_data(y))[i] != (float)((i % 1001) * size);
            luda_tensor_release(y);
            EXPECT_OK(luda_comm_broadcast(comm, rank == root ? x : NULL, root, &by, &y));
            for (int64_t i = 0; i < n; i++)
                wrong += ((float *)luda_tensor_data(y))[i] != (float)((i % 1001) * (root + 1));
            EXPECT(wrong == 0);
            luda_tensor_release(y);
        }
    }
    luda_tensor_release(x);
}

/* --- Refusals and differences --- */

static void expect_all_fail(luda_comm *comm, int rank, int odd, luda_status own, luda_status got, const char *text)
{
    luda_tensor *x = one(1), *y = NULL;
    EXPECT_STATUS(rank == odd || odd < 0 ? own : LUDA_EMISMATCH, got);
    if (!strstr(luda_last_error(), text))
        printf("%s\n", luda_last_error());
    EXPECT(strstr(luda_last_error(), text));
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
    EXPECT(item(y, 0) == luda_comm_size(comm));
    luda_tensor_release(x);
    luda_tensor_release(y);
}

/* Rank 1 expects what rank 2 does not send: its own fault, at once. The others may be through with the call. */
static void lie(luda_comm *comm, int rank, luda_status got, luda_tensor *y)
{
    int32_t culprit = -1;
    EXPECT(got == (rank == 1 ? LUDA_ESHAPE : y ? LUDA_OK : LUDA_ESHAPE));
    if (got != LUDA_OK) {
        EXPECT(strstr(luda_last_error(), "rank 2 sends 0 along the dimension, received of rank 1 says 4"));
        EXPECT(luda_comm_culprits(comm, &culprit, 1) == 1 && culprit == 1);
    }
    luda_tensor_release(y);
    EXPECT_OK(luda_comm_barrier(comm, NULL));
}

static void wrong_sizes(luda_comm *comm, int rank, void *arg)
{
    const int64_t right[3] = { 3, 0, 5 }, negative[3] = { 3, -1, 5 }, other[3] = { 3, 1, 5 }, swapped[3] = { 4, 0, 4 };
    luda_comm_options by = { .size = sizeof by, .timeout = 20, .dim = 1, .sizes = right, .pieces = 3 };
    luda_tensor *x = labelled(rank, right[rank]), *whole = labelled(rank, 8), *y = NULL;
#define FAILS(odd, own, text, call) expect_all_fail(comm, rank, odd, own, call, text)
    by.pieces = rank == 1 ? 2 : 3;
    FAILS(1, LUDA_EINVAL, "2 entries for 3 ranks", luda_comm_all_gather(comm, x, &by, &y));
    by.pieces = 3;
    by.sizes = rank == 2 ? negative : right;
    FAILS(2, LUDA_EINVAL, "gives rank 1 a length of -1", luda_comm_reduce_scatter(comm, whole, LUDA_REDUCE_SUM, &by, &y));
    by.sizes = right;
    FAILS(0, LUDA_ESHAPE, "rank 0 brings 8 along the dimension, sizes {3, 0, 5} say 3",
          luda_comm_all_gather(comm, rank == 0 ? whole : x, &by, &y));
    FAILS(1, LUDA_ESHAPE, "sizes {3, 0, 5} sum to 8, and the tensor of rank 1 has 0",
          luda_comm_scatter(comm, rank == 1 ? x : NULL, 1, &by, &y));
    by.sizes = rank == 1 ? other : right;
    FAILS(-1, rank == 1 ? LUDA_ESHAPE : LUDA_EMISMATCH, "say 1", luda_comm_gather(comm, x, 0, &by, &y));
    by.sizes = rank == 1 ? swapped : right;
    FAILS(-1, LUDA_EMISMATCH, "disagree about the sizes",
          luda_comm_reduce_scatter(comm, whole, LUDA_REDUCE_SUM, &by, &y));
    by.sizes = rank == 1 ? NULL : right;
    FAILS(-1, LUDA_EMISMATCH, "in sizes {3, 0, 5}", luda_comm_scatter(comm, rank == 0 ? whole : NULL, 0, &by, &y));
    by.sizes = right;
    FAILS(-1, LUDA_EINVAL, "all_reduce: takes no sizes", luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, &by, &y));
    by.received = right;
    FAILS(-1, LUDA_EINVAL, "takes no received", luda_comm_all_gather(comm, x, &by, &y));
    by.received = rank == 2 ? right : NULL;
    FAILS(-1, LUDA_EMISMATCH, "disagree about the sizes", luda_comm_all_to_all(comm, whole, &by, &y));
    by.received = rank == 2 ? negative : right;
    FAILS(2, LUDA_EINVAL, "received gives rank 1 a length of -1", luda_comm_all_to_all(comm, whole, &by, &y));
    const int64_t comes[3] = { right[rank], right[rank], rank == 1 ? 4 : right[rank] };
    by.received = comes;
    luda_status got = luda_comm_all_to_all(comm, whole, &by, &y);
    lie(comm, rank, got, y);
    y = NULL;
    by.sizes = by.received = NULL;
    FAILS(-1, LUDA_EMISMATCH, "sizes= joins pieces of different lengths", luda_comm_all_gather(comm, x, &by, &y));
    FAILS(-1, LUDA_ESHAPE, "8 along the axis do not divide among 3 ranks; sizes= cuts unevenly",
          luda_comm_all_to_all(comm, whole, &by, &y));
    by.algorithm = LUDA_ALGORITHM_TREE;
    by.arity = rank == 1 ? 3 : 0;
    FAILS(-1, LUDA_EMISMATCH, "disagree about the arity: rank 1 asks for all_reduce sum i32 [2, 8, 3] by tree(3)",
          luda_comm_all_reduce(comm, whole, LUDA_REDUCE_SUM, &by, &y));
    by.arity = rank == 1 ? -1 : 0;
    FAILS(1, LUDA_EINVAL, "a tree of arity -1", luda_comm_all_reduce(comm, whole, LUDA_REDUCE_SUM, &by, &y));
    EXPECT(y == NULL);
    luda_tensor_release(x);
    luda_tensor_release(whole);
}

/* Gradients of uneven forms: those of the even ones, by hand. Ranks hold 1, 2 and 0 values. */
static void gradients(luda_comm *comm, int rank, void *arg)
{
    const int64_t sizes[3] = { 1, 2, 0 }, outward[3][3] = { { 0, 1, 0 }, { 1, 0, 1 }, { 0, 0, 0 } };
    const double weights[3][3] = { { 1, 2, 3 }, { 10, 20, 30 }, { 100, 200, 300 } };
    luda_comm_options by = { .size = sizeof by, .sizes = sizes, .pieces = 3 };
    luda_tensor *w = vector(LUDA_F32, 3, weights[rank]), *x = vector(LUDA_F32, sizes[rank], weights[rank]), *y, *p, *loss, *g;
    luda_gradients *found;
    EXPECT_OK(luda_set_requires_grad(x, 1));
    EXPECT_OK(luda_comm_all_gather(comm, x, &by, &y));
    EXPECT_OK(luda_mul(y, w, &p));
    EXPECT_OK(luda_sum(p, NULL, &loss));
    EXPECT_OK(luda_backward(loss, NULL, NULL, &found));
    g = luda_gradients_get(found, luda_tensor_id(x));
    EXPECT(g && luda_tensor_numel(g) == sizes[rank]);
    for (int64_t i = 0; g && i < sizes[rank]; i++) /* element rank + i of the joined one, weighed by all */
        EXPECT(item(g, i) == 111 * (double)(rank + i + 1));
    luda_gradients_release(found);
    luda_tensor_release(loss);
    luda_tensor_release(p);
    luda_tensor_release(y);
    luda_tensor_release(x);
    /* Mean of slices: rank r weighs its slice by w[r][0]; an element of slice r has w[r][0] / 3 on every rank. */
    x = vector(LUDA_F32, 3, weights[0]);
    EXPECT_OK(luda_set_requires_grad(x, 1));
    EXPECT_OK(luda_comm_reduce_scatter(comm, x, LUDA_REDUCE_MEAN, &by, &y));
    g = vector(LUDA_F32, 1, weights[rank]);
    EXPECT_OK(luda_mul(y, g, &p));
    luda_tensor_release(g);
    EXPECT_OK(luda_sum(p, NULL, &loss));
    EXPECT_OK(luda_backward(loss, NULL, NULL, &found));
    g = luda_gradients_get(found, luda_tensor_id(x));
    for (int64_t i = 0; i < 3; i++)
        EXPECT_NEAR(item(g, i), (i == 0 ? 1 : 10) / 3.0, 1e-6);
    luda_gradients_release(found);
    luda_tensor_release(loss);
    luda_tensor_release(p);
    luda_tensor_release(y);
    luda_tensor_release(x);
    /* Rank 0's value goes to rank 1; rank 1's go to ranks 0 and 2: each is weighed there. */
    x = vector(LUDA_F32, sizes[rank], weights[rank]);
    EXPECT_OK(luda_set_requires_grad(x, 1));
    by.sizes = outward[rank];
    EXPECT_OK(luda_comm_all_to_all(comm, x, &by, &y));
    EXPECT(luda_tensor_numel(y) == 1);
    g = vector(LUDA_F32, 1, weights[rank]);
    EXPECT_OK(luda_mul(y, g, &p));
    luda_tensor_release(g);
    EXPECT_OK(luda_sum(p, NULL, &loss));
    EXPECT_OK(luda_backward(loss, NULL, NULL, &found));
    g = luda_gradients_get(found, luda_tensor_id(x));
    for (int64_t i = 0; g && i < sizes[rank]; i++)
        EXPECT(item(g, i) == (rank == 0 ? 10 : i == 0 ? 1 : 100));
    luda_gradients_release(found);
    luda_tensor_release(loss);
    luda_tensor_release(p);
    luda_tensor_release(y);
    luda_tensor_release(x);
    luda_tensor_release(w);
}

/* What is started keeps its own copy of the sizes, and learns the length of its result on the way. */
static void started(luda_comm *comm, int rank, void *arg)
{
    int size = luda_comm_size(comm);
    int64_t sizes[MOST], mine = 0;
    luda_work *work;
    luda_tensor *x, *y;
    for (int q = 0; q < size; q++)
        sizes[q] = sent(rank, q);
    luda_comm_options by = { .size = sizeof by, .dim = 1, .sizes = sizes, .pieces = size };
    x = labelled(rank, sum(sizes, size));
    EXPECT_OK(luda_comm_start(comm, LUDA_CALL_ALL_TO_ALL, x, 0, 0, 0, &by, &work));
    memset(sizes, 0xFF, sizeof sizes);
    EXPECT_OK(luda_work_wait(work, 10, &y));
    for (int q = 0; q < size; q++)
        mine += sent(q, rank);
    EXPECT(luda_tensor_shape(y)[1] == mine && luda_tensor_shape(y)[2] == INNER);
    luda_work_release(work);
    luda_tensor_release(x);
    luda_tensor_release(y);
    for (int q = 0; q < size; q++)
        sizes[q] = q + 1;
    x = labelled(0, sum(sizes, size));
    EXPECT_OK(luda_comm_start(comm, LUDA_CALL_SCATTER, rank == 0 ? x : NULL, 0, 0, 0, &by, &work));
    EXPECT_OK(luda_work_wait(work, 10, &y));
    expect_rows(y, 0, rank + 1, 0, sum(sizes, size), sum(sizes, rank), 0, 1);
    luda_work_release(work);
    luda_tensor_release(x);
    luda_tensor_release(y);
}

/* Ranks whose settings of the model differ may not choose by it; other calls do not mind. */
static void other_link(luda_comm *comm, int rank, void *arg)
{
    luda_comm_options by = { .size = sizeof by, .algorithm = LUDA_ALGORITHM_AUTO };
    luda_tensor *x = one(1), *y = NULL;
    expect_all_fail(comm, rank, -1, LUDA_EMISMATCH, luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, &by, &y), arg);
    luda_tensor_release(x);
}

static void compare_links(void)
{
    static const char *const names[] = { "LUDA_LINK_LATENCY_US", "LUDA_LINK_MESSAGE_US", "LUDA_LINK_GBPS" };
    static const char *const texts[] = { "for links of 7 us, 2 us a message, 3 GB/s", "20 us, 7 us a message, 3 GB/s",
                                         "20 us, 2 us a message, 7 GB/s" };
    for (int n = 0; n < 3; n++) {
        luda_board *board;
        luda_comm *comms[2];
        EXPECT_OK(luda_board_new(2, -1, &board));
        for (int r = 0; r < 2; r++) {
            if (r == 1)
                setenv(names[n], "7", 1);
            comms[r] = new_courier(board, r);
        }
        unsetenv(names[n]);
        luda_board_release(board);
        run_threads(comms, 2, other_link, (void *)texts[n]);
    }
}

int main(void)
{
    luda_memory_info before, after;
    luda_tensor_release(one(1));
    EXPECT_OK(luda_memory(cpu, &before));
    for (int size = 1; size <= MOST; size++) {
        run_everywhere(size, pieces, NULL);
        run_everywhere(size, exchanges, NULL);
        run_everywhere(size, started, NULL);
    }
    for (int size = 1; size <= MOST; size += 2)
        run_everywhere(size, many_parts, NULL);
    run_everywhere(3, wrong_sizes, NULL);
    run_everywhere(3, gradients, NULL);
    compare_links();
    EXPECT_OK(luda_memory(cpu, &after));
    EXPECT(after.tensors == before.tensors);
    return summary("collective pieces");
}
