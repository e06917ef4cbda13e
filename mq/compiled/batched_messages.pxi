"""The messages of a batch.

The reference are `mq.protocol.messages.batch.split_batch` and `mq.broker.produce.batch.BatchSends`.

Each message has a head of 20 bytes (its size, a magic number, a checksum, its flag, the size of its body), the body,
two bytes with the length of the properties, and the properties.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memmove


cdef struct BatchedMessage:
    int64_t size
    int32_t flag
    const uint8_t *body
    int64_t body_bytes
    const uint8_t *properties
    int64_t properties_bytes  # 1 or more


cdef bint read_batched_message(const uint8_t *at, Py_ssize_t left, BatchedMessage *message) noexcept nogil:
    """Read the message that begins at ``at``, of which ``left`` bytes are there; false if it is not plain.

    It is not if a length is wrong, if it has no properties, or any that are not ASCII.
    """
    cdef int64_t n
    if left < BATCHED_FIXED_BYTES:
        return False
    message.size = <int32_t>get32(at)
    message.flag = <int32_t>get32(at + BATCHED_FLAG_AT)
    message.body_bytes = <int32_t>get32(at + BATCHED_BODY_LENGTH_AT)
    if not BATCHED_FIXED_BYTES <= message.size <= left:
        return False
    if not 0 <= message.body_bytes <= message.size - BATCHED_FIXED_BYTES:
        return False
    message.body = at + BATCHED_HEAD_BYTES
    message.properties = message.body + message.body_bytes + 2
    message.properties_bytes = message.size - BATCHED_FIXED_BYTES - message.body_bytes
    if message.properties[-2] * 256 + message.properties[-1] != message.properties_bytes:
        return False
    if message.properties_bytes == 0 or message.properties_bytes > PROPERTIES_BYTES_MAX:
        return False
    for n in range(message.properties_bytes):
        if message.properties[n] >= 0x80:
            return False
    return True


cdef int64_t write_shared_properties(Text properties, uint8_t *to) noexcept nogil:
    """Write what the properties of a batch add to each of its messages, and return how many bytes; -1 if they are not
    plain.

    That is all but the unique key: behind a message's own it would hide that. ``to`` has `PROPERTIES_BYTES_MAX` bytes.
    """
    cdef int64_t size, at = 0, end, kept = 0
    if properties.size >= PROPERTIES_BYTES_MAX:
        return -1
    size = unescape(properties, to)
    if size < 0:
        return -1
    if size and to[size - 1] != VALUE_END:
        to[size] = VALUE_END
        size += 1
    while at < size:
        end = at
        while to[end] != VALUE_END:
            end += 1
        end += 1
        if end - at > 1 and not starts_with(to + at, to + end, b"UNIQ_KEY\x01", 9):
            memmove(to + kept, to + at, end - at)
            kept += end - at
        at = end
    return kept
