"""The records of a log entry that have sequence numbers: shipped by the leader, or scanned from the records.

These are all records with a producer id and a sequence number in their properties, including the broker's own copies of
a message. The first record of a batch with numbers represents all of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mq.protocol import properties as props
from mq.protocol.messages.records import decode_record, iter_sizes
from mq.protocol.messages.sequencing import SEQUENCE_MARK, stored_range
from mq.protocol.numbers import PhysicalOffset


class SequencedRecord(NamedTuple):
    """A record that begins messages with these sequence numbers. ``store_ms`` is in epoch milliseconds."""

    producer: str
    first: int
    last: int
    physical_offset: PhysicalOffset
    store_ms: int


class SequencedRun(NamedTuple):
    """Consecutive sequenced records of an entry from one producer, a row of each list for each."""

    producer: str
    firsts: list[int]
    lasts: list[int]
    positions: list[int]
    store_ms: int


def join_runs(runs: Iterable[SequencedRun]) -> list[SequencedRun]:
    """The same records in runs that are as long as possible. It may lengthen the lists of the given runs."""
    joined: list[SequencedRun] = []
    for run in runs:
        count = len(run.firsts)
        assert count == len(run.lasts) == len(run.positions), f"{count} first numbers of {run.producer} are no rows"
        if joined and (last := joined[-1]).producer == run.producer and last.store_ms == run.store_ms:
            last.firsts.extend(run.firsts)
            last.lasts.extend(run.lasts)
            last.positions.extend(run.positions)
        else:
            joined.append(run)
    return joined


def runs_of_records(records: Iterable[SequencedRecord]) -> list[SequencedRun]:
    """The runs of these records, in their order."""
    return join_runs(
        SequencedRun(producer, [first], [last], [position], store_ms)
        for producer, first, last, position, store_ms in records
    )


def sequenced_record(properties: bytes, physical_offset: PhysicalOffset, store_ms: int) -> SequencedRecord | None:
    """The sequenced record for these properties, None without a sequence number."""
    found = stored_range(props.decode(properties.decode("utf-8", "replace")))
    return None if found is None else SequencedRecord(*found, physical_offset, store_ms)


def scan_sequenced(body: bytes) -> list[SequencedRecord]:
    """The sequenced records of a log entry, in order. Raises records.RecordError."""
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
