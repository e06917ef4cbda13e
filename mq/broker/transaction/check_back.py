"""Asks producers for the outcome of open half messages (request code 39), on the leader.

Theory of operation. Half messages are in their queue in order of arrival. Everything before a first *cursor* was
checked once, everything before a second one twice, and so on. A cursor follows the previous one at a distance in time,
the first one the end of the queue; each open half message that it passes is checked. Behind the last cursor, open ones
are given up. So there is one number per repetition and no memory per half message, however many are open.

Some producers want no check before a certain time (immunity). Until then cursors pass their messages without a check,
except the last one, which *postpones* them: they are put into a list, and are checked the same number of times once
that time is over (`mq.broker.transaction.check_immunity`). The same applies to messages that this disk cannot read:
they may be repaired from other replicas, or one of them may lead. When the list is full, the last cursor waits.

The time at which a cursor passed a message is not stored per message: the leader samples the cursor positions several
times a minute. A new leader treats everything as passed just now; so after a change of leader or a long stop, producers
get their full time again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import BrokerContext
from mq.broker.net.service import Service
from mq.broker.state.check_cursors import AdvanceChecks
from mq.broker.state.commands import encode_command
from mq.broker.state.completion_marks import SkipEntries
from mq.broker.transaction.check_immunity import CheckImmunity, immunity_ms
from mq.broker.transaction.give_up import GiveUp
from mq.broker.transaction.half_messages import HALF_QUEUE_ID, HalfMessages
from mq.broker.transaction.transactions import Transactions
from mq.broker.write_path.outcome import Outcome, Stored
from mq.broker.write_path.pending import PendingCommand
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode
from mq.protocol.messages.records import RecordError, StoredMessage, encode_message
from mq.protocol.names import HALF_TOPIC
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.requests.transactions import CheckTransactionStateExt
from mq.protocol.wire.encoding import encode_request
from mq.store.errors import StoreError
from raftlog import SegmentError

_UNREADABLE = (StoreError, SegmentError, RecordError, OSError)
_CHECKS_PER_ENTRY = 32
_LOST_MAX = 1000
"""Maximum number of deleted half messages in one entry."""
_LOST_BYTES = 16
"""Maximum bytes of the entry for each of them."""
SAMPLES = 32
_POSTPONED: Final = 0
"""Stands for the postponed half messages, where others have the number of their cursor, from 1."""
_WAITING_BYTES_MAX = 1024 * 1024
"""A producer with this many unread bytes is not asked more."""


class CheckTrack:
    """Samples the position of a cursor, to return its position of ``seconds`` ago."""

    __slots__ = ("_offset", "_samples", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._samples: deque[tuple[float, QueueOffset]] = deque()
        self._offset = FIRST_OFFSET

    def add_sample(self, now: float, position: QueueOffset) -> None:
        """Add the position of the cursor at the time ``now``. It never decreases."""
        if not self._samples or now >= self._samples[-1][0] + self._seconds / SAMPLES:
            earlier = self._samples[-1][1] if self._samples else self._offset
            assert position >= earlier, f"a cursor goes from half message {earlier} back to {position}"
            self._samples.append((now, position))

    def position_before(self, now: float) -> QueueOffset:
        """Return the position at ``seconds`` before ``now``, or an earlier one; 0 if it is not known."""
        while self._samples and self._samples[0][0] <= now - self._seconds:
            self._offset = self._samples.popleft()[1]
        return self._offset


class _HalfMessageLoad:
    """Half messages that a worker thread loads from disk. The cursor continues at ``next_offset`` after them."""

    __slots__ = ("has_ended", "next_offset", "offsets")

    def __init__(self, offsets: list[QueueOffset], next_offset: QueueOffset) -> None:
        self.offsets = offsets
        self.next_offset = next_offset
        self.has_ended = False

    def end(self) -> None:
        self.has_ended = True


class CheckBacks(Service):
    """Sends check-backs while this replica leads.

    Attributes:
        checks: number of check-backs sent.
        unanswerable: how often no member of a producer group was connected.
        expiry_count: half messages that retention deleted while they were open.
    """

    def __init__(self, context: BrokerContext, *, halves: HalfMessages, transactions: Transactions) -> None:
        self._context = context
        self._broker_name = context.settings.group
        self._timeout_seconds = context.settings.transaction_timeout_seconds
        self._interval_seconds = context.settings.transaction_check_seconds
        self._last = context.settings.transaction_checks_max
        self._uncommitted_bytes_max = context.settings.uncommitted_bytes_max // 2
        self._metadata = context.metadata
        self._halves = halves
        self._transactions = transactions
        self._appender = context.appender
        self._beginning = context.beginning
        self._clients = context.clients
        self._clock = context.ageing_clock
        self._wall_clock_ms = context.wall_clock_ms
        self._log = RateLimitedLog(context.log, context.wall_clock_ms)
        self._limits = context.limits.waiting
        self._tracks: list[CheckTrack] = []
        self._positions: list[QueueOffset] = []
        self._busy: set[int] = set()
        self._loads: dict[int, _HalfMessageLoad] = {}
        self._immunity = self._none_postponed()
        self._give_up: GiveUp | None = None
        self._turn = 0
        self.checks = 0
        self.unanswerable = 0
        self.expiry_count = 0

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(
            self._limits.check_seconds, self.run, lambda: now_if(self._tracks and self._halves.queue is not None)
        )

    def lead(self) -> None:
        """Start sending check-backs, since this replica leads."""
        last = self._last
        self._tracks = [
            CheckTrack(self._timeout_seconds if number == 0 else self._interval_seconds) for number in range(last + 1)
        ]
        cursor_offsets = self._metadata.checks.offsets
        # A cursor that has never moved, because more checks were configured, starts at the beginning.
        cursors = (cursor_offsets.get(number, FIRST_OFFSET) for number in range(1, last + 1))
        self._positions = [FIRST_OFFSET, *cursors, FIRST_OFFSET]
        self._busy = set()
        self._loads = {}
        self._immunity = self._none_postponed()
        self._give_up = GiveUp(self._context, halves=self._halves, transactions=self._transactions, log=self._log)

    def resign(self) -> None:
        """Stop sending check-backs, since this replica stops leading."""
        if self._give_up is not None:
            self._give_up.stop()
        self._give_up = None
        self._tracks = []
        self._positions = []
        self._busy = set()

    def counters(self) -> dict[str, int]:
        """Return the outcomes of transactions since the start of this replica, and the number of open half messages."""
        transactions = self._transactions
        return {
            "transactions_open": self._halves.open_count,
            "transactions_put_off": len(self._metadata.checks.put_off),
            "transactions_committed": transactions.commit_count,
            "transactions_rolled_back": transactions.rolled_back,
            "transactions_ended_again": transactions.ended_again,
            "transactions_given_up": transactions.given_up,
            "transactions_expired": self.expiry_count,
            "transaction_checks": self.checks,
            "transaction_checks_unanswerable": self.unanswerable,
        }

    def run(self) -> None:
        """Send due check-backs; called by a timer several times a second."""
        queue = self._halves.queue
        if queue is None or not self._tracks or not self._appender.is_open:
            return
        if self._appender.pending_bytes > self._uncommitted_bytes_max:
            return
        assert len(self._positions) == self._last + 2, f"{len(self._positions)} cursors for {self._last} checks"
        now = self._clock()
        marks = self._halves.marks
        if marks.low < queue.min_offset:
            if not self._beginning.is_first:
                return  # another replica may have open half messages, and is about to lead
            self._skip(queue.min_offset)
        self._positions[0] = queue.max_offset
        low = marks.low
        for number, track in enumerate(self._tracks):
            track.add_sample(now, max(self._positions[number], low))
        for number in range(1, self._last + 1):
            self._pass(number, now)
        overdue = self._check_postponed(now)
        if self._give_up is not None:
            self._give_up.run(chain(self._behind_the_last_cursor(now), overdue), self._wall_clock_ms())

    # -- checking ------------------------------------------------------------------------------------------------------

    def _pass(self, number: int, now: float) -> None:
        """Move a cursor past some half messages, if it is time, and check them."""
        assert 1 <= number <= self._last, f"cursor {number} of {self._last}"
        limit = self._tracks[number - 1].position_before(now)
        if number in self._busy or self._positions[number] >= limit:
            return
        marks = self._halves.marks
        load = self._loads.get(number)
        if load is None:
            halves = list(islice(marks.open_offsets(self._positions[number], limit), _CHECKS_PER_ENTRY))
            next_offset = limit if len(halves) < _CHECKS_PER_ENTRY else halves[-1] + 1
        else:
            # Ask for the same messages, although others opened or ended: otherwise a slow disk would never load all of
            # them.
            halves, next_offset = [each for each in load.offsets if not marks.is_done(each)], load.next_offset
        if not self._are_loaded(number, halves, next_offset):
            return
        self._loads.pop(number, None)
        put_off: list[QueueOffset] = []
        earlier = self._metadata.checks.put_off
        if number == self._last:
            # No transaction is given up without a check.
            for at, offset in enumerate(halves):
                if offset not in earlier and self._is_to_wait(offset):
                    if len(earlier) + len(put_off) >= self._limits.postponed_checks_max:
                        halves, next_offset = halves[:at], offset
                        break
                    put_off.append(offset)
        if not halves:
            self._positions[number] = max(next_offset, self._positions[number])
            return
        postponed_offsets = [*self._still_postponed(), *put_off] if put_off else None
        self._advance(
            number,
            next_offset,
            postponed_offsets,
            [each for each in halves if each not in earlier and each not in put_off],
        )

    def check_invariants(self) -> None:
        track_count, positions = len(self._tracks), len(self._positions)
        assert positions == (track_count + 1 if track_count else 0), f"{track_count} tracks of {positions} cursors"
        if self._appender.is_idle:
            assert not self._busy, f"cursors {sorted(self._busy)} are moved, and nothing is pending"

    def _advance(
        self, number: int, next_offset: QueueOffset, put_off: list[QueueOffset] | None, offsets: list[QueueOffset]
    ) -> None:
        """Replicate the position of a cursor, and the list of postponed half messages if it changed; then check."""
        assert number not in self._busy, f"cursor {number} is moved to {next_offset} while another move is in flight"
        self._busy.add(number)
        command = encode_command(AdvanceChecks(number=number, offset=next_offset, put_off=put_off))
        positions = self._positions

        def finish(outcome: Outcome) -> None:
            if self._positions is positions:
                self._busy.discard(number)
                if isinstance(outcome, Stored):
                    positions[number] = max(next_offset, positions[number])
                    self._ask_about(offsets, number)
                    self.run()

        self._appender.add_command(command, finish)

    def _none_postponed(self) -> CheckImmunity:
        return CheckImmunity(
            times=self._last, first_seconds=self._timeout_seconds, interval_seconds=self._interval_seconds
        )

    def _still_postponed(self) -> list[QueueOffset]:
        is_done = self._halves.marks.is_done
        return [offset for offset in self._metadata.checks.put_off if not is_done(offset)]

    def _check_postponed(self, now: float) -> list[QueueOffset]:
        """Check some postponed half messages whose time is over; returns messages that were checked often enough."""
        postponed_offsets = self._metadata.checks.put_off
        if not postponed_offsets:
            return []
        halves = self._still_postponed()
        if len(halves) < len(postponed_offsets) and self._last not in self._busy:
            self._advance(self._last, self._positions[self._last], halves, [])
        overdue: list[QueueOffset] = []
        load = self._loads.get(_POSTPONED)
        due = list(self._immunity.turns(halves, now, _CHECKS_PER_ENTRY)) if load is None else load.offsets
        if not self._are_loaded(_POSTPONED, due, next_offset=FIRST_OFFSET):
            return []
        self._loads.pop(_POSTPONED, None)
        for offset in due:
            if self._halves.marks.is_done(offset):
                continue
            message = self._readable(offset)
            if message is None:
                continue
            if immune_ms := self._immune_ms(message):
                self._immunity.wait(offset, now, immune_ms / 1000)
            elif number := self._immunity.ask(offset, now):
                self._ask(message, number)
            else:
                overdue.append(offset)
        return overdue

    def _are_loaded(self, key: int, offsets: list[QueueOffset], next_offset: QueueOffset) -> bool:
        """Whether half messages can be read without a wait for the disk, or a worker thread has tried to load them.

        If not, the thread loads them; `run` asks again. ``key`` is the number of a cursor, or `_POSTPONED`.
        """
        load = self._loads.get(key)
        if load is None:
            load = _HalfMessageLoad(offsets, next_offset)
            try:
                if not self._halves.load(offsets, load.end):
                    return True
            except StoreError:
                return True  # the reader reports it
            self._loads[key] = load
        return load.has_ended

    def _is_to_wait(self, offset: QueueOffset) -> bool:
        """Whether a half message cannot be checked yet: immune, or unreadable."""
        try:
            message = self._halves.message(offset)
        except _UNREADABLE as error:
            self._log.warning("half_message_unreadable", error=str(error))
            return True
        return message is not None and self._immune_ms(message) > 0

    def _readable(self, offset: QueueOffset) -> StoredMessage | None:
        """Return the half message at an offset; None if it was deleted, or this disk cannot read it."""
        try:
            return self._halves.message(offset)
        except _UNREADABLE as error:
            self._log.warning("half_message_unreadable", error=str(error))
            return None

    def _ask_about(self, offsets: list[QueueOffset], number: int) -> None:
        for offset in offsets:
            if self._halves.marks.is_done(offset):
                continue
            message = self._readable(offset)
            if message is not None and not self._immune_ms(message):
                self._ask(message, number)

    def _immune_ms(self, message: StoredMessage) -> int:
        """Return for how many milliseconds the producer of a message wants no check."""
        wanted_ms = immunity_ms(
            message.properties.get(props.CHECK_IMMUNITY_SECONDS), round(self._timeout_seconds * 1000)
        )
        age_ms = self._wall_clock_ms() - message.store_timestamp_ms
        return max(wanted_ms - age_ms, 0) if age_ms >= 0 else 0

    def _ask(self, message: StoredMessage, number: int) -> None:
        group = message.properties.get(props.PRODUCER_GROUP, "")
        members = [
            each
            for each in self._clients.producers(group)
            if not each.closed and each.waiting_bytes < _WAITING_BYTES_MAX
        ]
        if not members:
            self.unanswerable += 1
            self._log.warning("check_back_no_producer", producer_group=group, unanswerable=self.unanswerable)
            return
        self._turn += 1
        members[self._turn % len(members)].send(
            _check_request(message, number, self._turn & 0x7FFFFFFF, self._broker_name)
        )
        self.checks += 1

    # -- giving up ---------------------------------------------------------------------------------------------------

    def _behind_the_last_cursor(self, now: float) -> Iterator[QueueOffset]:
        """Yield the open half messages behind the last cursor that are not postponed."""
        behind = self._last + 1
        begin = max(self._positions[behind], self._halves.marks.low)
        limit = self._tracks[self._last].position_before(now)
        put_off = frozenset(self._metadata.checks.put_off)
        halves = (offset for offset in self._halves.marks.open_offsets(begin, limit) if offset not in put_off)
        first = next(halves, None)
        if first is None:
            # Postponed ones may stay open for long, and are not scanned again.
            self._positions[behind] = max(limit, self._positions[behind])
            return
        yield first
        yield from halves

    def _skip(self, offset: QueueOffset) -> None:
        """Mark open half messages below ``offset`` as rolled back: the beginning of the log was deleted with them.

        Otherwise another replica that still has them would confirm a commit of a message that stays invisible.
        """
        marks, lost_offsets = self._halves.marks, list[QueueOffset]()
        lost_max = min(_LOST_MAX, self._appender.entry_bytes_max // _LOST_BYTES)
        for each in marks.open_offsets(FIRST_OFFSET, offset):
            if len(lost_offsets) == lost_max or self._transactions.is_ending(each):
                offset = each
                break
            lost_offsets.append(each)
        if 0 in self._busy or offset <= marks.low:
            return
        self._busy.add(0)

        def finish(outcome: Outcome) -> None:
            self._busy.discard(0)
            if isinstance(outcome, Stored):
                self.expiry_count += len(lost_offsets)
                self._log.warning("half_messages_expired", expired=self.expiry_count)

        command = encode_command(SkipEntries(topic=HALF_TOPIC, queue_id=HALF_QUEUE_ID, offset=offset))
        discards = map(PendingCommand, map(encode_command, self._halves.discards(lost_offsets)))
        self._appender.add_atomically([*discards, PendingCommand(command, finish)])


def _check_request(message: StoredMessage, number: int, opaque: int, broker_name: str) -> bytes:
    """Return the check-back request, with the message as if it were in its original queue."""
    unique_key = message.properties.get(props.UNIQUE_KEY, "")
    topic = message.properties.get(props.REAL_TOPIC, "")
    properties = props.fit(message.properties | {props.TRANSACTION_CHECK_TIMES: str(number)}).decode()
    queue_id = props.real_queue_id(message.properties.get(props.REAL_QUEUE_ID))
    record = encode_message(message, topic, queue_id, properties)
    ext = CheckTransactionStateExt(
        half_queue_offset=message.queue_offset,
        half_physical_offset=message.physical_offset,
        msg_id=unique_key,
        transaction_id=unique_key,
        offset_msg_id=message.offset_message_id,
        topic=topic,
        broker_name=broker_name,
    )
    return encode_request(RequestCode.CHECK_TRANSACTION_STATE, opaque, ext=ext.fields(), body=record, oneway=True)
