/*
 * dft: lines along one dimension, in double whatever is stored. A size whose prime factors are small goes through them one
 * after the other (Stockham's order, which needs no bit reversal); any other is a convolution (Bluestein 1970) of a size
 * whose factors are at most 5.
 */
#include "kernels/cpu/index/lines.h"

enum { MOST_FACTORS = 64, SMALL_RADIX = 5, LARGEST_RADIX = 31, EXACT = 64 };

typedef struct point {
    double re, im;
} point;

typedef struct passes {
    int64_t length;
    int count, radix[MOST_FACTORS];
    point *root; /* exp(± 2 pi i k / length), for each k */
} passes;

typedef struct transform {
    lines l; /* result, input; first, as lines are what a slab gets */
    passes p;
    int64_t n; /* points of a line */
    int complex[2];
    int64_t pair[2]; /* from a real part to its imaginary part, 0 in a view that repeats one */
    double scale;
    double (*get)(const void *element);
    void (*put)(void *element, double value);
    int64_t size; /* of an element */
    point *chirp, *kernel; /* Bluestein's, or NULL: exp(± pi i k k / n), and the transform of what it is convolved with */
} transform;

static inline point times(point a, point b)
{
    return (point){ a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re };
}

static inline point conjugate(point a)
{
    return (point){ a.re, -a.im };
}

static point on_circle(double turns, double sign)
{
    double angle = 6.283185307179586476925 * turns;
    return (point){ cos(angle), sign * sin(angle) };
}

/* All roots from some exact ones. */
static void fill_roots(point *root, int64_t n, double sign)
{
    point fine[EXACT];
    for (int j = 0; j < EXACT; j++)
        fine[j] = on_circle((double)j / (double)n, sign);
    for (int64_t k = 0; k < n; k += EXACT) {
        point coarse = on_circle((double)k / (double)n, sign);
        for (int64_t j = 0; j < EXACT && k + j < n; j++)
            root[k + j] = times(coarse, fine[j]);
    }
}

/* False where a prime factor is larger than `largest`. */
static int factorize(passes *p, int64_t n, int largest)
{
    p->length = n;
    p->count = 0;
    for (int radix = 4; n > 1 && radix <= largest; radix = radix == 4 ? 2 : radix == 2 ? 3 : radix + 2)
        for (; n % radix == 0; n /= radix)
            p->radix[p->count++] = radix;
    return n == 1;
}

/*
 * The sums over `radix` points, `m` steps apart, that go to results i * radix, i * radix + 1, … of a pass. Roots come in
 * conjugate pairs, so that points and results are taken two by two: sums with cosines, differences with sines.
 */
static void butterflies(const passes *p, int radix, int64_t m, int64_t i, int64_t stride, const point *x, point *y)
{
    point sum[LARGEST_RADIX / 2 + 1], difference[LARGEST_RADIX / 2 + 1];
    const point *root = p->root;
    int64_t turn = p->length / radix;
    for (int64_t q = 0; q < stride; q++) {
        const point *in = x + q + stride * i;
        point *out = y + q + stride * radix * i, first = *in, total = first;
        for (int k = 1; k <= radix / 2; k++) {
            point a = in[stride * m * k], b = radix == 2 ? (point){ 0, 0 } : in[stride * m * (radix - k)];
            sum[k] = (point){ a.re + b.re, a.im + b.im };
            difference[k] = (point){ a.re - b.re, a.im - b.im };
            total.re += sum[k].re;
            total.im += sum[k].im;
        }
        out[0] = total;
        for (int j = 1; j <= radix / 2; j++) {
            point even = first, odd = { 0, 0 };
            for (int k = 1, at = j; k <= radix / 2; k++, at += at + j < radix ? j : j - radix) { /* at: j k modulo radix */
                point w = root[at * turn];
                even.re += sum[k].re * w.re;
                even.im += sum[k].im * w.re;
                odd.re -= difference[k].im * w.im;
                odd.im += difference[k].re * w.im;
            }
            out[stride * j] = times((point){ even.re + odd.re, even.im + odd.im }, root[j * i * stride]);
            if (radix > 2)
                out[stride * (radix - j)] = times((point){ even.re - odd.re, even.im - odd.im }, root[(radix - j) * i * stride]);
        }
    }
}

static void butterflies_of_4(const passes *p, int64_t m, int64_t i, int64_t stride, const point *x, point *y)
{
    const point *root = p->root;
    point once = root[i * stride], twice = root[2 * i * stride], thrice = root[3 * i * stride];
    double sign = root[p->length / 4].im;
    for (int64_t q = 0; q < stride; q++) {
        point a = x[q + stride * i], b = x[q + stride * (i + m)], c = x[q + stride * (i + 2 * m)], d = x[q + stride * (i + 3 * m)];
        point even = { a.re + c.re, a.im + c.im }, odd = { b.re + d.re, b.im + d.im };
        point left = { a.re - c.re, a.im - c.im }, right = { sign * (d.im - b.im), sign * (b.re - d.re) };
        point *out = y + q + stride * 4 * i;
        out[0] = (point){ even.re + odd.re, even.im + odd.im };
        out[stride] = times((point){ left.re + right.re, left.im + right.im }, once);
        out[2 * stride] = times((point){ even.re - odd.re, even.im - odd.im }, twice);
        out[3 * stride] = times((point){ left.re - right.re, left.im - right.im }, thrice);
    }
}

/* Transforms x; y is work space. Returns which of the two holds the result. */
static point *run_passes(const passes *p, point *x, point *y)
{
    int64_t left = p->length, stride = 1;
    for (int f = 0; f < p->count; f++) {
        int radix = p->radix[f];
        left /= radix;
        for (int64_t i = 0; i < left; i++)
            if (radix == 4)
                butterflies_of_4(p, left, i, stride, x, y);
            else
                butterflies(p, radix, left, i, stride, x, y);
        stride *= radix;
        point *swap = x;
        x = y;
        y = swap;
    }
    return x;
}

/* The points of x, of which there is room for p.length, as for y. */
static point *run_line(const transform *t, point *x, point *y)
{
    if (!t->chirp)
        return run_passes(&t->p, x, y);
    int64_t length = t->p.length;
    for (int64_t k = 0; k < t->n; k++)
        x[k] = times(x[k], t->chirp[k]);
    memset(x + t->n, 0, (size_t)(length - t->n) * sizeof *x);
    point *z = run_passes(&t->p, x, y);
    point *other = z == x ? y : x;
    for (int64_t k = 0; k < length; k++) /* conjugates turn the transform into its inverse */
        z[k] = conjugate(times(z[k], t->kernel[k]));
    z = run_passes(&t->p, z, other);
    for (int64_t k = 0; k < t->n; k++)
        z[k] = times(conjugate(z[k]), t->chirp[k]);
    return z;
}

/* The tables of a transform of n points; NULL where there is no memory. To be freed. */
static point *plan_transform(transform *t, int64_t n, double sign)
{
    int direct = factorize(&t->p, n, LARGEST_RADIX);
    int64_t length = direct ? n : 2 * n - 1;
    while (!direct && !factorize(&t->p, length, SMALL_RADIX))
        length++;
    t->n = n;
    int64_t points = direct ? length : 3 * length + n;
    point *memory = malloc((size_t)points * sizeof *memory);
    if (!memory)
        return NULL;
    t->p.root = memory;
    fill_roots(t->p.root, length, sign);
    if (direct)
        return memory;
    t->chirp = memory + length;
    point *wave = t->chirp + n;
    memset(wave, 0, (size_t)length * sizeof *wave);
    for (int64_t k = 0; k < n; k++) {
        t->chirp[k] = on_circle((double)(k * k % (2 * n)) / (double)(2 * n), sign);
        wave[k] = wave[(length - k) % length] = conjugate(t->chirp[k]);
    }
    t->kernel = run_passes(&t->p, wave, wave + length);
    for (int64_t k = 0; k < length; k++) {
        t->kernel[k].re /= (double)length;
        t->kernel[k].im /= (double)length;
    }
    return memory;
}

static void transform_lines(void *arg, int64_t slab)
{
    transform *t = arg;
    lines *l = &t->l;
    int64_t last = smaller((slab + 1) * l->per_slab, l->kept.numel), length = t->p.length;
    point *work = luda__scratch((size_t)(2 * length) * sizeof *work);
    if (!work) {
        atomic_store_explicit(&l->failed, 1, memory_order_relaxed);
        return;
    }
    for (int64_t k = slab * l->per_slab; k < last; k++) {
        char *y = l->data[0] + space_offset(&l->kept, 0, k) * t->size;
        const char *x = l->data[1] + space_offset(&l->kept, 1, k) * t->size;
        memset(work, 0, (size_t)t->n * sizeof *work);
        for (int64_t j = 0; j < smaller(t->n, l->size[1]); j++, x += l->stride[1] * t->size) {
            work[j].re = t->get(x);
            if (t->complex[1])
                work[j].im = t->get(x + t->pair[1] * t->size);
        }
        const point *z = run_line(t, work, work + length);
        for (int64_t j = 0; j < l->size[0]; j++, y += l->stride[0] * t->size) {
            t->put(y, t->scale * z[j].re);
            if (t->complex[0])
                t->put(y + t->pair[0] * t->size, t->scale * z[j].im);
        }
    }
}

static luda_status run_call(const luda_call *call, double (*get)(const void *), void (*put)(void *, double))
{
    const struct luda_dft_attrs *a = &call->attrs->dft;
    luda_operand y = call->out[0], x = call->in[0];
    const luda_operand *operands[] = { &y, &x };
    transform t = { .scale = a->scale, .get = get, .put = put, .size = luda__item_size(x.dtype) };
    t.complex[0] = a->transform != LUDA_DFT_HERMITIAN;
    t.complex[1] = a->transform != LUDA_DFT_REAL;
    if (t.complex[0])
        t.pair[0] = y.stride[--y.ndim];
    if (t.complex[1])
        t.pair[1] = x.stride[--x.ndim];
    if (y.numel == 0)
        return LUDA_OK;
    plan_lines(call, operands, 2, a->dim, &t.l);
    int64_t n = larger(t.l.size[0], t.l.size[1]);
    point *memory = plan_transform(&t, n, a->inverse ? 1 : -1);
    if (!memory)
        return fail_memory(call, (size_t)n * sizeof *memory);
    luda_status status = run_lines(&t.l, 8 * t.p.length, transform_lines);
    free(memory);
    return status;
}

#define EACH_CLASSES CLASS_FLOAT
#define EACH "kernels/cpu/fft/fft.inc"
#include "kernels/cpu/each.h"
