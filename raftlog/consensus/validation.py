"""Validates messages before a core processes them, so that peers cannot make assertions of the core fail.

A refused message changes nothing. None of these checks can fail for messages of correct replicas with intact disks, so
a refusal means that a peer is faulty, that a log was damaged or changed, or that there is an attack.
"""

from __future__ import annotations

from raftlog.consensus.confchange import CONF_PROPOSED_BYTES_MAX, MEMBERS_MAX, encode_conf, may_follow
from raftlog.consensus.messages import (
    AppendReq,
    AppendResp,
    Heartbeat,
    HeartbeatResp,
    Message,
    PreVoteReq,
)
from raftlog.consensus.state import CoreState
from raftlog.consensus.types import ConfState, EntryKind, LogId, Role, Span
from raftlog.log_numbers import NO_INDEX, LogIndex
from raftlog.terms import highest_plausible


class PeerMessageInvalid(Exception):
    """No correct replica sends this message. The core is unchanged."""


def check_message(core: CoreState, message: Message) -> None:
    """Raise `PeerMessageInvalid` if a core in this state must not process the message."""
    own = core._term
    term = max(message.term, message.next_term) if isinstance(message, PreVoteReq) else message.term
    if term > (highest := highest_plausible(own)):
        raise PeerMessageInvalid(
            f"{message.src} sends a {type(message).__name__} of term {term}, which is implausible: the own term is "
            f"{own}, at most {highest} is accepted"
        )
    if message.src == core.node_id:
        raise PeerMessageInvalid(f"a {type(message).__name__} claims to be from {message.src}, which is this replica")
    if message.term < own:
        return
    match message:
        case AppendReq():
            _check_leader(core, message)
            _check_entries(core, message)
        case AppendResp() if core._role is Role.LEADER and message.term == own:
            _check_position(core, message, max(message.accepted, message.durable) if message.ok else NO_INDEX)
        case Heartbeat():
            _check_leader(core, message)
        case HeartbeatResp() if core._role is Role.LEADER and message.term == own:
            _check_position(core, message, message.durable)
            if message.read_round > (newest := core._reads.rounds.newest):
                raise PeerMessageInvalid(
                    f"{message.src} answers round {message.read_round} of reads, the newest is {newest}"
                )
        case _:
            pass


def _check_leader(core: CoreState, message: AppendReq | Heartbeat) -> None:
    """Check that no other replica leads in this term. Raises PeerMessageInvalid."""
    if message.term > core._term:
        return
    leader = core.node_id if core._role is Role.LEADER else core._leader_id
    if leader not in (None, message.src):
        raise PeerMessageInvalid(f"{message.src} claims to lead in term {message.term}, in which {leader} leads")


def _check_position(core: CoreState, message: AppendResp | HeartbeatResp, index: LogIndex) -> None:
    if index > core._log.last_index:
        raise PeerMessageInvalid(f"{message.src} claims to have entry {index}, the log ends at {core._log.last_index}")


def _check_entries(core: CoreState, message: AppendReq) -> None:
    """Check that the entries are in order and agree with what this replica knows to be in every leader's log."""
    log, prev = core._log, message.prev
    if not log.holds(prev):
        if prev.index > core._commit:
            return  # the core rejects the request, whatever its entries
        if prev.index >= log.base.index:
            raise PeerMessageInvalid(
                f"{message.src} has entry {prev.index} with term {prev.term}, here it is committed with term "
                f"{log.term_at(prev.index)}"
            )
    if not message.spans:
        return
    # The part that was compared with this leader's log; for another leader, the committed part.
    limit = core._verified_end if message.term == core._term else core._commit
    before = prev
    for span in message.spans:
        if span.first != before.index + 1 or span.last < span.first:
            raise PeerMessageInvalid(f"{message.src} sends entries {span.first} to {span.last} after {before.index}")
        if not before.term <= span.term <= message.term:
            raise PeerMessageInvalid(
                f"{message.src} sends entry {span.first} of term {span.term} behind one of term {before.term}, its own "
                f"term is {message.term}"
            )
        first, last = max(span.first, log.base.index), min(span.last, limit)
        # Terms in a log never decrease, so equal ones at both ends are equal in between.
        if first <= last and not log.term_at(first) == log.term_at(last) == span.term:
            raise PeerMessageInvalid(
                f"{message.src} has entries {first} to {last} with term {span.term}, here they are settled with terms "
                f"{log.term_at(first)} to {log.term_at(last)}"
            )
        before = LogId(span.last, span.term)
    if any(span.kind is EntryKind.CONFIG for span in message.spans):
        _check_configurations(core, message)


def _check_configurations(core: CoreState, message: AppendReq) -> None:
    """Check that each new configuration is one step away from the one before it."""
    log = core._log
    # Entries up to the one before the request's stay; the first one represents everything before the base.
    earlier = [(index, conf) for index, conf in core._confs[1:] if index <= message.prev.index]
    conf = earlier[-1][1] if earlier else core._confs[0][1]
    confs = dict(core._confs)
    for span in message.spans:
        if span.kind is not EntryKind.CONFIG or span.last <= log.base.index:
            continue
        own = confs.get(span.first) if log.holds(LogId(span.first, span.term)) else None
        if own is None or own != span.conf:
            _check_configuration(message, span, conf)
        assert span.conf is not None, f"the configuration at {span.first} was checked and is none"
        conf = span.conf


def _check_configuration(message: AppendReq, span: Span, before: ConfState) -> None:
    conf = span.conf
    reason: str | None = None
    if conf is None or span.first != span.last:
        reason = "it cannot be read"
    elif not conf.voters:
        reason = "no member has a vote"
    elif len(conf.members) > MEMBERS_MAX:
        reason = f"it has {len(conf.members)} members, at most {MEMBERS_MAX} are possible"
    elif len(encode_conf(conf)) > CONF_PROPOSED_BYTES_MAX:
        reason = f"it takes more than {CONF_PROPOSED_BYTES_MAX} bytes"
    elif not may_follow(conf, before):
        reason = f"it is not one step away from {before}"
    if reason is not None:
        raise PeerMessageInvalid(f"{message.src} sends the configuration {conf} as entry {span.first}: {reason}")
