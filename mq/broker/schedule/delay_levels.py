"""Delayed messages of the default levels: the leader delivers them from the schedule topic when they are due.

Theory of operation. A message with a delay level waits in the queue of the schedule topic that belongs to its level; so
each queue is in the order in which its messages are due, and one look at its first undelivered entry says whether
there is anything to do. Its tag code is the due time. What is due is copied to the topic it was sent to, in one log
entry with a command that moves the level's progress past it (`mq.broker.schedule.delivery`).

A message that this disk does not give is passed over. While there are such messages, the level's progress stays before
the first of them, and those behind it that are delivered are marked (`mq.broker.state.completion_marks`).
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator
from typing import Final

from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import BrokerContext
from mq.broker.net.service import Periodic, Service
from mq.broker.schedule.delivery import DELIVER_SECONDS, Delivery, Due, Moved
from mq.broker.schedule.placement import tail_of
from mq.broker.schedule.read_backoff import PAUSE_MS_MAX, ReadBackoff
from mq.broker.state.commands import AdvanceDelay, Command
from mq.broker.state.completion_marks import CompleteEntries, QueueMarks, SkipEntries
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.outcome import OnOutcome
from mq.broker.write_path.pending import InternalRecord
from mq.broker.write_path.record_copy import copy_record
from mq.protocol import properties as props
from mq.protocol.delay import DELAY_LEVELS_MS
from mq.protocol.names import SCHEDULE_TOPIC
from mq.protocol.records import split_record
from mq.store.dispatch import QUEUE_ENTRY

_ENTRIES = 64
_PASSED_OVER_MAX = 1000
"""Of one level. With more of them its disk is no good, and another replica should lead."""


class Delays(Service):
    """Delivers what is due while this replica leads.

    Attributes:
        delivered: how many messages were put into the log for delivery.
        dropped: how many were due whose topic was gone.
        expired: how many the log had lost to its retention before they were due.
        unreadable: those that are due and could not be read.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._metadata = context.metadata
        self._store = context.store
        self._wall_clock_ms = context.wall_clock_ms
        self._log = RateLimitedLog(context.log, context.wall_clock_ms)
        self._levels: list[Delivery[int]] = []
        self.unreadable = ReadBackoff()
        self.delivered = 0
        self.dropped = 0
        self.expired = 0

    def periodic(self) -> Iterator[Periodic]:
        """Periodic actions, with intervals in seconds; see `Service`."""
        yield DELIVER_SECONDS, self.run

    def lead(self) -> None:
        """This replica leads, and everything committed before is applied."""
        self.unreadable = ReadBackoff()
        self._levels = [
            Delivery(self._context, _Level(self._context, self, number), unreadable=self.unreadable, log=self._log)
            for number in range(1, len(DELAY_LEVELS_MS) + 1)
        ]

    def resign(self) -> None:
        """This replica does not lead any more: another one delivers."""
        for level in self._levels:
            level.stop()
        self._levels = []

    def run(self) -> None:
        """Deliver what is due; called by a timer some times a second."""
        now_ms = self._wall_clock_ms()
        for level in self._levels:
            level.run(now_ms)

    @property
    def pending(self) -> int:
        """How many messages wait, as far as this replica knows."""
        waiting = 0
        for level in range(1, len(DELAY_LEVELS_MS) + 1):
            queue = self._store.get(SCHEDULE_TOPIC, level - 1)
            if queue is not None:
                begin = max(self._metadata.delay_offsets.get(level, 0), queue.min_offset)
                marks = marks_of(self._metadata, level)
                waiting += max(marks.count_open(queue.max_offset) - marks.count_open(begin), 0)
        return waiting

    def counters(self) -> dict[str, int]:
        """Figures of this replica, by name."""
        return {
            "delayed_pending": self.pending,
            "delayed_unreadable": len(self.unreadable),
            "delayed_delivered": self.delivered,
            "delayed_dropped": self.dropped,
            "delayed_expired": self.expired,
        }

    def note_dropped(self, topic: str) -> None:
        """A message was due whose topic is gone."""
        self.dropped += 1
        self._log.warning("delayed_message_dropped", topic=topic, reason="no such topic", dropped=self.dropped)

    def note_expired(self, level: int, count: int) -> None:
        """The log had lost so many messages of a level before they were due."""
        self.expired += count
        self._log.warning("delayed_messages_expired", level=level, expired=self.expired)


class _Level:
    """What is due of one level during one leadership: see `mq.broker.schedule.delivery.Source`."""

    def __init__(self, context: BrokerContext, delays: Delays, number: int) -> None:
        self._metadata = context.metadata
        self._store = context.store
        self._tails = context.queue_offsets
        self._delays = delays
        self._number: Final = number
        self._delay_ms: Final = DELAY_LEVELS_MS[number - 1]
        self.restart()

    def restart(self) -> None:
        """See `Source`."""
        self._next_offset = self._metadata.delay_offsets.get(self._number, 0)
        self._due_ms: int | None = None
        """What the entry at the next offset says, once it was read."""
        self._shift_ms = 0
        self._passed_over: list[tuple[int, int]] = []
        """A heap of messages below the next offset that could not be read: when to try each again, and its offset."""

    def due(self, now_ms: int) -> Generator[Due[int], int | None]:
        """See `Source`."""
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
            self._delays.note_expired(number, queue.min_offset - self._next_offset)
            self._next_offset, self._due_ms = queue.min_offset, None
        marks = marks_of(self._metadata, number)
        following: Iterator[tuple[int, int, int]] = iter(())
        while self._next_offset < queue.max_offset and len(passed_over) < _PASSED_OVER_MAX:
            if self._due_ms is None:
                entry = next(following, None)
                if entry is None:
                    opened = marks.open_offsets(self._next_offset, queue.max_offset)
                    self._next_offset = next(opened, queue.max_offset)
                    # Where others were delivered before them, those behind the next one are looked for one by one.
                    following = QUEUE_ENTRY.iter_unpack(queue.read(self._next_offset, 1 if marks.bits else _ENTRIES))
                    continue
                self._due_ms = entry[2]
            if not self._is_due(self._due_ms, now_ms):
                return
            until_ms = yield Due(number, self._next_offset, queue)
            if until_ms is not None:
                heapq.heappush(passed_over, (until_ms, self._next_offset))
            self._next_offset, self._due_ms = self._next_offset + 1, None

    def _is_due(self, due_ms: int, now_ms: int) -> bool:
        """Whether a message is due whose entry says ``due_ms``.

        No message waits longer than its level says. One that would was stored before the clock went back; it and
        those behind it are due as much earlier as brings the first of them within that.
        """
        latest_ms = now_ms + self._delay_ms
        if due_ms > latest_ms:
            due_ms -= self._shift_ms
            if due_ms > latest_ms:
                self._shift_ms += due_ms - latest_ms
                return False
        return due_ms <= now_ms

    def copy(self, due: Due[int], record: bytes, now_ms: int) -> InternalRecord | None:
        """See `Source`: the message as its topic gets it, None if that is gone."""
        raw = split_record(record)
        text = raw.properties.decode("utf-8", "replace")
        topic = props.find(text, props.REAL_TOPIC) or ""
        queue_id = props.real_queue_id(props.find(text, props.REAL_QUEUE_ID))
        tail = tail_of(topic, queue_id, self._metadata, self._tails)
        if tail is None:
            self._delays.note_dropped(topic)
            return None
        return copy_record(raw, tail, raw.properties, prepared_offset=raw.prepared_offset)

    def mark(self, moved: Moved[int], now_ms: int) -> tuple[list[Command], OnOutcome]:
        """See `Source`."""
        number, queue_id = self._number, self._number - 1
        self._delays.delivered += sum(record is not None for _, record in moved)
        if lost := sum(due.queue is None for due, _ in moved):
            self._delays.note_expired(number, lost)
        commands: list[Command] = []
        if not self._passed_over:
            commands.append(AdvanceDelay(level=number, offset=self._next_offset))
        else:
            # What lies before the first that was passed over is in this entry, or went into the log before.
            first_open = min(offset for _, offset in self._passed_over)
            if marks_of(self._metadata, number).low < first_open:
                commands.append(SkipEntries(topic=SCHEDULE_TOPIC, queue_id=queue_id, offset=first_open))
                commands.append(AdvanceDelay(level=number, offset=first_open))
            offsets = [due.offset for due, _ in moved]
            commands.append(CompleteEntries(topic=SCHEDULE_TOPIC, queue_id=queue_id, offsets=offsets))
        return commands, lambda _: None


def marks_of(metadata: Metadata, level: int) -> QueueMarks:
    """Which messages of a delay level were delivered before others that come before them."""
    return metadata.marks.of(SCHEDULE_TOPIC, level - 1)
