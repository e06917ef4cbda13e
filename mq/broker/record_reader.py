"""Records of one queue out of the log: read in as few pieces as they lie in, and chosen by their properties."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mq.filter.sql import SqlFilter
from mq.protocol.records import RecordError, properties_text

Place = tuple[int, int]
"""Physical offset and size of a record."""

_GAP_BYTES_MAX = 4096
"""Bytes of other queues that are read along rather than begin another read."""
_CHUNK_BYTES = 128 * 1024
_SCAN_BYTES_MAX = 1024 * 1024


class Selection(NamedTuple):
    """Records that were wanted, and how many were looked at for them."""

    records: list[bytes]
    nbytes: int
    scanned: int
    end: int
    """Physical offset behind the last record that was looked at."""
    wanted: int
    """Of the wanted records, which may come joined."""


class RecordReader:
    """Reads records.

    Args:
        read: ``read(physical_offset, nbytes)`` of the log.
        segment_bytes: no read crosses a multiple of this.
    """

    def __init__(self, read: Callable[[int, int], bytes], segment_bytes: int) -> None:
        self._read = read
        self._segment_bytes = segment_bytes

    def read(self, places: list[Place]) -> bytes:
        """The records at these places, in order, back to back. Raises SegmentError."""
        start, size = places[0]
        end, _ = last = places[-1]
        end += last[1]
        segment_bytes = self._segment_bytes
        nbytes = sum([size for _, size in places])
        if end - start == nbytes and start // segment_bytes == (end - 1) // segment_bytes:
            return self._read(start, nbytes)
        parts: list[bytes] = []
        first = 0
        while first < len(places):
            start, size = places[first]
            end = start + size
            in_segment = start - start % segment_bytes + segment_bytes
            following = first + 1
            while following < len(places):
                position, size = places[following]
                if not 0 <= position - end <= _GAP_BYTES_MAX or position >= in_segment:
                    break
                end = position + size
                following += 1
            data = self._read(start, end - start)
            parts += [data[at - start : at - start + size] for at, size in places[first:following]]
            first = following
        return b"".join(parts)

    def select(self, places: list[Place], sql: SqlFilter, count_max: int, bytes_max: int) -> Selection:
        """The first of these records whose properties satisfy ``sql``; the first wanted one however large it is.

        Stops after a megabyte. Raises SegmentError.
        """
        chosen: list[bytes] = []
        nbytes = scanned = scanned_bytes = end = 0
        while scanned < len(places) and scanned_bytes < _SCAN_BYTES_MAX:
            chunk = self._chunk(places, scanned)
            data = self.read(chunk)
            at = 0
            for position, size in chunk:
                if _is_wanted(data, at, sql):
                    if len(chosen) == count_max or (chosen and nbytes + size > bytes_max):
                        return Selection(chosen, nbytes, scanned, end, len(chosen))
                    chosen.append(data[at : at + size])
                    nbytes += size
                at += size
                scanned += 1
                end = position + size
            scanned_bytes += len(data)
        return Selection(chosen, nbytes, scanned, end, len(chosen))

    @staticmethod
    def _chunk(places: list[Place], first: int) -> list[Place]:
        last, nbytes = first, 0
        while last < len(places) and (last == first or nbytes + places[last][1] <= _CHUNK_BYTES):
            nbytes += places[last][1]
            last += 1
        return places[first:last]


def _is_wanted(data: bytes, at: int, sql: SqlFilter) -> bool:
    try:
        text = properties_text(data, at)
    except RecordError:
        return True  # damaged on this disk: the consumer finds out, and asks another replica
    return sql.matches_text(text)
