"""The segment files of a directory: names, descriptors, reads, writes, and the next file made ahead of need.

A segment is named by the physical offset of its first byte in 20 digits, and has its full length from the moment it
has that name: it is made under another name, filled, synced and then renamed.
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
from raftlog.segment.open_files import OpenFiles
from raftlog.segment.recovery import end_of_data

ZERO_FILL_SEGMENT_BYTES_MAX: Final = 256 * 1024 * 1024
_FILL_BYTES_PER_SECOND: Final = 128 * 1024 * 1024
_NAME = re.compile(r"\d{20}")
_SIDECAR_NAME = re.compile(r"(\d{20})\.index")
_ZEROS: Final = bytes(SYNC_BYTES_MAX)
_HOLE_BYTES_MIN: Final = 64 * 1024
DISK_BLOCK_BYTES: Final = 4096
"""What a disk gives, or does not give, as a whole."""


class Preallocation(enum.Enum):
    """How a segment gets its length."""

    NONE = "none"
    """A hole: a full disk shows only when an entry is written."""
    RESERVE = "reserve"
    """Reserved blocks: a full disk shows when the file is made."""
    ZERO = "zero"
    """Written blocks: syncs are cheaper, since no block changes its state, but every byte is written twice."""

    @classmethod
    def for_segment(cls, segment_bytes: int) -> Preallocation:
        """The default: zeros up to 256 MiB, beyond that a reservation."""
        return cls.ZERO if segment_bytes <= ZERO_FILL_SEGMENT_BYTES_MAX else cls.RESERVE


def segment_start(name: str, segment_bytes: int) -> int | None:
    """Where the segment of this name begins; None for the name of something else."""
    return int(name) if _NAME.fullmatch(name) and int(name) % segment_bytes == 0 else None


def shorter_read(offset: int, length: int) -> int | None:
    """How many bytes to try instead, when the disk does not give ``length`` bytes from ``offset`` on in a file.

    None when they lie in one block, which is lost as a whole. Half of them, up to the end of a block, otherwise: a disk
    may try for seconds before it gives up.
    """
    block_rest = DISK_BLOCK_BYTES - offset % DISK_BLOCK_BYTES
    if length <= block_rest:
        return None
    return max(block_rest, length // 2 - (offset + length // 2) % DISK_BLOCK_BYTES)


class SegmentFiles:
    """All segments of one directory.

    Reading is for any thread; everything that changes files is for the writer's. A file that is dropped stays readable
    for whoever is reading it at that moment.

    Attributes:
        base_pos: what lies below may be gone. The log's owner raises it before the files go.
    """

    def __init__(self, disk: Disk, directory: str, segment_bytes: int, preallocation: Preallocation) -> None:
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
        self._sidecars = {int(found[1]) for name in names if (found := _SIDECAR_NAME.fullmatch(name))}
        for name in names:
            if name.endswith(".tmp"):
                disk.unlink(os.path.join(directory, name))
        # A name that no segment can have is somebody else's file; it is left alone.
        starts = (segment_start(name, segment_bytes) for name in names)
        self._starts = {start for start in starts if start is not None}

    @property
    def starts(self) -> list[int]:
        """Physical offsets at which the files begin, ascending."""
        return sorted(self._starts)

    def path(self, start: int) -> str:
        """Path of the segment that begins at ``start``."""
        return os.path.join(self.directory, f"{start:020d}")

    def start_of(self, pos: int) -> int:
        """Where the file begins in which ``pos`` lies."""
        return pos - pos % self.segment_bytes

    def pread(self, pos: int, length: int) -> bytes:
        """Read ``length`` bytes at a physical offset, across files if need be.

        Raises:
            EntryGone: a file is missing, and lies below `base_pos`.
            StorageCorrupt: a file is missing or too short.
            StorageFailed: the disk refused.
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
            raise StorageCorrupt(self.path(start), pos, "segment is missing") from error
        except OSError as error:
            raise self._unread(pos, error) from error
        here = min(length, self.segment_bytes - offset)
        data = self.pread_padded(pos, here)
        if size < offset + here:
            raise StorageCorrupt(self.path(start), pos, f"segment is {size} bytes long")
        return data if here == length else data + self.pread(pos + here, length - here)

    def is_cached(self, pos: int, length: int) -> bool:
        """Whether `pread` gets these bytes without a wait for the disk. May be False although it does."""
        start = pos - pos % self.segment_bytes
        if pos + length > start + self.segment_bytes:
            return False
        try:
            with self._open.use(start, self.path) as fd:
                return self._disk.is_cached(fd, length, pos - start)
        except OSError:
            return False

    def pread_cached(self, pos: int, length: int) -> bytes | None:
        """As `pread`, if the page cache has all of it; None otherwise, and for bytes of two files."""
        start = pos - pos % self.segment_bytes
        if pos + length > start + self.segment_bytes:
            return None
        try:
            with self._open.use(start, self.path) as fd:
                return self._disk.pread_cached(fd, length, pos - start)
        except OSError:
            return None

    def pread_disk(self, pos: int, length: int) -> tuple[bytes, bool]:
        """As `pread` within one file, past the page cache, and whether the bytes certainly came from the disk."""
        start = pos - pos % self.segment_bytes
        try:
            with self._open.use(start, self.path) as fd:
                data, came_from_disk = self._disk.pread_disk(fd, length, pos - start)
        except FileNotFoundError:
            return self.pread(pos, length), False  # which says what that means
        except OSError as error:
            raise self._unread(pos, error) from error
        return (data, came_from_disk) if len(data) == length else (self.pread(pos, length), False)

    def pread_padded(self, pos: int, length: int, *, needs_all: bool = False) -> bytes:
        """Like `pread` within one file, but what the file lacks reads as zero.

        So does what the disk does not give, unless the caller ``needs_all``. Raises `StorageFailed`.
        """
        start = pos - pos % self.segment_bytes
        assert pos + length <= start + self.segment_bytes, f"{length} bytes at {pos} cross the end of a segment"
        parts: list[bytes] = []
        at, end = pos - start, pos - start + length
        try:
            with self._open.use(start, self.path) as fd:
                # What is reserved and was never written needs no reading, least of all a gigabyte of it.
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
        """As many of these bytes as the disk gives at once; zeros for a block that it does not give. Raises OSError."""
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
        """What it means that a read failed. A sector that cannot be read is as damaged as one with other bytes."""
        path = self.path(self.start_of(pos))
        if error.errno == errno.EIO:
            return StorageCorrupt(path, pos, "the disk cannot read it")
        return StorageFailed(path, error.errno or 0, "read")

    def size(self, start: int) -> int:
        """Length of a file in bytes."""
        with self._open.use(start, self.path) as fd:
            return self._disk.size(fd)

    def write(self, pos: int, buffers: Sequence[Buffer]) -> None:
        """Write within one file, which is made if it is missing. Not durable before `sync`. Raises `StorageFailed`."""
        self._write(self._disk.pwritev, pos, buffers)

    def write_synced(self, pos: int, buffers: Sequence[Buffer]) -> None:
        """`write` and make it durable with the same call: a thread that writes gives up the interpreter once, not
        twice. Everything written to the file before must have been synced. Raises `StorageFailed`.
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
        """Make what was written to a file durable. Raises `StorageFailed`; then nothing may be written any more."""
        try:
            with self._open.use(start, self.path) as fd:
                self._disk.fdatasync(fd)
        except OSError as error:
            raise StorageFailed(self.path(start), error.errno or 0, "fdatasync") from error

    def write_again(self, pos: int, end: int, *, needs_all: bool = True) -> None:
        """Write what is read in ``pos..end`` to where it was read from, and sync it. Raises `StorageFailed`.

        If the disk does not give a part of it, that fails, or zeros are written there unless the caller ``needs_all``.

        After a sync that failed, the system may have bytes in its cache only and take them for written: no sync writes
        them then, and they are gone with the cache. Zeros behind the last other byte of a file are left out.
        """
        for start in self.starts:
            begin, file_end = max(pos, start), min(end, start + self.segment_bytes)
            if begin >= file_end:
                continue
            read = partial(self.pread_padded, needs_all=needs_all)
            data_end = end_of_data(read, begin, file_end)
            for at in range(begin, data_end, SYNC_BYTES_MAX):
                self.write(at, [read(at, min(SYNC_BYTES_MAX, data_end - at))])
            # Even without any such byte: what waits in the cache to be written is made durable, too.
            self.sync(start)

    def zero(self, pos: int, end: int) -> None:
        """Zero the bytes ``pos`` to ``end`` of one file, durably. Raises `StorageFailed`."""
        for begin in range(pos, end, SYNC_BYTES_MAX):
            self.write(begin, [_ZEROS[: end - begin]])
        if pos < end:
            self.sync(self.start_of(pos))

    def drop_behind(self, start: int) -> None:
        """Remove all files behind the one at ``start``, newest first and durably, and what is beside that one.

        Raises `StorageFailed`.
        """
        self._finish_preparation()
        for newer in sorted((s for s in self._starts if s > start), reverse=True):
            self._remove(newer)
            # Each removal is durable before the next, so that no crash leaves a gap between names.
            self._sync_names()
        for sidecar in [sidecar for sidecar in self._sidecars if sidecar >= start]:
            self._remove_sidecar(sidecar)

    def drop_below(self, pos: int) -> None:
        """Remove all files that end at or below ``pos``, oldest first and durably. Raises `StorageFailed`."""
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
        """Content of a segment's sidecar; nothing when there is none or it cannot be read."""
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
        """Keep something beside a segment that can be made again: a failure is kept quiet.

        It is synced before it gets its name, so what is found under that name is what was written. A power cut may
        take the name away again.
        """
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
        """Have the file at ``start``, with its full length. Raises `StorageFailed`."""
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
        """Give a file its full length again that lost some of it. Raises `StorageFailed`."""
        try:
            with self._open.use(start, self.path) as fd:
                if self._disk.size(fd) < self.segment_bytes:
                    self._disk.truncate(fd, self.segment_bytes)
                    self._disk.fdatasync(fd)
        except OSError as error:
            raise StorageFailed(self.path(start), error.errno or 0, "truncate") from error

    def prepare(self, start: int) -> None:
        """Begin to make the file at ``start`` on a thread of its own, if nobody did yet.

        A failure is kept quiet: the file is tried again when it is needed, and that attempt reports.
        """
        if start in self._starts or (self._preparation is not None and self._preparation.is_alive()):
            return
        self._hurry.clear()
        self._preparation = threading.Thread(target=self._prepare, args=(start,), name=f"segment-{start}", daemon=True)
        self._preparation.start()

    def reopen(self) -> None:
        """Go on with new descriptors, of which the system knows nothing yet; it reads ahead in their files again."""
        self._open.close()

    def close(self) -> None:
        """Close all descriptors; a preparation that is under way is given up."""
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
        path = self.path(start)
        fd = self._disk.open(path + ".tmp", create=True)
        try:
            # A file of an attempt that failed half way has a length already.
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
                self._disk.truncate(fd, 0)  # what there is of room is not for half a file
            self._disk.close(fd)
            raise
        self._open.put(start, fd)
        self._starts.add(start)

    def _fill(self, fd: int) -> bool:
        in_background = threading.current_thread() is self._preparation
        for offset in range(0, self.segment_bytes, SYNC_BYTES_MAX):
            if self._closing:
                return False
            nbytes = min(SYNC_BYTES_MAX, self.segment_bytes - offset)
            write_fully(self._disk.pwritev, fd, [_ZEROS[:nbytes]], offset)
            if in_background and not self._hurry.is_set():
                # Small synced steps at a bounded rate, so that no group commit waits behind the whole file.
                self._disk.fdatasync(fd)
                self._hurry.wait(nbytes / _FILL_BYTES_PER_SECOND)
        return True
