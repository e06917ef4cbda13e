"""Values of the consensus core: identities, positions in the log, membership and settings."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Final, NewType

import msgspec
from msgspec import Meta

from raftlog.consensus.causes import Cause
from raftlog.log_numbers import NO_INDEX, NO_TERM, LogIndex, Term

NodeId = NewType("NodeId", str)

NUMBER_MAX: Final = 2**63 - 1
"""Largest index, position, sequence number or time accepted from a peer; file formats have room for twice as much."""

PRIORITY_MAX: Final = 2**31 - 1

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Index = Annotated[LogIndex, Meta(ge=0, le=NUMBER_MAX)]
TermNumber = Annotated[Term, Meta(ge=0, le=NUMBER_MAX)]
Priority = Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]
Name = Annotated[NodeId, Meta(max_length=255)]
"""Types of values decoded from a frame: values outside of the limits are refused there."""


class Role(enum.Enum):
    """The current role of a replica."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class EntryKind(enum.IntEnum):
    """The purpose of an entry."""

    NORMAL = 1
    NOOP = 2
    CONFIG = 3


class Refusal(enum.Enum):
    """The reason that a proposal was refused. The state did not change."""

    NOT_LEADER = "not leader"
    NOT_READY = "not ready"
    BUSY = "busy"
    TOO_LARGE = "too large"
    TRANSFERRING = "a leadership transfer is under way"
    DISK_FULL = "disk full"
    CHANGE_PENDING = "a membership change is under way"
    NOT_CAUGHT_UP = "the node has not caught up"
    BEGINS_LATER = "the log of the node begins later than the leader's: it deleted entries that are still needed"
    INVALID_CHANGE = "the change contradicts the membership"
    UNKNOWN_NODE = "no such voter"


class PeerState(enum.Enum):
    """The way in which a leader sends to a peer: one message at a time until the logs agree, a window of them, or
    nothing while the peer fetches whole segments.
    """

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "reset"  # the word that released versions send to operators


class Beginning(enum.Enum):
    """Compares the beginning of a replica's log with the beginnings of the others' logs.

    Only a replica with `FIRST` knows that entries before its own beginning are deleted everywhere. With `LATER` another
    one has them; with `UNKNOWN` another one may have them.
    """

    FIRST = "first"
    LATER = "later"
    UNKNOWN = "unknown"


class LogId(msgspec.Struct, frozen=True, gc=False):
    """A position in the log with the term of its entry. The first index is 1."""

    index: Index
    term: TermNumber

    def is_at_least(self, other: LogId) -> bool:
        """Whether a log that ends here is at least as up to date as one that ends at ``other`` (Raft thesis 3.6.1)."""
        return self.term > other.term or (self.term == other.term and self.index >= other.index)


NONE: Final = LogId(NO_INDEX, NO_TERM)
"""The place before the first entry."""

NOOP_BYTES: Final = 48
"""Size of an entry without a body."""


class ConfState(msgspec.Struct, frozen=True):
    """The members of a group, from one configuration entry (Raft thesis 4.1, 4.3).

    ``voters`` elect and commit. While ``outgoing`` is not empty, a change is in progress: majorities of both sets are
    needed. ``learners`` get the log and do not vote. ``addresses`` are the members' ``HOST:PORT``, opaque to the core.
    A configuration without voters belongs to a node that has not joined yet.

    Raises:
        ValueError: a node occurs twice in one role, or is voter and learner at once.
    """

    voters: tuple[NodeId, ...] = ()
    outgoing: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()
    addresses: tuple[tuple[NodeId, str], ...] = ()

    def __post_init__(self) -> None:
        for name, nodes in (("voter", self.voters), ("voter", self.outgoing), ("learner", self.learners)):
            if len(set(nodes)) != len(nodes):
                raise ValueError(f"a {name} is named twice: {', '.join(nodes)}")
        if both := set(self.learners) & {*self.voters, *self.outgoing}:
            raise ValueError(f"{', '.join(sorted(both))} cannot be voters and learners at the same time")

    @property
    def is_joint(self) -> bool:
        """Whether a change of voters is in progress."""
        return bool(self.outgoing)

    @property
    def members(self) -> frozenset[NodeId]:
        """Return all nodes that get the log."""
        return frozenset((*self.voters, *self.outgoing, *self.learners))

    def is_voter(self, node: NodeId) -> bool:
        """Whether ``node`` has a vote, in either set."""
        return node in self.voters or node in self.outgoing


class ConfChangeKind(enum.Enum):
    """The kinds of changes of a group's members."""

    ADD_LEARNER = "add"
    PROMOTE = "promote"
    REMOVE = "remove"
    REPLACE = "replace"


class ConfChange(msgspec.Struct, frozen=True):
    """A membership change: `ADD_LEARNER` needs ``address``; `REPLACE` makes the learner ``node`` a voter in place of
    ``replaced``.
    """

    kind: ConfChangeKind
    node: NodeId
    address: str = ""
    replaced: NodeId | None = None


class Span(msgspec.Struct, frozen=True, gc=False):
    """Consecutive entries ``first`` to ``last`` (both inclusive) of one term and kind, ``nbytes`` in total.

    For a part of a larger span ``nbytes`` is an estimate, since the core does not know single entries. A configuration
    entry is a separate span, with its configuration in ``conf``.
    """

    first: LogIndex
    last: LogIndex
    term: Term
    nbytes: int
    kind: EntryKind = EntryKind.NORMAL
    conf: ConfState | None = None

    def up_to(self, last: LogIndex) -> Span:
        """Return the part of the span up to ``last`` (inclusive)."""
        return self._part(self.first, last)

    def since(self, first: LogIndex) -> Span:
        """Return the part of the span from ``first`` on."""
        return self._part(first, self.last)

    def _part(self, first: LogIndex, last: LogIndex) -> Span:
        assert self.first <= first <= last <= self.last, (
            f"entries {first} to {last} are not within {self.first} to {self.last}"
        )
        nbytes = self.nbytes * (last - first + 1) // (self.last - self.first + 1)
        return Span(first, last, self.term, nbytes, self.kind, self.conf)


class HardState(msgspec.Struct, frozen=True, gc=False):
    """The state that a replica must never lose: its term, and its vote in it (Raft thesis 3.8)."""

    term: Term = NO_TERM
    voted_for: NodeId | None = None


class RoleChange(msgspec.Struct, frozen=True, gc=False):
    """The new role, term and known leader of this replica, and the cause."""

    role: Role
    term: Term
    leader_id: NodeId | None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Timing and limits of a core, checked for consistency.

    A window (``inflight_*``) is per peer. ``tail_*`` limits the core's cache of the end of the log; `Effects.fetch`
    requests older parts, with at most ``catch_up_bytes_max`` in flight per peer. An empty peer gets whole
    segments instead of entries if the log has more than ``install_entries_min`` of them. A new commit index goes with
    the next entries; without any it is announced after ``announce_seconds``, so that a steady trickle of entries needs
    no extra messages. ``durable_commit`` commits what is on the disks of a majority; without it, receipt by a majority
    is enough. A replica with a higher ``priority`` is preferred as the leader, if its log allows it. ``lease_reads``
    answers reads from the leader's lease, without a round trip; it relies on clocks that differ by at most a tenth in
    speed, and continue while a machine is suspended.

    Raises:
        ValueError: two settings contradict each other.
    """

    heartbeat_seconds: float = 0.2
    announce_seconds: float = 0.0
    election_timeout_seconds_min: float = 1.5
    election_timeout_seconds_max: float = 3.0
    vote_retry_seconds_min: float = 0.2
    vote_retry_seconds_max: float = 0.5
    append_bytes_max: int = 256 * 1024
    inflight_messages_max: int = 256
    inflight_bytes_max: int = 16 * 1024 * 1024
    uncommitted_bytes_max: int = 64 * 1024 * 1024
    accept_ack_bytes: int = 1024 * 1024
    tail_bytes_max: int = 24 * 1024 * 1024
    tail_spans_max: int = 65_536
    catch_up_bytes_max: int = 2 * 1024 * 1024
    install_entries_min: int = 4096
    durable_commit: bool = True
    priority: int = 0
    lease_reads: bool = False

    def __post_init__(self) -> None:
        if not 0 < 2 * self.heartbeat_seconds < self.election_timeout_seconds_min:
            raise ValueError(
                f"two heartbeats of {self.heartbeat_seconds} s must fit into the election timeout of "
                f"{self.election_timeout_seconds_min} s"
            )
        if not 0 <= self.announce_seconds <= self.heartbeat_seconds:
            raise ValueError(
                f"a commit index announced after {self.announce_seconds} s would be told sooner by the heartbeat, "
                f"every {self.heartbeat_seconds} s"
            )
        for name, low, high in (
            ("election timeout", self.election_timeout_seconds_min, self.election_timeout_seconds_max),
            ("vote retry", self.vote_retry_seconds_min, self.vote_retry_seconds_max),
        ):
            if not 0 < low < high:
                raise ValueError(f"{name}: {low} s must be above 0 and below {high} s")
        for name in ("append_bytes_max", "inflight_messages_max", "uncommitted_bytes_max", "tail_spans_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")
        if self.inflight_bytes_max < self.append_bytes_max:
            raise ValueError(
                f"a window of {self.inflight_bytes_max} bytes is smaller than one message ({self.append_bytes_max})"
            )
        # A follower does not answer until that much has arrived, so a smaller window would wait for its disk each time.
        if not 0 <= self.accept_ack_bytes < min(self.inflight_bytes_max, self.catch_up_bytes_max):
            raise ValueError(
                f"acknowledging every {self.accept_ack_bytes} bytes needs larger windows than "
                f"{self.inflight_bytes_max} (in flight) and {self.catch_up_bytes_max} (catching up)"
            )


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A leader's view of a peer. ``active`` means that the peer answered within an election timeout.

    ``contact_at`` is the send time, in monotonic seconds, of the newest message that the peer has answered. ``base`` is
    the entry before the first one of its log, None if it has not told.
    """

    peer: NodeId
    match: LogIndex
    next: LogIndex
    state: PeerState
    active: bool
    disk_ok: bool
    applied: LogIndex
    priority: int = 0
    contact_at: float = float("-inf")
    base: LogIndex | None = None


@dataclass(frozen=True, slots=True)
class CoreStatus:
    """A replica's view of itself, and of its peers while it leads."""

    node_id: NodeId
    role: Role
    term: Term
    leader_id: NodeId | None
    base: LogId
    last: LogId
    commit: LogIndex
    durable: LogIndex
    uncommitted_bytes: int
    peers: tuple[PeerStatus, ...]
    conf: ConfState
    abstaining: bool = False
