"""Rebuilds the entries of a damaged consume queue block from the log, and from its archive.

The log is read in small steps, each in a worker thread, so that nothing else waits for long. Only bytes with a correct
checksum are used.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from mq.protocol.messages.records import RecordError
from mq.protocol.numbers import FIRST_OFFSET, LOG_BEGIN, PhysicalOffset, QueueOffset
from mq.store.dispatch import QUEUE_ENTRY_BYTES, scan_runs
from mq.store.errors import RunInvalid
from raftlog.segment.codec import BLANK, HEADER, HEADER_BYTES, NORMAL

STEP_BYTES: Final = 256 * 1024
"""Bytes of the log that one step reads, unless an entry is larger."""

Read = Callable[[PhysicalOffset, int], bytes]
"""``read(physical_offset, nbytes)`` of the log, from any thread."""

Fetch = Callable[[int, int], Sequence[tuple[int, bytes]]]
"""``fetch(begin, stop)`` returns the blocks of the archive that overlap this range, from a thread for the archive."""


class RebuildFailed(Exception):
    """The log lacks the entries, or they are damaged. Retry after the log is repaired."""


class WantedEntries(NamedTuple):
    """Entries [first, end) of a queue, and the range [begin_pos, end_pos) of the log that contains them.

    ``begin_pos`` is the beginning of a log entry, unless it is before ``local_pos``, where the local log begins.
    ``from_base`` says that it is the first one of the log: then the first of the wanted entries may be deleted.
    """

    topic: str
    queue_id: int
    first: QueueOffset
    end: QueueOffset
    begin_pos: PhysicalOffset
    end_pos: PhysicalOffset
    from_base: bool
    local_pos: PhysicalOffset = LOG_BEGIN


class BlockRebuild:
    """Finds `WantedEntries`: call `step` until it returns True, then `result`.

    Args:
        fetch: reads the archive, which has the entries before ``wanted.local_pos``.
    """

    def __init__(self, wanted: WantedEntries, read: Read, segment_bytes: int, fetch: Fetch | None = None) -> None:
        assert fetch is not None or wanted.begin_pos >= wanted.local_pos, (
            f"entries from {wanted.begin_pos} on are wanted, the log begins at {wanted.local_pos}"
        )
        assert wanted.first < wanted.end, f"entries {wanted.first} to {wanted.end} of {wanted.topic} are wanted"
        self.wanted = wanted
        self._read = read
        self._fetch = fetch
        self._segment_bytes = segment_bytes
        self._topic = wanted.topic.encode()
        self._pos = wanted.begin_pos
        self._step_bytes = STEP_BYTES
        self._entries = bytearray()
        self._first = wanted.first
        self._queue_end = FIRST_OFFSET

    @property
    def is_archived(self) -> bool:
        """Whether the next step reads the archive."""
        return self._pos < self.wanted.local_pos

    def step(self) -> bool:
        """Read the next step of the log; returns whether all was read. Raises RebuildFailed, SegmentError."""
        if self.is_archived:
            return self._step_in_archive()
        segment_end = self._pos - self._pos % self._segment_bytes + self._segment_bytes
        end = min(segment_end, self.wanted.end_pos)
        if self._pos >= end:
            return True
        data = self._read(self._pos, min(self._step_bytes, end - self._pos))
        at = 0
        while at + HEADER.size <= len(data) or _is_blank(data, at):
            if _is_blank(data, at):
                self._pos = segment_end
                return self._pos >= self.wanted.end_pos
            kind, size, _, _, pos, _, _, body_crc, body_len = HEADER.unpack_from(data, at)
            if pos != self._pos + at or size != HEADER_BYTES + body_len:
                raise RebuildFailed(f"the log has no entry at {self._pos + at}")
            if at + size > len(data):
                break
            if kind == NORMAL and data.find(self._topic, at, at + size) >= 0:
                self._add_entry(data[at + HEADER_BYTES : at + size], body_crc, pos)
            at += size
        if not at:
            if self._step_bytes >= self._segment_bytes:
                raise RebuildFailed(f"the log's entry at {self._pos} does not end within its segment")
            self._step_bytes *= 4
        else:
            self._step_bytes = STEP_BYTES
        self._pos += at
        assert self._pos <= segment_end, f"entries up to {self._pos} of a segment that ends at {segment_end}"
        return self._pos >= self.wanted.end_pos

    def _step_in_archive(self) -> bool:
        """Read the block with the next place, or continue behind the last block of a file."""
        assert self._fetch is not None, "archived entries are wanted without an archive"
        blocks = self._fetch(self._pos, self._pos + 1)
        begin, data = blocks[0]
        behind = begin + len(data)
        at = 0 if behind > self._pos else len(data)
        while at < len(data):
            kind, size, _, _, pos, _, _, body_crc, _ = HEADER.unpack_from(data, at)
            if kind == NORMAL and data.find(self._topic, at, at + size) >= 0:
                self._add_entry(data[at + HEADER_BYTES : at + size], body_crc, pos)
            at += size
        if behind <= self._pos:
            behind = self._pos - self._pos % self._segment_bytes + self._segment_bytes
        self._pos = PhysicalOffset(behind)
        return self._pos >= self.wanted.end_pos

    def result(self) -> tuple[QueueOffset, bytes]:
        """Return the first requested queue offset that the log has, and the entries from there on.

        Raises RebuildFailed if required entries are missing.
        """
        wanted = self.wanted
        found_end = self._first + len(self._entries) // QUEUE_ENTRY_BYTES
        if not self._entries and wanted.from_base:
            return wanted.end, b""
        if found_end != wanted.end or (self._first != wanted.first and not wanted.from_base):
            raise RebuildFailed(
                f"the log has entries {self._first} to {found_end} of {wanted.topic}/{wanted.queue_id},"
                f" {wanted.first} to {wanted.end} are missing"
            )
        return self._first, bytes(self._entries)

    def _add_entry(self, body: bytes, body_crc: int, pos: PhysicalOffset) -> None:
        if zlib.crc32(body) != body_crc:
            raise RebuildFailed(f"the log's entry at {pos} is damaged")
        try:
            runs, _ = scan_runs(body, pos + HEADER_BYTES)
        except (RecordError, RunInvalid, UnicodeDecodeError) as error:
            raise RebuildFailed(f"the log's entry at {pos} cannot be used: {error}") from error
        for run in runs:
            if run.topic != self.wanted.topic or run.queue_id != self.wanted.queue_id:
                continue
            if run.first_offset < self._queue_end:
                self._entries.clear()  # earlier ones belonged to a topic that was deleted and created again
            self._queue_end = run.end_offset
            first = max(run.first_offset, self.wanted.first)
            end = min(run.end_offset, self.wanted.end)
            if first < end:
                if not self._entries:
                    self._first = first
                skip = first - run.first_offset
                self._entries += run.entries[skip * QUEUE_ENTRY_BYTES : (end - run.first_offset) * QUEUE_ENTRY_BYTES]


def _is_blank(data: bytes, at: int) -> bool:
    return at + 4 <= len(data) and int.from_bytes(data[at : at + 4], "big") == BLANK
