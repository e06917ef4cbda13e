"""The file operations of a log as an interface, so that tests can simulate a disk.

All of them raise `OSError` like the operating system.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from raftlog.segment.page_cache import is_cached, pread_cached, pread_disk

Buffer = bytes | bytearray | memoryview


class Disk(Protocol):
    """A file system. File descriptors are small integers; several threads may use one."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open a file for reading and writing; ``create`` creates a missing one, empty."""

    def close(self, fd: int) -> None:
        """Release a descriptor and its lock."""

    def size(self, fd: int) -> int:
        """Length of the file in bytes."""

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read up to ``length`` bytes from ``offset``; fewer only at the end of the file."""

    def is_cached(self, fd: int, length: int, offset: int) -> bool:
        """Whether all these bytes can be read without waiting for the disk. May be False although they can.

        Disables read-ahead for this descriptor.
        """

    def pread_cached(self, fd: int, length: int, offset: int) -> bytes | None:
        """Read all ``length`` bytes from ``offset`` if that needs no wait for the disk; else, or if unknown, None."""

    def pread_disk(self, fd: int, length: int, offset: int) -> tuple[bytes, bool]:
        """Read like `pread`, bypassing the page cache; returns also whether that certainly happened. Cached data is
        cached again afterwards.
        """

    def data_ranges(self, fd: int, offset: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of ``offset..end`` that may have nonzero bytes, as half-open ranges in order.

        May be too much; the full range is always right. Disables read-ahead for this descriptor, since cached pages do
        not count as a hole.
        """

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write up to 1024 buffers back to back; returns how many bytes were written, which may be fewer."""

    def write_synced(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Works like `pwritev`, but the written bytes are durable on return, including the required file length.

        Earlier unsynced writes to the file may still be lost.
        """

    def fdatasync(self, fd: int) -> None:
        """Make the file's content and length durable."""

    def allocate(self, fd: int, length: int) -> None:
        """Reserve space and extend the file to ``length`` bytes; new bytes read as zero."""

    def truncate(self, fd: int, length: int) -> None:
        """Set the file's length to ``length`` bytes without reserving space."""

    def lock(self, fd: int) -> None:
        """Lock the file against other descriptors. Raises `BlockingIOError` if it is locked."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing ``target`` atomically."""

    def unlink(self, path: str) -> None:
        """Remove a name; open descriptors keep the content."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, in any order."""

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents, durably; an existing one is fine."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""

    def usage(self, path: str) -> tuple[int, int]:
        """Free and total bytes of the file system of ``path``, for unprivileged users."""

    def boot_id(self) -> str:
        """Return an id that changes at a reboot, after which unsynced data may be lost."""


class RealDisk:
    """The operating system's file system (Linux)."""

    def open(self, path: str, *, create: bool = False) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        return os.pread(fd, length, offset)

    def is_cached(self, fd: int, length: int, offset: int) -> bool:
        return is_cached(fd, length, offset)

    def pread_cached(self, fd: int, length: int, offset: int) -> bytes | None:
        return pread_cached(fd, length, offset)

    def pread_disk(self, fd: int, length: int, offset: int) -> tuple[bytes, bool]:
        return pread_disk(fd, length, offset)

    def data_ranges(self, fd: int, offset: int, end: int) -> list[tuple[int, int]]:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        ranges: list[tuple[int, int]] = []
        try:
            while (begin := os.lseek(fd, offset, os.SEEK_DATA)) < end:
                offset = min(os.lseek(fd, begin, os.SEEK_HOLE), end)
                ranges.append((begin, offset))
        except OSError as error:
            if error.errno != errno.ENXIO:  # there is no more data
                raise
        return ranges

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(fd, buffers, offset)

    def write_synced(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(fd, buffers, offset, os.RWF_DSYNC)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def allocate(self, fd: int, length: int) -> None:
        os.posix_fallocate(fd, 0, length)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def lock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def mkdir(self, path: str) -> None:
        path = os.path.abspath(path)
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.mkdir(parent)
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):  # else another process was faster
                raise
        self.sync_directory(parent)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def usage(self, path: str) -> tuple[int, int]:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize, (status.f_blocks - status.f_bfree + status.f_bavail) * status.f_frsize

    def boot_id(self) -> str:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()


class ReadOnlyDisk(RealDisk):
    """Opens files only to read them: files of another process, or on a read-only medium."""

    def open(self, path: str, *, create: bool = False) -> int:
        assert not create, f"{path} is to be made on a disk that is only read"
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


Write = Callable[[int, Sequence[Buffer], int], int]
"""`Disk.pwritev` or `Disk.write_synced` of a disk."""

IOVECS_MAX = 1024
"""Maximum buffers per call on Linux."""


def write_file(disk: Disk, path: str, content: Buffer) -> None:
    """Create or replace a file, and sync it; its name is durable once its directory is. Raises `OSError`."""
    fd = disk.open(path, create=True)
    try:
        disk.truncate(fd, 0)
        write_fully(disk.pwritev, fd, [content], 0)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)


def write_fully(write: Write, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write all buffers back to back, in as few calls of ``write`` as possible. Raises `OSError`."""
    for first in range(0, len(buffers), IOVECS_MAX):
        part = buffers if len(buffers) <= IOVECS_MAX else buffers[first : first + IOVECS_MAX]
        nbytes = sum(map(len, part))
        total = write(fd, part, offset)
        if total < nbytes:
            rest = memoryview(b"".join(part))
            while total < nbytes:
                # A full disk writes what fits and fails only on the next call.
                count = write(fd, [rest[total:]], offset + total)
                if count <= 0:
                    raise OSError(errno.EIO, f"write took {total} of {nbytes} bytes")
                total += count
        offset += nbytes
