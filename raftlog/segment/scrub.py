"""Slowly verifies a running log, to find damage while other replicas still have the data.

Disks lose bits in files that are not read for months. A pass verifies everything from the base up to a committed and
synced entry, which never changes again, in slices short enough for a thread next to the event loop.

Files are read from the disk, 2 MiB at a time: each piece is first dropped from the page cache, whose content proves
nothing about the disk. A piece that was cached is cached again afterwards, so that readers hardly notice; any other is
dropped again, so that the scrub takes no memory from others. The newest entries are in the process's memory anyway, so
consumers at the end of the log are not affected.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raftlog.log_numbers import LogIndex
from raftlog.segment.codec import HEADER, HEADER_BYTES, EntryRef, is_blank, verify_entry
from raftlog.segment.errors import FrameCorrupt, StorageCorrupt
from raftlog.segment.log import SegmentLog
from raftlog.segment.page_cache import FOLIO_BYTES_MAX

SLICE_BYTES: Final = 256 * 1024
BYTES_PER_SECOND: Final = 4 * 1024 * 1024


class ScrubResult(NamedTuple):
    """The result of one step: ``nbytes`` were verified, everything below ``pos`` is good, the pass ends at ``end``."""

    nbytes: int
    pos: int
    end: int

    @property
    def finished(self) -> bool:
        """Whether the pass is complete."""
        return self.pos >= self.end


class Scrub:
    """Verifies a log repeatedly: `begin`, then `step` until it is finished.

    `begin` and `is_current` belong to the log's thread; `step` may run on another one, but only one.

    Attributes:
        verified_bytes: total over all passes.
        disk_bytes: the part that certainly came from the disk; 0 if the system does not tell.
        rounds: number of passes begun.
    """

    def __init__(self, log: SegmentLog) -> None:
        self.verified_bytes = 0
        self.disk_bytes = 0
        self.rounds = 0
        self._log = log
        self._files = log.files
        self._last = _base(log)
        self._pos = self._end = self._last.pos
        # Data read and not verified yet, its position, and whether all of it came from the disk.
        self._data, self._data_pos, self._came_from_disk = b"", 0, False

    def begin(self, committed_index: LogIndex) -> None:
        """Begin a round over everything up to ``committed_index``, as far as it is durable here.

        Raises:
            StorageCorrupt, StorageFailed: that entry's header cannot be read.
        """
        self.rounds += 1
        self._data = b""
        self._last = _base(self._log)
        self._pos = self._end = self._last.pos
        index = min(committed_index, self._log.durable_index)
        if index >= self._log.first_index:
            last = self._log.locate(index)
            self._end = last.pos + last.size
        assert self._pos <= self._end, f"a pass from {self._pos} to {self._end}"

    def is_current(self) -> bool:
        """Whether the log still has the bytes of the next step; if not, its beginning was deleted: begin again."""
        return self._pos >= self._log.base_pos

    def step(self) -> ScrubResult:
        """Verify the next slice: some entries of one file.

        Raises:
            StorageCorrupt: an entry is damaged.
            EntryGone: retention deleted it, see `is_current`.
            StorageFailed: a disk error.
        """
        begin = self._pos
        if begin < self._end:
            try:
                self._verify_slice()
            except FrameCorrupt as error:
                path = self._files.path(self._files.start_of(self._pos))
                raise StorageCorrupt(path, self._pos, str(error)) from error
            assert self._pos > begin, f"nothing was verified at {begin}"
            self.verified_bytes += self._pos - begin
            self.disk_bytes += self._pos - begin if self._came_from_disk else 0
        return ScrubResult(self._pos - begin, self._pos, self._end)

    def _verify_slice(self) -> None:
        files, begin, last = self._files, self._pos, self._last
        file_end = files.start_of(begin) + files.segment_bytes
        window = self._read(begin, min(begin + SLICE_BYTES, file_end), file_end)
        at = 0
        while (pos := begin + at) < self._end:
            if is_blank(window[at : at + 8], file_end - pos):
                self._pos = file_end
                return
            rest = len(window) - at
            size = HEADER.unpack_from(window, at)[1] if rest >= HEADER_BYTES else HEADER_BYTES
            if at and (at >= SLICE_BYTES or size > rest):
                return
            if size > rest and pos + size <= file_end:
                window = self._read(pos, pos + size, file_end)
            last = verify_entry(window, at, last.index + 1, last.term, pos, last.chain)
            at += size
            self._last, self._pos = last, pos + size

    def _read(self, pos: int, end: int, file_end: int) -> memoryview:
        """Bytes of one file from ``pos`` to at least ``end``, read in pieces that the page cache can drop."""
        start, data_end = self._files.start_of(pos), self._data_pos + len(self._data)
        if not max(self._data_pos, start) <= pos < data_end:
            self._data, self._data_pos, data_end = b"", pos, pos
        if data_end < end:
            rest = self._data[pos - self._data_pos :]
            stop = min(start - (start - end) // FOLIO_BYTES_MAX * FOLIO_BYTES_MAX, file_end)
            data, came_from_disk = self._files.pread_disk(data_end, stop - data_end)
            self._came_from_disk = came_from_disk and (self._came_from_disk or not rest)
            self._data, self._data_pos = rest + data, pos
        return memoryview(self._data)[pos - self._data_pos :]


def _base(log: SegmentLog) -> EntryRef:
    index, term = log.base
    return EntryRef(index, term, 0, log.base_pos, 0, log.base_chain)
