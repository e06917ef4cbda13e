"""RECALL_MESSAGE (request code 370): a producer takes back a message that waits for its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from mq.broker.delayed.timers import Timer, Timers
from mq.broker.requests.connection import ClientConnection, Handler
from mq.broker.requests.refusal import RequestRefused
from mq.broker.sending.appender import Appender
from mq.broker.state.metadata import Metadata
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.delay import TURN_MS_MAX, timer_slot
from mq.protocol.headers import RecallMessage, encode_response
from mq.protocol.names import TIMER_TOPIC
from mq.protocol.recall import HandleRefused, RecallHandle
from mq.protocol.records import RecordError
from mq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from mq.store.errors import StoreError
from mq.store.queue_store import QueueStore
from raftlog import SegmentError

_LOOKED_AT_MAX: Final = 1000
"""Messages that are due in the same millisecond: so many are read to find one of them."""
_PIECE_ENTRIES: Final = 65_536
_TURN_AT: Final = 12
"""Where in its queue entry an entry has the time of its turn."""


class Recalls:
    """The recall handler of a broker.

    Args:
        delay_max_ms: no message is due later than so long from now.
    """

    def __init__(
        self,
        *,
        broker_name: str,
        metadata: Metadata,
        store: QueueStore,
        appender: Appender,
        timers: Timers,
        delay_max_ms: int,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._broker_name = broker_name
        self._metadata = metadata
        self._store = store
        self._appender = appender
        self._timers = timers
        self._delay_max_ms = delay_max_ms
        self._wall_clock_ms = wall_clock_ms

    def leader_handlers(self) -> dict[type[Any], Handler]:
        """What only the leader serves."""
        return {RecallMessage: self.handle}

    def handle(self, connection: ClientConnection, request: RecallMessage, body: bytes, serialization: int) -> None:
        """Request code 370: answered when the message certainly will not be delivered. Raises RequestRefused."""
        self._appender.check_room()
        handle = self._checked(request)
        timer = self._find(handle)
        if timer is None:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                "recall failed, no such message waits: it is being delivered, was recalled before, or never was",
            )

        def done(known: bool) -> None:
            if known:
                ext = {"msgId": handle.unique_key}
                reply = encode_response(request.opaque, ResponseCode.SUCCESS, ext=ext, serialization=serialization)
                connection.answer(request, reply)
            else:
                connection.close("leadership was lost while a message was being recalled")

        def refused(remark: str) -> None:
            connection.refuse(request, serialization, RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, remark))

        # What came as its body is of no meaning, and is not kept.
        self._timers.recall(timer, done, lambda: connection.dispatch(request, b"", serialization), refused)

    def _checked(self, request: RecallMessage) -> RecallHandle:
        topic = request.ext.topic
        if topic not in self._metadata.topics:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic[:127]}] not exist")
        try:
            handle = RecallHandle.decode(request.ext.recall_handle)
        except HandleRefused as error:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
        if handle.topic != topic:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != self._broker_name:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        left_ms = handle.due_ms - self._wall_clock_ms()
        if left_ms < 0:
            remark = f"recall failed, too late: the message was due {-left_ms} ms ago, and is delivered unless recalled"
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, remark)
        if left_ms > self._delay_max_ms:
            remark = f"recall failed, timestamp invalid: due in {left_ms} ms, allowed are {self._delay_max_ms}"
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, remark)
        return handle

    def _find(self, handle: RecallHandle) -> Timer | None:
        """The waiting message that a handle is about. Raises RequestRefused if this disk does not give it."""
        queue_id = timer_slot(handle.due_ms)
        try:
            if handle.queue_offset is not None:
                timer = queue_id, handle.queue_offset
                if self._timers.is_open(timer) and self._is_meant(timer, handle):
                    return timer
            # It was stored anew meanwhile, as it is each day. What was not is another one: its sender sent it twice.
            anew = handle.queue_offset is not None
            for timer in islice(self._candidates(queue_id, handle.due_ms), _LOOKED_AT_MAX):
                if self._is_meant(timer, handle, anew=anew):
                    return timer
        except (SegmentError, StoreError, RecordError, OSError) as error:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"recall failed, message unreadable: {error}"
            ) from error
        return None

    def _is_meant(self, timer: Timer, handle: RecallHandle, *, anew: bool = False) -> bool:
        properties = props.decode(self._timers.record(timer).properties.decode("utf-8", "replace"))
        return (
            properties.get(props.UNIQUE_KEY) == handle.unique_key
            and properties.get(props.REAL_TOPIC) == handle.topic
            and properties.get(props.TIMER_OUT_MS) == str(handle.due_ms)
            and props.DELAY not in properties
            and (not anew or props.TIMER_ROLL_TIMES in properties)
        )

    def _candidates(self, queue_id: int, due_ms: int) -> Iterator[Timer]:
        """Open messages of a slot whose turn is due_ms, or the one that leads to it on some day until then.

        Only entries are looked at, as bytes: a million of them take some 30 ms.
        """
        queue = self._store.get(TIMER_TOPIC, queue_id)
        if queue is None:
            return
        days = max(due_ms - self._wall_clock_ms(), 0) // TURN_MS_MAX
        # The day before counts as well: who stored it may have had a clock that was ahead of this one.
        turns = [
            QUEUE_ENTRY.pack(0, 0, due_ms - day * TURN_MS_MAX)[_TURN_AT:] for day in range(max(days - 1, 0), days + 2)
        ]
        first = max(self._metadata.marks.of(TIMER_TOPIC, queue_id).low, queue.min_offset)
        for start in range(first, queue.max_offset, _PIECE_ENTRIES):
            entries = queue.read(start, _PIECE_ENTRIES)
            for turn in turns:
                at = entries.find(turn)
                while at >= 0:
                    index, rest = divmod(at, QUEUE_ENTRY_BYTES)
                    if rest == _TURN_AT and self._timers.is_open((queue_id, start + index)):
                        yield queue_id, start + index
                    at = entries.find(turn, at + 1)
