"""Half messages: they are stored, but invisible until their producer commits the transaction.

They wait in queue 0 of an internal topic and never move. Which of them are open is replicated state, see
`mq.broker.state.completion_marks`; so after any change of leader, an ended one is ended everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mq.broker.consume.cold_reads import ColdReads
from mq.broker.consume.record_reader import RecordSpan
from mq.broker.context import BrokerContext
from mq.broker.state.commands import Command
from mq.broker.state.completion_marks import CompleteEntries, QueueMarks, SkipEntries
from mq.protocol import properties as props
from mq.protocol.messages.records import StoredMessage, decode_record
from mq.protocol.names import HALF_TOPIC
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from raftlog.segment import EntryGone

HALF_QUEUE_ID = 0
DISCARDED_QUEUE_ID = 1
"""Not a real queue: marks with this number record which half messages were rolled back, given up, or deleted."""


class HalfMessages:
    """Reads the half messages of a broker group, and their state.

    Args:
        cold_reads: loads old ones before they are read.
    """

    def __init__(self, context: BrokerContext, *, cold_reads: ColdReads) -> None:
        self._discarded_known = context.limits.waiting.discarded_remembered_max
        self._metadata = context.metadata
        self._store = context.store
        self._read = context.replica.log.pread
        self._load = cold_reads.load

    @property
    def marks(self) -> QueueMarks:
        """The marks of ended half messages. Do not keep them: the first command replaces the object."""
        return self._metadata.marks.get(HALF_TOPIC, HALF_QUEUE_ID)

    def is_discarded(self, offset: QueueOffset) -> bool | None:
        """Whether an ended half message was discarded; None if that is not known any more."""
        marks = self._metadata.marks.get(HALF_TOPIC, DISCARDED_QUEUE_ID)
        place = _discarded_at(offset)
        return marks.is_done(place) if place >= marks.low else None

    def discards(self, offsets: Sequence[QueueOffset]) -> list[Command]:
        """Return the commands that mark half messages as discarded, and drop old marks."""
        if not offsets:
            return []
        assert min(offsets) >= 0, f"half messages are discarded from {min(offsets)} on"
        places = [_discarded_at(offset) for offset in offsets]
        commands: list[Command] = []
        known_from = _discarded_at(max(FIRST_OFFSET, self.marks.low - self._discarded_known)) - 1
        if known_from > self._metadata.marks.get(HALF_TOPIC, DISCARDED_QUEUE_ID).low + 2 * self._discarded_known:
            commands.append(SkipEntries(topic=HALF_TOPIC, queue_id=DISCARDED_QUEUE_ID, offset=known_from))
        commands.append(CompleteEntries(topic=HALF_TOPIC, queue_id=DISCARDED_QUEUE_ID, offsets=places))
        return commands

    @property
    def queue(self) -> ConsumeQueue | None:
        """The queue of half messages; None before the first one."""
        return self._store.get(HALF_TOPIC, HALF_QUEUE_ID)

    @property
    def open_count(self) -> int:
        """The number of open half messages, as far as this replica knows."""
        queue, marks = self.queue, self.marks
        return 0 if queue is None else marks.count_open(queue.max_offset) - marks.count_open(queue.min_offset)

    def span(self, offset: QueueOffset) -> RecordSpan | None:
        """Return physical offset and size of the record at a queue offset, None without one. Raises StoreError."""
        queue = self.queue
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        position, size, _ = QUEUE_ENTRY.unpack(queue.read(offset, 1))
        return position, size

    def read(self, place: RecordSpan) -> bytes | None:
        """Return the record at a place; None if it was deleted. Raises SegmentError."""
        try:
            return self._read(*place)
        except EntryGone:
            return None  # the log was truncated, but the queue was not updated yet

    def load(self, offsets: Iterable[QueueOffset], then: Callable[[], None]) -> bool:
        """Load the messages at ascending queue offsets in a worker thread, and then call ``then``.

        Returns False if they are read without a wait for the disk; then ``then`` is not called. Raises StoreError.
        """
        places = [place for offset in offsets if (place := self.span(offset)) is not None]
        return bool(places) and self._load(places, then)

    def message(self, offset: QueueOffset) -> StoredMessage | None:
        """Return the message at a queue offset, None if deleted. Raises StoreError, SegmentError, RecordError."""
        place = self.span(offset)
        record = None if place is None else self.read(place)
        return None if record is None else decode_record(memoryview(record))


def _discarded_at(offset: QueueOffset) -> QueueOffset:
    """The place of a half message in the marks of discarded ones. Only every second place is used, so that the low end,
    below which all are finished, never moves past one.
    """
    return offset + offset + 1


def is_half(properties: dict[str, str], reconsume_times: int) -> bool:
    """Whether a client's message is a half message.

    A failed message that a consumer sends to its retry topic may still have the property, but is none.
    """
    if reconsume_times > 0 and props.DELAY in properties:
        return False
    return properties.get(props.TRANSACTION_PREPARED, "").lower() == "true"
