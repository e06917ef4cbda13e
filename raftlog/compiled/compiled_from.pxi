"""Which sources a library was compiled from: it is used with no others."""


cdef extern from *:
    """
    #ifndef SOURCE_SHA256
    #define SOURCE_SHA256 ""
    #endif
    """
    const char *SOURCE_SHA256


COMPILED_FROM = SOURCE_SHA256.decode()
