"""The offsets of the newest message of each key in a queue. Pure.

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
    """The hash of the key of a record; None without a key. Raises RecordError."""
    key = key_of(properties_text(record))
    return None if key is None else blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).digest()


class CompactionFacts(NamedTuple):
    """The facts that decide whether the newest message of a key is deleted."""

    is_tombstone: bool
    stored_ms: int
    """Store time; for a copy, the original's."""


def compaction_facts(record: RawRecord) -> CompactionFacts:
    """Whether a record is a tombstone, and when it, or the record that it is a copy of, was stored."""
    original_ms = carried_from_ms(record.properties.decode("utf-8", "replace"))
    own_ms = record.store_timestamp_ms
    return CompactionFacts(not record.body, own_ms if original_ms is None else min(own_ms, original_ms))


class NewestKeys:
    """The offset of the newest message of each key, of the messages that were learned, in the order of the queue."""

    def __init__(self) -> None:
        self._offsets: dict[bytes, QueueOffset] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def learn(self, key: bytes, offset: QueueOffset) -> None:
        """Remember a message with this key as its newest known one, unless it was learned before."""
        assert len(key) == _HASH_BYTES, f"the hash of a key has {len(key)} bytes"
        assert offset >= 0, f"a message has the queue offset {offset}"
        before = self._offsets.get(key)
        if before is None or before < offset:
            self._offsets[key] = offset

    def is_newest(self, key: bytes, offset: QueueOffset) -> bool:
        """Whether the message at ``offset`` is the newest known one with this key."""
        return self._offsets.get(key) == offset

    def forget(self, key: bytes, offset: QueueOffset) -> None:
        """Forget the key of a message that is deleted, unless a newer message has the key."""
        assert key in self._offsets, f"the message at {offset} was not learned"
        if self._offsets.get(key) == offset:
            del self._offsets[key]
