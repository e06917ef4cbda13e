"""Expires messages of single topics, by age or by bytes: moves the beginnings of their queues forward.

The leader looks at the queues of all these topics in turn. What is too old is a matter of where in the log the time is
that the topic's hours say, and that is looked up once for all topics with equal hours. What exceeds a limit of bytes is
counted by `mq.broker.base.topic_bytes`. The space on the disk is free once the file of the log is deleted, as for all
messages (`mq.broker.base.retention`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from mq.broker.base.message_times import old_until
from mq.broker.base.periodic_task import Periodic
from mq.broker.base.topic_bytes import TopicBytes
from mq.broker.context import BrokerContext
from mq.broker.net.service import Service
from mq.broker.state.commands import encode_command
from mq.broker.state.expired_messages import ROWS_MAX, ExpireMessages
from mq.broker.state.format_level import LEVEL_OF_TOPIC_RETENTION
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.outcome import Outcome, Stored
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.compaction_attributes import is_compacted
from mq.protocol.requests.retention_attributes import reserve_bytes, reserve_hours
from mq.store.errors import StoreError
from mq.store.queue_store import QueueKey, QueueStore
from raftlog.segment import SegmentError

_LOOK_SECONDS = 0.5
_LOOKED_AT_ONCE = 500
_AGAIN_SECONDS = 10.0
_HOUR_MS = 3_600_000
_COUNTED_AT_ONCE = 20_000
"""Queue entries in one step: some milliseconds."""


class TopicExpiry(Service):
    """Applies the retention of single topics while this replica leads: moves the beginnings of queues forward.

    Args:
        leased_pos: physical offset from which on readers have leases.
        now_ms: the time by which messages expire; see `mq.broker.base.retention.Retention.plausible_ms`.
    """

    def __init__(
        self, context: BrokerContext, *, leased_pos: Callable[[], PhysicalOffset], now_ms: Callable[[], int]
    ) -> None:
        self._metadata, self._store, self._appender = context.metadata, context.store, context.appender
        self._segment_log = context.replica.log
        self._leased_pos, self._now_ms = leased_pos, now_ms
        self._wall_clock_ms, self._clock = context.wall_clock_ms, context.clock
        self._hours: dict[str, int] | None = None
        self._sizes: dict[str, TopicBytes] = {}
        self._topics_to_count: Iterator[str] | None = None
        self._current_topic: str | None = None
        self._places: dict[int, PhysicalOffset] = {}
        self._queues_to_check: Iterator[QueueKey] | None = None
        self._again_at = float("-inf")
        self._in_flight = 0
        self._leadership = object()
        self.expired_count = 0

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_LOOK_SECONDS, self.run, self._rests_until)

    def counters(self) -> dict[str, int]:
        """Return the number of messages that expired by their topic's retention since this replica leads."""
        return {"topic_messages_expired": self.expired_count}

    def topic_changed(self, topic: str) -> None:
        self._hours = None

    def resign(self) -> None:
        """Stop checking queues, since this replica stops leading."""
        self._leadership = object()
        self._in_flight = 0
        self._queues_to_check = self._topics_to_count = None
        self._hours, self._sizes = None, {}

    def check_invariants(self) -> None:
        if self._appender.is_idle:
            assert not self._in_flight, f"{self._in_flight} commands are on their way, and nothing is pending"

    def _rests_until(self) -> float:
        is_busy = self._appender.is_open and (self._hours is None or self._hours or self._sizes)
        return float("-inf") if is_busy else float("inf")

    def run(self) -> None:
        """Check some queues for expired messages. A timer calls this."""
        if self._hours is None:
            topics = self._metadata.topics.items()
            retention_hours = {
                name: reserve_hours(config.attributes) for name, config in topics if not is_compacted(config.attributes)
            }
            self._hours = {name: hours for name, hours in retention_hours.items() if hours is not None}
            self._limit_sizes()
        if not (self._hours or self._sizes) or self._in_flight:
            return
        if not self._appender.is_open or not self._appender.has_room:
            return
        if self._metadata.format_level.level < LEVEL_OF_TOPIC_RETENTION:
            return
        if self._topics_to_count is None and self._queues_to_check is None:
            if self._clock() < self._again_at:
                return
            self._again_at = self._clock() + _AGAIN_SECONDS
            self._places = self._find_places(set(self._hours.values()))
            self._queues_to_check = iter([key for key in self._store.all_keys() if key[0] in self._hours])
            self._topics_to_count = iter(list(self._sizes))
        if rows := self._too_old() or self._too_many():
            self._expire(without_hidden(rows, self._metadata, self._store, self._wall_clock_ms()))

    def _limit_sizes(self) -> None:
        """Apply the current limits of topics, and keep the counted sizes of topics whose limit has not changed."""
        limits = {
            name: None if is_compacted(config.attributes) else reserve_bytes(config.attributes)
            for name, config in self._metadata.topics.items()
        }
        before = self._sizes
        self._sizes = {}
        for name, bytes_max in limits.items():
            if bytes_max is not None:
                size = before.get(name)
                self._sizes[name] = size if size is not None else TopicBytes(bytes_max)
                self._sizes[name].bytes_max = bytes_max

    def _too_many(self) -> list[tuple[str, int, QueueOffset]]:
        """Count some queues of limited topics. Returns the new beginnings of the first topic above its limit."""
        budget = _COUNTED_AT_ONCE
        while budget > 0 and self._topics_to_count is not None:
            topic = self._current_topic or next(self._topics_to_count, None)
            self._current_topic = None
            if topic is None:
                self._topics_to_count = None
                break
            if (size := self._sizes.get(topic)) is None:
                continue
            queues = [self._store.get(topic, queue_id) for queue_id in sorted(self._store.ends(topic))]
            try:
                budget -= 1 + size.count([queue for queue in queues if queue is not None], budget)
            except (StoreError, OSError):
                continue  # it is restored from the log first
            if budget <= 0:
                self._current_topic = topic  # there may be more of it
            elif rows := size.excess_begins(self._leased_pos()):
                return [(topic, queue_id, offset) for queue_id, offset in rows]
        return []

    def _too_old(self) -> list[tuple[str, int, QueueOffset]]:
        """Check some queues of topics with shorter retention. Returns the new beginnings of queues to shorten."""
        if self._queues_to_check is None:
            return []
        some = list(islice(self._queues_to_check, _LOOKED_AT_ONCE))
        if len(some) < _LOOKED_AT_ONCE:
            self._queues_to_check = None
        return [row for key in some if (row := self._expiry_row(key)) is not None]

    def _find_places(self, hours: set[int]) -> dict[int, PhysicalOffset]:
        """Map each number of hours to the physical offset before which all messages are older."""
        now_ms = self._now_ms()
        places: dict[int, PhysicalOffset] = {}
        for each in sorted(hours):
            with suppress(SegmentError, OSError):
                place = old_until(self._segment_log, now_ms - each * _HOUR_MS)
                if place is not None:
                    places[each] = min(place, self._leased_pos())
        return places

    def _expiry_row(self, key: QueueKey) -> tuple[str, int, QueueOffset] | None:
        """Return a queue with its new beginning; None if none of its messages is too old."""
        hours, queue = (self._hours or {}).get(key[0]), self._store.get(*key)
        place = None if hours is None else self._places.get(hours)
        if queue is None or place is None:
            return None
        try:
            offset = queue.first_from(place)
        except (StoreError, OSError):
            return None  # it is restored from the log first
        return (*key, offset) if offset > queue.min_offset else None

    def _min_offset(self, key: QueueKey) -> QueueOffset:
        queue = self._store.get(*key)
        assert queue is not None, f"{key} is gone within a turn"
        return queue.min_offset

    def _expire(self, rows: list[tuple[str, int, QueueOffset]]) -> None:
        leadership = self._leadership
        for begin in range(0, len(rows), ROWS_MAX):
            some = rows[begin : begin + ROWS_MAX]
            count = sum(offset - self._min_offset((topic, queue_id)) for topic, queue_id, offset in some)
            assert count > 0, f"{count} messages expire in {len(some)} queues"

            def on_outcome(outcome: Outcome, count: int = count) -> None:
                if leadership is self._leadership:
                    self._in_flight -= 1
                    assert self._in_flight >= 0, f"{self._in_flight} commands are on their way"
                    self.expired_count += count if isinstance(outcome, Stored) else 0

            self._in_flight += 1
            self._appender.add_command(encode_command(ExpireMessages(rows=some)), on_outcome)


def without_hidden(
    rows: list[tuple[str, int, QueueOffset]], metadata: Metadata, store: QueueStore, now_ms: int
) -> list[tuple[str, int, QueueOffset]]:
    """Lower the new beginnings in ``rows`` so that no popped message that may be redelivered expires."""
    limits: dict[QueueKey, QueueOffset] = {}
    keys = {(topic, queue_id) for topic, queue_id, _ in rows}
    for (_, *place), pop_queue in metadata.pops.queues.items():
        key = place[0], place[1]
        if key in keys and (queue := store.get(*key)) is not None:
            offset = pop_queue.first_hidden(queue.min_offset, now_ms)
            if offset is not None:
                limits[key] = min(offset, limits.get(key, offset))
    cut_rows = [(topic, number, min(offset, limits.get((topic, number), offset))) for topic, number, offset in rows]
    return [row for row in cut_rows if (queue := store.get(*row[:2])) is not None and row[2] > queue.min_offset]
