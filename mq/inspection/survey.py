"""Collects the answers of all servers of a cluster that `raftmq doctor` judges."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from mq.client.admin import Admin
from mq.client.errors import BrokerError, ClientError, NameServersUnavailable
from mq.client.message import MessageQueue
from mq.client.net.client_core import RemotingSettings, parse_addresses
from mq.client.schedules import ScheduleStatus
from mq.client.users import UserAdmin
from mq.inspection.catalogue import CatalogueAdmin, each_of
from mq.inspection.cluster import ANSWER_SECONDS, GroupStatus, ask_cluster
from mq.inspection.dead_letters import DEALT_WITH_BY
from mq.protocol.codes import PERM_WRITE
from mq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, SYSTEM_GROUPS, is_system_topic
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.consumer_groups import ClientConnectionData, SubscriptionGroupConfig
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.quotas import Throttled
from mq.protocol.requests.retention_attributes import reserve_bytes, reserve_hours
from mq.protocol.requests.topics import QueueEnds, TopicConfig

HOUR_MS: Final = 3_600_000
LOCAL_RETENTION: Final = ("local_retention_hours", "local_retention_bytes")

Progress = Mapping[str, Mapping[MessageQueue, GroupProgress]]


@dataclass(frozen=True, slots=True)
class Consumers:
    """The consumer groups of a cluster, examined twice.

    Attributes:
        before, after: the progress of each group at the beginning and at the end of the watch.
        watched_seconds: the time between the two.
        configs: the settings of each group, from any broker group.
        members: the members of groups that lag, by group; without groups whose members are unknown.
        ends: the ends of the queues in which some group lags.
        at_risk: for each queue in which a group lags far, the offset of the first message that is younger than
            `AT_RISK` of the retention time: retention soon deletes those before it.
        dead_letters: the queues with dead letters of each group, from the first one that nobody dealt with on.
        retention_hours: the shortest retention time of all brokers; None if unknown.
        topic_hours: the retention time of topics that have a shorter one of their own.
        topic_bytes: the size limit of topics that have one.
        now_ms: the time at the end of the watch, in milliseconds since 1970.
        soon_by_size: for each queue in which a group lags, if the broker group's log is near its size limit, the
            offset of the first message that is not among the oldest of the log: retention deletes those before it next.
        log_bytes: the size limit of the log, by broker group.
        differing: for each group whose members' subscriptions differ, some members and the subscription of each.
    """

    before: Progress
    after: Progress
    watched_seconds: float
    configs: Mapping[str, SubscriptionGroupConfig]
    members: Mapping[str, list[ClientConnectionData]]
    ends: Mapping[MessageQueue, QueueEnds]
    at_risk: Mapping[MessageQueue, int]
    dead_letters: Mapping[str, list[QueueEnds]]
    retention_hours: float | None
    now_ms: int
    topic_hours: Mapping[str, float] = field(default_factory=dict)
    topic_bytes: Mapping[str, int] = field(default_factory=dict)
    differing: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    soon_by_size: Mapping[MessageQueue, int] = field(default_factory=dict)
    log_bytes: Mapping[str, int] = field(default_factory=dict)

    def hours_of(self, topic: str) -> float | None:
        """Return for how many hours messages of a topic are kept; None if unknown."""
        return self.topic_hours.get(topic, self.retention_hours)


@dataclass(frozen=True, slots=True)
class Survey:
    """The answers of the servers of a cluster.

    Attributes:
        groups: the broker groups.
        settings: the settings of each replica that answered, by its address.
        name_servers: for each name server the addresses of its brokers, or why it did not answer.
        unresolved: host names of brokers that do not resolve here, and why.
        consumers: the consumer groups; None if they could not be queried.
        throttled: the throttled users and topics, by address of the replica that throttles them.
        consumers_reason: why the consumer groups could not be queried.
        open_name_servers: addresses of name servers without accounts, at which any client can register brokers.
        schedules: the schedules of the brokers that have any.
        orphaned_schedules: broker groups and names of enabled ones whose topic their group does not have, or closed to
            writes.
    """

    groups: list[GroupStatus]
    settings: Mapping[str, Mapping[str, str]]
    name_servers: Mapping[str, frozenset[str] | str]
    unresolved: Mapping[str, str]
    consumers: Consumers | None = None
    consumers_reason: str = ""
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    throttled: Mapping[str, Sequence[Throttled]] = field(default_factory=dict)
    open_name_servers: frozenset[str] = frozenset()
    schedules: Sequence[ScheduleStatus] = ()
    orphaned_schedules: frozenset[tuple[str, str]] = frozenset()


AT_RISK: Final = 0.75
"""Retention soon deletes messages older than this part of the retention time, or before this part of the kept bytes."""


async def survey(namesrv: str, *, watch_seconds: float, remoting: RemotingSettings | None = None) -> Survey:
    """Ask all servers. Takes a bit longer than ``watch_seconds``, during which consumer groups are watched.

    Raises ClientError if no name server answers.
    """
    groups = await ask_cluster(namesrv, remoting)
    settings: dict[str, Mapping[str, str]] = {}
    name_servers: dict[str, frozenset[str] | str] = {}
    open_name_servers: set[str] = set()
    resolve_errors: dict[str, str] = {}
    throttled_users: dict[str, Sequence[Throttled]] = {}
    replica_addresses = [each.address for group in groups for each in group.replicas if each.address and each.figures]
    addresses = {each.address for group in groups for each in group.replicas if each.address}
    async with UserAdmin(namesrv, remoting=remoting) as admin, trio.open_nursery() as nursery:
        for address in replica_addresses:
            nursery.start_soon(_ask_settings, admin, address, settings)
        for address in _throttling_replicas(groups):
            nursery.start_soon(_ask_throttled, admin, address, throttled_users)
        for address in parse_addresses(namesrv):
            nursery.start_soon(_ask_name_server, address, remoting, name_servers, open_name_servers)
        for host in {address.rpartition(":")[0].strip("[]") for address in addresses}:
            nursery.start_soon(_resolve, host, resolve_errors)
    result = Survey(
        groups,
        settings,
        name_servers,
        resolve_errors,
        throttled=throttled_users,
        open_name_servers=frozenset(open_name_servers),
    )
    leaderless = [group.group for group in groups if group.leader is None and not group.is_stock]
    if not groups or leaderless:
        is_refused = any(each.refusal is not None for group in groups for each in group.replicas)
        what = "does not show its leader" if is_refused else "has no leader"
        reason = f"{', '.join(leaderless)} {what}" if leaderless else "there is no broker"
        return replace(result, consumers_reason=reason)
    schedules, orphans = await _schedules(namesrv, remoting, groups)
    result = replace(result, schedules=schedules, orphaned_schedules=orphans)
    try:
        return replace(result, consumers=await _consumers(namesrv, remoting, result, watch_seconds))
    except ClientError as error:
        return replace(result, consumers_reason=str(error))


async def _ask_settings(admin: Admin, address: str, settings: dict[str, Mapping[str, str]]) -> None:
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            settings[address] = await admin.broker_settings(address)
        except ClientError:
            return  # a replica that answered nothing is reported by the status already


def _throttling_replicas(groups: Iterable[GroupStatus]) -> list[str]:
    """The replicas that throttle users or topics, as they say: only these are asked for names."""
    replicas = (each for group in groups for each in group.replicas)
    return [
        each.address for each in replicas if each.address and int(each.figures.get("raftmq.quotaThrottled", "0")) > 0
    ]


async def _ask_throttled(admin: UserAdmin, address: str, throttled_users: dict[str, Sequence[Throttled]]) -> None:
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            throttled_users[address] = (await admin.quotas_at(address)).throttled
        except ClientError:
            return  # it is asked again next time


async def _schedules(
    namesrv: str, remoting: RemotingSettings | None, groups: Iterable[GroupStatus]
) -> tuple[Sequence[ScheduleStatus], frozenset[tuple[str, str]]]:
    """The schedules, and the groups and names of schedules that skip their ticks; asks nothing where there are none."""
    figures = [each.figures for group in groups for each in group.replicas]
    if not any(int(each.get("raftmq.schedules", "0")) for each in figures):
        return (), frozenset()
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            async with CatalogueAdmin(namesrv, remoting=remoting) as admin:
                schedules = await admin.schedules.list()
                topics = await admin.topic_configs()
        except ClientError:
            return (), frozenset()  # a group that does not answer is reported by the status already
        orphans = (
            (each.broker_name, each.schedule.name)
            for each in schedules
            if each.schedule.enabled and each.next and not _takes_messages(topics, each)
        )
        return schedules, frozenset(orphans)
    return (), frozenset()


def _takes_messages(topics: Mapping[str, Mapping[str, TopicConfig]], schedule: ScheduleStatus) -> bool:
    config = topics.get(schedule.schedule.topic, {}).get(schedule.broker_name)
    return config is not None and config.perm & PERM_WRITE != 0


async def _ask_name_server(
    address: str,
    remoting: RemotingSettings | None,
    routes: dict[str, frozenset[str] | str],
    without_accounts: set[str],
) -> None:
    routes[address] = f"no answer within {ANSWER_SECONDS:g} s"
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            async with CatalogueAdmin(address, remoting=remoting) as admin:
                brokers = (await admin.cluster_info()).brokers.values()
                with suppress(BrokerError):
                    if (await admin.name_server_settings()).get("raftmq.acl_file") == "None":
                        without_accounts.add(address)
        except NameServersUnavailable as error:
            routes[address] = error.reasons.get(address, str(error))
        except ClientError as error:
            routes[address] = str(error)
        else:
            routes[address] = frozenset(each for broker in brokers for each in broker.broker_addrs.values())


async def _resolve(host: str, addresses: dict[str, str]) -> None:
    try:
        await trio.socket.getaddrinfo(host, None)
    except OSError as error:
        addresses[host] = str(error)


async def _consumers(
    namesrv: str, remoting: RemotingSettings | None, survey: Survey, watch_seconds: float
) -> Consumers:
    settings = list(survey.settings.values())
    hours = [each.get("raftmq.retention_hours", each.get("fileReservedTime")) for each in settings]
    retention_hours = min((float(each) for each in hours if each is not None), default=None)
    async with CatalogueAdmin(namesrv, remoting=remoting) as admin:
        started_at = trio.current_time()
        before = await admin.all_progress()
        configs = {name: next(iter(each.values())) for name, each in (await admin.consumer_groups()).items()}
        topics = [name for name in await admin.topics() if name.startswith(DEAD_LETTER_PREFIX)]
        letters = await admin.queue_ends(topics)
        await trio.sleep(max(0.0, watch_seconds - (trio.current_time() - started_at)))
        after = await admin.all_progress()
        watched_seconds = trio.current_time() - started_at
        now_ms = time.time_ns() // 1_000_000
        queues_behind = {group: queues for group, each in after.items() if (queues := _queues_behind(group, each))}
        group_members = await admin.members_of_groups(sorted(queues_behind), differing=True)
        if group_members is None:
            members, differences = await each_of(queues_behind, admin.group_members), {}
        else:
            members = {group: [each.client for each in group_members.groups.get(group, ())] for group in queues_behind}
            differences = group_members.differing
        topics_behind = sorted({queue.topic for queues in queues_behind.values() for queue in queues})
        ends = await admin.queue_ends(topics_behind)
        log_bytes = _log_bytes(survey)
        positions = {
            group: soon for group, limit in log_bytes.items() if (soon := _soon(survey, group, limit)) is not None
        }
        soon_by_size = await admin.offsets_behind(topics_behind, positions) if positions and topics_behind else {}
        # Stock brokers store the attribute, and do not follow it.
        ours = any("raftmq.retention_hours" in each for each in settings)
        topic_hours, topic_bytes = await _topic_limits(admin, retention_hours) if ours and queues_behind else ({}, {})
        borders: dict[MessageQueue, dt.datetime] = {}
        for group, queues in queues_behind.items():
            for queue in queues:
                kept_for = topic_hours.get(queue.topic, retention_hours)
                border_ms = 0 if kept_for is None else now_ms - int(AT_RISK * kept_for * HOUR_MS)
                # Brokers that keep messages for longer than there are computers put none at risk.
                if 0 < border_ms > after[group][queue].last_ms:
                    borders[queue] = dt.datetime.fromtimestamp(border_ms / 1000, dt.UTC)
        at_risk = await admin.offsets_at(borders)
        queues_with_letters = [queue for queue, each in letters.items() if each.max_offset > each.min_offset]
        marks = await admin.group_progress(DEALT_WITH_BY) if queues_with_letters else {}
    dead_letters: dict[str, list[QueueEnds]] = {}
    for queue in queues_with_letters:
        each = letters[queue]
        first = max(each.min_offset, marks[queue].offset if queue in marks else 0)
        if each.max_offset > first:
            each = QueueEnds(QueueOffset(first), each.max_offset, each.last_update_ms)
            dead_letters.setdefault(queue.topic.removeprefix(DEAD_LETTER_PREFIX), []).append(each)
    return Consumers(
        before,
        after,
        watched_seconds,
        configs,
        members,
        ends,
        at_risk,
        dead_letters,
        retention_hours,
        now_ms,
        topic_hours,
        topic_bytes,
        {group: [(each.client.client_id, each.subscribes) for each in own] for group, own in differences.items()},
        soon_by_size,
        log_bytes,
    )


def _log_bytes(survey: Survey) -> dict[str, int]:
    """The size limit of the log of each broker group that has one: the smallest of its replicas, which decide each for
    itself. Without groups that serve deleted files from an archive.
    """
    limits: dict[str, int] = {}
    for group in survey.groups:
        own = [survey.settings.get(each.address or "", {}) for each in group.replicas]
        if any(each.get(f"raftmq.{name}", "") != "" for each in own for name in LOCAL_RETENTION):
            continue
        log_limits = [
            int(each["raftmq.retention_bytes"]) for each in own if each.get("raftmq.retention_bytes", "").isdecimal()
        ]
        if log_limits:
            limits[group.group] = min(log_limits)
    return limits


def _soon(survey: Survey, name: str, limit: int) -> int | None:
    """The position up to which the log of a broker group is deleted next; None if its size is far from the limit."""
    leader = next(
        (r for group in survey.groups if group.group == name for r in group.replicas if r.role == "leader"), None
    )
    figures = {} if leader is None else leader.figures
    begin, end = figures.get("raftmq.basePosition", ""), figures.get("raftmq.endPosition", "")
    if not begin.isdecimal() or not end.isdecimal():
        return None
    soon = int(end) - int(AT_RISK * limit)
    return soon if soon > int(begin) else None


def _queues_behind(group: str, progress: Mapping[MessageQueue, GroupProgress]) -> list[MessageQueue]:
    """The queues in which an application's group has messages to consume, without queues of redeliveries."""
    if group in SYSTEM_GROUPS:
        return []
    return [
        queue
        for queue, each in progress.items()
        if each.offset < each.end and not is_system_topic(queue.topic) and not queue.topic.startswith(RETRY_PREFIX)
    ]


async def _topic_limits(
    admin: CatalogueAdmin, retention_hours: float | None
) -> tuple[dict[str, float], dict[str, int]]:
    """The hours of topics that are kept for less than the brokers' logs, and the bytes of topics that are kept by size.
    Raises ClientError.
    """
    retention_seconds: dict[str, float] = {}
    found_bytes: dict[str, int] = {}
    for topic, configs in (await admin.topic_configs()).items():
        attributes = [config.attributes for config in configs.values()]
        hours = [each for own in attributes if (each := reserve_hours(own)) is not None]
        if hours and (retention_hours is None or min(hours) < retention_hours):
            retention_seconds[topic] = min(hours)
        nbytes = [each for own in attributes if (each := reserve_bytes(own)) is not None]
        if nbytes:
            found_bytes[topic] = min(nbytes)
    return retention_seconds, found_bytes
