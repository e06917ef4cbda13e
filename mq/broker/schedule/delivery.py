"""Moves messages that wait for their time to where consumers see them: each copy enters the log with its mark.

Theory of operation. A *source* says which message is due next, which record comes of it, and which commands mark it as
moved. Some messages at a time, the records and the commands enter the log in one entry. After any failure both are
there or neither is, and a new leader has applied all such entries before it begins: each message becomes visible once.

What is under way is known to the leader alone, and bounded. When a group of messages is not stored, because the disk is
full or leadership is lost, no other is begun until the outcome of all that are under way is known; then the source
begins again with what the applied state says.

A message that this disk does not give holds up no other: it is tried again, ever less often. Other replicas have it; it
may be repaired from them, or one of them may lead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import BrokerContext
from mq.broker.schedule.read_backoff import ReadBackoff
from mq.broker.state.commands import Command, encode_command
from mq.broker.write_path.outcome import OnOutcome, Outcome, Stored
from mq.broker.write_path.pending import InternalRecord, PendingCommand, PendingGroup
from mq.protocol.records import RecordError
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError
from raftlog import SegmentError
from raftlog.segment import EntryGone

DELIVER_SECONDS: Final = 0.02
"""A message is late by this much at most, and by what it takes to commit it."""

_PAUSE_MS: Final = 1000
_GROUP_BYTES_MAX: Final = 256 * 1024
_MARK_BYTES_MAX: Final = 1024
"""Of the commands that mark one message, with the longest names."""
_LOOKED_AT_MAX: Final = 1024
"""Messages for one group: some may be put off."""
_FAILURES_MAX: Final = 20
"""Messages that cannot be read, of those for one group."""

K = TypeVar("K", bound=Hashable)
"""What names a queue, or a part of one, to a source."""


class Due(NamedTuple, Generic[K]):
    """A message whose time has come: in which queue it is, and at which offset.

    Without a queue there is nothing to copy, and the message is only marked: the log has lost it, or nobody wants it.
    """

    key: K
    offset: int
    queue: ConsumeQueue | None
    due_ms: int = 0


Moved = list[tuple[Due[K], InternalRecord | None]]
"""Messages that enter the log together, each with what comes of it."""


class Source(Protocol[K]):
    """What a feature says of its messages."""

    def restart(self) -> None:
        """Begin with what the applied state says: what was under way is settled, and not all of it is stored."""

    def due(self, now_ms: int) -> Generator[Due[K], int | None]:
        """The messages that are due, the first one first.

        When it goes on behind one, that is on its way; or, if it was sent a time, cannot be read and is due again then.
        It may be closed at any message, of which nothing became. Raises StoreError, OSError.
        """

    def copy(self, due: Due[K], record: bytes, now_ms: int) -> InternalRecord | None:
        """What comes of a message, None if it is only marked. May be called twice for one. Raises RecordError."""

    def mark(self, moved: Moved[K], now_ms: int) -> tuple[list[Command], OnOutcome]:
        """The commands that say that these messages, which were taken, are dealt with; and whom to tell the outcome."""


class Delivery(Generic[K]):
    """The delivery of one source during one leadership.

    Args:
        unreadable: the source's messages that could not be read.
        groups_max: groups under way; together with the appender's own limit it bounds what waits in memory.
        messages_max: in a group.
        read: ``read(physical_offset, nbytes)`` of the log; by default it verifies what it reads.
    """

    def __init__(
        self,
        context: BrokerContext,
        source: Source[K],
        *,
        unreadable: ReadBackoff,
        log: RateLimitedLog,
        groups_max: int = 8,
        messages_max: int = 64,
        read: Callable[[int, int], bytes] | None = None,
    ) -> None:
        self._appender = context.appender
        self._read = read or context.replica.log.pread
        # With so much pending in the appender, messages are delivered one group at a time.
        self._pending_bytes_max = context.settings.pending_bytes_max // 2
        self._wall_clock_ms = context.wall_clock_ms
        self._source = source
        self._unreadable = unreadable
        self._log = log
        self._groups_max = groups_max
        self._messages_max = messages_max
        self._bytes_max = min(_GROUP_BYTES_MAX, context.appender.entry_bytes_max)
        self._groups = 0
        self._failed = False
        self._stopped = False
        self._paused_until_ms = 0

    def stop(self) -> None:
        """This replica does not lead any more."""
        self._stopped = True

    def run(self, now_ms: int) -> None:
        """Put into the log what is due, as far as there is room; called some times a second."""
        if self._failed and not self._groups:
            self._failed = False
            self._paused_until_ms = now_ms + _PAUSE_MS
            self._source.restart()
        while self._may_begin(now_ms) and self._add_group(now_ms):
            pass

    def _may_begin(self, now_ms: int) -> bool:
        return (
            self._appender.is_open
            and not self._stopped
            and not self._failed
            and self._groups < self._groups_max
            and not now_ms < self._paused_until_ms <= now_ms + _PAUSE_MS
            # One group is under way however much is pending: what is due does not wait for producers that are too fast.
            and (not self._groups or self._appender.pending_bytes <= self._pending_bytes_max)
        )

    def _add_group(self, now_ms: int) -> bool:
        """Put some messages into the log that are due, with their marks; returns whether there were any."""
        moved: Moved[K] = []
        try:
            self._gather(moved, now_ms)
        except (StoreError, OSError) as error:
            self._paused_until_ms = now_ms + _PAUSE_MS
            self._log.warning("delivery_paused", error=str(error))
        if not moved:
            return False
        commands, on_outcome = self._source.mark(moved, now_ms)
        *others, last = map(encode_command, commands)
        group: PendingGroup = [record for _, record in moved if record is not None]
        group += map(PendingCommand, others)
        group.append(PendingCommand(last, partial(self._settled, on_outcome)))
        self._groups += 1
        self._appender.add_atomically(group)
        return True

    def _gather(self, moved: Moved[K], now_ms: int) -> None:
        """Take what is due until a group is full. Raises StoreError, OSError if a queue cannot be read."""
        unreadable, copy, read = self._unreadable, self._source.copy, self._read
        room, failures = self._bytes_max, 0
        dues = self._source.due(now_ms)
        due = next(dues, None)
        for _ in range(_LOOKED_AT_MAX):
            if due is None or len(moved) == self._messages_max or failures == _FAILURES_MAX:
                return
            key, offset, queue, _ = due
            record, until_ms = None, None
            if queue is not None and unreadable:
                until_ms = unreadable.put_off_to((key, offset), now_ms)
            if queue is not None and until_ms is None:
                try:
                    position, size, _ = QUEUE_ENTRY.unpack(queue.read(offset, 1))
                    if moved and size + _MARK_BYTES_MAX > room:
                        return
                    record = copy(due, read(position, size), now_ms)
                except EntryGone as gone:
                    queue.expire(gone.first)  # the log was shortened, and this queue was not told yet
                    return
                except (SegmentError, StoreError, RecordError, OSError) as error:
                    failures += 1
                    until_ms = self._failed_to_read(due, queue, error, now_ms)
            if until_ms is None:
                room -= _MARK_BYTES_MAX if record is None else _MARK_BYTES_MAX + record.nbytes
                if moved and room < 0:
                    return
                if unreadable:
                    unreadable.settled((key, offset))
                moved.append((due, record))
            try:
                due = dues.send(until_ms)
            except StopIteration:
                return

    def _failed_to_read(self, due: Due[K], queue: ConsumeQueue, error: Exception, now_ms: int) -> int:
        """When to try a message again."""
        until_ms = self._unreadable.failed((due.key, due.offset), now_ms)
        topic, queue_id = queue.key
        self._log.warning(
            "due_message_unreadable",
            topic=topic,
            queue_id=queue_id,
            offset=due.offset,
            error=str(error),
            count=len(self._unreadable),
        )
        return until_ms

    def _settled(self, on_outcome: OnOutcome, outcome: Outcome) -> None:
        self._groups -= 1
        on_outcome(outcome)
        if not isinstance(outcome, Stored):
            self._failed = True
        elif not self._stopped:
            self.run(self._wall_clock_ms())
