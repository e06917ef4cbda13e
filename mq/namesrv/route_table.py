"""The state of a name server, without clock or connections: live brokers and their topics.

A broker group is identified by its name; each broker in it has an id, and id 0 is the leader. The group's leader
registers the queues of a topic; they stay while any broker of the group is alive. A broker process is identified by its
address: it is listed in exactly one place, and listed means alive.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mq.protocol.codes import PERM_READ_WRITE, PERM_WRITE
from mq.protocol.requests.namesrv import BrokerData, ClusterInfo, QueueData, Route
from mq.protocol.requests.registration import RegisterBrokerBody
from mq.protocol.requests.topics import DataVersion

LEADER_ID: Final = 0
UNIT_FLAG: Final = 1
UNIT_SUBSCRIBED_FLAG: Final = 2
NAME_LENGTH_MAX: Final = 512
"""Maximum length of names of topics, clusters and groups, and of addresses."""
FILTER_SERVERS_MAX: Final = 16
"""Maximum per broker."""


class TableFull(Exception):
    """The table has the maximum number of entries of one kind. Nothing was changed."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"the table already has {limit} {what}")


class NameTooLong(Exception):
    """A name or address is too long. Nothing was changed."""

    def __init__(self, what: str, length: int) -> None:
        super().__init__(f"{what} has {length} characters; maximum: {NAME_LENGTH_MAX}")


class NameUnusual(Exception):
    """A name or address contains control characters or path separators. Nothing was changed."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what} has invalid characters: {name[:80]!a}")


@dataclass(frozen=True, slots=True)
class TableLimits:
    """Limits of the route table."""

    broker_groups_max: int = 10_000
    brokers_per_group_max: int = 64
    brokers_max: int = 20_000
    topics_max: int = 100_000
    routes_max: int = 1_000_000
    """Total topics of all groups, each counted per group."""


@dataclass(frozen=True, slots=True)
class BrokerId:
    """The identification that a broker gives of itself. ``address`` is ``host:port``."""

    cluster: str
    group: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """The response to a broker: its group's leader, unless it leads. ``accepted`` is False for a deposed leader."""

    accepted: bool = True
    leader_address: str | None = None
    leader_ha_address: str | None = None


@dataclass(slots=True)
class _Live:
    broker: BrokerId
    connection: Hashable
    last_seen: float
    expiry_seconds: float
    data_version: DataVersion
    ha_address: str
    filter_servers: list[str]


@dataclass(slots=True)
class _GroupRoutes:
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    topics_version: DataVersion | None = None


class TableSizes(NamedTuple):
    """The numbers of entries in the table. ``routes`` is the number of topics, summed over groups."""

    groups: int
    brokers: int
    topics: int
    routes: int


class RouteTable:
    """The routes of topics. ``now`` is monotonic seconds; a connection may be any value that identifies it."""

    def __init__(self, *, expiry_seconds: float = 120.0, limits: TableLimits | None = None) -> None:
        self._expiry_seconds = expiry_seconds
        self._limits = limits or TableLimits()
        self._live: dict[str, _Live] = {}
        self._groups: dict[str, _GroupRoutes] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._routes = 0

    # -- brokers -------------------------------------------------------------------------------------------------------

    def register_broker(
        self,
        now: float,
        broker: BrokerId,
        body: RegisterBrokerBody,
        connection: Hashable,
        *,
        ha_address: str = "",
        expiry_seconds: float | None = None,
        whole: bool = False,
    ) -> RegisterResult:
        """Register a broker with its id and its topics.

        The topics count only if it leads its group, and only if their version is new, or if they are missing. With
        ``whole`` they are all topics of the group, and others are removed; without, others stay. If it had another id
        before, it moves. Raises TableFull, NameTooLong, NameUnusual.
        """
        _check_names(broker, body, ha_address)
        self._check_room(broker, body)
        known_group = self._groups.get(broker.group)
        if known_group is not None and self._newer_holder(known_group, broker, body.data_version) is not None:
            return RegisterResult(accepted=False)
        before = self._live.get(broker.address)
        if before is not None and before.broker.group != broker.group:
            self._remove(before)
        group = self._groups.setdefault(broker.group, _GroupRoutes(broker.cluster))
        group.cluster = broker.cluster
        self._unlist(group, broker.address)
        old_address = group.addresses.get(broker.broker_id)
        if old_address is not None:
            del self._live[old_address]
        group.addresses[broker.broker_id] = broker.address
        self._live[broker.address] = _Live(
            broker=broker,
            connection=connection,
            last_seen=now,
            expiry_seconds=self._expiry_seconds if expiry_seconds is None else expiry_seconds,
            data_version=body.data_version,
            ha_address=ha_address,
            filter_servers=list(body.filter_servers),
        )
        if broker.broker_id == LEADER_ID:
            # Compared with the source of the group's topics, not with this broker's previous registration: it may have
            # reported this very version as a follower, when its topics did not count.
            if group.topics_version != body.data_version:
                group.topics_version = body.data_version
                if whole:
                    self._forget_topics(broker.group, keep=body.topics)
                self._take_topics(broker.group, body)
            elif whole:
                self._take_topics(broker.group, body, only_missing=True)
            return RegisterResult()
        if LEADER_ID not in group.addresses:
            return RegisterResult()
        leader = self._live[group.addresses[LEADER_ID]]
        return RegisterResult(leader_address=leader.broker.address, leader_ha_address=leader.ha_address)

    def unregister_broker(self, broker: BrokerId) -> Hashable | None:
        """Remove a broker. Returns the connection over which it last registered; None if it is not known."""
        live = self._live.get(broker.address)
        if live is None:
            return None
        self._remove(live)
        return live.connection

    def connection_closed(self, connection: Hashable) -> list[BrokerId]:
        """Remove the brokers that last registered over this connection. Returns them."""
        return self._remove_all([live for live in self._live.values() if live.connection == connection])

    def expire(self, now: float) -> list[BrokerId]:
        """Remove the brokers that were silent for too long. Returns them."""
        return self._remove_all([live for live in self._live.values() if now - live.last_seen > live.expiry_seconds])

    def query_data_version(self, now: float, broker: BrokerId, version: DataVersion) -> tuple[bool, DataVersion | None]:
        """Return whether a broker's topics differ from its last registration, and the version of that registration.

        If they do not, the broker is noted as alive: it will not register again.
        """
        live = self._live.get(broker.address)
        if live is None:
            return True, None
        changed = live.data_version != version
        if not changed:
            live.last_seen = now
        return changed, live.data_version

    def heartbeat(self, now: float, address: str, expiry_seconds: float | None = None) -> None:
        """Record that a broker is alive and unchanged. A broker that never registered stays unknown."""
        live = self._live.get(address)
        if live is not None:
            live.last_seen = now
            if expiry_seconds is not None:
                live.expiry_seconds = expiry_seconds

    # -- queries -------------------------------------------------------------------------------------------------------

    def sizes(self) -> TableSizes:
        """Return the numbers of groups, live brokers, topics and routes."""
        return TableSizes(len(self._groups), len(self._live), len(self._topics), self._routes)

    def route(self, topic: str) -> Route | None:
        """Return the route of a topic; None if no live broker group has the topic."""
        queues = self._topics.get(topic, {})
        if not queues:
            return None
        groups = {name: self._groups[name] for name in sorted(queues)}
        filter_servers = {
            address: list(live.filter_servers)
            for group in groups.values()
            for address in group.addresses.values()
            if (live := self._live[address]).filter_servers
        }
        return Route(
            queue_datas=[queues[name] for name in groups],
            broker_datas=[_broker_data(name, group) for name, group in groups.items()],
            filter_servers=filter_servers,
        )

    def cluster_info(self) -> ClusterInfo:
        """Return all live broker groups."""
        clusters: dict[str, list[str]] = {}
        for name, group in sorted(self._groups.items()):
            clusters.setdefault(group.cluster, []).append(name)
        return ClusterInfo(
            brokers={name: _broker_data(name, group) for name, group in sorted(self._groups.items())},
            clusters=clusters,
        )

    def topic_list(self, cluster: str | None = None) -> list[str]:
        """Return the sorted names of all topics, or of those in one cluster."""
        if cluster is None:
            return sorted(self._topics)
        groups = {name for name, group in self._groups.items() if group.cluster == cluster}
        return sorted(topic for topic, queues in self._topics.items() if not groups.isdisjoint(queues))

    def member_group(self, cluster: str, name: str) -> BrokerData:
        """Return the brokers of one group; none if the group is not in this cluster."""
        group = self._groups.get(name)
        return _broker_data(name, _GroupRoutes(cluster) if group is None or group.cluster != cluster else group)

    def reserved_topics(self) -> tuple[list[str], str]:
        """Return the names of clusters and groups, which are also names of topics, and the address of any broker."""
        clusters = {group.cluster for group in self._groups.values()}
        return [*sorted(clusters), *sorted(self._groups)], next(iter(self._live), "")

    def topics_with(self, *, flag: int, without: int = 0) -> list[str]:
        """Return the sorted topics whose flags in any group have ``flag`` and not ``without``."""
        return sorted(
            topic
            for topic, queues in self._topics.items()
            if any(data.topic_sys_flag & flag and not data.topic_sys_flag & without for data in queues.values())
        )

    # -- administration ------------------------------------------------------------------------------------------------

    def register_topic(self, topic: str, queues: Sequence[QueueData]) -> None:
        """Set the queues of a topic in known groups. Other groups are ignored.

        Raises TableFull, NameTooLong, NameUnusual.
        """
        queues_by_group = {data.broker_name: data for data in queues if data.broker_name in self._groups}
        if not queues_by_group:
            return
        if topic not in self._topics and len(self._topics) >= self._limits.topics_max:
            raise TableFull("topics", self._limits.topics_max)
        _check_name("a topic", topic)
        new = len(queues_by_group.keys() - self._topics.get(topic, {}).keys())
        self._check_routes(new)
        self._topics.setdefault(topic, {}).update(queues_by_group)
        self._routes += new

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete the route of a topic, in all clusters or in one. Its brokers may register it again."""
        queues = self._topics.get(topic, {})
        for name in list(queues):
            if cluster is None or self._groups[name].cluster == cluster:
                del queues[name]
                self._routes -= 1
        if not queues:
            self._topics.pop(topic, None)

    def wipe_write_perm(self, group: str) -> int:
        """Revoke the write permission of a group's topics until they change or `add_write_perm`. Returns the number of
        topics.
        """
        return self._set_perm(group, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, group: str) -> int:
        """Make a group's topics readable and writable. Returns the number of topics."""
        return self._set_perm(group, lambda _: PERM_READ_WRITE)

    # -- internals -----------------------------------------------------------------------------------------------------

    def _check_room(self, broker: BrokerId, body: RegisterBrokerBody) -> None:
        limits = self._limits
        group = self._groups.get(broker.group)
        if group is None and len(self._groups) >= limits.broker_groups_max:
            raise TableFull("broker groups", limits.broker_groups_max)
        if group is not None and len(group.addresses.keys() | {broker.broker_id}) > limits.brokers_per_group_max:
            raise TableFull(f"brokers in group {broker.group}", limits.brokers_per_group_max)
        if broker.address not in self._live and len(self._live) >= limits.brokers_max:
            raise TableFull("brokers", limits.brokers_max)
        if broker.broker_id == LEADER_ID:
            new = sum(1 for topic in body.topics if topic not in self._topics)
            if len(self._topics) + new > limits.topics_max:
                raise TableFull("topics, or would have more than that of", limits.topics_max)
            self._check_routes(sum(1 for topic in body.topics if broker.group not in self._topics.get(topic, ())))

    def _check_routes(self, new: int) -> None:
        if new and self._routes + new > self._limits.routes_max:
            raise TableFull("topics of broker groups, or would have more than that of", self._limits.routes_max)

    def _newer_holder(self, group: _GroupRoutes, broker: BrokerId, version: DataVersion) -> _Live | None:
        """The live broker that holds this id with a newer state, such as a later term: then this registration is
        outdated.
        """
        address = group.addresses.get(broker.broker_id)
        if address is None or address == broker.address:
            return None
        holder = self._live[address]
        return holder if holder.data_version.state_version > version.state_version else None

    def _take_topics(self, group: str, body: RegisterBrokerBody, *, only_missing: bool = False) -> None:
        # Other topics stay: a broker may register a single changed topic.
        for name, config in body.topics.items():
            queues = self._topics.setdefault(name, {})
            if only_missing and group in queues:
                continue
            self._routes += group not in queues
            queues[group] = QueueData(
                broker_name=group,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm,
                topic_sys_flag=config.topic_sys_flag,
            )

    def _forget_topics(self, group: str, *, keep: Container[str]) -> None:
        for topic in [each for each, queues in self._topics.items() if group in queues and each not in keep]:
            del self._topics[topic][group]
            self._routes -= 1
            if not self._topics[topic]:
                del self._topics[topic]

    def _remove_all(self, expired_brokers: list[_Live]) -> list[BrokerId]:
        for live in expired_brokers:
            self._remove(live)
        return [live.broker for live in expired_brokers]

    def _remove(self, live: _Live) -> None:
        broker = live.broker
        del self._live[broker.address]
        group = self._groups[broker.group]
        self._unlist(group, broker.address)
        if not group.addresses:
            del self._groups[broker.group]
            self._forget_topics(broker.group, keep=())

    @staticmethod
    def _unlist(group: _GroupRoutes, address: str) -> None:
        for broker_id in [each for each, other in group.addresses.items() if other == address]:
            del group.addresses[broker_id]

    def _set_perm(self, group: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._topics.values():
            if (data := queues.get(group)) is not None:
                data.perm = change(data.perm)
                count += 1
        return count


def _check_names(broker: BrokerId, body: RegisterBrokerBody, ha_address: str) -> None:
    for what, name in (
        ("the cluster", broker.cluster),
        ("the broker group", broker.group),
        ("the address", broker.address),
        ("the replication address", ha_address),
    ):
        _check_name(what, name)
    if len(body.filter_servers) > FILTER_SERVERS_MAX:
        raise TableFull("filter servers as one broker may have, or would have more than that of", FILTER_SERVERS_MAX)
    for address in body.filter_servers:
        _check_name("a filter server", address)
    if body.topics:
        _check_name("a topic", max(body.topics, key=len))
        for topic in body.topics:
            _check_characters("a topic", topic)


def _check_name(what: str, name: str) -> None:
    if len(name) > NAME_LENGTH_MAX:
        raise NameTooLong(what, len(name))
    _check_characters(what, name)


def _check_characters(what: str, name: str) -> None:
    """Refuse characters that legitimate names lack: names are shown in terminals, logs and dashboards."""
    if not name.isprintable() or "/" in name or "\\" in name:
        raise NameUnusual(what, name)


def _broker_data(name: str, group: _GroupRoutes) -> BrokerData:
    return BrokerData(broker_name=name, broker_addrs=dict(sorted(group.addresses.items())), cluster=group.cluster)
