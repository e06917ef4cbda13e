"""Reads single records of the log by physical offset, for lookups; pulls read whole ranges themselves."""

from __future__ import annotations

import struct
from collections.abc import Callable
from struct import Struct

from mq.protocol.numbers import PhysicalOffset
from mq.protocol.records import BORN_HOST_IPV6, FIXED, RecordError, scan_fixed
from mq.store.dispatch import META_TOPIC
from raftlog import EntryKind, SegmentLog
from raftlog.log_numbers import LogIndex
from raftlog.segment import HEADER_BYTES, EntryGone, StorageCorrupt

_META_TOPIC = META_TOPIC.encode()
_SIZE = Struct(">i")
_TIMES = Struct(">i8x8xq")
"""System flag, born time, IPv4 born host, store time; an IPv6 host is 12 bytes longer."""
_TIMES_AT = 36
_TIMES_V6 = Struct(">i8x20xq")


class LogRecords:
    """Reads committed records. Used on the event loop's thread only.

    Args:
        applied_index: the last entry that readers may see.
    """

    def __init__(self, log: SegmentLog, applied_index: Callable[[], LogIndex]) -> None:
        self._log = log
        self._applied_index = applied_index

    def is_ahead(self, physical_offset: PhysicalOffset) -> bool:
        """Whether the offset is beyond what is known to be committed."""
        if physical_offset >= self._log.end_pos:
            return True
        entry = self._log.entry_at(physical_offset)
        return entry is not None and entry.index > self._applied_index()

    def at(self, physical_offset: PhysicalOffset) -> bytes | None:
        """The record that begins there; None if there is none, or it is an internal one.

        Any number is allowed: the log verifies where entries begin, and entries where their records do.

        Raises:
            StorageCorrupt, StorageFailed: the log cannot be read there.
        """
        try:
            entry = self._log.entry_at(physical_offset)
            if entry is None or entry.kind != EntryKind.NORMAL or entry.index > self._applied_index():
                return None
            end = entry.pos + entry.size
            assert entry.pos <= physical_offset < end, f"{physical_offset} is not in the entry {entry.pos} to {end}"
            target = physical_offset - entry.pos - HEADER_BYTES
            if target < 0:
                return None
            body = self._log.pread(entry.pos + HEADER_BYTES, entry.size - HEADER_BYTES)
        except EntryGone:
            return None
        at = 0
        try:
            while at < target:
                (size,) = _SIZE.unpack_from(body, at)
                at += max(size, FIXED)
            if at != target:
                return None
            _, size, _, _, _, _, topic, _ = next(scan_fixed(memoryview(body)[at:]))
        except (RecordError, struct.error, StopIteration) as error:
            raise StorageCorrupt(self._log.files.directory, entry.pos + HEADER_BYTES + at, str(error)) from error
        return None if topic == _META_TOPIC else body[at : at + size]

    def store_time_ms(self, physical_offset: PhysicalOffset) -> int:
        """Store time of the record that begins there, a place from a consume queue; epoch milliseconds.

        Raises EntryGone, StorageCorrupt, StorageFailed.
        """
        data = self._log.pread(physical_offset + _TIMES_AT, _TIMES_V6.size)
        sys_flag, store_ms = _TIMES.unpack_from(data)
        if sys_flag & BORN_HOST_IPV6:
            _, store_ms = _TIMES_V6.unpack(data)
        return int(store_ms)
