"""Queries which parts of a file are in the page cache."""

from __future__ import annotations

import ctypes
import os

_CACHESTAT = 451
"""The number of this system call, the same on all architectures; in Linux since 6.5."""
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
FOLIO_BYTES_MAX = 2 * 1024 * 1024
"""The largest unit of the page cache."""
_SCRATCH = memoryview(bytearray(64 * 1024))
"""A buffer for bytes that are discarded."""

_Range = ctypes.c_uint64 * 2
"""Offset and length."""
_Counts = ctypes.c_uint64 * 5
"""Cached pages, and four figures that are not used here."""
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
_syscall.restype = ctypes.c_long


def is_cached(fd: int, length: int, offset: int) -> bool:
    """Whether ``length`` >= 1 bytes of a file can be read without waiting for the disk.

    May be False although they can, if the system does not tell. Disables read-ahead for this descriptor: missing data
    is read elsewhere, and a read of cached data would otherwise start reading megabytes ahead, which a fast processor
    would then wait for after all.
    """
    answer = _cached_by_count(fd, length, offset)
    return _is_read_at_once(fd, length, offset) if answer is None else answer


def pread_cached(fd: int, length: int, offset: int) -> bytes | None:
    """Read ``length`` >= 1 bytes from ``offset`` if the page cache has all of them; None otherwise, or if the system
    does not tell. A read that does not wait (RWF_NOWAIT) tells nothing: a fast disk has answered it by then.

    A page that is evicted between check and read, a microsecond later, comes from the disk.
    """
    return os.pread(fd, length, offset) if _cached_by_count(fd, length, offset) else None


def pread_disk(fd: int, length: int, offset: int) -> tuple[bytes, bool]:
    """Read ``length`` >= 1 bytes from ``offset``, after dropping them from the page cache; and tell whether it dropped
    all of them. It keeps pages that are not written back yet, and some file systems keep all. It drops folios (groups
    of pages) only as a whole: a range to drop begins and ends at multiples of `FOLIO_BYTES_MAX`, or at the end of the
    file.

    Ranges that were completely cached before are cached again, all others are dropped again.
    """
    was_cached = _cached_by_count(fd, length, offset)
    begin = offset - offset % _PAGE_BYTES
    nbytes = -(-(offset + length) // _PAGE_BYTES) * _PAGE_BYTES - begin
    os.posix_fadvise(fd, begin, nbytes, os.POSIX_FADV_DONTNEED)
    is_dropped = _count_cached(fd, length, offset) == 0
    data = os.pread(fd, length, offset)
    if not was_cached:
        os.posix_fadvise(fd, begin, nbytes, os.POSIX_FADV_DONTNEED)
    return data, is_dropped


def _cached_by_count(fd: int, length: int, offset: int) -> bool | None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    count = _count_cached(fd, length, offset)
    return None if count is None else count > (offset + length - 1) // _PAGE_BYTES - offset // _PAGE_BYTES


def _count_cached(fd: int, length: int, offset: int) -> int | None:
    """The number of cached pages in a range; None if the system does not tell, or not for this file."""
    counts = _Counts()
    return int(counts[0]) if _syscall(_CACHESTAT, fd, _Range(offset, length), counts, 0) == 0 else None


def _is_read_at_once(fd: int, length: int, offset: int) -> bool:
    """Works like `is_cached`, by reading; the system may start to read the missing pages ahead."""
    whole, rest = divmod(length, len(_SCRATCH))
    try:
        return os.preadv(fd, [_SCRATCH] * whole + [_SCRATCH[:rest]], offset, os.RWF_NOWAIT) == length
    except OSError:  # not cached, or this file system cannot tell
        return False
