"""The records of a log entry with sequence numbers: shipped by the leader, or scanned from the entry.

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


SequencedRun = tuple[str, list[int], list[int], list[int], int]
"""Consecutive sequenced records of an entry from one producer, whose numbers ascend: its id, lists with the first
number, the last number and the physical offset of each, and ``store_ms``. It is a plain tuple, since there may be one
for each message.
"""


def join_runs(previous_runs: list[SequencedRun], runs: list[SequencedRun]) -> None:
    """Add runs of one entry behind the known ones; a run that continues the last one lengthens its lists."""
    if previous_runs and runs and previous_runs[-1][0] == runs[0][0] and previous_runs[-1][2][-1] < runs[0][1][0]:
        _, firsts, lasts, positions, store_ms = previous_runs[-1]
        producer, more_firsts, more_lasts, more_positions, more_ms = runs[0]
        assert store_ms == more_ms, f"runs of {producer} in one entry, stored at {store_ms} and {more_ms} ms"
        firsts += more_firsts
        lasts += more_lasts
        positions += more_positions
        runs = runs[1:]
    previous_runs += runs


def runs_of_records(records: Iterable[SequencedRecord]) -> list[SequencedRun]:
    """Return the runs of these records, in their order."""
    runs: list[SequencedRun] = []
    for producer, first, last, position, store_ms in records:
        if not runs or runs[-1][0] != producer or runs[-1][4] != store_ms or runs[-1][2][-1] >= first:
            runs.append((producer, [], [], [], store_ms))
        _, firsts, lasts, positions, _ = runs[-1]
        firsts.append(first)
        lasts.append(last)
        positions.append(position)
    return runs


def sequenced_record(properties: bytes, physical_offset: PhysicalOffset, store_ms: int) -> SequencedRecord | None:
    """Return the sequenced record for these properties; None without a sequence number."""
    sequence_range = stored_range(props.decode(properties.decode("utf-8", "replace")))
    return None if sequence_range is None else SequencedRecord(*sequence_range, physical_offset, store_ms)


def scan_sequenced(body: bytes) -> list[SequencedRecord]:
    """Return the sequenced records of a log entry, in order. Raises records.RecordError."""
    if SEQUENCE_MARK not in body:
        return []
    records: list[SequencedRecord] = []
    view = memoryview(body)
    for at, size in iter_sizes(body):
        if body.find(SEQUENCE_MARK, at, at + size) >= 0:
            record = decode_record(view, offset=at, verify=False)
            if (sequence_range := stored_range(record.properties)) is not None:
                records.append(SequencedRecord(*sequence_range, record.physical_offset, record.store_timestamp_ms))
    return records
