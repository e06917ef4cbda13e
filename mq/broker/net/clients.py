"""Registers connected clients by connection: producers, and members of consumer groups.

A registry of heartbeats, kept by the replica that received them and never replicated: after a failover, clients send
heartbeats to the new leader within seconds. A client stays registered as long as its connection is open and its
heartbeats arrive.

The set of client ids and the set of topics decide which member consumes which queue. Every method that may change them
returns the groups whose members must be notified (request code 40). Members of broadcast groups are not notified: each
of them consumes everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from mq.broker.net.consumer_group import (
    BROADCASTING,
    ConnectionT,
    ConsumerGroup,
    GroupSubscription,
    Lengths,
    Member,
    lengths_of,
    parse_group_subscription,
    summary_of,
)
from mq.broker.net.heartbeat_limits import HeartbeatInvalid, HeartbeatLimits, check_name, check_word
from mq.broker.net.proxied_clients import ProxiedClients
from mq.broker.net.removed_members import RemovedMemberTable
from mq.filter.subscription import Subscription
from mq.protocol.codes import LANGUAGES
from mq.protocol.names import check_group, check_topic
from mq.protocol.requests.clients import ConsumerData, ConsumerList, HeartbeatData, HeartbeatOfProxy, SubscriptionData

ROUND_CALLS = 100
"""This many calls check everything that may expire: with a timer of `ConsumeLimits.expire_some_seconds`, within ten
seconds.
"""


_CHECKED_AT_ONCE = 32
"""Subscriptions parsed in one step: less than a millisecond."""

T = TypeVar("T")


CheckedSubscriptions = list[dict[str, GroupSubscription]]
"""Per consumer group of a heartbeat: subscriptions by topic."""

Notice = tuple[str, list[ConnectionT]]
"""A consumer group and the connections of its members."""


@dataclass(frozen=True, slots=True)
class HeartbeatOutcome(Generic[ConnectionT]):
    """The groups in a heartbeat, and the members to notify of changes by it."""

    consumer_groups: tuple[str, ...]
    """All consumer groups in it; the broker creates missing ones and their retry topics."""
    new_groups: tuple[str, ...]
    """Those that had no members before."""
    notify: list[Notice[ConnectionT]]
    """Groups whose members or topics changed. The broker omits groups with disabled notices."""


class _ConnectionGroups:
    """The groups of one connection's clients."""

    __slots__ = ("consumer_groups", "producer_groups")

    def __init__(self) -> None:
        self.consumer_groups: set[str] = set()
        self.producer_groups: set[str] = set()


class ClientRegistry(Generic[ConnectionT]):
    """Registers connected clients and their groups. A connection can be any hashable object.

    Attributes:
        proxied_clients: the clients behind proxies.
        removed_members: those that an operator has removed from their groups.
    """

    def __init__(self, limits: HeartbeatLimits | None = None) -> None:
        self._limits = limits or HeartbeatLimits()
        self.proxied_clients: ProxiedClients[ConnectionT] = ProxiedClients(self._limits)
        self.removed_members: RemovedMemberTable[ConnectionT] = RemovedMemberTable()
        self._consumers: dict[str, ConsumerGroup[ConnectionT]] = {}
        self._producers: dict[str, dict[ConnectionT, Member]] = {}
        # By client id: connections, each with its number of producer groups.
        self._producers_at: dict[str, dict[ConnectionT, int]] = {}
        self._groups_of: dict[ConnectionT, _ConnectionGroups] = {}
        self._to_expire: deque[ConnectionT] = deque()
        self._expire_count = 0
        self._subscriptions = 0
        self._lengths: Lengths = (0, 0)

    # -- changes -------------------------------------------------------------------------------------------------------

    def heartbeat(
        self,
        now: float,
        connection: ConnectionT,
        heartbeat: HeartbeatData,
        language: str | None,
        version: int,
        subscriptions: CheckedSubscriptions | None = None,
    ) -> HeartbeatOutcome[ConnectionT]:
        """Register a client, or refresh its registration. ``now`` is monotonic seconds.

        ``subscriptions`` is the result of `check_subscriptions` for this heartbeat, if that was called before.

        Replaces the group's subscriptions by the heartbeat's, except by older versions. Raises HeartbeatInvalid.
        """
        self.check_limits(connection, heartbeat)
        if subscriptions is None:
            subscriptions = _result(self.check_subscriptions(heartbeat))
        language = language if language in LANGUAGES else None  # keep only known names, not arbitrarily long text
        groups = self._groups_of.get(connection)
        if groups is None:
            groups = self._groups_of[connection] = _ConnectionGroups()
        for producer in heartbeat.producers:
            self._add_producer(producer.group, connection, Member(heartbeat.client_id, language, version, now))
            groups.producer_groups.add(producer.group)
        new_groups: list[str] = []
        notify: list[Notice[ConnectionT]] = []
        for consumer, by_topic in zip(heartbeat.consumers, subscriptions, strict=True):
            if self.removed_members.table:
                if removal := self.removed_members.get(consumer.group, heartbeat.client_id, now):
                    self.removed_members.add_connection(removal, connection)
                    notify += self._leave_as_another(connection, consumer.group)
                    self._groups_of[connection] = groups
                    continue
                self.removed_members.detach(connection, consumer.group)
            group = self._consumers.get(consumer.group)
            if group is None:
                group = self._consumers[consumer.group] = ConsumerGroup(consumer.group)
                new_groups.append(consumer.group)
            if is_new := not group.has(heartbeat.client_id, connection):
                group.list_body = None
            topics = group.subscriptions.keys()
            before = group.members.get(connection)
            summary = summary_of(by_topic.values(), group.summary, None if before is None else before.summary)
            group.summary = summary
            if before is None or before.summary is not summary:
                group.is_divided = None
            group.members[connection] = Member(heartbeat.client_id, language, version, now, summary=summary)
            groups.consumer_groups.add(consumer.group)
            group.consume_type = consumer.consume_type
            group.message_model = consumer.message_model
            group.consume_from_where = consumer.consume_from_where
            self._subscribe(group, _merge_newer(group.subscriptions, by_topic))
            if is_new or topics != group.subscriptions.keys():
                notify += _notices([group])
        if isinstance(heartbeat, HeartbeatOfProxy):
            clients = heartbeat.proxied_clients
            if self.removed_members.table:
                clients = [each for each in clients if not self.removed_members.record(each.group, each.client_id, now)]
            self.proxied_clients.heartbeat(now, connection, clients)
        self._forget_if_unlisted(connection, groups)
        count, count_max = max(len(groups.producer_groups), len(groups.consumer_groups)), self._limits.groups_max
        assert count <= count_max, f"{heartbeat.client_id} is in {count} groups of a kind; maximum: {count_max}"
        return HeartbeatOutcome(tuple(consumer.group for consumer in heartbeat.consumers), tuple(new_groups), notify)

    def update_subscriptions(self, connection: ConnectionT, group: str, changes: Sequence[SubscriptionData]) -> None:
        """Replace the subscriptions of a group for which a member has reported a newer version.

        Topics to which the group does not subscribe are ignored: only heartbeats add or remove topics. Raises
        HeartbeatInvalid.
        """
        consumers = self._consumers.get(group)
        if consumers is None or connection not in consumers.members:
            return
        newer = [
            data
            for data in changes
            if (old := consumers.subscriptions.get(data.topic)) is not None and old.version < data.version
        ]
        subscriptions = consumers.subscriptions | _result(self._checked_subscriptions(ConsumerData(group, newer)))
        self._check_lengths({group: lengths_of(subscriptions.values())}, {group: consumers.lengths})
        self._subscribe(consumers, subscriptions)

    def check_bytes(self, nbytes: int) -> None:
        """Raise HeartbeatInvalid if a heartbeat's body is longer than any client needs."""
        if nbytes > self._limits.heartbeat_bytes_max:
            raise HeartbeatInvalid(f"it has {nbytes} bytes; maximum: {self._limits.heartbeat_bytes_max}")

    def check_limits(self, connection: ConnectionT, heartbeat: HeartbeatData) -> None:
        """Raise HeartbeatInvalid if a heartbeat exceeds the limits on groups, topics or expressions."""
        limits = self._limits
        if not 0 < len(heartbeat.client_id) <= limits.client_id_length_max:
            raise HeartbeatInvalid(
                f"the client id has {len(heartbeat.client_id)} characters; allowed: 1 to {limits.client_id_length_max}"
            )
        own_groups = self._groups_of.get(connection) or _ConnectionGroups()
        for kind, groups, earlier in (
            ("producer", [data.group for data in heartbeat.producers], own_groups.producer_groups),
            ("consumer", [data.group for data in heartbeat.consumers], own_groups.consumer_groups),
        ):
            count = max(len(groups), len(earlier.union(groups)))
            if count > limits.groups_max:
                raise HeartbeatInvalid(f"the connection names {count} {kind} groups; maximum: {limits.groups_max}")
            for group in groups:
                check_name(check_group, group)
        self._check_expressions([data for consumer in heartbeat.consumers for data in consumer.subscriptions])
        self._check_room(own_groups, heartbeat)

    def check_subscriptions(self, heartbeat: HeartbeatData) -> Generator[None, None, CheckedSubscriptions]:
        """Parse the subscriptions of a heartbeat for `heartbeat`, and yield where the work may be interrupted.

        Raises HeartbeatInvalid. Nothing is registered yet.
        """
        subscriptions: CheckedSubscriptions = []
        for consumer in heartbeat.consumers:
            by_topic = yield from self._checked_subscriptions(consumer)
            subscriptions.append(by_topic)
        return subscriptions

    def unregister(
        self, connection: ConnectionT, client_id: str, producer_group: str | None, consumer_group: str | None
    ) -> list[Notice[ConnectionT]]:
        """Remove a client from a producer group, a consumer group, or both. Ignores unknown groups and clients.

        Removes only what ``connection`` itself registered under ``client_id``. Returns the members to notify.
        """
        if producer_group:
            member = self._producers.get(producer_group, {}).get(connection)
            if member is not None and member.client_id == client_id:
                self._remove_producer(producer_group, connection)
        if not consumer_group:
            return []
        group = self._consumers.get(consumer_group)
        if group is None or connection not in group.members or group.members[connection].client_id != client_id:
            return []
        return self._remove_consumers([(group, connection)])

    def remove_member(
        self, group: str, client_id: str, *, until: float, reason: str, operator: str
    ) -> tuple[list[ConnectionT], list[Notice[ConnectionT]], bool]:
        """Remove a client from a consumer group, and keep it out until the monotonic time ``until``, in seconds.

        Returns its connections, the members to notify, and whether it was a member, or was kept out already.
        """
        consumers = self._consumers.get(group)
        members = {} if consumers is None else consumers.members
        connections = [each for each, member in members.items() if member.client_id == client_id]
        was_member = bool(connections) or (group, client_id) in self.removed_members.table
        was_member |= self.proxied_clients.remove(group, client_id)
        notify = [] if consumers is None else self._remove_consumers([(consumers, each) for each in connections])
        self.removed_members.keep(
            group, client_id, until=until, reason=reason, operator=operator, connections=connections
        )
        return connections, notify, was_member

    def connection_closed(self, connection: ConnectionT) -> list[Notice[ConnectionT]]:
        """Remove the clients of a closed connection, and return the members to notify."""
        self.proxied_clients.connection_closed(connection)
        self.removed_members.connection_closed(connection)
        groups = self._groups_of.get(connection)
        if groups is None:
            return []
        for name in list(groups.producer_groups):
            self._remove_producer(name, connection)
        return self._remove_consumers([(self._consumers[name], connection) for name in sorted(groups.consumer_groups)])

    @property
    def connection_count(self) -> int:
        """The number of connections with clients in groups."""
        return len(self._groups_of)

    def expire_some(self, now: float) -> list[Notice[ConnectionT]]:
        """Check some connections, and remove clients without a heartbeat for `HeartbeatLimits.expiry_seconds`.

        `ROUND_CALLS` calls check all connections that existed at the first of them. Returns the members to notify.
        """
        if not self._to_expire:
            self.proxied_clients.expire(now)
            self._to_expire.extend(self._groups_of)
            self._expire_count = -(-len(self._groups_of) // ROUND_CALLS)
        oldest = now - self._limits.expiry_seconds
        producers: list[tuple[str, ConnectionT]] = []
        consumers: list[tuple[ConsumerGroup[ConnectionT], ConnectionT]] = []
        for _ in range(min(len(self._to_expire), self._expire_count)):
            connection = self._to_expire.popleft()
            groups = self._groups_of.get(connection)
            if groups is None:
                continue  # removed since the round began
            producers += [
                (name, connection)
                for name in sorted(groups.producer_groups)
                if self._producers[name][connection].last_heartbeat < oldest
            ]
            for name in sorted(groups.consumer_groups):
                group = self._consumers[name]
                if group.members[connection].last_heartbeat < oldest:
                    consumers.append((group, connection))
        for name, connection in producers:
            self._remove_producer(name, connection)
        return self._remove_consumers(consumers)

    # -- queries -------------------------------------------------------------------------------------------------------

    def consumer_ids(self, group: str) -> list[str]:
        """Return the sorted client ids of a consumer group; none without members."""
        consumers = self._consumers.get(group)
        return [] if consumers is None else consumers.client_ids()

    def consumer_list(self, group: str) -> bytes | None:
        """Return the client ids of a consumer group as a response body; None without members.

        Encoded once per change, since every member asks for it after each change.
        """
        consumers = self._consumers.get(group)
        if consumers is None:
            return None
        if consumers.list_body is None:
            consumers.list_body = ConsumerList(consumers.client_ids()).encode()
        return consumers.list_body

    def subscriptions_differ(self, group: str) -> bool:
        """Return whether members of a consumer group have different subscriptions."""
        consumers = self._consumers.get(group)
        return consumers is not None and consumers.differ()

    def consumer_group(self, group: str) -> ConsumerGroup[ConnectionT] | None:
        """Return a consumer group with members, for reading only; None if it has none."""
        return self._consumers.get(group)

    def consumer_groups(self) -> Iterable[ConsumerGroup[ConnectionT]]:
        """Return all consumer groups with members."""
        return self._consumers.values()

    def member(self, connection: ConnectionT, group: str) -> Member | None:
        """Return the member of a consumer group behind a connection; None if there is none."""
        consumers = self._consumers.get(group)
        return None if consumers is None else consumers.members.get(connection)

    def client_id(self, connection: ConnectionT, group: str) -> str | None:
        """Return the client id of the member of a consumer group behind a connection; None if there is none."""
        member = self.member(connection, group)
        return None if member is None else member.client_id

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return the subscription of an online group to a topic; None if it has none, or an invalid expression."""
        consumers = self._consumers.get(group)
        subscription = None if consumers is None else consumers.subscriptions.get(topic)
        return None if subscription is None else subscription.tag_filter

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the consumer groups with members that subscribe to a topic."""
        return [name for name, group in self._consumers.items() if topic in group.subscriptions]

    def producer_members(self, group: str) -> Mapping[ConnectionT, Member]:
        """Return the members of a producer group by connection."""
        return self._producers.get(group, {})

    def producer_groups(self) -> Iterable[tuple[str, Mapping[ConnectionT, Member]]]:
        """Return all producer groups with their members."""
        return self._producers.items()

    def producer(self, client_id: str) -> ConnectionT | None:
        """Return the newest connection of a producer, whatever its groups; None if it has none."""
        return next(reversed(self._producers_at.get(client_id, {})), None)

    def producers(self, group: str) -> list[ConnectionT]:
        """Return the connections of a producer group, in order of their first heartbeat."""
        return list(self._producers.get(group, ()))

    def check_invariants(self) -> None:
        """Assert that groups and connections list each other, and that subscriptions are counted right, for tests."""
        self.proxied_clients.check_invariants()
        self.removed_members.check_invariants()
        consumers = {(name, each) for name, group in self._consumers.items() for each in group.members}
        pairs = {(name, each) for each, of_it in self._groups_of.items() for name in of_it.consumer_groups}
        assert consumers == pairs, f"{len(consumers)} members of groups, connections list {len(pairs)}"
        producers = {(name, each) for name, members in self._producers.items() for each in members}
        pairs = {(name, each) for each, of_it in self._groups_of.items() for name in of_it.producer_groups}
        assert producers == pairs, f"{len(producers)} members of producer groups, connections list {len(pairs)}"
        count = sum(sum(at.values()) for at in self._producers_at.values())
        assert count == len(producers), f"{len(producers)} members of producer groups, by client id {count}"
        subscriptions = sum(len(group.subscriptions) for group in self._consumers.values())
        assert subscriptions == self._subscriptions, f"{subscriptions} subscriptions, counted {self._subscriptions}"
        in_all_max = self._limits.subscriptions_in_all_max
        assert subscriptions <= in_all_max, f"{subscriptions} subscriptions; maximum: {in_all_max}"
        lengths = tuple(sum(group.lengths[at] for group in self._consumers.values()) for at in (0, 1))
        assert lengths == self._lengths, f"expressions of {lengths} characters, counted {self._lengths}"
        for name, group in self._consumers.items():
            assert group.members, f"group {name} has no member, and {len(group.subscriptions)} subscriptions"
            assert group.lengths == lengths_of(group.subscriptions.values()), f"{name} counts {group.lengths}"

    # -- internals -----------------------------------------------------------------------------------------------------

    def _check_expressions(self, subscriptions: Sequence[SubscriptionData]) -> None:
        self._check_length_of_one(lengths_of(subscriptions))

    def _check_length_of_one(self, lengths: Lengths) -> None:
        """Raise HeartbeatInvalid if the expressions of one connection are too long."""
        limits = self._limits
        for kind, length, length_max in (
            ("", lengths[0], limits.expressions_length_max),
            ("SQL92 ", lengths[1], limits.sql_length_max),
        ):
            if length > length_max:
                raise HeartbeatInvalid(f"the {kind}expressions have {length} characters in all; maximum: {length_max}")

    def _check_lengths(self, after: Mapping[str, Lengths], before: Mapping[str, Lengths]) -> None:
        """Raise HeartbeatInvalid if the expressions of one connection, or of all together, would be too long.

        ``before`` are the current groups of the connection, ``after`` those that change.
        """
        limits, totals = self._limits, {**before, **after}
        self._check_length_of_one((sum(each[0] for each in totals.values()), sum(each[1] for each in totals.values())))
        for at, kind, length_max in (
            (0, "", limits.expressions_length_in_all_max),
            (1, "SQL92 ", limits.sql_length_in_all_max),
        ):
            growth = sum(lengths[at] - before.get(group, (0, 0))[at] for group, lengths in after.items())
            if growth > 0 and self._lengths[at] + growth > length_max:
                raise HeartbeatInvalid(
                    f"the {kind}expressions of all clients total {self._lengths[at]} characters; maximum: {length_max}"
                )

    def _check_room(self, own_groups: _ConnectionGroups, heartbeat: HeartbeatData) -> None:
        limits = self._limits
        after = {consumer.group: len(consumer.subscriptions) for consumer in heartbeat.consumers}
        groups = {
            name: self._consumers[name] for name in own_groups.consumer_groups | after.keys() if name in self._consumers
        }
        before = {name: len(group.subscriptions) for name, group in groups.items()}
        # A group may occur twice in a heartbeat; all of it has to be parsed.
        count = max(sum((before | after).values()), sum(len(each.subscriptions) for each in heartbeat.consumers))
        if count > limits.subscriptions_per_client_max:
            raise HeartbeatInvalid(
                f"the connection has {count} subscriptions; maximum: {limits.subscriptions_per_client_max}"
            )
        growth = sum(after.values()) - sum(before.get(name, 0) for name in after)
        if growth > 0 and self._subscriptions + growth > limits.subscriptions_in_all_max:
            raise HeartbeatInvalid(
                f"all clients have {self._subscriptions} subscriptions; maximum: {limits.subscriptions_in_all_max}"
            )
        lengths = {consumer.group: lengths_of(consumer.subscriptions) for consumer in heartbeat.consumers}
        self._check_lengths(lengths, {name: group.lengths for name, group in groups.items()})

    def _subscribe(self, group: ConsumerGroup[ConnectionT], subscriptions: dict[str, GroupSubscription]) -> None:
        before, after = group.lengths, lengths_of(subscriptions.values())
        self._subscriptions += len(subscriptions) - len(group.subscriptions)
        self._lengths = self._lengths[0] + after[0] - before[0], self._lengths[1] + after[1] - before[1]
        assert self._subscriptions >= 0, f"{self._subscriptions} subscriptions without group {group.name}"
        assert min(self._lengths) >= 0, f"expressions of {self._lengths} characters without group {group.name}"
        group.subscriptions, group.lengths = subscriptions, after

    def _checked_subscriptions(self, consumer: ConsumerData) -> Generator[None, None, dict[str, GroupSubscription]]:
        limits = self._limits
        for word in (consumer.consume_type, consumer.message_model, consumer.consume_from_where):
            check_word(word, limits)
        count = len(consumer.subscriptions)
        if count > limits.subscriptions_max:
            raise HeartbeatInvalid(
                f"group {consumer.group} subscribes {count} topics; maximum: {limits.subscriptions_max}"
            )
        by_topic: dict[str, GroupSubscription] = {}
        group = self._consumers.get(consumer.group)
        current = {} if group is None else group.subscriptions
        for number, data in enumerate(consumer.subscriptions):
            if number % _CHECKED_AT_ONCE == _CHECKED_AT_ONCE - 1:
                yield
            same = current.get(data.topic)
            if same is not None and same.is_wanted_by(data):
                by_topic[data.topic] = same  # unchanged since the client's last heartbeat
                continue
            check_word(data.expression_type, limits)
            check_name(check_topic, data.topic)
            by_topic[data.topic] = parse_group_subscription(data)
        return by_topic

    def _add_producer(self, name: str, connection: ConnectionT, member: Member) -> None:
        members = self._producers.setdefault(name, {})
        old = members.get(connection)
        if old is None or old.client_id != member.client_id:
            if old is not None:
                self._forget_producer(old.client_id, connection)
            at = self._producers_at.setdefault(member.client_id, {})
            at[connection] = at.get(connection, 0) + 1
        members[connection] = member

    def _forget_producer(self, client_id: str, connection: ConnectionT) -> None:
        at = self._producers_at[client_id]
        at[connection] -= 1
        assert at[connection] >= 0, f"{client_id} is in {at[connection]} producer groups on a connection"
        if not at[connection]:
            del at[connection]
            if not at:
                del self._producers_at[client_id]

    def _remove_producer(self, name: str, connection: ConnectionT) -> None:
        members = self._producers[name]
        self._forget_producer(members.pop(connection).client_id, connection)
        if not members:
            del self._producers[name]
        groups = self._groups_of[connection]
        groups.producer_groups.discard(name)
        self._forget_if_unlisted(connection, groups)

    def _remove_consumers(
        self, removals: Iterable[tuple[ConsumerGroup[ConnectionT], ConnectionT]]
    ) -> list[Notice[ConnectionT]]:
        ids_by_group: dict[str, tuple[ConsumerGroup[ConnectionT], set[str]]] = {}
        for group, connection in removals:
            _, client_ids = ids_by_group.setdefault(group.name, (group, set()))
            client_ids.add(group.members.pop(connection).client_id)
            group.list_body = group.is_divided = None
            if not group.members:
                del self._consumers[group.name]
                self._subscribe(group, {})
            groups = self._groups_of[connection]
            groups.consumer_groups.discard(group.name)
            self._forget_if_unlisted(connection, groups)
        return _notices(
            group
            for group, client_ids in ids_by_group.values()
            if not client_ids <= {member.client_id for member in group.members.values()}
        )

    def _leave_as_another(self, connection: ConnectionT, name: str) -> list[Notice[ConnectionT]]:
        """Remove the former client of a connection that now names a removed client."""
        group = self._consumers.get(name)
        return [] if group is None or connection not in group.members else self._remove_consumers([(group, connection)])

    def _forget_if_unlisted(self, connection: ConnectionT, groups: _ConnectionGroups) -> None:
        if not groups.consumer_groups and not groups.producer_groups:
            del self._groups_of[connection]


def _result(steps: Generator[None, None, T]) -> T:
    """Run a generator to its end, and return its value."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            value: T = stop.value
            return value


def _merge_newer(
    current: dict[str, GroupSubscription], subscriptions: dict[str, GroupSubscription]
) -> dict[str, GroupSubscription]:
    """Replace subscriptions by those of a heartbeat, except newer ones: heartbeats of a group may cross."""
    return {
        topic: current[topic] if topic in current and current[topic].version >= subscription.version else subscription
        for topic, subscription in subscriptions.items()
    }


def _notices(groups: Iterable[ConsumerGroup[ConnectionT]]) -> list[Notice[ConnectionT]]:
    return [
        (group.name, list(group.members)) for group in groups if group.members and group.message_model != BROADCASTING
    ]
