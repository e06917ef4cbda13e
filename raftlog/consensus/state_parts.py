"""Parts of a core's state: of each role, of reads, of a leadership transfer, and of its output."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from raftlog.consensus.effects import Fetch
from raftlog.consensus.messages import Message
from raftlog.consensus.pending_reads import ForwardedReads, ReadRounds
from raftlog.consensus.types import ConfState, NodeId, RoleChange, Span
from raftlog.log_numbers import NO_INDEX, NO_TERM, LogIndex, Term


@dataclass(slots=True)
class FollowerState:
    """The progress that a follower reported to its leader, and the time at which it last heard from it."""

    heard_at: float = float("-inf")
    """Monotonic seconds."""
    leader_seq: int = 0
    """The number of the newest request of this term's leader."""
    reported_durable: LogIndex = NO_INDEX
    """The entry up to which the leader knows that this replica is durable."""
    unreported_bytes: int = 0
    """Bytes received since then."""
    answer_due: bool = False
    leader_base: LogIndex | None = None
    """The entry before the first one of the leader's log; None if it has not told, or runs older software."""
    oldest: LogIndex | None = None
    """The lowest base of all logs that the last leader knew. Kept when the leader is lost."""
    leader_told: bool = False
    """Whether the current leader has sent a heartbeat."""


@dataclass(slots=True)
class LeaderState:
    """A leader's uncommitted proposals, and the time of its next heartbeat. Times are monotonic seconds."""

    heartbeat_at: float
    since: float = 0.0
    """The time at which this replica began to lead."""
    announce_at: float = float("inf")
    """The time at which it sends followers the commit index, unless another message does before."""
    uncommitted: deque[Span] = field(default_factory=deque)
    uncommitted_bytes: int = 0


@dataclass(slots=True)
class OutputState:
    """The outputs that `take_effects` returns next, and those that it returned last."""

    shell_last: LogIndex
    """The last entry outside, including entries that a leader proposed itself."""
    reported_commit: LogIndex
    reported_role: RoleChange
    reported_conf: ConfState
    new_spans: list[Span] = field(default_factory=list)
    """Spans to be written."""
    truncate_from: LogIndex | None = None
    """Cut the log outside from this entry on, before anything is written."""
    outbox: list[Message] = field(default_factory=list)
    held_messages: deque[tuple[int, Message]] = field(default_factory=deque)
    """Messages that wait until the write with this number is durable."""
    released_messages: list[Message] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    offers: list[NodeId] = field(default_factory=list)
    """Peers that lack too much to be sent entries."""
    failed_from: LogIndex | None = None
    """The first entry proposed by a leader that has lost leadership."""


@dataclass(slots=True)
class ElectionState:
    """The start of the next election, and the state of the current one. All times are monotonic seconds."""

    waiting_since: float
    """The time since which no message postponed an election."""
    no_votes_before: float
    """The time until which a voter acts as if it had just heard a leader: with leases, its last run may have."""
    timeout: float = 0.0
    """The next round begins after this many seconds of waiting."""
    votes: dict[NodeId, bool] = field(default_factory=dict)
    """Votes of the current round, pre-vote or vote, including its own."""
    failed_rounds: int = 0
    """Consecutive elections without a majority."""
    pre_vote_rounds: int = 0
    """Pre-vote rounds since a leader was last heard."""
    timeouts_left_to_others: int = 0
    """Consecutive timeouts in which this replica let others campaign."""
    preferred_priority: int | None = None
    """The highest priority among possible successors, as reported by the leader."""


@dataclass(slots=True)
class ReadState:
    """The linearizable reads of a replica: reads that it confirms as leader, reads that it forwards, and answers."""

    forwards: ForwardedReads
    rounds: ReadRounds = field(default_factory=ReadRounds)
    sent_to: tuple[Term, NodeId | None] = (NO_TERM, None)
    """Term and leader of the queries in flight."""
    results: list[tuple[int, LogIndex | None]] = field(default_factory=list)
    """The caller's number of each read, and the index to apply; None if it could not be confirmed."""
    lease_released: bool = False
    """A node was asked to take over: it may be elected at any later time, so the lease is void for this term."""


@dataclass(slots=True)
class TransferState:
    """A leadership transfer in progress: its target, and limits on automatic ones."""

    to: NodeId | None = None
    until: float = float("inf")
    """The time at which the target must lead."""
    was_asked: bool = False
    """Whether the target was asked to campaign."""
    outranked_beats: int = 0
    """The number of consecutive heartbeats for which a voter of higher priority was fit to lead."""
    not_before: float = 0.0
    """Earliest time of a transfer to a preferred voter."""
    older_not_before: float = 0.0
    """Earliest time of a transfer to a voter whose log begins earlier."""

    def end(self) -> None:
        """End the transfer."""
        self.to, self.until, self.was_asked, self.outranked_beats = None, float("inf"), False, 0
