"""Replies to plain sends, as whole frames; the reference is `mq.protocol.wire.encoding.SendReplyTemplate`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    HOST_HEX_BYTES = 16
    OFFSET_HEX_BYTES = 16
    DECIMAL_BYTES_MAX = 20


cdef uint8_t *_copy(uint8_t *to, bytes text) noexcept:
    memcpy(to, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return to + PyBytes_GET_SIZE(text)


cdef uint8_t *write_decimal(uint8_t *to, int64_t value) noexcept nogil:
    cdef uint8_t[DECIMAL_BYTES_MAX] digits
    cdef int count = 0
    cdef uint64_t rest = <uint64_t>value
    if value < 0:
        to[0] = b'-'
        to += 1
        rest = -rest
    while True:
        digits[count] = <uint8_t>(48 + rest % 10)
        count += 1
        rest //= 10
        if rest == 0:
            break
    while count:
        count -= 1
        to[0] = digits[count]
        to += 1
    return to


cdef uint8_t *_write_hex16(uint8_t *to, uint64_t value) noexcept nogil:
    cdef int n, digit
    for n in range(15, -1, -1):
        digit = value & 15
        to[n] = <uint8_t>(48 + digit if digit < 10 else 55 + digit)  # 0 to 9, A to F
        value >>= 4
    return to + 16


cdef class _ReplyTemplate:
    """The text of a reply around its five fields: physical offsets, queue id, queue offset, keys and opaque."""

    cdef bytes before_offsets, before_queue_id, before_queue_offset, before_keys, before_opaque, end
    cdef bytes next_offset
    cdef bytes numbered_batch  # a further field, behind the keys
    cdef Py_ssize_t parts_bytes

    def __init__(self, parts, bytes numbered_batch not None, bytes store_host not None):
        (
            self.before_offsets,
            self.before_queue_id,
            self.before_queue_offset,
            self.before_keys,
            self.before_opaque,
            self.end,
        ) = parts
        assert len(store_host) * 2 == HOST_HEX_BYTES, f"a store host of {len(store_host)} bytes"
        self.next_offset = b"," + store_host.hex().upper().encode()
        self.numbered_batch = numbered_batch
        self.parts_bytes = sum(len(part) for part in parts) + len(numbered_batch)

    cdef Py_ssize_t bytes_max(
        self, const Request *requests, Py_ssize_t request_count, const Send *sends, Py_ssize_t count
    ) noexcept:
        """Bytes that replies to these requests have at most."""
        # Of each message its key, an id of host and physical offset, and a comma behind both.
        cdef Py_ssize_t n, total = request_count * (PREFIX_BYTES + self.parts_bytes + 3 * DECIMAL_BYTES_MAX)
        for n in range(count):
            total += sends[n].key_size + HOST_HEX_BYTES + OFFSET_HEX_BYTES + 2
        return total

    cdef uint8_t *render(
        self,
        uint8_t *begin,
        const Request *request,
        const Send *sends,
        int64_t queue_id,
        int64_t queue_offset,
        int64_t position,
        const uint8_t *records,
    ) noexcept:
        """Write the reply to a request whose messages are ``sends``, the first at ``queue_offset``; returns its end.

        ``records`` are those of the block, which begin at physical offset ``position``.
        """
        cdef uint8_t *to = _copy(begin + PREFIX_BYTES, self.before_offsets)
        cdef uint32_t n
        for n in range(request.count):
            if n:
                to = _copy(to, self.next_offset)
            to = _write_hex16(to, <uint64_t>(position + sends[n].record_at))
        to = _copy(to, self.before_queue_id)
        to = _copy(write_decimal(to, queue_id), self.before_queue_offset)
        to = _copy(write_decimal(to, queue_offset), self.before_keys)
        for n in range(request.count):
            if n:
                to[0] = b','
                to += 1
            memcpy(to, records + sends[n].key_at, sends[n].key_size)
            to += sends[n].key_size
        if request.is_batch and request.producer >= 0:
            to = _copy(to, self.numbered_batch)
        to = _copy(to, self.before_opaque)
        to = _copy(write_decimal(to, request.opaque), self.end)
        put32(begin, <uint32_t>(to - begin - 4))
        put32(begin + 4, <uint32_t>(to - begin - PREFIX_BYTES))
        return to
