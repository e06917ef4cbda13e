"""Writes traces of cores as lines of JSON, for a checker of the paper's rules and for debugging.

Theory of operation. A `Trace` provides a class of cores that compare their state before and after each input and write
events for the differences, and for messages received and sent. Plain cores do not know about it, so tracing costs
nothing when off. Events use the names of the trace specification of etcd's Raft in TLA+ where it has one, and its
format: ``{"tag": "trace", "event": {"name", "nid", "state": {"term", "vote", "commit"}, "role", "log", "conf",
"msg"}}``. Our own names, which a reader of that specification may skip, are `OWN_EVENTS`.

One input may take a core through several states; the trace shows the final one, and the order of events within one
input is the paper's: term, log, role, commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from raftlog.consensus.effects import Effects, StorageOp
from raftlog.consensus.messages import (
    AppendReq,
    AppendResp,
    Heartbeat,
    HeartbeatResp,
    Message,
    PreVoteReq,
    PreVoteResp,
    ReadIndexReq,
    ReadIndexResp,
    TimeoutNow,
    VoteReq,
    VoteResp,
)
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import ConfState, EntryKind, LogId, Role, Span
from raftlog.log_numbers import LogIndex

OWN_EVENTS: Final = frozenset(
    {
        "AppendEntries",
        "TruncateEntries",
        "CompactEntries",
        "PersistRequest",
        "PersistDone",
        "ReadIndex",
        "ReadState",
        "SendOther",
        "ReceiveOther",
    }
)

_ROLES: Final = {
    Role.FOLLOWER: "StateFollower",
    Role.PRE_CANDIDATE: "StatePreCandidate",
    Role.CANDIDATE: "StateCandidate",
    Role.LEADER: "StateLeader",
}
# Event name without its direction, and etcd's name of the message type.
_MESSAGES: Final[dict[type, tuple[str, str]]] = {
    AppendReq: ("AppendEntriesRequest", "MsgApp"),
    AppendResp: ("AppendEntriesResponse", "MsgAppResp"),
    Heartbeat: ("AppendEntriesRequest", "MsgHeartbeat"),
    HeartbeatResp: ("AppendEntriesResponse", "MsgHeartbeatResp"),
    VoteReq: ("RequestVoteRequest", "MsgVote"),
    VoteResp: ("RequestVoteResponse", "MsgVoteResp"),
    PreVoteReq: ("Other", "MsgPreVote"),
    PreVoteResp: ("Other", "MsgPreVoteResp"),
    TimeoutNow: ("Other", "MsgTimeoutNow"),
    ReadIndexReq: ("Other", "MsgReadIndex"),
    ReadIndexResp: ("Other", "MsgReadIndexResp"),
}

Runs = Sequence[tuple[int, int]]


class Trace:
    """Calls ``write`` with each event of a `core_class` core: one line of JSON without the newline."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._encode = msgspec.json.Encoder().encode

    def core_class(self) -> type[RaftCore]:
        """Return a `RaftCore` class whose cores write a trace. They are created and used like others."""
        trace = self

        class TracingCore(TracedCore):
            def __init__(self, **arguments: Any) -> None:
                super().__init__(trace, **arguments)

        return TracingCore

    def event(self, core: RaftCore, name: str, **fields: object) -> None:
        """Write one event with the current state of ``core``."""
        event = {
            "name": name,
            "nid": core.node_id,
            "state": {"term": core.term, "vote": core._voted_for or "", "commit": core.commit},
            "role": _ROLES[core.role],
            "log": core.last_index,
            "conf": [list(core.conf.voters), list(core.conf.outgoing)],
            **fields,
        }
        self._write(self._encode({"tag": "trace", "event": event}).decode())


class _Picture:
    """The compared part of a core's state."""

    __slots__ = ("base", "commit", "conf", "last", "leader_id", "role", "runs", "term")

    def __init__(self, core: RaftCore) -> None:
        self.term = core.term
        self.role = core.role
        self.leader_id = core.leader_id
        self.commit = core.commit
        self.conf = core.conf
        self.last = core.last_index
        self.base = core._log.base
        self.runs: Runs = core._log.runs()


class TracedCore(RaftCore):
    """A core that writes a trace; see `Trace.core_class`."""

    def __init__(self, trace: Trace, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._trace = trace
        self._last_picture = _Picture(self)
        base = self._log.base
        trace.event(
            self,
            "InitState",
            base=[base.index, base.term],
            spans=_cut(self._log.runs(), base.index + 1, self.last_index),
            durable_commit=self.config.durable_commit,
        )

    # Changes by other inputs are written before the next of these, at the latest in `take_effects`.

    def receive(self, message: Message, now: float) -> None:
        self._tell_changes()
        name, _ = _MESSAGES[type(message)]
        self._trace.event(self, f"Receive{name}", msg=_message(message))
        super().receive(message, now)
        self._tell_changes()

    def storage_done(self, ticket: int, now: float) -> None:
        self._tell_changes()
        self._trace.event(self, "PersistDone", ticket=ticket)
        super().storage_done(ticket, now)
        self._tell_changes()

    def sent_by_writer(self, ticket: int, message: AppendResp) -> None:
        """Trace that the log's writer has sent ``message`` itself: the log is durable up to ``ticket``."""
        self._tell_changes()
        self._trace.event(self, "PersistDone", ticket=ticket)
        self._trace.event(self, "SendAppendEntriesResponse", msg=_message(message))

    def read(self, ctx: int, now: float) -> None:
        self._tell_changes()
        self._trace.event(self, "ReadIndex", ctx=ctx)
        super().read(ctx, now)

    def compact(self, index: LogIndex, now: float) -> None:
        self._tell_changes()
        super().compact(index, now)
        self._last_picture = _Picture(self)
        base = self._log.base
        self._trace.event(self, "CompactEntries", base=[base.index, base.term])

    def take_effects(self) -> Effects:
        self._tell_changes()
        effects = super().take_effects()
        self._tell_changes()
        if effects.storage is not None:
            self._trace.event(self, "PersistRequest", **_storage(effects.storage))
        for message in effects.send:
            name, _ = _MESSAGES[type(message)]
            self._trace.event(self, f"Send{name}", msg=_message(message))
        for ctx, index in effects.reads:
            self._trace.event(self, "ReadState", ctx=ctx, index=index)
        return effects

    def _tell_changes(self) -> None:
        """Write events for everything that has changed since the last call."""
        event = self._trace.event
        before, self._last_picture = self._last_picture, _Picture(self)
        runs = self._log.runs()
        agreement = _agreement(before, runs, self.last_index)
        if agreement < before.last:
            event(self, "TruncateEntries", first=agreement + 1)
        if agreement < self.last_index:
            own = self.role is Role.LEADER and before.role is Role.LEADER
            name = "Replicate" if own else "AppendEntries"
            event(self, name, spans=_cut(runs, agreement + 1, self.last_index))
        if (self.role, self.term) != (before.role, before.term):
            self._tell_role(before)
        elif self.leader_id != before.leader_id and self.role is Role.FOLLOWER:
            event(self, "BecomeFollower", leader=self.leader_id or "")
        if self.conf != before.conf:
            event(self, "ApplyConfChange", **_conf(self.conf))
        if self.commit != before.commit:
            event(self, "Commit")

    def _tell_role(self, before: _Picture) -> None:
        event = self._trace.event
        if self.role is Role.FOLLOWER:
            event(self, "BecomeFollower", leader=self.leader_id or "")
        elif self.role is Role.CANDIDATE:
            event(self, "BecomeCandidate")
        elif self.role is Role.LEADER:
            if self.term != before.term:
                event(self, "BecomeCandidate", role=_ROLES[Role.CANDIDATE])
            event(self, "BecomeLeader")


def _agreement(before: _Picture, runs: Runs, last: int) -> int:
    """The last index up to which the log is unchanged."""
    if runs == before.runs:
        return min(before.last, last)
    agreement = min(before.last, last)
    old, new = dict(before.runs), dict(runs)
    # Terms change only at the start of a run: agreement ends at the first start that is not in both, or has another
    # term.
    for first in sorted({*old, *new}):
        if old.get(first) != new.get(first) and first > before.base.index:
            return min(agreement, first - 1)
    return agreement


def _cut(runs: Runs, first: int, last: int) -> list[list[int]]:
    """The part of ``runs`` from ``first`` to ``last`` as spans: first index, last index, term."""
    spans = []
    for number, (start, term) in enumerate(runs):
        end = runs[number + 1][0] - 1 if number + 1 < len(runs) else last
        if max(start, first) <= min(end, last):
            spans.append([max(start, first), min(end, last), term])
    return spans


def _storage(op: StorageOp) -> dict[str, object]:
    hard_state = None if op.hard_state is None else [op.hard_state.term, op.hard_state.voted_for or ""]
    return {
        "ticket": op.ticket,
        "truncate_from": op.truncate_from,
        "spans": _spans(op.spans),
        "hard_state": hard_state,
    }


def _spans(spans: Iterable[Span]) -> list[list[int]]:
    return [[span.first, span.last, span.term] for span in spans]


def _conf(conf: ConfState) -> dict[str, object]:
    return {"cc": {"newconf": list(conf.voters)}, "outgoing": list(conf.outgoing), "learners": list(conf.learners)}


def _message(message: Message) -> dict[str, object]:
    """A message in etcd's fields; plus ``spans`` and further data for the checker."""
    _, kind = _MESSAGES[type(message)]
    fields: dict[str, object] = {
        "type": kind,
        "term": message.term,
        "from": message.src,
        "to": message.dst,
        "entries": 0,
        "logTerm": 0,
        "index": 0,
        "commit": 0,
        "vote": "",
        "reject": False,
        "rejectHint": 0,
    }
    match message:
        case AppendReq(prev=prev, spans=spans, commit=commit):
            entries = spans[-1].last - prev.index if spans else 0
            fields |= {**_log_id_fields(prev), "commit": commit, "entries": entries, "spans": _spans(spans)}
            if confs := [_conf(s.conf) for s in spans if s.kind is EntryKind.CONFIG and s.conf is not None]:
                fields |= {"confs": confs}
        case AppendResp(ok=ok, accepted=accepted, durable=durable, hint=hint):
            fields |= {"index": durable, "accepted": accepted, "reject": not ok, "rejectHint": 0 if ok else hint.index}
        case Heartbeat(commit=commit, read_round=read_round):
            fields |= {"commit": commit, "round": read_round}
        case HeartbeatResp(durable=durable, read_round=read_round):
            fields |= {"index": durable, "round": read_round}
        case VoteReq(last=last) | PreVoteReq(last=last):
            fields |= _log_id_fields(last)
        case VoteResp(granted=granted) | PreVoteResp(granted=granted):
            fields |= {"reject": not granted}
        case ReadIndexReq(ctx=ctx):
            fields |= {"ctx": ctx}
        case ReadIndexResp(ctx=ctx, index=index):
            fields |= {"ctx": ctx, "index": index}
        case TimeoutNow():
            pass
    return fields


def _log_id_fields(log_id: LogId) -> dict[str, object]:
    return {"index": log_id.index, "logTerm": log_id.term}
