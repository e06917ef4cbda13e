"""Timers: the leader delivers messages at any time that they asked for.

Theory of operation. They wait in the timer topic, each in the slot of the minute in which it is due, see
`mq.protocol.delay` and `mq.broker.schedule.timer_wheel`. Their queues are not in the order in which they are due, so a
mark for each says that it is done (`mq.broker.state.completion_marks`). What is due is copied to the topic it was sent
to, some messages at a time, in one log entry with the command that marks them: after any failure both are there or
neither is, and a new leader has applied all such entries before it delivers. A message that is due later than a day
from now is copied to the end of its slot each day, in the same way, so that it does not wait where the log's retention
reaches it. A recalled one is only marked.

What this disk does not give is tried again, ever less often, and is marked as done only when the log has lost it.

What is under way is known to the leader alone: a message whose outcome is unknown is left alone until this leadership
ends, or until no delivery is under way any more; then the applied marks say what is to be done.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import structlog

from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import BrokerContext
from mq.broker.net.service import Periodic, Service
from mq.broker.schedule.message_copy import DELIVER_SECONDS, copy_to
from mq.broker.schedule.read_backoff import ReadBackoff
from mq.broker.schedule.timer_wheel import NEVER, TimerWheel
from mq.broker.state.commands import encode_command
from mq.broker.state.completion_marks import CompleteEntries, QueueMarks, SkipEntries
from mq.broker.write_path.outcome import OnOutcome, Outcome, Refused, Stored
from mq.broker.write_path.pending import InternalRecord, PendingCommand, PendingGroup
from mq.protocol import properties as props
from mq.protocol.delay import TIMER_SLOTS, timer_slot
from mq.protocol.names import TIMER_TOPIC
from mq.protocol.records import RawRecord, RecordError, split_record
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError
from raftlog import SegmentError
from raftlog.segment import EntryGone

Log = structlog.stdlib.BoundLogger

Timer = tuple[int, int]
"""A waiting message: queue id in the timer topic, and offset."""

_GROUP_MESSAGES_MAX: Final = 64
_GROUP_BYTES_MAX: Final = 256 * 1024
_COMMANDS_BYTES_MAX: Final = 16 * 1024
_GROUPS_IN_FLIGHT_MAX: Final = 8
"""Bounds what waits in memory, together with the appender's own limit."""
_LOOKED_AT_MAX: Final = 1024
"""For one group: some may be done already."""
_PAUSE_MS: Final = 1000


class _Leadership:
    """What is known during one leadership, or since the last failure in it."""

    __slots__ = ("failed", "groups", "paused_until_ms", "under_way", "wheel")

    def __init__(self, wheel: TimerWheel, under_way: set[Timer], paused_until_ms: int = 0) -> None:
        self.wheel = wheel
        self.under_way = under_way
        self.groups = 0
        self.failed = False
        self.paused_until_ms = paused_until_ms


class Timers(Service):
    """Delivers what is due while this replica leads.

    Attributes:
        delivered, rolled, recalled: how many messages were put into the log for delivery, stored anew, recalled.
        dropped: how many were due whose topic was gone.
        expired: how many the log had lost to its retention before they were due.
        late_ms: how late the message was that became visible last, of those delivered.
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
        self._leadership: _Leadership | None = None
        self._unreadable = ReadBackoff()
        self._group_bytes_max = min(_GROUP_BYTES_MAX, context.appender.entry_bytes_max) - _COMMANDS_BYTES_MAX
        self.delivered = 0
        self.rolled = 0
        self.recalled = 0
        self.dropped = 0
        self.expired = 0
        self.late_ms = 0

    def periodic(self) -> Iterator[Periodic]:
        """Actions and the seconds in between; see `Service`."""
        yield DELIVER_SECONDS, self.run

    def lead(self) -> None:
        """This replica leads, and everything committed before is applied."""
        self._leadership = _Leadership(self._new_wheel(), set())
        self._unreadable = ReadBackoff()

    def resign(self) -> None:
        """This replica does not lead any more: another one delivers."""
        self._leadership = None
        self._unreadable = ReadBackoff()

    def run(self) -> None:
        """Deliver what is due; called by a timer many times a second."""
        leadership = self._leadership
        if leadership is None or not self._appender.is_open:
            return
        now_ms = self._wall_clock_ms()
        if leadership.failed:
            if leadership.groups:
                return
            # None of what failed is stored: begin again with what the marks say. Recalls go on meanwhile.
            leadership = _Leadership(self._new_wheel(), leadership.under_way, now_ms + _PAUSE_MS)
            self._leadership = leadership
        wheel = leadership.wheel
        try:
            wheel.advance(now_ms)
        except (StoreError, OSError) as error:
            self._log.warning("timers_unreadable", error=str(error))
        for queue_id, offset in wheel.lost.items():
            self._skip_lost(queue_id, offset, now_ms)
        wheel.lost.clear()
        self._deliver(leadership, now_ms)

    @property
    def pending(self) -> int:
        """How many messages wait, as far as this replica knows."""
        waiting = 0
        for queue_id in range(TIMER_SLOTS):
            if (queue := self._queue(queue_id)) is not None:
                waiting += self._marks(queue_id).count_open(queue.max_offset)
        return waiting

    def counters(self) -> dict[str, int]:
        """Figures of this replica, by name."""
        return {
            "timersPending": self.pending,
            "timersDelivered": self.delivered,
            "timersUnreadable": len(self._unreadable),
            "timersLateMs": self.late_ms,
            "timersRolled": self.rolled,
            "timersRecalled": self.recalled,
            "timersDropped": self.dropped,
            "timersExpired": self.expired,
        }

    # -- for those who recall ------------------------------------------------------------------------------------------

    def is_open(self, timer: Timer) -> bool:
        """Whether a message waits, and neither its delivery nor its recall is under way."""
        leadership, (queue_id, offset) = self._leadership, timer
        if leadership is None or timer in leadership.under_way:
            return False
        queue = self._queue(queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return False
        return not self._marks(queue_id).is_done(offset)

    def is_under_way(self, timer: Timer) -> bool:
        """Whether the delivery of a message, its recall, or that it is stored anew, is under way."""
        return self._leadership is not None and timer in self._leadership.under_way

    def record(self, timer: Timer) -> bytes:
        """The record of a waiting message. Raises SegmentError, StoreError, OSError."""
        queue_id, offset = timer
        queue = self._queue(queue_id)
        assert queue is not None, f"timer {timer} of a queue without entries"
        position, size, _ = QUEUE_ENTRY.unpack(queue.read(offset, 1))
        return self._read(position, size)

    def recall(self, timer: Timer, on_outcome: OnOutcome) -> None:
        """Mark an open message as done, so that it is never delivered; ``on_outcome`` is of the mark."""
        leadership, (queue_id, offset) = self._leadership, timer
        assert leadership is not None, "only the leader recalls"
        leadership.under_way.add(timer)

        def settled(outcome: Outcome) -> None:
            leadership.under_way.discard(timer)
            if isinstance(outcome, Stored):
                self.recalled += 1
                self._unreadable.settled(timer)
            elif isinstance(outcome, Refused) and self._leadership is not None:
                self._leadership.wheel.look_again(queue_id, 0)  # its turn may have come meanwhile
            on_outcome(outcome)

        command = encode_command(CompleteEntries(topic=TIMER_TOPIC, queue_id=queue_id, offsets=[offset]))
        self._appender.add_command(command, settled)

    # -- delivery ------------------------------------------------------------------------------------------------------

    def _new_wheel(self) -> TimerWheel:
        return TimerWheel(self._queue, self._marks)

    def _queue(self, queue_id: int) -> ConsumeQueue | None:
        return self._store.get(TIMER_TOPIC, queue_id)

    def _marks(self, queue_id: int) -> QueueMarks:
        return self._metadata.marks.of(TIMER_TOPIC, queue_id)

    def _deliver(self, leadership: _Leadership, now_ms: int) -> None:
        while (
            leadership.wheel.next_ms <= now_ms
            and not leadership.failed
            and leadership.groups < _GROUPS_IN_FLIGHT_MAX
            and not now_ms < leadership.paused_until_ms <= now_ms + _PAUSE_MS
            # One group is under way however much is pending: what is due does not wait for producers that are too fast.
            and (not leadership.groups or self._appender.pending_bytes <= self._pending_bytes_max)
        ):
            if not self._add_group(leadership, now_ms):
                break

    def _add_group(self, leadership: _Leadership, now_ms: int) -> bool:
        """Put into the log what has its turn, and that it is done; some messages at most. Returns whether it did."""
        wheel, under_way, unreadable = leadership.wheel, leadership.under_way, self._unreadable
        group: PendingGroup = []
        done: list[Timer] = []
        nbytes = 0
        first_ms = NEVER
        for _ in range(_LOOKED_AT_MAX):
            if wheel.next_ms > now_ms or len(done) == _GROUP_MESSAGES_MAX:
                break
            timer = queue_id, offset = wheel.head()
            queue = self._queue(queue_id)
            if queue is None or timer in under_way or self._marks(queue_id).is_done(offset):
                wheel.take()
                continue
            if offset < queue.min_offset:
                wheel.take()
                wheel.look_again(queue_id, now_ms)  # and find that it is lost
                continue
            if unreadable and (try_ms := unreadable.put_off_to(timer, now_ms)) is not None:
                wheel.take()
                wheel.look_again(queue_id, try_ms)
                continue
            try:
                position, size, turn_ms = QUEUE_ENTRY.unpack(queue.read(offset, 1))
                if done and nbytes + size > self._group_bytes_max:
                    break
                raw = split_record(self._read(position, size))
            except EntryGone as gone:
                queue.expire(gone.first)  # the log was shortened, and this queue was not told yet
                continue
            except (SegmentError, StoreError, RecordError, OSError) as error:
                # Other replicas have what this disk does not give; it may be repaired from them, or one may lead.
                wheel.take()
                wheel.look_again(queue_id, unreadable.failed(timer, now_ms))
                count = len(unreadable)
                self._log.warning("timer_unreadable", queue_id=queue_id, offset=offset, error=str(error), count=count)
                continue
            wheel.take()
            if unreadable:
                unreadable.settled(timer)
            record = self._copy(raw, turn_ms, now_ms)
            if record is not None:
                group.append(record)
                nbytes += record.nbytes
                first_ms = min(first_ms, turn_ms)
            done.append(timer)
        if not done:
            return False
        under_way.update(done)
        leadership.groups += 1
        offsets: dict[int, list[int]] = {}
        for queue_id, offset in done:
            offsets.setdefault(queue_id, []).append(offset)
        for queue_id, of_queue in offsets.items():
            command = CompleteEntries(topic=TIMER_TOPIC, queue_id=queue_id, offsets=sorted(of_queue))
            group.append(PendingCommand(encode_command(command)))
        last = group[-1]
        assert isinstance(last, PendingCommand), "a group of timers ends with what marks them"
        last.on_outcome = partial(self._settled, leadership, done, first_ms)
        self._appender.add_atomically(group)
        return True

    def _settled(self, leadership: _Leadership, done: list[Timer], first_ms: int, outcome: Outcome) -> None:
        leadership.groups -= 1
        leadership.under_way.difference_update(done)
        if not isinstance(outcome, Stored):
            leadership.failed = True
        elif self._leadership is leadership and self._appender.is_open:
            now_ms = self._wall_clock_ms()
            if first_ms != NEVER:
                self.late_ms = max(now_ms - first_ms, 0)
            self._deliver(leadership, now_ms)

    def _copy(self, raw: RawRecord, turn_ms: int, now_ms: int) -> InternalRecord | None:
        """The message as its topic gets it, or as it waits on; None if its topic is gone."""
        properties = props.decode(raw.properties.decode("utf-8", "replace"))
        due_ms = _number(properties.get(props.TIMER_OUT_MS))
        if due_ms > now_ms:
            self.rolled += 1
            return self._waiting_on(raw, properties, due_ms)
        topic = properties.pop(props.REAL_TOPIC, "")
        queue_id = props.real_queue_id(properties.pop(props.REAL_QUEUE_ID, None))
        added = {props.TIMER_ENQUEUE_MS: str(raw.store_timestamp_ms), props.TIMER_DEQUEUE_MS: str(now_ms)}
        encoded = _encoded(properties, added, raw.properties)
        record = copy_to(topic, queue_id, raw, encoded, metadata=self._metadata, tails=self._tails)
        if record is None:
            self.dropped += 1
            self._log.warning("timer_dropped", topic=topic, reason="no such topic", dropped=self.dropped)
        else:
            self.delivered += 1
        return record

    def _waiting_on(self, raw: RawRecord, properties: dict[str, str], due_ms: int) -> InternalRecord:
        times = _number(properties.get(props.TIMER_ROLL_TIMES)) + 1
        return InternalRecord(
            tail=self._tails.get(TIMER_TOPIC, timer_slot(due_ms)),
            body=raw.body,
            properties=_encoded(properties, {props.TIMER_ROLL_TIMES: str(times)}, raw.properties),
            flag=raw.flag,
            sys_flag=raw.sys_flag,
            born_timestamp_ms=raw.born_timestamp_ms,
            born_host=raw.born_host,
            reconsume_times=raw.reconsume_times,
            prepared_offset=raw.prepared_offset,
        )

    def _skip_lost(self, queue_id: int, offset: int, now_ms: int) -> None:
        """What the log lost before it was due is done with."""
        lost = self._marks(queue_id).count_open(offset)
        if not lost:
            return

        def settled(outcome: Outcome) -> None:
            if isinstance(outcome, Stored):
                self._unreadable.gone(queue_id, offset)
                self.expired += lost
                self._log.warning("timers_expired", queue_id=queue_id, expired=self.expired)

        command = SkipEntries(topic=TIMER_TOPIC, queue_id=queue_id, offset=offset)
        self._appender.add_command(encode_command(command), settled)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 20 else 0


def _encoded(properties: dict[str, str], added: dict[str, str], stored: bytes) -> bytes:
    """The properties and, if there is room for them, those added."""
    for wanted in (properties | added, properties):
        encoded = props.encode(wanted).encode()
        if len(encoded) <= props.PROPERTIES_BYTES_MAX:
            return encoded
    return stored  # they are no text, and marks that replace other bytes made them longer
