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
    """Asks whether the receiver would vote for the sender in ``next_term``. Does not change its state (thesis 9.6)."""

    next_term: TermNumber
    last: LogId


class PreVoteResp(_Message, frozen=True, gc=False):
    """The response to a pre-vote request. ``last`` is the last entry of the responding replica."""

    granted: bool
    last: LogId
    denial: Denial | None = None


class VoteReq(_Message, frozen=True, gc=False):
    """Asks for a vote in ``term``. ``force`` says that the leader itself requested this election (thesis 3.10)."""

    last: LogId
    force: bool = False


class VoteResp(_Message, frozen=True, gc=False):
    """The response to a vote request. A granted vote is durable."""

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
    """Reports how much of this term's leader's log a follower has: up to ``accepted``, on its disk up to ``durable``.

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
    """Says that the leader is alive. ``preferred`` is the highest priority among the healthy possible successors.

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
    """The response to a heartbeat: what an idle leader needs to know. With ``seq`` 0 it only reports a later term.

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
    """Asks the receiver to start an election at once, because the leader transfers leadership (thesis 3.10)."""


class ReadIndexReq(_Message, frozen=True, gc=False):
    """Requests the index to apply before answering a read that arrives now. ``ctx`` is the sender's number for it."""

    ctx: Number


class ReadIndexResp(_Message, frozen=True, gc=False):
    """The response to a read. ``index`` is None if the receiver cannot confirm it, because it does not lead now.

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
