"""Unique key, tags and sequence number in the encoded properties of a message; the reference is
`mq.protocol.properties.value_of`.

Properties are encoded as ``NAME\x01VALUE\x02...``.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp


cdef struct KeyAndTags:
    # From the beginning of the properties.
    uint32_t key_at
    uint32_t key_size
    uint32_t tags_at
    uint32_t tags_size
    bint has_number
    int64_t number
    uint32_t producers  # how many producer ids there are; the last one:
    uint32_t producer_at
    uint32_t producer_size


cdef bint starts_with(const uint8_t *at, const uint8_t *end, const char *wanted, uint32_t size) noexcept nogil:
    return <size_t>(end - at) >= size and memcmp(at, wanted, size) == 0


cdef bint find_key_and_tags(const uint8_t *begin, uint32_t size, KeyAndTags *found) noexcept nogil:
    """Find unique key, tags and sequence number; false for properties that are not plain.

    Not plain: no unique key, one that is not alphanumeric, a second one (the last one counts), or a name that asks for
    more; each anywhere in the text, at the beginning of a property or within one. Of several tags, as when a batch has
    those of its messages, too, the last ones count. A sequence number must be valid, and have one producer id.
    ``begin[size - 1]`` is `VALUE_END`.
    """
    cdef const uint8_t *at = begin
    cdef const uint8_t *end = begin + size
    cdef const uint8_t *value
    cdef uint8_t byte
    found.key_size = 0
    found.tags_at = 0
    found.tags_size = 0
    found.has_number = False
    found.producers = 0
    while at < end:
        byte = at[0]
        # Capital letters or an underscore begin all of these names; at other characters there is nothing to compare.
        if byte == b'U' and starts_with(at, end, b"UNIQ_KEY\x01", 9):
            if found.key_size or (at != begin and (at - 1)[0] != VALUE_END):
                return False
            at += 9
            value = at
            while at[0] != VALUE_END:
                byte = at[0]
                if not (b'0' <= byte <= b'9' or b'A' <= byte <= b'Z' or b'a' <= byte <= b'z'):
                    return False
                at += 1
            if at == value:
                return False
            found.key_at = <uint32_t>(value - begin)
            found.key_size = <uint32_t>(at - value)
            # Letters of the key may spell a name such as TIMER_D only with an underscore, and there is none.
            continue
        if byte == b'T':
            if starts_with(at, end, b"TAGS\x01", 5):
                if at != begin and (at - 1)[0] != VALUE_END:
                    return False
                value = at + 5
                at = value
                while at[0] != VALUE_END:
                    at += 1
                if at > value:  # an empty value is none
                    found.tags_at = <uint32_t>(value - begin)
                    found.tags_size = <uint32_t>(at - value)
                at = value
                continue
            elif starts_with(at, end, b"TIMER_D", 7) or starts_with(at, end, b"TRAN_MSG\x01", 9):
                return False
        elif byte == b'D':
            if starts_with(at, end, b"DELAY\x01", 6):
                return False
        elif byte == b'L':
            if starts_with(at, end, b"LITE_TOPIC\x01", 11):
                return False
        elif byte == b'P':
            if starts_with(at, end, b"POP_CK\x01", 7):
                return False
        elif byte == b'R':
            if starts_with(at, end, b"RAFTMQ_SEQUENCE\x01", 16):
                if found.has_number or (at != begin and (at - 1)[0] != VALUE_END):
                    return False
                at += 16
                if not read_sequence_number(&at, &found.number):
                    return False
                found.has_number = True
            elif starts_with(at, end, b"RAFTMQ_S", 8):
                return False
            elif starts_with(at, end, b"RAFTMQ_PRODUCER\x01", 16) and (at == begin or (at - 1)[0] == VALUE_END):
                value = at + 16
                found.producers += 1
                found.producer_at = <uint32_t>(value - begin)
                while value[0] != VALUE_END:
                    value += 1
                found.producer_size = <uint32_t>(value - begin) - found.producer_at
        elif byte == b'_':
            if starts_with(at, end, b"_SYS_MSG_PRIORITY_\x01", 19):
                return False
        at += 1
    if found.has_number and (found.producers != 1 or not 1 <= found.producer_size <= PRODUCER_ID_LENGTH_MAX):
        return False
    return found.key_size > 0
