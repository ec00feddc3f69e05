/* rand, randn, randint, randperm and dropout; kernels/random.h says what each element is. */
#include "scalar.cuh"
#include "sort.cuh"
#include "words.cuh"

/* Lemire, "Fast random integer generation in an interval" (2019). range 0: all 2^64. */
static __device__ inline uint64_t bounded(draw d, uint64_t range, int64_t element)
{
    uint64_t word = wide_word(d, element);
    if (range == 0)
        return word;
    unsigned __int128 product = static_cast<unsigned __int128>(word) * range;
    uint64_t least = static_cast<uint64_t>(product) < range ? (0 - range) % range : 0;
    for (uint64_t attempt = 1; static_cast<uint64_t>(product) < least; attempt++) {
        uint64_t seed = luda__redraw_seed(d.seed, attempt), block = d.counter + static_cast<uint64_t>(element) / 2;
        product = static_cast<unsigned __int128>(wide_word_of(seed, block, element)) * range;
    }
    return static_cast<uint64_t>(product >> 64);
}

/* --- What an element is --- */

template <class T>
struct uniform {
    draw d;
    __device__ T operator()(int64_t element) const
    {
        const int bits = sizeof(T) == 4 ? 24 : to<T>(1.00390625f) == to<T>(1.0f) ? 8 : 11; /* of f32, bf16, f16 */
        return to<T>(luda__fraction(narrow_word(d, element), bits));
    }
};
template <>
struct uniform<double> {
    draw d;
    __device__ double operator()(int64_t element) const { return luda__fraction_wide(wide_word(d, element)); }
};

template <class T>
struct normal {
    draw d;
    __device__ T operator()(int64_t element) const
    {
        int64_t pair = element - element % 2;
        float radius = sqrt(-2.0f * log(luda__positive_fraction(narrow_word(d, pair))));
        float angle = 6.28318531f * luda__fraction(narrow_word(d, pair + 1), 24);
        return to<T>(radius * (element % 2 ? sin(angle) : cos(angle)));
    }
};
template <>
struct normal<double> {
    draw d;
    __device__ double operator()(int64_t element) const
    {
        int64_t pair = element - element % 2;
        double radius = sqrt(-2.0 * log(luda__positive_fraction_wide(wide_word(d, pair))));
        double angle = 6.28318530717958647693 * luda__fraction_wide(wide_word(d, pair + 1));
        return radius * (element % 2 ? sin(angle) : cos(angle));
    }
};

template <class T>
struct whole_number {
    draw d;
    int64_t low;
    uint64_t range;
    __device__ T operator()(int64_t element) const
    {
        return to<T>(static_cast<int64_t>(static_cast<uint64_t>(low) + bounded(d, range, element)));
    }
};

/* --- The kernel over elements --- */

template <class T, class F>
__global__ void generate(space<1> s, T *out, F f)
{
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[1];
        s.locate(i, at);
        out[at[0]] = f(i);
    }
}

template <class T, class F>
static luda_status launch_generate(const luda_call *call, F f)
{
    space<1> s = common_space<1>({ &call->out[0] });
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (s.numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((generate<T, F>), blocks_for(s.numel), BLOCK, 0, stream->stream, s, static_cast<T *>(call->out[0].data), f);
    return launched(call);
}

template <class T>
static luda_status random_whole(const luda_call *call)
{
    const struct luda_random_attrs *a = &call->attrs->random;
    uint64_t range = static_cast<uint64_t>(a->high) - static_cast<uint64_t>(a->low);
    return launch_generate<T>(call, whole_number<T>{ draw_of(&a->generator), a->low, range });
}

/* --- dropout --- */

template <class T, class C>
__global__ void drop(space<2> s, T *out, const T *x, draw d, double p, C scale)
{
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[2];
        s.locate(i, at);
        bool kept = static_cast<double>(luda__fraction(narrow_word(d, i), 24)) >= p;
        out[at[0]] = to<T>(kept ? load(x[at[1]]) * scale : C(0));
    }
}

template <class T>
static luda_status launch_drop(const luda_call *call)
{
    typedef typename computed_as<T>::type C;
    const struct luda_dropout_attrs *a = &call->attrs->dropout;
    space<2> s = common_space<2>({ &call->out[0], &call->in[0] });
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (s.numel == 0)
        return LUDA_OK;
    LUDA_LAUNCH((drop<T, C>), blocks_for(s.numel), BLOCK, 0, stream->stream, s, static_cast<T *>(call->out[0].data),
                static_cast<const T *>(call->in[0].data), draw_of(&a->generator), a->p,
                static_cast<C>(a->p < 1 ? 1 / (1 - a->p) : 0));
    return launched(call);
}

/* --- randperm: positions sorted by wide words; what pads them to a power of two sorts behind them --- */

__global__ void draw_keys(keyed *items, int64_t n, int64_t padded, draw d)
{
    for (int64_t i = first_element(); i < padded; i += step())
        items[i] = { i < n ? wide_word(d, i) : ~static_cast<uint64_t>(0), i };
}

template <class T>
__global__ void take_values(space<1> s, T *out, const keyed *items, int64_t low)
{
    for (int64_t i = first_element(); i < s.numel; i += step()) {
        int64_t at[1];
        s.locate(i, at);
        out[at[0]] = to<T>(low + items[i].value);
    }
}

template <class T>
static luda_status permute_in(const luda_call *call, luda_cuda_stream *stream)
{
    space<1> s = common_space<1>({ &call->out[0] });
    int64_t padded = power_above(s.numel);
    size_t bytes = static_cast<size_t>(padded) * sizeof(keyed);
    keyed *items = static_cast<keyed *>(luda__cuda_scratch(stream, bytes));
    if (!items)
        return fail_memory(call, bytes);
    LUDA_LAUNCH(draw_keys, blocks_for(padded), BLOCK, 0, stream->stream, items, s.numel, padded,
                draw_of(&call->attrs->random.generator));
    luda_status status = launched(call);
    if (status == LUDA_OK)
        status = luda__cuda_sort(call, stream, items, padded, padded);
    if (status != LUDA_OK)
        return status;
    LUDA_LAUNCH((take_values<T>), blocks_for(s.numel), BLOCK, 0, stream->stream, s, static_cast<T *>(call->out[0].data), items,
                call->attrs->random.low);
    return launched(call);
}

template <class T>
static luda_status permutation(const luda_call *call)
{
    luda_cuda_stream *stream = stream_of(call);
    if (!stream)
        return LUDA_ECUDA;
    if (call->out[0].numel == 0)
        return LUDA_OK;
    pthread_mutex_lock(&stream->lock);
    luda_status status = permute_in<T>(call, stream);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

#define EACH "../cuda/random.inc"
#include "../cpu/each.h"
