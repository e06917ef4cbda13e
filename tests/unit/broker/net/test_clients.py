"""Who is connected: membership of groups, and who is told when it changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mq.broker.net.clients import ROUND_CALLS, ClientRegistry, HeartbeatOutcome
from mq.broker.net.consumer_group import BROADCASTING
from mq.broker.net.heartbeat_limits import HeartbeatInvalid, HeartbeatLimits
from mq.protocol.requests.clients import ConsumerData, ConsumerList, HeartbeatData, ProducerData, SubscriptionData


def subscription(topic: str, expression: str = "*", version: int = 1, expression_type: str = "TAG") -> SubscriptionData:
    return SubscriptionData(topic=topic, expression=expression, version=version, expression_type=expression_type)


def consumer(group: str, *topics: str | SubscriptionData, model: str = "CLUSTERING") -> ConsumerData:
    return ConsumerData(
        group=group,
        consume_type="CONSUME_PASSIVELY",
        message_model=model,
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscriptions=[topic if isinstance(topic, SubscriptionData) else subscription(topic) for topic in topics],
    )


def beat(
    registry: ClientRegistry[str],
    connection: str,
    client_id: str,
    *consumers: ConsumerData,
    producers: Sequence[str] = (),
    now: float = 0.0,
) -> HeartbeatOutcome[str]:
    heartbeat = HeartbeatData(
        client_id=client_id,
        producers=[ProducerData(group=group) for group in producers],
        consumers=list(consumers),
    )
    return registry.heartbeat(now, connection, heartbeat, "JAVA", 409)


def expire(registry: ClientRegistry[str], now: float) -> dict[str, list[str]]:
    """Look at all connections, also at those that came since a round began; the last notice of each group."""
    notices = dict(notice for _ in range(2 * ROUND_CALLS) for notice in registry.expire_some(now))
    return {group: members for group, members in notices.items() if registry.consumer_ids(group)}


@pytest.fixture
def registry() -> ClientRegistry[str]:
    return ClientRegistry()


def test_new_member_is_announced_to_all_of_its_group(registry: ClientRegistry[str]) -> None:
    first = beat(registry, "c1", "one", consumer("g", "T"))
    assert (first.consumer_groups, first.new_groups, first.notify) == (("g",), ("g",), [("g", ["c1"])])
    second = beat(registry, "c2", "two", consumer("g", "T"))
    assert (second.consumer_groups, second.new_groups, second.notify) == (("g",), (), [("g", ["c1", "c2"])])
    assert registry.consumer_ids("g") == ["one", "two"]
    assert registry.consumer_ids("unknown") == []


def test_unchanged_heartbeat_sends_no_notifications(registry: ClientRegistry[str]) -> None:
    beat(registry, "c1", "one", consumer("g", "T"))
    again = beat(registry, "c1", "one", consumer("g", "T"), now=30.0)
    assert again.notify == []
    assert again.consumer_groups == ("g",)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (["T"], ["T", "U"], True),
        (["T", "U"], ["T"], True),
        (["T"], ["U"], True),
        (["T", "U"], ["U", "T"], False),
        ([subscription("T", "A", 1)], [subscription("T", "B", 2)], False),
    ],
    ids=["added", "removed", "replaced", "other order", "other expression"],
)
def test_members_are_notified_only_when_the_topic_set_changes(
    before: list[str | SubscriptionData], after: list[str | SubscriptionData], told: bool, registry: ClientRegistry[str]
) -> None:
    beat(registry, "c1", "one", consumer("g", *before))
    assert bool(beat(registry, "c1", "one", consumer("g", *after)).notify) == told


def test_broadcast_groups_are_never_notified(registry: ClientRegistry[str]) -> None:
    assert beat(registry, "c1", "one", consumer("g", "T", model=BROADCASTING)).notify == []
    assert beat(registry, "c2", "two", consumer("g", "T", model=BROADCASTING)).notify == []
    assert registry.connection_closed("c1") == []
    assert registry.consumer_ids("g") == ["two"]


def test_newest_version_of_a_subscription_applies(registry: ClientRegistry[str]) -> None:
    for expression, version, wanted in (("A", 5, "A"), ("B", 4, "A"), ("C", 5, "A"), ("D", 6, "D")):
        beat(registry, "c1", "one", consumer("g", subscription("T", expression, version)))
        known = registry.subscription("g", "T")
        assert known is not None
        assert known.tags == {wanted}


def test_unknown_or_invalid_subscriptions_are_absent(registry: ClientRegistry[str]) -> None:
    wrong = subscription("S", "a > 'x'", expression_type="SQL92")
    unknown = subscription("V", "a", expression_type="CLASS")
    sql = subscription("W", "a > 1", expression_type="SQL92")
    beat(registry, "c1", "one", consumer("g", "T", wrong, unknown, sql))
    assert registry.subscription("g", "U") is None
    assert registry.subscription("h", "T") is None
    assert registry.subscription("g", "S") is None
    assert registry.subscription("g", "V") is None
    group = registry.consumer_group("g")
    assert group is not None
    assert "character 5" in group.subscriptions["S"].fault
    assert "TAG, SQL92" in group.subscriptions["V"].fault
    chosen = registry.subscription("g", "W")
    assert chosen is not None
    assert chosen.sql is not None
    assert group.subscriptions["S"].expression == "a > 'x'"


def test_closed_connection_leaves_all_its_groups(registry: ClientRegistry[str]) -> None:
    beat(registry, "c1", "one", consumer("g", "T"), consumer("h", "T"), producers=["p"])
    beat(registry, "c2", "two", consumer("g", "T"), producers=["p"])
    assert registry.connection_closed("c1") == [("g", ["c2"])]
    assert registry.consumer_ids("h") == []
    assert registry.consumer_group("h") is None
    assert registry.producers("p") == ["c2"]
    assert registry.connection_closed("c1") == []


def test_reconnecting_client_stays_one_member_without_notifications(registry: ClientRegistry[str]) -> None:
    beat(registry, "old", "one", consumer("g", "T"))
    beat(registry, "c2", "two", consumer("g", "T"))
    assert beat(registry, "new", "one", consumer("g", "T")).notify == []
    assert registry.consumer_ids("g") == ["one", "two"]
    assert registry.connection_closed("old") == []
    assert registry.consumer_ids("g") == ["one", "two"]


def test_unregister_removes_only_the_named_groups(registry: ClientRegistry[str]) -> None:
    beat(registry, "c1", "one", consumer("g", "T"), consumer("h", "T"), producers=["p", "q"])
    beat(registry, "c2", "two", consumer("g", "T"))
    assert registry.unregister("c1", "one", "p", None) == []
    assert (registry.producers("p"), registry.producers("q")) == ([], ["c1"])
    assert registry.unregister("c1", "one", None, "g") == [("g", ["c2"])]
    assert registry.consumer_ids("h") == ["one"]
    assert registry.unregister("c1", "one", "unknown", "unknown") == []


def test_connection_cannot_unregister_other_clients(registry: ClientRegistry[str]) -> None:
    beat(registry, "c1", "one", consumer("g", "T"), producers=["p"])
    beat(registry, "c2", "two", consumer("g", "T"), producers=["p"])
    assert registry.unregister("c2", "one", "p", "g") == []
    assert registry.unregister("c3", "one", "p", "g") == []
    assert registry.consumer_ids("g") == ["one", "two"]
    assert registry.producers("p") == ["c1", "c2"]


def test_silent_members_expire(registry: ClientRegistry[str]) -> None:
    beat(registry, "c1", "one", consumer("g", "T"), producers=["p"], now=0.0)
    beat(registry, "c2", "two", consumer("g", "T"), producers=["p"], now=30.0)
    assert expire(registry, 120.0) == {}
    assert registry.consumer_ids("g") == ["one", "two"]
    assert expire(registry, 120.1) == {"g": ["c2"]}
    assert registry.consumer_ids("g") == ["two"]
    assert registry.producers("p") == ["c2"]
    assert expire(registry, 1000.0) == {}
    assert registry.consumer_group("g") is None


def test_connections_are_checked_in_turn_and_joint_departures_announced_once(registry: ClientRegistry[str]) -> None:
    connections = [f"c{number}" for number in range(3 * ROUND_CALLS)]
    for connection in connections:
        beat(registry, connection, connection, consumer("g", "T"), now=0.0)
    for number in range(ROUND_CALLS - 1):
        assert registry.expire_some(121.0) == [("g", connections[3 * number + 3 :])]
    assert registry.expire_some(121.0) == []
    assert registry.consumer_group("g") is None


def test_closed_connection_is_skipped_at_its_turn(registry: ClientRegistry[str]) -> None:
    for connection in ("c1", "c2"):
        beat(registry, connection, connection, consumer("g", "T"), producers=["p"], now=0.0)
    assert registry.expire_some(0.0) == []
    registry.connection_closed("c2")
    assert registry.expire_some(121.0) == []
    assert registry.consumer_ids("g") == ["c1"]
    assert registry.expire_some(121.0) == []
    assert registry.consumer_ids("g") == []


TIGHT = HeartbeatLimits(
    client_id_length_max=8,
    groups_max=2,
    subscriptions_max=2,
    subscriptions_per_client_max=3,
    subscriptions_in_all_max=5,
    expressions_length_max=7,
    sql_length_max=5,
)


BEYOND: dict[str, tuple[str, list[ConsumerData], list[str]]] = {
    "no client id": ("", [], []),
    "long client id": ("x" * 9, [], []),
    "many consumer groups": ("one", [consumer("g", "T"), consumer("h", "T"), consumer("i", "T")], []),
    "many producer groups": ("one", [], ["p", "q", "r"]),
    "many topics": ("one", [consumer("g", "T", "U", "V")], []),
    "many topics in all": ("one", [consumer("g", "T", "U"), consumer("first", "T", "U")], []),
    "a group three times": ("one", [consumer("first", "T")] * 2, []),
    "long expressions": ("one", [consumer("g", subscription("T", "A||B"), subscription("U", "C||D"))], []),
    "long SQL92 expressions": ("one", [consumer("g", subscription("T", "a = 12", expression_type="SQL92"))], []),
    "long message model": ("one", [consumer("g", "T", model="C" * 65)], []),
    "empty expression": ("one", [consumer("g", subscription("T", "||"))], []),
    "bad consumer group": ("one", [consumer("a b", "T")], []),
    "bad topic": ("one", [consumer("g", "../T")], []),
    "bad producer group": ("one", [], ["a/b"]),
}


@pytest.mark.parametrize(("client_id", "consumers", "producers"), BEYOND.values(), ids=BEYOND)
def test_heartbeat_beyond_the_limits_changes_nothing(
    client_id: str, consumers: list[ConsumerData], producers: list[str]
) -> None:
    registry: ClientRegistry[str] = ClientRegistry(TIGHT)
    with pytest.raises(HeartbeatInvalid):
        beat(registry, "c1", client_id, consumer("first", "T"), *consumers, producers=producers)
    assert registry.consumer_ids("first") == []
    assert registry.connection_closed("c1") == []


def test_groups_of_one_connection_are_bounded_over_its_life() -> None:
    registry: ClientRegistry[str] = ClientRegistry(TIGHT)
    beat(registry, "c1", "one", consumer("g", "T"))
    beat(registry, "c1", "one", consumer("h", "T"))
    with pytest.raises(HeartbeatInvalid, match="3 consumer groups"):
        beat(registry, "c1", "one", consumer("i", "T"))
    registry.unregister("c1", "one", None, "g")
    beat(registry, "c1", "one", consumer("i", "T"))
    assert registry.consumer_ids("i") == ["one"]


def test_topics_of_one_connection_and_of_all_are_bounded() -> None:
    registry: ClientRegistry[str] = ClientRegistry(TIGHT)
    beat(registry, "c1", "one", consumer("g", "T", "U"))
    with pytest.raises(HeartbeatInvalid, match="the connection has 4 subscriptions; maximum: 3"):
        beat(registry, "c1", "one", consumer("h", "T", "U"))
    beat(registry, "c1", "one", consumer("h", "T"))
    with pytest.raises(HeartbeatInvalid, match="the connection has 4 subscriptions; maximum: 3"):
        beat(registry, "c1", "one", consumer("h", "T", "U"))
    beat(registry, "c2", "two", consumer("g", "T", "U"), consumer("i", "T"))  # of g there are no more than before
    with pytest.raises(HeartbeatInvalid, match="all clients have 4 subscriptions; maximum: 5"):
        beat(registry, "c3", "three", consumer("j", "T", "U"))
    beat(registry, "c3", "three", consumer("j", "T"))
    registry.connection_closed("c2")
    beat(registry, "c3", "three", consumer("j", "T", "U"))
    for connection in ("c1", "c3"):
        registry.connection_closed(connection)
    for connection in ("c4", "c5"):
        beat(registry, connection, connection, consumer(f"g{connection}", "T", "U"))


@pytest.mark.parametrize(
    ("expression_type", "limits"),
    [
        ("TAG", HeartbeatLimits(expressions_length_max=20, expressions_length_in_all_max=30)),
        ("SQL92", HeartbeatLimits(sql_length_max=20, sql_length_in_all_max=30)),
    ],
)
def test_expressions_of_one_connection_are_bounded_over_its_life(expression_type: str, limits: HeartbeatLimits) -> None:
    """Each in a heartbeat of its own, they would take all memory there is: compiled, a hundred times their length."""
    registry: ClientRegistry[str] = ClientRegistry(limits)

    def wants(group: str, length: int, version: int = 1) -> ConsumerData:
        return consumer(group, subscription("T", f"a={'1' * (length - 2)}", version, expression_type))

    beat(registry, "c1", "one", wants("g", 10))
    beat(registry, "c1", "one", wants("h", 10))
    with pytest.raises(HeartbeatInvalid, match="expressions have 30 characters in all; maximum: 20"):
        beat(registry, "c1", "one", wants("i", 10))
    with pytest.raises(HeartbeatInvalid, match="expressions have 21 characters"):
        beat(registry, "c1", "one", wants("h", 11, 2))
    beat(registry, "c1", "one", wants("g", 10), wants("h", 5, 2))
    beat(registry, "c2", "two", wants("i", 15))
    with pytest.raises(HeartbeatInvalid, match="expressions of all clients total 30 characters; maximum: 30"):
        beat(registry, "c3", "three", wants("j", 5))
    registry.update_subscriptions("c1", "h", [subscription("T", "a=1", 3, expression_type)])
    with pytest.raises(HeartbeatInvalid, match="all clients total"):
        registry.update_subscriptions("c1", "h", [subscription("T", "a=1111", 4, expression_type)])
    registry.connection_closed("c2")
    beat(registry, "c3", "three", wants("j", 15))
    for connection in ("c1", "c3"):
        registry.connection_closed(connection)
    beat(registry, "c4", "four", wants("k", 20))


def test_language_of_a_client_is_stored_only_if_known(registry: ClientRegistry[str]) -> None:
    """It is kept for each group of a connection, and a header has room for a long text."""
    for language, kept in (("GO", "GO"), ("x" * 200_000, None), (None, None)):
        registry.heartbeat(0.0, "c1", HeartbeatData("one", consumers=[consumer("g", "T")]), language, 409)
        member = registry.member("c1", "g")
        assert member is not None
        assert member.language == kept


CONNECTIONS = st.sampled_from(["c1", "c2", "c3"])
CLIENTS = st.sampled_from(["one", "two"])
GROUPS = st.sampled_from(["g", "h"])


class Table(RuleBasedStateMachine):
    """A registry beside a plain table of (group, connection) -> (client, last heartbeat)."""

    def __init__(self) -> None:
        super().__init__()
        self.registry: ClientRegistry[str] = ClientRegistry()
        self.table: dict[tuple[str, str], tuple[str, float]] = {}
        self.now = 0.0

    def hear(self, notices: list[tuple[str, list[str]]]) -> None:
        """Whom the registry tells of the members of its group."""

    @rule(connection=CONNECTIONS)
    def close(self, connection: str) -> None:
        self.table = {key: row for key, row in self.table.items() if key[1] != connection}
        self.hear(self.registry.connection_closed(connection))

    @rule(seconds=st.sampled_from([1.0, 50.0, 121.0]))
    def later(self, seconds: float) -> None:
        self.now += seconds
        self.table = {key: row for key, row in self.table.items() if row[1] >= self.now - 120.0}
        self.hear(list(expire(self.registry, self.now).items()))


class RegistryAgainstTable(Table):
    """Members are those of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, list[str]] = {}

    def ids(self, group: str) -> list[str]:
        return sorted({client for (known, _), (client, _) in self.table.items() if known == group})

    def hear(self, notices: list[tuple[str, list[str]]]) -> None:
        for group, connections in notices:
            assert sorted(connections) == sorted(at for known, at in self.table if known == group)
            self.told[group] = self.ids(group)

    @rule(connection=CONNECTIONS, client=CLIENTS, group=GROUPS)
    def heartbeat(self, connection: str, client: str, group: str) -> None:
        self.table[group, connection] = (client, self.now)
        self.hear(beat(self.registry, connection, client, consumer(group, "T"), now=self.now).notify)

    @rule(connection=CONNECTIONS, client=CLIENTS, group=GROUPS)
    def unregister(self, connection: str, client: str, group: str) -> None:
        if self.table.get((group, connection), ("", 0.0))[0] == client:
            del self.table[group, connection]
        self.hear(self.registry.unregister(connection, client, None, group))

    @invariant()
    def members_are_those_of_the_table_and_know_it(self) -> None:
        for group in ("g", "h"):
            assert self.registry.consumer_ids(group) == self.ids(group)
            body = self.registry.consumer_list(group)
            assert ([] if body is None else list(ConsumerList.decode(body).consumer_ids)) == self.ids(group)
            if self.ids(group):
                assert self.told[group] == self.ids(group)


RegistryAgainstTable.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestRegistryAgainstTable = RegistryAgainstTable.TestCase


class ProducersAgainstTable(Table):
    """A client id reaches a connection of that client."""

    @rule(connection=CONNECTIONS, client=CLIENTS, groups=st.sets(GROUPS))
    def heartbeat(self, connection: str, client: str, groups: set[str]) -> None:
        data = HeartbeatData(client, producers=[ProducerData(group) for group in sorted(groups)])
        self.registry.heartbeat(self.now, connection, data, "JAVA", 409)
        self.table |= {(group, connection): (client, self.now) for group in groups}

    @rule(connection=CONNECTIONS, client=CLIENTS, group=GROUPS)
    def unregister(self, connection: str, client: str, group: str) -> None:
        self.registry.unregister(connection, client, group, None)
        if self.table.get((group, connection), ("", 0.0))[0] == client:
            del self.table[group, connection]

    @invariant()
    def a_client_is_found_where_it_is(self) -> None:
        for client in ("one", "two"):
            at = {connection for (_, connection), (known, _) in self.table.items() if known == client}
            found = self.registry.producer(client)
            assert found in at if at else found is None


ProducersAgainstTable.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestProducersAgainstTable = ProducersAgainstTable.TestCase
