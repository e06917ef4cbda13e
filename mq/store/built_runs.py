"""Runs of queue entries that a leader has built while it wrote their records; `QueueStore.append_built` adds them."""

from __future__ import annotations

from typing import Protocol

from mq.protocol.numbers import QueueOffset
from mq.store.consume_queue import ConsumeQueue


class WritingEnd(Protocol):
    """The writer of a queue, which caches the queue object.

    ``queue`` is set by `QueueStore.append_built`; None before.
    """

    topic: str
    queue_id: int
    queue: ConsumeQueue | None


BuiltRun = tuple[WritingEnd, QueueOffset, int, bytes]
"""A run from the leader's writer: its writing end, first queue offset, number of entries, and the entries."""
