"""Integers in network byte order, at addresses of any alignment: as `struct` packs ``>H``, ``>I`` and ``>Q``."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from *:
    """
    static inline void put16(unsigned char *to, uint16_t v) { v = __builtin_bswap16(v); __builtin_memcpy(to, &v, 2); }
    static inline void put32(unsigned char *to, uint32_t v) { v = __builtin_bswap32(v); __builtin_memcpy(to, &v, 4); }
    static inline void put64(unsigned char *to, uint64_t v) { v = __builtin_bswap64(v); __builtin_memcpy(to, &v, 8); }
    static inline uint32_t get32(const unsigned char *at)
    { uint32_t v; __builtin_memcpy(&v, at, 4); return __builtin_bswap32(v); }
    static inline uint64_t get64(const unsigned char *at)
    { uint64_t v; __builtin_memcpy(&v, at, 8); return __builtin_bswap64(v); }
    """
    void put16(uint8_t *to, uint16_t value) nogil
    void put32(uint8_t *to, uint32_t value) nogil
    void put64(uint8_t *to, uint64_t value) nogil
    uint32_t get32(const uint8_t *at) nogil
    uint64_t get64(const uint8_t *at) nogil
