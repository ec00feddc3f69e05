/* See halves.h. The processor's own conversions where it has them; they round as convert.h does. */
#include "halves.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

/* The elements that fill whole vectors; returns how many. */
static int64_t load_vectors_f16(const uint16_t *x, int64_t n, float *to)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(x + i))));
#endif
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
#endif
    return i;
}

static int64_t store_vectors_f16(const float *x, int64_t n, uint16_t *to)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(to + i), _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    return i;
}

static int64_t load_vectors_bf16(const uint16_t *x, int64_t n, float *to)
{
    return 0;
}

static int64_t store_vectors_bf16(const float *x, int64_t n, uint16_t *to)
{
    return 0;
}

#define EACH_CLASSES CLASS_FLOAT
#define EACH "kernels/cpu/halves.inc"
#include "kernels/cpu/each.h"
