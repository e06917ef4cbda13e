"""Signatures of plain sends; the reference is `mq.protocol.access.signing.Signer`.

A signature is HMAC-SHA1 in Base64, over the access key and the values of all fields in the order of their names, and
then the body. The lengths that our clients add follow the access key. SHA-1 comes from the OpenSSL that Python's
`hashlib` has loaded (decision 32): with objects of `hashlib`, a check takes more than twice as long.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from posix.dlfcn cimport RTLD_NOW, dlopen, dlsym

import _hashlib
from binascii import b2a_base64
from hashlib import sha1
from hmac import compare_digest

cdef enum:
    DIGEST_BYTES = 20
    SIGNATURE_BYTES = 28
    LENGTHS_BYTES_MAX = 512  # mark, and for each letter and the body a name, a number and two signs
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


def use_sha1_of(str library not None):
    """Compute signatures with SHA-1 of OpenSSL, called directly; returns whether it was found.

    ``library`` is a shared library that is linked to OpenSSL 3 or later, such as Python's ``_hashlib``. Otherwise they
    are computed with objects of `hashlib`.
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
    """A digest of SHA-1 in Base64: 27 characters and one for padding."""
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
    to[SIGNATURE_BYTES - 1] = b'='


cdef const char *_LENGTHS_MARK = b":lengths:"


cdef uint8_t *_write_number(uint8_t *to, uint64_t number) noexcept nogil:
    """Write a number in decimal; returns the place behind it."""
    cdef uint8_t[20] digits
    cdef int count = 0
    while True:
        digits[count] = <uint8_t>(c'0' + number % 10)
        number //= 10
        count += 1
        if number == 0:
            break
    while count:
        count -= 1
        to[0] = digits[count]
        to += 1
    return to


cdef bint _are_lengths(Text given, uint32_t letters, const uint32_t *sizes, Py_ssize_t body_bytes) noexcept nogil:
    """Whether a client says that these fields have these sizes."""
    cdef uint8_t[LENGTHS_BYTES_MAX] expected
    cdef uint8_t *to = expected
    cdef int letter
    memcpy(to, _LENGTHS_MARK, LENGTHS_MARK_BYTES)
    to += LENGTHS_MARK_BYTES
    for letter in range(LETTERS):
        if letters & <uint32_t>1 << letter:
            if to != expected + LENGTHS_MARK_BYTES:
                to[0] = b','
                to += 1
            to[0] = <uint8_t>(c'a' + letter)
            to[1] = b'='
            to = _write_number(to + 2, sizes[letter])
    to[0] = b';'
    to = _write_number(to + 1, body_bytes)
    return given.size == to - expected and memcmp(given.at, expected, given.size) == 0


cdef class _Signer:
    """Checks signatures with one key."""

    # The hash of the key, as HMAC begins its two hashes with it.
    cdef Sha1 inner
    cdef Sha1 outer
    cdef object inner_object  # the same without OpenSSL
    cdef object outer_object

    cdef int use_key(self, bytes key) except -1:
        """Use a key of 64 bytes from now on."""
        cdef uint8_t[KEY_BYTES] inner
        cdef uint8_t[KEY_BYTES] outer
        cdef int n
        if PyBytes_GET_SIZE(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes")
        for n in range(KEY_BYTES):
            inner[n] = <uint8_t>PyBytes_AS_STRING(key)[n] ^ 0x36
            outer[n] = <uint8_t>PyBytes_AS_STRING(key)[n] ^ 0x5C
        if _sha1_init == NULL:
            self.inner_object = sha1(inner[:KEY_BYTES], usedforsecurity=False)
            self.outer_object = sha1(outer[:KEY_BYTES], usedforsecurity=False)
            return 0
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
            return self._is_signature_by_hashlib(given.at[: given.size], values[:values_bytes] + body[:body_bytes])
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

    cdef bint _is_signature_by_hashlib(self, bytes given, bytes content) except -1:
        inner, outer = self.inner_object.copy(), self.outer_object.copy()
        inner.update(content)
        outer.update(inner.digest())
        return compare_digest(given, b2a_base64(outer.digest(), newline=False))


cdef class SignatureCheck:
    """Checks signatures of sends, and remembers the key of the sender that was seen last."""

    cdef uint8_t *values  # those that are signed, in signing order
    cdef Text access_key
    cdef bint key_is_known
    cdef _Signer signer
    cdef bytes broker_name

    def __cinit__(self, bytes broker_name not None):
        self.broker_name = broker_name
        self.values = <uint8_t *>PyMem_Malloc(HEADER_BYTES_MAX)
        if self.values == NULL:
            raise MemoryError
        self.key_is_known = False
        self.signer = _Signer.__new__(_Signer)

    def __dealloc__(self):
        PyMem_Free(self.values)

    cdef void forget_key(self) noexcept:
        """To be called with each chunk and each topic: accounts change, and what they may do differs between topics."""
        self.key_is_known = False

    cdef bint _is_to_us(self, SendHeader *header) noexcept:
        """Whether a request names this broker or none; another name may have bytes of the body."""
        cdef Text named = header.values[BROKER_NAME_LETTER]
        return not named.size or equals(named, PyBytes_AS_STRING(self.broker_name), PyBytes_GET_SIZE(self.broker_name))

    cdef bint is_allowed(self, key_of, SendHeader *header, const uint8_t *body, Py_ssize_t body_bytes) except -1:
        """Whether the sender may send to the topic, and has signed the request; see `PlainSends.take` for ``key_of``.

        The header has `HEADER_BYTES_MAX` bytes at most, and stays where it is until `forget_key`.
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
        cdef uint8_t *to = self.values
        cdef int64_t size
        cdef int letter
        memcpy(to, header.access_key.at, header.access_key.size)
        to += header.access_key.size
        memcpy(to, header.lengths.at, header.lengths.size)
        to += header.lengths.size
        cdef uint32_t[LETTERS] sizes
        for letter in range(LETTERS):
            if header.values[letter].escaped:
                size = unescape(header.values[letter], to)
                if size < 0:
                    return False
            else:
                size = header.values[letter].size
                memcpy(to, header.values[letter].at, size)
            sizes[letter] = <uint32_t>size
            to += size
        cdef uint8_t *behind = self.values + header.access_key.size
        if header.lengths.size:
            if not _are_lengths(header.lengths, header.letters, sizes, body_bytes):
                return False
        elif not self._is_to_us(header):
            return False
        elif to - behind >= LENGTHS_MARK_BYTES and not memcmp(behind, _LENGTHS_MARK, LENGTHS_MARK_BYTES):
            return False
        return self.signer.is_signature(header.signature, self.values, to - self.values, body, body_bytes)
