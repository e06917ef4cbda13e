"""Decides which replica archives. Each replica decides alone, from state that all of them share. Pure.

A follower, so that the leader has no work with it; without a voting follower, the leader. If the archive does not get
on, it is the turn of the next follower, and last of the leader. Two that archive at the same time do no harm.
"""

from __future__ import annotations

from collections.abc import Collection

from raftlog import NodeId


def archives(
    node: NodeId, voters: Collection[NodeId], leader: NodeId | None, stuck_seconds: float, turn_seconds: float
) -> bool:
    """Return whether it is the turn of ``node`` to archive the log.

    Args:
        voters: all voters of the group.
        leader: None if it is not known: then no replica archives.
        stuck_seconds: how long something could have been archived, and nothing was.
        turn_seconds: of each replica.
    """
    assert stuck_seconds >= 0 < turn_seconds, f"stuck for {stuck_seconds} s, in turns of {turn_seconds} s"
    if leader is None or leader not in voters:
        return False
    order = [*sorted(set(voters) - {leader}), leader]
    return order[int(stuck_seconds // turn_seconds) % len(order)] == node
