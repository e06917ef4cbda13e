"""Decides from the replicas' figures whether a member of a broker group can be stopped and upgraded now. Pure.

A member may be stopped if a majority of voters is healthy without it: they answer, follow the end of the log, have
applied it, and may vote. Then the group keeps accepting messages, and one of them can lead at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from mq.broker.state.format_level import FEATURES
from mq.inspection.cluster import NEAR_ENTRIES, UNREACHABLE, GroupStatus, ReplicaStatus

"""A replica with a smaller lag catches up within a moment."""
EARLIER: Final = "earlier"
"""Stands for the version of software from before replicas reported it, with replication version 3, level 1."""


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A member: its software, its state, and why it must not be stopped now; no reasons if it may be.

    ``format_level`` is its current level, ``level_newest`` the highest that its software supports, ``level_max`` the
    highest that it reports: lower if its settings limit it. Numbers are None for a member that does not answer.
    """

    node_id: str
    member: str
    role: str
    software: str | None
    replication_oldest: int | None
    replication_newest: int | None
    format_level: int | None
    level_newest: int | None
    level_max: int | None
    lag_entries: int | None
    unapplied_entries: int | None
    ailments: tuple[str, ...]
    keep_reason: str


@dataclass(frozen=True, slots=True)
class UpgradeReport:
    """A group: its members, whether one can be stopped now, and which member to replace next.

    It is not ``safe`` while ``next`` is stopped already: that one has to return first. ``reason`` says why not.

    ``format_level`` is the group's, ``level_available`` the level it can rise to with the current software of all
    members; ``held_back_by`` are the members that prevent a higher one. ``features_on`` are the features of the current
    level, ``features_available`` the ones added by the available one.
    """

    cluster: str
    group: str
    leader: str | None
    format_level: int | None
    level_available: int | None
    held_back_by: tuple[str, ...]
    features_on: tuple[str, ...]
    features_available: tuple[str, ...]
    safe: bool
    next: str | None
    reason: str
    members: tuple[MemberReport, ...]

    def as_json(self) -> dict[str, object]:
        """Return the verdict for JSON."""
        return asdict(self)


def upgrade_report(group: GroupStatus) -> UpgradeReport:
    """Judge from the status of all replicas whether a member of the group can be upgraded now."""
    leader = next((each for each in group.replicas if each.node_id == group.leader), None)
    roles: dict[str, str] = json.loads(leader.figures.get("raftmq.members", "{}")) if leader else {}
    statuses = {each.node_id: each for each in group.replicas}
    replicas = {node: statuses.get(node, ReplicaStatus(node, None, UNREACHABLE)) for node in roles or statuses}
    ailments = {node: tuple(_ailments(each, leader)) for node, each in replicas.items()}
    voters = [node for node, role in roles.items() if role != "learner"]
    is_changing = any(role in ("incoming", "outgoing") for role in roles.values())
    members = []
    for node, each in sorted(replicas.items()):
        keep = "the group has no leader" if leader is None else ""
        if leader is not None and is_changing:
            keep = "the voters of the group are being changed"
        elif leader is not None:
            keep = _why_keep(node, voters, ailments)
        members.append(_member_report(each, roles.get(node, ""), leader, ailments[node], keep))
    next_node = _next(members)
    is_stopped = next_node is not None and replicas[next_node].role == UNREACHABLE
    levels = [member.level_max for member in members]
    available = None if None in levels else min((level for level in levels if level is not None), default=None)
    newest = max((member.level_newest for member in members if member.level_newest is not None), default=None)
    level = max((member.format_level for member in members if member.format_level is not None), default=None)
    reasons = sorted({member.keep_reason for member in members if member.keep_reason}) or ["the group has no member"]
    if is_stopped:
        reasons = [f"{next_node} does not answer; start it, or remove it from the group, before the next one"]
    return UpgradeReport(
        cluster=group.cluster,
        group=group.group,
        leader=group.leader,
        format_level=level,
        level_available=available,
        held_back_by=tuple(m.node_id for m in members if m.level_max is None or (newest and m.level_max < newest)),
        features_on=_features(1, level),
        features_available=_features(level, available),
        safe=next_node is not None and not is_stopped,
        next=next_node,
        reason="" if next_node is not None and not is_stopped else "; ".join(reasons),
        members=tuple(members),
    )


def _features(above: int | None, up_to: int | None) -> tuple[str, ...]:
    """Features of the levels above one and up to another, as known to this version."""
    if above is None or up_to is None:
        return ()
    return tuple(name for level, names in sorted(FEATURES.items()) if above < level <= up_to for name in names)


def _ailments(replica: ReplicaStatus, leader: ReplicaStatus | None) -> Iterator[str]:
    """Reasons why a replica cannot replace another one now."""
    if replica.role == UNREACHABLE:
        yield "does not answer"
        return
    if replica.abstaining:
        yield "does not vote until it has caught up"
    if leader is None:
        return
    if replica.lag_entries is None:
        yield "has not reached the leader"
    elif replica.lag_entries > NEAR_ENTRIES:
        yield f"lacks {replica.lag_entries:,} entries"
    if (unapplied_count := _unapplied_count(replica, leader)) is not None and unapplied_count > NEAR_ENTRIES:
        yield f"has not applied {unapplied_count:,} entries"


def _unapplied_count(replica: ReplicaStatus, leader: ReplicaStatus | None) -> int | None:
    if leader is None or leader.commit_index is None or replica.applied_index is None:
        return None
    return max(0, leader.commit_index - replica.applied_index)


def _why_keep(node: str, voters: list[str], ailments: dict[str, tuple[str, ...]]) -> str:
    """The reason that ``node`` must not be stopped now; empty if it may be stopped."""
    if node not in voters or (ailments[node] == ("does not answer",)):
        return ""  # it does not count in majorities, or is stopped already
    quorum = len(voters) // 2 + 1
    healthy = [other for other in voters if other != node and not ailments[other]]
    if len(healthy) >= quorum:
        return ""
    if len(voters) < 3:
        return f"the group has {len(voters)} voters: it accepts no writes while one of them is stopped"
    sick = [f"{other} {reason}" for other in voters if other != node for reason in ailments[other]]
    return f"{', '.join(sick)}: without {node}, only {len(healthy)} healthy voters are left, and a majority is {quorum}"


def _member_report(
    replica: ReplicaStatus, member: str, leader: ReplicaStatus | None, ailments: tuple[str, ...], keep_reason: str
) -> MemberReport:
    figures = replica.figures
    answers = replica.role != UNREACHABLE

    def number(name: str, earlier: int) -> int | None:
        return int(figures.get(f"raftmq.{name}", earlier)) if answers else None

    oldest, _, newest = figures.get("raftmq.replicationVersions", "3-3").partition("-")
    return MemberReport(
        node_id=replica.node_id,
        member=member,
        role=replica.role,
        software=figures.get("raftmq.softwareVersion", EARLIER) if answers else None,
        replication_oldest=int(oldest) if answers else None,
        replication_newest=int(newest) if answers else None,
        format_level=number("formatLevel", 1),
        level_newest=number("formatLevelNewest", 1),
        level_max=number("formatLevelMax", 1),
        lag_entries=replica.lag_entries,
        unapplied_entries=_unapplied_count(replica, leader),
        ailments=ailments,
        keep_reason=keep_reason,
    )


def _next(members: list[MemberReport]) -> str | None:
    """The member to replace next: a stopped one, then one whose software differs from the majority, the leader last.

    The newest version is not known here, so members with the same software are ordered by id.
    """
    able = [member for member in members if not member.keep_reason]
    newest = max((member.level_newest or 0 for member in members), default=0)

    def order(member: MemberReport) -> tuple[bool, bool, bool, bool, str]:
        return (
            member.role != UNREACHABLE,
            (member.level_newest or 0) == newest and member.software != EARLIER,
            member.role == "leader",
            member.member != "learner",
            member.node_id,
        )

    return min(able, key=order).node_id if able else None
