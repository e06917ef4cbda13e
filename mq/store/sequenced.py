"""Which records of a log entry have a sequence number: shipped by the leader, or scanned from the records.

Like the runs of `mq.store.dispatch`, with which they share an entry's annotation: it begins with
`SEQUENCED_FORMAT` then, and what follows the rows are the runs. Every record with a producer id and a sequence number
in its properties is one, copies that the broker itself made of a message among them. The first record of a numbered
batch is one for all of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from mq.protocol import properties as props
from mq.protocol.records import decode_record, iter_sizes
from mq.protocol.sequencing import PRODUCER_ID_LENGTH_MAX, RANGE_MAX, SEQUENCE_MARK, stored_range
from mq.store.dispatch import ANNOTATION_FORMAT, ANNOTATION_START
from mq.store.errors import AnnotationDamaged

SEQUENCED_FORMAT = 2
_HEAD = Struct(">BI")
"""The format, and bytes of the rows."""
_ROW = Struct(">Hqqq")
"""Bytes of the producer id, which follows; first sequence number, physical offset, store time."""
_HAS_LAST = 0x8000
"""Added to the bytes of the producer id if the last sequence number follows that: it is not the first one."""
_LAST = Struct(">q")


class SequencedRecord(NamedTuple):
    """A record that begins messages with these sequence numbers. ``store_ms`` is in epoch milliseconds."""

    producer: str
    first: int
    last: int
    physical_offset: int
    store_ms: int


def sequenced_record(properties: bytes, physical_offset: int, store_ms: int) -> SequencedRecord | None:
    """What a record with these properties is, None without a sequence number."""
    found = stored_range(props.decode(properties.decode("utf-8", "replace")))
    return None if found is None else SequencedRecord(*found, physical_offset, store_ms)


def scan_sequenced(body: bytes) -> list[SequencedRecord]:
    """Those among the records of a log entry, in their order. Raises records.RecordError."""
    if SEQUENCE_MARK not in body:
        return []
    found: list[SequencedRecord] = []
    view = memoryview(body)
    for at, size in iter_sizes(body):
        if body.find(SEQUENCE_MARK, at, at + size) >= 0:
            record = decode_record(view, offset=at, verify=False)
            if (given := stored_range(record.properties)) is not None:
                found.append(SequencedRecord(*given, record.physical_offset, record.store_timestamp_ms))
    return found


def join_sequenced(rows: Iterable[SequencedRecord], runs: bytes) -> bytes:
    """The annotation of an entry with these records, whose annotation without them is ``runs``."""
    packed: list[bytes] = []
    for producer, first, last, physical_offset, store_ms in rows:
        name = producer.encode()
        if first == last:
            packed += (_ROW.pack(len(name), first, physical_offset, store_ms), name)
        else:
            packed += (_ROW.pack(len(name) | _HAS_LAST, first, physical_offset, store_ms), name, _LAST.pack(last))
    encoded = b"".join(packed)
    assert runs[0] == ANNOTATION_FORMAT, f"an annotation of format {runs[0]} is joined to sequence numbers"
    return b"".join((_HEAD.pack(SEQUENCED_FORMAT, len(encoded)), encoded, runs[1:]))


def split_sequenced(annotation: bytes) -> tuple[list[SequencedRecord], bytes]:
    """What was given to `join_sequenced`. Raises AnnotationDamaged; the runs are not looked at."""
    size = len(annotation)
    if size < _HEAD.size or annotation[0] != SEQUENCED_FORMAT:
        raise AnnotationDamaged(f"format is not {SEQUENCED_FORMAT}", 0, size)
    _, nbytes = _HEAD.unpack_from(annotation)
    at, end = _HEAD.size, _HEAD.size + nbytes
    rows: list[SequencedRecord] = []
    while at < end <= size:
        name_start = at + _ROW.size
        if name_start > end:
            break
        name_bytes, first, physical_offset, store_ms = _ROW.unpack_from(annotation, at)
        at = name_start + (name_bytes & ~_HAS_LAST)
        try:
            producer = annotation[name_start:at].decode()
        except UnicodeDecodeError as error:
            raise AnnotationDamaged("a producer id is not UTF-8", name_start, size) from error
        last = first
        if name_bytes & _HAS_LAST:
            if at + _LAST.size > end:
                break
            (last,) = _LAST.unpack_from(annotation, at)
            at += _LAST.size
        if first < 0 or not 0 <= last - first < RANGE_MAX or not 1 <= len(producer) <= PRODUCER_ID_LENGTH_MAX:
            raise AnnotationDamaged(f"sequence numbers {first} to {last} of {producer[:100]!r}", name_start, size)
        rows.append(SequencedRecord(producer, first, last, physical_offset, store_ms))
    if at != end:
        raise AnnotationDamaged(f"{nbytes} bytes of sequence numbers", at, size)
    return rows, ANNOTATION_START + annotation[end:]
