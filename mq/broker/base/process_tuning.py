"""Tunes the interpreter and the allocator of this process. Each setting was measured to be worthwhile."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from typing import NamedTuple, Self

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_SWITCH_SECONDS = 0.0005
_OWN_DESCRIPTORS_MAX = 512
_FREE_DESCRIPTORS_MIN = 16


class DescriptorLimits(NamedTuple):
    """Divides descriptors, so that clients leave enough for the log, and the log leaves some for clients."""

    clients_max: int
    """Maximum number of client connections; the rest is for the log and other files of the broker."""
    number_max: int
    """A connection with this descriptor number or a higher one is refused: others than clients have used up the rest.
    """

    @classmethod
    def from_limit(cls, limit: int) -> Self:
        """Divide ``limit`` descriptors between clients and the log."""
        limits = cls(limit - min(_OWN_DESCRIPTORS_MAX, limit // 2), limit - min(_FREE_DESCRIPTORS_MIN, limit // 4))
        assert 0 <= limits.clients_max <= limits.number_max <= limit, f"{limits} of {limit} descriptors"
        return limits


def descriptor_limits() -> DescriptorLimits:
    """Divide the descriptors that this process may open between clients and the log."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DescriptorLimits.from_limit(soft if soft != resource.RLIM_INFINITY else sys.maxsize)


def allow_descriptors() -> DescriptorLimits:
    """Raise the limit of open files to the system's maximum, and divide it between clients and the log."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return DescriptorLimits.from_limit(hard if hard != resource.RLIM_INFINITY else sys.maxsize)


def tune_process() -> None:
    """Make the allocator reuse large buffers, and let the writer thread notice a finished sync quickly.

    By default glibc maps fresh pages for every buffer of a few hundred KiB, which costs more than filling it; and
    Python lets a busy thread keep the interpreter for 5 ms while another one waits. With these settings a thread's own
    heap would keep up to 64 MiB that are free, so all threads share one.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        libc = ctypes.CDLL(None)
        mallopt = libc.mallopt
    except (OSError, AttributeError):
        return  # another C library; only slower
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, 64 * 1024 * 1024)
    mallopt(_M_TRIM_THRESHOLD, 128 * 1024 * 1024)
    mallopt(_M_TOP_PAD, 16 * 1024 * 1024)


def freeze_startup_objects() -> None:
    """Exclude all objects that exist now from garbage collection, so that full collections stay short."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
