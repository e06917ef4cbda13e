"""The annotation that a leader ships with a log entry, so that replicas need not parse its records.

It has up to three sections; empty ones are omitted, except the last:

1. *commands* (`COMMANDS_FORMAT`): the places of metadata commands in the body of the entry;
2. *sequenced records* (`SEQUENCED_FORMAT`): the rows of `mq.store.sequenced`;
3. *runs* (`ANNOTATION_FORMAT`): entries for consume queues, see `mq.store.dispatch`. After sequenced records the
   first byte is omitted.

An annotation is a hint. If it is damaged, or missing as after a restart, the records are scanned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct

from mq.protocol.messages.sequencing import PRODUCER_ID_LENGTH_MAX, RANGE_MAX
from mq.store.dispatch import QUEUE_ENTRY_BYTES, QueueRun
from mq.store.errors import AnnotationDamaged
from mq.store.sequenced import SequencedRecord

ANNOTATION_FORMAT = 1
ANNOTATION_START = bytes((ANNOTATION_FORMAT,))
RUN_HEAD = Struct(">BiqI")
"""Topic length, queue id, first queue offset, number of entries; the topic and the entries follow."""

SEQUENCED_FORMAT = 2
_SEQUENCED_HEAD = Struct(">BI")
"""The format, and the size of the rows in bytes."""
SEQUENCED_ROW = Struct(">Hqqq")
"""Size of the producer id, which follows; first sequence number, physical offset, store time."""
HAS_LAST = 0x8000
"""Added to the size of the producer id if the last sequence number follows it, because it differs from the first."""
_LAST_NUMBER = Struct(">q")

COMMANDS_FORMAT = 3
_COMMANDS_HEAD = Struct(">BI")
"""The format, and the number of rows."""
_COMMANDS_ROW = Struct(">II")

_SEQUENCED_START = bytes((SEQUENCED_FORMAT,))
COMMANDS_START = bytes((COMMANDS_FORMAT,))
"""The beginning of an annotation with commands."""

Span = tuple[int, int]
"""Position of a command in the body of its entry, and its size in bytes."""


def join_annotation(runs: bytes, rows: Sequence[bytes], commands: Sequence[Span]) -> bytes:
    """The annotation of an entry with these runs (from `encode_runs`), rows of sequenced records (from
    `sequenced_row`) and commands.
    """
    if rows:
        runs = _join_rows(rows, runs)
    return join_commands(commands, runs) if commands else runs


def split_annotation(annotation: bytes, body: bytes | memoryview) -> tuple[list[bytes], list[SequencedRecord], bytes]:
    """Return the commands in the body of an entry, its sequenced records, and its runs, not decoded.

    Raises AnnotationDamaged, also for an empty annotation.
    """
    commands: list[bytes] = []
    sequenced_records: list[SequencedRecord] = []
    if annotation[:1] == COMMANDS_START:
        commands, annotation = split_commands(annotation, body)
    if annotation[:1] == _SEQUENCED_START:
        sequenced_records, annotation = split_sequenced(annotation)
    if annotation[:1] != ANNOTATION_START:
        raise AnnotationDamaged("its format is unknown", 0, len(annotation))
    return commands, sequenced_records, annotation


def encode_runs(runs: Iterable[QueueRun]) -> bytes:
    """Return the annotation for a log entry that adds these runs. Never empty, even without runs.

    Covers only consume queues; `join_annotation` adds the rest.
    """
    parts: list[bytes] = [ANNOTATION_START]
    for run in runs:
        topic = run.topic.encode()
        count = len(run.entries) // QUEUE_ENTRY_BYTES
        assert count > 0, f"{run.topic}/{run.queue_id}: a run without entries"
        assert len(run.entries) == count * QUEUE_ENTRY_BYTES, f"run of {len(run.entries)} bytes"
        parts += (RUN_HEAD.pack(len(topic), run.queue_id, run.first_offset, count), topic, run.entries)
    return b"".join(parts)


def decode_runs(annotation: bytes) -> list[QueueRun]:
    """Decode the result of `encode_runs`.

    Raises AnnotationDamaged for anything else, including the empty annotation, which means "scan the records".
    """
    size = len(annotation)
    if not size or annotation[0] != ANNOTATION_FORMAT:
        raise AnnotationDamaged(f"format is not {ANNOTATION_FORMAT}", 0, size)
    runs: list[QueueRun] = []
    position = 1
    while position < size:
        topic_start = position + RUN_HEAD.size
        if topic_start > size:
            raise AnnotationDamaged("it ends within the head of a run", position, size)
        topic_bytes, queue_id, first_offset, count = RUN_HEAD.unpack_from(annotation, position)
        entries_start = topic_start + topic_bytes
        end = entries_start + count * QUEUE_ENTRY_BYTES
        if end > size or count == 0 or queue_id < 0 or first_offset < 0:
            raise AnnotationDamaged(
                f"a run with {count} entries, queue id {queue_id} and offset {first_offset} is impossible",
                position,
                size,
            )
        try:
            topic = annotation[topic_start:entries_start].decode()
        except UnicodeDecodeError as error:
            raise AnnotationDamaged("topic is not UTF-8", topic_start, size) from error
        runs.append(QueueRun(topic, queue_id, first_offset, annotation[entries_start:end]))
        position = end
    return runs


def join_sequenced(rows: Iterable[SequencedRecord], runs: bytes) -> bytes:
    """Return the annotation of an entry with these records; ``runs`` is the annotation without them."""
    return _join_rows([sequenced_row(row) for row in rows], runs)


def sequenced_row(row: SequencedRecord) -> bytes:
    """Encode a sequenced record as a row of an annotation."""
    producer, first, last, physical_offset, store_ms = row
    name = producer.encode()
    if first == last:
        return SEQUENCED_ROW.pack(len(name), first, physical_offset, store_ms) + name
    return SEQUENCED_ROW.pack(len(name) | HAS_LAST, first, physical_offset, store_ms) + name + _LAST_NUMBER.pack(last)


def _join_rows(rows: Sequence[bytes], runs: bytes) -> bytes:
    row_bytes = b"".join(rows)
    assert runs[0] == ANNOTATION_FORMAT, f"an annotation of format {runs[0]} is joined to sequence numbers"
    return b"".join((_SEQUENCED_HEAD.pack(SEQUENCED_FORMAT, len(row_bytes)), row_bytes, runs[1:]))


def split_sequenced(annotation: bytes) -> tuple[list[SequencedRecord], bytes]:
    """Return the arguments of `join_sequenced`, with runs not decoded. Raises AnnotationDamaged."""
    size = len(annotation)
    if size < _SEQUENCED_HEAD.size or annotation[0] != SEQUENCED_FORMAT:
        raise AnnotationDamaged(f"format is not {SEQUENCED_FORMAT}", 0, size)
    _, nbytes = _SEQUENCED_HEAD.unpack_from(annotation)
    at, end = _SEQUENCED_HEAD.size, _SEQUENCED_HEAD.size + nbytes
    rows: list[SequencedRecord] = []
    while at < end <= size:
        name_start = at + SEQUENCED_ROW.size
        if name_start > end:
            break
        name_bytes, first, physical_offset, store_ms = SEQUENCED_ROW.unpack_from(annotation, at)
        at = name_start + (name_bytes & ~HAS_LAST)
        try:
            producer = annotation[name_start:at].decode()
        except UnicodeDecodeError as error:
            raise AnnotationDamaged("a producer id is not UTF-8", name_start, size) from error
        last = first
        if name_bytes & HAS_LAST:
            if at + _LAST_NUMBER.size > end:
                break
            (last,) = _LAST_NUMBER.unpack_from(annotation, at)
            at += _LAST_NUMBER.size
        if first < 0 or not 0 <= last - first < RANGE_MAX or not 1 <= len(producer) <= PRODUCER_ID_LENGTH_MAX:
            raise AnnotationDamaged(
                f"sequence numbers {first} to {last} of {producer[:100]!r} are out of range", name_start, size
            )
        rows.append(SequencedRecord(producer, first, last, physical_offset, store_ms))
    if at != end:
        raise AnnotationDamaged(f"its sequence numbers do not end after the announced {nbytes} bytes", at, size)
    return rows, ANNOTATION_START + annotation[end:]


def join_commands(spans: Sequence[Span], annotation: bytes) -> bytes:
    """Return the annotation of an entry with commands at ``spans``; ``annotation`` is the one without them."""
    assert spans, f"an annotation of {len(annotation)} bytes is joined to no commands"
    return b"".join(
        [_COMMANDS_HEAD.pack(COMMANDS_FORMAT, len(spans)), *[_COMMANDS_ROW.pack(*span) for span in spans], annotation]
    )


def split_commands(annotation: bytes, body: bytes | memoryview) -> tuple[list[bytes], bytes]:
    """Return the commands in an entry's body, and the annotation without them. Raises AnnotationDamaged."""
    size = len(annotation)
    if size < _COMMANDS_HEAD.size or annotation[0] != COMMANDS_FORMAT:
        raise AnnotationDamaged(f"format is not {COMMANDS_FORMAT}", 0, size)
    _, count = _COMMANDS_HEAD.unpack_from(annotation)
    end = _COMMANDS_HEAD.size + count * _COMMANDS_ROW.size
    if not count or end >= size:
        raise AnnotationDamaged(f"it announces {count} commands, and has no room for them", 0, size)
    commands: list[bytes] = []
    for start, nbytes in _COMMANDS_ROW.iter_unpack(annotation[_COMMANDS_HEAD.size : end]):
        if start + nbytes > len(body):
            raise AnnotationDamaged(
                f"a command of {nbytes} bytes at {start} ends after the body of {len(body)} bytes", 0, size
            )
        commands.append(bytes(body[start : start + nbytes]))
    return commands, annotation[end:]
