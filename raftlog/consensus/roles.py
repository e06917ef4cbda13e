"""Allowed role changes and their conditions. `CoreState._change_role` is the only place that changes a role, and
asserts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftlog.consensus.types import Role

TRANSITIONS: Final[Mapping[tuple[Role, Role], str]] = {
    (Role.FOLLOWER, Role.FOLLOWER): "a leader shows up, goes silent, or a newer term begins",
    (Role.FOLLOWER, Role.PRE_CANDIDATE): "election timeout, or the leader's process ended",
    (Role.FOLLOWER, Role.CANDIDATE): "the leader asks it to take over (TimeoutNow), or it is the only voter",
    (Role.PRE_CANDIDATE, Role.PRE_CANDIDATE): "no majority has answered the pre-vote in time",
    (Role.PRE_CANDIDATE, Role.CANDIDATE): "a majority would elect it, or the leader asks it to take over",
    (Role.PRE_CANDIDATE, Role.FOLLOWER): "a leader, a newer term, a better candidate, its vote, or a slow or full disk",
    (Role.CANDIDATE, Role.LEADER): "a majority has voted for it",
    (Role.CANDIDATE, Role.CANDIDATE): "the leader asks it to take over (TimeoutNow)",
    (Role.CANDIDATE, Role.PRE_CANDIDATE): "no majority has voted in time",
    (Role.CANDIDATE, Role.FOLLOWER): "a leader, a newer term, a better candidate, or a slow or full disk",
    (Role.LEADER, Role.FOLLOWER): "a newer term, no answer from a majority, a slow disk, or loss of its vote",
}
"""The changes from one role to the next, with the condition. Any other pair is a bug."""


def diagram() -> str:
    """Return the allowed role changes as a Mermaid state diagram, without changes from a role to itself."""
    lines = ["stateDiagram-v2", f"    [*] --> {_name(Role.FOLLOWER)}: start"]
    for (role, next_role), cause in TRANSITIONS.items():
        if role is not next_role:
            lines.append(f"    {_name(role)} --> {_name(next_role)}: {cause}")
    return "\n".join(lines) + "\n"


def _name(role: Role) -> str:
    return role.value.replace("-", "_")
