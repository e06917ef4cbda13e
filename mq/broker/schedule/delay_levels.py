"""Delayed messages of the default levels: the leader delivers them from the schedule topic when they are due.

Theory of operation. A message with a delay level waits in the queue of the schedule topic that belongs to its level; so
each queue is in the order in which its messages are due, and one look at its first undelivered entry says whether
there is anything to do. Its tag code is the due time. What is due is copied to the topic it was sent to, some messages
at a time, in one log entry with a command that moves the level's progress past them. After any failure both are there
or neither is, and a new leader has applied all such entries before it delivers: each message becomes visible once.

A message that this disk does not give is passed over and tried again, ever less often: it holds up nobody else. While
there are such messages, the level's progress stays before the first of them, and those behind it that are delivered are
marked (`mq.broker.state.completion_marks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final

import structlog

from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import BrokerContext
from mq.broker.net.service import Periodic, Service
from mq.broker.schedule.message_copy import DELIVER_SECONDS, copy_to
from mq.broker.schedule.read_backoff import ReadBackoff
from mq.broker.state.commands import AdvanceDelay, Command, encode_command
from mq.broker.state.completion_marks import CompleteEntries, QueueMarks, SkipEntries
from mq.broker.write_path.outcome import Outcome, Stored
from mq.broker.write_path.pending import InternalRecord, PendingCommand, PendingGroup
from mq.protocol import properties as props
from mq.protocol.delay import DELAY_LEVELS_MS
from mq.protocol.names import SCHEDULE_TOPIC
from mq.protocol.records import RecordError, split_record
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError
from raftlog import SegmentError
from raftlog.segment import EntryGone

Log = structlog.stdlib.BoundLogger

_GROUP_MESSAGES_MAX = 32
_GROUP_BYTES_MAX = 256 * 1024
_GROUPS_IN_FLIGHT_MAX = 8
"""Of one level; bounds what waits in memory, together with the appender's own limit."""
_COMMANDS_BYTES_MAX = 1024
_PAUSE_MS = 1000
_PASSED_OVER_MAX = 1000
"""Of one level. With more of them its disk is no good, and another replica should lead."""
_TOGETHER_MAX = 20
"""So many are passed over, or tried again, in one go."""


class _Level:
    """The delivery of one level during one leadership."""

    __slots__ = (
        "delay_ms",
        "due_ms",
        "failed",
        "groups",
        "next_offset",
        "number",
        "passed_over",
        "paused_until_ms",
        "shift_ms",
    )

    def __init__(self, number: int, next_offset: int) -> None:
        self.number: Final = number
        self.delay_ms: Final = DELAY_LEVELS_MS[number - 1]
        self.next_offset = next_offset
        self.due_ms: int | None = None
        """What the entry at ``next_offset`` says, once it was read."""
        self.groups = 0
        self.failed = False
        self.paused_until_ms = 0
        self.shift_ms = 0
        self.passed_over: dict[int, None] = {}
        """Offsets below ``next_offset`` of messages that could not be read, ascending."""

    def is_due(self, due_ms: int, now_ms: int) -> bool:
        """Whether a message is due whose entry says ``due_ms``.

        No message waits longer than its level says. One that would was stored before the clock went back; it and
        those behind it are due as much earlier as brings the first of them within that.
        """
        latest_ms = now_ms + self.delay_ms
        if due_ms > latest_ms:
            due_ms -= self.shift_ms
            if due_ms > latest_ms:
                self.shift_ms += due_ms - latest_ms
                return False
        return due_ms <= now_ms


class Delays(Service):
    """Delivers what is due while this replica leads.

    Attributes:
        delivered: how many messages were put into the log for delivery.
        dropped: how many were due whose topic was gone.
        expired: how many the log had lost to its retention before they were due.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._metadata = context.metadata
        self._store = context.store
        self._appender = context.appender
        self._tails = context.queue_offsets
        self._read = context.replica.log.pread
        # With so much pending in the appender, messages are delivered one group at a time.
        self._pending_bytes_max = context.settings.pending_bytes_max // 2
        self._wall_clock_ms = context.wall_clock_ms
        self._log = RateLimitedLog(context.log, context.wall_clock_ms)
        self._levels: list[_Level] = []
        self._unreadable = ReadBackoff()
        self._group_bytes_max = min(_GROUP_BYTES_MAX, context.appender.entry_bytes_max) - _COMMANDS_BYTES_MAX
        self.delivered = 0
        self.dropped = 0
        self.expired = 0

    def periodic(self) -> Iterator[Periodic]:
        """Actions and the seconds in between; see `Service`."""
        yield DELIVER_SECONDS, self.run

    def lead(self) -> None:
        """This replica leads, and everything committed before is applied."""
        self._levels = [self._level(number) for number in range(1, len(DELAY_LEVELS_MS) + 1)]
        self._unreadable = ReadBackoff()

    def resign(self) -> None:
        """This replica does not lead any more: another one delivers."""
        self._levels = []

    def run(self) -> None:
        """Deliver what is due; called by a timer some times a second."""
        if self._levels and self._appender.is_open:
            now_ms = self._wall_clock_ms()
            for level in self._levels:
                self._deliver(level, now_ms)

    @property
    def pending(self) -> int:
        """How many messages wait, as far as this replica knows."""
        queues = [self._store.get(SCHEDULE_TOPIC, level) for level in range(len(DELAY_LEVELS_MS))]
        waiting = 0
        for level, queue in enumerate(queues, 1):
            if queue is not None:
                begin = max(self._metadata.delay_offsets.get(level, 0), queue.min_offset)
                marks = self._marks(level)
                waiting += max(marks.count_open(queue.max_offset) - marks.count_open(begin), 0)
        return waiting

    def counters(self) -> dict[str, int]:
        """Figures of this replica, by name."""
        return {
            "delayedPending": self.pending,
            "delayedUnreadable": len(self._unreadable),
            "delayedDelivered": self.delivered,
            "delayedDropped": self.dropped,
            "delayedExpired": self.expired,
        }

    def _level(self, number: int) -> _Level:
        return _Level(number, self._metadata.delay_offsets.get(number, 0))

    def _marks(self, number: int) -> QueueMarks:
        return self._metadata.marks.of(SCHEDULE_TOPIC, number - 1)

    def _deliver(self, level: _Level, now_ms: int) -> None:
        if level.failed and not level.groups:
            # None of what was under way is stored, and nothing was put behind it: begin again where it ended.
            self._levels[level.number - 1] = level = self._level(level.number)
        try:
            while self._may_deliver(level, now_ms) and self._head_is_due(level, now_ms):
                self._add_group(level, now_ms)
            if level.passed_over and self._may_deliver(level, now_ms):
                self._try_again(level, now_ms)
        except EntryGone as gone:
            if (queue := self._store.get(SCHEDULE_TOPIC, level.number - 1)) is not None:
                queue.expire(gone.first)  # the log was shortened, and this queue was not told yet
        except (SegmentError, StoreError, RecordError, OSError) as error:
            # Other replicas have what this disk does not give; it may be repaired from them, or one of them may lead.
            level.paused_until_ms = now_ms + _PAUSE_MS
            self._log.warning("delayed_message_unreadable", level=level.number, error=str(error))

    def _may_deliver(self, level: _Level, now_ms: int) -> bool:
        return (
            not level.failed
            and level.groups < _GROUPS_IN_FLIGHT_MAX
            and not now_ms < level.paused_until_ms <= now_ms + _PAUSE_MS
            # One group is under way however much is pending: what is due does not wait for producers that are too fast.
            and (not level.groups or self._appender.pending_bytes <= self._pending_bytes_max)
        )

    def _head_is_due(self, level: _Level, now_ms: int) -> bool:
        queue = self._store.get(SCHEDULE_TOPIC, level.number - 1)
        if queue is None or level.next_offset >= queue.max_offset:
            return False
        if level.next_offset < queue.min_offset:
            self._note_expired(level, queue.min_offset - level.next_offset)
            level.next_offset = queue.min_offset
            level.due_ms = None
            if level.next_offset == queue.max_offset:
                return False
        if level.due_ms is None:
            level.next_offset = next(
                self._marks(level.number).open_offsets(level.next_offset, queue.max_offset), queue.max_offset
            )
            if level.next_offset == queue.max_offset:
                return False
            level.due_ms = int(QUEUE_ENTRY.unpack(queue.read(level.next_offset, 1))[2])
        return level.is_due(level.due_ms, now_ms)

    def _add_group(self, level: _Level, now_ms: int) -> None:
        """Put into the log what is due next, and that it is delivered. The first message is due."""
        queue = self._store.get(SCHEDULE_TOPIC, level.number - 1)
        assert queue is not None, f"level {level.number} has something due and no queue"
        records: list[InternalRecord] = []
        done: list[int] = []
        nbytes = 0
        offset = level.next_offset
        marks = self._marks(level.number)
        for position, size, due_ms in QUEUE_ENTRY.iter_unpack(queue.read(offset, _GROUP_MESSAGES_MAX)):
            if done and (
                marks.is_done(offset) or nbytes + size > self._group_bytes_max or not level.is_due(due_ms, now_ms)
            ):
                break
            try:
                record = self._copy(self._read(position, size), now_ms)
            except (SegmentError, RecordError) as error:
                if done:
                    break
                self._pass_over(level, error, now_ms)
                return
            if record is not None:
                records.append(record)
                nbytes += record.nbytes
            done.append(offset)
            offset += 1
        level.next_offset = offset
        level.due_ms = None
        self._append(level, records, done)

    def _pass_over(self, level: _Level, error: SegmentError | RecordError, now_ms: int) -> None:
        """Leave the next message for later. Raises the error if it is no single message's."""
        if isinstance(error, EntryGone) or len(level.passed_over) >= _PASSED_OVER_MAX:
            raise error
        offset = level.next_offset
        level.passed_over[offset] = None
        level.next_offset += 1
        level.due_ms = None
        if not len(level.passed_over) % _TOGETHER_MAX:
            level.paused_until_ms = now_ms + _PAUSE_MS
        self._note_unreadable(level, offset, error, now_ms)

    def _note_unreadable(self, level: _Level, offset: int, error: Exception, now_ms: int) -> None:
        self._unreadable.failed((level.number, offset), now_ms)
        self._log.warning(
            "delayed_message_unreadable",
            level=level.number,
            offset=offset,
            error=str(error),
            count=len(self._unreadable),
        )

    def _try_again(self, level: _Level, now_ms: int) -> None:
        """Deliver some of what was passed over, if it can be read by now."""
        queue = self._store.get(SCHEDULE_TOPIC, level.number - 1)
        assert queue is not None, f"messages of level {level.number} were passed over, and it has no queue"
        unreadable, number = self._unreadable, level.number
        records: list[InternalRecord] = []
        done: list[int] = []
        nbytes = 0
        due = (offset for offset in level.passed_over if unreadable.put_off_to((number, offset), now_ms) is None)
        for offset in islice(due, _TOGETHER_MAX):
            if offset < queue.min_offset:
                self._note_expired(level, 1)
                done.append(offset)
                continue
            try:
                position, size, _ = QUEUE_ENTRY.unpack(queue.read(offset, 1))
                if nbytes and nbytes + size > self._group_bytes_max:
                    break
                record = self._copy(self._read(position, size), now_ms)
            except (SegmentError, StoreError, RecordError, OSError) as error:
                self._note_unreadable(level, offset, error, now_ms)
                continue
            if record is not None:
                records.append(record)
                nbytes += record.nbytes
            done.append(offset)
        for offset in done:
            del level.passed_over[offset]
            unreadable.settled((number, offset))
        if done:
            self._append(level, records, done)

    def _append(self, level: _Level, records: list[InternalRecord], done: list[int]) -> None:
        """Put these messages into the log, and that those at these offsets are done."""
        queue_id = level.number - 1
        commands: list[Command] = []
        first_open = next(iter(level.passed_over), None)
        if first_open is None:
            commands.append(AdvanceDelay(level=level.number, offset=level.next_offset))
        else:
            # What lies before the first that was passed over went into the log before this.
            if self._marks(level.number).low < first_open:
                commands.append(SkipEntries(topic=SCHEDULE_TOPIC, queue_id=queue_id, offset=first_open))
                commands.append(AdvanceDelay(level=level.number, offset=first_open))
            commands.append(CompleteEntries(topic=SCHEDULE_TOPIC, queue_id=queue_id, offsets=done))
        *others, last = map(encode_command, commands)
        group: PendingGroup = [*records, *map(PendingCommand, others)]
        group.append(PendingCommand(last, partial(self._settled, level)))
        self.delivered += len(records)
        level.groups += 1
        self._appender.add_atomically(group)

    def _note_expired(self, level: _Level, count: int) -> None:
        self.expired += count
        self._log.warning("delayed_messages_expired", level=level.number, expired=self.expired)

    def _settled(self, level: _Level, outcome: Outcome) -> None:
        level.groups -= 1
        if not isinstance(outcome, Stored):
            level.failed = True
        elif self._levels and self._levels[level.number - 1] is level and self._appender.is_open:
            self._deliver(level, self._wall_clock_ms())

    def _copy(self, data: bytes, now_ms: int) -> InternalRecord | None:
        """The message as its topic gets it, None if that is gone. Raises RecordError."""
        raw = split_record(data)
        text = raw.properties.decode("utf-8", "replace")
        topic = props.find(text, props.REAL_TOPIC) or ""
        queue_id = props.real_queue_id(props.find(text, props.REAL_QUEUE_ID))
        record = copy_to(topic, queue_id, raw, raw.properties, metadata=self._metadata, tails=self._tails)
        if record is None:
            self.dropped += 1
            self._log.warning("delayed_message_dropped", topic=topic, reason="no such topic", dropped=self.dropped)
        return record
