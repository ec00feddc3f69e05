/*
 * Factorizations and solutions by LAPACK, the matrices of a batch divided among the workers. LAPACK reads columns where
 * rows lie, and so sees every matrix transposed: the factors that are asked of it are chosen for that, which leaves only
 * right-hand sides and eigenvectors to be turned.
 */
#include "lapack.h"

#include "kernels/cpu/kernel.h"

#include <limits.h>
#include <pthread.h>

enum { SLAB_WORK = 1 << 16 }; /* multiplications that a worker should get */
enum { BLOCK = 64 };          /* columns that LAPACK takes at once */
enum { NO_MEMORY = INT_MIN, NOT_FINITE };

typedef struct job job;

/* What an operator does with one matrix. */
typedef struct operation {
    int squares, lines; /* elements of work space: so many times k * k and k, and where there are any, blocks of columns */
    int (*run)(const job *j, int64_t matrix, char *scratch); /* 0, or LAPACK's number of a failure */
    const char *failed, *hint; /* around that number */
} operation;

struct job {
    const luda_call *call;
    const operation *operation;
    const lapack *library;
    int m, n, k, columns; /* of a matrix of the first input; the smaller of both; of right-hand sides */
    int size; /* of an element */
    int work, integers; /* elements of work space, and integers */
    size_t second, third, fourth, bytes; /* where a matrix's parts of the scratch memory begin */
    int64_t matrices, per_slab;
    pthread_mutex_t lock;
    int64_t bad; /* the first matrix that failed */
    int info;
};

/* --- Elements of either type --- */

static double get(const job *j, const void *from, int64_t i)
{
    return j->size == 8 ? ((const double *)from)[i] : ((const float *)from)[i];
}

static void put(const job *j, void *to, int64_t i, double value)
{
    if (j->size == 8)
        ((double *)to)[i] = value;
    else
        ((float *)to)[i] = (float)value;
}

/* rows x columns elements; each side has a stride for either dimension. */
static void copy(const job *j, void *to, int64_t to_row, int64_t to_column, const void *from, int64_t row, int64_t column,
                 int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            if (j->size == 8)
                memcpy((double *)to + r * to_row + c * to_column, (const double *)from + r * row + c * column, 8);
            else
                memcpy((float *)to + r * to_row + c * to_column, (const float *)from + r * row + c * column, 4);
}

/* Matrix `i` of an input, whose leading dimensions broadcast to those of `like`, into `to` with the given strides. */
static void copy_input(const job *j, int input, int64_t i, void *to, int64_t to_row, int64_t to_column)
{
    const luda_operand *o = &j->call->in[input], *like = j->call->nin > 1 ? j->call->out : o;
    int64_t offset = 0, last = o->ndim - 1;
    for (int d = like->ndim - 3, e = o->ndim - 3; e >= 0; i /= like->shape[d--], e--)
        offset += o->shape[e] == 1 ? 0 : i % like->shape[d] * o->stride[e];
    copy(j, to, to_row, to_column, (const char *)o->data + offset * j->size, o->stride[last - 1], o->stride[last],
         o->shape[last - 1], o->shape[last]);
}

/* Matrix (or row, or number) `i` of an output, `elements` large. */
static void *result(const job *j, int output, int64_t i, int64_t elements)
{
    return (char *)j->call->out[output].data + i * elements * j->size;
}

static int64_t square(const job *j)
{
    return (int64_t)j->n * j->n;
}

static void clear_triangle(const job *j, void *a, int upper)
{
    for (int64_t r = 0; r < j->n; r++)
        for (int64_t c = upper ? r + 1 : 0; c < (upper ? j->n : r); c++)
            put(j, a, r * j->n + c, 0);
}

static int all_finite(const job *j, const void *a, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += get(j, a, i) * 0;
    return sum == 0;
}

/* --- The operators --- */

static int run_cholesky(const job *j, int64_t i, char *scratch)
{
    int upper = j->call->attrs->factor.upper, info = 0;
    void *a = result(j, 0, i, square(j));
    copy_input(j, 0, i, a, j->n, 1);
    j->library->potrf(upper ? "L" : "U", &j->n, a, &j->n, &info, 1);
    for (int row = 0; row < j->n && info == 0; row++) /* not every library stops at NaN */
        info = get(j, a, (int64_t)row * j->n + row) > 0 ? 0 : row + 1;
    clear_triangle(j, a, !upper);
    return info;
}

/* A^T = L Q, so that Q^T and L^T are the factors of A. */
static int run_qr(const job *j, int64_t i, char *scratch)
{
    char *r = result(j, 1, i, (int64_t)j->k * j->n);
    int info = 0;
    copy_input(j, 0, i, scratch, j->n, 1);
    j->library->gelqf(&j->n, &j->m, scratch, &j->n, scratch + j->second, scratch + j->third, &j->work, &info);
    copy(j, r, j->n, 1, scratch, j->n, 1, j->k, j->n);
    for (int64_t row = 1; row < j->k; row++)
        memset(r + row * j->n * j->size, 0, (size_t)row * (size_t)j->size);
    j->library->orglq(&j->k, &j->m, &j->k, scratch, &j->n, scratch + j->second, scratch + j->third, &j->work, &info);
    copy(j, result(j, 0, i, (int64_t)j->m * j->k), j->k, 1, scratch, j->n, 1, j->m, j->k);
    return info;
}

/* A^T = V S U^T: its factors lie, column by column, as Vh and U row by row. */
static int run_svd(const job *j, int64_t i, char *scratch)
{
    int info = 0;
    copy_input(j, 0, i, scratch, j->n, 1);
    if (!all_finite(j, scratch, (int64_t)j->m * j->n))
        return NOT_FINITE;
    j->library->gesdd("S", &j->n, &j->m, scratch, &j->n, result(j, 1, i, j->k), result(j, 2, i, (int64_t)j->k * j->n), &j->n,
                      result(j, 0, i, (int64_t)j->m * j->k), &j->k, scratch + j->third, &j->work, (int *)(scratch + j->fourth),
                      &info, 1);
    return info;
}

static int run_eigh(const job *j, int64_t i, char *scratch)
{
    int upper = j->call->attrs->factor.upper, info = 0;
    copy_input(j, 0, i, scratch, j->n, 1);
    clear_triangle(j, scratch, !upper);
    if (!all_finite(j, scratch, square(j)))
        return NOT_FINITE;
    j->library->syevd("V", upper ? "L" : "U", &j->n, scratch, &j->n, result(j, 0, i, j->n), scratch + j->third, &j->work,
                      (int *)(scratch + j->fourth), &j->integers, &info, 1, 1);
    copy(j, result(j, 1, i, square(j)), 1, j->n, scratch, j->n, 1, j->n, j->n);
    return info;
}

static int run_solve(const job *j, int64_t i, char *scratch)
{
    int *pivots = (int *)(scratch + j->fourth), info = 0;
    void *b = scratch + j->second;
    copy_input(j, 0, i, scratch, j->n, 1);
    j->library->getrf(&j->n, &j->n, scratch, &j->n, pivots, &info);
    if (info != 0)
        return info;
    copy_input(j, 1, i, b, 1, j->n);
    j->library->getrs("T", &j->n, &j->columns, scratch, &j->n, pivots, b, &j->n, &info, 1);
    copy(j, result(j, 0, i, (int64_t)j->n * j->columns), j->columns, 1, b, 1, j->n, j->n, j->columns);
    return info;
}

/* X^T A^T = B^T */
static int run_solve_triangular(const job *j, int64_t i, char *scratch)
{
    const struct luda_solve_triangular_attrs *a = &j->call->attrs->solve_triangular;
    void *b = result(j, 0, i, (int64_t)j->n * j->columns);
    double one;
    put(j, &one, 0, 1);
    copy_input(j, 0, i, scratch, j->n, 1);
    for (int64_t row = 0; row < j->n && !a->unitriangular; row++)
        if (get(j, scratch, row * j->n + row) == 0)
            return (int)row + 1;
    copy_input(j, 1, i, b, j->columns, 1);
    j->library->trsm("R", a->upper ? "L" : "U", a->transpose ? "T" : "N", a->unitriangular ? "U" : "N", &j->columns, &j->n, &one,
                     scratch, &j->n, b, &j->columns, 1, 1, 1, 1);
    return 0;
}

/* The determinant, or its sign and the logarithm of its absolute value. */
static int run_det(const job *j, int64_t i, char *scratch)
{
    int *pivots = (int *)(scratch + j->fourth), info = 0, logarithm = j->call->nout == 2;
    double sign = 1, size = logarithm ? 0 : 1;
    copy_input(j, 0, i, scratch, j->n, 1);
    if (j->n > 0)
        j->library->getrf(&j->n, &j->n, scratch, &j->n, pivots, &info);
    for (int64_t row = 0; row < j->n; row++) {
        double pivot = get(j, scratch, row * j->n + row);
        sign *= pivot > 0 ? 1 : pivot < 0 ? -1 : pivot; /* zero or NaN from then on */
        if (pivots[row] != row + 1)
            sign = -sign;
        size = logarithm ? size + log(fabs(pivot)) : size * fabs(pivot);
    }
    put(j, result(j, 0, i, 1), 0, (logarithm ? sign : sign * size) + 0.0); /* never -0 */
    if (logarithm)
        put(j, result(j, 1, i, 1), 0, size);
    return 0;
}

/* At least the work space that the manual asks for. */
static const operation cholesky = { 0, 0, run_cholesky, "is not positive definite: its leading minor of order",
                                    " is not positive; is it symmetric?" };
static const operation qr = { 0, 1, run_qr, "has no factors:", "" };
static const operation svd = { 4, 192, run_svd, "has no singular values: steps that did not converge:", "" };
static const operation eigh = { 2, 8, run_eigh, "has no eigenvalues: steps that did not converge:", "" };
static const operation solve = { 0, 0, run_solve, "is singular: pivot", " is 0; lstsq and pinv take singular matrices" };
static const operation solve_triangular = { 0, 0, run_solve_triangular, "is singular: on its diagonal, element", " is 0" };
static const operation det = { 0, 0, run_det, "", "" };

/* --- A call --- */

static void note(job *j, int64_t matrix, int info)
{
    pthread_mutex_lock(&j->lock);
    if (j->bad < 0 || matrix < j->bad) {
        j->bad = matrix;
        j->info = info;
    }
    pthread_mutex_unlock(&j->lock);
}

static void run_slab(void *arg, int64_t slab)
{
    job *j = arg;
    int64_t i = slab * j->per_slab, end = smaller(i + j->per_slab, j->matrices);
    char *scratch = luda__scratch(j->bytes);
    for (int info; i < end; i++)
        if ((info = scratch ? j->operation->run(j, i, scratch) : NO_MEMORY) != 0)
            note(j, i, info);
}

static size_t rounded(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* The matrix itself; right-hand sides or the factors' heads; work space; pivots and other integers. 0: beyond 32 bits. */
static int plan_scratch(job *j, int64_t m, int64_t n, int64_t columns)
{
    int64_t k = smaller(m, n), blocks = j->operation->lines > 0 ? n * smaller(k, BLOCK) : 0;
    int64_t work = j->operation->squares * k * k + j->operation->lines * k + blocks;
    if (larger(larger(m, n), larger(columns, work)) > INT_MAX)
        return 0;
    j->m = (int)m;
    j->n = (int)n;
    j->k = (int)k;
    j->columns = (int)columns;
    j->work = (int)work;
    j->integers = (int)(8 * k);
    j->second = rounded((size_t)(m * n) * (size_t)j->size);
    j->third = j->second + rounded((size_t)larger(n * columns, k) * (size_t)j->size);
    j->fourth = j->third + rounded((size_t)j->work * (size_t)j->size);
    j->bytes = j->fourth + (size_t)j->integers * sizeof(int);
    j->per_slab = larger(SLAB_WORK / larger(m * n, 1) / larger(k + columns, 1), 1);
    return 1;
}

static luda_status explain(const job *j)
{
    char which[64] = "the matrix";
    if (j->info == NO_MEMORY)
        return fail_memory(j->call, j->bytes);
    if (j->matrices > 1)
        snprintf(which, sizeof which, "matrix %lld of the %lld", (long long)j->bad + 1, (long long)j->matrices);
    if (j->info == NOT_FINITE)
        return fail(j->call, LUDA_EINVAL, "%s: %s holds NaN or infinity", op_name(j->call), which);
    return fail(j->call, LUDA_EINVAL, "%s: %s %s %d%s", op_name(j->call), which, j->operation->failed, j->info, j->operation->hint);
}

static luda_status run(const luda_call *call, const operation *operation, int size)
{
    const luda_operand *a = &call->in[0], *like = call->nin > 1 ? call->out : a;
    int64_t m = a->shape[a->ndim - 2], n = a->shape[a->ndim - 1];
    job j = { .call = call, .operation = operation, .library = luda__lapack(size), .size = size, .matrices = 1,
              .lock = PTHREAD_MUTEX_INITIALIZER, .bad = -1 };
    if (!j.library)
        return fail(call, LUDA_ENOTSUP, "%s: LAPACK was not found; install Debian's liblapack3 or libopenblas0, or name the file "
                    "in LUDA_LAPACK", op_name(call));
    if (call->out[0].numel == 0)
        return LUDA_OK;
    for (int d = 0; d < like->ndim - 2; d++)
        j.matrices *= like->shape[d];
    if (!plan_scratch(&j, m, n, call->nin > 1 ? call->in[1].shape[call->in[1].ndim - 1] : 0))
        return fail(call, LUDA_EINVAL, "%s: %lld x %lld is beyond LAPACK's 32-bit sizes", op_name(call), (long long)m, (long long)n);
    luda__parallel(ceil_div(j.matrices, j.per_slab), run_slab, &j);
    return j.bad < 0 ? LUDA_OK : explain(&j);
}

#define EACH_CLASSES CLASS_FLOAT
#define EACH "kernels/cpu/linalg/linalg.inc"
#include "kernels/cpu/each.h"
