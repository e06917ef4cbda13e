"""The messages of a batch.

The reference are `mq.protocol.messages.batch.split_batch` and `mq.broker.produce.batch.BatchSends`.

Each message has a head of 20 bytes (its size, a magic number, a checksum, its flag, the size of its body), the body,
two bytes with the length of the properties, and the properties.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memmove


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


cdef Py_ssize_t count_batched(const uint8_t *at, Py_ssize_t left) noexcept nogil:
    """How many messages these bytes have, by their sizes; 0 if they are no messages."""
    cdef Py_ssize_t count = 0
    cdef int64_t size
    while left > 0:
        size = <int32_t>get32(at) if left >= BATCHED_FIXED_BYTES else 0
        if not BATCHED_FIXED_BYTES <= size <= left:
            return 0
        at += size
        left -= size
        count += 1
    return count


cdef struct BatchNumbers:
    # The producer id and the first number of a batch.
    bint is_numbered
    int64_t first
    uint32_t name_size
    uint8_t[PRODUCER_ID_LENGTH_MAX] name


cdef bint _find_batch_numbers(const uint8_t *at, const uint8_t *end, BatchNumbers *numbers) noexcept nogil:
    """Find the numbers in the properties of a batch, which end with `VALUE_END`; false if they are not plain.

    They are not if a number is invalid, has not one producer id, or if the messages are copies.
    """
    cdef const uint8_t *value
    cdef int producers = 0
    cdef bint is_copied = False
    numbers.is_numbered = False
    numbers.name_size = 0
    while at < end:
        if starts_with(at, end, b"RAFTMQ_SEQUENCE\x01", 16):
            at += 16
            if numbers.is_numbered or not read_sequence_number(&at, &numbers.first):
                return False
            numbers.is_numbered = True
        elif starts_with(at, end, b"RAFTMQ_PRODUCER\x01", 16):
            at += 16
            producers += 1
            value = at
            while at[0] != VALUE_END:
                at += 1
            if at - value > PRODUCER_ID_LENGTH_MAX:
                producers = 2
            else:
                numbers.name_size = <uint32_t>(at - value)
                memcpy(numbers.name, value, at - value)
        elif starts_with(at, end, b"RAFTMQ_COPIED\x01", 14):
            is_copied = True
        while at[0] != VALUE_END:
            at += 1
        at += 1
    return not numbers.is_numbered or (producers == 1 and numbers.name_size > 0 and not is_copied)


cdef int64_t write_shared_properties(Text properties, uint8_t *to, BatchNumbers *numbers) noexcept nogil:
    """Write what the properties of a batch add to each of its messages, and return how many bytes; -1 if they are not
    plain.

    That is all but the unique key, which would hide that of a message, and the numbers. ``to`` has
    `PROPERTIES_BYTES_MAX` bytes.
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
    if not _find_batch_numbers(to, to + size, numbers):
        return -1
    while at < size:
        end = at
        while to[end] != VALUE_END:
            end += 1
        end += 1
        if end - at > 1 and not starts_with(to + at, to + end, b"UNIQ_KEY\x01", 9) and not (
            numbers.is_numbered
            and (
                starts_with(to + at, to + end, b"RAFTMQ_SEQUENCE\x01", 16)
                or starts_with(to + at, to + end, b"RAFTMQ_PRODUCER\x01", 16)
            )
        ):
            memmove(to + kept, to + at, end - at)
            kept += end - at
        at = end
    return kept
