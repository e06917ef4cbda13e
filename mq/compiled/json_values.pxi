"""Strings and integers of compact JSON in ASCII; the reference is `msgspec.json`, which accepts more.

A function that reads takes the address of a cursor and the end of the text. It returns false for whatever is not what
it reads, and where the text ends too early; otherwise the cursor is behind the value then. Each byte is compared with
the end before it is read.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

cdef enum:
    DIGITS_MAX = 18

cdef struct Text:
    const uint8_t *at
    uint32_t size
    bint escaped  # contains a backslash


cdef bint read_string(const uint8_t **cursor, const uint8_t *end, Text *text) noexcept nogil:
    """A string, without its quotes and with its escapes as they are; `unescape` checks what follows a backslash."""
    cdef const uint8_t *at = cursor[0]
    cdef uint8_t byte
    if at >= end or at[0] != b'"':
        return False
    at += 1
    text.at = at
    text.escaped = False
    while at < end:
        byte = at[0]
        if byte == b'"':
            text.size = <uint32_t>(at - text.at)
            cursor[0] = at + 1
            return True
        if byte < 0x20 or byte >= 0x80:
            return False
        if byte == b'\\':
            text.escaped = True
            at += 1
            if at >= end:
                return False
        at += 1
    return False


cdef bint read_integer(
    const uint8_t **cursor, const uint8_t *end, int64_t lowest, int64_t highest, int64_t *value
) noexcept nogil:
    """An integer in these bounds, without exponent or needless zeros."""
    cdef const uint8_t *at = cursor[0]
    cdef bint negative = at < end and at[0] == b'-'
    cdef int count = 0
    cdef int64_t total = 0
    if negative:
        at += 1
    cdef const uint8_t *first = at
    while at < end and b'0' <= at[0] <= b'9':
        if count == DIGITS_MAX:
            return False
        total = total * 10 + (at[0] - <uint8_t>b'0')
        at += 1
        count += 1
    if count == 0 or (first[0] == b'0' and (count > 1 or negative)):
        return False
    if negative:
        total = -total
    if total < lowest or total > highest:
        return False
    value[0] = total
    cursor[0] = at
    return True


cdef bint read_quoted_integer(
    const uint8_t **cursor, const uint8_t *end, int64_t lowest, int64_t highest, int64_t *value
) noexcept nogil:
    """A string that is an integer in these bounds."""
    if cursor[0] >= end or cursor[0][0] != b'"':
        return False
    cursor[0] += 1
    if not read_integer(cursor, end, lowest, highest, value) or cursor[0] >= end or cursor[0][0] != b'"':
        return False
    cursor[0] += 1
    return True


cdef bint equals(Text text, const char *wanted, uint32_t size) noexcept nogil:
    """Whether a string is ``wanted``, written without escapes."""
    return text.size == size and not text.escaped and memcmp(text.at, wanted, size) == 0


cdef int _hex_digit(uint8_t digit) noexcept nogil:
    if b'0' <= digit <= b'9':
        return digit - <uint8_t>b'0'
    digit |= 0x20
    if b'a' <= digit <= b'f':
        return digit - <uint8_t>b'a' + 10
    return -1


cdef int64_t unescape(Text text, uint8_t *to) noexcept nogil:
    """Write the characters of a string and return how many; -1 unless all are ASCII.

    ``to`` has room for ``text.size`` bytes: no escape is shorter than what it stands for.
    """
    cdef const uint8_t *at = text.at
    cdef const uint8_t *end = text.at + text.size
    cdef uint8_t *begin = to
    cdef uint8_t byte
    cdef int high, low
    while at < end:
        byte = at[0]
        at += 1
        if byte == b'\\':
            if at >= end:
                return -1
            byte = at[0]
            at += 1
            if byte == b'u':
                if end - at < 4 or at[0] != b'0' or at[1] != b'0':
                    return -1
                high, low = _hex_digit(at[2]), _hex_digit(at[3])
                if high < 0 or high > 7 or low < 0:
                    return -1
                byte = <uint8_t>(high * 16 + low)
                at += 4
            elif byte == b'n':
                byte = b'\n'
            elif byte == b't':
                byte = b'\t'
            elif byte == b'r':
                byte = b'\r'
            elif byte == b'b':
                byte = 8
            elif byte == b'f':
                byte = 12
            elif byte != b'"' and byte != b'\\' and byte != b'/':
                return -1
        to[0] = byte
        to += 1
    return to - begin
