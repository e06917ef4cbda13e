"""Process-wide settings of the interpreter and the allocator that a broker wants; each was measured to pay."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from typing import NamedTuple, Self

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_SWITCH_SECONDS = 0.0005
_OWN_DESCRIPTORS_MAX = 512
_FREE_DESCRIPTORS_MIN = 16


class DescriptorLimits(NamedTuple):
    """What the log needs must not depend on how many clients there are, and must not shut all clients out either."""

    clients_max: int
    """So many connections of clients; what is left then is for the log and everything else of the broker."""
    number_max: int
    """A connection that got this number or a higher one takes what the log needs next, whoever has all the others."""

    @classmethod
    def of(cls, limit: int) -> Self:
        """How a process shares out the descriptors that the system allows."""
        return cls(limit - min(_OWN_DESCRIPTORS_MAX, limit // 2), limit - min(_FREE_DESCRIPTORS_MIN, limit // 4))


def allow_descriptors() -> DescriptorLimits:
    """Open as many files as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return DescriptorLimits.of(hard if hard != resource.RLIM_INFINITY else sys.maxsize)


def tune_process() -> None:
    """Keep large buffers in the heap, and let the writer thread see a finished sync soon.

    By default glibc maps fresh pages for every buffer of a few hundred KiB, which costs more than filling it; and
    Python lets a busy thread keep the interpreter for 5 ms while another one waits.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        libc = ctypes.CDLL(None)
        mallopt = libc.mallopt
    except (OSError, AttributeError):
        return  # another C library; only speed is lost
    mallopt(_M_MMAP_THRESHOLD, 64 * 1024 * 1024)
    mallopt(_M_TRIM_THRESHOLD, 128 * 1024 * 1024)
    mallopt(_M_TOP_PAD, 16 * 1024 * 1024)


def freeze_startup_objects() -> None:
    """Take everything that start-up made out of the garbage collector's sight: full collections stay short."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
