"""The entries of a log from its files, in runs of complete verified ones. Pure: a function returns the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from raftlog.log_numbers import LogIndex
from raftlog.segment.codec import BLANK_BYTES_MIN, HEADER, HEADER_BYTES, EntryRef, is_blank, verify_entry
from raftlog.segment.recovery import Read

RUN_BYTES: Final = 1024 * 1024
"""Size of one read, unless a single entry is larger."""


class EntryRun(NamedTuple):
    """Entries back to back from the physical offset ``pos`` on, all in one file.

    ``data`` ends with the first eight bytes of the following blank, if that was reached. It may contain no entry.
    """

    pos: int
    data: bytes
    entries: list[EntryRef]

    def body(self, entry: EntryRef) -> bytes:
        """Return the body of an entry of this run."""
        at = entry.pos - self.pos
        return self.data[at + HEADER_BYTES : at + entry.size]


def entry_runs(read: Read, before: EntryRef, last_index: LogIndex, segment_bytes: int) -> Iterator[EntryRun]:
    """Yield every entry after ``before`` up to ``last_index``, with verified checksums and chain.

    Args:
        read: bytes of one file, padded with zeros after its end.
        before: the entry before the first one, or the placeholder for a base.

    Raises:
        FrameCorrupt: the data does not continue the log; all earlier runs are valid. Also the errors of ``read``.
    """
    last, pos = before, before.pos + before.size
    while last.index < last_index:
        file_end = pos - pos % segment_bytes + segment_bytes
        window = memoryview(read(pos, min(RUN_BYTES, file_end - pos)))
        entries: list[EntryRef] = []
        at, at_blank = 0, False
        while last.index < last_index:
            rest, file_rest = len(window) - at, file_end - pos - at
            if is_blank(window[at : at + BLANK_BYTES_MIN], file_rest):
                at, at_blank = at + BLANK_BYTES_MIN, True
                break
            if rest < HEADER_BYTES and rest < file_rest:
                break
            size = HEADER.unpack_from(window, at)[1] if rest >= HEADER_BYTES else 0
            if rest < size <= file_rest:
                if at:
                    break
                window = memoryview(read(pos, size))
            last = verify_entry(window, at, last.index + 1, last.term, pos + at, last.chain)
            entries.append(last)
            at += last.size
        yield EntryRun(pos, bytes(window[:at]), entries)
        pos = file_end if at_blank else pos + at
