"""Delivers messages at the time that their producers chose, on the leader.

Theory of operation. Messages wait in the timer topic, each in the slot of the minute in which it is due, see
`mq.protocol.messages.delay` and `mq.broker.schedule.timer_wheel`. A slot is not ordered by due time, so each finished
message gets a mark (`mq.broker.state.completion_marks`). A due message is copied to its original topic, in one log
entry with that mark (`mq.broker.schedule.delivery`). A message due later than a day from now is copied to the end of
its slot each day in the same way, so that retention does not reach it. A recalled one is only marked.

A message that cannot be read from this disk is marked as done only if the log has deleted it.

A leader whose clock was ahead has stored messages that would wait too long. When the clock is set back, and when a
leader begins, messages with store times in the future are looked at. One that was to wait for some time is copied to
wait for that time from now on; one that was to be delivered at a time keeps it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from mq.broker.base.message_times import TOLERANCE_MS, first_from_the_future
from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import BrokerContext
from mq.broker.net.service import Service
from mq.broker.schedule.delay_levels import DelayLevels
from mq.broker.schedule.delivery import Delivery, Due, Moves
from mq.broker.schedule.read_backoff import ReadBackoff
from mq.broker.schedule.timer_wheel import TimerWheel
from mq.broker.schedule.visible_queues import is_for_nobody, tail_of
from mq.broker.state.commands import Command, encode_command
from mq.broker.state.completion_marks import CompleteEntries, QueueMarks, SkipEntries
from mq.broker.write_path.outcome import DiskFull, OnOutcome, Outcome, Stored
from mq.broker.write_path.pending import InternalRecord
from mq.broker.write_path.record_copy import copy_record
from mq.protocol import properties as props
from mq.protocol.messages.delay import TIMER_SLOTS, timer_slot
from mq.protocol.messages.records import position_of, split_record
from mq.protocol.names import TIMER_TOPIC
from mq.protocol.numbers import QueueOffset
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError
from raftlog import SegmentError

Timer = tuple[int, QueueOffset]
"""A waiting message: queue id in the timer topic, and offset."""

_LOOKED_AT_MAX: Final = 1024
"""Messages examined for one group: some may be done already."""


class Timers(Service):
    """Delivers messages with a delivery time when they are due, while this replica leads.

    Attributes:
        delivery_count, roll_count, recall_count: messages appended for delivery, copied to their slot again, recalled.
        drops: due messages whose topic was deleted.
        expiry_count: messages that retention deleted before they were due.
        late_ms: lateness of the most recently delivered message.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._metadata = context.metadata
        self._store = context.store
        self._appender = context.appender
        self._tails = context.queue_tails
        self._read = context.replica.log.pread
        self._beginning = context.beginning
        self._wall_clock_ms = context.wall_clock_ms
        self._log = RateLimitedLog(context.log, context.wall_clock_ms)
        self._delivery: Delivery[int] | None = None
        self._levels: Final = DelayLevels(context.settings.delay_levels_ms)
        self._rescan_range = range(0)
        """Physical offsets of messages that a clock ahead has stamped."""
        self._wheel = self._new_wheel()
        self._under_way: set[Timer] = set()
        self._unreadable = ReadBackoff()
        self._seen_ms = 0
        self.delivery_count = 0
        self.roll_count = 0
        self.recall_count = 0
        self.drops = 0
        self.expiry_count = 0
        self.late_ms = 0

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(
            self._context.limits.waiting.deliver_seconds,
            self.run,
            lambda: now_if(self._delivery is not None and self._store.has_queues(TIMER_TOPIC)),
        )

    def lead(self) -> None:
        """Start delivering timed messages, since this replica leads."""
        self._unreadable = ReadBackoff()
        self._under_way = set()
        self._rescan_range, self._seen_ms = range(0), self._wall_clock_ms()
        self._wheel = self._new_wheel()
        self._gather_again(self._seen_ms)
        self._delivery = Delivery(self._context, self, unreadable=self._unreadable, log=self._log)

    def resign(self) -> None:
        """Stop delivering, since this replica stops leading."""
        if self._delivery is not None:
            self._delivery.stop()
        self._delivery = None
        self._wheel = self._new_wheel()
        self._unreadable = ReadBackoff()

    def run(self) -> None:
        """Deliver due messages; called by a timer many times a second."""
        if self._delivery is None or not self._appender.is_open:
            return
        now_ms = self._wall_clock_ms()
        if now_ms < self._seen_ms - TOLERANCE_MS:
            self._gather_again(now_ms)
        self._seen_ms = now_ms
        wheel = self._wheel
        try:
            wheel.advance(now_ms)
        except (StoreError, OSError) as error:
            self._log.warning("timers_unreadable", error=str(error))
        if wheel.losses and self._beginning.is_first:
            for queue_id, offset in wheel.losses.items():
                self._skip_lost(queue_id, offset)
            wheel.losses.clear()
        self._delivery.run(now_ms)

    @property
    def pending_count(self) -> int:
        """The number of messages that wait in the timer topic, as far as this replica knows."""
        count = 0
        for queue_id in range(TIMER_SLOTS):
            if (queue := self._queue(queue_id)) is not None:
                count += self._marks(queue_id).count_open(queue.max_offset)
        return count

    def check_invariants(self) -> None:
        if self._delivery is not None:
            self._delivery.check_invariants()
        if self._appender.is_idle:
            assert not self._under_way, f"timers {sorted(self._under_way)} are under way, and nothing is pending"

    def counters(self) -> dict[str, int]:
        """Return the numbers of timers by state and outcome, and the lateness of the last one."""
        return {
            "timers_pending": self.pending_count,
            "timers_delivered": self.delivery_count,
            "timers_unreadable": len(self._unreadable),
            "timers_late_ms": self.late_ms,
            "timers_rolled": self.roll_count,
            "timers_recalled": self.recall_count,
            "timers_dropped": self.drops,
            "timers_expired": self.expiry_count,
        }

    # -- recalls -------------------------------------------------------------------------------------------------------

    def is_open(self, timer: Timer) -> bool:
        """Whether a message waits, and neither its delivery nor its recall is in flight."""
        queue_id, offset = timer
        if self._delivery is None or timer in self._under_way:
            return False
        queue = self._queue(queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return False
        return not self._marks(queue_id).is_done(offset)

    def is_under_way(self, timer: Timer) -> bool:
        """Whether the delivery, the recall or the daily copy of a message is in flight."""
        return self._delivery is not None and timer in self._under_way

    def record(self, timer: Timer) -> bytes:
        """Return the record of a waiting message. Raises SegmentError, StoreError, OSError."""
        queue_id, offset = timer
        queue = self._queue(queue_id)
        assert queue is not None, f"timer {timer} of a queue without entries"
        position, size, _ = QUEUE_ENTRY.unpack(queue.read(offset, 1))
        return self._read(position, size)

    def recall(self, timer: Timer, on_outcome: OnOutcome) -> None:
        """Mark a waiting message as done, so that it is not delivered. ``on_outcome`` gets the outcome."""
        under_way, (queue_id, offset) = self._under_way, timer
        assert self._delivery is not None, "only the leader recalls"
        assert timer not in under_way, f"timer {timer} is recalled while it is under way"
        under_way.add(timer)

        def finish(outcome: Outcome) -> None:
            under_way.discard(timer)
            if isinstance(outcome, Stored):
                self.recall_count += 1
                self._unreadable.forget(timer)
            elif isinstance(outcome, DiskFull):
                self._wheel.scan_again(queue_id, 0)  # it may have become due in the meantime
            on_outcome(outcome)

        command = encode_command(CompleteEntries(topic=TIMER_TOPIC, queue_id=queue_id, offsets=[offset]))
        self._appender.add_command(command, finish)

    # -- delivery ------------------------------------------------------------------------------------------------------

    def _new_wheel(self) -> TimerWheel:
        return TimerWheel(self._queue, self._marks, self._rescan_range)

    def _gather_again(self, now_ms: int) -> None:
        """Gather again messages that a fast clock stamped, because this clock was set back or this leader begins."""
        log = self._context.replica.log
        try:
            begin = first_from_the_future(log, now_ms)
        except SegmentError as error:
            self._log.warning("timers_unreadable", error=str(error))
            return
        if begin is not None:
            first = min(begin, self._rescan_range.start) if self._rescan_range else begin
            self._rescan_range = range(first, log.end_pos)
            self._wheel = self._new_wheel()
            self._log.warning("messages_from_the_future", begin_pos=begin, end_pos=log.end_pos)

    def _queue(self, queue_id: int) -> ConsumeQueue | None:
        return self._store.get(TIMER_TOPIC, queue_id)

    def _marks(self, queue_id: int) -> QueueMarks:
        return self._metadata.marks.get(TIMER_TOPIC, queue_id)

    def restart(self) -> None:
        """Gather all timers again. Recalls in flight continue."""
        self._wheel = self._new_wheel()

    def due(self, now_ms: int) -> Generator[Due[int], int | None]:
        """Yield the due ones of the first `_LOOKED_AT_MAX` gathered timers, in order."""
        wheel, under_way = self._wheel, self._under_way
        last_id, queue, marks = -1, None, QueueMarks()
        for _ in range(_LOOKED_AT_MAX):
            if wheel.next_ms > now_ms:
                return
            timer = queue_id, offset = wheel.head()
            if queue_id != last_id:
                last_id, queue, marks = queue_id, self._queue(queue_id), self._marks(queue_id)
            if queue is None or timer in under_way or marks.is_done(offset):
                wheel.remove_first()
                continue
            if offset < queue.min_offset:
                until_ms: int | None = now_ms  # then it is detected as lost
            else:
                until_ms = yield Due(queue_id, offset, queue, wheel.next_ms)
            wheel.remove_first()
            if until_ms is None:
                under_way.add(timer)
            else:
                wheel.scan_again(queue_id, until_ms)

    def copy(self, due: Due[int], record: bytes, now_ms: int) -> InternalRecord | None:
        """Return a copy for the topic of a due message, or for a slot if it is early; None if its topic was deleted."""
        raw = split_record(record)
        properties = props.decode(raw.properties.decode("utf-8", "replace"))
        due_ms = _parse_int(properties.get(props.TIMER_OUT_MS))
        if due_ms > now_ms and raw.store_timestamp_ms > now_ms + TOLERANCE_MS:
            wait_ms = self._levels.wait_ms(properties)
            if wait_ms is not None and due_ms > now_ms + wait_ms:
                due_ms = now_ms + wait_ms
                properties[props.TIMER_OUT_MS] = str(due_ms)
        topic = properties.get(props.REAL_TOPIC, "")
        queue_id = props.real_queue_id(properties.get(props.REAL_QUEUE_ID))
        since = position_of(record)
        there = None if due_ms > now_ms else tail_of(topic, queue_id, self._metadata, self._tails, since=since)
        # Copied to its slot once more, it could not be told from one that is for a later topic of the name.
        if there is None and (due_ms <= now_ms or is_for_nobody(topic, self._metadata, since)):
            self.drops += 1
            self._log.warning("timer_dropped", topic=topic, reason="its topic was deleted", dropped=self.drops)
            return None
        if there is None:
            tail = self._tails.get(TIMER_TOPIC, timer_slot(due_ms))
            changes = {props.TIMER_ROLL_TIMES: str(_parse_int(properties.get(props.TIMER_ROLL_TIMES)) + 1)}
        else:
            properties.pop(props.REAL_TOPIC, None)
            properties.pop(props.REAL_QUEUE_ID, None)
            tail = there
            changes = {props.TIMER_ENQUEUE_MS: str(raw.store_timestamp_ms), props.TIMER_DEQUEUE_MS: str(now_ms)}
        text = _encode(properties, changes, raw.properties)
        return copy_record(raw, tail, text, prepared_offset=raw.prepared_offset)

    def mark(self, moves: Moves[int], now_ms: int) -> tuple[list[Command], OnOutcome]:
        """Return the commands that mark the moved timers as done, and a callback for the outcome."""
        under_way, timers = self._under_way, [(due.key, due.offset) for due, _ in moves]
        assert under_way.issuperset(timers), f"timers leave that are not under way: {set(timers) - under_way}"
        offsets: dict[int, list[QueueOffset]] = {}
        for queue_id, offset in timers:
            offsets.setdefault(queue_id, []).append(offset)
        copies = [(due, record.tail.topic == TIMER_TOPIC) for due, record in moves if record is not None]
        roll_count = sum(is_rolled for _, is_rolled in copies)
        self.roll_count += roll_count
        self.delivery_count += len(copies) - roll_count

        def finish(outcome: Outcome) -> None:
            under_way.difference_update(timers)
            if isinstance(outcome, Stored) and copies:
                self.late_ms = max(self._wall_clock_ms() - copies[0][0].due_ms, 0)

        commands: list[Command] = [
            CompleteEntries(topic=TIMER_TOPIC, queue_id=queue_id, offsets=sorted(of_queue))
            for queue_id, of_queue in offsets.items()
        ]
        return commands, finish

    def _skip_lost(self, queue_id: int, offset: QueueOffset) -> None:
        """Mark the entries as done that the log deleted before they were due."""
        count = self._marks(queue_id).count_open(offset)
        if not count:
            return

        def finish(outcome: Outcome) -> None:
            if isinstance(outcome, Stored):
                self._unreadable.forget_before(queue_id, offset)
                self.expiry_count += count
                self._log.warning("timers_expired", queue_id=queue_id, expired=self.expiry_count)

        command = SkipEntries(topic=TIMER_TOPIC, queue_id=queue_id, offset=offset)
        self._appender.add_command(encode_command(command), finish)


def _parse_int(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 20 else 0


def _encode(properties: dict[str, str], changes: dict[str, str], original: bytes) -> bytes:
    """The properties and, if there is room for them, the added ones."""
    for candidate in (properties | changes, properties):
        text = props.encode(candidate).encode()
        if len(text) <= props.PROPERTIES_BYTES_MAX:
            return text
    return original  # not valid UTF-8: replacement characters made them longer
