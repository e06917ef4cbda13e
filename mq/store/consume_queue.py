"""One consume queue: for each message of a queue, where its record lies in the log.

Entry number n (its queue offset) is 20 bytes at byte 20*n of the queue, in files of equal size named by the byte at
which they start:

    consumequeue/<topic>/<queue_id>/00000000000000000000

New entries gather in memory and reach the files in larger pieces. Losing them costs nothing: the log has them.
"""

from __future__ import annotations

import os

from mq.protocol import names
from mq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from mq.store.errors import QueueFileDamaged
from mq.store.queue_files import QueueFiles

ENTRIES_PER_FILE = 300_000


def topic_directory(topic: str) -> str:
    """The directory of a topic's queues, relative to the queues' root.

    Raises names.NameRefused for what is not a topic name, so that no name from outside can leave the root.
    """
    names.check_topic(topic)
    assert os.sep not in topic, f"topic {topic!r} is not a file name"
    assert "." not in topic, f"topic {topic!r} may leave its directory"
    return topic


class ConsumeQueue:
    """The entries [min_offset, max_offset) of one queue.

    Args:
        files: where the queue's files are.
        topic, queue_id: which queue; the topic's name is checked before it becomes part of a path.
        entries_per_file: 300,000 in production; the same for the life of a data directory.
        min_offset, max_offset: what there is already, as the checkpoint says.
        tail: the last entries of that, which are not in the files but came with the checkpoint.
    """

    __slots__ = (
        "_directory",
        "_entries_per_file",
        "_files",
        "_flushed_offset",
        "_tail",
        "key",
        "max_offset",
        "min_offset",
        "queue_id",
        "topic",
    )

    def __init__(
        self,
        files: QueueFiles,
        topic: str,
        queue_id: int,
        *,
        entries_per_file: int = ENTRIES_PER_FILE,
        min_offset: int = 0,
        max_offset: int = 0,
        tail: bytes = b"",
    ) -> None:
        assert queue_id >= 0, f"{topic}: queue id {queue_id}"
        assert 0 <= min_offset <= max_offset, f"{topic}/{queue_id}: offsets {min_offset}..{max_offset}"
        assert len(tail) <= (max_offset - min_offset) * QUEUE_ENTRY_BYTES, f"{topic}/{queue_id}: {len(tail)} bytes"
        self._files = files
        self._directory = os.path.join(topic_directory(topic), str(queue_id))
        self._entries_per_file = entries_per_file
        self._flushed_offset = max_offset - len(tail) // QUEUE_ENTRY_BYTES
        self._tail = bytearray(tail)
        self.topic = topic
        self.queue_id = queue_id
        self.key = topic, queue_id
        self.min_offset = min_offset
        """The first offset that can be read."""
        self.max_offset = max_offset
        """The offset that the next message of this queue gets."""

    @property
    def tail(self) -> bytes:
        """The entries that are in memory only, up to max_offset."""
        return bytes(self._tail)

    def capture(self) -> tuple[int, int, int, bytearray, int]:
        """Queue id, offsets, and the tail as a buffer that only ever grows, with how much of it there is now."""
        return self.queue_id, self.min_offset, self.max_offset, self._tail, len(self._tail)

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that are in memory only."""
        return len(self._tail)

    def append(self, first_offset: int, entries: bytes) -> int:
        """Add consecutive entries; returns how many of them are new.

        ``first_offset`` must be ``max_offset``. Entries below it are a replay: they must repeat what is there and are
        skipped. A queue that never had an entry begins wherever its first run does, because the log before it may
        have expired.
        """
        count = len(entries) // QUEUE_ENTRY_BYTES
        assert len(entries) == count * QUEUE_ENTRY_BYTES, f"{self}: run of {len(entries)} bytes"
        assert first_offset >= 0, f"{self}: run at offset {first_offset}"
        if self.max_offset == 0:
            self.min_offset = self.max_offset = self._flushed_offset = first_offset
        if first_offset != self.max_offset:
            assert first_offset < self.max_offset, f"{self}: run at {first_offset} leaves a gap"
            known = min(self.max_offset - first_offset, count)
            self._check_repeats(first_offset, entries[: known * QUEUE_ENTRY_BYTES])
            entries = entries[known * QUEUE_ENTRY_BYTES :]
            count -= known
        self._tail += entries
        self.max_offset += count
        return count

    def extend(self, entries: bytes, count: int) -> int:
        """`append` at ``max_offset``, of so many entries, without a check; returns `pending_bytes`."""
        self._tail += entries
        self.max_offset += count
        return len(self._tail)

    def read(self, offset: int, count: int) -> bytes:
        """Entries [offset, offset + count), cut to what is between min_offset and max_offset; 20 bytes each.

        Empty if ``offset`` is outside. Raises QueueFileDamaged if a file is shorter than it was, OSError.
        """
        end = min(offset + count, self.max_offset)
        if not self.min_offset <= offset < end:
            return b""
        if offset >= self._flushed_offset:
            start = (offset - self._flushed_offset) * QUEUE_ENTRY_BYTES
            return bytes(self._tail[start : start + (end - offset) * QUEUE_ENTRY_BYTES])
        parts: list[bytes] = []
        while offset < (in_files := min(end, self._flushed_offset)):
            stop = min(in_files, self._file_end(offset))
            parts.append(self._read_file(offset, stop - offset))
            offset = stop
        if offset < end:
            parts.append(bytes(self._tail[: (end - offset) * QUEUE_ENTRY_BYTES]))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def flush(self) -> None:
        """Move entries from memory to the page cache. Raises OSError; what was not written stays in memory."""
        while self._tail:
            offset = self._flushed_offset
            count = min(self.max_offset, self._file_end(offset)) - offset
            size = count * QUEUE_ENTRY_BYTES
            self._files.write(self._path(offset), self._position(offset), self._tail[:size])
            self._tail = self._tail[size:]  # whoever captured the old one goes on reading it
            self._flushed_offset += count

    def truncate_to(self, max_offset: int) -> None:
        """Forget entries from ``max_offset`` on, in memory and in files. Raises OSError."""
        assert self.min_offset <= max_offset <= self.max_offset, f"{self}: truncate to {max_offset}"
        if max_offset >= self._flushed_offset:
            self._tail = self._tail[: (max_offset - self._flushed_offset) * QUEUE_ENTRY_BYTES]
        else:
            self._tail = bytearray()
            self._flushed_offset = max_offset
            self._cut_files()
        self.max_offset = max_offset

    def expire(self, log_start: int) -> int:
        """Forget entries of records before physical offset ``log_start``, where the log now begins.

        Returns the new min_offset. Whole files below it are retired. Raises OSError.
        """
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            physical_offset, _, _ = QUEUE_ENTRY.unpack(self.read(middle, 1))
            if physical_offset < log_start:
                low = middle + 1
            else:
                high = middle
        if low > self.min_offset:
            for start in range(self._file_start(self.min_offset), self._file_start(low), self._entries_per_file):
                self._files.retire(self._path(start))
            if low > self._flushed_offset:
                self._tail = self._tail[(low - self._flushed_offset) * QUEUE_ENTRY_BYTES :]
                self._flushed_offset = low
            self.min_offset = low
        return low

    def check_files(self, log_end: int) -> None:
        """Verify after opening that the files hold what the tail does not, and cut what lies behind it.

        ``log_end`` is the physical offset up to which the log had been dispatched when max_offset was noted.
        Raises QueueFileDamaged if something is missing, OSError.
        """
        end = self._flushed_offset
        first_file = self._file_start(self.min_offset) if self.min_offset < end else end
        for start in range(first_file, end, self._entries_per_file):
            expected = (min(end, start + self._entries_per_file) - start) * QUEUE_ENTRY_BYTES
            path = self._path(start)
            actual = self._files.size(path)
            if actual < expected:
                raise QueueFileDamaged(path, "file is too short", expected, actual)
        self._cut_files()
        if self.min_offset < end:
            physical_offset, size, _ = QUEUE_ENTRY.unpack(self.read(end - 1, 1))
            if size <= 0 or physical_offset + size > log_end:
                path = self._path(end - 1)
                raise QueueFileDamaged(path, "last entry ends behind the log", log_end, physical_offset + size)

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.topic}/{self.queue_id} [{self.min_offset}, {self.max_offset}))"

    def _check_repeats(self, first_offset: int, entries: bytes) -> None:
        skipped = max(self.min_offset - first_offset, 0)
        repeated = entries[skipped * QUEUE_ENTRY_BYTES :]
        if not repeated:
            return
        known = self.read(first_offset + skipped, len(repeated) // QUEUE_ENTRY_BYTES)
        assert known == repeated, f"{self}: the run at {first_offset} contradicts what is stored"

    def _read_file(self, offset: int, count: int) -> bytes:
        path = self._path(offset)
        expected = count * QUEUE_ENTRY_BYTES
        data = self._files.read(path, self._position(offset), expected)
        if len(data) != expected:
            raise QueueFileDamaged(path, "short read", expected, len(data))
        return data

    def _cut_files(self) -> None:
        """Leave nothing in files at or behind the flushed offset."""
        for start_byte, path in self._files.list(self._directory):
            start = start_byte // QUEUE_ENTRY_BYTES
            keep = min(self._flushed_offset - start, self._entries_per_file) * QUEUE_ENTRY_BYTES
            if keep <= 0 or start < self._file_start(self.min_offset):
                self._files.remove(path)
            elif self._files.size(path) > keep:
                self._files.truncate(path, keep)

    def _file_start(self, offset: int) -> int:
        return offset - offset % self._entries_per_file

    def _file_end(self, offset: int) -> int:
        return self._file_start(offset) + self._entries_per_file

    def _position(self, offset: int) -> int:
        return offset % self._entries_per_file * QUEUE_ENTRY_BYTES

    def _path(self, offset: int) -> str:
        start = offset - offset % self._entries_per_file
        return f"{self._directory}{os.sep}{start * QUEUE_ENTRY_BYTES:020d}"
