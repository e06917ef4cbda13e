"""Parts of a core's state that belong together: its elections, its reads, and a transfer of leadership."""

from __future__ import annotations

from dataclasses import dataclass, field

from raftlog.consensus.pending_reads import ForwardedReads, ReadRounds
from raftlog.consensus.types import NodeId


@dataclass(slots=True)
class ElectionState:
    """When the next election begins, and how the present one stands. All times are monotonic seconds."""

    waiting_since: float
    """Since when nothing was heard that postpones an election."""
    no_votes_before: float
    """Until then a voter acts as if it had just heard a leader: with leases, its last run may have."""
    timeout: float = 0.0
    """After so many seconds of waiting the next round begins."""
    votes: dict[NodeId, bool] = field(default_factory=dict)
    """Of the round under way, pre-vote or vote, the own one included."""
    failed_rounds: int = 0
    """Elections in a row without a majority."""
    pre_vote_rounds: int = 0
    """Since a leader was heard last."""
    timeouts_left_to_others: int = 0
    """In a row, by a replica that had reason not to stand for election itself."""
    preferred_priority: int | None = None
    """The highest priority among those that can take over, as the leader told it."""


@dataclass(slots=True)
class ReadState:
    """Linearizable reads: those that a leader confirms, those that a follower asks its leader about, and answers."""

    asked: ForwardedReads
    rounds: ReadRounds = field(default_factory=ReadRounds)
    asked_of: tuple[int, NodeId | None] = (0, None)
    """Term and leader of the questions under way."""
    answered: list[tuple[int, int | None]] = field(default_factory=list)
    """The caller's number of each read, and the index to be applied; None if that cannot be told."""
    lease_given_up: bool = False
    """Somebody was told to take over: elected at any later time, it makes the lease worthless for this term."""


@dataclass(slots=True)
class TransferState:
    """A leader that hands over: to whom, and when it may do so of its own accord."""

    to: NodeId | None = None
    until: float = float("inf")
    """When the target must lead."""
    told: bool = False
    """Whether the target knows."""
    outranked_beats: int = 0
    """For how many heartbeats in a row a voter of higher priority was fit to lead."""
    not_before: float = 0.0
    """When it may hand over to a preferred voter."""

    def end(self) -> None:
        """Nobody is to take over any more."""
        self.to, self.until, self.told, self.outranked_beats = None, float("inf"), False, 0
