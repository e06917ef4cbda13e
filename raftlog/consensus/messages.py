"""What replicas say to one another (Raft thesis 3, 4.2.3, 9.6; names as there)."""

from __future__ import annotations

import enum

import msgspec

from raftlog.consensus.types import LogId, Name, Number, Priority, Span


class _Message(msgspec.Struct, frozen=True, gc=False):
    """``term`` is the sender's; a granted `PreVoteResp` repeats the term that was asked about."""

    src: Name
    dst: Name
    term: Number


class Denial(enum.Enum):
    """Why a vote was not given."""

    STALE_TERM = "stale term"
    STALE_LOG = "stale log"
    LEADER_ALIVE = "leader alive"
    VOTED = "voted already"
    ABSTAINING = "may have lost acknowledged entries"


class PreVoteReq(_Message, frozen=True, gc=False):
    """Would you vote for me in ``next_term``? Changes nothing at the receiver (Raft thesis 9.6)."""

    next_term: Number
    last: LogId


class PreVoteResp(_Message, frozen=True, gc=False):
    """The answer; ``last`` is where the answering replica's log ends."""

    granted: bool
    last: LogId
    denial: Denial | None = None


class VoteReq(_Message, frozen=True, gc=False):
    """Vote for me in ``term``; ``force`` when the leader itself asked for this election (Raft thesis 3.10)."""

    last: LogId
    force: bool = False


class VoteResp(_Message, frozen=True, gc=False):
    """The answer; a granted vote is on disk."""

    granted: bool
    denial: Denial | None = None


class AppendReq(_Message, frozen=True, gc=False):
    """Entries behind ``prev``, and how far the log is committed.

    ``seq`` numbers what a leader sends to a peer. With 0 the request only announces ``commit`` and is not answered.
    """

    prev: LogId
    spans: tuple[Span, ...]
    commit: Number
    seq: Number


class AppendResp(_Message, frozen=True, gc=False):
    """What a follower holds of this term's leader's log: up to ``accepted`` received, up to ``durable`` on its disk.

    A rejection (``ok`` false) repeats the request's ``seq``; ``hint`` is the last entry at or before the rejected
    ``prev``, by index and by term, so that one round trip skips a whole term. With ``seq`` 0 it tells of a later term,
    and nothing else.
    """

    seq: Number
    ok: bool
    accepted: Number
    durable: Number
    hint: LogId


class Heartbeat(_Message, frozen=True, gc=False):
    """The leader is alive; ``preferred`` is the highest priority among the healthy voters behind it."""

    seq: Number
    commit: Number
    read_round: Number = 0
    preferred: Priority | None = None


class HeartbeatResp(_Message, frozen=True, gc=False):
    """The answer, with what an idle leader wants to know. With ``seq`` 0 it tells of a later term, and nothing else."""

    seq: Number
    read_round: Number
    durable: Number
    disk_ok: bool = True
    applied: Number = 0
    priority: Priority = 0


class TimeoutNow(_Message, frozen=True, gc=False):
    """Start an election at once: the leader gives up (Raft thesis 3.10)."""


class ReadIndexReq(_Message, frozen=True, gc=False):
    """Which index must I have applied to answer a read that was asked for now? ``ctx`` is the asker's number for it."""

    ctx: Number


class ReadIndexResp(_Message, frozen=True, gc=False):
    """The answer; ``index`` is None when the receiver cannot tell, since it does not lead (any more).

    ``last`` is where the receiver's log ends: whatever the asker acknowledged to it before it asked is not behind that.
    """

    ctx: Number
    index: Number | None
    last: Number


Message = (
    PreVoteReq
    | PreVoteResp
    | VoteReq
    | VoteResp
    | AppendReq
    | AppendResp
    | Heartbeat
    | HeartbeatResp
    | TimeoutNow
    | ReadIndexReq
    | ReadIndexResp
)
