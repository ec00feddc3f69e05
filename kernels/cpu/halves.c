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

/* NaN become those of store_f16, with no digits of their own. */
static int64_t store_vectors_f16(const float *x, int64_t n, uint16_t *to)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    const __m512i sign = _mm512_set1_epi32(INT32_MIN), quiet = _mm512_set1_epi32(0x7FC00000);
    for (; i + 16 <= n; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);
        __m512i bits = _mm512_castps_si512(v);
        __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        bits = _mm512_mask_or_epi32(bits, nan, _mm512_and_si512(bits, sign), quiet);
        _mm256_storeu_si256((__m256i *)(to + i), _mm512_cvtps_ph(_mm512_castsi512_ps(bits), _MM_FROUND_TO_NEAREST_INT));
    }
#elif defined(__F16C__)
    const __m256 sign = _mm256_set1_ps(-0.0f), quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i), nan = _mm256_or_ps(_mm256_and_ps(v, sign), quiet);
        v = _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    return i;
}

static int64_t load_vectors_bf16(const uint16_t *x, int64_t n, float *to)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) {
        __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(x + i)));
        _mm512_storeu_si512(to + i, _mm512_slli_epi32(bits, 16));
    }
#endif
    return i;
}

static int64_t store_vectors_bf16(const float *x, int64_t n, uint16_t *to)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7FFF), quiet = _mm512_set1_epi32(0x7FC0);
    for (; i + 16 <= n; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);
        __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
        __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, half), _mm512_and_si512(high, one));
        __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        rounded = _mm512_mask_or_epi32(_mm512_srli_epi32(rounded, 16), nan, high, quiet);
        _mm256_storeu_si256((__m256i *)(to + i), _mm512_cvtepi32_epi16(rounded));
    }
#endif
    return i;
}

#define EACH_CLASSES CLASS_FLOAT
#define EACH "kernels/cpu/halves.inc"
#include "kernels/cpu/each.h"
