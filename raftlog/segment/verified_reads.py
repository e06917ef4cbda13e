"""Reads entries on disk, and verifies each entry before returning its bytes.

The guarantee. Bytes returned by `VerifiedReads.read` come from a buffer of this process in which the checksum of every
entry was verified after the buffer was read from its file. The page cache proves nothing: the kernel may have evicted a
page and read it again from a disk that has damaged it in the meantime. So verified bytes are cached in our own memory,
at most `LogLimits.verified_bytes_max`, and everything else is read and verified again.

A reader may ask for less, by ``trusts_page_cache``: bytes that this process has written itself since it opened the log,
and that are still in the page cache, are returned as they are. Their checksums were computed or verified when they were
appended. Page residency is checked before each such read; once a page was evicted, everything up to there has to be
verified from then on. This misses two cases: another program reads a page of ours from a bad disk after the kernel has
evicted it, or a file of ours is changed. The scrub detects those. Data to be appended to the log again must never be
read this way.

How an entry is found. The index knows beginnings of entries about 64 KiB apart (anchors). Entries are verified from one
anchor to the next, at least: header fields against the index, the body against its checksum, and the chain from the
second entry on. The chain of the first entry is verified by the scrub and at the opening of a log that may be damaged;
no body depends on it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from raftlog.segment.codec import CONFIG, HEADER, HEADER_BYTES, NORMAL, is_blank, verify_entry
from raftlog.segment.errors import EntryGone, FrameCorrupt, StorageCorrupt
from raftlog.segment.files import SegmentFiles
from raftlog.segment.index import AnchorSpan, SparseIndex
from raftlog.segment.recent_entries import Tail, blank_bytes

OnDamage = Callable[[StorageCorrupt], None]


class VerifiedRun(NamedTuple):
    """Complete verified entries of one file, from the physical offset ``begin`` up to ``end``.

    ``next`` is where the next entry begins: ``end``, or the end of the file if a blank follows.
    """

    begin: int
    end: int
    next: int
    data: bytes


class VerifiedReads:
    """Reads and verifies entries of one log on disk, for any thread.

    Args:
        end_pos: the end of the log when it was opened.
        durable_pos: called on any thread for a position up to which the existing entries are on disk. After a cut it
            is at or before that, from before `cut` is called.

    Attributes:
        on_damage: called on the thread that finds damage, before the read fails.
        loaded_bytes: bytes read from files and verified so far.
    """

    def __init__(
        self, files: SegmentFiles, index: SparseIndex, tail: Tail, end_pos: int, durable_pos: Callable[[], int]
    ) -> None:
        self._durable_pos = durable_pos
        self.on_damage: OnDamage = lambda damage: None
        self.loaded_bytes = 0
        self._kept_bytes_max = files.limits.verified_bytes_max
        self._files = files
        self._index = index
        self._tail = tail
        self._lock = threading.Lock()
        # Runs do not overlap. `_begins` has their beginnings, ascending; `_runs` is in the order of their last use.
        self._begins: list[int] = []
        self._runs: OrderedDict[int, VerifiedRun] = OrderedDict()
        self._kept_bytes = 0
        self._cuts = 0
        self._written_from = end_pos
        """This process wrote the bytes from here on, and no read has found them missing in the page cache."""

    @property
    def kept_bytes(self) -> int:
        """Verified bytes in memory."""
        return self._kept_bytes

    @property
    def trusted_pos(self) -> int:
        """Return the position from which a read may trust the page cache."""
        return self._written_from

    def read(self, pos: int, end: int, *, keeps: bool = True, trusts_page_cache: bool = False) -> bytes:
        """The bytes of the log from ``pos`` to ``end``, which are all on disk; with blanks between files.

        Args:
            keeps: whether to cache what had to be read; not worth it for data that is read once.
            trusts_page_cache: see the module. Never for data to be appended again.

        Raises:
            EntryGone: some of them are below the base.
            StorageCorrupt: an entry is damaged, or a file is missing or too short; `on_damage` was called.
            StorageFailed: a disk error.
        """
        if (run := self._cached_run(pos)) is not None and end <= run.end:
            return run.data[pos - run.begin : end - run.begin]
        if trusts_page_cache and (data := self._read_page_cache(pos, end)) is not None:
            return data
        parts: list[bytes] = []
        while pos < end:
            run = self._cached_run(pos) or self._load(pos, end, keeps=keeps)
            if pos < run.end:
                stop = min(end, run.end)
                parts.append(run.data[pos - run.begin : stop - run.begin])
            else:
                stop = min(end, run.next)
                parts.append(blank_bytes(run.end, run.next)[pos - run.end : stop - run.end])
            pos = stop
        return b"".join(parts)

    def runs(self, pos: int, end: int) -> Iterator[VerifiedRun]:
        """The complete entries that contain the bytes from ``pos`` to ``end``, and some around them, without a copy.

        Runs are ascending; the first one may begin before ``pos``, and only blanks are between them. They are not
        cached; each is read when requested, about `LogLimits.verified_run_bytes`, so it is still in the CPU cache when
        it is verified and used. Raises the errors of `read`.
        """
        while pos < end:
            run = self._cached_run(pos) or self._load(
                pos, min(end, pos + self._files.limits.verified_run_bytes), keeps=False
            )
            yield run
            pos = run.next

    def load(self, pos: int, end: int) -> None:
        """Verify the bytes from ``pos`` to ``end`` and load them into memory. Raises the errors of `read`."""
        while pos < end:
            run = self._cached_run(pos) or self._load(pos, end, keeps=True)
            pos = run.next

    def has(self, pos: int, end: int) -> bool:
        """Whether a read with trust in the page cache returns these bytes without waiting for the disk."""
        if pos >= self._written_from and self._files.is_cached(pos, end - pos):
            return True
        return self.has_verified(pos, end)

    def has_verified(self, pos: int, end: int) -> bool:
        """Whether any read gets these bytes from verified ones that are kept in memory."""
        with self._lock:
            while pos < end:
                at = bisect_right(self._begins, pos) - 1
                run = self._runs[self._begins[at]] if at >= 0 else None
                if run is None or run.next <= pos:
                    return False
                pos = run.next
        return True

    def cut(self, pos: int) -> None:
        """Drop everything after ``pos``: the log was truncated there. The index must have been truncated before."""
        with self._lock:
            self._cuts += 1
            for begin in self._begins[max(0, bisect_left(self._begins, pos) - 1) :]:
                if self._runs[begin].next > pos:
                    self._remove(begin)

    def _cached_run(self, pos: int) -> VerifiedRun | None:
        with self._lock:
            at = bisect_right(self._begins, pos) - 1
            if at < 0:
                return None
            run = self._runs[self._begins[at]]
            if run.next <= pos:
                return None
            self._runs.move_to_end(run.begin)
            return run

    def _read_page_cache(self, pos: int, end: int) -> bytes | None:
        if pos < self._written_from:
            return None
        if (data := self._files.pread_cached(pos, end - pos)) is None:
            with self._lock:
                self._written_from = max(self._written_from, end)
        return data

    def _load(self, pos: int, end: int, *, keeps: bool) -> VerifiedRun:
        """Read and verify the entries from the last anchor before ``pos`` on, up to the first one after ``end``, or to
        the end of their file. The run may end before ``pos`` if only a blank follows.
        """
        while True:
            cuts = self._cuts
            # The range may have been truncated since, and be something else by now.
            end = min(end, self._durable_pos())
            span = self._index.span_at(pos, end) if pos < end else None
            if span is None:
                raise EntryGone(self._files.directory, "position", pos, self._files.base_pos)
            try:
                run, nearby = self._verify(span, pos, end)
            except StorageCorrupt as damage:
                if cuts != self._cuts:
                    continue  # the log was truncated in the meantime, and other entries are there or will be
                self.on_damage(damage)
                raise
            if cuts == self._cuts:
                assert pos < run.next, f"what was read for {pos} ends at {run.next}"
            if nearby is not None and cuts == self._cuts:
                self.on_damage(nearby)
            with self._lock:
                self.loaded_bytes += len(run.data)
                if keeps and cuts == self._cuts:
                    self._keep(run)
            return run

    def _verify(self, span: AnchorSpan, begin_pos: int, end: int) -> tuple[VerifiedRun, StorageCorrupt | None]:
        """Verify a span as far as it contains the bytes from ``begin_pos`` to ``end``.

        Returns the good entries around them, and damage of an entry that contains none of them. Raises the errors of
        `read`.
        """
        files, begin = self._files, span.pos
        file_end = files.start_of(begin) + files.segment_bytes
        index_end = self._tail.first if span.end_index is None else min(span.end_index, self._tail.first)
        end = min(end, file_end)
        window = span.end_pos or min(max(end, begin + files.limits.anchor_bytes) + HEADER_BYTES, file_end)
        data = files.pread(begin, window - begin)
        view = memoryview(data)
        index, term, chain, at = span.index, span.term, None, 0
        first = 0
        behind: int | None = None
        nearby: StorageCorrupt | None = None
        while index != span.end_index and (begin + at < end or index < index_end):
            pos = begin + at
            if len(view) - at < HEADER_BYTES:
                data += files.pread(begin + len(data), min(files.limits.anchor_bytes, file_end - begin - len(data)))
                view = memoryview(data)
            if is_blank(view[at : at + 8], file_end - pos):
                behind = file_end
                break
            size = HEADER.unpack_from(view, at)[1] if len(view) - at >= HEADER_BYTES else HEADER_BYTES
            if size > len(view) - at and pos + size <= file_end:
                data += files.pread(begin + len(data), at + size - len(data))
                view = memoryview(data)
            try:
                entry = verify_entry(view, at, index, term, pos, chain)
                if index == span.index and entry.term != span.term:
                    raise FrameCorrupt(pos, "term differs from the index", span.term, entry.term)
                if index == span.index and (entry.kind == CONFIG) != span.is_config:
                    raise FrameCorrupt(
                        pos, "type differs from the index", CONFIG if span.is_config else NORMAL, entry.kind
                    )
            except FrameCorrupt as error:
                damage = StorageCorrupt(files.path(files.start_of(begin)), pos, str(error))
                nearby = nearby or damage
                if pos >= end:
                    break
                if not HEADER_BYTES <= size <= begin_pos - pos:
                    raise damage from error
                # Entries after it are verified without its chain.
                index, chain = index + 1, None
                at = first = at + size
                continue
            index, term, chain = index + 1, entry.term, entry.chain
            at += entry.size
        if index == span.end_index and span.end_pos is None:
            behind = file_end  # the blank may not be written yet: it is written with the next entry
        data = data if (first, at) == (0, len(data)) else data[first:at]
        return VerifiedRun(begin + first, begin + at, behind or begin + at, data), nearby

    def _keep(self, run: VerifiedRun) -> None:
        """Cache the part of a run that is not cached yet. Two threads may have loaded overlapping ranges."""
        first = max(0, bisect_right(self._begins, run.begin) - 1)
        for begin in self._begins[first : bisect_left(self._begins, run.next)]:
            other = self._runs[begin]
            if run.begin <= begin and other.next <= run.next:
                self._remove(begin)
            elif other.begin <= run.begin < other.next:
                if run.next <= other.next:
                    return
                run = VerifiedRun(other.next, run.end, run.next, run.data[other.next - run.begin :])
            elif run.begin < begin < run.next:
                run = VerifiedRun(run.begin, begin, begin, run.data[: begin - run.begin])
        assert run.begin not in self._runs, f"two runs begin at {run.begin}"
        self._begins.insert(bisect_left(self._begins, run.begin), run.begin)
        self._runs[run.begin] = run
        self._kept_bytes += len(run.data)
        while self._kept_bytes > self._kept_bytes_max and len(self._runs) > 1:
            self._remove(next(iter(self._runs)))

    def _remove(self, begin: int) -> None:
        self._kept_bytes -= len(self._runs.pop(begin).data)
        assert self._kept_bytes >= 0, f"{self._kept_bytes} bytes are kept in {len(self._runs)} runs"
        del self._begins[bisect_left(self._begins, begin)]
