# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain sends, compiled: from a received chunk to records of an entry and replies, without an object per message.

A send is *plain* if it is a SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE request (codes 310 and 320) in compact JSON and ASCII,
to an open topic and one of its queues, whose messages have unique keys and no property that asks for anything but being
stored. `PlainSends.take` stops at the first frame that is anything else, or that is malformed:
`mq.protocol.chunks.decode_chunk` and `mq.broker.produce.send.Sends` then handle that frame and all behind it. They are
the reference: for every chunk the records, queue entries and replies are the same bytes with and without this module.

`checked_records` is the other compiled part: a follower's check of the records that it receives.

Memory safety: every read of the chunk goes through a cursor that is compared with the end of its frame first; every
write goes to a buffer whose size was computed from lengths that were checked before.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove
from posix.dlfcn cimport RTLD_NOW, dlopen, dlsym

import _hashlib
import hmac
from binascii import b2a_base64


cdef extern from *:
    """
    static inline void put32(unsigned char *to, uint32_t v) { v = __builtin_bswap32(v); __builtin_memcpy(to, &v, 4); }
    static inline void put64(unsigned char *to, uint64_t v) { v = __builtin_bswap64(v); __builtin_memcpy(to, &v, 8); }
    static inline uint32_t get32(const unsigned char *at) { uint32_t v; __builtin_memcpy(&v, at, 4); return __builtin_bswap32(v); }
    static inline uint64_t get64(const unsigned char *at) { uint64_t v; __builtin_memcpy(&v, at, 8); return __builtin_bswap64(v); }
    #ifndef SOURCE_SHA256
    #define SOURCE_SHA256 ""
    #endif
    """
    const char *SOURCE_SHA256
    void put32(uint8_t *to, uint32_t value) nogil
    void put64(uint8_t *to, uint64_t value) nogil
    uint32_t get32(const uint8_t *at) nogil
    uint64_t get64(const uint8_t *at) nogil


# Of the source that this was compiled from; `mq.compiled` uses it with no other.
COMPILED_FROM = SOURCE_SHA256.decode()

cdef enum:
    PREFIX_BYTES = 8
    FRAME_BYTES_MAX = 16 * 1024 * 1024
    HEADER_BYTES_MAX = 256 * 1024
    HEAD_BYTES = 88
    FIXED_BYTES = 91
    QUEUE_OFFSET_AT = 20
    PHYSICAL_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    STORE_MS_AT = 56
    QUEUE_ENTRY_BYTES = 20
    PROPERTIES_BYTES_MAX = 32767
    BLOCK_BYTES_MAX = 128 * 1024
    QUEUES_MAX = 256
    MESSAGES_MAX = 1024
    BATCH_HEAD_BYTES = 20
    BATCH_FIXED_BYTES = 22
    HOST_HEX_BYTES = 16
    PLACE_HEX_BYTES = 16
    LETTERS = 14  # a to n
    PROPERTIES_LETTER = 8  # i
    VALUE_END = 2
    MAGIC_V1 = 0xDAA320A7
    IPV6_FLAGS = 0x30

# ------------------------------------------------------------------------------------------------- checksum

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
    """The same as zlib's; 16 bytes at a step, on a little-endian processor."""
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


# ------------------------------------------------------------------------------------------------- signatures

cdef struct Text:
    const uint8_t *at
    uint32_t size
    bint escaped


cdef enum:
    KEY_BYTES = 64
    DIGEST_BYTES = 20
    SIGNATURE_BYTES = 28
    STATE_WORDS = 32  # OpenSSL's SHA_CTX has 96 bytes
    OPENSSL_3 = 0x30000000

ctypedef int (*Sha1Init)(void *state) noexcept nogil
ctypedef int (*Sha1Update)(void *state, const void *data, size_t size) noexcept nogil
ctypedef int (*Sha1Final)(uint8_t *digest, void *state) noexcept nogil
ctypedef int (*EqualBytes)(const void *one, const void *other, size_t size) noexcept nogil
ctypedef unsigned long (*VersionNumber)() noexcept nogil

cdef Sha1Init _sha1_init = NULL
cdef Sha1Update _sha1_update = NULL
cdef Sha1Final _sha1_final = NULL
cdef EqualBytes _differ = NULL  # in constant time


def use_sha1_of(str library):
    """Compute signatures with SHA-1 of OpenSSL, called directly; returns whether it was found.

    ``library`` is a shared library that is linked to OpenSSL 3 or later, such as Python's ``_hashlib``. Otherwise they
    are computed with `hmac`, which takes ten times as long.
    """
    global _sha1_init, _sha1_update, _sha1_final, _differ
    _sha1_init = NULL
    cdef bytes path = library.encode()
    cdef void *handle = dlopen(PyBytes_AS_STRING(path), RTLD_NOW)
    if handle == NULL:
        return False
    cdef VersionNumber version = <VersionNumber>dlsym(handle, "OpenSSL_version_num")
    cdef Sha1Init init = <Sha1Init>dlsym(handle, "SHA1_Init")
    _sha1_update = <Sha1Update>dlsym(handle, "SHA1_Update")
    _sha1_final = <Sha1Final>dlsym(handle, "SHA1_Final")
    _differ = <EqualBytes>dlsym(handle, "CRYPTO_memcmp")
    # Older versions end the process in FIPS mode; LibreSSL says 2.
    if version == NULL or version() < OPENSSL_3 or _sha1_update == NULL or _sha1_final == NULL or _differ == NULL:
        return False
    _sha1_init = init
    return init != NULL


use_sha1_of(getattr(_hashlib, "__file__", ""))

cdef struct Sha1:
    uint64_t[STATE_WORDS] words


cdef const char *_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef void _write_base64(const uint8_t *digest, uint8_t *to) noexcept nogil:
    """A digest of SHA-1 in Base64: 26 characters and 2 for padding, less 1."""
    cdef int n
    cdef uint32_t word
    for n in range(DIGEST_BYTES // 3 + 1):
        word = <uint32_t>digest[3 * n] << 16 | <uint32_t>digest[3 * n + 1] << 8
        if n < DIGEST_BYTES // 3:
            word |= digest[3 * n + 2]
        to[4 * n] = _BASE64[word >> 18]
        to[4 * n + 1] = _BASE64[word >> 12 & 63]
        to[4 * n + 2] = _BASE64[word >> 6 & 63]
        to[4 * n + 3] = _BASE64[word & 63]
    to[SIGNATURE_BYTES - 1] = 61  # padding: an equals sign


cdef class _Signer:
    """Checks signatures with one key: see `mq.protocol.signing.Signer`."""

    cdef bytes key
    # The hash of the key, as HMAC begins its two hashes with it.
    cdef Sha1 inner
    cdef Sha1 outer

    cdef int use_key(self, bytes key) except -1:
        """Use a key of 64 bytes from now on."""
        cdef uint8_t[KEY_BYTES] inner
        cdef uint8_t[KEY_BYTES] outer
        cdef int n
        if PyBytes_GET_SIZE(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes")
        self.key = key
        if _sha1_init == NULL:
            return 0
        for n in range(KEY_BYTES):
            inner[n] = <uint8_t>PyBytes_AS_STRING(key)[n] ^ 0x36
            outer[n] = <uint8_t>PyBytes_AS_STRING(key)[n] ^ 0x5C
        _sha1_init(&self.inner)
        _sha1_update(&self.inner, inner, KEY_BYTES)
        _sha1_init(&self.outer)
        _sha1_update(&self.outer, outer, KEY_BYTES)
        return 0

    cdef bint is_signature(
        self, Text given, const uint8_t *values, Py_ssize_t values_bytes, const uint8_t *body, Py_ssize_t body_bytes
    ) except -1:
        """Whether this is the signature of header values in signing order and a body. Runs in constant time."""
        cdef uint8_t[DIGEST_BYTES] digest
        cdef uint8_t[SIGNATURE_BYTES] right
        cdef Sha1 state
        if _sha1_init == NULL:
            return self._is_signature_by_hmac(given.at[: given.size], values[:values_bytes] + body[:body_bytes])
        if given.size != SIGNATURE_BYTES:
            return False
        state = self.inner
        _sha1_update(&state, values, values_bytes)
        _sha1_update(&state, body, body_bytes)
        _sha1_final(digest, &state)
        state = self.outer
        _sha1_update(&state, digest, DIGEST_BYTES)
        _sha1_final(digest, &state)
        _write_base64(digest, right)
        return _differ(given.at, right, SIGNATURE_BYTES) == 0

    cdef bint _is_signature_by_hmac(self, bytes given, bytes content) except -1:
        return hmac.compare_digest(given, b2a_base64(hmac.digest(self.key, content, "sha1"), newline=False))


# ------------------------------------------------------------------------------------------------- header

cdef struct Header:
    Text topic
    Text properties
    Text access_key
    Text signature
    Text[LETTERS] values  # of the one-letter fields, by letter; size 0 for those that are missing
    int64_t queue_id
    int64_t sys_flag
    int64_t born_ms
    int64_t flag
    int64_t reconsume_times
    int64_t opaque
    int64_t request_flag
    int64_t code
    bint is_batch


cdef bint _string(const uint8_t **cursor, const uint8_t *end, Text *text) noexcept nogil:
    """A JSON string of ASCII characters without its quotes; false for anything else. The cursor is behind it then."""
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


cdef bint _digits(const uint8_t **cursor, const uint8_t *end, int64_t lowest, int64_t highest, int64_t *value) noexcept nogil:
    """An integer as JSON writes it, without exponent or needless zeros, in these bounds; false for anything else."""
    cdef const uint8_t *at = cursor[0]
    cdef bint negative = at < end and at[0] == 45  # a minus sign
    cdef int count = 0
    cdef int64_t total = 0
    if negative:
        at += 1
    cdef const uint8_t *first = at
    while at < end and b'0' <= at[0] <= b'9':
        if count == 18:
            return False
        total = total * 10 + (at[0] - 48)
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


cdef bint _quoted(const uint8_t **cursor, const uint8_t *end, int64_t lowest, int64_t highest, int64_t *value) noexcept nogil:
    """An integer in quotes."""
    if cursor[0] >= end or cursor[0][0] != b'"':
        return False
    cursor[0] += 1
    if not _digits(cursor, end, lowest, highest, value) or cursor[0] >= end or cursor[0][0] != b'"':
        return False
    cursor[0] += 1
    return True


cdef bint _is(Text text, const char *wanted, uint32_t size) noexcept nogil:
    return text.size == size and not text.escaped and memcmp(text.at, wanted, size) == 0


cdef bint _extension(const uint8_t **cursor, const uint8_t *end, Header *header) noexcept nogil:
    """The members of extFields: each of a to n at most once, the required ones present, and a signature or none."""
    cdef int64_t low32 = -2147483648, high32 = 2147483647, ignored = 0
    cdef int64_t far = 999999999999999999
    cdef uint32_t seen = 0, bit
    cdef uint8_t name
    cdef int letter
    cdef Text text
    cdef const uint8_t *value
    for letter in range(LETTERS):
        header.values[letter].at = cursor[0]
        header.values[letter].size = 0
        header.values[letter].escaped = False
    header.access_key.size = header.signature.size = 0
    header.reconsume_times = 0
    header.is_batch = False
    header.properties.at = cursor[0]
    header.properties.size = 0
    header.properties.escaped = False
    if cursor[0] >= end or cursor[0][0] != b'{':
        return False
    cursor[0] += 1
    while True:
        if not _string(cursor, end, &text) or cursor[0] >= end or cursor[0][0] != b':':
            return False
        cursor[0] += 1
        if text.size != 1:
            if _is(text, b"AccessKey", 9) and not header.access_key.size:
                if not _string(cursor, end, &header.access_key) or header.access_key.escaped:
                    return False
                if not header.access_key.size:
                    return False
            elif _is(text, b"Signature", 9) and not header.signature.size:
                if not _string(cursor, end, &header.signature) or header.signature.escaped:
                    return False
                if not header.signature.size:
                    return False
            else:
                return False
            if not _more(cursor, end):
                return seen & 0xFF == 0xFF and cursor[0] != NULL  # a to h
            continue
        name = text.at[0]
        if not b'a' <= name <= b'n':
            return False
        letter = name - 97
        bit = <uint32_t>1 << letter
        if seen & bit:
            return False
        seen |= bit
        value = cursor[0] + 1
        if name == b'i':
            if not _string(cursor, end, &header.properties):
                return False
        elif name == b'b':
            if not _string(cursor, end, &header.topic) or header.topic.escaped:
                return False
        elif name == b'e':
            if not _quoted(cursor, end, 0, high32, &header.queue_id):
                return False
        elif name == b'g':
            if not _quoted(cursor, end, -far, far, &header.born_ms):
                return False
        elif name == b'f':
            if not _quoted(cursor, end, low32, high32, &header.sys_flag):
                return False
        elif name == b'h':
            if not _quoted(cursor, end, low32, high32, &header.flag):
                return False
        elif name == b'j':
            if not _quoted(cursor, end, low32, high32, &header.reconsume_times):
                return False
        elif name == b'd' or name == b'l':
            if not _quoted(cursor, end, low32, high32, &ignored):
                return False
        elif not _string(cursor, end, &text) or text.escaped:
            return False
        elif name == b'm':
            header.is_batch = _is(text, b"true", 4)
            if not header.is_batch and not _is(text, b"false", 5):
                return False
        elif name == b'k':
            if not _is(text, b"false", 5) and not _is(text, b"true", 4):
                return False
        # All values are in quotes.
        header.values[letter].at = value
        header.values[letter].size = <uint32_t>(cursor[0] - value - 1)
        header.values[letter].escaped = letter == PROPERTIES_LETTER
        if not _more(cursor, end):
            return seen & 0xFF == 0xFF and cursor[0] != NULL  # a to h


cdef bint _more(const uint8_t **cursor, const uint8_t *end) noexcept nogil:
    """Whether another member follows; the cursor is behind the object if none does, and NULL if it is malformed."""
    if cursor[0] < end and cursor[0][0] == b',':
        cursor[0] += 1
        return True
    cursor[0] = cursor[0] + 1 if cursor[0] < end and cursor[0][0] == b'}' else NULL
    return False


cdef bint _header(const uint8_t *at, const uint8_t *end, Header *header) noexcept nogil:
    """Read the header of a plain send; false for any other, and for what is no header."""
    cdef int64_t low32 = -2147483648, high32 = 2147483647, number = 0
    cdef uint32_t seen = 0, bit
    cdef Text name, text
    if at >= end or at[0] != b'{':
        return False
    at += 1
    while True:
        if not _string(&at, end, &name) or at >= end or at[0] != b':':
            return False
        at += 1
        if _is(name, b"code", 4):
            bit = 1
            if not _digits(&at, end, 310, 320, &header.code) or (header.code != 310 and header.code != 320):
                return False
        elif _is(name, b"extFields", 9):
            bit = 2
            if not _extension(&at, end, header):
                return False
        elif _is(name, b"flag", 4):
            bit = 4
            if not _digits(&at, end, 0, 2, &header.request_flag) or header.request_flag == 1:
                return False
        elif _is(name, b"opaque", 6):
            bit = 8
            if not _digits(&at, end, low32, high32, &header.opaque):
                return False
        elif _is(name, b"version", 7):
            bit = 16
            if not _digits(&at, end, low32, high32, &number):
                return False
        elif _is(name, b"language", 8):
            bit = 32
            if not _string(&at, end, &text) or text.escaped:
                return False
        elif _is(name, b"serializeTypeCurrentRPC", 23):
            bit = 64
            if not _string(&at, end, &text) or text.escaped:
                return False
        else:
            return False
        if seen & bit:
            return False
        seen |= bit
        if at >= end:
            return False
        if at[0] == b'}':
            return at + 1 == end and seen & 15 == 15
        if at[0] != b',':
            return False
        at += 1


cdef int _hex(uint8_t digit) noexcept nogil:
    if b'0' <= digit <= b'9':
        return digit - <uint8_t>b'0'
    digit |= 0x20
    if b'a' <= digit <= b'f':
        return digit - <uint8_t>b'a' + 10
    return -1


cdef int64_t _unescape(Text text, uint8_t *to) noexcept nogil:
    """Write the characters of a JSON string and return how many; -1 unless all are ASCII. ``to`` has room for all."""
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
                high, low = _hex(at[2]), _hex(at[3])
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


cdef struct Found:
    uint32_t key_at
    uint32_t key_size
    uint32_t tags_at
    uint32_t tags_size


cdef bint _starts(const uint8_t *at, const uint8_t *end, const char *wanted, uint32_t size) noexcept nogil:
    return <size_t>(end - at) >= size and memcmp(at, wanted, size) == 0


cdef bint _properties(const uint8_t *begin, uint32_t size, Found *found) noexcept nogil:
    """Find unique key and tags; false for properties that are not plain.

    Not plain: no unique key, one that is not alphanumeric, or a name that asks for more anywhere in the text, at the
    beginning of a property or within one. ``begin[size - 1]`` is `VALUE_END`.
    """
    cdef const uint8_t *at = begin
    cdef const uint8_t *end = begin + size
    cdef const uint8_t *value
    cdef uint8_t byte
    cdef bint has_tags = False
    found.key_size = 0
    found.tags_at = 0
    found.tags_size = 0
    while at < end:
        byte = at[0]
        # Capital letters begin all of these names; at other characters there is nothing to compare.
        if byte == b'U' and found.key_size == 0 and _starts(at, end, b"UNIQ_KEY\x01", 9):
            if at != begin and (at - 1)[0] != VALUE_END:
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
            if _starts(at, end, b"TAGS\x01", 5):
                if not has_tags:
                    if at != begin and (at - 1)[0] != VALUE_END:
                        return False
                    has_tags = True
                    value = at + 5
                    at = value
                    while at[0] != VALUE_END:
                        at += 1
                    found.tags_at = <uint32_t>(value - begin)
                    found.tags_size = <uint32_t>(at - value)
                    at = value
                    continue
            elif _starts(at, end, b"TIMER_D", 7) or _starts(at, end, b"TRAN_MSG\x01", 9):
                return False
        elif byte == b'D':
            if _starts(at, end, b"DELAY\x01", 6):
                return False
        elif byte == b'P':
            if _starts(at, end, b"POP_CK\x01", 7):
                return False
        elif byte == b'R':
            if _starts(at, end, b"RAFTMQ_S", 8):
                return False
        at += 1
    return found.key_size > 0


# ------------------------------------------------------------------------------------------------- block

cdef struct Send:
    uint32_t record_at
    uint32_t size
    uint32_t key_at
    uint32_t key_size
    int64_t tag_code
    uint16_t queue


cdef struct Request:
    uint32_t first  # of its messages
    uint32_t count
    int32_t opaque
    bint oneway


cdef class SendBlock:
    """Plain sends of one connection that wait for their round: their records are built but for what the round decides.

    Attributes:
        nbytes: bytes of all records.
        count: how many messages there are.
        request_count: how many requests they came in.
        connection: whose requests these are.
        frames: the requests as they came in.
    """

    cdef readonly object connection
    cdef readonly bytes frames
    cdef readonly Py_ssize_t nbytes
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t request_count
    cdef bytes records
    cdef list tails
    cdef Send *sends
    cdef Request *requests
    cdef _ReplyTemplate template

    def __cinit__(self):
        self.sends = NULL
        self.requests = NULL

    def __dealloc__(self):
        PyMem_Free(self.sends)
        PyMem_Free(self.requests)

    def build(self, int64_t position, int64_t store_ms, list touched):
        """Build the records for physical offset ``position``; to be called once.

        Gives each message its queue offset and adds its queue entry to the run of its tail; tails without a run are
        appended to ``touched``. Returns the records, and the replies of all that want one.
        """
        cdef Py_ssize_t queues = len(self.tails), n
        cdef int64_t[QUEUES_MAX] next_offsets
        cdef int32_t[QUEUES_MAX] queue_ids
        cdef (uint8_t *)[QUEUES_MAX] entries_at
        cdef uint32_t[QUEUES_MAX] counts
        cdef bytes entries
        cdef object tail, run
        cdef uint8_t *record
        cdef uint8_t *entry
        cdef uint8_t *records
        cdef Send *send
        cdef Request *request
        if self.records is None:  # not an assert, which -O leaves out: what follows writes to the records
            raise AssertionError("a block is built once")
        records = <uint8_t *>PyBytes_AS_STRING(self.records)
        for n in range(queues):
            counts[n] = 0
        for n in range(self.count):
            counts[self.sends[n].queue] += 1
        for n in range(queues):
            tail = self.tails[n]
            next_offsets[n] = tail.next_offset
            queue_ids[n] = tail.queue_id
            entries = PyBytes_FromStringAndSize(NULL, counts[n] * QUEUE_ENTRY_BYTES)
            entries_at[n] = <uint8_t *>PyBytes_AS_STRING(entries)
            tail.next_offset = next_offsets[n] + counts[n]
            run = tail.run
            if run is None:
                tail.run = [entries]
                touched.append(tail)
            else:
                (<list>run).append(entries)
        cdef bytes replies = PyBytes_FromStringAndSize(NULL, self._replies_bytes_max())
        cdef uint8_t *begin = <uint8_t *>PyBytes_AS_STRING(replies)
        cdef uint8_t *reply = begin
        cdef int64_t offset, place
        cdef Py_ssize_t number
        for number in range(self.request_count):
            request = &self.requests[number]
            send = &self.sends[request.first]
            if not request.oneway:
                # All messages of a request go to one queue, one behind the other.
                offset = next_offsets[send.queue]
                reply = self.template.render(reply, request, send, queue_ids[send.queue], offset, position, records)
            for n in range(request.count):
                offset = next_offsets[send.queue]
                next_offsets[send.queue] = offset + 1
                place = position + send.record_at
                record = records + send.record_at
                put64(record + QUEUE_OFFSET_AT, <uint64_t>offset)
                put64(record + PHYSICAL_OFFSET_AT, <uint64_t>place)
                put64(record + STORE_MS_AT, <uint64_t>store_ms)
                entry = entries_at[send.queue]
                put64(entry, <uint64_t>place)
                put32(entry + 8, send.size)
                put64(entry + 12, <uint64_t>send.tag_code)
                entries_at[send.queue] = entry + QUEUE_ENTRY_BYTES
                send += 1
        built, self.records = self.records, None
        return built, replies[: reply - begin]

    cdef Py_ssize_t _replies_bytes_max(self):
        # Of each message its key, an id of host and physical offset, and a comma behind both.
        cdef Py_ssize_t n, total = self.request_count * self.template.bytes_max
        for n in range(self.count):
            total += self.sends[n].key_size + HOST_HEX_BYTES + PLACE_HEX_BYTES + 2
        return total


# ------------------------------------------------------------------------------------------------- replies

cdef uint8_t *_copy(uint8_t *to, bytes text) noexcept:
    memcpy(to, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return to + PyBytes_GET_SIZE(text)


cdef uint8_t *_write_decimal(uint8_t *to, int64_t value) noexcept nogil:
    cdef uint8_t[20] digits
    cdef int count = 0
    cdef uint64_t rest = <uint64_t>value
    if value < 0:
        to[0] = 45  # a minus sign
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
    """See `mq.protocol.encoding.SendReplyTemplate`: its text between physical offset, queue, offset, key and opaque."""

    cdef bytes before_place, before_queue, before_offset, before_key, before_opaque, end
    cdef bytes next_place
    cdef Py_ssize_t bytes_max

    def __init__(self, parts, bytes store_host):
        self.before_place, self.before_queue, self.before_offset, self.before_key, self.before_opaque, self.end = parts
        self.next_place = b"," + store_host.hex().upper().encode()
        self.bytes_max = PREFIX_BYTES + sum(len(part) for part in parts) + 3 * 20

    cdef uint8_t *render(
        self,
        uint8_t *begin,
        Request *request,
        Send *sends,
        int64_t queue_id,
        int64_t offset,
        int64_t position,
        const uint8_t *records,
    ) noexcept:
        """Write the reply to a request whose messages are ``sends``, the first at queue offset ``offset``."""
        cdef uint8_t *to = _copy(begin + PREFIX_BYTES, self.before_place)
        cdef uint32_t n
        for n in range(request.count):
            if n:
                to = _copy(to, self.next_place)
            to = _write_hex16(to, <uint64_t>(position + sends[n].record_at))
        to = _copy(to, self.before_queue)
        to = _copy(_write_decimal(to, queue_id), self.before_offset)
        to = _copy(_write_decimal(to, offset), self.before_key)
        for n in range(request.count):
            if n:
                to[0] = 44  # a comma
                to += 1
            memcpy(to, records + sends[n].key_at, sends[n].key_size)
            to += sends[n].key_size
        to = _copy(to, self.before_opaque)
        to = _copy(_write_decimal(to, request.opaque), self.end)
        put32(begin, <uint32_t>(to - begin - 4))
        put32(begin + 4, <uint32_t>(to - begin - PREFIX_BYTES))
        return to


# ------------------------------------------------------------------------------------------------- chunks

cdef struct Block:
    Py_ssize_t used  # bytes of records
    Py_ssize_t count  # messages
    Py_ssize_t requests


cdef class PlainSends:
    """Takes plain sends from received chunks.

    Args:
        writable: tails by topic: those that were found to exist and to be writable. Looked at anew with each chunk.
        tag_codes: the code of each tag, made by the mapping where it is missing.
        suffix: properties that the broker adds to each message, encoded.
        store_host: the broker's address as records store it, 8 bytes.
        reply_parts: the six parts of the reply's header around its five fields.
        magic: first word of a record of this version.
        client_flags: the bits of the system flag that a sender may set.
        body_bytes_max: larger bodies and batches are left to the reference, which refuses them.
        block_bytes_max: bytes of a block; 128 KiB at most.
    """

    cdef dict writable
    cdef object tag_codes
    cdef bytes suffix
    cdef bytes store_host
    cdef _ReplyTemplate template
    cdef uint32_t magic
    cdef uint32_t client_flags
    cdef int64_t body_bytes_max
    cdef Py_ssize_t block_bytes_max
    cdef uint8_t *scratch
    cdef uint8_t *shared
    cdef uint8_t *signed
    cdef Send[MESSAGES_MAX] sends
    cdef Request[MESSAGES_MAX] requests
    # The topic and the tag that were seen last: the next message nearly always has the same ones.
    cdef const uint8_t *topic_at
    cdef uint32_t topic_size
    cdef bytes topic_field
    cdef list tails
    cdef const uint8_t *tags_at
    cdef uint32_t tags_size
    cdef int64_t tags_code
    # The access key that was seen last, and the signer for it and for the topic, if it is known.
    cdef Text access_key
    cdef bint key_is_known
    cdef _Signer signer
    # Tails of the block, and by queue id of the last topic their number among these, plus 1.
    cdef list known
    cdef dict numbers
    cdef int32_t[QUEUES_MAX] slots
    cdef Py_ssize_t slot_count

    def __cinit__(self):
        self.scratch = NULL
        self.shared = NULL
        self.signed = NULL

    def __init__(
        self,
        *,
        dict writable,
        tag_codes,
        bytes suffix,
        bytes store_host,
        reply_parts,
        int magic,
        int client_flags,
        int64_t body_bytes_max,
        Py_ssize_t block_bytes_max,
    ):
        assert len(store_host) == 8, f"a store host of {len(store_host)} bytes"
        self.writable = writable
        self.tag_codes = tag_codes
        self.suffix = suffix
        self.store_host = store_host
        self.template = _ReplyTemplate(reply_parts, store_host)
        self.magic = <uint32_t>magic
        self.client_flags = <uint32_t>client_flags
        self.block_bytes_max = min(block_bytes_max, <Py_ssize_t>BLOCK_BYTES_MAX)
        # A body that fits no block ends it before its signature is checked: the reference does that.
        self.body_bytes_max = min(body_bytes_max, <int64_t>self.block_bytes_max)
        self.scratch = <uint8_t *>PyMem_Malloc(BLOCK_BYTES_MAX)
        self.shared = <uint8_t *>PyMem_Malloc(PROPERTIES_BYTES_MAX)
        self.signed = <uint8_t *>PyMem_Malloc(HEADER_BYTES_MAX)
        self.signer = _Signer.__new__(_Signer)
        if self.scratch == NULL or self.shared == NULL or self.signed == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.scratch)
        PyMem_Free(self.shared)
        PyMem_Free(self.signed)

    def take(self, bytes chunk, Py_ssize_t start, int64_t room, connection, bytes host, key_of=None):
        """The plain sends that ``chunk`` has from byte ``start`` on, up to the first other frame.

        ``host`` is the sender's address as records store it. ``key_of`` returns, for an access key and a topic, the key
        of the HMAC with which a send has to be signed (64 bytes), or None if the sends are not to be taken; it is asked
        again when either changes. Without it, sends need no signature. Returns a block, and where the next frame begins;
        None instead of a block if there is none. A block has ``block_bytes_max`` bytes at most. A request is taken while
        those before it have no more than ``room`` bytes: the one that exceeds it is the last, as in the reference.
        """
        cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(chunk)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(chunk), at = start
        cdef uint32_t length, word
        cdef const uint8_t *body
        cdef Header header
        cdef Block block
        cdef bint taken
        if PyBytes_GET_SIZE(host) != 8:
            return None, start
        block.used = block.count = block.requests = 0
        self.tails = None
        self.tags_at = NULL
        self.known = []
        self.numbers = {}
        self.slot_count = 0
        while size - at >= PREFIX_BYTES and block.count < MESSAGES_MAX and block.used <= room:
            length, word = get32(data + at), get32(data + at + 4)
            # A header in JSON that fits the frame, in a frame that is not too large: as in decode_chunk.
            if word > HEADER_BYTES_MAX or length > FRAME_BYTES_MAX or length < 4 or word > length - 4:
                break
            if length > <uint32_t>(size - at - 4):
                break
            body = data + at + PREFIX_BYTES + word
            if length - 4 - word > self.body_bytes_max or not _header(data + at + PREFIX_BYTES, body, &header):
                break
            if not self._find_topic(&header) or header.queue_id >= self.slot_count:
                break
            if key_of is not None and not self._is_allowed(key_of, &header, body, length - 4 - word):
                break
            if header.code == 320 or header.is_batch:
                taken = self._take_batch(&block, &header, body, length - 4 - word)
            else:
                taken = self._take_one(&block, &header, body, length - 4 - word)
            if not taken:
                break
            at += 4 + length
        if not block.count:
            return None, start
        self._complete(&block, PyBytes_AS_STRING(host))
        return self._block(&block, chunk if start == 0 and at == size else chunk[start:at], connection), at

    cdef bint _is_allowed(self, key_of, Header *header, const uint8_t *body, Py_ssize_t body_bytes) except -1:
        """Whether the sender may send to the topic, and has signed the request.

        What is signed: access key and fields in the order of their names, then the body.
        """
        if not header.access_key.size or not header.signature.size:
            return False
        if not self.key_is_known or header.access_key.size != self.access_key.size or memcmp(
            header.access_key.at, self.access_key.at, self.access_key.size
        ):
            key = key_of(header.access_key.at[: header.access_key.size], header.topic.at[: header.topic.size])
            if key is None:
                return False
            self.signer.use_key(key)
            self.key_is_known = True
            self.access_key = header.access_key
        # All of it is in the header, which has no more bytes than fit here.
        cdef uint8_t *to = self.signed
        cdef int64_t size
        cdef int letter
        memcpy(to, header.access_key.at, header.access_key.size)
        to += header.access_key.size
        for letter in range(LETTERS):
            if header.values[letter].escaped:
                size = _unescape(header.values[letter], to)
                if size < 0:
                    return False
            else:
                size = header.values[letter].size
                memcpy(to, header.values[letter].at, size)
            to += size
        return self.signer.is_signature(header.signature, self.signed, to - self.signed, body, body_bytes)

    cdef SendBlock _block(self, Block *of, bytes frames, connection):
        cdef SendBlock block = SendBlock.__new__(SendBlock)
        block.sends = <Send *>PyMem_Malloc(of.count * sizeof(Send))
        block.requests = <Request *>PyMem_Malloc(of.requests * sizeof(Request))
        if block.sends == NULL or block.requests == NULL:
            raise MemoryError
        memcpy(block.sends, self.sends, of.count * sizeof(Send))
        memcpy(block.requests, self.requests, of.requests * sizeof(Request))
        block.connection = connection
        block.frames = frames
        block.nbytes = of.used
        block.count = of.count
        block.request_count = of.requests
        block.records = PyBytes_FromStringAndSize(<char *>self.scratch, of.used)
        block.tails = self.known
        block.template = self.template
        return block

    cdef bint _find_topic(self, Header *header) except -1:
        """Look up the tails of the request's topic, unless it is that of the request before; false if it has none."""
        cdef Py_ssize_t n
        if self.tails is not None and header.topic.size == self.topic_size and memcmp(
            header.topic.at, self.topic_at, self.topic_size
        ) == 0:
            return True
        self.tails = None
        self.key_is_known = False  # with each chunk and each topic: accounts change, and so does what they may do
        if header.topic.size == 0 or header.topic.size > 255:
            return False
        tails = self.writable.get(header.topic.at[: header.topic.size].decode())
        if tails is None:
            return False
        self.tails = tails
        self.topic_field = self.tails[0].topic_field
        self.topic_at, self.topic_size = header.topic.at, header.topic.size
        self.slot_count = min(<Py_ssize_t>QUEUES_MAX, len(self.tails))
        for n in range(self.slot_count):
            self.slots[n] = 0
        return True

    cdef int _queue(self, int64_t queue_id) except -2:
        """The number of the queue's tail among those of the block; -1 if there are too many."""
        if self.slots[queue_id]:
            return self.slots[queue_id] - 1
        tail = self.tails[queue_id]
        number = self.numbers.get(tail)
        if number is None:
            number = len(self.known)
            if number == QUEUES_MAX:
                return -1
            self.numbers[tail] = number
            self.known.append(tail)
        self.slots[queue_id] = <int32_t>number + 1
        return <int32_t>number

    cdef int64_t _tag_code(self, const uint8_t *at, uint32_t size) except? -1:
        if size == 0:
            return 0
        if self.tags_at == NULL or size != self.tags_size or memcmp(at, self.tags_at, size):
            self.tags_code = self.tag_codes[(<const char *>at)[:size]]
            self.tags_at, self.tags_size = at, size
        return self.tags_code

    cdef bint _take_one(self, Block *block, Header *header, const uint8_t *body, Py_ssize_t body_bytes) except -1:
        """Write the record of a single message; false, and nothing is changed, if it is not plain."""
        cdef Py_ssize_t suffix_bytes = PyBytes_GET_SIZE(self.suffix)
        # Properties grow by a separator and the suffix; JSON never has fewer bytes than what it stands for.
        cdef Py_ssize_t most = FIXED_BYTES + body_bytes + self.topic_size + header.properties.size + 1 + suffix_bytes
        if block.used + most > self.block_bytes_max:
            return False
        cdef uint8_t *text = self.scratch + block.used + FIXED_BYTES + body_bytes + self.topic_size
        cdef int64_t text_bytes = _unescape(header.properties, text)
        if text_bytes <= 0:
            return False
        if text[text_bytes - 1] != VALUE_END:
            text[text_bytes] = VALUE_END
            text_bytes += 1
        cdef Found found
        if not _properties(text, <uint32_t>text_bytes, &found) or text_bytes + suffix_bytes > PROPERTIES_BYTES_MAX:
            return False
        cdef int64_t code = self._tag_code(text + found.tags_at, found.tags_size)
        cdef int queue = self._queue(header.queue_id)
        if queue < 0:
            return False
        memcpy(text + text_bytes, PyBytes_AS_STRING(self.suffix), suffix_bytes)
        cdef Send *send = &self.sends[block.count]
        send.queue = <uint16_t>queue
        send.tag_code = code
        send.key_size = found.key_size
        send.key_at = <uint32_t>(text + found.key_at - self.scratch)
        self._write(block.used, send, header, header.flag, body, body_bytes, text_bytes + suffix_bytes)
        self._request(block, header, 1)
        block.used += send.size
        return True

    cdef bint _take_batch(self, Block *block, Header *header, const uint8_t *body, Py_ssize_t body_bytes) except -1:
        """Write the records of a batch, as `mq.broker.produce.batch` does; false, and nothing is changed, if it is not
        plain."""
        cdef Py_ssize_t suffix_bytes = PyBytes_GET_SIZE(self.suffix)
        cdef int64_t shared_bytes = self._read_shared(header.properties)
        if shared_bytes < 0 or not body_bytes:
            return False
        cdef int queue = -1
        cdef Py_ssize_t at = 0, used = block.used, own_bytes, text_bytes, n
        cdef Py_ssize_t count = 0
        cdef int64_t size, part_bytes
        cdef const uint8_t *own
        cdef uint8_t *text
        cdef Found found
        cdef Send *send
        while at < body_bytes:
            if body_bytes - at < BATCH_FIXED_BYTES or block.count + count == MESSAGES_MAX:
                return False
            size = <int32_t>get32(body + at)
            part_bytes = <int32_t>get32(body + at + 16)
            if not BATCH_FIXED_BYTES <= size <= body_bytes - at or not 0 <= part_bytes <= size - BATCH_FIXED_BYTES:
                return False
            own = body + at + BATCH_HEAD_BYTES + part_bytes
            own_bytes = size - BATCH_FIXED_BYTES - part_bytes
            if own[0] * 256 + own[1] != own_bytes or own_bytes == 0 or own_bytes > PROPERTIES_BYTES_MAX:
                return False
            own += 2
            if used + FIXED_BYTES + part_bytes + self.topic_size + own_bytes + 1 + shared_bytes + suffix_bytes > min(
                self.block_bytes_max, block.used + self.body_bytes_max
            ):
                return False
            for n in range(own_bytes):
                if own[n] >= 0x80:
                    return False
            text = self.scratch + used + FIXED_BYTES + part_bytes + self.topic_size
            memcpy(text, own, own_bytes)
            if text[own_bytes - 1] != VALUE_END:
                text[own_bytes] = VALUE_END
                own_bytes += 1
            memcpy(text + own_bytes, self.shared, shared_bytes)
            text_bytes = own_bytes + shared_bytes
            if text_bytes + suffix_bytes > PROPERTIES_BYTES_MAX:
                return False
            # The key must be the message's own; a tag may be that of the batch.
            if not _properties(text, <uint32_t>text_bytes, &found) or found.key_at >= own_bytes:
                return False
            memcpy(text + text_bytes, PyBytes_AS_STRING(self.suffix), suffix_bytes)
            send = &self.sends[block.count + count]
            send.tag_code = self._tag_code(text + found.tags_at, found.tags_size)
            send.key_size = found.key_size
            send.key_at = <uint32_t>(text + found.key_at - self.scratch)
            self._write(
                used,
                send,
                header,
                <int32_t>get32(body + at + 12),
                body + at + BATCH_HEAD_BYTES,
                part_bytes,
                text_bytes + suffix_bytes,
            )
            used += send.size
            count += 1
            at += size
        queue = self._queue(header.queue_id)
        if queue < 0:
            return False
        for n in range(count):
            self.sends[block.count + n].queue = <uint16_t>queue
        self._request(block, header, count)
        block.used = used
        return True

    cdef int64_t _read_shared(self, Text properties) noexcept:
        """What the properties of a batch add to each message: all but its unique key. -1 if they are not plain."""
        if properties.size >= PROPERTIES_BYTES_MAX:
            return -1
        cdef int64_t size = _unescape(properties, self.shared), at = 0, end, kept = 0
        if size < 0:
            return -1
        if size and self.shared[size - 1] != VALUE_END:
            self.shared[size] = VALUE_END
            size += 1
        while at < size:
            end = at
            while self.shared[end] != VALUE_END:
                end += 1
            end += 1
            if end - at > 1 and not _starts(self.shared + at, self.shared + end, b"UNIQ_KEY\x01", 9):
                memmove(self.shared + kept, self.shared + at, end - at)
                kept += end - at
            at = end
        return kept

    cdef void _request(self, Block *block, Header *header, Py_ssize_t count) noexcept:
        cdef Request *request = &self.requests[block.requests]
        request.first = <uint32_t>block.count
        request.count = <uint32_t>count
        request.opaque = <int32_t>header.opaque
        request.oneway = header.request_flag == 2
        block.requests += 1
        block.count += count

    cdef void _write(
        self,
        Py_ssize_t at,
        Send *send,
        Header *header,
        int64_t flag,
        const uint8_t *body,
        Py_ssize_t body_bytes,
        Py_ssize_t properties_bytes,
    ) noexcept:
        """Write a record around its properties, which are in place: all but sender, offsets and store time."""
        cdef uint8_t *record = self.scratch + at
        cdef uint8_t *topic = record + HEAD_BYTES + body_bytes
        cdef uint8_t *length = topic + 1 + self.topic_size
        send.record_at = <uint32_t>at
        send.size = <uint32_t>(FIXED_BYTES + body_bytes + self.topic_size + properties_bytes)
        put32(record, send.size)
        put32(record + 4, self.magic)
        put32(record + 8, crc32(body, body_bytes) & 0x7FFFFFFF)
        put32(record + 12, <uint32_t>header.queue_id)
        put32(record + 16, <uint32_t><int32_t>flag)
        put32(record + 36, <uint32_t><int32_t>header.sys_flag & self.client_flags)
        put64(record + 40, <uint64_t>header.born_ms)
        memcpy(record + 64, PyBytes_AS_STRING(self.store_host), 8)
        put32(record + 72, <uint32_t><int32_t>header.reconsume_times)
        put64(record + 76, 0)
        put32(record + 84, <uint32_t>body_bytes)
        memcpy(record + HEAD_BYTES, body, body_bytes)
        memcpy(topic, PyBytes_AS_STRING(self.topic_field), 1 + self.topic_size)
        length[0] = <uint8_t>(properties_bytes >> 8)
        length[1] = <uint8_t>(properties_bytes & 0xFF)

    cdef void _complete(self, Block *block, const char *host) noexcept:
        """Write the sender's address into all records."""
        cdef Py_ssize_t n
        for n in range(block.count):
            memcpy(self.scratch + self.sends[n].record_at + 48, host, 8)


# ------------------------------------------------------------------------------------------------- received records

def checked_records(data, int64_t position):
    """How many bytes at the start of ``data`` are records as `mq.protocol.records.check_records` accepts them, if
    ``data`` is at physical offset ``position``.

    Stops at a record of another layout, with an address of IPv6 or the second magic number, and at a damaged one.
    """
    cdef Py_buffer buffer
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    cdef Py_ssize_t checked = _checked_records(<const uint8_t *>buffer.buf, buffer.len, <uint64_t>position)
    PyBuffer_Release(&buffer)
    return checked


cdef Py_ssize_t _checked_records(const uint8_t *data, Py_ssize_t length, uint64_t position) noexcept nogil:
    cdef Py_ssize_t at = 0, left
    cdef uint32_t size, rest
    cdef const uint8_t *record
    cdef const uint8_t *text
    while True:
        left = length - at
        record = data + at
        if left < FIXED_BYTES or get32(record + 4) != <uint32_t>MAGIC_V1 or get32(record + SYS_FLAG_AT) & IPV6_FLAGS:
            return at
        size = get32(record)
        if size < FIXED_BYTES or size > left or get64(record + PHYSICAL_OFFSET_AT) != position + <uint64_t>at:
            return at
        # What the lengths of body, topic and properties share. The body ends with the topic's length.
        rest = size - FIXED_BYTES
        if get32(record + HEAD_BYTES - 4) > rest:
            return at
        rest -= get32(record + HEAD_BYTES - 4)
        text = record + HEAD_BYTES + get32(record + HEAD_BYTES - 4)
        if text[0] > rest:
            return at
        rest -= text[0]
        text += 1 + text[0]
        if text[0] * 256 + text[1] != rest:
            return at
        at += size
