"""Membership changes: which configuration may follow another, and how they are encoded. Pure functions.

Voters change in two steps (joint consensus, Raft thesis 4.3): `start_change` gives a configuration that needs
majorities of the old and of the new voters, and `without_outgoing` the one that follows once that is committed.
Learners change in one step, since no majority depends on them.
"""

from __future__ import annotations

from typing import Final

import cbor2
import msgspec

from raftlog.consensus.types import ConfChange, ConfChangeKind, ConfState, NodeId
from raftlog.safe_cbor import decode_safe

CONF_BYTES_MAX: Final = 64 * 1024
CONF_PROPOSED_BYTES_MAX: Final = 1100
MEMBERS_MAX: Final = 16
"""Maximum members of a group: every log stores two configurations and a store id per member in its notes."""


def why_invalid(conf: ConfState, change: ConfChange) -> str | None:
    """Return the reason that ``change`` is invalid for a group of ``conf``, as text; None if it is valid."""
    node = change.node
    match change.kind:
        case ConfChangeKind.ADD_LEARNER:
            if node in conf.members:
                return f"{node} is a member already"
            if not change.address:
                return f"{node} has no address"
        case ConfChangeKind.PROMOTE:
            if node not in conf.learners:
                return f"{node} is not a learner"
        case ConfChangeKind.REMOVE:
            if node not in conf.members:
                return f"{node} is not a member"
            if conf.voters == (node,):
                return f"{node} is the only voter"
        case ConfChangeKind.REPLACE:
            if node not in conf.learners:
                return f"{node} is not a learner"
            if change.replaced not in conf.voters:
                return f"{change.replaced} is not a voter"
    return None


def start_change(conf: ConfState, change: ConfChange) -> ConfState:
    """Return the configuration that starts ``change``; joint if the voters change."""
    assert not conf.is_joint, f"{change} during another change"
    assert (reason := why_invalid(conf, change)) is None, f"{change}: {reason}"
    node, voters = change.node, conf.voters
    addresses = conf.addresses
    learners = tuple(learner for learner in conf.learners if learner != node)
    match change.kind:
        case ConfChangeKind.ADD_LEARNER:
            learners = (*learners, node)
            addresses = (*addresses, (node, change.address))
        case ConfChangeKind.PROMOTE:
            voters = (*voters, node)
        case ConfChangeKind.REMOVE:
            voters = tuple(voter for voter in voters if voter != node)
        case ConfChangeKind.REPLACE:
            voters = tuple(node if voter == change.replaced else voter for voter in voters)
    outgoing = conf.voters if voters != conf.voters else ()
    return _reachable(voters, outgoing, learners, addresses)


def without_outgoing(conf: ConfState) -> ConfState:
    """Return the configuration that ends the change in progress."""
    assert conf.is_joint, "no change of voters is under way"
    return _reachable(conf.voters, (), conf.learners, conf.addresses)


def may_follow(new: ConfState, old: ConfState) -> bool:
    """Whether any majority of ``new`` overlaps any majority of ``old``, because they are one step apart.

    Any configuration may follow the empty one of a node that had not joined.
    """
    if not old.voters or new == old:
        return True
    if old.is_joint:
        return not new.is_joint and set(new.voters) == set(old.voters)
    return set(old.voters) == set(new.outgoing if new.is_joint else new.voters)


def _reachable(
    voters: tuple[NodeId, ...],
    outgoing: tuple[NodeId, ...],
    learners: tuple[NodeId, ...],
    addresses: tuple[tuple[NodeId, str], ...],
) -> ConfState:
    """A configuration without the addresses of nodes that have left."""
    members = {*voters, *outgoing, *learners}
    return ConfState(voters, outgoing, learners, tuple(pair for pair in addresses if pair[0] in members))


def encode_conf(conf: ConfState) -> bytes:
    """Return the body of a configuration entry."""
    return cbor2.dumps(msgspec.to_builtins(conf))


def decode_conf(data: bytes | memoryview) -> ConfState:
    """Decode the result of `encode_conf`. Raises ValueError for anything else."""
    if len(data) > CONF_BYTES_MAX:
        raise ValueError(f"the configuration has {len(data)} bytes; maximum: {CONF_BYTES_MAX}")
    try:
        return msgspec.convert(decode_safe(bytes(data)), ConfState)
    except (ValueError, msgspec.ValidationError) as error:
        raise ValueError(f"the configuration cannot be read: {error}") from error
