"""Tracks the queue offset of the newest message of each key in a queue. Pure.

A key is known by a hash of 16 bytes, so that long keys take no more memory than short ones, and two keys with one hash
cannot be found.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

from mq.protocol.messages.records import RawRecord, properties_text
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.compaction_attributes import carried_from_ms, key_of

_HASH_BYTES: Final = 16


def hash_of(record: bytes) -> bytes | None:
    """Hash the key of a record. Returns None if it has no key. Raises RecordError."""
    key = key_of(properties_text(record))
    return None if key is None else blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).digest()


class CompactionFacts(NamedTuple):
    """The facts that decide whether the newest message of a key is deleted."""

    is_tombstone: bool
    stored_ms: int
    """Store time; for a copy, the original's."""


def compaction_facts(record: RawRecord) -> CompactionFacts:
    """Return whether a record is a tombstone, and its store time; for a copy, that of the original."""
    original_ms = carried_from_ms(record.properties.decode("utf-8", "replace"))
    own_ms = record.store_timestamp_ms
    return CompactionFacts(not record.body, own_ms if original_ms is None else min(own_ms, original_ms))


class NewestKeys:
    """Maps each key to the offset of its newest message, among the messages passed to `learn`."""

    def __init__(self) -> None:
        self._offsets: dict[bytes, QueueOffset] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def learn(self, key: bytes, offset: QueueOffset) -> None:
        """Store ``offset`` as that of the newest message with ``key``, unless a newer one is stored."""
        assert len(key) == _HASH_BYTES, f"the hash of a key has {len(key)} bytes"
        assert offset >= 0, f"a message has the queue offset {offset}"
        before = self._offsets.get(key)
        if before is None or before < offset:
            self._offsets[key] = offset

    def is_newest(self, key: bytes, offset: QueueOffset) -> bool:
        """Return whether the newest message with ``key`` is the one at ``offset``."""
        return self._offsets.get(key) == offset

    def forget(self, key: bytes, offset: QueueOffset) -> None:
        """Remove ``key`` if its newest message, at ``offset``, is being deleted."""
        assert key in self._offsets, f"the message at {offset} was not learned"
        if self._offsets.get(key) == offset:
            del self._offsets[key]
