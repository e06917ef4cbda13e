"""The segment files of a directory: names, descriptors, reads, writes, and preparing the next file in advance.

A segment's name is the physical offset of its first byte in 20 digits. A file with that name always has full length: it
is created with another name, filled, synced and then renamed.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import re
import threading
from collections.abc import Sequence
from functools import partial
from typing import Final

from raftlog.segment.codec import SYNC_BYTES_MAX
from raftlog.segment.disk import Buffer, Disk, Write, write_fully
from raftlog.segment.errors import EntryGone, StorageCorrupt, StorageFailed
from raftlog.segment.limits import DEFAULT, LogLimits
from raftlog.segment.open_files import Descriptor, OpenFiles
from raftlog.segment.recovery import end_of_data

ZERO_FILL_SEGMENT_BYTES_MAX: Final = 256 * 1024 * 1024
_FILL_BYTES_PER_SECOND: Final = 128 * 1024 * 1024
_NAME = re.compile(r"\d{20}")
_SIDECAR_NAME = re.compile(r"(\d{20})\.index")
_ZEROS: Final = bytes(SYNC_BYTES_MAX)
_HOLE_BYTES_MIN: Final = 64 * 1024
DISK_BLOCK_BYTES: Final = 4096
"""The unit in which a disk fails to read."""


class Preallocation(enum.Enum):
    """The way in which a new segment gets its length."""

    NONE = "none"
    """A hole: a full disk shows only when an entry is written."""
    RESERVE = "reserve"
    """Reserved blocks: a full disk shows when the file is created."""
    ZERO = "zero"
    """Written blocks: syncs are cheaper, since no block changes its state, but every byte is written twice."""

    @classmethod
    def for_segment(cls, segment_bytes: int) -> Preallocation:
        """The default: zeros up to 256 MiB, a reservation above."""
        return cls.ZERO if segment_bytes <= ZERO_FILL_SEGMENT_BYTES_MAX else cls.RESERVE


def segment_start(name: str, segment_bytes: int) -> int | None:
    """Return the start of the segment with this name; None for any other name."""
    return int(name) if _NAME.fullmatch(name) and int(name) % segment_bytes == 0 else None


def shorter_read(offset: int, length: int) -> int | None:
    """The number of bytes to try next if the disk cannot read ``length`` bytes from ``offset`` on in a file.

    None if they are in one block, which is lost as a whole. Otherwise half of them, up to the end of a block: a disk
    may retry for seconds before it fails.
    """
    block_rest = DISK_BLOCK_BYTES - offset % DISK_BLOCK_BYTES
    if length <= block_rest:
        return None
    return max(block_rest, length // 2 - (offset + length // 2) % DISK_BLOCK_BYTES)


class SegmentFiles:
    """Reads and writes the segment files of one directory.

    Any thread may read; only the writer's thread changes files. A deleted file stays readable for reads in progress.

    Attributes:
        base_pos: anything below may be missing. The log's owner raises it before files are deleted.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segment_bytes: int,
        preallocation: Preallocation,
        limits: LogLimits = DEFAULT,
    ) -> None:
        self.limits = limits
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._disk = disk
        self._preallocation = preallocation
        self.base_pos = 0
        self._open = OpenFiles(disk)
        self._preparation: threading.Thread | None = None
        self._hurry = threading.Event()
        self._closing = False
        names = disk.listdir(directory)
        self._sidecars = {int(match[1]) for name in names if (match := _SIDECAR_NAME.fullmatch(name))}
        for name in names:
            if name.endswith(".tmp"):
                disk.unlink(os.path.join(directory, name))
        # Files with names that no segment can have are not ours, and are ignored.
        starts = (segment_start(name, segment_bytes) for name in names)
        self._starts = {start for start in starts if start is not None}

    @property
    def starts(self) -> list[int]:
        """Start offsets of the files, ascending."""
        return sorted(self._starts)

    def path(self, start: int) -> str:
        """Path of the segment that begins at ``start``."""
        return os.path.join(self.directory, f"{start:020d}")

    def start_of(self, pos: int) -> int:
        """Return the start of the file that contains ``pos``."""
        return pos - pos % self.segment_bytes

    def pread(self, pos: int, length: int) -> bytes:
        """Read ``length`` bytes at a physical offset, across files if necessary.

        Raises:
            EntryGone: a file is missing, and below `base_pos`.
            StorageCorrupt: a file is missing or too short.
            StorageFailed: a disk error.
        """
        start = pos - pos % self.segment_bytes
        try:
            if (offset := pos - start) + length <= self.segment_bytes:
                with self._open.use(start, self.path) as fd:
                    data = self._disk.pread(fd, length, offset)
                if len(data) == length:
                    return data
            size = self.size(start)
        except FileNotFoundError as error:
            if start < self.base_pos:
                raise EntryGone(self.directory, "position", pos, self.base_pos) from error
            raise StorageCorrupt(self.path(start), pos, "the segment file is missing") from error
        except OSError as error:
            raise self._unread(pos, error) from error
        here = min(length, self.segment_bytes - offset)
        data = self.pread_padded(pos, here)
        if size < offset + here:
            raise StorageCorrupt(self.path(start), pos, f"the segment file ends after {size} bytes")
        return data if here == length else data + self.pread(pos + here, length - here)

    def is_cached(self, pos: int, length: int) -> bool:
        """Whether `pread` returns these bytes without waiting for the disk. May be False although it does."""
        start = pos - pos % self.segment_bytes
        if pos + length > start + self.segment_bytes:
            return False
        try:
            with self._open.use(start, self.path) as fd:
                return self._disk.is_cached(fd, length, pos - start)
        except OSError:
            return False

    def pread_cached(self, pos: int, length: int) -> bytes | None:
        """Works like `pread`, if the page cache has all of it; None otherwise, and across two files."""
        start = pos - pos % self.segment_bytes
        if pos + length > start + self.segment_bytes:
            return None
        try:
            with self._open.use(start, self.path) as fd:
                return self._disk.pread_cached(fd, length, pos - start)
        except OSError:
            return None

    def pread_disk(self, pos: int, length: int) -> tuple[bytes, bool]:
        """Read within one file, bypassing the page cache; returns also whether that certainly happened."""
        start = pos - pos % self.segment_bytes
        try:
            with self._open.use(start, self.path) as fd:
                data, came_from_disk = self._disk.pread_disk(fd, length, pos - start)
        except FileNotFoundError:
            return self.pread(pos, length), False  # reports the error
        except OSError as error:
            raise self._unread(pos, error) from error
        return (data, came_from_disk) if len(data) == length else (self.pread(pos, length), False)

    def pread_padded(self, pos: int, length: int, *, needs_all: bool = False) -> bytes:
        """Read like `pread` within one file, but missing bytes at its end read as zero.

        So do unreadable blocks, unless the caller ``needs_all``. Raises `StorageFailed`.
        """
        start = pos - pos % self.segment_bytes
        assert pos + length <= start + self.segment_bytes, f"{length} bytes at {pos} cross the end of a segment"
        parts: list[bytes] = []
        at, end = pos - start, pos - start + length
        try:
            with self._open.use(start, self.path) as fd:
                # Reserved space that was never written need not be read, least of all a gigabyte of it.
                ranges = self._disk.data_ranges(fd, at, end) if length >= _HOLE_BYTES_MIN else [(at, end)]
                for data_at, data_end in ranges:
                    parts.append(bytes(data_at - at))
                    at = data_at
                    while at < data_end and (data := self._pread_some(fd, data_end - at, at, needs_all)):
                        parts.append(data)
                        at += len(data)
        except OSError as error:
            raise StorageFailed(self.path(start), error.errno or 0, "read") from error
        parts.append(bytes(end - at))
        return b"".join(parts)

    def _pread_some(self, fd: int, length: int, offset: int, needs_all: bool) -> bytes:
        """Read the part of these bytes that the disk reads at once; zeros for an unreadable block. Raises OSError."""
        while True:
            try:
                return self._disk.pread(fd, length, offset)
            except OSError as error:
                if error.errno != errno.EIO or needs_all:
                    raise
            if (shorter := shorter_read(offset, length)) is None:
                return bytes(length)
            length = shorter

    def _unread(self, pos: int, error: OSError) -> StorageCorrupt | StorageFailed:
        """The error for a failed read. An unreadable sector is as damaged as one with wrong bytes."""
        path = self.path(self.start_of(pos))
        if error.errno == errno.EIO:
            return StorageCorrupt(path, pos, "the disk cannot read it")
        return StorageFailed(path, error.errno or 0, "read")

    def exists(self, start: int) -> bool:
        """Whether there is a file at ``start``, with its full length."""
        return start in self._starts

    def use_file(self, start: int) -> Descriptor:
        """Return the file at ``start``; its descriptor stays open for one ``with``. Raises `StorageFailed`."""
        try:
            return self._open.use(start, self.path)
        except OSError as error:
            raise StorageFailed(self.path(start), error.errno or 0, "write") from error

    def size(self, start: int) -> int:
        """Length of a file in bytes."""
        with self._open.use(start, self.path) as fd:
            return self._disk.size(fd)

    def write(self, pos: int, buffers: Sequence[Buffer]) -> None:
        """Write within one file, created if missing. Not durable before `sync`. Raises `StorageFailed`."""
        end, file_end = pos + sum(map(len, buffers)), self.start_of(pos) + self.segment_bytes
        assert end <= file_end, f"a write of {pos}..{end} crosses the end of the file at {file_end}"
        self._write(self._disk.pwritev, pos, buffers)

    def write_synced(self, pos: int, buffers: Sequence[Buffer]) -> None:
        """`write` and make it durable with the same call: a thread that writes releases the interpreter once, not
        twice. All earlier writes to the file must have been synced. Raises `StorageFailed`.
        """
        self._write(self._disk.write_synced, pos, buffers)

    def _write(self, write: Write, pos: int, buffers: Sequence[Buffer]) -> None:
        start = pos - pos % self.segment_bytes
        self.ensure(start)
        try:
            with self._open.use(start, self.path) as fd:
                write_fully(write, fd, buffers, pos - start)
        except OSError as error:
            raise StorageFailed(self.path(start), error.errno or 0, "write") from error

    def sync(self, start: int) -> None:
        """Make writes to a file durable. Raises `StorageFailed`; nothing may be written afterwards."""
        try:
            with self._open.use(start, self.path) as fd:
                self._disk.fdatasync(fd)
        except OSError as error:
            raise StorageFailed(self.path(start), error.errno or 0, "fdatasync") from error

    def write_again(self, pos: int, end: int, *, needs_all: bool = True) -> None:
        """Write the content of ``pos..end`` to the same place again, and sync it. Raises `StorageFailed`.

        An unreadable part fails, or becomes zeros unless the caller ``needs_all``.

        After a failed sync, the system may have bytes only in its cache and consider them written: later syncs do not
        write them, and they are lost with the cache. Trailing zeros of a file are omitted.
        """
        for start in self.starts:
            begin, file_end = max(pos, start), min(end, start + self.segment_bytes)
            if begin >= file_end:
                continue
            read = partial(self.pread_padded, needs_all=needs_all)
            data_end = end_of_data(read, begin, file_end)
            for at in range(begin, data_end, self.limits.sync_bytes_max):
                self.write(at, [read(at, min(self.limits.sync_bytes_max, data_end - at))])
            # Even without nonzero bytes: pending writes in the cache are made durable, too.
            self.sync(start)

    def zero(self, pos: int, end: int) -> None:
        """Zero the bytes ``pos`` to ``end`` of one file, durably. Raises `StorageFailed`."""
        file_end = self.start_of(pos) + self.segment_bytes
        assert pos <= end <= file_end, f"zeros at {pos}..{end} in the file that ends at {file_end}"
        step = self.limits.sync_bytes_max
        for begin in range(pos, end, step):
            self.write(begin, [_ZEROS[: min(step, end - begin)]])
        if pos < end:
            self.sync(self.start_of(pos))

    def drop_behind(self, start: int) -> None:
        """Remove all files after the one at ``start``, newest first and durably, and the sidecar of that one.

        Raises `StorageFailed`.
        """
        assert start % self.segment_bytes == 0, f"no file of {self.segment_bytes} bytes begins at {start}"
        self._finish_preparation()
        for newer in sorted((s for s in self._starts if s > start), reverse=True):
            self._remove(newer)
            # Each removal is durable before the next, so that no crash leaves a gap between names.
            self._sync_names()
        for sidecar in [sidecar for sidecar in self._sidecars if sidecar >= start]:
            self._remove_sidecar(sidecar)

    def drop_below(self, pos: int) -> None:
        """Remove all files that end at or below ``pos``, oldest first and durably. Raises `StorageFailed`."""
        assert pos <= self.base_pos, f"files below {pos} are removed, the log begins at {self.base_pos}"
        older = [start for start in self.starts if start + self.segment_bytes <= pos]
        for start in older:
            self._remove(start)
        if older:
            self._sync_names()
        for sidecar in [sidecar for sidecar in self._sidecars if sidecar < pos]:
            self._remove_sidecar(sidecar)

    def sidecar_path(self, start: int) -> str:
        """Path of the sidecar of the segment that begins at ``start``."""
        return self.path(start) + ".index"

    def read_sidecar(self, start: int) -> bytes:
        """Content of a segment's sidecar; empty if it is missing or unreadable."""
        if start not in self._sidecars:
            return b""
        try:
            fd = self._disk.open(self.sidecar_path(start))
            try:
                return self._disk.pread(fd, self._disk.size(fd), 0)
            finally:
                self._disk.close(fd)
        except OSError:
            return b""

    def write_sidecar(self, start: int, content: bytes) -> None:
        """Write a segment's sidecar. It can be rebuilt, so errors are ignored.

        It is synced before it gets its name, so the content under that name is complete. A power cut may remove the
        name again.
        """
        assert start % self.segment_bytes == 0, f"no file of {self.segment_bytes} bytes begins at {start}"
        path = self.sidecar_path(start)
        try:
            fd = self._disk.open(path + ".tmp", create=True)
            try:
                self._disk.truncate(fd, 0)
                write_fully(self._disk.pwritev, fd, [content], 0)
                self._disk.fdatasync(fd)
            finally:
                self._disk.close(fd)
            self._disk.rename(path + ".tmp", path)
        except OSError:
            return
        self._sidecars.add(start)

    def ensure(self, start: int) -> None:
        """Ensure that the file at ``start`` exists with its full length. Raises `StorageFailed`."""
        if start in self._starts:
            return
        self._finish_preparation()
        if start in self._starts:
            return
        try:
            self._make(start)
        except OSError as error:
            raise StorageFailed(self.path(start), error.errno or 0, "preparation") from error

    def restore_length(self, start: int) -> None:
        """Restore the full length of a file that lost some of it. Raises `StorageFailed`."""
        try:
            with self._open.use(start, self.path) as fd:
                if self._disk.size(fd) < self.segment_bytes:
                    self._disk.truncate(fd, self.segment_bytes)
                    self._disk.fdatasync(fd)
        except OSError as error:
            raise StorageFailed(self.path(start), error.errno or 0, "truncate") from error

    def prepare(self, start: int) -> None:
        """Start creating the file at ``start`` on a separate thread, unless that is in progress.

        Errors are ignored: creation is retried when the file is needed, and that attempt reports them.
        """
        if start in self._starts or (self._preparation is not None and self._preparation.is_alive()):
            return
        self._hurry.clear()
        self._preparation = threading.Thread(target=self._prepare, args=(start,), name=f"segment-{start}", daemon=True)
        self._preparation.start()

    def reopen(self) -> None:
        """Continue with new descriptors, for which the system reads ahead again."""
        self._open.close()

    def close(self) -> None:
        """Close all descriptors; a preparation in progress is abandoned."""
        self._closing = True
        self._finish_preparation()
        self._open.close()

    def _remove(self, start: int) -> None:
        try:
            self._disk.unlink(self.path(start))
        except OSError as error:
            raise StorageFailed(self.path(start), error.errno or 0, "unlink") from error
        self._starts.discard(start)
        self._open.forget(start)

    def _remove_sidecar(self, start: int) -> None:
        try:
            self._disk.unlink(self.sidecar_path(start))
        except OSError as error:
            raise StorageFailed(self.sidecar_path(start), error.errno or 0, "unlink") from error
        self._sidecars.discard(start)

    def _sync_names(self) -> None:
        try:
            self._disk.sync_directory(self.directory)
        except OSError as error:
            raise StorageFailed(self.directory, error.errno or 0, "directory sync") from error

    def _prepare(self, start: int) -> None:
        try:
            self._make(start)
        except OSError:
            return

    def _finish_preparation(self) -> None:
        if self._preparation is not None:
            self._hurry.set()
            self._preparation.join()
            self._preparation = None

    def _make(self, start: int) -> None:
        assert start % self.segment_bytes == 0, f"no file of {self.segment_bytes} bytes begins at {start}"
        assert start not in self._starts, f"the file at {start} would replace the one that is there"
        path = self.path(start)
        fd = self._disk.open(path + ".tmp", create=True)
        try:
            # A file from a failed attempt has a length already.
            self._disk.truncate(fd, 0)
            self._disk.truncate(fd, self.segment_bytes)
            if self._preallocation is not Preallocation.NONE:
                self._disk.allocate(fd, self.segment_bytes)
            if self._preallocation is Preallocation.ZERO and not self._fill(fd):
                self._disk.close(fd)
                return
            self._disk.fdatasync(fd)
            self._disk.rename(path + ".tmp", path)
            self._disk.sync_directory(self.directory)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.truncate(fd, 0)  # the free space is less than a file
            self._disk.close(fd)
            raise
        self._open.put(start, fd)
        self._starts.add(start)

    def _fill(self, fd: int) -> bool:
        in_background = threading.current_thread() is self._preparation
        step = self.limits.sync_bytes_max
        for offset in range(0, self.segment_bytes, step):
            if self._closing:
                return False
            nbytes = min(step, self.segment_bytes - offset)
            write_fully(self._disk.pwritev, fd, [_ZEROS[:nbytes]], offset)
            if in_background and not self._hurry.is_set():
                # Small synced steps with a rate limit, so that no group commit waits behind the whole file.
                self._disk.fdatasync(fd)
                self._hurry.wait(nbytes / _FILL_BYTES_PER_SECOND)
        return True
