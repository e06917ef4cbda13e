"""The checksum of a body, as `zlib.crc32` computes it.

Bodies are short: calling zlib through its Python module would take longer than the checksum itself.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

cdef uint32_t[16][256] _CRC_TABLES


cdef void _fill_crc_tables() noexcept:
    cdef uint32_t value
    cdef int n, bit, k
    for n in range(256):
        value = n
        for bit in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        _CRC_TABLES[0][n] = value
    for n in range(256):
        value = _CRC_TABLES[0][n]
        for k in range(1, 16):
            value = (value >> 8) ^ _CRC_TABLES[0][value & 0xFF]
            _CRC_TABLES[k][n] = value


_fill_crc_tables()


cdef inline uint32_t _little32(const uint8_t *at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef uint32_t crc32(const uint8_t *data, size_t size) noexcept nogil:
    """The checksum of ``size`` bytes; 16 bytes at a step, on a little-endian processor."""
    cdef uint32_t crc = 0xFFFFFFFF, a, b, c, d
    while size >= 16:
        a = _little32(data) ^ crc
        b = _little32(data + 4)
        c = _little32(data + 8)
        d = _little32(data + 12)
        crc = (
            _CRC_TABLES[15][a & 0xFF] ^ _CRC_TABLES[14][(a >> 8) & 0xFF]
            ^ _CRC_TABLES[13][(a >> 16) & 0xFF] ^ _CRC_TABLES[12][a >> 24]
            ^ _CRC_TABLES[11][b & 0xFF] ^ _CRC_TABLES[10][(b >> 8) & 0xFF]
            ^ _CRC_TABLES[9][(b >> 16) & 0xFF] ^ _CRC_TABLES[8][b >> 24]
            ^ _CRC_TABLES[7][c & 0xFF] ^ _CRC_TABLES[6][(c >> 8) & 0xFF]
            ^ _CRC_TABLES[5][(c >> 16) & 0xFF] ^ _CRC_TABLES[4][c >> 24]
            ^ _CRC_TABLES[3][d & 0xFF] ^ _CRC_TABLES[2][(d >> 8) & 0xFF]
            ^ _CRC_TABLES[1][(d >> 16) & 0xFF] ^ _CRC_TABLES[0][d >> 24]
        )
        data += 16
        size -= 16
    while size:
        crc = (crc >> 8) ^ _CRC_TABLES[0][(crc ^ data[0]) & 0xFF]
        data += 1
        size -= 1
    return ~crc
