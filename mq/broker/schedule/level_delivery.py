"""Delivers messages of the default delay levels from the schedule topic when they are due, on the leader.

Theory of operation. A message with a delay level waits in the queue of the schedule topic for its level; so each queue
is ordered by due time, and its first undelivered entry shows whether anything is due. The tag code of an entry is its
due time. A due message is copied to its original topic, in one log entry with a command that advances the level's
progress past it (`mq.broker.schedule.delivery`).

A message that cannot be read from this disk is skipped. While there are skipped messages, the level's progress stays
before the first of them, and delivered ones behind it are marked (`mq.broker.state.completion_marks`).
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator
from typing import Final

from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import BrokerContext
from mq.broker.net.service import Service
from mq.broker.schedule.delivery import Delivery, Due, Moves
from mq.broker.schedule.read_backoff import PAUSE_MS_MAX, ReadBackoff
from mq.broker.schedule.visible_queues import tail_of
from mq.broker.state.commands import AdvanceDelay, Command
from mq.broker.state.completion_marks import CompleteEntries, QueueMarks, SkipEntries
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.outcome import OnOutcome
from mq.broker.write_path.pending import InternalRecord
from mq.broker.write_path.record_copy import copy_record
from mq.protocol import properties as props
from mq.protocol.messages.delay import DELAY_LEVELS_MS
from mq.protocol.messages.records import position_of, split_record
from mq.protocol.names import SCHEDULE_TOPIC
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.store.dispatch import QUEUE_ENTRY

_ENTRIES = 64


class LevelDelivery(Service):
    """Delivers due messages of the default delay levels while this replica leads.

    Attributes:
        delivery_count: messages appended for delivery.
        drops: due messages whose topic was deleted.
        expiry_count: messages that retention deleted before they were due.
        unreadable: due messages that could not be read.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._metadata = context.metadata
        self._store = context.store
        self._wall_clock_ms = context.wall_clock_ms
        self._log = RateLimitedLog(context.log, context.wall_clock_ms)
        self._levels: list[Delivery[int]] = []
        self.unreadable = ReadBackoff()
        self.delivery_count = 0
        self.drops = 0
        self.expiry_count = 0

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(
            self._context.limits.waiting.deliver_seconds, self.run, lambda: now_if(self._levels and self.pending_count)
        )

    def lead(self) -> None:
        """Start delivering the messages of all delay levels, since this replica leads."""
        self.unreadable = ReadBackoff()
        self._levels = [
            Delivery(self._context, _Level(self._context, self, number), unreadable=self.unreadable, log=self._log)
            for number in range(1, len(DELAY_LEVELS_MS) + 1)
        ]

    def resign(self) -> None:
        """Stop delivering, since this replica stops leading."""
        for level in self._levels:
            level.stop()
        self._levels = []

    def run(self) -> None:
        """Deliver due messages; called by a timer several times a second."""
        now_ms = self._wall_clock_ms()
        for level in self._levels:
            level.run(now_ms)

    @property
    def pending_count(self) -> int:
        """The number of messages that wait in the schedule topic, as far as this replica knows."""
        count = 0
        for level in range(1, len(DELAY_LEVELS_MS) + 1):
            queue = self._store.get(SCHEDULE_TOPIC, level - 1)
            if queue is not None:
                begin = max(self._metadata.delay_offsets.get(level, FIRST_OFFSET), queue.min_offset)
                marks = marks_of(self._metadata, level)
                count += max(marks.count_open(queue.max_offset) - marks.count_open(begin), 0)
        return count

    def check_invariants(self) -> None:
        for level in self._levels:
            level.check_invariants()

    def counters(self) -> dict[str, int]:
        """Return the numbers of pending, unreadable, delivered, dropped and expired messages."""
        return {
            "delayed_pending": self.pending_count,
            "delayed_unreadable": len(self.unreadable),
            "delayed_delivered": self.delivery_count,
            "delayed_dropped": self.drops,
            "delayed_expired": self.expiry_count,
        }

    def count_dropped(self, topic: str) -> None:
        """Count a due message whose topic was deleted, and log it."""
        self.drops += 1
        self._log.warning("delayed_message_dropped", topic=topic, reason="its topic was deleted", dropped=self.drops)

    def count_expired(self, level: int, count: int) -> None:
        """Count messages of a level that retention deleted before they were due, and log it."""
        assert count > 0, f"{count} messages of delay level {level} have expired"
        self.expiry_count += count
        self._log.warning("delayed_messages_expired", level=level, expired=self.expiry_count)


class _Level:
    """The `Source` of due messages of one delay level, during one leadership."""

    def __init__(self, context: BrokerContext, delays: LevelDelivery, number: int) -> None:
        assert 1 <= number <= len(DELAY_LEVELS_MS), f"delay level {number} of {len(DELAY_LEVELS_MS)}"
        self._metadata = context.metadata
        self._store = context.store
        self._beginning = context.beginning
        self._tails = context.queue_tails
        self._delays = delays
        self._passed_over_max = context.limits.waiting.unreadable_skipped_max
        self._number: Final = number
        self._delay_ms: Final = DELAY_LEVELS_MS[number - 1]
        self.restart()

    def restart(self) -> None:
        """Continue from the applied offset of this delay level."""
        self._next_offset = self._metadata.delay_offsets.get(self._number, FIRST_OFFSET)
        self._due_ms: int | None = None
        """Due time of the entry at the next offset, once read."""
        self._shift_ms = 0
        self._passed_over: list[tuple[int, QueueOffset]] = []
        """A heap of skipped messages below the next offset: when to retry each, and its offset."""

    def due(self, now_ms: int) -> Generator[Due[int], int | None]:
        """Yield the due messages of this level; first the skipped unreadable ones that are to be retried."""
        number, passed_over, queue = self._number, self._passed_over, self._store.get(SCHEDULE_TOPIC, self._number - 1)
        if queue is None:
            return
        while passed_over and not now_ms < passed_over[0][0] <= now_ms + PAUSE_MS_MAX:
            offset = passed_over[0][1]
            until_ms = yield Due(number, offset, queue if offset >= queue.min_offset else None)
            heapq.heappop(passed_over)
            if until_ms is not None:
                heapq.heappush(passed_over, (until_ms, offset))
        if self._next_offset < queue.min_offset:
            if self._beginning.may_be_elsewhere(queue.min_offset, self._next_offset):
                return
            self._delays.count_expired(number, queue.min_offset - self._next_offset)
            self._next_offset, self._due_ms = queue.min_offset, None
        marks = marks_of(self._metadata, number)
        entries: Iterator[tuple[int, int, int]] = iter(())
        while self._next_offset < queue.max_offset and len(passed_over) < self._passed_over_max:
            if self._due_ms is None:
                entry = next(entries, None)
                if entry is None:
                    offsets = marks.open_offsets(self._next_offset, queue.max_offset)
                    self._next_offset = next(offsets, queue.max_offset)
                    # If later messages were delivered already, search one by one for those behind the next one.
                    entries = QUEUE_ENTRY.iter_unpack(queue.read(self._next_offset, 1 if marks.bits else _ENTRIES))
                    continue
                self._due_ms = entry[2]
            if not self._is_due(self._due_ms, now_ms):
                return
            until_ms = yield Due(number, self._next_offset, queue)
            if until_ms is not None:
                heapq.heappush(passed_over, (until_ms, self._next_offset))
            self._next_offset, self._due_ms = self._next_offset + 1, None

    def _is_due(self, due_ms: int, now_ms: int) -> bool:
        """Whether a message with due time ``due_ms`` is due.

        No message waits longer than its level. One that would was stored before the clock was set back; then it and all
        behind it are due earlier, by the amount that keeps the first of them within its level.
        """
        latest_ms = now_ms + self._delay_ms
        if due_ms > latest_ms:
            due_ms -= self._shift_ms
            if due_ms > latest_ms:
                self._shift_ms += due_ms - latest_ms
                return False
        return due_ms <= now_ms

    def copy(self, due: Due[int], record: bytes, now_ms: int) -> InternalRecord | None:
        """Copy a message for its original topic; None if that was deleted."""
        raw = split_record(record)
        text = raw.properties.decode("utf-8", "replace")
        topic = props.find(text, props.REAL_TOPIC) or ""
        queue_id = props.real_queue_id(props.find(text, props.REAL_QUEUE_ID))
        tail = tail_of(topic, queue_id, self._metadata, self._tails, since=position_of(record))
        if tail is None:
            self._delays.count_dropped(topic)
            return None
        return copy_record(raw, tail, raw.properties, prepared_offset=raw.prepared_offset)

    def mark(self, moves: Moves[int], now_ms: int) -> tuple[list[Command], OnOutcome]:
        """Return the commands that advance this delay level past the moved messages, and a callback for the outcome."""
        assert moves, f"delay level {self._number} marks nothing"
        number, queue_id = self._number, self._number - 1
        self._delays.delivery_count += sum(record is not None for _, record in moves)
        if lost_count := sum(due.queue is None for due, _ in moves):
            self._delays.count_expired(number, lost_count)
        commands: list[Command] = []
        if not self._passed_over:
            commands.append(AdvanceDelay(level=number, offset=self._next_offset))
        else:
            # Messages before the first skipped one are in this entry, or were appended before.
            first_open = min(offset for _, offset in self._passed_over)
            assert first_open < self._next_offset, f"level {number} passed over {first_open} before {self._next_offset}"
            if marks_of(self._metadata, number).low < first_open:
                commands.append(SkipEntries(topic=SCHEDULE_TOPIC, queue_id=queue_id, offset=first_open))
                commands.append(AdvanceDelay(level=number, offset=first_open))
            offsets = [due.offset for due, _ in moves]
            commands.append(CompleteEntries(topic=SCHEDULE_TOPIC, queue_id=queue_id, offsets=offsets))
        return commands, lambda _: None


def marks_of(metadata: Metadata, level: int) -> QueueMarks:
    """Return the marks of the messages of a delay level that were delivered before earlier messages."""
    return metadata.marks.get(SCHEDULE_TOPIC, level - 1)
