"""The consume queue entries of a committed log entry: computed once by the leader and shipped, or scanned from the
records.

The body of a log entry is one or more message records back to back. Each record that is visible to consumers adds one
entry of 20 bytes to its queue. Consecutive entries of one queue form a *run*. The leader has all fields when it builds
the entry, so it ships the runs as the entry's annotation and followers copy instead of parsing (measured: a follower
spends 0.4 us a message instead of 2). After a restart there is no annotation and the records are scanned; both ways
give identical runs.
"""

from __future__ import annotations

import sys
from array import array
from struct import Struct
from typing import NamedTuple

import msgspec

from mq.compiled import checked_records
from mq.protocol import names, properties
from mq.protocol.messages import records
from mq.protocol.messages.delay import TURNS_MS
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.errors import RunInvalid

META_TOPIC = names.METADATA_TOPIC
"""Internal topic whose record bodies are commands of the replicated metadata. It has no consume queue."""

QUEUE_ENTRY = Struct(">qiq")
"""One consume queue entry: physical offset, size of the record in bytes, tag code.

The tag code is the hash of the message's tags; in queues of waiting messages it is the time of the message's turn in
epoch milliseconds (`mq.protocol.messages.delay.TURNS_MS`).
"""

QUEUE_ENTRY_BYTES = QUEUE_ENTRY.size

QUEUE_OFFSET_MAX = 2**62
"""Queue offsets stay below this, so file names have 20 digits, and offsets fit into 64 bits on clients."""

_ENTRY_WORDS = QUEUE_ENTRY_BYTES // 4
_SIZE_WORD = 2

_META_TOPIC_BYTES = META_TOPIC.encode()
_LITE_PLACE = f"{properties.LITE_PLACE}\x01".encode()
_LITE_QUEUE = f"{properties.LITE_QUEUE}\x01".encode()
_LITE_OFFSET = f"{properties.LITE_OFFSET}\x01".encode()
_TURNS_MS = {topic.encode(): turn_ms for topic, turn_ms in TURNS_MS.items()}


def entry_sizes(entries: bytes) -> array[int]:
    """Return the record sizes in consume queue entries; takes a third of the time of unpacking the entries."""
    words = array("i", entries)
    if sys.byteorder == "little":
        words.byteswap()
    return words[_SIZE_WORD::_ENTRY_WORDS]


class QueueRun(msgspec.Struct, frozen=True, gc=False):
    """Consecutive entries of one consume queue.

    ``first_offset`` is the queue offset of the first entry; ``entries`` are 20 bytes each (`QUEUE_ENTRY`).
    """

    topic: str
    queue_id: int
    first_offset: QueueOffset
    entries: bytes

    @property
    def end_offset(self) -> QueueOffset:
        """Queue offset one past the last entry."""
        return self.first_offset + len(self.entries) // QUEUE_ENTRY_BYTES


class RunBuilder:
    """Collects the runs of one log entry, queue by queue in order of first appearance.

    For `scan_runs`; the leader, which builds the entry, collects identical ones.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], tuple[QueueOffset, bytearray]] = {}

    def add(
        self,
        topic: str,
        queue_id: int,
        queue_offset: QueueOffset,
        physical_offset: PhysicalOffset,
        size: int,
        tag_code: int,
    ) -> None:
        """Add one record's entry.

        Raises RunInvalid if the offsets of its queue are not consecutive within the log entry, or the tag code has
        more than 64 bits.
        """
        key = (topic, queue_id)
        if not -(2**63) <= tag_code < 2**63:
            raise RunInvalid(
                topic,
                queue_id,
                f"the record at {physical_offset} has the tag code {tag_code}: expected at most 64 bits",
            )
        entry = QUEUE_ENTRY.pack(physical_offset, size, tag_code)
        run = self._runs.get(key)
        if run is None:
            self._runs[key] = (queue_offset, bytearray(entry))
            return
        first_offset, entries = run
        expected = first_offset + len(entries) // QUEUE_ENTRY_BYTES
        if queue_offset != expected:
            raise RunInvalid(topic, queue_id, f"offset {queue_offset} follows {expected - 1} in one entry")
        entries += entry

    def runs(self) -> list[QueueRun]:
        """Return the runs gathered so far."""
        return [
            QueueRun(topic, queue_id, first_offset, bytes(entries))
            for (topic, queue_id), (first_offset, entries) in self._runs.items()
        ]


def enters_queue(sys_flag: int) -> bool:
    """Whether a record with this sys_flag is visible to consumers: prepared and rolled-back ones are not."""
    return sys_flag & records.TRANSACTION_MASK not in (records.PREPARED, records.ROLLBACK)


class LitePlace(NamedTuple):
    """The queue of a lite topic, and the offset in it, of a message that is in the queue of its topic, too."""

    queue: str
    offset: QueueOffset

    def encode(self, physical_offset: PhysicalOffset) -> bytes:
        """The properties that a broker adds to a message of a lite topic; always of the same length for one queue."""
        assert 0 <= self.offset < QUEUE_OFFSET_MAX, f"{self.queue}: offset {self.offset}"
        return b"%b%b\x02%b%019d\x02%b%016x\x02" % (
            _LITE_QUEUE,
            self.queue.encode(),
            _LITE_OFFSET,
            self.offset,
            _LITE_PLACE,
            physical_offset,
        )

    @staticmethod
    def find(text: bytes, physical_offset: PhysicalOffset) -> LitePlace | None:
        """The place in the properties of the record at this physical offset, None without one.

        A copy of such a record, wherever it is stored, has none, nor a message whose sender wrote such properties.
        """
        if properties.value_of(text, _LITE_PLACE) != b"%016x" % physical_offset:
            return None
        offset = properties.value_of(text, _LITE_OFFSET)
        return LitePlace(properties.value_of(text, _LITE_QUEUE).decode(), QueueOffset(int(offset)))


def check_entry(body: memoryview, position: int) -> None:
    """Raises ValueError if the body of a log entry, at this physical offset, is not a chain of records.

    Contents are not checked: contradictions are detected when the entry is applied (`scan_runs`).
    """
    try:
        records.check_records(body, PhysicalOffset(position), checked_records(body, position))
    except records.RecordError as error:
        raise ValueError(str(error)) from error


def scan_runs(body: bytes | memoryview, begin: PhysicalOffset) -> tuple[list[QueueRun], list[bytes]]:
    """Derive the queue entries and the metadata commands from the records of a log entry.

    Takes the body of one log entry, offsets patched in, and the physical offset of its first byte. Returns the runs,
    equal to those shipped by the leader, and the bodies of records of `META_TOPIC` in order.

    Raises:
        records.RecordError: the body is not a chain of records with correct positions.
        RunInvalid: its records contradict one another.
        UnicodeDecodeError: a topic is not valid UTF-8.
    """
    view = memoryview(body)
    builder = RunBuilder()
    commands: list[bytes] = []
    topics: dict[bytes, str] = {}
    for position, size, queue_id, queue_offset, physical_offset, sys_flag, topic, tag_code in records.scan_fixed(body):
        records.check_place(position, begin + position, physical_offset)
        if topic == _META_TOPIC_BYTES:
            commands.append(records.decode_record(view[position : position + size]).body)
        elif enters_queue(sys_flag):
            name = topics.get(topic)
            if name is None:
                name = topics[topic] = topic.decode()
            if (turn_ms := _TURNS_MS.get(topic)) is not None:
                record = records.split_record(bytes(view[position : position + size]))
                tag_code = turn_ms(record.store_timestamp_ms, queue_id, record.properties)
            builder.add(name, queue_id, queue_offset, physical_offset, size, tag_code)
            if sys_flag & records.IN_LITE_TOPIC:
                text = records.split_record(bytes(view[position : position + size])).properties
                if (place := LitePlace.find(text, physical_offset)) is not None:
                    builder.add(place.queue, 0, place.offset, physical_offset, size, tag_code)
    return builder.runs(), commands
