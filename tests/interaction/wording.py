"""How the interaction scripts put messages, logs and replicas into words."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from raftlog.consensus.effects import StorageOp
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
from raftlog.consensus.types import ConfState, EntryKind, LogId, NodeId, Role, Span

KINDS = {
    PreVoteReq: "prevote",
    PreVoteResp: "prevote-answer",
    VoteReq: "vote",
    VoteResp: "vote-answer",
    AppendReq: "append",
    AppendResp: "append-answer",
    Heartbeat: "heartbeat",
    HeartbeatResp: "heartbeat-answer",
    TimeoutNow: "take-over",
    ReadIndexReq: "read",
    ReadIndexResp: "read-answer",
}


def kind(message: Message) -> str:
    """The word by which a script selects messages of this kind."""
    return KINDS[type(message)]


def told(message: Message) -> str:
    """A message as one line."""
    return f"{message.src}->{message.dst} t{message.term} {_content(message)}"


def _content(message: Message) -> str:
    match message:
        case PreVoteReq(next_term=next_term, last=last):
            return f"pre-vote? for term {next_term}, log ends at {place(last)}"
        case PreVoteResp(granted=granted, denial=denial):
            return "pre-vote yes" if granted else f"pre-vote no: {denial.value if denial else '?'}"
        case VoteReq(last=last, force=force):
            return f"vote? log ends at {place(last)}" + (", sent by the leader" if force else "")
        case VoteResp(granted=granted, denial=denial):
            return "vote yes" if granted else f"vote no: {denial.value if denial else '?'}"
        case AppendReq(seq=0, commit=commit):
            return f"commit {commit}"
        case AppendReq(prev=prev, spans=spans, commit=commit):
            return f"append {entries(spans) or 'nothing'} behind {place(prev)}, commit {commit}"
        case AppendResp(ok=False, hint=hint):
            return f"rejected, try {place(hint)}"
        case AppendResp(accepted=accepted, durable=durable):
            return f"has {accepted}, on disk {durable}"
        case Heartbeat(commit=commit, read_round=read_round):
            return f"heartbeat, commit {commit}" + (f", read round {read_round}" if read_round else "")
        case HeartbeatResp(durable=durable, disk_ok=disk_ok, read_round=read_round):
            answer = f"heartbeat answered, on disk {durable}"
            return answer + ("" if disk_ok else ", disk bad") + (f", read round {read_round}" if read_round else "")
        case TimeoutNow():
            return "take over"
        case ReadIndexReq(ctx=ctx):
            return f"read {ctx}: which index?"
        case ReadIndexResp(ctx=ctx, index=index):
            return f"read {ctx}: " + ("cannot tell" if index is None else f"index {index}")


def place(log_id: LogId) -> str:
    """An entry by index and term."""
    return f"{log_id.index}@{log_id.term}"


def entries(spans: Iterable[Span]) -> str:
    """Spans, those of one term and kind together: `1-3@1, 4@2 noop`."""
    parts = []
    for (term, which, conf), group in itertools.groupby(spans, lambda span: (span.term, span.kind, span.conf)):
        run = list(group)
        parts.append(_entries(run[0].first, run[-1].last, term, which, conf))
    return ", ".join(parts)


def _entries(first: int, last: int, term: int, which: EntryKind, conf: ConfState | None) -> str:
    text = f"{first}@{term}" if first == last else f"{first}-{last}@{term}"
    if which is EntryKind.CONFIG:
        return f"{text} {membership(conf)}"
    return f"{text} noop" if which is EntryKind.NOOP else text


def membership(conf: ConfState | None) -> str:
    """A configuration: voters, the outgoing ones, learners."""
    assert conf is not None, "a configuration entry carries its configuration"
    text = "voters " + (" ".join(conf.voters) or "none")
    if conf.outgoing:
        text += " from " + " ".join(conf.outgoing)
    if conf.learners:
        text += ", learners " + " ".join(conf.learners)
    return f"[{text}]"


def written(op: StorageOp) -> str:
    """What a write does."""
    parts = []
    if op.truncate_from is not None:
        parts.append(f"cut from {op.truncate_from}")
    if op.spans:
        parts.append(f"add {entries(op.spans)}")
    if op.hard_state is not None:
        vote = f", vote {op.hard_state.voted_for}" if op.hard_state.voted_for else ""
        parts.append(f"term {op.hard_state.term}{vote}")
    return "; ".join(parts) or "nothing"


def role(core: RaftCore) -> str:
    """What a replica is, in which term, behind whom."""
    text = f"{core.role.value} of term {core.term}"
    return f"{text}, follows {core.leader_id}" if core.role is Role.FOLLOWER and core.leader_id else text


def state(core: RaftCore) -> str:
    """One line of `status`, and while it leads one for each peer."""
    status = core.status()
    text = f"{role(core)}; log {place(status.last)}, on disk {status.durable}, commit {status.commit}"
    if status.base.index:
        text += f", base {place(status.base)}"
    for peer in status.peers:
        text += f"\n  {peer.peer}: {peer.state.value}, match {peer.match}, next {peer.next}"
        text += "" if peer.active else ", silent"
        text += "" if peer.disk_ok else ", disk bad"
    return text


def log_text(spans: Sequence[Span], disk: int, commit: int) -> str:
    """A whole log."""
    return f"{entries(spans) or 'empty'}; on disk {disk}, commit {commit}"


def names(nodes: Iterable[NodeId]) -> str:
    """Nodes in order."""
    return " ".join(sorted(nodes))
