"""Deletes lite topics that received no message within the expiration time of their topic.

The leader looks at all lite topics in turn. Whether one is old follows from the place of its last message in the log,
compared with places whose time is known: only a few records are read. The end itself is a command that names the end of
the queue; if a message has come in the meantime, it changes nothing, on any replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from mq.broker.base.periodic_task import Periodic
from mq.broker.context import BrokerContext
from mq.broker.net.service import Service
from mq.broker.state.commands import encode_command
from mq.broker.state.lite_offsets import ExpireLiteTopics
from mq.broker.write_path.outcome import Outcome
from mq.protocol.messages.records import RecordError, latest_store_timestamp
from mq.protocol.names import is_lite_queue, split_lite_queue
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.lite_attributes import expiration_ms, is_lite
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError
from raftlog.segment import SegmentError

_LOOK_SECONDS = 0.5
_LOOKED_AT_ONCE = 2000
_ENDED_AT_ONCE = 50
_READ_AT_ONCE = 20


class LiteExpiry(Service):
    """Deletes lite topics that received no message within their expiration time, while this replica leads.

    Args:
        has_pops: whether a group is just popping from the queue of a lite topic.

    Attributes:
        on_keep: called with a queue that stays although its end was on its way.
    """

    def __init__(self, context: BrokerContext, *, has_pops: Callable[[str], bool]) -> None:
        self._metadata, self._store, self._appender = context.metadata, context.store, context.appender
        self._tails = context.queue_tails
        self._log = context.replica.log
        self._wall_clock_ms = context.wall_clock_ms
        self._has_pops = has_pops
        self.on_keep: Callable[[str], None] = lambda queue: None
        self._queues_to_check: Iterator[str] | None = None
        self._ends: set[str] = set()
        self._leadership = object()
        self.expiry_count = 0

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_LOOK_SECONDS, self.run, self._rests_until)

    def counters(self) -> dict[str, int]:
        """Return how many lite topics expired since the start of this replica."""
        return {"lite_expired": self.expiry_count}

    def resign(self) -> None:
        """Stop checking for expired lite topics, since this replica stops leading."""
        self._leadership = object()
        self._ends = set()
        self._queues_to_check = None

    def check_invariants(self) -> None:
        if self._appender.is_idle:
            assert not self._ends, f"{len(self._ends)} lite topics are ended, and nothing is pending"

    def topic_deleted(self, topic: str) -> None:
        """Count a deleted lite topic, if it was deleted because it expired."""
        self.expiry_count += topic in self._ends

    def is_ending(self, queue: str) -> bool:
        """Whether the command that deletes this lite topic is in flight."""
        return queue in self._ends

    def _rests_until(self) -> float:
        return float("-inf") if self._appender.is_open and self._store.lite_count else float("inf")

    def run(self) -> None:
        """Check the next lite topics, and delete the expired ones; called by a timer."""
        if not self._appender.is_open or not self._appender.has_room:
            return
        limits = {
            name: limit
            for name, config in self._metadata.topics.items()
            if is_lite(config.attributes) and (limit := expiration_ms(config.attributes)) is not None
        }
        if not limits:
            return
        if self._queues_to_check is None:
            self._queues_to_check = iter([queue for queue, _ in self._store.all_keys() if is_lite_queue(queue)])
        some = list(islice(self._queues_to_check, _LOOKED_AT_ONCE))
        if len(some) < _LOOKED_AT_ONCE:
            self._queues_to_check = None
        now_ms, reads = self._wall_clock_ms(), _Reads(self._read_time)
        rows: list[tuple[str, QueueOffset]] = []
        for name in some:
            queue, limit = self._store.get(name, 0), limits.get(split_lite_queue(name)[0])
            if queue is None or limit is None or len(rows) >= _ENDED_AT_ONCE or not self._rests(queue):
                continue
            if self._is_older(queue, now_ms - limit, reads):
                rows.append((name, queue.max_offset))
        if rows:
            self._end(rows)

    def _rests(self, queue: ConsumeQueue) -> bool:
        """Whether neither messages, nor pops, nor the deletion of a queue are in flight."""
        name = queue.topic
        return name not in self._ends and not self._has_pops(name) and self._tails.lite_end(name) == queue.max_offset

    def _is_older(self, queue: ConsumeQueue, before_ms: int, reads: _Reads) -> bool:
        """Whether the last message of a queue was stored before ``before_ms``, or is deleted from the log."""
        try:
            last = queue.read(QueueOffset(queue.max_offset - 1), 1)
        except (StoreError, OSError):
            return False
        if not last:
            return True
        position, size, _ = QUEUE_ENTRY.unpack(last)
        assert size > 0, f"the last message of {queue.key} has {size} bytes"
        return position < self._log.base_pos or reads.is_older(PhysicalOffset(position), size, before_ms)

    def _end(self, rows: list[tuple[str, QueueOffset]]) -> None:
        names, leadership = {name for name, _ in rows}, self._leadership
        assert len(rows) <= _ENDED_AT_ONCE, f"{len(rows)} lite topics end at once; maximum: {_ENDED_AT_ONCE}"
        twice = names & self._ends
        assert not twice, f"{len(twice)} of {len(names)} lite topics are ended twice, such as {min(twice)}"
        self._ends |= names

        def on_outcome(outcome: Outcome) -> None:
            if leadership is not self._leadership:
                return
            self._ends -= names
            for name in names:
                if self._store.get(name, 0) is not None:
                    self.on_keep(name)

        self._appender.add_command(encode_command(ExpireLiteTopics(rows=rows)), on_outcome)

    def _read_time(self, place: PhysicalOffset, size: int) -> int | None:
        """Return the store time of a record; None if it is deleted, or cannot be read now."""
        try:
            return latest_store_timestamp(self._log.pread(place, size))
        except (SegmentError, StoreError, RecordError, OSError):
            return None


class _Reads:
    """Tells whether messages are old, with few reads: messages after a young one in the log are young."""

    def __init__(self, read: Callable[[PhysicalOffset, int], int | None]) -> None:
        self._read = read
        self._reads_left = _READ_AT_ONCE
        self._young: dict[int, int] = {}

    def is_older(self, position: PhysicalOffset, size: int, before_ms: int) -> bool:
        """Whether the record at this position was stored before ``before_ms``; False if that is unknown."""
        if self._reads_left <= 0 or position >= self._young.get(before_ms, position + 1):
            return False
        self._reads_left -= 1
        stored_ms = self._read(position, size)
        if stored_ms is None:
            return False
        if stored_ms >= before_ms:
            self._young[before_ms] = min(position, self._young.get(before_ms, position))
            return False
        return True
