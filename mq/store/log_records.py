"""Reads single records of the log by physical offset, for lookups. Pulls read whole ranges themselves."""

from __future__ import annotations

import struct
from collections.abc import Callable
from struct import Struct
from typing import Protocol

from mq.protocol.messages.records import BORN_HOST_IPV6, FIXED, RecordError, scan_fixed
from mq.protocol.numbers import PhysicalOffset
from mq.store.dispatch import META_TOPIC
from raftlog import EntryKind, SegmentLog
from raftlog.log_numbers import LogIndex
from raftlog.segment import HEADER_BYTES, EntryGone, StorageCorrupt
from raftlog.segment.codec import HEADER

_META_TOPIC = META_TOPIC.encode()
_SIZE = Struct(">i")
_TIMES = Struct(">i8x8sq")
"""System flag, born time, IPv4 born host, store time; an IPv6 host is 12 bytes longer."""
_TIMES_AT = 36
_TIMES_V6 = Struct(">i8x20sq")


class ArchivedPart(Protocol):
    """The part of a log that is only in an archive, from ``begin_pos`` on. Raises SegmentError until it is loaded."""

    @property
    def begin_pos(self) -> int:
        """Return the physical offset at which the part begins."""

    def pread(self, pos: int, length: int, /) -> bytes:
        """Return bytes of one entry."""

    def block_at(self, pos: int, /) -> tuple[int, bytes]:
        """The entries around a physical offset, and where they begin."""


class LogRecords:
    """Reads committed records. For the event loop's thread only.

    Args:
        applied_index: the last entry that readers may see.
        archived_part: the part before the log, in an archive; None without. It raises SegmentError until it is loaded.
    """

    def __init__(
        self, log: SegmentLog, applied_index: Callable[[], LogIndex], archived_part: ArchivedPart | None = None
    ) -> None:
        self._log = log
        self._archived_part = archived_part
        self._applied_index = applied_index

    def is_ahead(self, physical_offset: PhysicalOffset) -> bool:
        """Whether the offset is beyond the entries that are known to be committed."""
        if physical_offset >= self._log.end_pos:
            return True
        entry = self._log.entry_at(physical_offset)
        return entry is not None and entry.index > self._applied_index()

    def at(self, physical_offset: PhysicalOffset) -> bytes | None:
        """Return the record that begins at an offset; None if there is none, or it is an internal one.

        Any number is allowed: the log verifies where entries begin, and entries where their records do.

        Raises:
            StorageCorrupt, StorageFailed: the log cannot be read there. Also the errors of the archive.
        """
        if self.is_archived(physical_offset):
            return self._in_archive(physical_offset)
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
        return self._record(body, target, entry.pos)

    def is_archived(self, physical_offset: PhysicalOffset) -> bool:
        """Whether a record that begins at this offset is only in the archive."""
        part = self._archived_part
        return part is not None and part.begin_pos <= physical_offset < self._log.base_pos

    def _in_archive(self, physical_offset: PhysicalOffset) -> bytes | None:
        """Read a record in the archive, like `at`; everything there is committed."""
        assert self._archived_part is not None, "there is no archive"
        begin, block = self._archived_part.block_at(physical_offset)
        at, place = 0, physical_offset - begin
        while at < place:
            kind, size, *_ = HEADER.unpack_from(block, at)
            if place < at + size:
                body = block[at + HEADER_BYTES : at + size]
                target = place - at - HEADER_BYTES
                return self._record(body, target, begin + at) if kind == EntryKind.NORMAL and target >= 0 else None
            at += size
        return None

    def _record(self, body: bytes, target: int, entry_pos: int) -> bytes | None:
        """The record at an offset of the body of an entry; None if there is none, or it is an internal one."""
        at = 0
        try:
            while at < target:
                (size,) = _SIZE.unpack_from(body, at)
                at += max(size, FIXED)
            if at != target:
                return None
            _, size, _, _, _, _, topic, _ = next(scan_fixed(memoryview(body)[at:]))
        except (RecordError, struct.error, StopIteration) as error:
            raise StorageCorrupt(self._log.files.directory, entry_pos + HEADER_BYTES + at, str(error)) from error
        return None if topic == _META_TOPIC else body[at : at + size]

    def store_time_ms(self, physical_offset: PhysicalOffset) -> int:
        """Store time of the record at a physical offset, which a consume queue names; epoch milliseconds.

        Raises EntryGone, StorageCorrupt, StorageFailed, and the errors of the archive.
        """
        return self.sender(physical_offset)[1]

    def sender(self, physical_offset: PhysicalOffset) -> tuple[bytes, int]:
        """The address and port of a record's sender, as stored, and the store time. Raises as `store_time_ms`."""
        if self._archived_part is not None and physical_offset < self._log.base_pos:
            data = self._archived_part.pread(physical_offset + _TIMES_AT, _TIMES_V6.size)
        else:
            data = self._log.pread(physical_offset + _TIMES_AT, _TIMES_V6.size)
        sys_flag, host, store_ms = _TIMES.unpack_from(data)
        if sys_flag & BORN_HOST_IPV6:
            _, host, store_ms = _TIMES_V6.unpack(data)
        return host, store_ms
