"""Fetches closed files that a leader offers from an archive instead, which spares the leader the reads.

The leader's offer says up to where its log is archived, by an entry and the chain after it. The application reads the
archive, and returns only bytes that lead to that entry (`LogArchive`); they are staged and verified as if a peer had
sent them. Whatever the archive lacks, and everything once it has failed, comes from the leader. If the archive is slow,
the leader is tried with some megabytes, and the faster one sends the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog
import trio

from raftlog.node_limits import NodeLimits
from raftlog.segment.errors import SegmentError, StorageFailed
from raftlog.segment.meta import Base
from raftlog.segment.snapshot_install import SnapshotInstall

Log = structlog.stdlib.BoundLogger

_TINY: Final = 1e-9
"""Instead of a time of zero."""


class LogArchive(Protocol):
    """Reads a copy of the log's beginning that is stored outside of its replicas. For one thread at a time."""

    def read(self, pos: int, nbytes: int, /) -> bytes:
        """Read bytes of one closed file, verified to be of this log. Fast at rising positions. Raises SegmentError."""

    def close(self) -> None:
        """Stop reading; a `read` that is under way may fail."""


OpenArchive = Callable[[Base], LogArchive]
"""Opens the archive of a log that is archived up to there. For a thread; raises SegmentError."""


class Rate:
    """Measures the rate of reads: their bytes, and the time that they took, without pauses."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._seconds = 0.0

    def add_sample(self, nbytes: int, seconds: float) -> None:
        """Count bytes that were read."""
        self.nbytes += nbytes
        self._seconds += seconds

    @property
    def per_second(self) -> float:
        """Return the bytes read per second."""
        return self.nbytes / max(self._seconds, _TINY)


@dataclass(slots=True)
class Trial:
    """A trial whether the leader is faster: from ``began`` on it is asked for ``nbytes`` up to ``end_pos``."""

    began: float
    nbytes: int
    end_pos: int
    is_over: bool = False


class ArchivedFiles:
    """Fetches the files of one offer from the archive. Call `close` at the end.

    Args:
        archive_end: the log is archived up to there, as the leader has told.

    Attributes:
        first_read: set when the first byte was read, or nothing will be.
        nbytes: how many bytes of the log were taken from the archive.
    """

    def __init__(self, open_archive: OpenArchive, archive_end: Base, log: Log, limits: NodeLimits) -> None:
        self._limits = limits
        self._open_archive = open_archive
        self._archive_end = archive_end
        self._log = log
        self._archive: LogArchive | None = None
        self._rate = Rate()
        self._trial: Trial | None = None
        self.first_read = trio.Event()
        self.nbytes = 0

    def wants(self, pos: int) -> bool:
        """Whether to read the next missing byte, at ``pos`` in a closed file, from the archive."""
        if self._archive is None or pos >= self._archive_end.pos:
            return False
        if (trial := self._trial) is None or trial.is_over:
            return True
        if pos < trial.end_pos:
            return False
        trial.is_over = True
        of_leader = trial.nbytes / max(trio.current_time() - trial.began, _TINY)
        if of_leader > self._rate.per_second:
            self._give_up(f"{self._rate.per_second:.0f} bytes came in a second, and {of_leader:.0f} from the leader")
        return self._archive is not None

    def close(self) -> None:
        """Stop fetching."""
        if self._archive is not None:
            self._archive.close()
            self._archive = None

    async def open(self, pos: int) -> None:
        """Open the archive, and read at ``pos`` to check that the file is of this log. This may take a while."""

        def open_and_read() -> LogArchive:
            archive = self._open_archive(self._archive_end)
            archive.read(pos, 1)
            return archive

        await trio.lowlevel.checkpoint()
        try:
            self._archive = await trio.to_thread.run_sync(open_and_read, abandon_on_cancel=True)
        except SegmentError as error:
            self._give_up(str(error))
        self.first_read.set()

    async def fetch(self, staging: SnapshotInstall, is_over: Callable[[], bool]) -> None:
        """Fetch the missing entries from the archive, until that fails or ``is_over``. Raises StorageFailed."""
        assert self._archive is not None, "files are taken from an archive that is not open"
        send, receive = trio.open_memory_channel[tuple[int, bytes]](1)
        failure: StorageFailed | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_on, staging, send)
            try:
                async for pos, data in receive:
                    if not await trio.to_thread.run_sync(partial(_stage, staging, pos, data)):
                        self._give_up("its files do not continue the log that the leader offers")
                        break
                    self.nbytes += len(data)
                    if is_over() or self._begins_trial(pos + len(data)):
                        break
            except StorageFailed as error:
                failure = error  # not raised here, where it would be wrapped
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def _begins_trial(self, pos: int) -> bool:
        """Whether the leader is to be asked for what begins at ``pos``, since the archive is slow; only once."""
        limits = self._limits
        if self._trial is not None or self._rate.nbytes < limits.archive_trial_bytes:
            return False
        if self._rate.per_second >= limits.archive_slow_bytes_per_second:
            self._rate = Rate()
            return False
        self._trial = Trial(trio.current_time(), limits.archive_trial_bytes, pos + limits.archive_trial_bytes)
        return True

    async def _read_on(self, staging: SnapshotInstall, send: trio.MemorySendChannel[tuple[int, bytes]]) -> None:
        """Read ahead of what is staged, one piece."""
        archive, request = self._archive, staging.next_request()
        assert archive is not None, "an archive that is not open is read"
        assert request is not None, "nothing is missing"
        size, pos = staging.manifest.segment_bytes, request[1]
        nbytes_max = max(1, self._limits.archive_read_bytes // staging.piece_bytes) * staging.piece_bytes
        stop = min(self._archive_end.pos, staging.manifest.starts.stop)
        async with send:
            while pos < stop:
                nbytes = min(nbytes_max, size - pos % size)
                began = trio.current_time()
                try:
                    with trio.fail_after(self._limits.archive_read_seconds):
                        data = await trio.to_thread.run_sync(archive.read, pos, nbytes, abandon_on_cancel=True)
                except SegmentError as error:
                    self._give_up(str(error))
                    return
                except trio.TooSlowError:
                    self._give_up(f"{nbytes} bytes did not come within {self._limits.archive_read_seconds:g} s")
                    return
                self._rate.add_sample(nbytes, trio.current_time() - began)
                await send.send((pos, data))
                pos += nbytes

    def _give_up(self, reason: str) -> None:
        self.close()
        self._log.warning("install_without_archive", reason=reason, archived_bytes=self.nbytes)


def _stage(staging: SnapshotInstall, pos: int, data: bytes) -> bool:
    """Stage bytes piece by piece, as they are wanted; returns whether they fit. Raises StorageFailed."""
    size = staging.piece_bytes
    return all(staging.accept("log", pos + at, data[at : at + size]) for at in range(0, len(data), size))
