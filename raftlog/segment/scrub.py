"""Reading a running log through, slowly, to find damage while other replicas still have what it hit.

Disks lose bits in files that nobody reads for months. A round verifies everything from the base up to an entry that
is committed and synced, which never changes any more, in slices short enough for a thread next to the event loop.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raftlog.segment.codec import HEADER, HEADER_BYTES, EntryRef, is_blank, verify_entry
from raftlog.segment.errors import FrameCorrupt, StorageCorrupt
from raftlog.segment.log import SegmentLog

SLICE_BYTES: Final = 64 * 1024
BYTES_PER_SECOND: Final = 20 * 1024 * 1024


class Verified(NamedTuple):
    """What one step did: ``nbytes`` were verified, everything below ``pos`` is good, the round goes up to ``end``."""

    nbytes: int
    pos: int
    end: int

    @property
    def finished(self) -> bool:
        """Whether the round is over."""
        return self.pos >= self.end


class Scrub:
    """Verifies a log round after round: `begin`, then `step` until it is finished.

    `begin` and `is_current` belong to the log's thread; `step` may run in another one, as the only one.

    Attributes:
        verified_bytes: in all rounds together.
        rounds: how many began.
    """

    def __init__(self, log: SegmentLog) -> None:
        self.verified_bytes = 0
        self.rounds = 0
        self._log = log
        self._files = log.files
        self._last = _base(log)
        self._pos = self._end = self._last.pos

    def begin(self, committed_index: int) -> None:
        """Begin a round over everything up to ``committed_index``, as far as it is durable here.

        Raises:
            StorageCorrupt, StorageFailed: that entry's header cannot be read.
        """
        self.rounds += 1
        self._last = _base(self._log)
        self._pos = self._end = self._last.pos
        index = min(committed_index, self._log.durable_index)
        if index >= self._log.first_index:
            last = self._log.locate(index)
            self._end = last.pos + last.size

    def is_current(self) -> bool:
        """Whether the log still has what the next step reads; if not, its beginning was dropped: begin again."""
        return self._pos >= self._log.base_pos

    def step(self) -> Verified:
        """Verify the next slice: some entries of one file.

        Raises:
            StorageCorrupt: an entry is damaged.
            EntryGone: the log was shortened, see `is_current`.
            StorageFailed: the disk refused.
        """
        begin = self._pos
        if begin < self._end:
            try:
                self._verify_slice()
            except FrameCorrupt as error:
                path = self._files.path(self._files.start_of(self._pos))
                raise StorageCorrupt(path, self._pos, str(error)) from error
            self.verified_bytes += self._pos - begin
        return Verified(self._pos - begin, self._pos, self._end)

    def _verify_slice(self) -> None:
        files, begin, last = self._files, self._pos, self._last
        file_end = files.start_of(begin) + files.segment_bytes
        window = memoryview(files.pread(begin, min(SLICE_BYTES, file_end - begin)))
        at = 0
        while (pos := begin + at) < self._end:
            if is_blank(window[at : at + 8], file_end - pos):
                self._pos = file_end
                return
            rest = len(window) - at
            size = HEADER.unpack_from(window, at)[1] if rest >= HEADER_BYTES else HEADER_BYTES
            if size > rest and pos + size <= file_end:
                if at:
                    return
                window = memoryview(files.pread(pos, size))
            last = verify_entry(window, at, last.index + 1, last.term, pos, last.chain)
            at += size
            self._last, self._pos = last, pos + size


def _base(log: SegmentLog) -> EntryRef:
    index, term = log.base
    return EntryRef(index, term, 0, log.base_pos, 0, log.base_chain)
