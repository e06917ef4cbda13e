"""Everything a simulated group has promised so far, and the checks that it keeps it (Raft thesis, figure 3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raftlog.consensus.types import HardState, LogId, NodeId


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry with its content; a ``value`` of None opens a term."""

    index: int
    term: int
    value: int | None
    nbytes: int


class Violation(AssertionError):
    """A promise was broken."""


class History:
    """Watches a group from outside; every method raises `Violation` when what it is told cannot be.

    Args:
        majority: how many disks must hold an entry before it may count as committed.
    """

    def __init__(self, majority: int) -> None:
        self._disks: Sequence[Sequence[Entry]] = ()
        self._majority = majority
        self._written: dict[LogId, tuple[Entry, int]] = {}
        self._leaders: dict[int, NodeId] = {}
        self._votes: dict[tuple[int, NodeId], NodeId] = {}
        self._values: set[int] = set()
        self.committed: list[Entry] = []
        self.acked: dict[int, Entry] = {}

    def watch(self, disks: Sequence[Sequence[Entry]]) -> None:
        """Look at these durable logs from now on: all nodes', crashed ones included, changing as they write."""
        self._disks = disks

    def appended(self, node: NodeId, entry: Entry, prev_term: int) -> None:
        """Log matching: index and term determine an entry and the one before it, on every node and for ever."""
        known = self._written.setdefault(LogId(entry.index, entry.term), (entry, prev_term))
        if known != (entry, prev_term):
            raise Violation(
                f"log matching: {node} has {entry} behind term {prev_term}, "
                f"elsewhere it is {known[0]} behind term {known[1]}"
            )

    def lost(self, entries: Iterable[Entry]) -> None:
        """Entries vanished with the only node that ever had them; their terms may be used again.

        Only a single voter leads before its vote is on disk, and shows nobody what it has not written.
        """
        for entry in entries:
            del self._written[LogId(entry.index, entry.term)]

    def elected(self, node: NodeId, term: int, log: Sequence[Entry]) -> None:
        """Election safety and leader completeness: one leader per term, and it has everything committed before."""
        if self._leaders.setdefault(term, node) != node:
            raise Violation(f"election safety: {node} and {self._leaders[term]} both lead in term {term}")
        if list(log[: len(self.committed)]) != self.committed:
            raise Violation(f"leader completeness: {node} leads term {term} without {self._first_lack(log)}")

    def voted(self, voter: NodeId, term: int, candidate: NodeId, disk: HardState) -> None:
        """A vote leaves once per term, and not before it is on disk."""
        first = self._votes.setdefault((term, voter), candidate)
        if first != candidate:
            raise Violation(f"vote: {voter} voted for {first} and for {candidate} in term {term}")
        if disk.term < term or (disk.term == term and disk.voted_for != candidate):
            raise Violation(f"vote: {voter} voted for {candidate} in term {term}, on its disk is {disk}")

    def committing(self, node: NodeId, entries: Iterable[Entry]) -> None:
        """State machine safety and durability: one entry per index, on the disks of a majority."""
        for entry in entries:
            if entry.index <= len(self.committed):
                if self.committed[entry.index - 1] != entry:
                    raise Violation(f"commit: {node} has {entry}, committed was {self.committed[entry.index - 1]}")
                continue
            if entry.index != len(self.committed) + 1:
                raise Violation(f"commit: {node} commits {entry}, the one before it was never committed")
            copies = sum(len(disk) >= entry.index and disk[entry.index - 1] == entry for disk in self._disks)
            if copies < self._majority:
                raise Violation(f"durability: {node} commits {entry}, it is on {copies} disks of {len(self._disks)}")
            if entry.value is not None and entry.value in self._values:
                raise Violation(f"commit: value {entry.value} is committed a second time, as {entry}")
            if entry.value is not None:
                self._values.add(entry.value)
            self.committed.append(entry)

    def acknowledged(self, entry: Entry) -> None:
        """A client was told that its entry is committed."""
        self.acked[entry.index] = entry

    def check_acknowledged(self, node: NodeId, log: Sequence[Entry]) -> None:
        """Everything that a client was told is in ``log``."""
        for index, entry in self.acked.items():
            if len(log) < index or log[index - 1] != entry:
                raise Violation(f"durability: acknowledged {entry} is not in the log of {node}")

    def _first_lack(self, log: Sequence[Entry]) -> Entry:
        return next(
            entry for position, entry in enumerate(self.committed) if position >= len(log) or log[position] != entry
        )
