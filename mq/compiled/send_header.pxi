"""The header of a plain send.

The reference are `SendMessageV2` and `SendBatchMessage`, which `mq.protocol.incoming.chunks` decodes.

Accepted is only what stock clients write: compact JSON with the members of RocketMQ's RemotingCommand, each at most
once, and ``extFields`` with the one-letter names of SendMessageRequestHeaderV2, and with access key and signature or
without.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef enum:
    BORN_MS_MAX = 999999999999999999  # all that `read_integer` reads

cdef enum:
    CODE_SEEN = 1
    EXT_FIELDS_SEEN = 2
    FLAG_SEEN = 4
    OPAQUE_SEEN = 8
    REQUIRED_MEMBERS = 15
    VERSION_SEEN = 16
    LANGUAGE_SEEN = 32
    SERIALIZATION_SEEN = 64


cdef struct SendHeader:
    Text topic
    Text properties
    Text access_key  # size 0 without one
    Text signature
    Text lengths  # size 0 without them
    uint32_t letters  # of the fields that are there, as bits
    Text[LETTERS] values  # of the one-letter fields, by letter; size 0 for those that are missing
    int64_t queue_id
    int64_t sys_flag
    int64_t born_ms
    int64_t flag  # the message's own
    int64_t reconsume_times
    int64_t opaque
    int64_t request_flag
    int64_t code
    bint is_batch  # field m


cdef bint _has_next_member(const uint8_t **cursor, const uint8_t *end) noexcept nogil:
    """Whether another member of an object follows; the cursor is behind the object if none does, and NULL if it is
    malformed."""
    if cursor[0] < end and cursor[0][0] == b',':
        cursor[0] += 1
        return True
    cursor[0] = cursor[0] + 1 if cursor[0] < end and cursor[0][0] == b'}' else NULL
    return False


cdef bint _read_field(uint8_t name, const uint8_t **cursor, const uint8_t *end, SendHeader *header) noexcept nogil:
    """The value of the field with this one-letter name, which is always a string."""
    cdef int64_t ignored = 0
    cdef Text text
    if name == b'i':
        return read_string(cursor, end, &header.properties)
    if name == b'b':
        return read_string(cursor, end, &header.topic) and not header.topic.escaped
    if name == b'e':
        return read_quoted_integer(cursor, end, 0, INT32_MAX, &header.queue_id)
    if name == b'g':
        return read_quoted_integer(cursor, end, -BORN_MS_MAX, BORN_MS_MAX, &header.born_ms)
    if name == b'f':
        return read_quoted_integer(cursor, end, INT32_MIN, INT32_MAX, &header.sys_flag)
    if name == b'h':
        return read_quoted_integer(cursor, end, INT32_MIN, INT32_MAX, &header.flag)
    if name == b'j':
        return read_quoted_integer(cursor, end, INT32_MIN, INT32_MAX, &header.reconsume_times)
    if name == b'd' or name == b'l':
        return read_quoted_integer(cursor, end, INT32_MIN, INT32_MAX, &ignored)
    if not read_string(cursor, end, &text) or text.escaped:
        return False
    if name == b'm':
        header.is_batch = equals(text, b"true", 4)
        return header.is_batch or equals(text, b"false", 5)
    if name == b'k':
        return equals(text, b"false", 5) or equals(text, b"true", 4)
    return True


cdef bint _read_ext_fields(const uint8_t **cursor, const uint8_t *end, SendHeader *header) noexcept nogil:
    """The object of extFields: a to n at most once each, the required ones present, and no others but a signature's."""
    cdef uint32_t seen = 0, bit
    cdef int letter
    cdef Text name
    cdef Text *of_signature
    cdef const uint8_t *value
    for letter in range(LETTERS):
        header.values[letter].at = cursor[0]
        header.values[letter].size = 0
        header.values[letter].escaped = False
    header.access_key.size = header.signature.size = header.lengths.size = 0
    header.reconsume_times = 0
    header.is_batch = False
    header.properties.at = cursor[0]
    header.properties.size = 0
    header.properties.escaped = False
    if cursor[0] >= end or cursor[0][0] != b'{':
        return False
    cursor[0] += 1
    while True:
        if not read_string(cursor, end, &name) or cursor[0] >= end or cursor[0][0] != b':':
            return False
        cursor[0] += 1
        if name.size != 1:
            if equals(name, b"AccessKey", 9):
                of_signature = &header.access_key
            elif equals(name, b"Signature", 9):
                of_signature = &header.signature
            elif equals(name, b"AccessLengths", 13):
                of_signature = &header.lengths
            else:
                return False
            # Not twice, and not empty: a size tells whether it was there.
            if of_signature.size or not read_string(cursor, end, of_signature):
                return False
            if of_signature.escaped or not of_signature.size:
                return False
        else:
            if not b'a' <= name.at[0] <= b'n':
                return False
            letter = name.at[0] - <uint8_t>b'a'
            bit = <uint32_t>1 << letter
            if seen & bit:
                return False
            seen |= bit
            value = cursor[0] + 1
            if not _read_field(name.at[0], cursor, end, header):
                return False
            # All values are in quotes.
            header.values[letter].at = value
            header.values[letter].size = <uint32_t>(cursor[0] - value - 1)
            header.values[letter].escaped = letter == PROPERTIES_LETTER
        if not _has_next_member(cursor, end):
            header.letters = seen
            return seen & REQUIRED_LETTERS == REQUIRED_LETTERS and cursor[0] != NULL


cdef bint read_send_header(const uint8_t *at, const uint8_t *end, SendHeader *header) noexcept nogil:
    """Read the header of a plain send; false for any other, and for what is no header.

    All texts of ``header`` lie between ``at`` and ``end``, none over another.
    """
    cdef int64_t number = 0
    cdef uint32_t seen = 0, bit
    cdef Text name, text
    if at >= end or at[0] != b'{':
        return False
    at += 1
    while True:
        if not read_string(&at, end, &name) or at >= end or at[0] != b':':
            return False
        at += 1
        if equals(name, b"code", 4):
            bit = CODE_SEEN
            if not read_integer(&at, end, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, &header.code):
                return False
            if header.code != SEND_MESSAGE_V2 and header.code != SEND_BATCH_MESSAGE:
                return False
        elif equals(name, b"extFields", 9):
            bit = EXT_FIELDS_SEEN
            if not _read_ext_fields(&at, end, header):
                return False
        elif equals(name, b"flag", 4):
            bit = FLAG_SEEN
            if not read_integer(&at, end, 0, ONEWAY_FLAG, &header.request_flag) or header.request_flag & RESPONSE_FLAG:
                return False
        elif equals(name, b"opaque", 6):
            bit = OPAQUE_SEEN
            if not read_integer(&at, end, INT32_MIN, INT32_MAX, &header.opaque):
                return False
        elif equals(name, b"version", 7):
            bit = VERSION_SEEN
            if not read_integer(&at, end, INT32_MIN, INT32_MAX, &number):
                return False
        elif equals(name, b"language", 8):
            bit = LANGUAGE_SEEN
            if not read_string(&at, end, &text) or text.escaped:
                return False
        elif equals(name, b"serializeTypeCurrentRPC", 23):
            bit = SERIALIZATION_SEEN
            if not read_string(&at, end, &text) or text.escaped:
                return False
        else:
            return False
        if seen & bit:
            return False
        seen |= bit
        if at >= end:
            return False
        if at[0] == b'}':
            return at + 1 == end and seen & REQUIRED_MEMBERS == REQUIRED_MEMBERS
        if at[0] != b',':
            return False
        at += 1
