"""The system calls of a log writer, on a simulated disk.

A write may take only a part of its bytes, and a signal may interrupt it before it takes anything. Linux writes less
than it was asked to if the disk or a quota is full, if the file reaches RLIMIT_FSIZE, or if a fatal signal arrives
between two pages; the next write then fails with ENOSPC, EDQUOT or EFBIG. `tests/unit/segment/test_full_disks.py` shows
this on real files. EINTR does not come from local file systems, but from network file systems and FUSE. Here, any write
may be short or interrupted, and the next one succeeds, so that a writer must continue behind the part that was taken.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from chaos.disk import Buffer, MemoryDisk
from raftlog.segment.append_queue import ThreadCalls

_SHORT_SHARE: Final = 0.05
_INTERRUPTED_SHARE: Final = 0.02


class DiskCalls(ThreadCalls):
    """`raftlog.segment.append_queue.SystemCalls` on a simulated disk, for a writer that has a thread.

    Args:
        on_done: called with each reported ticket.
        faults: draws which writes are short or interrupted; None: none of them.
        on_send: called with the sent bytes; returns the number that the network took.
    """

    def __init__(
        self,
        disk: MemoryDisk,
        on_done: Callable[[int], None],
        faults: Random | None = None,
        on_send: Callable[[bytes], int] = len,
    ) -> None:
        super().__init__()
        self._on_send = on_send
        self._disk = disk
        self._on_done = on_done
        self._faults = faults

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int) -> int:
        """Write as `os.pwritev`; without ``RWF_DSYNC``, the bytes are not durable."""
        faults = self._faults
        if faults is not None and faults.random() < _INTERRUPTED_SHARE:
            raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
        if faults is not None and faults.random() < _SHORT_SHARE:
            buffers = _first_bytes(buffers, faults)
        is_synced = flags & os.RWF_DSYNC
        return (self._disk.write_synced if is_synced else self._disk.pwritev)(fd, buffers, offset)

    def report(self, ticket: int) -> None:
        self._on_done(ticket)

    def send(self, fd: int, data: bytes) -> int:
        return self._on_send(data)


class SteppedCalls(DiskCalls):
    """`DiskCalls` for a writer without a thread, which a simulation calls whenever its thread would continue.

    Args:
        clock: seconds of the simulation.
        on_wait: called with the seconds that the writer waits for, at most; it waits when the call has returned.
        on_wake: called when an operation was queued for a writer that waits.
        on_send: as for `DiskCalls`.
    """

    def __init__(
        self,
        disk: MemoryDisk,
        on_done: Callable[[int], None],
        faults: Random | None,
        *,
        clock: Callable[[], float],
        on_wait: Callable[[float | None], None],
        on_wake: Callable[[], None],
        on_send: Callable[[bytes], int],
    ) -> None:
        super().__init__(disk, on_done, faults, on_send)
        self._clock = clock
        self._on_wait = on_wait
        self._on_wake = on_wake

    def monotonic(self) -> float:
        return self._clock()

    def wait(self, seconds: float | None) -> bool:
        self._on_wait(seconds)
        return False

    def wake(self) -> None:
        self._on_wake()


def _first_bytes(buffers: Sequence[Buffer], rng: Random) -> list[Buffer]:
    """Return at least a byte of the first buffers, mostly whole buffers."""
    ends = list(itertools.accumulate(map(len, buffers)))
    count = rng.choice(ends) if rng.random() < 0.3 else rng.randint(1, ends[-1])
    data = b"".join(buffers)
    return [data[: max(1, count)]]
