"""RocketMQ's request signatures (ACL 1.0): computed by clients, checked by brokers.

A signed request has two more header fields, the access key and the signature: HMAC-SHA1 over the values of all header
fields in the order of their names, followed by the body, as Base64. The secret key is the key of the HMAC.

So the signature of a RocketMQ client covers one text, and not where a value ends and the next begins. Our clients sign
that as well: see `LENGTHS`.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from hashlib import sha1
from hmac import compare_digest
from operator import itemgetter
from typing import Final

import msgspec

from mq.protocol.errors import FrameError, HeaderError
from mq.protocol.frames import JSON
from mq.protocol.wire.loose_header import read_binary, read_json

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SIGNED_CODE: Final = "SignedCode"
"""A field that our clients add to requests other than sends, with the code: a signature covers the fields, but not the
code, so an attacker who recorded a request could send it under another code. Stock brokers ignore the field.
"""
LENGTHS: Final = "AccessLengths"
"""A field that our clients add to all requests: the names and lengths of the fields, and the length of the body.

Its name follows the name of the access key, so in the signed text its value follows the access key. Nobody who recorded
a request can move it elsewhere: a text with `LENGTHS_MARK` there has to come with this field.
"""
LENGTHS_MARK: Final = ":lengths:"
"""The beginning of its value; no name of a topic or group has a colon."""
ADDED_LATER: Final = "_UNIQUE_KEY_QUERY"
"""A field of queries by key that RocketMQ clients up to 4.9.3 add to a request when it is signed."""

BLOCK_BYTES: Final = 64
"""Bytes of a block of SHA-1, and of the key of an HMAC."""
_INNER_PAD: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD: Final = bytes(byte ^ 0x5C for byte in range(256))

KEY_LENGTH_MIN: Final = 7
"""Minimum characters of an access key or a secret key, as in RocketMQ."""


class _Signed(msgspec.Struct):
    extFields: dict[str, str] = {}


_decode: Final = msgspec.json.Decoder(_Signed).decode


def header_fields(serialization: int, header: bytes) -> Mapping[str, str]:
    """Return the fields of an encoded header as text, by wire name; no fields for an invalid header."""
    if serialization == JSON:
        try:
            return _decode(header).extFields
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    read = read_json if serialization == JSON else read_binary
    try:
        return read(memoryview(header)).ext
    except (FrameError, HeaderError):
        return {}


class Signer:
    """Computes and checks signatures with one secret key.

    Whatever depends on the key alone is computed once, and the order of field names is cached: a check takes about 2 us
    with the checksum itself, a third of the time with `hmac` and a sort per request.
    """

    __slots__ = ("_inner", "_outer", "key")

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode()
        if len(key) > BLOCK_BYTES:
            key = sha1(key, usedforsecurity=False).digest()
        self.key: Final = key.ljust(BLOCK_BYTES, b"\0")  # of the HMAC, 64 bytes
        self._inner = sha1(self.key.translate(_INNER_PAD), usedforsecurity=False)
        self._outer = sha1(self.key.translate(_OUTER_PAD), usedforsecurity=False)

    def signature(self, fields: Mapping[str, str], body: bytes) -> bytes:
        """Compute the signature of a request from its body and its header fields, which include the access key."""
        return self._signature_of(_content(fields, body))

    def _signature_of(self, content: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)

    def is_signed(self, fields: Mapping[str, str], body: bytes) -> bool:
        """Whether ``fields`` have the right signature for this request. Compares in constant time."""
        signature = fields.get(SIGNATURE, "").encode("utf-8", "surrogatepass")
        content = _content(fields, body)
        if compare_digest(signature, self._signature_of(content)):
            return _has_its_lengths(fields, body, content)
        if ADDED_LATER not in fields:
            return False
        earlier = {name: value for name, value in fields.items() if name != ADDED_LATER}
        return compare_digest(signature, self.signature(earlier, body))


def lengths(fields: Mapping[str, str], body: bytes) -> str:
    """Return the value of the field `LENGTHS` for a request; lengths are in bytes."""
    names = sorted(name for name in fields if name not in _NOT_COUNTED)
    return f"{LENGTHS_MARK}{','.join([f'{name}={_size(fields[name])}' for name in names])};{len(body)}"


_NOT_COUNTED: Final = frozenset({ACCESS_KEY, LENGTHS, SIGNATURE})


def _size(value: str) -> int:
    return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))


def _content(fields: Mapping[str, str], body: bytes) -> bytes:
    """The signed text."""
    return "".join(_signed_values(tuple(fields))(fields)).encode("utf-8", "surrogatepass") + body


def _has_its_lengths(fields: Mapping[str, str], body: bytes, content: bytes) -> bool:
    """Whether a correctly signed text is divided into fields and body as its sender has done, if it says how."""
    access_key = fields.get(ACCESS_KEY, "")
    text = fields.get(LENGTHS)
    if text is None:
        return not content.startswith((access_key + LENGTHS_MARK).encode("utf-8", "surrogatepass"))
    return text == lengths(fields, body) and content.startswith((access_key + text).encode("utf-8", "surrogatepass"))


def sign_fields(access_key: str, secret_key: str, fields: Mapping[str, str] | None, body: bytes) -> dict[str, str]:
    """Return a request's header fields with access key and signature added."""
    result = {**(fields or {}), ACCESS_KEY: access_key}
    result[SIGNATURE] = Signer(secret_key).signature(result, body).decode()
    return result


@lru_cache(maxsize=1024)
def _signed_values(names: tuple[str, ...]) -> Callable[[Mapping[str, str]], Iterable[str]]:
    """A function that returns the signed values of fields with these names, in signing order.

    Clients of one kind send the same fields in the same order. Joining the characters of a single value gives the same
    text.
    """
    signed_names = sorted(name for name in names if name != SIGNATURE)
    return itemgetter(*signed_names) if signed_names else lambda fields: ()
