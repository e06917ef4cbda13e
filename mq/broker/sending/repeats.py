"""Sends with a sequence number: stored once, however often they come.

Theory of operation. What is committed is in `mq.broker.state.sequences`, on every replica, and a repeat of it is
answered from there. What is under way is known to the leader alone: a repeat of that waits, and is served anew when
the first one's outcome is known. A new leader has applied everything that was ever committed before it takes messages,
and what is not committed then never will be. So whoever leads stores a sequence number only if the log has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from mq.broker.requests.refusal import RequestRefused
from mq.broker.sending.appender import Appender
from mq.broker.sending.pending import Sender, SendRequest
from mq.broker.state.sequences import WINDOW, NotFound, Sequences
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.headers import ONEWAY_FLAG, SendReplyTemplate
from mq.protocol.names import SEND_FORBIDDEN_TOPICS, TIMER_TOPIC
from mq.protocol.recall import recall_fields
from mq.protocol.records import FIXED, RecordError, StoredMessage, decode_record
from mq.protocol.sequencing import PRODUCER_ID_LENGTH_MAX, SEQUENCE_MAX, SequenceId, sequence_id
from raftlog import SegmentError, SegmentLog
from raftlog.segment import EntryGone

_WAITING_MAX = 16
"""Repeats that wait for the outcome of one message."""
_WAITING_BYTES = 1024
"""What one takes in memory besides its body; counted with what is pending."""

_Waiting = tuple[Sender, SendRequest, bytes, int]


class Flight:
    """The sender of a message whose outcome is not known yet: tells the real one, and those who repeated it.

    Attributes:
        request: what was asked for, with an answer wanted in any case.
    """

    __slots__ = ("_first", "_flights", "_release", "host", "id", "request", "waiting")

    def __init__(
        self,
        flights: dict[SequenceId, Flight],
        release: Callable[[int], None],
        number: SequenceId,
        first: _Waiting,
    ) -> None:
        self._flights = flights
        self._release = release
        self._first = first
        self.id = number
        sender, request, *_ = first
        self.host = sender.host
        oneway = request.flag & ONEWAY_FLAG
        self.request = msgspec.structs.replace(request, flag=request.flag & ~ONEWAY_FLAG) if oneway else request
        self.waiting: list[_Waiting] = []
        flights[number] = self

    def send(self, data: bytes) -> None:
        """The outcome is known, and ``data`` is the answer."""
        waiting = self.end()
        sender, request, *_ = self._first
        if not request.flag & ONEWAY_FLAG:
            sender.send(data)
        _serve(waiting)

    def close(self, reason: str) -> None:
        """Nobody knows the outcome."""
        for sender, *_ in (self._first, *self.end()):
            sender.close(reason)

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        """The message was certainly not stored: whoever leads now serves it."""
        _serve([self._first, *self.end()])

    def end(self) -> list[_Waiting]:
        """Nothing is under way any more; returns who waited for it."""
        if self._flights.get(self.id) is self:
            del self._flights[self.id]
        waiting = self.waiting
        if waiting:
            self.waiting = []
            self._release(sum(map(_waiting_bytes, waiting)))
        return waiting


class Repeats:
    """Knows repeated sends from new ones.

    Args:
        record_bytes_max: what no record is larger than.

    Attributes:
        answered: how many repeats were answered with the place of the first.
    """

    def __init__(
        self,
        *,
        broker_name: str,
        sequences: Sequences,
        appender: Appender,
        reply_template: SendReplyTemplate,
        log: SegmentLog,
        record_bytes_max: int,
    ) -> None:
        self._broker_name = broker_name
        self._sequences = sequences
        self._appender = appender
        self._reply_template = reply_template
        self._log = log
        self._record_bytes_max = record_bytes_max
        self._flights: dict[SequenceId, Flight] = {}
        self.answered = 0

    def forget(self) -> None:
        """This replica does not lead any more. What is under way tells those who wait for it how it ends."""
        self._flights = {}

    def admit(
        self, sender: Sender, request: SendRequest, body: bytes, serialization: int, properties: dict[str, str]
    ) -> Flight | None:
        """Take a message with a sequence number: None if it is a repeat, which is answered or waits then.

        Otherwise it is to be stored for the sender that is returned; `Flight.end` if it cannot be. Raises
        RequestRefused.
        """
        known = sequence_id(properties)
        if known is None:
            producer, number = properties.get(props.PRODUCER_ID, ""), properties[props.SEQUENCE]
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{props.PRODUCER_ID} {producer[: PRODUCER_ID_LENGTH_MAX + 1]!r} and {props.SEQUENCE} {number[:20]!r} "
                f"are not a name of 1 to {PRODUCER_ID_LENGTH_MAX} characters and a number from 0 to {SEQUENCE_MAX}",
            )
        flight = self._flights.get(known)
        if flight is not None:
            self._wait(flight, (sender, request, body, serialization))
            return None
        position = self._sequences.find(*known)
        if position is NotFound.NEW:
            return Flight(self._flights, self._release, known, (sender, request, body, serialization))
        if position is NotFound.FORGOTTEN:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"SEQUENCE_FORGOTTEN: nobody knows any more whether message {known.number} of producer "
                f"{known.producer!r} was stored; the last {WINDOW} of a producer are known at most",
            )
        answer = self._answer(request, serialization, properties, known, position)
        self.answered += 1
        if not request.flag & ONEWAY_FLAG:
            sender.send(answer)
        return None

    def _wait(self, flight: Flight, waiting: _Waiting) -> None:
        if len(flight.waiting) >= _WAITING_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, {_WAITING_MAX} repeats of message {flight.id.number} of producer "
                f"{flight.id.producer!r} wait for its outcome",
            )
        flight.waiting.append(waiting)
        self._appender.pending_bytes += _waiting_bytes(waiting)

    def _release(self, nbytes: int) -> None:
        self._appender.pending_bytes -= nbytes

    def _answer(
        self, request: SendRequest, serialization: int, properties: dict[str, str], known: SequenceId, position: int
    ) -> bytes:
        try:
            first = self._message_at(position)
        except EntryGone:
            # The log has lost it to its retention. That it was stored is known, and its id.
            unique_key = properties.get(props.UNIQUE_KEY, "")
            return self._reply_template.render(
                request.opaque, request.ext.queue_id, -1, position, unique_key.encode(), serialization
            )
        except (SegmentError, RecordError) as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the message of which this one is a repeat cannot be read: {error}"
            ) from error
        topic, queue_id = first.topic, first.queue_id
        if topic in SEND_FORBIDDEN_TOPICS:  # where it waits, until its time comes or its transaction ends
            topic = first.properties.get(props.REAL_TOPIC, topic)
            queue_id = int(first.properties.get(props.REAL_QUEUE_ID, queue_id))
        if topic != request.ext.topic:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"message {known.number} of producer {known.producer!r} is in topic {topic}: a sequence number is used "
                "for one message only, whatever its topic",
            )
        unique_key = first.properties.get(props.UNIQUE_KEY, "")
        more = None
        if first.topic == TIMER_TOPIC:
            more = recall_fields(self._broker_name, topic, first.properties, first.queue_offset, unique_key)
        return self._reply_template.render_batch(
            request.opaque, queue_id, first.queue_offset, [position], unique_key.encode(), serialization, more
        )

    def _message_at(self, position: int) -> StoredMessage:
        """Raises EntryGone, SegmentError, RecordError."""
        log = self._log
        size = int.from_bytes(log.pread(position, 4), "big")
        if not FIXED <= size <= min(self._record_bytes_max, log.end_pos - position):
            raise RecordError(position, f"its size is {size}, the log ends at {log.end_pos}")
        return decode_record(memoryview(log.pread(position, size)))


def _serve(waiting: list[_Waiting]) -> None:
    for sender, request, body, serialization in waiting:
        sender.dispatch(request, body, serialization)


def _waiting_bytes(waiting: _Waiting) -> int:
    return _WAITING_BYTES + len(waiting[2])
