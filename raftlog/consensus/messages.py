"""Messages between replicas (Raft thesis 3, 4.2.3, 9.6; names as there)."""

from __future__ import annotations

import enum

import msgspec

from raftlog.consensus.types import Index, LogId, Name, Number, Priority, Span, TermNumber
from raftlog.log_numbers import NO_INDEX


class _Message(msgspec.Struct, frozen=True, gc=False):
    """``term`` is the sender's; a granted `PreVoteResp` repeats the requested term."""

    src: Name
    dst: Name
    term: TermNumber


class Denial(enum.Enum):
    """The reason that a vote was denied."""

    STALE_TERM = "stale term"
    STALE_LOG = "stale log"
    LEADER_ALIVE = "leader alive"
    VOTED = "voted already"
    ABSTAINING = "may have lost acknowledged entries"


class PreVoteReq(_Message, frozen=True, gc=False):
    """Would you vote for me in ``next_term``? Changes nothing at the receiver (Raft thesis 9.6)."""

    next_term: TermNumber
    last: LogId


class PreVoteResp(_Message, frozen=True, gc=False):
    """The answer; ``last`` is the last entry of the answering replica."""

    granted: bool
    last: LogId
    denial: Denial | None = None


class VoteReq(_Message, frozen=True, gc=False):
    """Vote for me in ``term``; ``force`` if the leader itself requested this election (Raft thesis 3.10)."""

    last: LogId
    force: bool = False


class VoteResp(_Message, frozen=True, gc=False):
    """The answer; a granted vote is durable."""

    granted: bool
    denial: Denial | None = None


class AppendReq(_Message, frozen=True, gc=False):
    """A leader's request to append entries after ``prev``. It also announces the commit index.

    ``seq`` numbers a leader's messages to a peer. With 0 the request only announces ``commit`` and is not answered.
    """

    prev: LogId
    spans: tuple[Span, ...]
    commit: Index
    seq: Number


class AppendResp(_Message, frozen=True, gc=False):
    """A follower's part of this term's leader's log: up to ``accepted`` received, up to ``durable`` on its disk.

    A rejection (``ok`` false) repeats the request's ``seq``; ``hint`` is the last entry at or before the rejected
    ``prev``, by index and by term, so that one round trip skips a whole term. With ``seq`` 0 it only reports a later
    term.
    """

    seq: Number
    ok: bool
    accepted: Index
    durable: Index
    hint: LogId


class Heartbeat(_Message, frozen=True, gc=False):
    """The leader is alive; ``preferred`` is the highest priority among the healthy voters that could follow it.

    ``base`` is the entry before the first one of its log, ``oldest`` the lowest base of all logs that it knows: None
    until it knows, and while another replica may have what this one deleted early. Both are None from replicas of older
    software.
    """

    seq: Number
    commit: Index
    read_round: Number = 0
    preferred: Priority | None = None
    base: Index | None = None
    oldest: Index | None = None


class HeartbeatResp(_Message, frozen=True, gc=False):
    """The answer, with what an idle leader needs to know. With ``seq`` 0 it only reports a later term.

    ``base`` is the entry before the first one of the log; None from a replica of older software. ``began_early``
    says that entries before it were deleted earlier than retention allows.
    """

    seq: Number
    read_round: Number
    durable: Index
    disk_ok: bool = True
    applied: Index = NO_INDEX
    priority: Priority = 0
    base: Index | None = None
    began_early: bool = False


class TimeoutNow(_Message, frozen=True, gc=False):
    """Start an election at once: the leader transfers leadership (Raft thesis 3.10)."""


class ReadIndexReq(_Message, frozen=True, gc=False):
    """Requests the index to apply before answering a read that arrives now. ``ctx`` is the sender's number for it."""

    ctx: Number


class ReadIndexResp(_Message, frozen=True, gc=False):
    """The answer; ``index`` is None if the receiver cannot confirm it, because it does not lead, or no longer.

    ``last`` is the receiver's last entry: everything that the sender acknowledged to it before is at or before that.
    """

    ctx: Number
    index: Index | None
    last: Index


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
