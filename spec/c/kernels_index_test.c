/* CPU kernels of every level: index data, extrema, placement, creation, random numbers; the pool and its determinism.
 */
#include "kernels_check.h"

#include <pthread.h>
#include <stdatomic.h>

/* --- Extrema with positions --- */

static void check_extremum(int dtype, int layout, int dim, int base, int64_t a, int64_t b, int64_t c)
{
    int64_t shape[] = { a, b, c },
            inner = dim == 0   ? b * c
                    : dim == 1 ? c
                               : 1,
            n = shape[dim], kept[] = { dim == 0 ? b : a, dim == 2 ? b : c };
    tensor x = make(dtype, layout, 3, shape), value = make(dtype, CONTIGUOUS, 2, kept),
           position = make(LUDA_I64, CONTIGUOUS, 2, kept);
    tensor taken = make(dtype, CONTIGUOUS, 2, kept), back = make(dtype, layout, 3, shape);
    fill(&x, -2, 2);
    if (is_float(dtype))
        set(&x, 7, NAN);
    for (int op = LUDA_OP_max; op <= LUDA_OP_min; op++) {
        luda_attrs attrs = { .family = LUDA_ATTRS_extremum, .extremum = { dim, 0, base } };
        luda_operand outs[] = { value.o, position.o }, in[] = { x.o, position.o }, in2[] = { value.o, position.o };
        CHECK(run(op, dtype, &x.o, 1, outs, 2, &attrs) == LUDA_OK, "%s", message);
        CHECK(run(LUDA_OP_take_along, dtype, in, 2, &taken.o, 1, &attrs) == LUDA_OK, "%s", message);
        luda_attrs attrs2 = { .family = LUDA_ATTRS_extremum_backward, .extremum_backward = { dim, 0, base, n } };
        CHECK(run(LUDA_OP_max_backward, dtype, in2, 2, &back.o, 1, &attrs2) == LUDA_OK, "%s", message);
        int bad = 0;
        for (int64_t k = 0; k < value.o.numel; k++) {
            int64_t start = k / inner * inner * n + k % inner, best = 0;
            for (int64_t j = 1; j < n; j++) {
                double v = at(&x, start + j * inner), top = at(&x, start + best * inner);
                if (!isnan(top) && (isnan(v) || (op == LUDA_OP_max ? v > top : v < top)))
                    best = j;
            }
            bad += at(&position, k) != (double)(best + base);
            bad +=
                !close_to(at(&value, k), at(&x, start + best * inner), 0) + !close_to(at(&taken, k), at(&value, k), 0);
            for (int64_t j = 0; j < n; j++)
                bad += !close_to(at(&back, start + j * inner), j == best ? at(&value, k) : 0, 0);
        }
        CHECK(bad == 0, "%s of %s, dim %d: %d wrong", luda_op_get(op)->name, luda_dtype_name((luda_dtype)dtype), dim,
              bad);
        set(&position, 1, (double)(n + base));
        memset(taken.o.data, 0x55, taken.bytes);
        CHECK(run(LUDA_OP_take_along, dtype, in, 2, &taken.o, 1, &attrs) == LUDA_EINDEX, "beyond the dimension");
        CHECK(run(LUDA_OP_max_backward, dtype, in2, 2, &back.o, 1, &attrs2) == LUDA_EINDEX, "beyond the dimension");
    }
    drop(&x), drop(&value), drop(&position), drop(&taken), drop(&back);
}

static void test_extrema(void)
{
    for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (int dim = 0; dim < 3; dim++) {
                check_extremum(dtype, layout, dim, dim % 2, 5, 6, 41);
                check_extremum(dtype, layout, dim, 0, 70, 3, 17);
            }
}

/* --- index_select --- */

static void check_index(int dtype, int layout, int base)
{
    enum { A = 3, SIZE = 7, Z = 5, P = 4, Q = 6 };
    tensor x = make(dtype, layout, SHAPE(A, SIZE, Z)), index = make(LUDA_I64, layout, SHAPE(P, Q)),
           out = make(dtype, CONTIGUOUS, SHAPE(A, P, Q, Z));
    tensor g = make(dtype, layout, SHAPE(A, P, Q, Z)), back = make(dtype, CONTIGUOUS, SHAPE(A, SIZE, Z));
    fill(&x, -4, 4), fill(&g, -4, 4);
    for (int i = 0; i < P * Q; i++)
        set(&index, i, floor(uniform(0, SIZE - 1)) + base); /* the last position gets nothing */
    luda_attrs attrs = { .family = LUDA_ATTRS_index_select, .index_select = { 1, base } };
    luda_attrs attrs2 = { .family = LUDA_ATTRS_index_select_backward, .index_select_backward = { 1, base, SIZE } };
    luda_operand in[] = { x.o, index.o }, in2[] = { g.o, index.o };
    CHECK(run(LUDA_OP_index_select, dtype, in, 2, &out.o, 1, &attrs) == LUDA_OK, "%s", message);
    CHECK(run(LUDA_OP_index_select_backward, dtype, in2, 2, &back.o, 1, &attrs2) == LUDA_OK, "%s", message);
    double sum[A * SIZE * Z] = { 0 };
    int bad = 0;
    for (int64_t i = 0; i < out.o.numel; i++) {
        int64_t from = (i / (P * Q * Z) * SIZE + (int64_t)at(&index, i / Z % (P * Q)) - base) * Z + i % Z;
        bad += at(&out, i) != at(&x, from);
        sum[from] += at(&g, i);
    }
    for (int64_t i = 0; i < back.o.numel; i++) {
        double exact = dtype == LUDA_BOOL ? sum[i] != 0 : dtype == LUDA_U8 ? (double)(uint8_t)sum[i] : sum[i];
        bad += !close_to(at(&back, i), exact, tolerance(dtype));
    }
    CHECK(bad == 0, "index_select of %s: %d wrong", luda_dtype_name((luda_dtype)dtype), bad);
    for (int64_t wrong = -1; wrong <= 1; wrong += 2) {
        set(&index, 5, wrong < 0 ? base - 1 : base + SIZE);
        char wanted[160];
        snprintf(wanted, sizeof wanted, "index_select: position %d is outside %d .. %d (base %d)%s", (int)at(&index, 5),
                 base, base + SIZE - 1, base,
                 base == 1 && wrong < 0 ? "; are these 0-based positions? pass base = 0" : "");
        CHECK(run(LUDA_OP_index_select, dtype, in, 2, &out.o, 1, &attrs) == LUDA_EINDEX && strcmp(message, wanted) == 0,
              "%s", message);
        CHECK(run(LUDA_OP_index_select_backward, dtype, in2, 2, &back.o, 1, &attrs2) == LUDA_EINDEX, "%s", message);
    }
    drop(&x), drop(&index), drop(&out), drop(&g), drop(&back);
}

static void test_index(void)
{
    for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (int base = 0; base < 2; base++)
                check_index(dtype, layout, base);
}

/* --- where, cat, narrow_backward, creation --- */

static void test_placement(void)
{
    for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++) {
        tensor a = make(dtype, STRIDED, SHAPE(2, 3)), b = make(dtype, TRANSPOSED, SHAPE(2, 5)),
               out = make(dtype, CONTIGUOUS, SHAPE(2, 8));
        tensor wide = make(dtype, CONTIGUOUS, SHAPE(2, 9)), mask = make(LUDA_BOOL, STRIDED, SHAPE(2, 3)),
               picked = make(dtype, CONTIGUOUS, SHAPE(2, 3));
        fill(&a, -4, 4), fill(&b, -4, 4), fill(&mask, -1, 1);
        luda_operand in[] = { a.o, b.o }, in3[] = { mask.o, a.o, b.o };
        luda_attrs attrs = { .family = LUDA_ATTRS_cat, .cat = { 1 } };
        luda_attrs attrs2 = { .family = LUDA_ATTRS_narrow_backward, .narrow_backward = { 1, 2, 9, 3 } };
        CHECK(run(LUDA_OP_cat, dtype, in, 2, &out.o, 1, &attrs) == LUDA_OK, "%s", message);
        memset(wide.o.data, 0x3C, wide.bytes);
        CHECK(run(LUDA_OP_narrow_backward, dtype, in, 1, &wide.o, 1, &attrs2) == LUDA_OK, "%s", message);
        in3[2].shape[1] = 3;
        in3[2].numel = 6;
        CHECK(run(LUDA_OP_where, dtype, in3, 3, &picked.o, 1, NULL) == LUDA_OK, "%s", message);
        int bad = 0;
        for (int i = 0; i < 16; i++)
            bad += at(&out, i) != (i % 8 < 3 ? at(&a, i / 8 * 3 + i % 8) : at(&b, i / 8 * 5 + i % 8 - 3));
        for (int i = 0; i < 18; i++)
            bad += at(&wide, i) != (i % 9 >= 2 && (i % 9 - 2) % 3 == 0 ? at(&a, i / 9 * 3 + (i % 9 - 2) / 3) : 0);
        for (int i = 0; i < 6; i++)
            bad += at(&picked, i) != (at(&mask, i) != 0 ? at(&a, i) : at(&b, i / 3 * 5 + i % 3));
        tensor line = make(dtype, STRIDED, SHAPE(9));
        luda_attrs create = { .family = LUDA_ATTRS_create, .create = { .low = 1, .high = 2 } };
        CHECK(run(LUDA_OP_arange, dtype, NULL, 0, &line.o, 1, &create) == LUDA_OK, "%s", message);
        for (int i = 0; i < 9; i++)
            bad += at(&line, i) != (dtype == LUDA_BOOL ? 1 : 1 + 2 * i);
        CHECK(run(LUDA_OP_full, dtype, NULL, 0, &line.o, 1, &create) == LUDA_OK && at(&line, 8) == 1, "%s", message);
        CHECK(bad == 0, "%s: %d wrong", luda_dtype_name((luda_dtype)dtype), bad);
        drop(&a), drop(&b), drop(&out), drop(&wide), drop(&mask), drop(&picked), drop(&line);
    }
}

/* --- Random numbers --- */

static luda_attrs draw_of(uint64_t seed, uint64_t counter, int64_t low, int64_t high)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_random, .random = { .low = low, .high = high } };
    attrs.random.generator.seed = seed;
    attrs.random.generator.counter = counter;
    return attrs;
}

static void test_random(void)
{
    enum { N = 100001 };
    uint32_t words[4]; /* known answers of Random123 for Philox 4x32-10 */
    luda__philox(0, 0, words);
    CHECK(words[0] == 0x6627E8D5 && words[1] == 0xE169C58D && words[2] == 0xBC57AC4C && words[3] == 0x9B00DBD8, "%08x",
          words[0]);
    for (int dtype = 0; dtype <= LUDA_BF16; dtype++) {
        tensor x = make(dtype, CONTIGUOUS, SHAPE(N)), part = make(dtype, STRIDED, SHAPE(5));
        double sum = 0, square = 0, low = 1, high = 0;
        luda_attrs attrs = draw_of(42, 9, 0, 0), later = draw_of(42, 9 + 8, 0, 0);
        run(LUDA_OP_rand, dtype, NULL, 0, &x.o, 1, &attrs);
        for (int i = 0; i < N; i++) {
            sum += at(&x, i);
            low = fmin(low, at(&x, i)), high = fmax(high, at(&x, i));
        }
        CHECK(low >= 0 && high < 1 && fabs(sum / N - (dtype == LUDA_BF16 ? 0.5 - 0x1p-9 : 0.5)) < 0.005,
              "rand: %g %g %g", low, high, sum / N);
        run(LUDA_OP_rand, dtype, NULL, 0, &part.o, 1, &later); /* counter + 8 is element 32, or 16 for f64 */
        CHECK(at(&part, 4) == at(&x, (dtype == LUDA_F64 ? 16 : 32) + 4),
              "an element depends on counter and number only");
        run(LUDA_OP_randn, dtype, NULL, 0, &x.o, 1, &attrs);
        sum = 0;
        for (int i = 0; i < N; i++)
            sum += at(&x, i), square += at(&x, i) * at(&x, i);
        CHECK(fabs(sum / N) < 0.02 && fabs(square / N - 1) < 0.02, "randn: %g %g", sum / N, square / N);
        luda_attrs drop_attrs = { .family = LUDA_ATTRS_dropout,
                                  .dropout = { .p = 0.25, .generator = { { .seed = 42 }, 9 } } };
        tensor ones = make(dtype, CONTIGUOUS, SHAPE(N));
        for (int i = 0; i < N; i++)
            set(&ones, i, 3);
        run(LUDA_OP_dropout, dtype, &ones.o, 1, &x.o, 1, &drop_attrs);
        int kept = 0, bad = 0;
        for (int i = 0; i < N; i++) {
            luda__philox(42, 9 + (uint64_t)i / 4, words);
            int wanted = (words[i % 4] >> 8) * 0x1p-24 >= 0.25;
            kept += at(&x, i) != 0;
            bad += wanted != (at(&x, i) != 0) || (wanted && at(&x, i) != 4);
        }
        CHECK(bad == 0 && abs(kept - N * 3 / 4) < N / 100, "dropout: %d wrong, %d kept", bad, kept);
        tensor wide = make(dtype, TRANSPOSED, SHAPE(97, 131)), dropped = make(dtype, STRIDED, SHAPE(97, 131));
        for (int i = 0; i < 97 * 131; i++)
            set(&wide, i, 3);
        run(LUDA_OP_dropout, dtype, &wide.o, 1, &dropped.o, 1, &drop_attrs);
        for (int i = 0; i < 97 * 131; i++)
            bad += at(&dropped, i) != at(&x, i);
        CHECK(bad == 0, "dropout of a transposed tensor: %d wrong", bad);
        drop(&wide), drop(&dropped);
        drop_attrs.dropout.p = 1;
        run(LUDA_OP_dropout, dtype, &ones.o, 1, &x.o, 1, &drop_attrs);
        CHECK(at(&x, 17) == 0, "%g", at(&x, 17));
        drop(&x), drop(&part), drop(&ones);
    }
}

static void test_random_integers(void)
{
    enum { N = 100001 };
    tensor whole = make(LUDA_I64, CONTIGUOUS, SHAPE(N)), order = make(LUDA_I64, CONTIGUOUS, SHAPE(1000));
    int count[7] = { 0 }, bad = 0;
    luda_attrs attrs = draw_of(1, 1, -3, 4);
    run(LUDA_OP_randint, LUDA_I64, NULL, 0, &whole.o, 1, &attrs);
    for (int i = 0; i < N; i++)
        if (at(&whole, i) < -3 || at(&whole, i) > 3)
            bad++;
        else
            count[(int)at(&whole, i) + 3]++;
    for (int i = 0; i < 7; i++)
        bad += abs(count[i] - N / 7) > N / 100;
    attrs = draw_of(1, 1, INT64_MIN, (int64_t)1 << 62); /* three quarters of the words: a quarter is drawn again */
    run(LUDA_OP_randint, LUDA_I64, NULL, 0, &whole.o, 1, &attrs);
    int above = 0;
    for (int i = 0; i < N; i++) {
        bad += ((int64_t *)whole.o.data)[i] >= (int64_t)1 << 62;
        above += at(&whole, i) > 0;
    }
    CHECK(bad == 0 && abs(above - N / 3) < N / 100, "randint: %d wrong, %d above 0", bad, above);
    attrs = draw_of(5, 1, 1, 0);
    run(LUDA_OP_randperm, LUDA_I64, NULL, 0, &order.o, 1, &attrs);
    char seen[1000] = { 0 };
    int fixed = 0;
    for (int i = 0; i < 1000; i++) {
        bad += at(&order, i) < 1 || at(&order, i) > 1000 || seen[(int)at(&order, i) - 1]++;
        fixed += at(&order, i) == i + 1;
    }
    CHECK(bad == 0 && fixed < 8, "randperm: %d wrong, %d in place", bad, fixed);
    drop(&whole), drop(&order);
}

/* --- Threads: the same bits for 1, 2, 3 and 7 --- */

static void same_bits(int op, int dtype, const luda_operand *in, int nin, const luda_attrs *attrs, tensor *out,
                      int nout)
{
    static const int threads[] = { 1, 2, 3, 7 };
    uint8_t *first[3] = { NULL };
    luda_operand outs[3];
    for (int t = 0; t < 4; t++) {
        luda_set_threads(threads[t]);
        for (int o = 0; o < nout; o++) {
            outs[o] = out[o].o;
            memset(outs[o].data, 0xCC, out[o].bytes);
        }
        CHECK(run(op, dtype, in, nin, outs, nout, attrs) == LUDA_OK, "%s", message);
        for (int o = 0; o < nout; o++) {
            if (t == 0) {
                first[o] = malloc(out[o].bytes);
                memcpy(first[o], outs[o].data, out[o].bytes);
            }
            CHECK(memcmp(first[o], outs[o].data, out[o].bytes) == 0, "%s of %s: output %d differs with %d threads",
                  luda_op_get(op)->name, luda_dtype_name((luda_dtype)dtype), o, threads[t]);
        }
    }
    for (int o = 0; o < nout; o++)
        free(first[o]);
}

static void test_threads(void)
{
    for (int dtype = LUDA_F64; dtype <= LUDA_BF16; dtype++) {
        int stat = dtype == LUDA_F64 ? LUDA_F64 : LUDA_F32;
        tensor x = make(dtype, CONTIGUOUS, SHAPE(300, 700)), y = make(dtype, TRANSPOSED, SHAPE(300, 700)),
               w = make(dtype, CONTIGUOUS, SHAPE(700, 90));
        tensor o = make(dtype, CONTIGUOUS, SHAPE(300, 700)), p = make(dtype, CONTIGUOUS, SHAPE(300, 90)),
               all = make(dtype, CONTIGUOUS, 0, NULL), columns = make(dtype, CONTIGUOUS, SHAPE(700));
        fill(&x, -4, 4), fill(&y, -4, 4), fill(&w, -4, 4);
        luda_operand xy[] = { x.o, y.o }, xw[] = { x.o, w.o };
        luda_attrs whole = { .family = LUDA_ATTRS_reduce },
                   rows = { .family = LUDA_ATTRS_reduce, .reduce = { .dim = { 1, { 0 } } } };
        luda_attrs random = draw_of(3, 4, 0, 0), soft = { .family = LUDA_ATTRS_softmax, .softmax = { 0 } };
        same_bits(LUDA_OP_mul, dtype, xy, 2, NULL, &o, 1);
        same_bits(LUDA_OP_sum, dtype, &x.o, 1, &whole, &all, 1);
        same_bits(LUDA_OP_sum, dtype, &y.o, 1, &rows, &columns, 1);
        same_bits(LUDA_OP_sum, dtype, &x.o, 1, &rows, &columns, 1);
        same_bits(LUDA_OP_softmax, dtype, &x.o, 1, &soft, &o, 1);
        same_bits(LUDA_OP_randn, dtype, NULL, 0, &random, &o, 1);
        same_bits(LUDA_OP_matmul, dtype, xw, 2, NULL, &p, 1);
        tensor mean = make(stat, CONTIGUOUS, SHAPE(300)), rstd = make(stat, CONTIGUOUS, SHAPE(300));
        tensor grads[] = { o, make(dtype, CONTIGUOUS, SHAPE(700)), make(dtype, CONTIGUOUS, SHAPE(700)) };
        for (int i = 0; i < 300; i++)
            set(&rstd, i, 0.5);
        luda_attrs norm = { .family = LUDA_ATTRS_norm, .norm = { 1e-5 } };
        luda_operand in[] = { y.o, x.o, mean.o, rstd.o, { .numel = -1 } };
        same_bits(LUDA_OP_layer_norm_backward, dtype, in, 5, &norm, grads, 3);
        tensor q = make(dtype, CONTIGUOUS, SHAPE(3, 200, 16)),
               out[] = { make(dtype, CONTIGUOUS, SHAPE(3, 200, 16)), make(stat, CONTIGUOUS, SHAPE(3, 200)) };
        tensor back[] = { make(dtype, CONTIGUOUS, SHAPE(3, 200, 16)), make(dtype, CONTIGUOUS, SHAPE(3, 200, 16)),
                          make(dtype, CONTIGUOUS, SHAPE(3, 200, 16)) };
        fill(&q, -1, 1);
        luda_attrs attend = { .family = LUDA_ATTRS_attention,
                              .attention = { .is_causal = 1, .dropout_p = 0.125, .generator = { { .seed = 1 }, 1 } } };
        luda_operand qkv[] = { q.o, q.o, q.o }, six[] = { q.o, q.o, q.o, q.o, out[0].o, out[1].o };
        same_bits(LUDA_OP_scaled_dot_product_attention, dtype, qkv, 3, &attend, out, 2);
        same_bits(LUDA_OP_scaled_dot_product_attention_backward, dtype, six, 6, &attend, back, 3);
        drop(&x), drop(&y), drop(&w), drop(&o), drop(&p), drop(&all), drop(&columns), drop(&mean), drop(&rstd),
            drop(&grads[1]), drop(&grads[2]);
        drop(&q), drop(&out[0]), drop(&out[1]), drop(&back[0]), drop(&back[1]), drop(&back[2]);
    }
    luda_set_threads(2);
}

/* --- The pool: every slab once, nested calls, several callers at once --- */

enum { SLABS = 200, CALLERS = 4 };

typedef struct count {
    atomic_int runs[SLABS], nested;
} count;

static void add_nested(void *arg, int64_t slab)
{
    atomic_fetch_add(&((count *)arg)->nested, 1);
}

static void add_run(void *arg, int64_t slab)
{
    count *c = arg;
    atomic_fetch_add(&c->runs[slab], 1);
    luda__parallel(3, add_nested, c);
}

static void *caller(void *arg)
{
    for (int i = 0; i < 200; i++)
        luda__parallel(SLABS, add_run, arg);
    return NULL;
}

static void test_pool(void)
{
    static count counts[CALLERS];
    static const int settings[][2] = { { 1, 1 }, { 2, 1 }, { 7, 1 }, { 7, 2 }, { 3, 4 } };
    for (int s = 0; s < 5; s++) {
        pthread_t threads[CALLERS];
        memset(counts, 0, sizeof counts);
        luda_set_threads(settings[s][0]);
        luda__pool_ranks(settings[s][1]);
        for (int i = 0; i < CALLERS; i++)
            pthread_create(&threads[i], NULL, caller, &counts[i]);
        int bad = 0;
        for (int i = 0; i < CALLERS; i++) {
            pthread_join(threads[i], NULL);
            for (int j = 0; j < SLABS; j++)
                bad += counts[i].runs[j] != 200;
            bad += counts[i].nested != 200 * SLABS * 3;
        }
        CHECK(bad == 0, "%d threads, %d ranks: %d wrong", settings[s][0], settings[s][1], bad);
    }
    luda__pool_ranks(1);
    CHECK(luda_set_threads(0) == LUDA_EINVAL && luda_threads() == 3, "%d threads", luda_threads());
}

int main(void)
{
    test_pool();
    for_each_level(test_extrema);
    for_each_level(test_index);
    for_each_level(test_placement);
    for_each_level(test_random);
    for_each_level(test_random_integers);
    for_each_level(test_threads);
    return finish();
}
