"""Deduplication of sends with sequence numbers: each number is stored once, however often it is sent.

Theory of operation. `mq.broker.state.producer_sequences` knows the committed numbers on every replica; a repeat of one
is answered from there. Only the leader knows the numbers in flight: a repeat of one waits for the outcome and is then
served again. A new leader has applied everything that was ever committed before it accepts messages, and entries that
are not committed then never will be. So a leader stores a sequence number only if the log does not have it.
`mq.broker.produce.sends_in_flight` has what is in flight.

A number above all that are stored or in flight is certainly new. So most numbered sends are plain ones, see
`mq.broker.produce.send_receiver`; the others are handled here.

A batch has a range of numbers and enters the log in one entry or not at all. If only some of its numbers are in the
log, as after a repeat that is split into other batches, the missing ones are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Service
from mq.broker.produce.sends_in_flight import (
    WAITING_MAX,
    InFlightSends,
    NumberedBlock,
    NumberedSend,
    Overlap,
    SendsOf,
)
from mq.broker.state.producer_sequences import SequencedRange
from mq.broker.write_path.pending import NO_PLACE, SendRequest
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.recall_handle import recall_fields
from mq.protocol.messages.records import FIXED, RecordError, StoredMessage, decode_record
from mq.protocol.messages.sequencing import PRODUCER_ID_LENGTH_MAX, SEQUENCE_MAX, SequenceRange, sent_range
from mq.protocol.names import SEND_FORBIDDEN_TOPICS, TIMER_TOPIC
from mq.protocol.numbers import NO_OFFSET, PhysicalOffset
from mq.protocol.requests.send import SENT_ALREADY_STORED
from mq.protocol.wire.encoding import SendReplyTemplate
from raftlog import SegmentError
from raftlog.segment import EntryGone

_PLACES_MAX = 1024
"""Messages of a batch whose places are looked up for a repeat: their records have to be read and parsed."""
_READ_BYTES = 256 * 1024
"""Bytes of the log read at once for this."""


class Dedup(Service):
    """Tells repeated sends from new ones by their sequence numbers.

    Attributes:
        answer_count: repeats answered with the place of the original.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._broker_name = context.settings.group
        self._sequences = context.metadata.sequences
        self._window = context.metadata.limits.ranges_per_producer_max
        self._appender = context.appender
        self._reply_template = SendReplyTemplate(context.store_host)
        self._log = context.replica.log
        self._record_bytes_max = context.settings.segment_bytes
        self._in_flight = InFlightSends()
        self.answer_count = 0

    def counters(self) -> dict[str, int]:
        return {"repeated_sends": self.answer_count}

    def resign(self) -> None:
        """Forget the sends in flight, since this replica stops leading. Waiting repeats still get the outcome."""
        self._in_flight = InFlightSends()

    def check_invariants(self) -> None:
        self._in_flight.check_invariants()
        if self._appender.is_idle:
            assert self._in_flight.is_empty, "numbered sends are in flight, and nothing is pending"

    def highest(self, producer: str) -> int:
        """Return the highest number of a producer that is stored or in flight; -1 without any."""
        last, in_flight = self._sequences.highest(producer), self._in_flight.highest(producer)
        return in_flight if in_flight > last else last  # noqa: FURB136 - twice as fast as max

    def begin_block(self, highest: Mapping[str, int], sends_of: SendsOf) -> NumberedBlock:
        """Mark the numbered sends of a finished block as in flight. See `NumberedBlock`."""
        return NumberedBlock(self._in_flight, self._reserve, highest, sends_of)

    def admit(self, call: Call[SendRequest], properties: dict[str, str]) -> NumberedSend | None:
        """Admit a message with a sequence number. Returns None for a repeat, which is answered or held.

        Otherwise the caller stores the message with the returned sender, or calls `NumberedSend.end` if it cannot.
        Raises RequestRefused.
        """
        numbers = numbers_of(properties)
        ranges = self._look_up(numbers, call)
        if ranges is None:
            return None
        if not ranges:
            return NumberedSend(self._in_flight, self._reserve, numbers, (), call)
        [one] = ranges
        if one.position is None:
            raise self._forgotten_error(numbers)
        response = self._answer(call, properties, numbers, one)
        self._count_repeated(call, response)
        return None

    def admit_batch(
        self, call: Call[SendRequest], numbers: SequenceRange, unique_keys: Sequence[bytes]
    ) -> NumberedSend | None:
        """Admit a batch with these numbers. Returns None for a repeat, which is answered or held.

        Otherwise the caller stores the messages that are not in `NumberedSend.stored_ranges`, together with the
        returned sender, or calls `NumberedSend.end` if it cannot. Raises RequestRefused.
        """
        ranges = self._look_up(numbers, call)
        if ranges is None:
            return None
        if sum(one.last - one.first + 1 for one in ranges) < numbers.message_count:
            return NumberedSend(self._in_flight, self._reserve, numbers, ranges, call)
        response = self._batch_answer(call, numbers, ranges, unique_keys)
        self._count_repeated(call, response)
        return None

    def _look_up(self, numbers: SequenceRange, call: Call[SendRequest]) -> list[SequencedRange] | None:
        """Return those of these messages that are stored. None if some are in flight: then the request is held."""
        overlap = self._in_flight.find_overlap(numbers)
        if overlap is not None:
            self._wait(overlap, call)
            return None
        ranges = self._sequences.find(numbers)
        if ranges is None:
            raise self._forgotten_error(numbers)
        return ranges

    def _count_repeated(self, call: Call[SendRequest], answer: bytes) -> None:
        self.answer_count += 1
        call.answer(answer)

    def _forgotten_error(self, numbers: SequenceRange) -> RequestRefused:
        return RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"SEQUENCE_FORGOTTEN: the broker no longer knows whether {numbers} was stored, or where; it "
            f"remembers the last {self._window} sends of a producer",
        )

    def _wait(self, overlap: Overlap, call: Call[SendRequest]) -> None:
        sends, place, numbers = overlap
        if not sends.wait(place, call):
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, {WAITING_MAX} resends of message {numbers.first} of producer "
                f"{numbers.producer!r} wait for the outcome",
            )

    def _reserve(self, nbytes: int) -> None:
        self._appender.pending_bytes += nbytes
        assert self._appender.pending_bytes >= 0, f"{self._appender.pending_bytes} are pending without {-nbytes}"

    def _answer(
        self, call: Call[SendRequest], properties: Mapping[str, str], numbers: SequenceRange, one: SequencedRange
    ) -> bytes:
        try:
            [(position, first)] = self._messages_at(one)
        except EntryGone:
            # The log has deleted it. It is known to be stored, and the id at its beginning is known.
            unique_key = properties.get(props.UNIQUE_KEY, "")
            position = NO_PLACE if one.skip or one.position is None else one.position
            return self._reply_template.render(
                call.request.opaque,
                call.request.ext.queue_id,
                NO_OFFSET,
                position,
                unique_key.encode(),
                call.serialization,
            )
        except (SegmentError, RecordError) as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the message sent first with this number cannot be read: {error}"
            ) from error
        topic, queue_id = first.topic, first.queue_id
        if topic in SEND_FORBIDDEN_TOPICS:  # its place until its time comes or its transaction ends
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
        self,
        call: Call[SendRequest],
        numbers: SequenceRange,
        ranges: Sequence[SequencedRange],
        unique_keys: Sequence[bytes],
    ) -> bytes:
        more = {SENT_ALREADY_STORED: str(numbers.message_count)}
        queue_id, offset = call.request.ext.queue_id, NO_OFFSET
        places = [NO_PLACE] * numbers.message_count
        if records := self._places_of_batch(ranges):
            first = records[0][1]
            _check_topic(call.request, numbers, first.topic)
            queue_id, offset = first.queue_id, first.queue_offset
            places = [position for position, _ in records]
            unique_keys = [record.properties.get(props.UNIQUE_KEY, "").encode() for _, record in records]
        keys = b",".join(unique_keys)
        return self._reply_template.render_batch(
            call.request.opaque, queue_id, offset, places, keys, call.serialization, more
        )

    def _places_of_batch(self, ranges: Sequence[SequencedRange]) -> list[tuple[PhysicalOffset, StoredMessage]]:
        """Return the messages of a batch with their places; nothing if unknown, or too expensive to find."""
        one = ranges[0]
        if len(ranges) > 1 or one.position is None or one.last - one.first >= _PLACES_MAX:
            return []
        try:
            records = self._messages_at(one)
        except (EntryGone, SegmentError, RecordError):
            return []  # it is known that they are stored
        queue = [(record.topic, record.queue_id, record.queue_offset) for _, record in records]
        topic, queue_id, offset = queue[0]
        return records if queue == [(topic, queue_id, offset + number) for number in range(len(queue))] else []

    def _messages_at(self, one: SequencedRange) -> list[tuple[PhysicalOffset, StoredMessage]]:
        """Read consecutive messages and their places. Raises EntryGone, SegmentError, RecordError."""
        assert one.position is not None
        count = one.skip + one.last - one.first + 1
        # The log has verified what it returns, bodies included.
        return [
            (position, decode_record(data, verify=False))
            for number, (position, data) in enumerate(self._records_at(one.position, count))
            if number >= one.skip
        ]

    def _records_at(self, position: PhysicalOffset, count: int) -> Iterator[tuple[PhysicalOffset, memoryview]]:
        """Read ``count`` consecutive records and their places. Raises EntryGone, SegmentError, RecordError.

        Records of a batch mostly have the same size and are read together. A single one is read by itself.
        """
        log, ahead = self._log, memoryview(b"")
        for records_left in range(count, 0, -1):
            size = int.from_bytes(ahead[:4] if len(ahead) >= 4 else log.pread(position, 4), "big")
            rest = log.end_pos - position
            if not FIXED <= size <= min(self._record_bytes_max, rest):
                raise RecordError(position, f"its size is {size}, the log ends at {log.end_pos}")
            if len(ahead) < size:
                ahead = memoryview(log.pread(position, min(max(size, min(size * records_left, _READ_BYTES)), rest)))
            yield position, ahead[:size]
            position, ahead = position + size, ahead[size:]


def numbers_of(properties: Mapping[str, str], count: int = 1) -> SequenceRange:
    """Return the sequence numbers of a numbered message, or batch of ``count`` messages. Raises RequestRefused."""
    numbers = sent_range(properties, count)
    if numbers is None:
        producer, number = properties.get(props.PRODUCER_ID, ""), properties.get(props.SEQUENCE, "")
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{props.PRODUCER_ID} {producer[: PRODUCER_ID_LENGTH_MAX + 1]!r} and {props.SEQUENCE} {number[:20]!r} "
            f"are not a name of 1 to {PRODUCER_ID_LENGTH_MAX} characters and a number from 0 to {SEQUENCE_MAX}",
        )
    return numbers


def _check_topic(request: SendRequest, numbers: SequenceRange, topic: str) -> None:
    if topic != request.ext.topic:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{numbers} is in topic {topic}: a sequence number is used for one message only, whatever its topic",
        )
