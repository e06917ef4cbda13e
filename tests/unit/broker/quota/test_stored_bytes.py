"""How many bytes a topic has, while messages come in faster than they are counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mq.broker.quota.stored_bytes import StoredBytes
from mq.store.queue_store import QueueStore

SIZE = 1000


class Counted:
    """In place of `TopicBytes`: its queue has so many messages."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.there = self.counted = 0

    @property
    def nbytes(self) -> int:
        return self.counted * SIZE

    def count(self, queues: list[Any], entries_max: int) -> int:
        read = min(self.there - self.counted, entries_max)
        self.counted += read
        return read


def test_messages_arriving_during_a_count_are_counted_once() -> None:
    """A topic with 5,000 messages per second was full when it had half of what it may have."""
    stored = StoredBytes(cast("QueueStore", SimpleNamespace(ends=lambda topic: (), get=None)))
    stored.limit("T", 1_000_000 * SIZE)
    topic = stored._topics["T"] = cast("Any", Counted(1_000_000 * SIZE))
    while not stored.excess("T"):
        for _ in range(50):
            stored.charge("T", 100 * SIZE)
            topic.there += 100
        stored.count()
    assert topic.there in range(1_000_000, 1_005_001)
