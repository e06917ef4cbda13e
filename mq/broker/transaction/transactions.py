"""Starts and ends transactions: half messages, and END_TRANSACTION (request code 37).

Theory of operation. A half message waits in an internal topic, see `mq.broker.transaction.half_messages`. Its end
enters the log in one entry: for a commit the copy for consumers, and for both outcomes a command that marks the half
message as ended. After any failure both exist or neither, and a leader has applied all such entries before it serves:
each transaction has one outcome, and its message at most one visible copy. Ends that arrive together share an entry,
one record in the topic that tools of stock brokers read, and one command.

If a commit and a rollback of one half message arrive, the first decides, and the other is refused. This also holds
while the half message is loaded from disk: later ends of it wait behind the first, instead of being loaded by
themselves, perhaps faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.schedule.visible_queues import tail_of
from mq.broker.schedule.waiting_queues import Destination, WaitingQueues
from mq.broker.state.commands import Command, encode_command
from mq.broker.state.completion_marks import CompleteEntries
from mq.broker.transaction.check_immunity import immunity_ms
from mq.broker.transaction.half_messages import HALF_QUEUE_ID, HalfMessages
from mq.broker.transaction.staged_sets import StagedSets
from mq.broker.write_path.outcome import DiskFull, OnOutcome, Outcome, Stored
from mq.broker.write_path.pending import InternalRecord, PendingCommand
from mq.broker.write_path.record_copy import copy_record
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.hashes import tag_code
from mq.protocol.messages.message_types import PRIORITY_MARK, stored_priority
from mq.protocol.messages.records import (
    COMMITTED,
    IPV4_HOST_BYTES,
    NO_HOST,
    ROLLBACK,
    RawRecord,
    RecordError,
    split_record,
)
from mq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC, NameRefused, check_group
from mq.protocol.numbers import FIRST_OFFSET, PhysicalOffset, QueueOffset
from mq.protocol.requests.transactions import EndTransaction
from mq.protocol.wire.encoding import ONEWAY_FLAG
from mq.store.errors import StoreError
from raftlog import SegmentError

_UNKNOWN = 0
_ENDS_PER_ENTRY = 64
_TOGETHER_BYTES_MAX = 192 * 1024
_WAITING_MAX = 4 * _ENDS_PER_ENTRY
"""Further ends of a half message that wait while its first end is loaded or committed."""
_ENDED_TAG = "d"
_NOT_FOUND = "Find prepared transaction message failed"


class _EndBatch:
    """Half messages that end in one entry, and the requests that wait for it."""

    __slots__ = ("advance", "calls", "copies", "discards", "finish", "nbytes", "offsets", "repeats", "visible_count")

    def __init__(self) -> None:
        self.offsets: list[QueueOffset] = []
        self.discards: list[QueueOffset] = []
        """Those of them that never become visible."""
        self.visible_count = 0
        """The number of half messages that become visible."""
        self.copies: list[InternalRecord] = []
        self.advance: bytes | None = None
        """The command for consumer offsets of a set; `finish` is called when its outcome is known."""
        self.finish: Callable[[], None] | None = None
        self.nbytes = 0
        self.calls: list[Call[EndTransaction]] = []
        self.repeats: list[Call[EndTransaction]] = []
        """Repeated ends of them in the meantime: served again when this entry is committed."""


class Transactions(Service):
    """Handles requests that commit or roll back transactions. Sends and check-backs use it too.

    Attributes:
        commit_count, rolled_back: half messages by outcome; a set is counted as one.
        ended_again: requests about half messages that had ended before.
        given_up: half messages given up after the last check-back.
    """

    def __init__(
        self, context: BrokerContext, *, halves: HalfMessages, places: WaitingQueues, sets: StagedSets
    ) -> None:
        self._is_on = context.settings.transactions
        self._timeout_ms = round(context.settings.transaction_timeout_seconds * 1000)
        self._checks_max = context.settings.transaction_checks_max
        self._uncommitted_bytes_max = context.settings.uncommitted_bytes_max
        self._metadata = context.metadata
        self._halves = halves
        self._appender = context.appender
        self._beginning = context.beginning
        self._tails = context.queue_tails
        self._places = places
        self._sets = sets
        self._host = context.store_host if len(context.store_host) == IPV4_HOST_BYTES else NO_HOST
        self._wall_clock_ms = context.wall_clock_ms
        self._ended_properties = props.encode({props.TAGS: _ENDED_TAG}).encode()
        self._entry_bytes_max = min(_TOGETHER_BYTES_MAX, context.appender.entry_bytes_max // 2)
        self._batch: _EndBatch | None = None
        self._ends_of: dict[QueueOffset, _EndBatch] = {}
        self._loads: dict[QueueOffset, list[Call[EndTransaction]]] = {}
        """Half messages that are loaded from disk, with their ends in order of arrival."""
        self.commit_count = 0
        self.rolled_back = 0
        self.ended_again = 0
        self.given_up = 0

    def routes(self) -> Iterator[Route]:
        yield Route(EndTransaction, self.handle_end, leader_only=True, repeatable=True)

    def resign(self) -> None:
        """Serve again the ends that are not in the log yet, so that the new leader gets them."""
        batch, self._batch = self._batch, None
        self._ends_of = {}
        if batch is not None:
            self._serve_again(batch)

    # -- start ---------------------------------------------------------------------------------------------------------

    def place_half(self, properties: dict[str, str], topic: str, queue_id: int) -> Destination:
        """Return the queue and the properties with which a half message is stored. Raises RequestRefused.

        A delay in its properties starts with the commit; an invalid one is refused now.
        """
        if not self._is_on:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "transactional messages are not allowed by this broker")
        group = properties.get(props.PRODUCER_GROUP, "")
        try:
            check_group(group)
        except NameRefused as error:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"a transactional message names its producers' group in PGROUP: {error}"
            ) from error
        if props.TRANSACTION_SET in properties:  # whoever may send to this topic may not send to those in the body
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{props.TRANSACTION_SET} is set by brokers, for transactions of request 9011",
            )
        _, destination_properties = self._places.place(dict(properties), topic, queue_id, self._wall_clock_ms())
        properties |= {props.REAL_TOPIC: topic, props.REAL_QUEUE_ID: str(queue_id)}
        if due_ms := destination_properties.get(props.TIMER_OUT_MS):
            properties[props.TIMER_OUT_MS] = due_ms  # reserves room for it when the message is committed
        return Destination(self._tails.get(HALF_TOPIC, HALF_QUEUE_ID), properties)

    # -- end -----------------------------------------------------------------------------------------------------------

    def handle_end(self, call: Call[EndTransaction]) -> bytes | None:
        """Request code 37: commit or roll back. Answers when that is committed to the log. Raises RequestRefused."""
        ext = call.request.ext
        outcome = ext.commit_or_rollback
        if outcome == _UNKNOWN:
            # No answer, as from stock brokers; a check-back follows. A forwarding replica needs an empty answer.
            return None if call.request.flag & ONEWAY_FLAG else b""
        if outcome not in (COMMITTED, ROLLBACK):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback is {outcome}; allowed: {COMMITTED} to commit and {ROLLBACK} to roll back",
            )
        offset = ext.half_queue_offset
        if (earlier := self._loads.get(offset)) is not None:
            _wait_behind(earlier, call)
            return None
        try:
            if self._halves.load([offset], partial(self._on_load, offset)):
                call.drop_body()
                self._loads[offset] = [call]
                return None
        except StoreError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{_NOT_FOUND}: {error}") from error
        return self._end(call)

    def _on_load(self, offset: QueueOffset) -> None:
        for call in self._loads.pop(offset):
            self._end_loaded(call)

    def _end_loaded(self, call: Call[EndTransaction]) -> None:
        """Serve an end whose half message was loaded from disk, or hand it to the new leader."""
        if not self._appender.is_open:
            call.dispatch()
            return
        try:
            reply = self._end(call)
        except Exception as error:
            call.refuse(error)
            return
        if reply is not None:
            call.answer(reply)

    def _end(self, call: Call[EndTransaction]) -> bytes | None:
        ext = call.request.ext
        offset, outcome = ext.half_queue_offset, ext.commit_or_rollback
        if self._appender.pending_bytes > self._uncommitted_bytes_max:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
        try:
            place = self._halves.span(offset)
            if place is None:
                if self._halves.queue is not None:
                    self._beginning.check(self._halves.queue.min_offset, offset)
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
            position = place[0]
            if position != ext.half_physical_offset:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
            if self._halves.marks.is_done(offset):
                self._check_ended_so(offset, outcome)
                self.ended_again += 1
                return call.success()
            record = self._halves.read(place)
            if record is None:
                if not self._beginning.is_first:
                    raise self._beginning.refusal()
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
            raw = split_record(record)
        except (StoreError, SegmentError, RecordError) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{_NOT_FOUND}: {error}") from error
        text = raw.properties.decode("utf-8", "replace")
        if ext.producer_group != props.find(text, props.PRODUCER_GROUP):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        call.drop_body()
        if (under_way := self._ends_of.get(offset)) is not None:
            _wait_behind(under_way.repeats, call)
            return None
        if not ext.from_transaction_check:
            self._check_in_time(raw, text)
        if props.find(text, props.TRANSACTION_SET) is not None:
            self._end_set(offset, position, raw, call)
            return None
        copy = self._visible(position, raw, text) if outcome == COMMITTED else None
        self._add(offset, copy, call)
        return None

    def _end_set(
        self, offset: QueueOffset, position: PhysicalOffset, raw: RawRecord, call: Call[EndTransaction]
    ) -> None:
        """Append the end of a set at once, so that offsets committed later follow its own. Raises RequestRefused."""
        ends = _EndBatch()
        ends.offsets.append(offset)
        if call.request.ext.commit_or_rollback == COMMITTED:
            ends.visible_count = 1
            ends.copies, ends.advance, ends.finish = self._sets.commit(position, raw)
        else:
            ends.discards.append(offset)
        ends.calls.append(call)
        assert offset not in self._ends_of, f"half message {offset} ends twice"
        assert (ends.advance is None) == (ends.finish is None), f"the offsets of set {offset} are not forgotten"
        self._ends_of[offset] = ends
        self._start(ends)

    def end_turn(self) -> None:
        """Append the ends of this turn to the log, unless too many rounds are in flight."""
        if self._batch is not None and self._appender.may_start:
            self._start(self._batch)
            self._batch = None

    def check_invariants(self) -> None:
        """Assert that the ends in flight and the half messages agree; for tests.

        Ends that are under way know the half messages for which they are: otherwise a second end would take effect, or
        the next one would wait for ever. The consumer offsets of a set are forgotten when it has ended.
        """
        for offset, ends in self._ends_of.items():
            assert offset in ends.offsets, f"half message {offset} ends with {ends.offsets}"
            assert (ends.advance is None) == (ends.finish is None), f"set {offset} does not forget its offsets"
        if self._appender.is_idle:
            assert not self._ends_of, f"half messages {sorted(self._ends_of)} end, and nothing is pending"
        offsets = [] if self._batch is None else self._batch.offsets
        orphans = [offset for offset in offsets if self._ends_of.get(offset) is not self._batch]
        assert not orphans, f"half messages {orphans} are gathered and do not end"

    def is_ending(self, offset: QueueOffset) -> bool:
        """Whether the commit, the rollback or the giving up of a half message is in flight."""
        return offset in self._ends_of

    def give_up(self, offsets: list[QueueOffset]) -> tuple[list[Command], OnOutcome]:
        """Return the commands that end half messages as given up, and a callback for the outcome.

        None of them may have an end in flight.
        """
        again = self._ends_of.keys() & offsets
        assert not again, f"half messages {sorted(again)} are given up while they end"
        assert offsets, "no half message is given up"
        ends = _EndBatch()
        ends.offsets = ends.discards = offsets
        self._ends_of.update(dict.fromkeys(offsets, ends))
        return self._marks(ends), partial(self._given_up, ends)

    def _check_ended_so(self, offset: QueueOffset, outcome: int) -> None:
        """Raises RequestRefused if a half message ended with another outcome, or may have been given up."""
        if offset < self._metadata.checks.offsets.get(self._checks_max, FIRST_OFFSET):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"half message {offset} was ended before, or given up after {self._checks_max} checks",
            )
        is_discarded = self._halves.is_discarded(offset)
        if is_discarded is not None and is_discarded == (outcome == COMMITTED):
            how = "rolled back, given up, or deleted by retention" if is_discarded else "committed"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"half message {offset} was {how} before")

    def _check_in_time(self, raw: RawRecord, text: str) -> None:
        """Refuse the end of a transaction with immunity once check-backs have begun. Raises RequestRefused."""
        immunity = props.find(text, props.CHECK_IMMUNITY_SECONDS)
        if immunity is None:
            return
        allowed_ms = max(immunity_ms(immunity, self._timeout_ms), self._timeout_ms)
        age_ms = self._wall_clock_ms() - raw.store_timestamp_ms
        if age_ms >= allowed_ms:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"the transaction is {age_ms} ms old and could be ended only within {allowed_ms} ms: the broker asks "
                "its producers about it",
            )

    def _visible(self, position: PhysicalOffset, raw: RawRecord, text: str) -> InternalRecord:
        """Return the message that consumers get, at its delivery time. Raises RequestRefused."""
        topic = props.find(text, props.REAL_TOPIC) or ""
        queue_id = props.real_queue_id(props.find(text, props.REAL_QUEUE_ID))
        priority = stored_priority(props.decode(text)) if PRIORITY_MARK in text else None
        tail = tail_of(topic, queue_id, self._metadata, self._tails, since=position, priority=priority)
        if tail is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} of the half message no longer exists")
        properties = raw.properties
        if "DELAY\x01" in text or "TIMER_" in text:
            now_ms = self._wall_clock_ms()
            tail, new_properties = self._places.place(props.decode(text), topic, tail.queue_id, now_ms)
            properties = props.fit(new_properties)
        return copy_record(raw, tail, properties, transaction=COMMITTED, prepared_offset=position)

    def _add(self, offset: QueueOffset, copy: InternalRecord | None, call: Call[EndTransaction]) -> None:
        assert offset not in self._ends_of, f"half message {offset} ends twice"
        nbytes = 0 if copy is None else copy.nbytes
        ends = self._batch
        if ends is not None and (len(ends.offsets) >= _ENDS_PER_ENTRY or ends.nbytes + nbytes > self._entry_bytes_max):
            self._start(ends)
            ends = None
        if ends is None:
            ends = self._batch = _EndBatch()
        ends.offsets.append(offset)
        ends.nbytes += nbytes
        if copy is None:
            ends.discards.append(offset)
        else:
            ends.visible_count += 1
            ends.copies.append(copy)
        ends.calls.append(call)
        self._ends_of[offset] = ends

    def _start(self, ends: _EndBatch) -> None:
        commit_count, discard_count, all_of_them = ends.visible_count, len(ends.discards), len(ends.offsets)
        assert commit_count + discard_count == all_of_them, (
            f"of {all_of_them} half messages {commit_count} become visible, {discard_count} do not"
        )
        assert len(set(ends.offsets)) == all_of_them > 0, f"half messages {ends.offsets} end in one entry"
        now_ms = self._wall_clock_ms()
        end_record = InternalRecord(
            tail=self._tails.get(HALF_OP_TOPIC, HALF_QUEUE_ID),
            body="".join([f"{offset}," for offset in ends.offsets]).encode(),
            properties=self._ended_properties,
            tag_code=tag_code(_ENDED_TAG),
            born_timestamp_ms=now_ms,
            born_host=self._host,
        )
        *discards, completion = map(encode_command, self._marks(ends))
        last = PendingCommand(completion, partial(self._finish, ends))
        advances = [] if ends.advance is None else [PendingCommand(ends.advance)]
        self._appender.add_atomically([*ends.copies, end_record, *advances, *map(PendingCommand, discards), last])

    def _marks(self, ends: _EndBatch) -> list[Command]:
        completion = CompleteEntries(topic=HALF_TOPIC, queue_id=HALF_QUEUE_ID, offsets=ends.offsets)
        return [*self._halves.discards(ends.discards), completion]

    def _finish(self, ends: _EndBatch, outcome: Outcome) -> None:
        self._forget_ends(ends)
        if ends.finish is not None:
            ends.finish()
        if isinstance(outcome, DiskFull):
            for call in (*ends.calls, *ends.repeats):
                call.answer(call.response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=outcome.remark))
            return
        if not isinstance(outcome, Stored):
            # The outcome is unknown; ending is idempotent.
            self._serve_again(ends)
            return
        self.commit_count += ends.visible_count
        self.rolled_back += len(ends.discards)
        calls, ends.calls = ends.calls, []
        for call in calls:
            call.answer(call.success())
        self._serve_again(ends)

    def _given_up(self, ends: _EndBatch, outcome: Outcome) -> None:
        self._forget_ends(ends)
        if isinstance(outcome, Stored):
            self.given_up += len(ends.offsets)
        self._serve_again(ends)

    def _forget_ends(self, ends: _EndBatch) -> None:
        for offset in ends.offsets:
            if self._ends_of.get(offset) is ends:
                del self._ends_of[offset]

    @staticmethod
    def _serve_again(ends: _EndBatch) -> None:
        calls, ends.calls, ends.repeats = (*ends.calls, *ends.repeats), [], []
        for call in calls:
            call.dispatch()


def _wait_behind(earlier: list[Call[EndTransaction]], call: Call[EndTransaction]) -> None:
    """Queue an end after earlier ones of the same half message. Raises RequestRefused if there are too many."""
    if len(earlier) >= _WAITING_MAX:
        offset = call.request.ext.half_queue_offset
        raise RequestRefused(
            ResponseCode.SYSTEM_BUSY, f"the maximum number of requests wait for half message {offset} to end"
        )
    call.drop_body()
    earlier.append(call)
