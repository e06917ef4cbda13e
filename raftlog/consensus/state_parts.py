"""Parts of a core's state that belong together: by role, its reads, a transfer of leadership, and its output."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from raftlog.consensus.effects import Fetch
from raftlog.consensus.messages import Message
from raftlog.consensus.pending_reads import ForwardedReads, ReadRounds
from raftlog.consensus.types import ConfState, NodeId, RoleChange, Span


@dataclass(slots=True)
class FollowerState:
    """What a follower told its leader, and when it heard of it last."""

    heard_at: float = float("-inf")
    """Monotonic seconds."""
    leader_seq: int = 0
    """The number of the newest request of this term's leader."""
    told_durable: int = 0
    """Up to which entry the leader knows that it is on this replica's disk."""
    untold_bytes: int = 0
    """How many bytes arrived since."""
    answer_due: bool = False


@dataclass(slots=True)
class LeaderState:
    """What a leader has proposed and not seen committed, and when it beats next. Times are monotonic seconds."""

    heartbeat_at: float
    announce_at: float = float("inf")
    """When it tells followers the commit index, if nothing else does before."""
    uncommitted: deque[Span] = field(default_factory=deque)
    uncommitted_bytes: int = 0


@dataclass(slots=True)
class OutputState:
    """What `take_effects` hands out next, and what it handed out last."""

    shell_last: int
    """Where the log ends outside, with the entries that a leader proposed itself."""
    told_commit: int
    told_role: RoleChange
    told_conf: ConfState
    new_spans: list[Span] = field(default_factory=list)
    """To be written."""
    truncate_from: int | None = None
    """The log outside is to be cut off from this entry on, before anything is written."""
    outbox: list[Message] = field(default_factory=list)
    held: deque[tuple[int, Message]] = field(default_factory=deque)
    """Messages that wait until the write with this number is on disk."""
    released: list[Message] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    offers: list[NodeId] = field(default_factory=list)
    """Peers that lack too much to be sent entries."""
    failed_from: int | None = None
    """The first entry that a leader proposed and that will never be committed."""


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
