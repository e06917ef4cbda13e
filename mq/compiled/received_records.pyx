# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A follower's check of the records that it receives; the reference is `mq.protocol.messages.records.check_records`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

include "compiled_from.pxi"  # COMPILED_FROM
include "big_endian.pxi"  # get32, get64
include "constants.pxi"


cdef int64_t _POSITIONS_END = <int64_t>1 << 62


def checked_records(data, position):
    """How many bytes at the start of ``data`` are records as the reference accepts them, if ``data`` is at physical
    offset ``position``.

    Stops at a record of another layout, with an address of IPv6 or the second magic number, and at a damaged one.
    Checks none if no log has this position.
    """
    cdef Py_buffer buffer
    cdef int overflow = 0
    cdef int64_t begin = PyLong_AsLongLongAndOverflow(position, &overflow)
    if overflow or not 0 <= begin < _POSITIONS_END:
        return 0
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    cdef Py_ssize_t checked = _checked_records(<const uint8_t *>buffer.buf, buffer.len, <uint64_t>begin)
    PyBuffer_Release(&buffer)
    assert 0 <= checked <= len(data), f"{checked} of {len(data)} bytes at {position} are records"
    return checked


cdef Py_ssize_t _checked_records(const uint8_t *data, Py_ssize_t length, uint64_t position) noexcept nogil:
    cdef Py_ssize_t at = 0, left
    cdef uint32_t size, rest
    cdef const uint8_t *record
    cdef const uint8_t *text
    while True:
        left = length - at
        record = data + at
        if left < FIXED_BYTES or get32(record + MAGIC_AT) != <uint32_t>MAGIC_V1:
            return at
        if get32(record + SYS_FLAG_AT) & IPV6_FLAGS:
            return at
        size = get32(record)
        if size < FIXED_BYTES or size > left or get64(record + PHYSICAL_OFFSET_AT) != position + <uint64_t>at:
            return at
        # What the lengths of body, topic and properties share. The body ends with the topic's length.
        rest = size - FIXED_BYTES
        if get32(record + BODY_LENGTH_AT) > rest:
            return at
        rest -= get32(record + BODY_LENGTH_AT)
        text = record + HEAD_BYTES + get32(record + BODY_LENGTH_AT)
        if text[0] > rest:
            return at
        rest -= text[0]
        text += 1 + text[0]
        if text[0] * 256 + text[1] != rest:
            return at
        at += size
