"""The body of request code 320: many messages to one queue, each with its own body, flag and properties.

Per message ``size:4, magic:4 (0), crc:4 (0), flag:4, body length:4, body, properties length:2, properties``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from mq.protocol.errors import BodyError
from mq.protocol.properties import PROPERTIES_BYTES_MAX

BATCHED_HEAD: Final = struct.Struct(">iiiii")
"""Size, magic number, checksum, flag and length of the body."""
_I16: Final = struct.Struct(">h")
_FIXED: Final = BATCHED_HEAD.size + _I16.size
BATCHED_BYTES_MIN: Final = _FIXED
"""Bytes of a message in a batch in addition to its body and properties."""


class BatchedMessage(NamedTuple):
    """One message of a batch. ``properties`` is text encoded as in `mq.protocol.properties`."""

    body: bytes
    properties: str
    flag: int = 0


def encode_batch(messages: Iterable[BatchedMessage]) -> bytes:
    """Encode the body of a batch. Raises BodyError if the properties of a message are too long for it."""
    parts: list[bytes] = []
    for message in messages:
        text = message.properties.encode()
        if len(text) > PROPERTIES_BYTES_MAX:
            raise BodyError(f"the properties have {len(text)} bytes; maximum in a batch: {PROPERTIES_BYTES_MAX}")
        size = _FIXED + len(message.body) + len(text)
        parts += (
            BATCHED_HEAD.pack(size, 0, 0, message.flag, len(message.body)),
            message.body,
            _I16.pack(len(text)),
            text,
        )
    return b"".join(parts)


def decode_batch(data: memoryview | bytes) -> list[BatchedMessage]:
    """Decode the body of a batch. Raises BodyError."""
    return [
        BatchedMessage(body, str(properties, "utf-8", "replace"), flag) for flag, body, properties in split_batch(data)
    ]


def split_batch(data: memoryview | bytes, count_max: int | None = None) -> list[tuple[int, bytes, bytes]]:
    """Split the body of a batch into flag, body and encoded properties of each message.

    Raises BodyError, also for more than ``count_max`` messages; the rest is not parsed.
    """
    raw = bytes(data)
    messages: list[tuple[int, bytes, bytes]] = []
    at, end = 0, len(raw)
    unpack_head, unpack_length = BATCHED_HEAD.unpack_from, _I16.unpack_from
    while at < end:
        room = end - at
        if len(messages) == count_max:
            raise BodyError(f"a batch of more than {count_max} messages of this topic is larger than a message may be")
        if room < _FIXED:
            raise BodyError(f"message {len(messages)} of a batch has {room} bytes, at least {_FIXED} are needed")
        size, _, _, flag, body_length = unpack_head(raw, at)
        if not _FIXED <= size <= room or not 0 <= body_length <= size - _FIXED:
            raise BodyError(
                f"message {len(messages)} of a batch has size {size} and a body of {body_length}, {room} bytes are left"
            )
        body_start = at + BATCHED_HEAD.size
        body_end = body_start + body_length
        (text_length,) = unpack_length(raw, body_end)
        if _FIXED + body_length + text_length != size:
            raise BodyError(
                f"message {len(messages)} of a batch has size {size}, a body of {body_length} "
                f"and properties of {text_length} bytes"
            )
        at += size
        messages.append((flag, raw[body_start:body_end], raw[body_end + 2 : at]))
    return messages
