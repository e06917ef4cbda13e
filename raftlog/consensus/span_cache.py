"""Caches the spans at the end of a log, from which a leader builds its messages."""

from __future__ import annotations

import itertools
from bisect import bisect_right

from raftlog.consensus.types import Span
from raftlog.log_numbers import LogIndex


class Tail:
    """The newest whole spans of the log, contiguous, limited in bytes and in number.

    The exact size of a span that was cut is unknown; rather than keep a guess, the cache then drops everything and
    starts again after it.
    """

    __slots__ = ("_bytes_max", "_firsts", "_head", "_spans", "_spans_max", "nbytes")

    def __init__(self, bytes_max: int, spans_max: int) -> None:
        self._bytes_max = bytes_max
        self._spans_max = spans_max
        self._spans: list[Span] = []
        self._firsts: list[LogIndex] = []
        # Spans before the head are dropped; they leave the lists when they are half of them.
        self._head = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._spans) - self._head

    def append(self, span: Span, commit: LogIndex) -> None:
        """Add the newest span. May drop spans that are committed up to ``commit`` to stay within the limits."""
        spans = self._spans
        assert len(spans) == self._head or spans[-1].last + 1 == span.first, (
            f"span at {span.first} leaves a gap after {spans[-1].last}"
        )
        spans.append(span)
        self._firsts.append(span.first)
        self.nbytes += span.nbytes
        while (self.nbytes > self._bytes_max or len(spans) - self._head > self._spans_max) and (
            spans[self._head].last <= commit
        ):
            self.nbytes -= spans[self._head].nbytes
            self._head += 1
        if self._head > 64 and self._head * 2 > len(spans):
            del spans[: self._head], self._firsts[: self._head]
            self._head = 0

    def clear(self) -> None:
        """Drop all spans. The next one may begin anywhere."""
        self._spans.clear()
        self._firsts.clear()
        self._head = 0
        self.nbytes = 0

    def truncate(self, first: LogIndex) -> None:
        """Drop the entries from ``first`` on."""
        spans = self._spans
        while len(spans) > self._head and spans[-1].last >= first:
            span = spans.pop()
            self._firsts.pop()
            self.nbytes -= span.nbytes
            if span.first < first:
                self.clear()

    def compact(self, index: LogIndex) -> None:
        """Drop every span that begins at or before ``index``."""
        keep = max(bisect_right(self._firsts, index, self._head), self._head)
        self.nbytes -= sum(span.nbytes for span in self._spans[self._head : keep])
        self._head = keep

    def after(self, index: LogIndex) -> list[Span]:
        """List the cached spans that end after ``index``."""
        start = max(bisect_right(self._firsts, index, self._head) - 1, self._head)
        return [span for span in self._spans[start:] if span.last > index]

    def chunk(self, first: LogIndex, bytes_max: int) -> tuple[Span, ...]:
        """Return spans from the one that contains ``first`` on: at least one, others only up to ``bytes_max``.

        Empty if that span is not cached. The first span may begin before ``first``, since it cannot be cut.
        """
        spans = self._spans
        start = bisect_right(self._firsts, first, self._head) - 1
        if start < self._head:
            return ()
        end = start + 1
        if end == len(spans):
            return (spans[start],)
        nbytes = spans[start].nbytes
        while end < len(spans) and (nbytes := nbytes + spans[end].nbytes) <= bytes_max:
            end += 1
        return tuple(spans[start:end])

    def check_invariants(self) -> None:
        """Assert that spans are contiguous and their bytes add up."""
        spans = self._spans[self._head :]
        for before, span in itertools.pairwise(spans):
            assert before.last + 1 == span.first, f"span at {span.first} follows one that ends at {before.last}"
        nbytes = sum([span.nbytes for span in spans])
        assert nbytes == self.nbytes, f"spans hold {nbytes} bytes, counted were {self.nbytes}"
