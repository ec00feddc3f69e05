/* `to`: conversion between any two element types, by the rules of convert.h. */
#include "kernels/cpu/halves.h"

#ifdef __AVX512F__
#include <immintrin.h>

/* HALVES floats as halves; NaN as store_f16 makes it. */
enum { HALVES = 16 };
#define HALVES HALVES

static inline void store_halves(uint16_t *out, const float *x)
{
    __m512 v = _mm512_loadu_ps(x);
    __m512i sign = _mm512_set1_epi32(INT32_MIN), nan = _mm512_set1_epi32(0x7FC00000), bits = _mm512_castps_si512(v);
    __mmask16 unordered = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    bits = _mm512_mask_ternarylogic_epi32(bits, unordered, sign, nan, 0xEA); /* bits & sign | nan */
    __m256i halves = _mm512_cvtps_ph(_mm512_castsi512_ps(bits), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256((__m256i *)out, halves);
}
#elif defined __F16C__
#include <immintrin.h>

enum { HALVES = 8 };
#define HALVES HALVES

static inline void store_halves(uint16_t *out, const float *x)
{
    __m256 v = _mm256_loadu_ps(x), sign = _mm256_set1_ps(-0.0f);
    __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    __m256 quiet = _mm256_or_ps(_mm256_and_ps(v, sign), nan);
    v = _mm256_blendv_ps(v, quiet, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    _mm_storeu_si128((__m128i *)out, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#endif

#define EACH "kernels/cpu/elementwise/cast.inc"
#include "kernels/cpu/each.h"
