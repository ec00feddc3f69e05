/* CRC-32C (Castagnoli), the checksum of tensor files and frames. */
#ifndef LUDA_CRC32C_H
#define LUDA_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of `bytes` more bytes after those that gave `crc`; 0 starts. */
uint32_t luda__crc32c(uint32_t crc, const void *data, size_t bytes);

#endif
