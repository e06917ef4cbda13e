"""Reads old messages from the archive. Worker threads load verified blocks into memory for the event loop.

The event loop never waits for the store. A reader asks to have places loaded, and is called back when the attempt is
over, or takes too long; what is not in memory then is refused with `ArchivedNotLoaded`, and is still loaded. Readers
that go on in the log get requests of several megabytes, and the next one ahead.

If the store does not answer, cold reads fail with the reason. They have their own threads and a limited number of
requests, so nothing else waits for them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol

from mq.broker.base.archive_tier import Tier
from mq.broker.base.rate_limited_log import Log
from mq.broker.limits import DEFAULT, ArchiveLimits
from raftlog import Job, SegmentError
from raftlog.segment import EntryGone
from raftlog.segment.verified_reads import VerifiedRun

CHUNK_BYTES: Final = 1024 * 1024
"""Requests begin and end at multiples of this, apart from the blocks across them."""
REQUEST_CHUNKS: Final = 4
LOG_AGAIN_SECONDS: Final = 60.0

LogSpan = tuple[int, int]
"""Physical offset and size."""

Fetch = Callable[[int, int], Sequence[tuple[int, bytes]]]
"""``fetch(begin, stop)`` returns the verified blocks of the archive that overlap this range, with their physical
offsets, in order; fewer if the archive ends before. For any thread. Raises SegmentError.
"""


class ArchivedNotLoaded(SegmentError):
    """A message is only in the archive, and not loaded into memory yet. Retrying loads it.

    ``wait`` has the arguments and the result of `ArchivedReads.load`, apart from the places.
    """

    def __init__(self, pos: int, reason: str, wait: Callable[[Callable[[], None]], bool]) -> None:
        super().__init__(f"the message at {pos} is read from the archive: {reason}; try again")
        self.pos = pos
        self.wait = wait


class ArchivedUnreadable(SegmentError):
    """A message is only in the archive, and the last attempt to read it failed."""

    def __init__(self, pos: int, cause: SegmentError) -> None:
        super().__init__(f"the message at {pos} is in the archive, which cannot be read now: {cause}")
        self.pos = pos
        self.cause = cause


class _ArchivedChunkWait:
    """A reader that waits for ``chunk_count`` chunks until ``deadline``."""

    __slots__ = ("chunk_count", "deadline", "then")

    def __init__(self, chunk_count: int, deadline: float, then: Callable[[], None]) -> None:
        assert chunk_count > 0, f"a reader waits for {chunk_count} chunks"
        self.chunk_count = chunk_count
        self.deadline = deadline
        self.then = then


class ArchivedReads:
    """Reads archived bytes of the log, and caches blocks of the archive in memory.

    Args:
        end_pos: the physical offset up to which the log is known to be archived.
        in_background: runs a job in one of the threads for the archive, and its completion on the event loop.
        clock: monotonic seconds.
        log: the operators' log.
    """

    def __init__(
        self,
        *,
        fetch: Fetch,
        end_pos: Callable[[], int],
        in_background: Callable[[Job], None],
        clock: Callable[[], float],
        log: Log,
        limits: ArchiveLimits = DEFAULT.archive,
    ) -> None:
        self._fetch = fetch
        self._end_pos = end_pos
        self._in_background = in_background
        self._clock = clock
        self._log = log
        self._limits = limits
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        """The blocks by physical offset, the last used one last."""
        self._begins: list[int] = []
        self._nbytes = 0
        self._under_way: dict[int, list[_ArchivedChunkWait]] = {}
        self._requests = 0
        self._waits: dict[_ArchivedChunkWait, None] = {}
        self._failures_by_chunk: dict[int, tuple[float, SegmentError]] = {}
        """The time until which a chunk is not tried again, and the reason."""
        self._seen_chunks: OrderedDict[int, None] = OrderedDict()
        self._logged_at = -LOG_AGAIN_SECONDS
        self._fetched_bytes = self._failures = self._refusals = 0

    def counters(self) -> dict[str, int]:
        """Return the counters of archived reads, for operators."""
        return {
            "archive_reads_waiting": len(self._waits),
            "archive_read_bytes": self._fetched_bytes,
            "archive_read_failures": self._failures,
            "archive_reads_refused": self._refusals,
        }

    def has(self, place: LogSpan) -> bool:
        """Return whether the bytes at ``place`` are in memory."""
        return self._find(*place) is not None

    def read(self, pos: int, nbytes: int) -> bytes:
        """Return ``nbytes`` bytes of one entry, starting at the physical offset ``pos``.

        Raises:
            ArchivedNotLoaded: it is being loaded now. ArchivedUnreadable: the last attempt, a moment ago, failed.
        """
        begin = self._find(pos, nbytes)
        if begin is not None:
            self._blocks.move_to_end(begin)
            return self._blocks[begin][pos - begin : pos - begin + nbytes]
        if (cause := self._failure(_chunks([(pos, nbytes)]))) is not None:
            raise ArchivedUnreadable(pos, cause)
        is_busy = not self.load([(pos, nbytes)], lambda: None)
        reason = "too many others are, too" if is_busy else "it is being loaded"
        raise ArchivedNotLoaded(pos, reason, lambda then: self.load([(pos, nbytes)], then))

    def block_at(self, pos: int) -> tuple[int, bytes]:
        """Return the physical offset and the bytes of the block that has the byte at ``pos``. Raises as `read`."""
        self.read(pos, 1)
        begin = self._find(pos, 1)
        assert begin is not None, f"the byte at {pos} was read, and is not in memory"
        return begin, self._blocks[begin]

    def load(self, places: Sequence[LogSpan], then: Callable[[], None]) -> bool:
        """Load ascending places, and call ``then`` when they are loaded, loading failed, or it took too long.

        Returns False, and does not call ``then``, if there is nothing to wait for: all can be read, or some cannot.
        """
        chunks = _chunks([place for place in places if not self.has(place)])
        if not chunks:
            self._went_on(places[-1])
            return False
        if self._failure(chunks) is not None:
            return False
        new = [chunk for chunk in chunks if chunk not in self._under_way]
        groups = list(_groups(new))
        if self._requests + len(groups) > self._limits.read_requests_max:
            self._refusals += 1
            return False
        wait = _ArchivedChunkWait(len(chunks), self._clock() + self._limits.read_wait_seconds, then)
        self._waits[wait] = None
        for chunk in chunks:
            self._under_way.setdefault(chunk, []).append(wait)
        follows = chunks[0] - 1 in self._seen_chunks
        for group in groups:
            if follows and group[-1] == chunks[-1]:
                group = self._extend(group)
            self._request(group)
        if follows:
            self._read_ahead(chunks[-1])
        for chunk in chunks:
            self._touch(chunk)
        return True

    def expire(self) -> None:
        """Call ``then`` of loads that have taken too long. The loading itself continues."""
        now = self._clock()
        late = [each for each in self._waits if each.deadline <= now]
        if not late:
            return
        for wait in late:
            del self._waits[wait]
        # A store that does not answer for long must not collect everybody who has asked meanwhile.
        for readers in self._under_way.values():
            readers[:] = [each for each in readers if each in self._waits]
        for wait in late:
            wait.then()

    def next_deadline(self) -> float:
        """Return the time at which `expire` is due next; infinity if no load is waited for."""
        return next((wait.deadline for wait in self._waits), float("inf"))

    def check_invariants(self) -> None:
        """Assert the invariants that hold between calls, for tests."""
        assert self._begins == sorted(self._blocks), "blocks are not found by their beginnings"
        nbytes = sum(map(len, self._blocks.values()))
        assert nbytes == self._nbytes, f"{nbytes} bytes are in memory, {self._nbytes} are counted"
        requests_max = self._limits.read_requests_max
        assert 0 <= self._requests <= requests_max, f"{self._requests} requests; maximum: {requests_max}"
        assert bool(self._under_way) == bool(self._requests), (
            f"{len(self._under_way)} chunks, {self._requests} requests"
        )
        for wait in self._waits:
            count = sum(wait in each for each in self._under_way.values())
            assert wait.chunk_count == count, f"a reader waits for {wait.chunk_count} chunks, {count} are under way"

    # -- memory --------------------------------------------------------------------------------------------------------

    def _find(self, pos: int, nbytes: int) -> int | None:
        """Return the beginning of the block in memory that has these bytes; None if there is none."""
        number = bisect_right(self._begins, pos) - 1
        if number < 0:
            return None
        begin = self._begins[number]
        return begin if pos + nbytes <= begin + len(self._blocks[begin]) else None

    def _keep(self, begin: int, data: bytes) -> None:
        if begin not in self._blocks:
            insort(self._begins, begin)
            self._nbytes += len(data)
            self._blocks[begin] = data
        self._blocks.move_to_end(begin)
        while self._nbytes > self._limits.read_memory_bytes and len(self._blocks) > 1:
            oldest, oldest_data = self._blocks.popitem(last=False)
            self._nbytes -= len(oldest_data)
            del self._begins[bisect_left(self._begins, oldest)]

    def _touch(self, chunk: int) -> None:
        self._seen_chunks[chunk] = None
        self._seen_chunks.move_to_end(chunk)
        if len(self._seen_chunks) > self._limits.read_chunks_seen_max:
            self._seen_chunks.popitem(last=False)

    def _failure(self, chunks: Sequence[int]) -> SegmentError | None:
        now = self._clock()
        for chunk in chunks:
            if chunk in self._failures_by_chunk:
                until, cause = self._failures_by_chunk[chunk]
                if now < until:
                    return cause
                del self._failures_by_chunk[chunk]
        return None

    # -- requests ------------------------------------------------------------------------------------------------------

    def _extend(self, group: list[int]) -> list[int]:
        """Extend the request of a sequential reader to the maximum size."""
        more = range(group[-1] + 1, group[0] + REQUEST_CHUNKS)
        return [*group, *self._wanted_of(more)]

    def _went_on(self, place: LogSpan) -> None:
        """Load the next chunk for a reader that has read the previous one, so that it need not wait."""
        chunk = sum(place) // CHUNK_BYTES
        if chunk not in self._seen_chunks:
            self._touch(chunk)
            if chunk - 1 in self._seen_chunks:
                self._read_ahead(chunk)

    def _read_ahead(self, chunk: int) -> None:
        """Load the chunks that a sequential reader needs after ``chunk``, if no reader waits for a request."""
        for first in range(chunk + 1, chunk + 1 + REQUEST_CHUNKS):
            ahead = self._wanted_of(range(first, first + REQUEST_CHUNKS))
            if ahead and self._requests < self._limits.read_threads:
                self._request(ahead)
            if ahead:
                return

    def _wanted_of(self, chunks: range) -> list[int]:
        missing_chunks: list[int] = []
        end_pos = self._end_pos()
        for chunk in chunks:
            if (
                chunk * CHUNK_BYTES >= end_pos
                or chunk in self._under_way
                or chunk in self._failures_by_chunk
                or self._find(chunk * CHUNK_BYTES, 1) is not None
            ):
                break
            missing_chunks.append(chunk)
        return missing_chunks

    def _request(self, chunks: list[int]) -> None:
        for chunk in chunks:
            self._under_way.setdefault(chunk, [])
        self._requests += 1
        begin, stop = chunks[0] * CHUNK_BYTES, (chunks[-1] + 1) * CHUNK_BYTES
        fetch = self._fetch

        def job() -> Callable[[], None]:
            try:
                blocks = fetch(begin, stop)
            except SegmentError as error:
                return partial(self._failed_to_load, chunks, error)
            return partial(self._on_load, chunks, blocks)

        self._in_background(job)

    def _on_load(self, chunks: list[int], blocks: Sequence[tuple[int, bytes]]) -> None:
        for begin, data in blocks:
            self._fetched_bytes += len(data)
            self._keep(begin, data)
        self._on_end(chunks)

    def _failed_to_load(self, chunks: list[int], error: SegmentError) -> None:
        now = self._clock()
        self._failures += 1
        self._failures_by_chunk = {
            chunk: failure for chunk, failure in self._failures_by_chunk.items() if now < failure[0]
        }
        for chunk in chunks:
            self._failures_by_chunk[chunk] = now + self._limits.read_retry_seconds, error
        if now >= self._logged_at + LOG_AGAIN_SECONDS:
            self._logged_at = now
            self._log.error(
                "archive_read_failed", position=chunks[0] * CHUNK_BYTES, reason=str(error), failures=self._failures
            )
        self._on_end(chunks)

    def _on_end(self, chunks: list[int]) -> None:
        self._requests -= 1
        assert self._requests >= 0, f"{self._requests} requests are under way"
        ready: list[_ArchivedChunkWait] = []
        for chunk in chunks:
            for wait in self._under_way.pop(chunk):
                wait.chunk_count -= 1
                if wait.chunk_count == 0 and wait in self._waits:
                    del self._waits[wait]
                    ready.append(wait)
        for wait in ready:
            wait.then()


class LocalLog(Protocol):
    """The part of `raftlog.segment.log_reader.LogReads` that `TieredLog` needs."""

    @property
    def base_pos(self) -> int:
        """The physical offset at which the local log begins."""

    @property
    def end_pos(self) -> int:
        """The physical offset at which the local log ends."""

    def pread(self, pos: int, length: int, /, *, trusts_page_cache: bool = False) -> bytes:
        """Return bytes from a physical offset on; `LogReads.pread` lists the errors."""

    def pread_each(self, pieces: Sequence[LogSpan], /) -> Sequence[bytes | memoryview]:
        """Return the bytes of each piece. Pieces ascend, and each lies within one entry."""

    def read_runs(self, pos: int, length: int, /) -> Iterator[VerifiedRun]:
        """Yield the bytes of a range as runs of complete verified entries."""


class TieredLog:
    """Reads records from the local log, and older ones from the archive."""

    def __init__(self, log: LocalLog, tier: Tier, reads: ArchivedReads, fetch: Fetch, segment_bytes: int) -> None:
        self._log = log
        self._segment_bytes = segment_bytes
        self._tier = tier
        self._fetch = fetch
        self.reads = reads

    @property
    def base_pos(self) -> int:
        """The physical offset at which the local log begins."""
        return self._log.base_pos

    @property
    def begin_pos(self) -> int:
        """The physical offset from which on this replica serves records, from its log or from the archive."""
        return self._tier.visible_pos

    @property
    def end_pos(self) -> int:
        """The physical offset at which the log ends."""
        return self._log.end_pos

    def pread(self, pos: int, length: int, *, trusts_page_cache: bool = False) -> bytes:
        """Return bytes from a physical offset on. Raises the errors of `LogReads.pread` and `ArchivedReads.read`."""
        if pos >= self._log.base_pos:
            return self._log.pread(pos, length, trusts_page_cache=trusts_page_cache)
        self._check(pos)
        return self.reads.read(pos, length)

    def pread_each(self, pieces: Sequence[LogSpan]) -> Sequence[bytes | memoryview]:
        """Return the bytes of each piece. Pieces ascend, and each lies within one entry. Raises as `pread`."""
        base_pos = self._log.base_pos
        if not pieces or pieces[0][0] >= base_pos:
            return self._log.pread_each(pieces)
        self._check(pieces[0][0])
        first_local = bisect_left(pieces, (base_pos, 0))
        blocks: list[bytes | memoryview] = [self.reads.read(*each) for each in pieces[:first_local]]
        return [*blocks, *self._log.pread_each(pieces[first_local:])] if first_local < len(pieces) else blocks

    def read_runs(self, pos: int, length: int) -> Iterator[VerifiedRun]:
        """Yield verified runs; call it in a thread, since it waits for storage. Raises as `read_runs` and `Fetch`."""
        stop, base_pos = pos + length, self._log.base_pos
        if pos < base_pos:
            self._check(pos)
        at = pos
        while at < min(stop, base_pos):
            # One file at a time, since an archive that lacks the first of several is refused: nothing may be left out.
            next_file = at - at % self._segment_bytes + self._segment_bytes
            try:
                blocks = self._fetch(at, min(stop, base_pos, next_file))
            except SegmentError as error:
                raise ArchivedUnreadable(at, error) from error
            for begin, data in blocks:
                end = begin + len(data)
                yield VerifiedRun(begin, end, end, data)
            at = next_file
        if stop > base_pos:
            yield from self._log.read_runs(max(pos, base_pos), stop - max(pos, base_pos))

    def block_at(self, pos: int) -> tuple[int, bytes]:
        """Return the physical offset and bytes of the archive block with the byte at ``pos``. Raises as `pread`."""
        self._check(pos)
        return self.reads.block_at(pos)

    def _check(self, pos: int) -> None:
        if pos < (begin := self._tier.visible_pos):
            raise EntryGone("the archive", "position", pos, begin)


def _chunks(places: Sequence[LogSpan]) -> list[int]:
    """Return the chunks that contain the places, ascending."""
    chunks: dict[int, None] = {}
    for pos, nbytes in places:
        assert nbytes > 0, f"{nbytes} bytes are read at {pos}"
        for chunk in range(pos // CHUNK_BYTES, (pos + nbytes - 1) // CHUNK_BYTES + 1):
            chunks[chunk] = None
    return sorted(chunks)


def _groups(chunks: Sequence[int]) -> Iterator[list[int]]:
    """Split chunks into groups of consecutive chunks, each read by one request."""
    group: list[int] = []
    for chunk in chunks:
        if group and (chunk != group[-1] + 1 or len(group) == REQUEST_CHUNKS):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group
