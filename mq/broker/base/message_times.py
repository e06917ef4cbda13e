"""Finds store times of messages in the log, and the first message stored by a clock that ran ahead."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol

from mq.protocol.messages.records import RecordError, decode_record, iter_sizes
from mq.protocol.numbers import PhysicalOffset
from raftlog import EntryKind
from raftlog.log_numbers import LogIndex, index_range
from raftlog.segment import HEADER_BYTES, EntryRef

TOLERANCE_MS: Final = 1000
"""The clocks of replicas differ by less, if they are right."""
NEAR: Final = 16
"""Entries that are tried: entries of the replicas themselves have no store time."""


class StampedLog(Protocol):
    """The part of `raftlog.segment.log_reader.LogReads` that functions of this module need."""

    @property
    def first_index(self) -> LogIndex: ...
    @property
    def last_index(self) -> LogIndex: ...
    def locate(self, index: LogIndex, /) -> EntryRef: ...
    def read_entries(self, first_index: LogIndex, bytes_max: int, /) -> tuple[list[EntryRef], bytes]: ...


def stored_ms(log: StampedLog, indexes: Iterable[LogIndex]) -> int | None:
    """Return the last store time in the first entry with messages, or None. Raises SegmentError, RecordError."""
    for index in indexes:
        [ref, *_], data = log.read_entries(index, 1)
        if ref.kind == EntryKind.NORMAL:
            body = memoryview(data)[HEADER_BYTES:]
            *_, (at, _) = iter_sizes(body)
            return decode_record(body, verify=False, offset=at).store_timestamp_ms
    return None


def newest_ms(log: StampedLog, last: LogIndex) -> int | None:
    """Return the store time of entry ``last``, or of one shortly before it. Raises SegmentError, RecordError."""
    return stored_ms(log, index_range(last, max(log.first_index, last - NEAR) - 1, -1))


def old_until(log: StampedLog, before_ms: int) -> PhysicalOffset | None:
    """Return the physical offset before which all messages are older than ``before_ms``; None if the first is not.

    It is the end of an entry. Reads some entries, since it is a binary search. Raises SegmentError.
    """

    def is_old(indexes: Iterable[LogIndex]) -> bool:
        with suppress(RecordError):
            stamp = stored_ms(log, indexes)
            return stamp is not None and stamp < before_ms
        return False

    low, high = log.first_index, log.last_index
    if high < low or not is_old(index_range(low, min(low + NEAR, high) + 1)):
        return None
    while low < high:
        middle = LogIndex((low + high + 1) // 2)
        if is_old(index_range(middle, max(log.first_index, middle - NEAR) - 1, -1)):
            low = middle
        else:
            high = LogIndex(middle - 1)
    # The time belongs to its last message, or it has none and follows such an entry.
    ref = log.locate(low)
    return PhysicalOffset(ref.pos + ref.size)


def first_from_the_future(log: StampedLog, now_ms: int) -> int | None:
    """Return the physical offset from which on all store times are after ``now_ms``; None if the last one is not.

    A leader whose clock was ahead stored those messages, until now. Reads some entries, since it is a binary search.
    Raises SegmentError.
    """

    def is_ahead(index: LogIndex) -> bool:
        with suppress(RecordError):
            stamp = newest_ms(log, index)
            return stamp is not None and stamp > now_ms + TOLERANCE_MS
        return False

    low, high = log.first_index, log.last_index
    if high < low or not is_ahead(high):
        return None
    while low < high:
        middle = LogIndex((low + high) // 2)
        if is_ahead(middle):
            high = middle
        else:
            low = LogIndex(middle + 1)
    assert low <= log.last_index, f"entries from {low} on are from the future, the last is {log.last_index}"
    return log.locate(low).pos
