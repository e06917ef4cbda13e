"""Reads the state of a cluster: the name servers' list of brokers, with each broker's own figures."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import trio

from mq.client.admin import Admin
from mq.client.errors import BrokerError, ClientError
from mq.client.net.client_core import RemotingSettings
from mq.protocol.broker_ids import broker_id_of

UNREACHABLE = "unreachable"
ANSWER_SECONDS = 3.0
NEAR_ENTRIES: Final = 256
"""A replica that is behind by this much or less has caught up."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica of a group. Unknown numbers are None.

    ``lag_entries`` counts log entries that the leader has and this replica has not stored; ``lag_bytes`` is the
    distance between the leader's commit position and this replica's.
    """

    node_id: str
    address: str | None
    role: str
    term: int | None = None
    last_index: int | None = None
    commit_index: int | None = None
    applied_index: int | None = None
    commit_position: int | None = None
    lag_entries: int | None = None
    lag_bytes: int | None = None
    broker_id: int | None = None
    """The id in the name server's list; 0 is the leader."""
    member: str | None = None
    """Voter, learner, incoming or outgoing, according to the leader; None if it is not a member."""
    base_index: int | None = None
    """The entry before the first one of its log."""
    priority: int | None = None
    abstaining: bool = False
    """Whether it lost entries that it had acknowledged, and does not vote until it has them again."""
    disk_used: float | None = None
    """The used fraction of its disk, 0 to 1."""
    forwarded: int | None = None
    """Requests that it forwarded to the leader since its start."""
    forwarding: int | None = None
    """Requests that wait for the leader now."""
    fenced_commits: int | None = None
    """Offset commits since its start that were ignored because another client held the queue."""
    delayed: int | None = None
    """Messages waiting at a delay level."""
    timers: int | None = None
    """Timed messages waiting."""
    transactions: int | None = None
    """Half messages with an open transaction."""
    pops: int | None = None
    """Open pops."""
    connections: int | None = None
    """Connected clients."""
    unfinished_bytes: int | None = None
    """Size of incomplete requests."""
    unread_bytes: int | None = None
    """Size of unread answers."""
    held_bytes: int | None = None
    """Size of waiting pulls and pops."""
    pending_bytes: int | None = None
    """Size of uncommitted messages."""
    archived_index: int | None = None
    """The entry up to which the log is archived, as far as it knows; 0 without an archive."""
    archive_begin_pos: int | None = None
    """Archived messages are served from this physical offset on; 0 from the first one on, or if none are."""
    archive_lag_bytes: int | None = None
    """Complete log files that wait to be archived."""
    archive_lag_ms: int | None = None
    """Milliseconds for which some wait since an entry was last archived."""
    archive_kept_seconds: int | None = None
    archive_kept_bytes: int | None = None
    """The age in seconds and the bytes up to which it keeps archived messages; 0 for no limit."""
    archive_kept_unknown: int | None = None
    """The number of members whose limits a leader does not know."""
    archive_refill_bytes_left: int | None = None
    """Bytes of the archive whose messages its queues still lack."""
    clock_ahead_ms: int | None = None
    """How far its clock is ahead of this machine's; negative if behind. Accurate to `clock_error_ms`."""
    clock_error_ms: int | None = None
    refusal: str | None = None
    """The reason for which it refused to show anything."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """All its figures, by RocketMQ's names and ours."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A broker group, which is one Raft group. ``leader`` is a node id, or None while there is none."""

    cluster: str
    group: str
    durability: str | None
    leader: str | None
    replicas: tuple[ReplicaStatus, ...]

    @property
    def is_stock(self) -> bool:
        """Whether these are Apache RocketMQ's brokers, which report no Raft roles."""
        replicas = [each for each in self.replicas if each.figures]
        return bool(replicas) and not any("raftmq.role" in each.figures for each in replicas)

    @property
    def is_leaderless(self) -> bool:
        """Whether no leader can be asked; False if that is unknown, because the group refuses to return figures."""
        is_refused = any(each.refusal is not None for each in self.replicas)
        return self.leader is None and not self.is_stock and not is_refused

    def as_json(self, *, with_figures: bool = False) -> dict[str, object]:
        """Return the group for JSON."""
        table = asdict(self)
        if not with_figures:
            for replica in table["replicas"]:
                del replica["figures"]
        return table


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """A broker from the name server's list, with its figures (request code 28), or None and the reason."""

    cluster: str
    group: str
    broker_id: int
    address: str
    figures: Mapping[str, str] | None
    refusal: str | None = None
    """The reason for which it refused the request."""
    asked_ms: float = 0.0
    """The times at which it was asked and answered, by this machine's clock, in milliseconds since 1970."""
    answered_ms: float = 0.0


def group_statuses(answers: list[BrokerAnswer]) -> list[GroupStatus]:
    """Group the answers of all brokers by broker group. Pure."""
    groups: dict[tuple[str, str], list[BrokerAnswer]] = {}
    for answer in answers:
        groups.setdefault((answer.cluster, answer.group), []).append(answer)
    return [_group_status(cluster, group, members) for (cluster, group), members in sorted(groups.items())]


def _group_status(cluster: str, group: str, answers: list[BrokerAnswer]) -> GroupStatus:
    # Of two replicas that call themselves leader the one with the higher term is right; the other does not know yet.
    leader_figures = [a.figures for a in answers if a.figures is not None and a.figures.get("raftmq.role") == "leader"]
    leader = max(leader_figures, key=lambda figures: _int_figure(figures, "term") or 0, default=None)
    peers: dict[str, dict[str, object]] = json.loads(leader.get("raftmq.peers", "{}")) if leader else {}
    members: dict[str, str] = json.loads(leader.get("raftmq.members", "{}")) if leader else {}
    known_ids = {answer.figures.get("raftmq.nodeId") for answer in answers if answer.figures is not None}
    node_ids = {broker_id_of(node_id): node_id for node_id in peers if node_id not in known_ids}
    replicas = []
    for answer in sorted(answers, key=lambda a: a.broker_id):
        if answer.figures is None:
            node_id = node_ids.get(answer.broker_id, f"id {answer.broker_id}")
            replicas.append(ReplicaStatus(node_id, answer.address, UNREACHABLE, refusal=answer.refusal))
        else:
            status = _replica_status(answer.address, answer.figures, leader, peers)
            ahead, error = _clock(answer.figures, answer)
            status = replace(status, broker_id=answer.broker_id, clock_ahead_ms=ahead, clock_error_ms=error)
            replicas.append(status)
    replicas += _silent_peers(replicas, leader, peers)
    replicas = [replace(replica, member=members.get(replica.node_id)) for replica in replicas]
    durability = next((a.figures.get("raftmq.durability") for a in answers if a.figures is not None), None)
    return GroupStatus(
        cluster=cluster,
        group=group,
        durability=durability,
        leader=leader.get("raftmq.nodeId") if leader else None,
        replicas=tuple(sorted(replicas, key=lambda replica: replica.node_id)),
    )


def _replica_status(
    address: str,
    figures: Mapping[str, str],
    leader: Mapping[str, str] | None,
    peers: Mapping[str, Mapping[str, object]],
) -> ReplicaStatus:
    node_id = figures.get("raftmq.nodeId", "?")
    commit_position = _int_figure(figures, "commitPosition")
    lag_entries = lag_bytes = None
    if leader is not None:
        leader_last, leader_position = _int_figure(leader, "lastIndex"), _int_figure(leader, "commitPosition")
        lag = 0 if figures is leader else None
        match = peers.get(node_id, {}).get("matchIndex")
        if lag is None and leader_last is not None and isinstance(match, int):
            lag = max(0, leader_last - match)
        lag_entries = lag
        if leader_position is not None and commit_position is not None:
            lag_bytes = max(0, leader_position - commit_position)
    return ReplicaStatus(
        node_id=node_id,
        address=address,
        role=figures.get("raftmq.role", "?"),
        term=_int_figure(figures, "term"),
        last_index=_int_figure(figures, "lastIndex"),
        commit_index=_int_figure(figures, "commitIndex"),
        applied_index=_int_figure(figures, "appliedIndex"),
        commit_position=commit_position,
        lag_entries=lag_entries,
        lag_bytes=lag_bytes,
        base_index=_int_figure(figures, "baseIndex"),
        priority=_int_figure(figures, "priority"),
        abstaining=figures.get("raftmq.abstaining") == "true",
        disk_used=float(figures["raftmq.diskUsed"]) if "raftmq.diskUsed" in figures else None,
        forwarded=sum(_int_figure(figures, f"forwarded{kind}") or 0 for kind in ("Sends", "Offsets", "Others")),
        forwarding=_int_figure(figures, "forwardedWaiting"),
        fenced_commits=_int_figure(figures, "fencedCommits"),
        delayed=_int_figure(figures, "delayedPending"),
        timers=_int_figure(figures, "timersPending"),
        transactions=_int_figure(figures, "transactionsOpen"),
        pops=_int_figure(figures, "popCheckpoints"),
        connections=_int_figure(figures, "connections"),
        unfinished_bytes=_int_figure(figures, "unfinishedBytes"),
        unread_bytes=_int_figure(figures, "unreadBytes"),
        held_bytes=_int_figure(figures, "heldBytes"),
        pending_bytes=_int_figure(figures, "pendingBytes"),
        archived_index=_int_figure(figures, "archiveIndex"),
        archive_begin_pos=_int_figure(figures, "archiveBeginPos"),
        archive_lag_bytes=_int_figure(figures, "archiveLagBytes"),
        archive_lag_ms=_int_figure(figures, "archiveLagMs"),
        archive_kept_seconds=_int_figure(figures, "archiveKeptSeconds"),
        archive_kept_bytes=_int_figure(figures, "archiveKeptBytes"),
        archive_kept_unknown=_int_figure(figures, "archiveKeptUnknown"),
        archive_refill_bytes_left=_int_figure(figures, "archiveRefillBytesLeft"),
        figures=figures,
    )


def _clock(figures: Mapping[str, str], answer: BrokerAnswer) -> tuple[int | None, int | None]:
    """Milliseconds that a replica's clock is ahead, and the error: it was read while the request was under way."""
    clock_ms = _int_figure(figures, "wallClockMs")
    if clock_ms is None or not answer.answered_ms:
        return None, None
    middle = (answer.asked_ms + answer.answered_ms) / 2
    return round(clock_ms - middle), round((answer.answered_ms - answer.asked_ms) / 2) + 1


def _silent_peers(
    replicas: list[ReplicaStatus], leader: Mapping[str, str] | None, peers: Mapping[str, Mapping[str, object]]
) -> list[ReplicaStatus]:
    """Members known to the leader but not to name servers, which remove a dead replica at once."""
    if leader is None:
        return []
    last_index = _int_figure(leader, "lastIndex")
    node_ids = {replica.node_id for replica in replicas}
    silent = []
    for node_id, peer in peers.items():
        match = peer.get("matchIndex")
        if node_id not in node_ids and not (peer.get("active") and UNREACHABLE in {r.role for r in replicas}):
            lag = max(0, last_index - match) if isinstance(match, int) and last_index is not None else None
            silent.append(ReplicaStatus(node_id, None, UNREACHABLE, lag_entries=lag))
    return silent


def _int_figure(figures: Mapping[str, str], name: str) -> int | None:
    text = figures.get(f"raftmq.{name}", "")
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() else None


async def ask_cluster(namesrv: str, remoting: RemotingSettings | None = None) -> list[GroupStatus]:
    """Works like `ask_brokers`, with a new `Admin`."""
    async with Admin(namesrv, remoting=remoting) as admin:
        return await ask_brokers(admin)


async def ask_brokers(admin: Admin) -> list[GroupStatus]:
    """Ask a name server for the brokers, and all brokers concurrently for their figures. Raises ClientError."""
    answers: list[BrokerAnswer] = []
    info = await admin.cluster_info()
    async with trio.open_nursery() as nursery:

        async def ask(cluster: str, group: str, broker_id: int, address: str) -> None:
            figures: Mapping[str, str] | None = None
            refusal = None
            asked_ms = time.time() * 1000
            with trio.move_on_after(ANSWER_SECONDS):
                try:
                    figures = await admin.broker_runtime(address)
                except BrokerError as error:
                    refusal = error.remark or f"code {error.code}"
                except ClientError:
                    figures = None  # shown as unreachable
            times = asked_ms, time.time() * 1000
            answers.append(BrokerAnswer(cluster, group, broker_id, address, figures, refusal, *times))

        for cluster, groups in info.clusters.items():
            for group in groups:
                if (data := info.brokers.get(group)) is not None:
                    for broker_id, address in data.broker_addrs.items():
                        nursery.start_soon(ask, cluster, group, broker_id, address)
    return group_statuses(answers)
