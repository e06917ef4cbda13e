"""RECALL_MESSAGE (request code 370): recalls a message that waits for its delivery time, for its producer.

The handle names the place where the message was stored first. A message that was copied since, as happens each day, is
further behind, among others due in the same millisecond; these are read one by one until it is found. There may be very
many of them, so a search runs in steps of some milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.schedule.timers import Timer, Timers
from mq.broker.write_path.outcome import Stored, answer_outcome
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.delay import TURN_MS_MAX, timer_slot
from mq.protocol.messages.recall_handle import HandleInvalid, RecallHandle
from mq.protocol.messages.records import RecordError, split_record
from mq.protocol.names import TIMER_TOPIC
from mq.protocol.numbers import FIRST_OFFSET
from mq.protocol.requests.send import RecallMessage, RecallReply
from mq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from mq.store.errors import StoreError
from raftlog import SegmentError

SEARCHES_MAX: Final = 64
"""Searches in progress; more are refused. Each keeps 320 KB of queue entries."""

_RECORD_BYTES: Final = 4096
"""The minimum number of bytes that is counted for reading a record."""
_DUE_TIME_AT: Final = 12
"""Position of the due time within a queue entry."""


class _PendingRecall(NamedTuple):
    """A recall whose message is being searched, and the candidates that are left."""

    call: Call[RecallMessage]
    handle: RecallHandle
    candidates: Iterator[Timer | None]
    """None where the candidates are not known yet."""


class Recalls(Service):
    """Recalls messages that wait for their delivery time."""

    def __init__(self, context: BrokerContext, *, timers: Timers) -> None:
        self._broker_name = context.settings.group
        self._limits = context.limits.waiting
        self._metadata = context.metadata
        self._store = context.store
        self._appender = context.appender
        self._beginning = context.beginning
        self._timers = timers
        self._delay_max_ms = context.settings.timer_delay_max_seconds * 1000  # no message is due later
        self._wall_clock_ms = context.wall_clock_ms
        self._searches: deque[_PendingRecall] = deque()

    def routes(self) -> Iterator[Route]:
        yield Route(RecallMessage, self.handle, leader_only=True)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(self._limits.deliver_seconds, self.run, lambda: now_if(self._searches))

    def resign(self) -> None:
        """Serve the requests whose search is not finished again, since this replica stops leading."""
        searches, self._searches = self._searches, deque()
        for search in searches:
            search.call.dispatch()

    def run(self) -> None:
        """Do one step of a search; called by a timer many times a second."""
        if not self._searches:
            return
        search = self._searches.popleft()
        if search.call.connection.closed:
            return
        try:
            if not self._search_step(search):
                self._searches.append(search)
        except RequestRefused as error:
            search.call.refuse(error)

    def handle(self, call: Call[RecallMessage]) -> None:
        """Request code 370: recall a message. Answers once it cannot be delivered any more. Raises RequestRefused."""
        handle = self._parse_handle(call.request)
        call.drop_body()
        search = _PendingRecall(call, handle, self._candidates(handle))
        if not self._search_step(search):
            if len(self._searches) >= SEARCHES_MAX:
                remark = f"recall failed, {SEARCHES_MAX} recalls are searching already: try again"
                raise RequestRefused(ResponseCode.SYSTEM_BUSY, remark)
            self._searches.append(search)

    def _search_step(self, search: _PendingRecall) -> bool:
        """Examine some candidates, and recall the message if found; returns False if the search is not finished.

        Raises RequestRefused if it does not exist, or cannot be read from this disk.
        """
        self._appender.check_room()
        handle = search.handle
        bytes_left = self._limits.recall_bytes_max
        try:
            for timer in search.candidates:
                if timer is None:
                    return False
                record = self._timers.record(timer)
                if _matches(record, handle, is_copy=handle.queue_offset not in (None, timer[1])):
                    self._recall(search, timer)
                    return True
                bytes_left -= max(len(record), _RECORD_BYTES)
                if bytes_left <= 0:
                    return False
        except (SegmentError, StoreError, RecordError, OSError) as error:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"recall failed, message unreadable: {error}"
            ) from error
        raise RequestRefused(
            ResponseCode.ILLEGAL_OPERATION,
            "recall failed, no such pending message: it is being delivered, was recalled before, or never existed",
        )

    def _recall(self, search: _PendingRecall, timer: Timer) -> None:
        call, handle, _ = search

        def respond(_: Stored) -> bytes:
            return call.response(ext=RecallReply(message_id=handle.unique_key).fields())

        self._timers.recall(timer, partial(answer_outcome, call, "a message was being recalled", respond))

    def _parse_handle(self, request: RecallMessage) -> RecallHandle:
        topic = request.ext.topic
        if topic not in self._metadata.topics:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic[:127]}] not exist")
        try:
            handle = RecallHandle.decode(request.ext.recall_handle)
        except HandleInvalid as error:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
        if handle.topic != topic:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != self._broker_name:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        left_ms = handle.due_ms - self._wall_clock_ms()
        if left_ms < 0:
            remark = (
                f"recall failed, too late: the message was due {-left_ms} ms ago, and is delivered or recalled already"
            )
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, remark)
        if left_ms > self._delay_max_ms:
            remark = f"recall failed, timestamp invalid: due in {left_ms} ms; maximum: {self._delay_max_ms}"
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, remark)
        return handle

    def _candidates(self, handle: RecallHandle) -> Iterator[Timer | None]:
        """Yield the message that a handle names, and then the possible places of its copies; only open ones.

        Only entries are compared, as bytes: a million of them take some 30 ms.
        """
        queue_id, due_ms, stored_at = timer_slot(handle.due_ms), handle.due_ms, handle.queue_offset
        queue = self._store.get(TIMER_TOPIC, queue_id)
        if queue is None:
            return
        timers = self._timers
        under_way: list[Timer] = []
        start = FIRST_OFFSET
        if stored_at is not None:
            timer, start = (queue_id, stored_at), stored_at + 1
            if timers.is_open(timer):
                yield timer
            under_way.append(timer)
        days = max(due_ms - self._wall_clock_ms(), 0) // TURN_MS_MAX
        # Earlier days count as well: this clock may have been set back since the message was stored.
        turns = [QUEUE_ENTRY.pack(0, 0, due_ms - day * TURN_MS_MAX)[_DUE_TIME_AT:] for day in range(days + 2)]
        while True:
            # A message that is being copied is stored at the end of the queue, and is found there afterwards.
            under_way = list(filter(timers.is_under_way, under_way))
            low = self._metadata.marks.get(TIMER_TOPIC, queue_id).low
            self._beginning.check(queue.min_offset, max(low, start if stored_at is None else stored_at))
            start = max(start, self._metadata.marks.get(TIMER_TOPIC, queue_id).low, queue.min_offset)
            if start >= queue.max_offset:
                if not under_way:
                    return
                yield None
                continue
            entries = queue.read(start, self._limits.recall_entries_max)
            assert entries, f"slot {queue_id} has nothing at {start}, and ends at {queue.max_offset}"
            for turn in turns:
                at = entries.find(turn)
                while at >= 0:
                    index, rest = divmod(at, QUEUE_ENTRY_BYTES)
                    timer = queue_id, start + index
                    if rest == _DUE_TIME_AT:
                        if timers.is_open(timer):
                            yield timer
                        elif timers.is_under_way(timer):
                            under_way.append(timer)
                    at = entries.find(turn, at + 1)
            start += len(entries) // QUEUE_ENTRY_BYTES


def _matches(record: bytes, handle: RecallHandle, *, is_copy: bool) -> bool:
    """Whether a handle names this message; a copy (``is_copy``) says so in its properties. Raises RecordError.

    A message with the same key that does not say so is a second send of the same message.
    """
    if handle.unique_key.encode() not in record:
        return False  # nearly always
    properties = props.decode(split_record(record).properties.decode("utf-8", "replace"))
    return (
        properties.get(props.UNIQUE_KEY) == handle.unique_key
        and properties.get(props.REAL_TOPIC) == handle.topic
        and properties.get(props.TIMER_OUT_MS) == str(handle.due_ms)
        and props.DELAY not in properties
        and (not is_copy or props.TIMER_ROLL_TIMES in properties)
    )
