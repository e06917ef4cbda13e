"""Reads a group's members from the files of a stopped replica, and changes them there without a majority.

In a running group, a majority decides the membership. After the majority is lost, or in a log restored from a backup,
an operator decides. The written entries are like the entries of any change (Raft thesis 4.3), so that replicas which
get the log later accept them: first the old and the new voters together, then the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raftlog.consensus.confchange import (
    CONF_PROPOSED_BYTES_MAX,
    MEMBERS_MAX,
    decode_conf,
    encode_conf,
    without_outgoing,
)
from raftlog.consensus.types import ConfState, NodeId
from raftlog.repair_mode import encode_members, members_in
from raftlog.segment.codec import CONFIG
from raftlog.segment.log import SegmentLog
from raftlog.segment.meta import MetaState
from raftlog.segment.note_names import ABSTAINING, CONF, MEMBERS, STORES


class MembersInvalid(Exception):
    """No sequence of configurations leads to these members; nothing was written."""


def configuration_at_base(state: MetaState) -> bytes:
    """The encoded configuration at the base of a log, from its vote file; empty if it is not there."""
    if (note := state.notes.get(CONF)) is not None:
        return note
    members = members_in(state.notes)
    return encode_conf(members[1]) if members is not None and members[0] == 0 else b""


def newest_configuration(state: MetaState, configs: Sequence[tuple[int, bytes]]) -> ConfState | None:
    """The configuration in force at the end of a log with these configuration entries; None if unknown."""
    conf = configs[-1][1] if configs else configuration_at_base(state)
    return decode_conf(conf) if conf else None


def founding_configuration(first: ConfState) -> ConfState:
    """The configuration before a log's first configuration entry, derived from that: its voters, without learners."""
    voters = first.outgoing or first.voters
    return ConfState(voters, (), (), tuple(pair for pair in first.addresses if pair[0] in voters))


def steps_to(conf: ConfState | None, addresses: Mapping[NodeId, str]) -> list[ConfState]:
    """Configurations, each one step after the previous one; the last has these voters and no other members.

    Args:
        conf: the one in force; None if unknown: then the step cannot be checked, and one is enough.
        addresses: of the voters.

    Raises:
        MembersInvalid: an intermediate configuration would have too many members.
    """
    goal = ConfState(tuple(addresses), (), (), tuple(addresses.items()))
    steps: list[ConfState] = []
    if conf is not None and conf.is_joint:
        conf = without_outgoing(conf)
        steps.append(conf)
    if conf is not None and conf.voters and set(conf.voters) != set(goal.voters):
        hosts = dict(conf.addresses) | dict(addresses)
        both = (*goal.voters, *(node for node in conf.voters if node not in addresses))
        steps.append(ConfState(goal.voters, conf.voters, (), tuple((n, hosts[n]) for n in both if n in hosts)))
    if conf != goal or not steps:
        steps.append(goal)
    for step in steps:
        if len(step.members) > MEMBERS_MAX or len(encode_conf(step)) > CONF_PROPOSED_BYTES_MAX:
            raise MembersInvalid(
                f"old and new voters are {len(step.members)} members whose ids and addresses take "
                f"{len(encode_conf(step))} bytes; at most {MEMBERS_MAX} members and {CONF_PROPOSED_BYTES_MAX} bytes fit"
            )
    return steps


def append_members(log: SegmentLog, conf: ConfState | None, node_id: NodeId, addresses: Mapping[NodeId, str]) -> int:
    """Append the `steps_to` these voters to an open log, durably, in a term without a leader.

    The members' directories are forgotten, and so is that this replica was to abstain.

    Returns:
        The term. The replica has voted for itself in it, so that no other can be elected in it.

    Raises:
        MembersInvalid: nothing was written.
        SegmentError: a disk error.
    """
    steps = steps_to(conf, addresses)
    term = max(log.meta.term, log.last_term) + 1
    for step in steps:
        log.append(CONFIG, log.last_index + 1, term, encode_conf(step))
    log.set_note(STORES, None)
    log.set_note(ABSTAINING, None)
    log.set_note(MEMBERS, encode_members(log.last_index, steps[-1]))
    log.submit(log.last_ticket + 1, term=term, voted_for=node_id)
    return term
