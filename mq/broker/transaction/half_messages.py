"""Half messages: stored, but nobody sees them until their producer says what became of its transaction.

They wait in queue 0 of a topic of their own and never move. Which of them are still open is replicated state, see
`mq.broker.state.completion_marks`; so whatever happens to the leader, an ended one is ended everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from mq.broker.context import BrokerContext
from mq.broker.state.commands import Command
from mq.broker.state.completion_marks import CompleteEntries, QueueMarks, SkipEntries
from mq.protocol import properties as props
from mq.protocol.names import HALF_TOPIC
from mq.protocol.records import StoredMessage, decode_record
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from raftlog.segment import EntryGone

HALF_QUEUE_ID = 0
DISCARDED_QUEUE_ID = 1
"""No queue of the topic: under this number marks say which half messages were rolled back or given up."""
DISCARDED_KNOWN = 500_000
"""Of so many half messages before the first open one that is known, at least; that takes 250 KB of marks at most."""

IMMUNITY_MS_MAX = 24 * 3_600_000
"""So long a producer can put off being asked about a message."""


class HalfMessages:
    """The half messages of a broker group, as far as they are committed."""

    def __init__(self, context: BrokerContext) -> None:
        self._metadata = context.metadata
        self._store = context.store
        self._read = context.replica.log.pread

    @property
    def marks(self) -> QueueMarks:
        """Which of them are ended. Not to be kept: it is another one after the first command."""
        return self._metadata.marks.of(HALF_TOPIC, HALF_QUEUE_ID)

    def is_discarded(self, offset: int) -> bool | None:
        """Whether an ended half message was ended so that nobody sees it; None if that is not known any more."""
        discarded = self._metadata.marks.of(HALF_TOPIC, DISCARDED_QUEUE_ID)
        place = _discarded_at(offset)
        return discarded.is_done(place) if place >= discarded.low else None

    def discards(self, offsets: Sequence[int]) -> list[Command]:
        """The commands that note that these are, and forget what is old."""
        if not offsets:
            return []
        places = [_discarded_at(offset) for offset in offsets]
        commands: list[Command] = []
        known_from = _discarded_at(max(0, self.marks.low - DISCARDED_KNOWN)) - 1
        if known_from > self._metadata.marks.of(HALF_TOPIC, DISCARDED_QUEUE_ID).low + 2 * DISCARDED_KNOWN:
            commands.append(SkipEntries(topic=HALF_TOPIC, queue_id=DISCARDED_QUEUE_ID, offset=known_from))
        commands.append(CompleteEntries(topic=HALF_TOPIC, queue_id=DISCARDED_QUEUE_ID, offsets=places))
        return commands

    @property
    def queue(self) -> ConsumeQueue | None:
        """Their queue, None before the first one."""
        return self._store.get(HALF_TOPIC, HALF_QUEUE_ID)

    @property
    def open_count(self) -> int:
        """How many of them nobody has ended, as far as this replica knows."""
        queue, marks = self.queue, self.marks
        return 0 if queue is None else marks.count_open(queue.max_offset) - marks.count_open(queue.min_offset)

    def place(self, offset: int) -> tuple[int, int] | None:
        """Physical offset and size of the record at a queue offset, None if there is none. Raises StoreError."""
        queue = self.queue
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        position, size, _ = QUEUE_ENTRY.unpack(queue.read(offset, 1))
        return position, size

    def read(self, place: tuple[int, int]) -> bytes | None:
        """The record at a place, None if it is gone. Raises SegmentError."""
        try:
            return self._read(*place)
        except EntryGone:
            return None  # the log was shortened, and the queue was not told yet

    def message(self, offset: int) -> StoredMessage | None:
        """The message at a queue offset, None if it is gone. Raises StoreError, SegmentError, RecordError."""
        place = self.place(offset)
        record = None if place is None else self.read(place)
        return None if record is None else decode_record(memoryview(record))


def _discarded_at(offset: int) -> int:
    """Where the marks of discarded ones have a half message: every second place, so that none becomes the low end of a
    row that is marked, below which all count as done."""
    return 2 * offset + 1


def immunity_ms(text: str | None, timeout_ms: int) -> int:
    """How long after its birth nobody is to be asked about a message; ``text`` is its property, in seconds.

    What is not a number, or -1, stands for ``timeout_ms``; without the property it is 0.
    """
    if text is None:
        return 0
    try:
        seconds = int(text)
    except ValueError:
        return timeout_ms
    return timeout_ms if seconds == -1 else min(max(seconds, 0) * 1000, IMMUNITY_MS_MAX)


def is_half(properties: dict[str, str], reconsume_times: int) -> bool:
    """Whether a message that a client sends is half a transaction.

    One that a consumer could not handle and sends to itself for later may still have the property, and is none.
    """
    if reconsume_times > 0 and props.DELAY in properties:
        return False
    return properties.get(props.TRANSACTION_PREPARED, "").lower() == "true"
