"""Encodes requests and responses as whole frames. JSON is compact, with the keys in Java's order."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from mq.protocol.codes import LANGUAGES, MQ_VERSION
from mq.protocol.frames import BINARY, JSON, PREFIX_BYTES, encode_frame, encode_prefix
from mq.protocol.numbers import PhysicalOffset, QueueOffset

LANGUAGE: Final = "PYTHON"

RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2

_BINARY_FIXED: Final = struct.Struct(">hBhiii")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")


class _JsonHeader(msgspec.Struct, omit_defaults=True, gc=False):
    code: int
    extFields: dict[str, str] | None = None
    flag: int = -1  # never a default's value, so that it is always written
    language: str = ""
    opaque: int | None = None
    remark: str | None = None
    serializeTypeCurrentRPC: str = ""
    version: int = -1


_encode_json: Final = msgspec.json.Encoder().encode


def encode_header(
    code: int,
    opaque: int,
    flag: int,
    *,
    remark: str | None = None,
    ext: dict[str, str] | None = None,
    serialization: int = JSON,
    language: str = LANGUAGE,
    version: int = MQ_VERSION,
) -> bytes:
    """Encode a header in JSON or binary. The binary encoding only has codes up to 32767."""
    if serialization == BINARY:
        return _encode_binary(code, opaque, flag, remark, ext, language, version)
    return _encode_json(_JsonHeader(code, ext, flag, language, opaque, remark, "JSON", version))


def encode_request(
    code: int,
    opaque: int,
    *,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    oneway: bool = False,
    serialization: int = JSON,
    language: str = LANGUAGE,
    version: int = MQ_VERSION,
) -> bytes:
    """Encode a request as a whole frame. ``ext`` has the names on the wire; all values are text, even numbers."""
    flag = ONEWAY_FLAG if oneway else 0
    header = encode_header(code, opaque, flag, ext=ext, serialization=serialization, language=language, version=version)
    return encode_frame(serialization, header, body)


def encode_response(
    opaque: int,
    code: int,
    *,
    remark: str | None = None,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    serialization: int = JSON,
) -> bytes:
    """Encode a response as a whole frame, with the ``opaque`` and ``serialization`` of its request."""
    header = encode_header(code, opaque, RESPONSE_FLAG, remark=remark, ext=ext, serialization=serialization)
    return encode_frame(serialization, header, body)


def encode_success(opaque: int, serialization: int = JSON) -> bytes:
    """Encode a successful response without further content, as a whole frame."""
    if serialization != JSON:
        return encode_response(opaque, 0, serialization=serialization)
    header = _SUCCESS % opaque
    return _PREFIX(4 + len(header), len(header)) + header


def pull_response_header(
    opaque: int,
    code: int,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    suggest_broker_id: int,
    remark: str | None,
    body_bytes: int,
    serialization: int = JSON,
) -> bytes:
    """Encode the start of a pull's response, up to the records, whose ``body_bytes`` follow in other buffers.

    ``remark`` is the name of the store's status, or the reason of a refusal.
    """
    if serialization == JSON:
        text = "" if remark is None else f'"remark":{_json_text(remark)},'
        header = (_PULL % (code, max_offset, min_offset, next_offset, suggest_broker_id, opaque, text)).encode()
    else:
        ext = {
            "maxOffset": str(max_offset),
            "minOffset": str(min_offset),
            "nextBeginOffset": str(next_offset),
            "suggestWhichBrokerId": str(suggest_broker_id),
        }
        header = encode_header(code, opaque, RESPONSE_FLAG, remark=remark, ext=ext, serialization=serialization)
    return encode_prefix(serialization, len(header), body_bytes) + header


_PULL: Final = (
    '{"code":%d,"extFields":{"maxOffset":"%d","minOffset":"%d","nextBeginOffset":"%d","suggestWhichBrokerId":"%d"},'
    f'"flag":1,"language":"{LANGUAGE}","opaque":%d,%s"serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'
)

_SUCCESS: Final = (
    f'{{"code":0,"flag":1,"language":"{LANGUAGE}","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'
).encode()

_SENT: Final = (
    '{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"HOST%016X","queueId":"%d",'
    '"queueOffset":"%d","transactionId":"%s"},'
    f'"flag":1,"language":"{LANGUAGE}","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'
)


_FIELD: Final = re.compile(rb"%016X|%d|%s")


class SendReplyTemplate:
    """Encodes the response to a send, the most frequent response of a broker.

    ``store_host`` is the broker's address as records store it: 4 or 16 address bytes and 4 bytes port.
    """

    __slots__ = ("_host", "_template")

    def __init__(self, store_host: bytes) -> None:
        self._host = store_host.hex().upper()
        self._template = _SENT.replace("HOST", self._host).encode()

    @property
    def parts(self) -> list[bytes]:
        """The header's text around its fields: physical offset, queue id, queue offset, transaction id, opaque."""
        return _FIELD.split(self._template)

    def render(
        self,
        opaque: int,
        queue_id: int,
        queue_offset: QueueOffset,
        physical_offset: PhysicalOffset,
        transaction_id: bytes,
        serialization: int = JSON,
    ) -> bytes:
        """Encode the whole frame. ``transaction_id`` is the message's UNIQ_KEY, which may be any text in UTF-8."""
        if serialization == JSON:
            if not transaction_id.isalnum():
                transaction_id = _json_text(transaction_id.decode())[1:-1].encode()
            header = self._template % (physical_offset, queue_id, queue_offset, transaction_id, opaque)
            return _PREFIX(4 + len(header), len(header)) + header
        return self.render_batch(opaque, queue_id, queue_offset, [physical_offset], transaction_id, serialization)

    def render_batch(
        self,
        opaque: int,
        queue_id: int,
        queue_offset: QueueOffset,
        physical_offsets: Sequence[PhysicalOffset],
        unique_keys: bytes,
        serialization: int = JSON,
        more: Mapping[str, str] | None = None,
    ) -> bytes:
        """Encode the response to a batch. ``queue_offset`` is that of its first message; commas join keys and ids.

        ``more`` are further fields of the header.
        """
        ext = {
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "msgId": ",".join([f"{self._host}{physical_offset:016X}" for physical_offset in physical_offsets]),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "transactionId": unique_keys.decode(),
            **(more or {}),
        }
        return encode_response(opaque, 0, ext=ext, serialization=serialization)

    def batch_header_bytes(self, count: int, unique_keys: bytes) -> int:
        """Return the maximum size of the header of `render_batch` for ``count`` messages, with any ``more``."""
        ids = count * (len(self._host) + len("0123456789ABCDEF,"))
        keys = _JSON_ESCAPE_BYTES_MAX * len(unique_keys)
        if keys > _KEYS_BYTES_EXACT:
            keys = len(_json_text(unique_keys.decode()).encode())
        return _OTHER_FIELDS_BYTES_MAX + ids + keys


_JSON_ESCAPE_BYTES_MAX: Final = 6
"""A control character becomes six characters."""
_KEYS_BYTES_EXACT: Final = 1024 * 1024
_OTHER_FIELDS_BYTES_MAX: Final = 2048
_PREFIX: Final = struct.Struct(">II").pack
assert encode_prefix(JSON, 1, 0) == _PREFIX(5, 1), "a JSON frame's second word is its header's length"
assert len(encode_prefix(JSON, 0, 0)) == PREFIX_BYTES


def _json_text(text: str) -> str:
    return _encode_json(text).decode()


def _encode_binary(
    code: int, opaque: int, flag: int, remark: str | None, ext: dict[str, str] | None, language: str, version: int
) -> bytes:
    assert -32768 <= code <= 32767, f"code {code} does not fit into the binary header"
    text = remark.encode() if remark else b""
    fields: list[bytes] = []
    for name, value in (ext or {}).items():
        key, data = name.encode(), value.encode()
        fields += (_I16.pack(len(key)), key, _I32.pack(len(data)), data)
    fields_bytes = b"".join(fields)
    head = _BINARY_FIXED.pack(code, LANGUAGES[language], version, opaque, flag, len(text))
    return b"".join((head, text, _I32.pack(len(fields_bytes)), fields_bytes))
