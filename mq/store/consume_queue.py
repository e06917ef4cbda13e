"""A consume queue: for each message of a queue, the place of its record in the log.

An entry is 20 bytes. Files hold equal numbers of them, in blocks that have a checksum (`mq.store.queue_blocks`), and
are named by 20 times the queue offset of their first entry:

    queues/<topic>/<queue_id>/00000000000000000000

New entries accumulate in memory and are written in larger pieces. Losing them costs nothing: the log has them. A block
is verified once when it is read from a file. A damaged block is recorded (`QueueFiles.damaged`); reading it raises
QueueFileDamaged until `ConsumeQueue.restore` has restored it.
"""

from __future__ import annotations

import errno
import os
import zlib
from array import array
from itertools import pairwise

from mq.protocol import names
from mq.protocol.numbers import FIRST_OFFSET, PhysicalOffset, QueueOffset, offset_range
from mq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, QUEUE_OFFSET_MAX
from mq.store.errors import QueueFileDamaged, RunInvalid
from mq.store.queue_blocks import (
    ENTRIES_PER_BLOCK,
    TRAILER,
    BlockDamaged,
    block_bytes,
    queue_seed,
    seal,
    seed_of,
    verify_count,
)
from mq.store.queue_files import QueueFiles

ENTRIES_PER_FILE = 1470 * ENTRIES_PER_BLOCK


def topic_directory(topic: str) -> str:
    """Return the directory of a topic's queues, relative to the queues' root.

    Raises names.NameRefused for an invalid topic name, so that no name from outside can escape the root.
    """
    names.check_queue_name(topic)
    assert os.sep not in topic, f"topic {topic!r} is not a file name"
    assert "." not in topic, f"topic {topic!r} may leave its directory"
    return topic


class ConsumeQueue:
    """The entries [min_offset, max_offset) of one queue.

    Args:
        files: the store of the queue's files.
        topic, queue_id: which queue; the topic's name is validated before it becomes part of a path.
        entries_per_file: whole blocks, 299,880 in production; fixed for the life of a data directory.
        entries_per_block: fixed for the life of a data directory.
        min_offset, max_offset: the existing range, from the checkpoint.
        tail: the last entries of it, which are in the checkpoint but not in files.
    """

    __slots__ = (
        "_checksum",
        "_entries_per_block",
        "_entries_per_file",
        "_files",
        "_flushed_offset",
        "_tail",
        "captured",
        "key",
        "max_offset",
        "min_offset",
    )

    def __init__(
        self,
        files: QueueFiles,
        topic: str,
        queue_id: int,
        *,
        entries_per_file: int = ENTRIES_PER_FILE,
        entries_per_block: int = ENTRIES_PER_BLOCK,
        min_offset: QueueOffset = FIRST_OFFSET,
        max_offset: QueueOffset = FIRST_OFFSET,
        tail: bytes = b"",
    ) -> None:
        assert queue_id >= 0, f"{topic}: queue id {queue_id}"
        assert 0 <= min_offset <= max_offset, f"{topic}/{queue_id}: offsets {min_offset}..{max_offset}"
        assert len(tail) <= (max_offset - min_offset) * QUEUE_ENTRY_BYTES, f"{topic}/{queue_id}: {len(tail)} bytes"
        assert entries_per_file % entries_per_block == 0, f"{entries_per_file} entries, {entries_per_block} in a block"
        self._files = files
        topic_directory(topic)
        self._entries_per_file = entries_per_file
        self._entries_per_block = entries_per_block
        # Checksum of the entries in files that belong to a partial block; None while unknown.
        self._checksum: int | None = None
        self._flushed_offset = max_offset - len(tail) // QUEUE_ENTRY_BYTES
        self._tail = bytearray(tail)
        self.key = topic, queue_id
        self.captured = 0
        """The number of the latest capture that includes it, or began before it existed; see `QueueCapture`."""
        self.min_offset = min_offset
        """The first readable offset."""
        self.max_offset = max_offset
        """The offset of the next message of this queue."""

    @property
    def topic(self) -> str:
        """Return the topic, or the queue of a lite topic."""
        return self.key[0]

    @property
    def queue_id(self) -> int:
        """Return the number of the queue in its topic."""
        return self.key[1]

    @property
    def _directory(self) -> str:
        """The directory of the queue; computed each time, since it takes more memory than an idle lite topic."""
        return os.path.join(topic_directory(self.topic), str(self.queue_id))

    @property
    def entries_per_block(self) -> int:
        """Return the number of entries that share a checksum. Blocks start at multiples of it."""
        return self._entries_per_block

    @property
    def tail(self) -> bytes:
        """Return the entries that are in memory only, up to max_offset."""
        return bytes(self._tail)

    def capture(self, offsets: array[int]) -> bytearray:
        """Append the current min_offset, max_offset and length of the tail; returns the tail, which only grows."""
        offsets.extend((self.min_offset, self.max_offset, len(self._tail)))
        return self._tail

    @property
    def pending_bytes(self) -> int:
        """Size of the entries that are in memory only."""
        return len(self._tail)

    def append(self, first_offset: QueueOffset, entries: bytes) -> int:
        """Add consecutive entries; returns how many are new.

        ``first_offset`` must be ``max_offset``. Entries below it are a replay: they must equal the existing ones and
        are skipped. A queue without entries begins at the first offset of its first run, because the log before it may
        have expired.

        Raises RunInvalid for any other entries; nothing was added.
        """
        count = len(entries) // QUEUE_ENTRY_BYTES
        assert len(entries) == count * QUEUE_ENTRY_BYTES, f"{self}: run of {len(entries)} bytes"
        if not 0 <= first_offset < QUEUE_OFFSET_MAX:
            raise RunInvalid(*self.key, f"offset {first_offset} is outside of 0 to {QUEUE_OFFSET_MAX - 1}")
        if self.max_offset == 0:
            self.min_offset = self.max_offset = self._flushed_offset = first_offset
        if first_offset != self.max_offset:
            if first_offset > self.max_offset:
                raise RunInvalid(*self.key, f"offset {first_offset} leaves a gap after {self.max_offset}")
            repeat_count = min(self.max_offset - first_offset, count)
            self._check_repeats(first_offset, entries[: repeat_count * QUEUE_ENTRY_BYTES])
            entries = entries[repeat_count * QUEUE_ENTRY_BYTES :]
            count -= repeat_count
        self._tail += entries
        self.max_offset += count
        return count

    def extend(self, entries: bytes, count: int) -> int:
        """`append` at ``max_offset``, with this many entries, without checks; returns `pending_bytes`."""
        self._tail += entries
        self.max_offset += count
        return len(self._tail)

    def read(self, offset: QueueOffset, count: int) -> bytes:
        """Return entries [offset, offset + count) within min_offset and max_offset, 20 bytes each.

        Empty if ``offset`` is outside. Raises QueueFileDamaged if a file is too short, OSError.
        """
        end = min(offset + count, self.max_offset)
        if not self.min_offset <= offset < end:
            return b""
        if offset >= self._flushed_offset:
            start = (offset - self._flushed_offset) * QUEUE_ENTRY_BYTES
            return bytes(self._tail[start : start + (end - offset) * QUEUE_ENTRY_BYTES])
        per_block = self._entries_per_block
        parts: list[bytes] = []
        in_files = min(end, self._flushed_offset)
        while offset < in_files:
            start = offset - offset % per_block
            stop = min(in_files, start + per_block)
            block = self._files.block(self, start)
            if block is None or len(block) < (stop - start) * QUEUE_ENTRY_BYTES:
                block = self._load(start)
            parts.append(block[(offset - start) * QUEUE_ENTRY_BYTES : (stop - start) * QUEUE_ENTRY_BYTES])
            offset = stop
        if offset < end:
            parts.append(bytes(self._tail[: (end - offset) * QUEUE_ENTRY_BYTES]))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def flush(self) -> None:
        """Move entries from memory to the page cache.

        If the block that they continue is damaged, they stay in memory until `restore`. Raises OSError; unwritten
        entries stay in memory.
        """
        while self._tail:
            offset = self._flushed_offset
            inside = offset % self._entries_per_block
            checksum, before = self._checksum, b""
            if inside and offset == self.min_offset:
                # Nothing before it in the block can be read; write zeros, so that the checksum is known.
                before = bytes(inside * QUEUE_ENTRY_BYTES)
                checksum = zlib.crc32(before, self._seed(offset - inside))
            elif inside and checksum is None:
                return
            end = min(self.max_offset, self._file_end(offset))
            pieces, checksum = self._blocks(offset, end, checksum)
            start = offset - inside if before else offset
            self._files.write(self._path(offset), self._position(start), b"".join((before, *pieces)))
            self._extend_kept(offset - inside, inside, pieces[0])
            self._tail = self._tail[(end - offset) * QUEUE_ENTRY_BYTES :]  # captures may still read the old one
            self._flushed_offset = end
            self._checksum = checksum
            rest_count = self.max_offset - end
            assert len(self._tail) == rest_count * QUEUE_ENTRY_BYTES, f"{self}: {len(self._tail)} bytes behind {end}"

    def prepend(self, entries: bytes) -> None:
        """Add entries of older messages right before ``min_offset``, and write them to files.

        Until a checkpoint with them is durable, a restart returns to the former beginning. Raises QueueFileDamaged if
        the block that they complete is damaged, and OSError; then the queue is as before.
        """
        count, rest = divmod(len(entries), QUEUE_ENTRY_BYTES)
        assert 0 < count <= self.min_offset, f"{self}: {count} entries are put in front"
        assert rest == 0, f"{self}: entries of {len(entries)} bytes are put in front"
        offset, end, per_block = self.min_offset - count, self.min_offset, self._entries_per_block
        if end % per_block and end < self._flushed_offset:
            stop = min(end - end % per_block + per_block, self._flushed_offset)
            entries += self.read(end, stop - end)
            end = stop
        first, at, checksum = offset, 0, 0
        while offset < end:
            start = offset - offset % per_block
            stop = min(start + per_block, end)
            size = (stop - offset) * QUEUE_ENTRY_BYTES
            # What is before the first one cannot be read: zeros, so that the checksum is known.
            piece = bytes((offset - start) * QUEUE_ENTRY_BYTES) + entries[at : at + size]
            block, checksum = seal(piece, start, self._seed(start), per_block)
            self._files.write(self._path(start), self._position(start), block)
            self._files.forget_damage(self, start)
            offset, at = stop, at + size
        if end == self._flushed_offset:
            self._checksum = checksum
        self.min_offset = first

    def damaged_entries(self, start: QueueOffset) -> tuple[QueueOffset, QueueOffset] | None:
        """Return the entries to restore in the damaged block at queue offset ``start``, as [first, end).

        None if none of its entries in files can be read.
        """
        first = max(start, self.min_offset)
        end = min(start + self._entries_per_block, self._flushed_offset)
        return (first, end) if first < end else None

    def restore(self, start: QueueOffset, first: QueueOffset, entries: bytes) -> bool:
        """Rewrite the block at queue offset ``start`` with ``entries`` from the log from queue offset ``first`` on.

        Returns whether it is complete then; not if it has grown since `damaged_entries`. Raises OSError.
        """
        assert start % self._entries_per_block == 0, f"{self}: no block begins at {start}"
        damaged_range = self.damaged_entries(start)
        if damaged_range is not None:
            if damaged_range[0] < first or damaged_range[1] != first + len(entries) // QUEUE_ENTRY_BYTES:
                return False
            before = bytes((first - start) * QUEUE_ENTRY_BYTES)
            block, checksum = seal(before + entries, start, self._seed(start), self._entries_per_block)
            self._files.write(self._path(start), self._position(start), block)
            if damaged_range[1] == self._flushed_offset:
                self._checksum = checksum
        self._files.forget_damage(self, start)
        return True

    def expire(self, log_start: PhysicalOffset) -> QueueOffset:
        """Remove entries of records before physical offset ``log_start``, where the log now begins.

        Returns the new min_offset. Complete files below it are retired. Raises OSError, and QueueFileDamaged with the
        queue unchanged.
        """
        low = self.first_from(log_start)
        self.begin_at(low)
        return low

    def first_from(self, place: PhysicalOffset) -> QueueOffset:
        """Return the queue offset of the first record at or behind a physical offset; ``max_offset`` without one.

        Raises OSError, QueueFileDamaged.
        """
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = low + (high - low) // 2
            physical_offset, _, _ = QUEUE_ENTRY.unpack(self.read(middle, 1))
            if physical_offset < place:
                low = middle + 1
            else:
                high = middle
        return low

    def begin_at(self, low: QueueOffset) -> None:
        """Remove entries before queue offset ``low``. Complete files below it are retired."""
        low = min(low, self.max_offset)
        if low > self.min_offset:
            for start in offset_range(self._file_start(self.min_offset), self._file_start(low), self._entries_per_file):
                self._files.retire(self._path(start))
            if low > self._flushed_offset:
                self._tail = self._tail[(low - self._flushed_offset) * QUEUE_ENTRY_BYTES :]
                self._flushed_offset = low
                self._checksum = None
            self.min_offset = low
            assert low <= self._flushed_offset <= self.max_offset, f"{self}: files end at {self._flushed_offset}"

    def check_files(self, log_end: PhysicalOffset) -> None:
        """After opening, verify that the files contain all entries before the tail, and cut anything after them.

        ``log_end`` is the physical offset up to which the log was dispatched when max_offset was stored. Contents are
        verified when they are read; the block that new entries continue is verified now and recorded if damaged.

        Raises QueueFileDamaged if a file is missing, too short, or beyond the log; OSError.
        """
        end, per_block = self._flushed_offset, self._entries_per_block
        first_file = self._file_start(self.min_offset) if self.min_offset < end else end
        for start in offset_range(first_file, end, self._entries_per_file):
            blocks = -(-(min(end, start + self._entries_per_file) - start) // per_block)
            expected = blocks * block_bytes(per_block)
            path = self._path(start)
            actual = self._files.size(path)
            if actual < expected:
                raise QueueFileDamaged(path, "the file is too short", expected, actual)
        self._cut_files()
        if self.min_offset < end:
            try:
                if inside := end % per_block:
                    self._continue_block(end - inside, inside)
                last = self.read(end - 1, 1)
            except QueueFileDamaged:
                return  # it is recorded, and restored from the log
            physical_offset, size, _ = QUEUE_ENTRY.unpack(last)
            if size <= 0 or physical_offset + size > log_end:
                path = self._path(end - 1)
                raise QueueFileDamaged(
                    path, "the last entry points behind the end of the log", log_end, physical_offset + size
                )

    def check_invariants(self) -> None:
        """Assert what holds between calls; for tests. Reads no files.

        Files and memory together have every entry once, in order: readers compute from an offset where its entry is.
        Records of later messages are further on in the log: searches by position or time rely on it.
        """
        first, tail = self._flushed_offset, self._tail
        assert 0 <= self.min_offset <= first <= self.max_offset, f"{self}: files end at {first}"
        assert len(tail) == (self.max_offset - first) * QUEUE_ENTRY_BYTES, (
            f"{self}: files end at {first}, and {len(tail)} bytes are in memory"
        )
        places = [position for position, _, _ in QUEUE_ENTRY.iter_unpack(tail)]
        for number, (before, behind) in enumerate(pairwise(places), first):
            assert before < behind, f"{self}: {number} is at {before} in the log, the next one at {behind}"

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.topic}/{self.queue_id} [{self.min_offset}, {self.max_offset}))"

    def _check_repeats(self, first_offset: QueueOffset, entries: bytes) -> None:
        skipped = max(self.min_offset - first_offset, 0)
        repeats = entries[skipped * QUEUE_ENTRY_BYTES :]
        if not repeats:
            return
        try:
            own_entries = self.read(first_offset + skipped, len(repeats) // QUEUE_ENTRY_BYTES)
        except QueueFileDamaged:
            return  # the stored block is recorded as damaged; there is nothing to compare with
        if own_entries != repeats:
            raise RunInvalid(*self.key, f"the existing records from offset {first_offset} on are different")

    def _blocks(self, offset: QueueOffset, end: QueueOffset, checksum: int | None) -> tuple[list[bytes], int]:
        """The blocks to write for the first entries of the tail, [offset, end), and the checksum of the last block.

        ``checksum`` covers the block's entries before ``offset``; it is ignored at the beginning of a block.
        """
        per_block, tail = self._entries_per_block, bytes(self._tail[: (end - offset) * QUEUE_ENTRY_BYTES])
        pieces: list[bytes] = []
        at = value = 0
        while offset < end:
            start = offset - offset % per_block
            stop = min(end, start + per_block)
            entries = tail[at : at + (stop - offset) * QUEUE_ENTRY_BYTES]
            if offset == start:
                block, value = seal(entries, start, self._seed(start), per_block)
                pieces.append(block)
            else:
                assert checksum is not None, f"{self}: the checksum before {offset} is not known"
                value = zlib.crc32(entries, checksum)
                padding = bytes((start + per_block - stop) * QUEUE_ENTRY_BYTES)
                pieces += (entries, padding, TRAILER.pack(start, stop - start, value))
            at += len(entries)
            offset = stop
        return pieces, value

    def _extend_kept(self, start: QueueOffset, count: int, entries: bytes) -> None:
        """Append entries that were just written to a cached block, so that reads at the end need no disk."""
        if count and (block := self._files.block(self, start)) is not None and len(block) == count * QUEUE_ENTRY_BYTES:
            self._files.keep_block(self, start, block + entries)

    def _load(self, start: QueueOffset) -> bytes:
        """The entries in files of the block at ``start``, verified and cached."""
        count = min(self._flushed_offset - start, self._entries_per_block)
        assert count > 0, f"{self}: the block at {start} is read, files end at {self._flushed_offset}"
        data, seed = self._read_block(start), self._seed(start)
        try:
            if count == self._entries_per_block:
                verify_count(data, start, count, seed, count)
            elif (value := zlib.crc32(data[: count * QUEUE_ENTRY_BYTES], seed)) != self._checksum:
                raise BlockDamaged("checksum of the block", self._checksum or 0, value)
        except BlockDamaged as damage:
            raise self._damage_error(start, damage.reason, damage.expected, damage.actual) from damage
        return self._files.keep_block(self, start, data[: count * QUEUE_ENTRY_BYTES])

    def _continue_block(self, start: QueueOffset, count: int) -> None:
        """Continue with the checksum of a partial block after opening."""
        data = self._read_block(start)
        try:
            self._checksum = verify_count(data, start, count, self._seed(start), self._entries_per_block)
        except BlockDamaged as damage:
            raise self._damage_error(start, damage.reason, damage.expected, damage.actual) from damage

    def _read_block(self, start: QueueOffset) -> bytes:
        size = block_bytes(self._entries_per_block)
        try:
            return self._files.read(self._path(start), self._position(start), size)
        except FileNotFoundError as error:
            raise self._damage_error(start, "the file is missing", size, 0) from error
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise self._damage_error(start, "the disk cannot read it", size, 0) from error

    def _damage_error(self, start: QueueOffset, reason: str, expected: int, actual: int) -> QueueFileDamaged:
        error = QueueFileDamaged(self._path(start), f"block of offset {start}: {reason}", expected, actual)
        self._files.damaged.setdefault((self, start), str(error))
        return error

    def _seed(self, start: QueueOffset) -> int:
        return seed_of(queue_seed(self.topic, self.queue_id), start)

    def _cut_files(self) -> None:
        """Remove complete blocks in files behind the flushed offset."""
        for start_byte, path in self._files.list(self._directory):
            start = QueueOffset(start_byte // QUEUE_ENTRY_BYTES)
            kept_count = min(self._flushed_offset - start, self._entries_per_file)
            keep = -(-kept_count // self._entries_per_block) * block_bytes(self._entries_per_block)
            if keep <= 0 or start < self._file_start(self.min_offset):
                self._files.remove(path)
            elif self._files.size(path) > keep:
                self._files.truncate(path, keep)

    def _file_start(self, offset: QueueOffset) -> QueueOffset:
        return offset - offset % self._entries_per_file

    def _file_end(self, offset: QueueOffset) -> QueueOffset:
        return self._file_start(offset) + self._entries_per_file

    def _position(self, offset: QueueOffset) -> int:
        blocks, inside = divmod(offset % self._entries_per_file, self._entries_per_block)
        return blocks * block_bytes(self._entries_per_block) + inside * QUEUE_ENTRY_BYTES

    def _path(self, offset: QueueOffset) -> str:
        start = offset - offset % self._entries_per_file
        return f"{self._directory}{os.sep}{start * QUEUE_ENTRY_BYTES:020d}"
