"""The keys of records (the unique key, and the words that the sender set) and their hashes.

Works on the bytes of log entries as stored in files, so any thread or process can use it.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from mq.protocol import properties as props
from mq.protocol.messages.records import (
    BORN_HOST_IPV6,
    FIXED,
    MAGIC_V1,
    MAGIC_V2,
    ROLLBACK,
    STORE_HOST_IPV6,
    TRANSACTION_MASK,
)
from raftlog.segment.codec import HEADER, HEADER_BYTES, NORMAL

KEY_HASH_BITS: Final = 32
"""A hash collision costs a reader a look at the record, no more."""
HASHED_BYTES_MAX: Final = 256
"""Hashed prefix of a topic or key; texts of equal length that differ only after it have the same hash."""
TOPIC_FACTOR: Final = 0xC2B2AE3D27D4EB4F
FINAL_FACTOR: Final = 0xFF51AFD7ED558CCD
WORD_FACTORS: Final = tuple(pow(0x9E3779B97F4A7C15, number + 2, 1 << 64) for number in range(-(-HASHED_BYTES_MAX // 8)))
"""One for each 8 bytes of a text; odd, so that no bit of a word is lost."""

_IPV6: Final = BORN_HOST_IPV6 | STORE_HOST_IPV6
_HEAD: Final = struct.Struct(">ii28xi16xq20xi")
"""Size, magic number, system flag, store time, body length of a record with IPv4 hosts."""
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_UNIQUE: Final = f"{props.UNIQUE_KEY}{props.NAME_END}".encode()
_KEYS: Final = f"{props.KEYS}{props.NAME_END}".encode()
_BLANK: Final = b" "


class EntriesDamaged(Exception):
    """The bytes are not entries with records; ``at`` is the position of the error."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(f"at byte {at}: {reason}")
        self.at = at


class KeyedRecord(NamedTuple):
    """A record with properties, within its input: from ``at`` to ``end``."""

    at: int
    end: int
    store_ms: int
    topic: bytes
    text_at: int
    """Beginning of its properties; they extend to its end."""


def text_hash(text: bytes) -> int:
    """64 bits of a text: its length and the sum of its little-endian words, each times its factor, modulo 2**64."""
    words = (int.from_bytes(text[at : min(at + 8, HASHED_BYTES_MAX)], "little") for at in range(0, len(text), 8))
    total: int = sum(map(operator.mul, words, WORD_FACTORS))
    return (len(text) + total) % (1 << 64)


def key_hash(topic: bytes, key: bytes) -> int:
    """Hash a topic's key to `KEY_HASH_BITS` bits. `key_table` computes the same for many keys at once."""
    value = (text_hash(topic) * TOPIC_FACTOR + text_hash(key)) % (1 << 64)
    value ^= value >> 32
    return (value * FINAL_FACTOR) % (1 << 64) >> 64 - KEY_HASH_BITS


def has_key(data: bytes, record: KeyedRecord, topic: bytes, key: bytes, *, unique: bool) -> bool:
    """Whether a record belongs to this topic and has this key; with ``unique`` only the unique key is compared."""
    if record.topic != topic:
        return False
    if props.value_of(data, _UNIQUE, record.text_at, record.end) == key:
        return True
    return not unique and key in props.value_of(data, _KEYS, record.text_at, record.end).split(_BLANK)


def bodies_in(data: bytes) -> Iterator[tuple[int, int]]:
    """The ranges in ``data``, contiguous log entries, of bodies that contain records. Raises EntriesDamaged."""
    at, end = 0, len(data)
    unpack = HEADER.unpack_from
    while at < end:
        if at + HEADER_BYTES > end:
            raise EntriesDamaged(at, f"{end - at} bytes are not an entry")
        kind, size, _, _, _, _, _, _, body_len = unpack(data, at)
        if size != HEADER_BYTES + body_len or at + size > end:
            raise EntriesDamaged(at, f"expected an entry of {size} bytes, got {end - at}")
        if kind == NORMAL:
            yield at + HEADER_BYTES, at + size
        at += size


def records_in(data: bytes, at: int, end: int) -> Iterator[KeyedRecord]:
    """The records in ``data[at:end]`` that have properties and are not rolled back. Raises EntriesDamaged."""
    unpack, new = _HEAD.unpack_from, tuple.__new__  # a NamedTuple's own constructor takes four times as long
    while at < end:
        if at + FIXED > end:
            raise EntriesDamaged(at, f"{end - at} bytes are not a record")
        size, magic, sys_flag, store_ms, body_length = unpack(data, at)
        body_at = at + 88
        if sys_flag & _IPV6:
            if sys_flag & BORN_HOST_IPV6:
                body_at += 12
                (store_ms,) = _I64.unpack_from(data, at + 68)
            if sys_flag & STORE_HOST_IPV6:
                body_at += 12
            if body_at > end:
                raise EntriesDamaged(at, f"{end - at} bytes are not a record with such hosts")
            (body_length,) = _I32.unpack_from(data, body_at - 4)
        topic_at = body_at + body_length + 1
        stop = at + size
        if not body_at < topic_at < stop <= end:
            raise EntriesDamaged(
                at, f"expected a record of {size} bytes with a body of {body_length}, got {end - at} bytes"
            )
        if magic == MAGIC_V1:
            text_at = topic_at + data[topic_at - 1] + 2
        elif magic == MAGIC_V2:
            text_at = topic_at + 1 + (data[topic_at - 1] << 8 | data[topic_at]) + 2
            topic_at += 1
        else:
            raise EntriesDamaged(at, f"the magic number is {magic & 0xFFFFFFFF:#x}")
        if text_at < stop and sys_flag & TRANSACTION_MASK != ROLLBACK:
            yield new(KeyedRecord, (at, stop, store_ms, data[topic_at : text_at - 2], text_at))
        at = stop
