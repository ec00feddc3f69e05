/*
 * Multi-tensor kernels of the CPU. The list is cut into slabs of a fixed number of elements, across the borders of
 * arrays, so that two thousand small tensors and one large one are the same work for the pool. Arrays of the compute
 * type are worked on where they lie; others go through small blocks that stay in the first cache.
 */
#include "kernels/cpu/kernel.h"

#include "kernels/optim.h"

#include <stdbool.h>

/*
 * Loops read at several places at once (norms in STREAMS, updates in two, each over all of its arrays) and fetch AHEAD
 * bytes early: one stream of reads waits for memory instead of keeping it busy.
 */
enum { SLAB = 1 << 16, BLOCK = 1024, LANES = 16, STREAMS = 8, STRIP = 64, AHEAD = 768 };

/* --- Slabs over a list --- */

typedef struct job {
    const char *items; /* each begins with a span */
    size_t size;
    int count;
    /* Works on elements begin .. end-1 of an item; `piece` numbers all calls of the job. */
    void (*run)(const struct job *job, const void *item, int64_t begin, int64_t end, int64_t piece);
    const void *argument;
    double *partial;
    bool backwards; /* the last slab first */
} job;

static const luda_optim_span *span_at(const job *j, int index)
{
    return (const luda_optim_span *)(const void *)(j->items + (size_t)index * j->size);
}

/* The last item that starts at or before a position. */
static int item_at(const job *j, int64_t position)
{
    int low = 0, high = j->count - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (span_at(j, middle)->start <= position)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static int64_t total_of(const job *j)
{
    const luda_optim_span *last = j->count ? span_at(j, j->count - 1) : NULL;
    return last ? last->start + last->numel : 0;
}

static void run_slab(void *argument, int64_t slab)
{
    const job *j = argument;
    if (j->backwards)
        slab = ceil_div(total_of(j), SLAB) - 1 - slab;
    int64_t from = slab * SLAB, to = smaller(from + SLAB, total_of(j));
    for (int i = item_at(j, from); i < j->count && span_at(j, i)->start < to; i++) {
        const luda_optim_span *span = span_at(j, i);
        int64_t begin = larger(from - span->start, 0), end = smaller(to - span->start, span->numel);
        if (begin < end)
            j->run(j, span, begin, end, slab + i);
    }
}

static void run_job(job *j)
{
    luda__parallel(ceil_div(total_of(j), SLAB), run_slab, j);
}

/* --- Compute types --- */

/* What the strip some way behind this one will need. */
INLINE void fetch_ahead(const void *data, int32_t dtype, int64_t begin)
{
    int64_t size = dtype == LUDA_F64 ? 8 : dtype == LUDA_F32 ? 4 : 2;
    const char *from = (const char *)data + begin * size + AHEAD;
    for (int64_t line = 0; line < STRIP * size; line += 64)
        __builtin_prefetch(from + line);
}

#define DTYPE_f32 LUDA_F32
#define DTYPE_f64 LUDA_F64

#define C float
#define SUFFIX f32
#define ROOT(x) __builtin_sqrtf(x)
#include "optim.inc"

#define C double
#define SUFFIX f64
#define ROOT(x) __builtin_sqrt(x)
#include "optim.inc"

/* --- Sums of squares --- */

static void run_squares(const job *j, const void *item, int64_t begin, int64_t end, int64_t piece)
{
    const luda_optim_array *array = item;
    double scale = *(const double *)j->argument;
    j->partial[piece] = array->dtype == LUDA_F64 ? squares_f64(array->data, LUDA_F64, begin, end, scale)
                                                 : squares_f32(array->data, array->dtype, begin, end, scale);
}

static luda_status squares(const luda_optim_array *arrays, int count, double scale, double *sums, void *stream,
                           char *message)
{
    job j = { (const char *)arrays, sizeof *arrays, count, run_squares, &scale, NULL, false };
    size_t bytes = (size_t)(ceil_div(total_of(&j), SLAB) + count + 1) * sizeof(double);

    j.partial = luda__scratch(bytes);
    if (!j.partial) {
        snprintf(message, 256, "no memory for %zu bytes of partial sums", bytes);
        return LUDA_ENOMEM;
    }
    run_job(&j);
    for (int i = 0; i < count; i++) {
        const luda_optim_span *span = &arrays[i].span;
        sums[i] = 0;
        if (span->numel == 0)
            continue;
        for (int64_t slab = span->start / SLAB; slab <= (span->start + span->numel - 1) / SLAB; slab++)
            sums[i] += j.partial[slab + i];
    }
    return LUDA_OK;
}

/* --- Sums --- */

static void run_sum(const job *j, const void *item, int64_t begin, int64_t end, int64_t piece)
{
    const luda_optim_sum *sum = item;
    if (sum->target_dtype == LUDA_F64 || sum->source_dtype == LUDA_F64)
        sum_f64(sum, begin, end);
    else
        sum_f32(sum, begin, end);
}

static luda_status sum(const luda_optim_sum *sums, int count, void *stream, char *message)
{
    job j = { (const char *)sums, sizeof *sums, count, run_sum, NULL, NULL, false };
    run_job(&j);
    return LUDA_OK;
}

/* --- Steps: backwards, since the norm has just been read forwards and the last gradients are still in a cache --- */

typedef struct rules {
    rule_f32 f32;
    rule_f64 f64;
} rules;

static void run_update(const job *j, const void *item, int64_t begin, int64_t end, int64_t piece)
{
    const luda_optim_update *update = item;
    const rules *rule = j->argument;
    if (update->dtype == LUDA_F64)
        update_f64(update, begin, end, rule->f64);
    else
        update_f32(update, begin, end, rule->f32);
}

static luda_status step(int kind, const luda_optim_update *updates, int count, void *stream, char *message)
{
    static const rules table[] = {
#define LUDA_OPTIM(name, loop, ...) [LUDA_OPTIM_##name] = { loop##_f32, loop##_f64 },
#include "kernels/optim.def"
    };
    job j = { (const char *)updates, sizeof *updates, count, run_update, &table[kind], NULL, true };
    run_job(&j);
    return LUDA_OK;
}

#define OPTIM_TABLE PASTE2(luda_optim_kernels_, LUDA_ISA)
extern const luda_optim_kernels OPTIM_TABLE;

const luda_optim_kernels OPTIM_TABLE = {
    .squares = squares,
    .sum = sum,
    .step = step,
};
