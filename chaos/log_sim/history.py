"""Everything that a simulated group has promised so far, and the checks that it keeps it.

The rules of the Raft thesis, figure 3.2, and of a log with clients that append and read:

- one index holds one entry, on every node and for ever, and once seen it stays;
- an appended value is at one index at most;
- an entry appended after an acknowledgement is behind the acknowledged entry;
- every value was sent by a client, and was not refused;
- a read that begins after an acknowledgement sees it, and no read sees less than an earlier one;
- acknowledged entries are in the log of every node in the end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from chaos.violation import Violation
from raftlog.consensus.types import ConfState, HardState, NodeId


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A committed entry; ``value`` is None if no client appended it. ``chain`` is a hash over all entries before it."""

    index: int
    term: int
    kind: int
    pos: int
    chain: int
    value: int | None


@dataclass(slots=True)
class _ClientAppend:
    """A client's append: the acknowledged index when it began, and whether it was refused."""

    acked_index: int
    refused: bool = False


Holders = Callable[[int, bytes], frozenset[NodeId]]
"""``holders(pos, data)``: the nodes on whose disks ``data`` is durable at physical offset ``pos``."""


class History:
    """Records what a group promises. Every method raises `Violation` if its arguments break a promise.

    Args:
        holders: looks at the disks.
        durable: whether a commit promises that a majority has the entry on disk.
    """

    def __init__(self, holders: Holders, *, durable: bool = True) -> None:
        self._holders = holders
        self._durable = durable
        self._leaders: dict[int, NodeId] = {}
        self._votes: dict[tuple[int, NodeId], NodeId] = {}
        self._appends: dict[int, _ClientAppend] = {}
        self._index_of: dict[int, int] = {}
        self.committed: list[Entry] = []
        self._committed_in: list[int] = []
        self.acked: dict[int, int] = {}
        self.acked_index = 0
        self._read_index = 0
        self.reads = 0
        self.refusals = 0

    # -- clients -----------------------------------------------------------------------------------------------

    def begin_append(self, value: int) -> None:
        """Record that a client begins to append ``value``, which it does once."""
        assert value not in self._appends, f"value {value} is asked for a second time"
        self._appends[value] = _ClientAppend(self.acked_index)

    def refuse(self, value: int) -> None:
        """Record that a client was told that ``value`` was not appended and never will be."""
        self._appends[value].refused = True
        self.refusals += 1

    def acknowledge(self, value: int, index: int) -> None:
        """Check that ``value``, which was acknowledged to a client at ``index``, is committed there."""
        if self._index_of.get(value) != index:
            raise Violation(f"{value} was acknowledged at {index}, but is committed at {self._index_of.get(value)}")
        self.acked[index] = value
        self.acked_index = max(self.acked_index, index)

    def read_floor(self) -> int:
        """Return the index up to which a read that begins now must see all entries."""
        return max(self.acked_index, self._read_index)

    def read(self, node: NodeId, floor: int, index: int) -> None:
        """Check a read that ``node`` answered with all entries up to ``index``; ``floor`` was required."""
        self.reads += 1
        if index < floor:
            raise Violation(f"stale read: {node} answers with entries up to {index}; expected: {floor}")
        self._read_index = max(self._read_index, index)

    # -- nodes -------------------------------------------------------------------------------------------------

    def check_election(self, node: NodeId, term: int, last_index: int, chain_at: Callable[[int], int]) -> None:
        """Check election safety and leader completeness: one leader per term, which has everything committed before."""
        if self._leaders.setdefault(term, node) != node:
            raise Violation(f"election safety: {node} and {self._leaders[term]} both lead in term {term}")
        # A late vote may still elect a leader of a term that others have left; it commits nothing, and need not have
        # what was committed in later terms.
        if not (before := bisect_left(self._committed_in, term)):
            return
        newest = self.committed[before - 1]
        if last_index < newest.index:
            raise Violation(
                f"leader completeness: {node} leads term {term} without {newest}: its log ends at {last_index}"
            )
        if (chain := chain_at(newest.index)) != newest.chain:
            raise Violation(f"leader completeness: {node} leads term {term} with the chain {chain}, not with {newest}")

    def check_vote(self, voter: NodeId, term: int, candidate: NodeId, disk: HardState) -> None:
        """Check that a node votes once per term, and that its vote is on disk when it is sent."""
        first = self._votes.setdefault((term, voter), candidate)
        if first != candidate:
            raise Violation(f"vote: {voter} voted for {first} and for {candidate} in term {term}")
        if disk.term < term or (disk.term == term and disk.voted_for != candidate):
            raise Violation(f"vote: {voter} voted for {candidate} in term {term}, but its disk has {disk}")

    def check_entry(
        self, node: NodeId, term: int, entry: Entry, data: Callable[[], bytes], confs: Sequence[ConfState]
    ) -> None:
        """Check state machine safety and durability: one entry per index, on the disks of a majority.

        ``term`` is the node's; the entry was committed in it or before. ``data`` is header and body; one of ``confs``
        defines the majority.
        """
        index = entry.index
        if index <= len(self.committed):
            if (before := self.committed[index - 1]) != entry:
                raise Violation(f"commit: {node} has {entry}, but {before} was committed")
            return
        if index != len(self.committed) + 1:
            raise Violation(f"commit: {node} commits {entry}, but the entry before it was never committed")
        if self._durable:
            self._check_copies(node, entry, data(), confs)
        if (value := entry.value) is not None:
            self._check_value(node, entry, value)
        self.committed.append(entry)
        self._committed_in.append(max(term, self._committed_in[-1] if self._committed_in else 0))

    def check_acknowledged(self, node: NodeId, applied_index: int) -> None:
        """Check that ``node``, whose entries were all compared before, has everything acknowledged to clients."""
        if applied_index < self.acked_index:
            raise Violation(f"lost write: {node} ends at {applied_index}, but {self.acked_index} was acknowledged")

    def _check_copies(self, node: NodeId, entry: Entry, data: bytes, confs: Sequence[ConfState]) -> None:
        holders = self._holders(entry.pos, data)
        if not any(_has_majorities(conf, holders) for conf in confs):
            raise Violation(
                f"durability: {node} commits {entry}, which is on disk at {', '.join(sorted(holders)) or 'nobody'}, "
                f"but the voters are {confs[-1]}"
            )

    def _check_value(self, node: NodeId, entry: Entry, value: int) -> None:
        request = self._appends.get(value)
        if request is None or request.refused:
            raise Violation(f"phantom: {node} commits {entry}, which was {'refused' if request else 'never asked for'}")
        if value in self._index_of:
            raise Violation(f"duplicate: {node} commits {entry}, but it is at {self._index_of[value]} already")
        if entry.index <= request.acked_index:
            raise Violation(f"order: {entry} was requested after {request.acked_index} was acknowledged")
        self._index_of[value] = entry.index


def _has_majorities(conf: ConfState, holders: frozenset[NodeId]) -> bool:
    sets = [voters for voters in (conf.voters, conf.outgoing) if voters]
    return bool(sets) and all(2 * sum(voter in holders for voter in voters) > len(voters) for voters in sets)
