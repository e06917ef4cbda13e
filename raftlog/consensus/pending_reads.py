"""Reads in progress: those that a leader has to confirm, and those that a follower forwarded to its leader.

A leader may answer a read with its commit index once it knows that no other replica led when the read arrived
(ReadIndex, Raft thesis 6.4). It knows that after a *round* of heartbeats, sent after the read arrived and answered by a
majority. Rounds are numbered and every heartbeat names the newest one, so an answer to an older heartbeat, or a
duplicate, confirms no later read.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from raftlog.consensus.types import NodeId
from raftlog.log_numbers import LogIndex


class Read(NamedTuple):
    """A read that arrived when ``commit`` was the commit index. ``asker`` is None for this replica's own reads."""

    asker: NodeId | None
    ctx: int
    commit: LogIndex


class ReadRounds:
    """A leader's reads: new ones, which no heartbeat confirms yet, and those of each round in flight."""

    __slots__ = ("new_reads", "newest", "under_way")

    def __init__(self) -> None:
        self.newest = 0
        self.new_reads: list[Read] = []
        self.under_way: deque[tuple[int, LogIndex, list[Read]]] = deque()

    def wait(self, asker: NodeId | None, ctx: int, commit: LogIndex) -> None:
        """Add a read that arrives while ``commit`` is the commit index."""
        self.new_reads.append(Read(asker, ctx, commit))

    def begin(self, commit: LogIndex) -> None:
        """Begin a round of heartbeats that confirms all new reads at the index ``commit``."""
        self.newest += 1
        self.under_way.append((self.newest, commit, self.new_reads))
        self.new_reads = []

    def confirm(self, number: int) -> list[tuple[Read, LogIndex]]:
        """Take the reads that are confirmed, as a majority answered round ``number`` or later, with their indexes."""
        confirmed_reads: list[tuple[Read, LogIndex]] = []
        while self.under_way and self.under_way[0][0] <= number:
            _, commit, reads = self.under_way.popleft()
            confirmed_reads += [(read, commit) for read in reads]
        return confirmed_reads

    def abandon(self) -> list[Read]:
        """Drop and return all open reads, which cannot be confirmed any more."""
        reads = [read for _, _, part in self.under_way for read in part] + self.new_reads
        self.new_reads = []
        self.under_way.clear()
        return reads

    def check_invariants(self) -> None:
        """Assert that rounds increase, and that no read gets a lower index than was committed when it arrived."""
        newest = 0
        for number, commit, reads in self.under_way:
            assert newest < number <= self.newest, f"round {number} follows {newest}, {self.newest} is the newest"
            newest = number
            for read in reads:
                assert commit >= read.commit, f"read {read.ctx} came in at {read.commit}, round {number} is at {commit}"


class ForwardedReads:
    """A follower's reads: those for the next query, and those of each query in flight.

    Queries are numbered from ``number`` on, a random start in each run of a process, so that an answer to a query of an
    earlier run, which may be older than the read, is not taken for one of this run.

    Attributes:
        new_reads: reads for the next query.
        questions: when each query in flight was sent, and its reads; by number.
    """

    __slots__ = ("_number", "_sent_at", "new_reads", "questions")

    def __init__(self, number: int) -> None:
        self._number = number
        self._sent_at = float("-inf")
        self.questions: dict[int, tuple[float, list[int]]] = {}
        self.new_reads: list[int] = []

    def holds(self, ctx: int) -> bool:
        """Whether the read ``ctx`` is open."""
        return ctx in self.new_reads or any(ctx in reads for _, reads in self.questions.values())

    def ask(self, now: float) -> int:
        """Begin a query for all new reads; returns its number."""
        self._number += 1
        self.questions[self._number] = (now, self.new_reads)
        self._sent_at = now
        self.new_reads = []
        return self._number

    def ask_again(self, now: float, seconds: float) -> int | None:
        """Return the number of the newest query if it was sent ``seconds`` ago or before and should be sent again."""
        if not self.questions or now < self._sent_at + seconds:
            return None
        self._sent_at = now
        return self._number

    def confirm(self, number: int) -> list[int]:
        """Take the reads of query ``number`` and earlier ones; none if it was answered or abandoned before."""
        reads: list[int] = []
        if number in self.questions:
            # They are in the order of sending.
            for earlier in [each for each in self.questions if each <= number]:
                reads += self.questions.pop(earlier)[1]
        return reads

    def overdue(self, asked_before: float) -> list[int]:
        """Abandon the queries sent before ``asked_before``; returns their reads."""
        reads: list[int] = []
        # They are in the order of sending.
        while self.questions and (oldest := next(iter(self.questions.items())))[1][0] < asked_before:
            del self.questions[oldest[0]]
            reads += oldest[1][1]
        return reads

    def abandon(self) -> list[int]:
        """Drop and return all open reads."""
        reads = [ctx for _, part in self.questions.values() for ctx in part] + self.new_reads
        self.questions.clear()
        self.new_reads = []
        return reads
