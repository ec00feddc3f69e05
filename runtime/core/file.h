/*
 * What the writer and the reader of tensor files share.
 *
 * A file is the length of the header (8 bytes, little-endian), the header (a JSON object, padded with spaces), and the
 * elements of all tensors without gaps. Two strings of the header's metadata are LUDA's: KEY_TENSORS holds JSON text
 * that maps each name to the CRC-32C of its bytes, KEY_HEADER the CRC-32C of length and header, with its own digits as
 * zeros.
 */
#ifndef LUDA_FILE_H
#define LUDA_FILE_H

#include "ops.h"

#include <stdio.h>
#include <string.h>

#include "crc32c.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensor files are little-endian and are written from memory as it is"
#endif

#define KEY_METADATA "__metadata__"
#define KEY_PREFIX "luda."
#define KEY_HEADER "luda.header_crc32c"
#define KEY_TENSORS "luda.crc32c"

enum {
    LENGTH_BYTES = 8,
    CRC_DIGITS = 8,
    HEADER_LIMIT = 100 << 20,
    CHUNK = 256 << 10, /* small enough that the second of checksum and copy finds the bytes in the cache */
};

/* Where the digits of the header's checksum stand in the header; NULL where there are none. */
static inline char *header_digits(char *header, size_t length)
{
    static const char mark[] = "\"" KEY_HEADER "\":\"";
    char *found = memmem(header, length, mark, sizeof mark - 1);
    if (!found || (size_t)(header + length - found) < sizeof mark - 1 + CRC_DIGITS + 1)
        return NULL;
    return found + sizeof mark - 1;
}

/* The checksum of length and header, whose own digits, at `digits`, count as zeros. */
static inline uint32_t header_checksum(const char *header, size_t length, const char *digits)
{
    uint64_t length_field = length;
    uint32_t crc = luda__crc32c(0, &length_field, LENGTH_BYTES);
    crc = luda__crc32c(crc, header, (size_t)(digits - header));
    crc = luda__crc32c(crc, "00000000", CRC_DIGITS);
    return luda__crc32c(crc, digits + CRC_DIGITS, (size_t)(header + length - digits - CRC_DIGITS));
}

static inline void put_digits(char *digits, uint32_t crc)
{
    char text[CRC_DIGITS + 1];
    snprintf(text, sizeof text, "%08x", (unsigned)crc);
    memcpy(digits, text, CRC_DIGITS);
}

#endif
