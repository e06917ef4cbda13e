"""Loads and verifies old records in worker threads before the event loop reads them.

A disk read or a checksum of megabytes on the event loop blocks everything else: acknowledgements, heartbeats, all other
clients. So a handler that needs records which may be only on disk first has them loaded, then reads them at memory
speed. Sequential readers get whole chunks of the log plus the next one (read-ahead), so they hardly ever wait; random
readers get only the entries of their records. Records in memory are read at once.

Correctness does not depend on it: the log verifies what it returns in any case, see `raftlog.segment.verified_reads`.
If too many reads wait, the disk fails, or a loaded chunk was evicted again, records are read directly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from mq.broker.base.archived_reads import ArchivedReads
from mq.broker.consume.record_reader import RecordSpan
from mq.broker.limits import DEFAULT, ConsumeLimits
from mq.protocol.numbers import PhysicalOffset
from raftlog import Job
from raftlog.segment import SegmentError

CHUNK_BYTES = 256 * 1024
CHUNKS_MAX = 8
"""Records spread over more chunks are loaded individually: little of the rest would be read."""
AHEAD_MAX = 4
"""No read-ahead while this many chunks are being loaded."""

_GAP_BYTES_MAX = 32 * 1024
_RUN_BYTES_MAX = 1024 * 1024
"""Gaps between two records smaller than this are read as well; later reads use the same rule."""


class ColdLog(Protocol):
    """The part of `raftlog.segment.log_reader.LogReads` that `ColdReads` needs. `load` may run in any thread."""

    @property
    def base_pos(self) -> int: ...
    @property
    def trusted_pos(self) -> int: ...
    @property
    def memory_pos(self) -> int: ...
    def has(self, pos: int, length: int, /) -> bool: ...
    def load(self, pos: int, length: int, /) -> None: ...


class _ChunkWait:
    """A read that waits for ``chunk_count`` chunks."""

    __slots__ = ("chunk_count", "then")

    def __init__(self, chunk_count: int, then: Callable[[], None]) -> None:
        assert chunk_count > 0, f"a read waits for {chunk_count} chunks"
        self.chunk_count = chunk_count
        self.then = then


class ColdReads:
    """Loads old records into memory, in worker threads or from the archive, before the event loop reads them.

    Args:
        in_background: runs a job in a worker thread, and its completion on the event loop.
        archive: records before the log, which are read from the archive; None without.

    Attributes:
        waiting_count: number of waiting reads.
        loads: number of loads.
    """

    def __init__(
        self,
        *,
        log: ColdLog,
        in_background: Callable[[Job], None],
        archive: ArchivedReads | None = None,
        limits: ConsumeLimits = DEFAULT.consume,
    ) -> None:
        self._archive = archive
        self._log = log
        self._seen_max = limits.cold_chunks_seen_max
        self._waiting_max = limits.cold_reads_waiting_max
        self._in_background = in_background
        self._seen_chunks: OrderedDict[int, None] = OrderedDict()
        """Recently read chunks, the newest last."""
        self._under_way: dict[int, list[_ChunkWait]] = {}
        self.waiting_count = 0
        self.loads = 0

    @property
    def start_pos(self) -> int:
        """The physical offset before which records must be verified when they are read from disk."""
        return self._log.trusted_pos

    def are_loaded(self, begin: PhysicalOffset, end: PhysicalOffset) -> bool:
        """Return whether a range of physical offsets is in memory, with the read-ahead behind it.

        Fast, so that most sequential reads need no further check; False does not mean that it is missing.
        """
        if self._is_archived(begin):
            return False
        first, last = begin // CHUNK_BYTES, end // CHUNK_BYTES + 1
        return last - first <= CHUNKS_MAX and self._has([(begin, (last + 1) * CHUNK_BYTES)])

    def is_in_memory(self, begin: PhysicalOffset, end: PhysicalOffset) -> bool:
        """Return whether the range between two physical offsets can be read without waiting for the disk.

        As for `are_loaded`, False does not mean that it must: `load` decides.
        """
        return (begin >= self._log.trusted_pos and not self._is_archived(begin)) or self.are_loaded(begin, end)

    def load(self, places: Sequence[RecordSpan], then: Callable[[], None]) -> bool:
        """Load the records at ascending places, and call ``then`` when loading has ended or failed.

        Returns False if they can be read directly; then ``then`` is not called.
        """
        assert places, "no records are to be loaded"
        if self._archive is not None and self._is_archived(places[0][0]):
            return self._load_archived(self._archive, places, then)
        if places[0][0] >= self._log.memory_pos or self.waiting_count >= self._waiting_max:
            return False
        chunks = _chunks_of(places)
        if len(chunks) > CHUNKS_MAX:
            return self._load_alone(places, then)
        to_load = [chunk for chunk in chunks if not self._has_chunk(chunk)]
        is_read_in_order = bool(to_load) and (to_load[0] in self._seen_chunks or to_load[0] - 1 in self._seen_chunks)
        for chunk in chunks:
            self._touch(chunk)
        if to_load and not is_read_in_order:
            return self._load_alone(places, then)
        if to_load:
            self.waiting_count += 1
            assert self.waiting_count <= self._waiting_max, f"{self.waiting_count} reads; maximum: {self._waiting_max}"
            wait = _ChunkWait(len(to_load), then)
            # Register all of them before the first can complete.
            new = [chunk for chunk in to_load if chunk not in self._under_way]
            for chunk in to_load:
                self._under_way.setdefault(chunk, []).append(wait)
            for chunk in new:
                self._load_chunk(chunk)
        ahead = chunks[-1] + 1
        if len(self._under_way) < AHEAD_MAX and ahead not in self._under_way and not self._has_chunk(ahead):
            self._under_way[ahead] = []
            self._load_chunk(ahead)
        return bool(to_load)

    def check_invariants(self) -> None:
        """Assert that each waiting read counts the chunks that are being loaded for it, for tests."""
        assert len(self._seen_chunks) <= self._seen_max, (
            f"{len(self._seen_chunks)} chunks are noted; maximum: {self._seen_max}"
        )
        under_way = Counter(id(each) for reads in self._under_way.values() for each in reads)
        for chunk, reads in self._under_way.items():
            for each in reads:
                count = under_way[id(each)]
                assert each.chunk_count == count, f"a read of {chunk} waits for {each.chunk_count} of {count} chunks"
        assert len(under_way) <= self.waiting_count, f"{len(under_way)} reads wait, counted are {self.waiting_count}"

    def _is_archived(self, begin: PhysicalOffset) -> bool:
        return self._archive is not None and begin < self._log.base_pos

    def _load_archived(self, archive: ArchivedReads, places: Sequence[RecordSpan], then: Callable[[], None]) -> bool:
        """Load the archived part from the archive, then the rest from disk."""
        count = bisect_left(places, (self._log.base_pos, 0))
        local = places[count:]

        def on_load() -> None:
            if not local or not self.load(local, then):
                then()

        return archive.load(places[:count], on_load) or (bool(local) and self.load(local, then))

    def _has_chunk(self, chunk: int) -> bool:
        begin = chunk * CHUNK_BYTES
        return chunk not in self._under_way and self._has([(begin, begin + CHUNK_BYTES)])

    def _has(self, runs: list[tuple[int, int]]) -> bool:
        has = self._log.has
        return all(has(begin, stop - begin) for begin, stop in self._on_disk(runs))

    def _touch(self, chunk: int) -> None:
        self._seen_chunks[chunk] = None
        self._seen_chunks.move_to_end(chunk)
        if len(self._seen_chunks) > self._seen_max:
            self._seen_chunks.popitem(last=False)

    def _load_alone(self, places: Sequence[RecordSpan], then: Callable[[], None]) -> bool:
        runs = self._on_disk(_runs_of(places))
        if self._has(runs):
            return False
        self.waiting_count += 1
        self._start(runs, partial(self._on_arrival, _ChunkWait(1, then)))
        return True

    def _load_chunk(self, chunk: int) -> None:
        begin = chunk * CHUNK_BYTES
        self._start(self._on_disk([(begin, begin + CHUNK_BYTES)]), partial(self._on_chunk, chunk))

    def _on_disk(self, runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Cut ranges to the parts that are in files on disk, and not in the log's memory."""
        low, high = self._log.base_pos, self._log.memory_pos
        return [(max(begin, low), min(stop, high)) for begin, stop in runs if begin < high and low < stop]

    def _start(self, runs: list[tuple[int, int]], end: Callable[[], None]) -> None:
        log = self._log
        self.loads += 1

        def job() -> Callable[[], None]:
            with suppress(SegmentError):  # the next read reports the error
                for begin, stop in runs:
                    log.load(begin, stop - begin)
            return end

        self._in_background(job)

    def _on_chunk(self, chunk: int) -> None:
        assert chunk in self._under_way, f"chunk {chunk} was loaded, under way are {sorted(self._under_way)}"
        for wait in self._under_way.pop(chunk):
            self._on_arrival(wait)

    def _on_arrival(self, wait: _ChunkWait) -> None:
        wait.chunk_count -= 1
        assert wait.chunk_count >= 0, f"a read waits for {wait.chunk_count} chunks"
        if wait.chunk_count == 0:
            self.waiting_count -= 1
            assert self.waiting_count >= 0, f"{self.waiting_count} reads wait"
            wait.then()


def _chunks_of(places: Sequence[RecordSpan]) -> list[int]:
    """Return the chunks that contain the places, ascending, and stop after more than `CHUNKS_MAX`."""
    chunks: list[int] = []
    behind = 0
    for position, size in places:
        last = (position + size - 1) // CHUNK_BYTES
        if last >= behind:
            chunks += range(max(behind, position // CHUNK_BYTES), last + 1)
            behind = last + 1
            if len(chunks) > CHUNKS_MAX:
                break
    return chunks


def _runs_of(places: Sequence[RecordSpan]) -> list[tuple[int, int]]:
    """Return the places as ranges, with nearby ones joined."""
    runs: list[tuple[int, int]] = []
    assert places, "no records are read alone"
    for position, size in places:
        stop = position + size
        assert not runs or position >= runs[-1][0], f"a record at {position} is read after one at {runs[-1][0]}"
        if runs and position - runs[-1][1] <= _GAP_BYTES_MAX and stop - runs[-1][0] <= _RUN_BYTES_MAX:
            runs[-1] = runs[-1][0], stop
        else:
            runs.append((position, stop))
    return runs
