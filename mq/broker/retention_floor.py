"""Finds the part of the log that the broker itself still needs, because it has to deliver messages later.

They wait in internal queues for their due time or the end of their transaction, or they are popped and may stay
unacknowledged; so retention keeps them until the disk is full. Which ones they are is replicated state, and their
places are in each replica's queues, so every replica knows them.

Messages of compacted topics stay whatever the disk: the newest one of each key is never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mq.broker.state.format_level import LEVEL_OF_COMPACTION
from mq.broker.state.metadata import Metadata
from mq.broker.transaction.half_messages import HALF_QUEUE_ID
from mq.protocol.messages.delay import LEVEL_MAX, TIMER_SLOTS
from mq.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from mq.protocol.numbers import FIRST_OFFSET, PhysicalOffset, QueueOffset
from mq.protocol.requests.compaction_attributes import is_compacted
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.queue_store import QueueStore

NOTHING: Final = PhysicalOffset(2**63 - 1)
_MARKED: Final = ((HALF_TOPIC, HALF_QUEUE_ID), *((TIMER_TOPIC, slot) for slot in range(TIMER_SLOTS)))


class RetentionFloor:
    """Finds the oldest message that the broker still has to deliver.

    Caches a place for each queue with waiting messages: about 1,500 internal ones, and the queues that were popped
    from.
    """

    def __init__(self, metadata: Metadata, store: QueueStore, wall_clock_ms: Callable[[], int]) -> None:
        self._metadata = metadata
        self._store = store
        self._wall_clock_ms = wall_clock_ms
        self._places: dict[tuple[tuple[str, int], QueueOffset], PhysicalOffset] = {}

    def first_pos(self) -> PhysicalOffset:
        """Return the physical offset of the oldest message to deliver; NOTHING without one.

        It may be below the beginning of the log while the queues are not updated after a deletion. Takes up to a few
        milliseconds, and the first time a read for each queue. Raises StoreError, OSError.
        """
        earlier_places, self._places = self._places, {}
        for queue, offset in (*self._heads(), *self._pop_places()):
            place = queue.key, offset
            low, high = queue.min_offset, queue.max_offset
            assert low <= offset < high, f"message {offset} of {queue.key} waits, which has {low} to {high}"
            position = earlier_places.get(place)
            if position is None:
                position = PhysicalOffset(QUEUE_ENTRY.unpack(queue.read(offset, 1))[0])
            self._places[place] = position
        return min(self._places.values(), default=NOTHING)

    def _heads(self) -> Iterator[tuple[ConsumeQueue, QueueOffset]]:
        """Yield each queue with a waiting message, and the offset of the first one."""
        for level in range(1, LEVEL_MAX + 1):
            queue = self._store.get(SCHEDULE_TOPIC, level - 1)
            if queue is not None:
                offset = max(self._metadata.delay_offsets.get(level, FIRST_OFFSET), queue.min_offset)
                if offset < queue.max_offset:
                    yield queue, offset
        marks = self._metadata.marks
        for topic, queue_id in _MARKED:
            queue = self._store.get(topic, queue_id)
            if queue is not None:
                for offset in marks.get(topic, queue_id).open_offsets(queue.min_offset, queue.max_offset):
                    yield queue, offset
                    break

    def _pop_places(self) -> Iterator[tuple[ConsumeQueue, QueueOffset]]:
        """Yield each queue with open pops of a group, and an offset below which none is open."""
        now_ms = self._wall_clock_ms()
        for (_, topic, queue_id), pop_queue in self._metadata.pops.queues.items():
            queue = self._store.get(topic, queue_id)
            if queue is not None:
                offset = pop_queue.first_hidden(queue.min_offset, now_ms)
                if offset is not None and offset < queue.max_offset:
                    yield queue, offset


class KeptMessages:
    """Finds the oldest message of all compacted topics. Caches where each of their queues begins in the log."""

    def __init__(self, metadata: Metadata, store: QueueStore) -> None:
        self._metadata = metadata
        self._store = store
        self._places: dict[tuple[tuple[str, int], QueueOffset], PhysicalOffset] = {}

    def first_pos(self) -> PhysicalOffset:
        """Return the physical offset of their oldest message; NOTHING without one. Raises StoreError, OSError."""
        earlier_places, self._places = self._places, {}
        if self._metadata.format_level.level < LEVEL_OF_COMPACTION:
            return NOTHING
        for topic, config in self._metadata.topics.items():
            if not is_compacted(config.attributes):
                continue
            for queue_id in self._store.ends(topic):
                queue = self._store.get(topic, queue_id)
                if queue is None or queue.min_offset == queue.max_offset:
                    continue
                place = queue.key, queue.min_offset
                position = earlier_places.get(place)
                if position is None:
                    position = PhysicalOffset(QUEUE_ENTRY.unpack(queue.read(queue.min_offset, 1))[0])
                self._places[place] = position
        return min(self._places.values(), default=NOTHING)
