"""The file operations that a log needs, and nothing more, so that a test can put another disk underneath.

All of them raise `OSError` as the operating system does.
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
        """Open a file for reading and writing; ``create`` makes it, empty, when it is missing."""

    def close(self, fd: int) -> None:
        """Release a descriptor and its lock."""

    def size(self, fd: int) -> int:
        """Length of the file in bytes."""

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only at the end of the file."""

    def is_cached(self, fd: int, length: int, offset: int) -> bool:
        """Whether all these bytes are there to be read without a wait for the disk. May be False although they are.

        Through this descriptor nothing is read ahead any more.
        """

    def pread_cached(self, fd: int, length: int, offset: int) -> bytes | None:
        """All ``length`` bytes from ``offset``, if they are there to be read without a wait for the disk; None if they
        are not, or if nobody can tell.
        """

    def pread_disk(self, fd: int, length: int, offset: int) -> tuple[bytes, bool]:
        """As `pread`, past the page cache, and whether that was certainly so. What was cached is cached again."""

    def data_ranges(self, fd: int, offset: int, end: int) -> list[tuple[int, int]]:
        """Where bytes other than zero may be in ``offset..end``: half-open ranges in order.

        May be too much; all of it is always right. Through this descriptor nothing is read ahead any more, since what
        is in the cache does not count as a hole.
        """

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write up to 1024 buffers one behind the other; returns how many bytes were taken, which may be fewer."""

    def write_synced(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """As `pwritev`, and what it took is durable on return, with the length of the file that it needs.

        What was written to the file before, and not synced, may still be lost.
        """

    def fdatasync(self, fd: int) -> None:
        """Make the file's content and length durable."""

    def allocate(self, fd: int, length: int) -> None:
        """Reserve space and make the file ``length`` bytes long; new bytes read as zero."""

    def truncate(self, fd: int, length: int) -> None:
        """Make the file ``length`` bytes long without reserving space."""

    def lock(self, fd: int) -> None:
        """Lock the file against other descriptors. Raises `BlockingIOError` when one holds it."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing ``target`` in one step."""

    def unlink(self, path: str) -> None:
        """Remove a name; open descriptors keep the content."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, in no order."""

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents, durably; one that is there already is fine."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""

    def usage(self, path: str) -> tuple[int, int]:
        """Free and total bytes of the file system that ``path`` is on, as far as they are for everybody."""

    def boot_id(self) -> str:
        """Changes when the machine restarts, that is, when what was not synced may be gone."""


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
            if error.errno != errno.ENXIO:  # which says that there is no more data
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
        os.mkdir(path)
        self.sync_directory(parent)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def usage(self, path: str) -> tuple[int, int]:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, (found.f_blocks - found.f_bfree + found.f_bavail) * found.f_frsize

    def boot_id(self) -> str:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()


class ReadOnlyDisk(RealDisk):
    """The same for files of another process, or on a medium that nobody may write to: nothing is opened for writing."""

    def open(self, path: str, *, create: bool = False) -> int:
        assert not create, f"{path} is to be made on a disk that is only read"
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


Write = Callable[[int, Sequence[Buffer], int], int]
"""`Disk.pwritev` or `Disk.write_synced` of some disk."""

IOVECS_MAX = 1024
"""Most buffers that Linux takes in one call."""


def write_file(disk: Disk, path: str, content: Buffer) -> None:
    """Make a file, or make it anew, and sync it; its name is durable once its directory is. Raises `OSError`."""
    fd = disk.open(path, create=True)
    try:
        disk.truncate(fd, 0)
        write_fully(disk.pwritev, fd, [content], 0)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)


def write_fully(write: Write, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write all buffers one behind the other, in as few calls of ``write`` as the system allows. Raises `OSError`."""
    for first in range(0, len(buffers), IOVECS_MAX):
        part = buffers if len(buffers) <= IOVECS_MAX else buffers[first : first + IOVECS_MAX]
        nbytes = sum(map(len, part))
        written = write(fd, part, offset)
        if written < nbytes:
            rest = memoryview(b"".join(part))
            while written < nbytes:
                # A full disk takes what fits and says so only when asked again.
                taken = write(fd, [rest[written:]], offset + written)
                if taken <= 0:
                    raise OSError(errno.EIO, f"write took {written} of {nbytes} bytes")
                written += taken
        offset += nbytes
