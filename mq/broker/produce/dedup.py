"""Sends with sequence numbers: each number is stored once, however often it comes.

Theory of operation. What is committed is in `mq.broker.state.producer_sequences`, on every replica, and a repeat of it
is answered from there. What is under way is known to the leader alone: a repeat of that waits, and is served anew when
the first one's outcome is known. A new leader has applied everything that was ever committed before it takes messages,
and what is not committed then never will be. So whoever leads stores a sequence number only if the log has none.

A batch has a range of numbers and enters the log in one entry, whole or not at all. If some of its numbers are in the
log and others are not, as after a repeat that is divided into other batches, the others alone are stored.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.errors import RequestRefused
from mq.broker.net.service import Service
from mq.broker.state.producer_sequences import WINDOW, Stored
from mq.broker.write_path.pending import NO_PLACE, SendRequest
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.headers import ONEWAY_FLAG, SendReplyTemplate
from mq.protocol.names import SEND_FORBIDDEN_TOPICS, TIMER_TOPIC
from mq.protocol.recall import recall_fields
from mq.protocol.records import FIXED, RecordError, StoredMessage, decode_record
from mq.protocol.replies import SENT_ALREADY_STORED
from mq.protocol.sequencing import PRODUCER_ID_LENGTH_MAX, SEQUENCE_MAX, SequenceRange, sent_range
from raftlog import SegmentError
from raftlog.segment import EntryGone

_WAITING_MAX = 16
"""Repeats that wait for the outcome of one message."""
_PLACES_MAX = 1024
"""Messages of a batch whose places are looked up for a repeat: their records are read and taken apart."""
_READ_BYTES = 256 * 1024
"""Of the log, read at once for such a look."""
_WAITING_BYTES = 1024
"""What one takes in memory besides its body; counted with what is pending."""


class InFlightSends:
    """What is under way, for each producer in the order of numbers; no two of one producer overlap."""

    def __init__(self) -> None:
        self._flights: dict[str, list[InFlightSend]] = {}

    def overlapping(self, numbers: SequenceRange) -> InFlightSend | None:
        """One with some of these numbers; None if there is none."""
        flights = self._flights.get(numbers.producer, [])
        at = bisect_right(flights, numbers.last, key=_first_number) - 1
        return flights[at] if at >= 0 and flights[at].numbers.last >= numbers.first else None

    def add(self, flight: InFlightSend) -> None:
        """Add one that overlaps no other one."""
        flights = self._flights.setdefault(flight.numbers.producer, [])
        flights.insert(bisect_left(flights, flight.numbers.first, key=_first_number), flight)

    def remove(self, flight: InFlightSend) -> None:
        """Remove it if it is there."""
        flights = self._flights.get(flight.numbers.producer, [])
        at = bisect_left(flights, flight.numbers.first, key=_first_number)
        if at < len(flights) and flights[at] is flight:
            del flights[at]
            if not flights:
                del self._flights[flight.numbers.producer]


class InFlightSend:
    """The sender of messages whose outcome is not known yet: tells the real one, and those who repeated them.

    Attributes:
        numbers: of all that was sent.
        stored: which of them are stored already; the others are under way.
        call: the first request, with an answer wanted in any case, from this sender.
    """

    __slots__ = ("_first", "_flights", "_release", "call", "host", "numbers", "stored", "waiting")

    def __init__(
        self,
        flights: InFlightSends,
        release: Callable[[int], None],
        numbers: SequenceRange,
        stored: Sequence[Stored],
        first: Call[SendRequest],
    ) -> None:
        self._flights = flights
        self._release = release
        self._first = first
        self.numbers = numbers
        self.stored = stored
        request = first.request
        self.host = first.connection.host
        oneway = request.flag & ONEWAY_FLAG
        answered = msgspec.structs.replace(request, flag=request.flag & ~ONEWAY_FLAG) if oneway else request
        self.call = Call(cast("ClientConnection", self), answered, first.body, first.serialization)
        self.waiting: list[Call[SendRequest]] = []
        flights.add(self)

    def send(self, data: bytes) -> None:
        """The outcome is known, and ``data`` is the answer."""
        waiting = self.end()
        self._first.answer(data)
        _serve(waiting)

    def answer(self, request: Any, reply: bytes) -> None:
        """As `send`: whether the client wants an answer is looked at there."""
        self.send(reply)

    def close(self, reason: str) -> None:
        """Nobody knows the outcome."""
        for call in (self._first, *self.end()):
            call.connection.close(reason)

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        """The message was certainly not stored: whoever leads now serves it."""
        _serve([self._first, *self.end()])

    def end(self) -> list[Call[SendRequest]]:
        """Nothing is under way any more; returns who waited for it."""
        self._flights.remove(self)
        waiting = self.waiting
        if waiting:
            self.waiting = []
            self._release(sum(map(_waiting_bytes, waiting)))
        return waiting


class Dedup(Service):
    """Knows repeated sends from new ones.

    Attributes:
        answered: how many repeats were answered with the place of the first.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._broker_name = context.settings.group
        self._sequences = context.metadata.sequences
        self._appender = context.appender
        self._reply_template = SendReplyTemplate(context.store_host)
        self._log = context.replica.log
        self._record_bytes_max = context.settings.segment_bytes
        self._flights = InFlightSends()
        self.answered = 0

    def counters(self) -> dict[str, int]:
        """Counts since the start; see `Service`."""
        return {"repeated_sends": self.answered}

    def resign(self) -> None:
        """This replica does not lead any more. What is under way tells those who wait for it how it ends."""
        self._flights = InFlightSends()

    def admit(self, call: Call[SendRequest], properties: dict[str, str]) -> InFlightSend | None:
        """Take a message with a sequence number: None if it is a repeat, which is answered or waits then.

        Otherwise it is to be stored for the sender that is returned; `InFlightSend.end` if it cannot be. Raises
        RequestRefused.
        """
        numbers = numbers_of(properties)
        stored = self._look_up(numbers, call)
        if stored is None:
            return None
        if not stored:
            return InFlightSend(self._flights, self._release, numbers, (), call)
        [one] = stored
        if one.position is None:
            raise _forgotten(numbers)
        answer = self._answer(call, properties, numbers, one)
        self._repeated(call, answer)
        return None

    def admit_batch(
        self, call: Call[SendRequest], numbers: SequenceRange, unique_keys: Sequence[bytes]
    ) -> InFlightSend | None:
        """Take a batch with these numbers: None if it is a repeat, which is answered or waits then.

        Otherwise those that `InFlightSend.stored` does not name are to be stored for the sender that is returned,
        together; `InFlightSend.end` if they cannot be. Raises RequestRefused.
        """
        stored = self._look_up(numbers, call)
        if stored is None:
            return None
        if sum(one.last - one.first + 1 for one in stored) < numbers.message_count:
            return InFlightSend(self._flights, self._release, numbers, stored, call)
        answer = self._batch_answer(call, numbers, stored, unique_keys)
        self._repeated(call, answer)
        return None

    def _look_up(self, numbers: SequenceRange, call: Call[SendRequest]) -> list[Stored] | None:
        """Which of these are stored; None if some are under way, for which the request waits then."""
        flight = self._flights.overlapping(numbers)
        if flight is not None:
            self._wait(flight, call)
            return None
        stored = self._sequences.find(numbers)
        if stored is None:
            raise _forgotten(numbers)
        return stored

    def _repeated(self, call: Call[SendRequest], answer: bytes) -> None:
        self.answered += 1
        call.answer(answer)

    def _wait(self, flight: InFlightSend, call: Call[SendRequest]) -> None:
        if len(flight.waiting) >= _WAITING_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, {_WAITING_MAX} resends of {flight.numbers} wait for the outcome",
            )
        flight.waiting.append(call)
        self._appender.pending_bytes += _waiting_bytes(call)

    def _release(self, nbytes: int) -> None:
        self._appender.pending_bytes -= nbytes

    def _answer(
        self, call: Call[SendRequest], properties: Mapping[str, str], numbers: SequenceRange, stored: Stored
    ) -> bytes:
        try:
            [(position, first)] = self._messages_at(stored)
        except EntryGone:
            # The log has lost it to its retention. That it was stored is known, and the id of what began it.
            unique_key = properties.get(props.UNIQUE_KEY, "")
            position = NO_PLACE if stored.skip or stored.position is None else stored.position
            return self._reply_template.render(
                call.request.opaque, call.request.ext.queue_id, -1, position, unique_key.encode(), call.serialization
            )
        except (SegmentError, RecordError) as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the message sent first with this number cannot be read: {error}"
            ) from error
        topic, queue_id = first.topic, first.queue_id
        if topic in SEND_FORBIDDEN_TOPICS:  # where it waits, until its time comes or its transaction ends
            topic = first.properties.get(props.REAL_TOPIC, topic)
            queue_id = props.real_queue_id(first.properties.get(props.REAL_QUEUE_ID, str(queue_id)))
        _check_topic(call.request, numbers, topic)
        unique_key = first.properties.get(props.UNIQUE_KEY, "")
        more = None
        if first.topic == TIMER_TOPIC:
            more = recall_fields(self._broker_name, topic, first.properties, first.queue_offset, unique_key)
        return self._reply_template.render_batch(
            call.request.opaque, queue_id, first.queue_offset, [position], unique_key.encode(), call.serialization, more
        )

    def _batch_answer(
        self, call: Call[SendRequest], numbers: SequenceRange, stored: Sequence[Stored], unique_keys: Sequence[bytes]
    ) -> bytes:
        more = {SENT_ALREADY_STORED: str(numbers.message_count)}
        queue_id, offset = call.request.ext.queue_id, -1
        places = [NO_PLACE] * numbers.message_count
        if found := self._places_of_batch(stored):
            first = found[0][1]
            _check_topic(call.request, numbers, first.topic)
            queue_id, offset = first.queue_id, first.queue_offset
            places = [position for position, _ in found]
            unique_keys = [record.properties.get(props.UNIQUE_KEY, "").encode() for _, record in found]
        keys = b",".join(unique_keys)
        return self._reply_template.render_batch(
            call.request.opaque, queue_id, offset, places, keys, call.serialization, more
        )

    def _places_of_batch(self, stored: Sequence[Stored]) -> list[tuple[int, StoredMessage]]:
        """Its messages and where they are; empty if that is not known, or would be too much work."""
        one = stored[0]
        if len(stored) > 1 or one.position is None or one.last - one.first >= _PLACES_MAX:
            return []
        try:
            found = self._messages_at(one)
        except (EntryGone, SegmentError, RecordError):
            return []  # that they are stored is known
        queue = [(record.topic, record.queue_id, record.queue_offset) for _, record in found]
        topic, queue_id, offset = queue[0]
        return found if queue == [(topic, queue_id, offset + number) for number in range(len(queue))] else []

    def _messages_at(self, stored: Stored) -> list[tuple[int, StoredMessage]]:
        """These messages, which lie behind each other, and where. Raises EntryGone, SegmentError, RecordError."""
        assert stored.position is not None
        count = stored.skip + stored.last - stored.first + 1
        # The log has verified what it returns, bodies included.
        return [
            (position, decode_record(data, verify=False))
            for number, (position, data) in enumerate(self._records_at(stored.position, count))
            if number >= stored.skip
        ]

    def _records_at(self, position: int, count: int) -> Iterator[tuple[int, memoryview]]:
        """So many records back to back, and where each is. Raises EntryGone, SegmentError, RecordError.

        Those of a batch are mostly of one size: they are read together. A single one is read by itself.
        """
        log, ahead = self._log, memoryview(b"")
        for left in range(count, 0, -1):
            size = int.from_bytes(ahead[:4] if len(ahead) >= 4 else log.pread(position, 4), "big")
            rest = log.end_pos - position
            if not FIXED <= size <= min(self._record_bytes_max, rest):
                raise RecordError(position, f"its size is {size}, the log ends at {log.end_pos}")
            if len(ahead) < size:
                ahead = memoryview(log.pread(position, min(max(size, min(size * left, _READ_BYTES)), rest)))
            yield position, ahead[:size]
            position, ahead = position + size, ahead[size:]


def numbers_of(properties: Mapping[str, str], count: int = 1) -> SequenceRange:
    """The numbers of a message, or of a batch of ``count`` messages, that has some. Raises RequestRefused."""
    numbers = sent_range(properties, count)
    if numbers is None:
        producer, number = properties.get(props.PRODUCER_ID, ""), properties.get(props.SEQUENCE, "")
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{props.PRODUCER_ID} {producer[: PRODUCER_ID_LENGTH_MAX + 1]!r} and {props.SEQUENCE} {number[:20]!r} "
            f"are not a name of 1 to {PRODUCER_ID_LENGTH_MAX} characters and a number from 0 to {SEQUENCE_MAX}",
        )
    return numbers


def _forgotten(numbers: SequenceRange) -> RequestRefused:
    return RequestRefused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"SEQUENCE_FORGOTTEN: the broker does not know any more whether {numbers} was stored, or where; it remembers "
        f"the last {WINDOW} sends of a producer",
    )


def _check_topic(request: SendRequest, numbers: SequenceRange, topic: str) -> None:
    if topic != request.ext.topic:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{numbers} is in topic {topic}: a sequence number is used for one message only, whatever its topic",
        )


def _first_number(flight: InFlightSend) -> int:
    return flight.numbers.first


def _serve(waiting: list[Call[SendRequest]]) -> None:
    for call in waiting:
        call.dispatch()


def _waiting_bytes(call: Call[SendRequest]) -> int:
    return _WAITING_BYTES + len(call.body)
