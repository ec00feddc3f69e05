/*
 * CRC-32C: products of polynomials without carries over 64 bytes at once where there are such instructions, else the CRC
 * instruction over three interleaved lanes (it has a latency of three cycles), else eight bytes a step from tables.
 */
#include "crc32c.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define HARDWARE 1
#define WIDE 1
#define WIDE_TARGET __attribute__((target("avx512f,vpclmulqdq,sse4.2")))
#define CRC_TARGET __attribute__((target("sse4.2")))
#define crc_8(state, value) ((uint32_t)_mm_crc32_u64((state), (value)))
#define crc_1(state, value) _mm_crc32_u8((state), (value))
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define HARDWARE 1
#define CRC_TARGET
#define crc_8(state, value) __crc32cd((state), (value))
#define crc_1(state, value) __crc32cb((state), (value))
#else
#define HARDWARE 0
#endif

/* The polynomial with its bits reversed. */
#define POLYNOMIAL 0x82F63B78u
/* Bytes of one lane; a multiple of 8. */
#define LANE 2048

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t slice[8][256];
static uint32_t (*update)(uint32_t state, const unsigned char *data, size_t bytes);

/* The product of two polynomials modulo the CRC's; the highest bit is the coefficient of x^0. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (int bit = 31; bit >= 0; bit--) {
        product ^= a >> bit & 1 ? b : 0;
        b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

/* x^n modulo the CRC's polynomial. */
static uint32_t power_of_x(size_t n)
{
    uint32_t result = 1u << 31, power = 1u << 30; /* x^0, x^1 */
    for (; n > 0; n >>= 1) {
        if (n & 1)
            result = multiply(result, power);
        power = multiply(power, power);
    }
    return result;
}

static uint64_t load_8(const unsigned char *data)
{
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static uint32_t update_tables(uint32_t state, const unsigned char *data, size_t bytes)
{
    for (; bytes >= 8; bytes -= 8, data += 8) {
        uint64_t value = load_8(data) ^ state;
        state = 0;
        for (int byte = 0; byte < 8; byte++)
            state ^= slice[7 - byte][value >> (8 * byte) & 255];
    }
    for (; bytes > 0; bytes--, data++)
        state = state >> 8 ^ slice[0][(state ^ *data) & 255];
    return state;
}

#if HARDWARE
/* What LANE zero bytes make of a state, per byte of the state: the state's update is linear. */
static uint32_t lane_shift[4][256];

static uint32_t shift_lane(uint32_t state)
{
    return lane_shift[0][state & 255] ^ lane_shift[1][state >> 8 & 255] ^ lane_shift[2][state >> 16 & 255] ^
           lane_shift[3][state >> 24];
}

CRC_TARGET static uint32_t update_hardware(uint32_t state, const unsigned char *data, size_t bytes)
{
    for (; bytes >= 3 * LANE; bytes -= 3 * LANE, data += 3 * LANE) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < LANE; i += 8) {
            state = crc_8(state, load_8(data + i));
            second = crc_8(second, load_8(data + LANE + i));
            third = crc_8(third, load_8(data + 2 * LANE + i));
        }
        state = shift_lane(shift_lane(state) ^ second) ^ third;
    }
    for (; bytes >= 8; bytes -= 8, data += 8)
        state = crc_8(state, load_8(data));
    for (; bytes > 0; bytes--, data++)
        state = crc_1(state, *data);
    return state;
}

static void make_lane_shift(void)
{
    static const unsigned char zeros[LANE];
    uint32_t basis[32];
    for (int bit = 0; bit < 32; bit++)
        basis[bit] = update_tables(1u << bit, zeros, LANE);
    for (int byte = 0; byte < 4; byte++)
        for (int value = 0; value < 256; value++)
            for (int bit = 0; bit < 8; bit++)
                if (value >> bit & 1)
                    lane_shift[byte][value] ^= basis[8 * byte + bit];
}
#endif

#ifdef WIDE
enum { STRIDE = 256 };

/* What moves a lane of 128 bits STRIDE bytes on: for its first half, which lies 64 bits further, and for its second. */
static uint64_t wide_shift[2];

/* A product of reflected numbers is one power of x too high, hence the 1. */
static void make_wide_shift(void)
{
    wide_shift[0] = (uint64_t)power_of_x(8 * STRIDE + 64 - 1) << 32;
    wide_shift[1] = (uint64_t)power_of_x(8 * STRIDE - 1) << 32;
}

/* Four registers hold what all bytes so far are congruent to; the CRC of what they hold at the end is the state. */
WIDE_TARGET static uint32_t update_wide(uint32_t state, const unsigned char *data, size_t bytes)
{
    if (bytes < 2 * STRIDE)
        return update_hardware(state, data, bytes);
    unsigned char rest[STRIDE];
    const __m512i shift = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)wide_shift));
    __m512i sum[4];
    for (int i = 0; i < 4; i++)
        sum[i] = _mm512_loadu_si512(data + 64 * i);
    sum[0] = _mm512_xor_si512(sum[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    for (data += STRIDE, bytes -= STRIDE; bytes >= STRIDE; data += STRIDE, bytes -= STRIDE)
        for (int i = 0; i < 4; i++) {
            const __m512i first = _mm512_clmulepi64_epi128(sum[i], shift, 0x00);
            const __m512i second = _mm512_clmulepi64_epi128(sum[i], shift, 0x11);
            sum[i] = _mm512_ternarylogic_epi64(first, second, _mm512_loadu_si512(data + 64 * i), 0x96);
        }
    for (int i = 0; i < 4; i++)
        _mm512_storeu_si512(rest + 64 * i, sum[i]);
    return update_hardware(update_hardware(0, rest, STRIDE), data, bytes);
}
#endif

static void start(void)
{
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t state = value;
        for (int bit = 0; bit < 8; bit++)
            state = state & 1 ? state >> 1 ^ POLYNOMIAL : state >> 1;
        slice[0][value] = state;
    }
    for (int step = 1; step < 8; step++)
        for (int value = 0; value < 256; value++)
            slice[step][value] = slice[step - 1][value] >> 8 ^ slice[0][slice[step - 1][value] & 255];
    update = update_tables;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2"))
        return;
#endif
#if HARDWARE
    make_lane_shift();
    update = update_hardware;
#endif
#ifdef WIDE
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq")) {
        make_wide_shift();
        update = update_wide;
    }
#endif
}

uint32_t luda__crc32c(uint32_t crc, const void *data, size_t bytes)
{
    pthread_once(&once, start);
    return ~update(~crc, data, bytes);
}

uint32_t luda__crc32c_join(uint32_t first, uint32_t second, size_t bytes)
{
    return multiply(power_of_x(8 * bytes), first) ^ second;
}
