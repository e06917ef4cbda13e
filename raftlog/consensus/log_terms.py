"""The range and terms of a log: where it starts and ends, and the term of each index. Contains no entries.

A log is described by its *term runs*: terms never decrease from one index to the next, so a few pairs of first index
and term contain everything that consensus needs to know about millions of entries.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence

from raftlog.consensus.types import LogId, Span
from raftlog.log_numbers import LogIndex, Term


class LogTerms:
    """The term runs of the entries after ``base`` up to ``last_index``. Of ``base`` only index and term are known.

    ``runs`` are pairs of first index and term, both increasing.
    """

    __slots__ = ("_firsts", "_terms", "base", "last", "last_index")

    def __init__(self, base: LogId, runs: Sequence[tuple[LogIndex, Term]], last_index: LogIndex) -> None:
        assert last_index >= base.index, f"the log ends at {last_index}, before its base {base.index}"
        self.base = base
        self.last_index = last_index
        self._firsts = [base.index]
        self._terms = [base.term]
        for first, term in runs:
            if term == self._terms[-1]:
                continue
            if first <= base.index:
                assert term <= base.term, f"the run at {first} has term {term}, the base after it {base.term}"
                continue
            self._firsts.append(first)
            self._terms.append(term)
        assert last_index == base.index or self.term_at(last_index) > 0, f"no run tells the term of entry {last_index}"
        self.last = LogId(last_index, self._terms[-1])
        self.check_invariants()

    def term_at(self, index: LogIndex) -> Term:
        """Return the term of the entry at ``index``, which is between base and end, both inclusive."""
        firsts = self._firsts
        assert firsts[0] <= index <= self.last_index, f"entry {index} is not within {firsts[0]} to {self.last_index}"
        if index >= firsts[-1]:
            return self._terms[-1]
        return self._terms[bisect_right(firsts, index) - 1]

    def id_at(self, index: LogIndex) -> LogId:
        """Return the `LogId` of the entry at ``index``."""
        return self.last if index == self.last_index else LogId(index, self.term_at(index))

    def holds(self, entry: LogId) -> bool:
        """Whether this log has ``entry``. Returns False before the base, where that is unknown."""
        return self.base.index <= entry.index <= self.last_index and self.term_at(entry.index) == entry.term

    def append(self, last: LogIndex, term: Term) -> None:
        """Add entries of ``term`` up to and including ``last``."""
        assert last > self.last_index, f"entries up to {last} do not extend a log that ends at {self.last_index}"
        if term != self._terms[-1]:
            assert term > self._terms[-1], f"term {term} at {self.last_index + 1} follows term {self._terms[-1]}"
            self._firsts.append(self.last_index + 1)
            self._terms.append(term)
        self.last_index = last
        self.last = LogId(last, term)

    def truncate(self, first: LogIndex) -> None:
        """Remove the entries from ``first`` on."""
        assert self.base.index < first <= self.last_index, (
            f"cannot cut from {first}: the log holds {self.base.index + 1} to {self.last_index}"
        )
        while self._firsts[-1] >= first:
            self._firsts.pop()
            self._terms.pop()
        self.last_index = first - 1
        self.last = LogId(first - 1, self._terms[-1])

    def compact(self, index: LogIndex) -> None:
        """Move the base to ``index``, because the entries up to there were deleted."""
        if index <= self.base.index:
            return
        self.base = self.id_at(index)
        keep = bisect_right(self._firsts, index) - 1
        del self._firsts[:keep], self._terms[:keep]
        self._firsts[0] = index

    def first_difference(self, span: Span) -> LogIndex:
        """Return the first index of ``span`` that this log lacks or has with another term; ``span.last + 1`` if none.

        The entry before the span must agree already: then equal terms at an index mean equal entries up to there.
        """
        if span.first > self.last_index:
            return span.first
        run = bisect_right(self._firsts, span.first) - 1
        if self._terms[run] != span.term:
            return span.first
        run_end = self._firsts[run + 1] - 1 if run + 1 < len(self._firsts) else self.last_index
        return min(run_end, span.last) + 1

    def last_at_most(self, bound: LogId) -> LogId:
        """Return the last entry whose index and term do not exceed those of ``bound``; the base without one.

        Two logs can only agree at or before it, so both sides of a conflict skip back by whole terms.
        """
        index = max(min(bound.index, self.last_index), self.base.index)
        run = bisect_right(self._firsts, index) - 1
        while run > 0 and self._terms[run] > bound.term:
            run -= 1
            index = self._firsts[run + 1] - 1
        return LogId(index, self._terms[run])

    def runs(self) -> list[tuple[LogIndex, Term]]:
        """Return first index and term of each run, beginning with the base's."""
        return list(zip(self._firsts, self._terms, strict=True))

    def check_invariants(self) -> None:
        """Assert that term runs increase strictly, in index and in term."""
        runs = self.runs()
        for (first, term), (next_first, next_term) in itertools.pairwise(runs):
            assert first < next_first, f"the run at {next_first} follows the run at {first}"
            assert term < next_term, f"term {next_term} at {next_first} follows term {term} at {first}"
        assert runs[-1][0] <= max(self.last_index, self.base.index), (
            f"the last run begins at {runs[-1][0]}, the log ends at {self.last_index}"
        )
        assert self.last == LogId(self.last_index, runs[-1][1]), f"{self.last} is not the end, {self.last_index} is"
