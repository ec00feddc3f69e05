/* sort, cummax, cummin, searchsorted, nonzero, linear_scan: lines of elements taken in order. */
#include "lines.h"

#include "kernels/order.h"

enum { SHORT = 48 }; /* lines up to this size are sorted by insertion */

typedef struct entry {
    uint64_t key;
    int64_t position;
} entry;

static void sort_short(entry *line, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        entry moving = line[i];
        int64_t j = i;
        for (; j > 0 && line[j - 1].key > moving.key; j--)
            line[j] = line[j - 1];
        line[j] = moving;
    }
}

/* By one byte of the keys after the other, from the least; stable. Returns where the result lies. */
static entry *sort_line(entry *line, entry *other, int64_t n, int bytes)
{
    if (n <= SHORT) {
        sort_short(line, n);
        return line;
    }
    for (int byte = 0; byte < bytes; byte++) {
        int64_t starts[257] = { 0 };
        for (int64_t i = 0; i < n; i++)
            starts[(line[i].key >> 8 * byte & 255) + 1]++;
        if (starts[(line[0].key >> 8 * byte & 255) + 1] == n)
            continue;
        for (int digit = 0; digit < 256; digit++)
            starts[digit + 1] += starts[digit];
        for (int64_t i = 0; i < n; i++)
            other[starts[line[i].key >> 8 * byte & 255]++] = line[i];
        entry *swap = line;
        line = other;
        other = swap;
    }
    return line;
}

static inline uint64_t key_f64(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return luda__float_key(bits, 64, 0x7FF0000000000000u);
}

static inline uint64_t key_f32(float v) { return luda__float_key(float_bits(v), 32, 0x7F800000u); }
static inline uint64_t key_f16(uint16_t v) { return luda__float_key(v, 16, 0x7C00u); }
static inline uint64_t key_bf16(uint16_t v) { return luda__float_key(v, 16, 0x7F80u); }
static inline uint64_t key_i64(int64_t v) { return (uint64_t)v ^ (uint64_t)1 << 63; }
static inline uint64_t key_i32(int32_t v) { return (uint32_t)v ^ 0x80000000u; }
static inline uint64_t key_i16(int16_t v) { return (uint16_t)(v ^ 0x8000); }
static inline uint64_t key_i8(int8_t v) { return (uint8_t)(v ^ 0x80); }
static inline uint64_t key_u8(uint8_t v) { return v; }
static inline uint64_t key_bool(uint8_t v) { return v != 0; }

#define EACH "kernels/cpu/index/order.inc"
#include "kernels/cpu/each.h"
