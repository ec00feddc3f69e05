/* CRC-32C (Castagnoli), the checksum of tensor files and frames. */
#ifndef LUDA_CRC32C_H
#define LUDA_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of `bytes` more bytes after those that gave `crc`; 0 starts. */
uint32_t luda__crc32c(uint32_t crc, const void *data, size_t bytes);
/* That of two pieces one after the other, from their own; the second has so many bytes. */
uint32_t luda__crc32c_join(uint32_t first, uint32_t second, size_t bytes);

#endif
