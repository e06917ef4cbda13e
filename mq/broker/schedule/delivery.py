"""Copies due messages to where consumers see them. Each copy enters the log together with the mark of its original.

Theory of operation. A *source* provides the next due message, the record to copy it to, and the commands that mark it
as moved. Records and commands of a few messages enter the log in one entry. After any failure either all of them exist
or none, and a new leader has applied all such entries before it begins: each message becomes visible once.

Only the leader knows the moves in flight; their number is limited. If a group of messages is not stored, because the
disk is full or leadership is lost, no new group begins until the outcome of all groups in flight is known; then the
source restarts from the applied state.

A message that this disk cannot read delays no other: it is retried with a growing pause. Other replicas have it; it may
be repaired from them, or one of them may become the leader.

A worker thread first loads records that are on the disk (`mq.broker.schedule.due_records`); until it has, no other
message of this source is begun.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import BrokerContext
from mq.broker.schedule.due_records import DueRecords
from mq.broker.schedule.read_backoff import ReadBackoff
from mq.broker.state.commands import Command, encode_command
from mq.broker.write_path.outcome import OnOutcome, Outcome, Stored
from mq.broker.write_path.pending import InternalRecord, PendingCommand, PendingGroup
from mq.protocol.messages.records import RecordError
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError
from raftlog import SegmentError
from raftlog.segment import EntryGone

_PAUSE_MS: Final = 1000
_GROUP_BYTES_MAX: Final = 256 * 1024
_MARK_BYTES_MAX: Final = 1024
"""Maximum size of the commands that mark one message, with the longest names."""
_LOOKED_AT_MAX: Final = 1024
"""Messages examined for one group: some may be postponed."""
_FAILURES_MAX: Final = 20
"""Unreadable messages per group."""

K = TypeVar("K", bound=Hashable)
"""The key by which a source names a queue, or a part of one."""


class Due(NamedTuple, Generic[K]):
    """A due message, with its queue and its offset there.

    Without a queue there is nothing to copy, and the message is only marked: the log has deleted it, or it is not
    wanted.
    """

    key: K
    offset: QueueOffset
    queue: ConsumeQueue | None
    due_ms: int = 0


Moves = list[tuple[Due[K], InternalRecord | None]]
"""Messages that enter the log together, each with its copy."""


class Source(Protocol[K]):
    """Yields the due messages of one feature to `Delivery`, and makes the commands that mark them as done."""

    def restart(self) -> None:
        """Start again from the applied state. No move is in flight any more, and some were not stored."""

    def due(self, now_ms: int) -> Generator[Due[K], int | None]:
        """Yield the messages that are due at ``now_ms``, in order.

        Continuing after a message means that it is in flight; or, if a time was sent, that it is unreadable and due
        again then. May be closed at any message, which then was not moved. Raises StoreError, OSError.
        """

    def copy(self, due: Due[K], record: bytes, now_ms: int) -> InternalRecord | None:
        """Return the copy of a message; None to only mark it. May be called twice for a message. Raises RecordError."""

    def mark(self, moves: Moves[K], now_ms: int) -> tuple[list[Command], OnOutcome]:
        """Return the commands that mark these messages as done, and a callback for the outcome."""


class Delivery(Generic[K]):
    """Copies the due messages of one source to their topics while this replica leads.

    Args:
        unreadable: the source's messages that could not be read.
        groups_max: groups in flight; together with the appender's own limit it bounds memory.
        messages_max: messages per group.
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
    ) -> None:
        self._appender = context.appender
        # Verifies what it reads: copies enter the log again.
        self._read = context.records.pread
        self._records = DueRecords(context.replica.log, context.environment.in_background)
        # Above this many pending bytes in the appender, messages are delivered one group at a time.
        self._uncommitted_bytes_max = context.settings.uncommitted_bytes_max // 2
        self._beginning = context.beginning
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
        """Stop delivering, since this replica stops leading."""
        self._stopped = True

    @property
    def is_under_way(self) -> bool:
        """Whether moves are in flight, records are being loaded, or the source must restart after a failure."""
        return self._failed or self._groups > 0 or self._records.is_loading

    @property
    def must_restart(self) -> bool:
        """Whether the source restarts once no move is in flight, because a group of moves was not stored."""
        return self._failed

    def check_invariants(self) -> None:
        """Assert that groups in flight are counted correctly: otherwise delivery might stop."""
        assert self._groups <= self._groups_max, f"{self._groups} groups are in flight; maximum: {self._groups_max}"
        if self._appender.is_idle:
            assert not self._groups, f"{self._groups} groups of due messages are in flight, and nothing is pending"

    def run(self, now_ms: int) -> None:
        """Append copies of due messages, as many as may be in flight; called several times a second."""
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
            and not self._records.is_loading
            and self._groups < self._groups_max
            and not now_ms < self._paused_until_ms <= now_ms + _PAUSE_MS
            # One group is always allowed: due messages must not starve behind fast producers.
            and (not self._groups or self._appender.pending_bytes <= self._uncommitted_bytes_max)
        )

    def _add_group(self, now_ms: int) -> bool:
        """Append a group of due messages with their marks; returns whether there were any."""
        moves: Moves[K] = []
        try:
            self._gather(moves, now_ms)
        except (StoreError, OSError) as error:
            self._paused_until_ms = now_ms + _PAUSE_MS
            self._log.warning("delivery_paused", error=str(error))
        if not moves:
            return False
        assert len(moves) <= self._messages_max, f"{len(moves)} due messages in one entry"
        commands, on_outcome = self._source.mark(moves, now_ms)
        assert commands, f"{len(moves)} due messages leave and are not marked: they would leave again"
        *others, last = map(encode_command, commands)
        group: PendingGroup = [record for _, record in moves if record is not None]
        group += map(PendingCommand, others)
        group.append(PendingCommand(last, partial(self._finish, on_outcome)))
        self._groups += 1
        self._appender.add_atomically(group)
        return True

    def _gather(self, moves: Moves[K], now_ms: int) -> None:
        """Take due messages until a group is full. Raises StoreError, OSError if a queue cannot be read."""
        unreadable, copy, read, records = self._unreadable, self._source.copy, self._read, self._records
        room, failures = self._bytes_max, 0
        dues = self._source.due(now_ms)
        due = next(dues, None)
        for _ in range(_LOOKED_AT_MAX):
            if due is None or len(moves) == self._messages_max or failures == _FAILURES_MAX:
                return
            key, offset, queue, _ = due
            if queue is None and not self._beginning.is_first:
                return  # another replica may have the message, and is about to lead
            record, until_ms = None, None
            if queue is not None and unreadable:
                until_ms = unreadable.postponed_until((key, offset), now_ms)
            if queue is not None and until_ms is None:
                try:
                    position, size, _ = QUEUE_ENTRY.unpack(queue.read(offset, 1))
                    if moves and size + _MARK_BYTES_MAX > room:
                        return
                    if not records.may_read(queue, offset, position, size):
                        records.load(queue, offset, self._on_load)
                        return
                    record = copy(due, read(position, size), now_ms)
                except EntryGone as error:
                    queue.expire(
                        PhysicalOffset(error.first)
                    )  # the log was truncated, but this queue was not updated yet
                    return
                except (SegmentError, StoreError, RecordError, OSError) as error:
                    failures += 1
                    until_ms = self._failed_to_read(due, queue, error, now_ms)
            if until_ms is None:
                room -= _MARK_BYTES_MAX if record is None else _MARK_BYTES_MAX + record.nbytes
                if moves and room < 0:
                    return
                if unreadable:
                    unreadable.forget((key, offset))
                moves.append((due, record))
            try:
                due = dues.send(until_ms)
            except StopIteration:
                return

    def _on_load(self) -> None:
        if not self._stopped:
            self.run(self._wall_clock_ms())

    def _failed_to_read(self, due: Due[K], queue: ConsumeQueue, error: Exception, now_ms: int) -> int:
        """Log a message that cannot be read, and return the time at which to retry it."""
        until_ms = self._unreadable.postpone((due.key, due.offset), now_ms)
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

    def _finish(self, on_outcome: OnOutcome, outcome: Outcome) -> None:
        self._groups -= 1
        assert self._groups >= 0, f"{self._groups} groups of due messages are in flight"
        on_outcome(outcome)
        if not isinstance(outcome, Stored):
            self._failed = True
        elif not self._stopped:
            self.run(self._wall_clock_ms())
