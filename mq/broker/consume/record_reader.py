"""Reads records of one queue from the log in as few reads as possible, and filters them by their properties."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import NamedTuple

from mq.filter.sql import SqlFilter
from mq.protocol.messages.records import RecordError, properties_text
from mq.protocol.numbers import LOG_BEGIN, PhysicalOffset
from mq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES

RecordSpan = tuple[PhysicalOffset, int]
"""Physical offset and size of a record."""

_PLACES = Struct(">qi8x").iter_unpack
"""Unpacks the places from consume queue entries."""

_CHUNK_BYTES = 128 * 1024
_CHUNK_COUNT = 64
SCAN_BYTES_MAX = 1024 * 1024


class Selection(NamedTuple):
    """The matching records, and the number of examined ones."""

    records: list[bytes]
    nbytes: int
    scan_count: int
    end: PhysicalOffset
    """Physical offset after the last examined record."""
    match_count: int
    """Number of matching records; they may be joined."""
    bits: int = 0
    """A bitmap of `RecordReader.select`: bit ``i`` is set if the examined record number ``i`` matches."""


class RecordReader:
    """Reads records of a queue from the log.

    Args:
        read: ``read(physical_offset, nbytes)`` of the log.
        read_each: the same for ascending places, in as few reads as possible.
        segment_bytes: no read crosses a multiple of this.
    """

    def __init__(
        self,
        read: Callable[[PhysicalOffset, int], bytes],
        read_each: Callable[[list[RecordSpan]], Sequence[bytes | memoryview]],
        segment_bytes: int,
    ) -> None:
        self._read = read
        self._read_each = read_each
        self._segment_bytes = segment_bytes

    def read(self, places: list[RecordSpan], nbytes: int) -> bytes:
        """Return the records at ``places`` joined, ``nbytes`` in total. Raises SegmentError."""
        assert places, f"{nbytes} bytes of no records are read"
        last, size = places[-1]
        data = self._read_together(places[0][0], last, size, nbytes) or b"".join(self._read_each(places))
        assert len(data) == nbytes, f"{len(places)} records from {places[0][0]} on have {len(data)} bytes, not {nbytes}"
        return data

    def read_entries(self, entries: bytes, nbytes: int) -> bytes:
        """Return the records of consume queue entries, as `read` does."""
        begin, _, _ = QUEUE_ENTRY.unpack_from(entries)
        last, size, _ = QUEUE_ENTRY.unpack_from(entries, -QUEUE_ENTRY_BYTES)
        data = self._read_together(begin, last, size, nbytes) or b"".join(self._read_each(list(_PLACES(entries))))
        assert len(data) == nbytes, f"records from {begin} to {last} have {len(data)} bytes, not {nbytes}"
        return data

    def _read_together(self, begin: PhysicalOffset, last: PhysicalOffset, size: int, nbytes: int) -> bytes:
        if last + size - begin == nbytes and begin // self._segment_bytes == last // self._segment_bytes:
            return self._read(begin, nbytes)
        return b""

    def select(self, places: Iterator[RecordSpan], sql: SqlFilter, count_max: int, bytes_max: int) -> Selection:
        """Return the first records whose properties satisfy ``sql``, and always the first match, however large.

        Stops after a megabyte. Raises SegmentError.
        """
        records: list[bytes] = []
        nbytes = passes = scanned_bytes = bits = 0
        end = LOG_BEGIN
        while scanned_bytes < SCAN_BYTES_MAX and (chunk := _chunk(places)):
            for (position, size), record in zip(chunk, self._read_each(chunk), strict=True):
                if _is_wanted(record, sql):
                    if len(records) == count_max or (records and nbytes + size > bytes_max):
                        return Selection(records, nbytes, passes, end, len(records), bits)
                    records.append(bytes(record))
                    bits |= 1 << passes
                    nbytes += size
                passes += 1
                scanned_bytes += size
                end = position + size
        assert bits.bit_count() == len(records), f"{len(records)} of {passes} messages match, {bits.bit_count()} marked"
        return Selection(records, nbytes, passes, end, len(records), bits)


def _chunk(places: Iterator[RecordSpan]) -> list[RecordSpan]:
    """Take the next places: enough to be worth a read, but not more than may be needed."""
    chunk: list[RecordSpan] = []
    room = _CHUNK_BYTES
    for place in islice(places, _CHUNK_COUNT):
        chunk.append(place)
        room -= place[1]
        if room <= 0:
            break
    return chunk


def _is_wanted(record: bytes | memoryview, sql: SqlFilter) -> bool:
    try:
        text = properties_text(record)
    except RecordError:
        return True  # damaged on this disk: the consumer gets an error and uses another replica
    return sql.matches_text(text)
