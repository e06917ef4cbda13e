"""What a name server remembers, with a clock that we turn."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mq.namesrv.route_table import (
    FILTER_SERVERS_MAX,
    NAME_LENGTH_MAX,
    UNIT_FLAG,
    UNIT_SUBSCRIBED_FLAG,
    BrokerId,
    NameTooLong,
    RouteTable,
    TableFull,
    TableLimits,
)
from mq.protocol.requests.namesrv import QueueData
from mq.protocol.requests.registration import RegisterBrokerBody
from mq.protocol.requests.topics import DataVersion, TopicConfig

A, B, C = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"


def broker(broker_id: int, address: str, group: str = "b-a", cluster: str = "c1") -> BrokerId:
    return BrokerId(cluster=cluster, group=group, broker_id=broker_id, address=address)


def topics(*names: str, counter: int = 1, term: int = 0, queues: int = 4, perm: int = 6) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        topics={name: TopicConfig(name, queues, queues, perm) for name in names},
        data_version=DataVersion(counter, 0, term),
    )


def addresses(table: RouteTable, group: str = "b-a") -> dict[int, str]:
    known = table.cluster_info().brokers.get(group)
    return {} if known is None else known.broker_addrs


def queues(table: RouteTable, topic: str) -> dict[str, int]:
    route = table.route(topic)
    return {} if route is None else {data.broker_name: data.write_queue_nums for data in route.queue_datas}


@pytest.fixture
def table() -> RouteTable:
    return RouteTable()


def test_route_has_queues_and_all_brokers_of_the_group(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A), topics("T1", "T2"), "conn-a")
    table.register_broker(0, broker(1, B), topics("T1", "T2"), "conn-b")
    table.register_broker(0, broker(0, C, group="b-b"), topics("T2"), "conn-c")

    route = table.route("T2")

    assert route is not None
    assert [(each.broker_name, each.read_queue_nums, each.perm) for each in route.queue_datas] == [
        ("b-a", 4, 6),
        ("b-b", 4, 6),
    ]
    assert [(each.broker_name, each.cluster, each.broker_addrs) for each in route.broker_datas] == [
        ("b-a", "c1", {0: A, 1: B}),
        ("b-b", "c1", {0: C}),
    ]
    assert queues(table, "T1") == {"b-a": 4}
    assert table.route("T3") is None
    assert table.topic_list() == ["T1", "T2"]
    assert table.cluster_info().clusters == {"c1": ["b-a", "b-b"]}


def test_only_leaders_register_topics(table: RouteTable) -> None:
    table.register_broker(0, broker(1, B), topics("T1"), "conn-b")
    assert table.route("T1") is None
    assert addresses(table) == {1: B}
    table.register_broker(0, broker(0, A), topics("T2"), "conn-a")
    assert table.topic_list() == ["T2"]


def test_topics_count_when_their_version_differs(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A), topics("T1"), "conn")
    table.register_broker(1, broker(0, A), topics("T1", "T2"), "conn")
    assert table.topic_list() == ["T1"], "the same version was not looked at"
    table.register_broker(2, broker(0, A), topics("T2", counter=2), "conn")
    assert table.topic_list() == ["T1", "T2"], "a registration may name one changed topic alone"
    table.register_broker(3, broker(0, A), topics("T1", counter=3, queues=8), "conn")
    assert queues(table, "T1") == {"b-a": 8}


def test_topics_of_a_new_leader_replace_its_follower_report(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A), topics("T1"), "conn-a")
    table.register_broker(0, broker(1, B), topics("T1", "T2", counter=2), "conn-b")
    table.connection_closed("conn-a")
    table.register_broker(1, broker(0, B), topics("T1", "T2", counter=2), "conn-b")
    assert table.topic_list() == ["T1", "T2"]


def test_route_follows_a_broker_takeover(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A), topics("T1", term=1), "conn-a")
    table.register_broker(0, broker(1, B), topics("T1", term=1), "conn-b")

    table.register_broker(1, broker(0, B), topics("T1", term=2), "conn-b")

    assert addresses(table) == {0: B}
    table.register_broker(2, broker(2, A), topics("T1", term=2), "conn-a")
    assert addresses(table) == {0: B, 2: A}


def test_deposed_leader_is_ignored(table: RouteTable) -> None:
    table.register_broker(0, broker(0, B), topics("T1", term=2), "conn-b")

    late = table.register_broker(1, broker(0, A), topics("T1", "T9", term=1, counter=9), "conn-a")

    assert not late.accepted
    assert addresses(table) == {0: B}
    assert table.topic_list() == ["T1"]


def test_leaving_deposed_leader_removes_no_entry_of_its_successor(table: RouteTable) -> None:
    """Its entry belongs to somebody else by now, whether it says goodbye, is cut off or falls silent."""
    table.register_broker(0, broker(0, A), topics("T1", term=1), "conn-a")
    table.register_broker(1, broker(0, B), topics("T1", term=2), "conn-b")
    assert table.unregister_broker(broker(0, A)) is None
    assert table.connection_closed("conn-a") == []
    assert table.expire(120.5) == []
    assert addresses(table) == {0: B}
    assert queues(table, "T1") == {"b-a": 4}


def test_followers_get_the_leader_address_on_registration(table: RouteTable) -> None:
    assert table.register_broker(0, broker(1, B), topics(), "conn-b").leader_address is None
    assert table.register_broker(0, broker(0, A), topics(), "conn-a", ha_address="10.0.0.1:2").leader_address is None
    told = table.register_broker(0, broker(1, B), topics(), "conn-b")
    assert (told.leader_address, told.leader_ha_address) == (A, "10.0.0.1:2")


def test_silent_brokers_expire() -> None:
    table = RouteTable(expiry_seconds=120)
    table.register_broker(0, broker(0, A), topics("T1"), "conn-a")
    table.register_broker(60, broker(1, B), topics("T1"), "conn-b")
    assert table.expire(120) == []
    assert table.expire(121) == [broker(0, A)]
    assert addresses(table) == {1: B}
    assert queues(table, "T1") == {"b-a": 4}, "readers may still ask the follower"
    assert table.expire(181) == [broker(1, B)]
    assert table.route("T1") is None
    assert table.topic_list() == []
    assert table.cluster_info().clusters == {}


def test_broker_may_ask_for_another_expiry() -> None:
    table = RouteTable(expiry_seconds=120)
    table.register_broker(0, broker(0, A), topics("T1"), "conn-a", expiry_seconds=10)
    assert table.expire(11) == [broker(0, A)]


def test_closed_connection_removes_its_brokers_at_once(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A), topics("T1"), "conn-1")
    table.register_broker(0, broker(0, B, group="b-b"), topics("T1"), "conn-2")
    assert table.connection_closed("conn-1") == [broker(0, A)]
    assert queues(table, "T1") == {"b-b": 4}


def test_old_connection_that_closes_does_not_remove_a_reconnected_broker(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A), topics("T1"), "old")
    table.register_broker(1, broker(0, A), topics("T1"), "new")
    assert table.connection_closed("old") == []
    assert queues(table, "T1") == {"b-a": 4}


def test_unregistering_a_broker_removes_its_routes(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A), topics("T1"), "conn")
    table.register_broker(0, broker(1, B), topics("T1"), "conn-b")
    assert table.unregister_broker(broker(0, A)) == "conn"
    assert table.unregister_broker(broker(0, A)) is None
    assert addresses(table) == {1: B}
    assert table.unregister_broker(broker(1, B)) == "conn-b"
    assert table.topic_list() == []


@pytest.mark.parametrize("order", [(A, B, C), (C, B, A), (B, A, C), (A,), (B, C)])
def test_unregistered_group_is_whole_after_its_next_registrations(order: tuple[str, ...]) -> None:
    """All versions are those of before."""
    table, members = RouteTable(), {A: 0, B: 1, C: 2}
    for _ in range(3):
        for again in (order, tuple(reversed(order))):
            for address, number in members.items():
                table.register_broker(0, broker(number, address), topics("T1", "T2"), address, whole=True)
            assert addresses(table) == {0: A, 1: B, 2: C}
            assert table.topic_list() == ["T1", "T2"]
            for address in order:
                table.unregister_broker(broker(members[address], address))
            for address in again:
                table.register_broker(0, broker(members[address], address), topics("T1", "T2"), address, whole=True)
            assert addresses(table) == {0: A, 1: B, 2: C}
            assert table.topic_list() == ["T1", "T2"]


def test_whole_registration_restores_missing_topics(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A), topics("T1", "T2"), "conn", whole=True)
    table.wipe_write_perm("b-a")
    table.delete_topic("T1")
    table.register_broker(0, broker(0, A), topics("T1", "T2"), "conn")
    assert table.topic_list() == ["T2"]
    table.register_broker(0, broker(0, A), topics("T1", "T2"), "conn", whole=True)
    assert table.topic_list() == ["T1", "T2"]
    route = table.route("T2")
    assert route is not None
    assert route.queue_datas[0].perm == 4, "what is there stays as it is"


def test_address_is_in_one_group(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A, group="old"), topics("T1"), "conn")
    table.register_broker(1, broker(0, A, group="new"), topics("T1"), "conn")
    assert queues(table, "T1") == {"new": 4}
    assert addresses(table, "old") == {}


def test_data_version_query_reports_changes() -> None:
    table = RouteTable(expiry_seconds=120)
    assert table.query_data_version(0, broker(0, A), DataVersion(1)) == (True, None)
    table.register_broker(0, broker(0, A), topics("T1", counter=1), "conn")
    assert table.query_data_version(100, broker(0, A), DataVersion(1)) == (False, DataVersion(1))
    assert table.expire(200) == [], "an unchanged version counts as a sign of life"
    assert table.query_data_version(200, broker(0, A), DataVersion(2)) == (True, DataVersion(1))
    assert table.expire(221) == [broker(0, A)], "a changed one does not: the broker will register"


def test_write_permission_of_broker_can_be_withdrawn(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A), topics("T1", perm=7), "conn")
    table.register_broker(0, broker(0, B, group="b-b"), topics("T1"), "conn")

    def perms() -> dict[str, int]:
        route = table.route("T1")
        assert route is not None
        return {data.broker_name: data.perm for data in route.queue_datas}

    assert table.wipe_write_perm("b-a") == 1
    assert perms() == {"b-a": 5, "b-b": 6}
    assert table.add_write_perm("b-a") == 1
    assert perms() == {"b-a": 6, "b-b": 6}
    assert table.wipe_write_perm("nobody") == 0


def test_deleting_a_topic_removes_its_routes(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A), topics("T1", "T2"), "conn")
    table.register_broker(0, broker(0, B, group="b-b", cluster="c2"), topics("T1", "T2"), "conn")
    assert table.topic_list(cluster="c2") == ["T1", "T2"]
    table.delete_topic("T1", "c2")
    assert queues(table, "T1") == {"b-a": 4}
    assert table.topic_list(cluster="c2") == ["T2"]
    table.delete_topic("T1")
    table.delete_topic("T1")
    assert table.topic_list() == ["T2"]


def test_route_lists_filter_servers(table: RouteTable) -> None:
    body = topics("T1")
    body.filter_servers = ["10.0.0.1:30000"]
    table.register_broker(0, broker(0, A), body, "conn")
    table.register_broker(0, broker(1, B), topics("T1"), "conn")
    route = table.route("T1")
    assert route is not None
    assert route.filter_servers == {A: ["10.0.0.1:30000"]}


def test_whole_registration_removes_unlisted_topics(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A), topics("T1", "T2"), "conn")
    table.register_broker(0, broker(0, B, group="b-b"), topics("T1"), "conn")
    table.register_broker(0, broker(0, A), topics("T3", counter=2), "conn")
    assert table.topic_list() == ["T1", "T2", "T3"], "a broker may register a changed topic alone"
    table.register_broker(0, broker(0, A), topics("T3", counter=3), "conn", whole=True)
    assert table.topic_list() == ["T1", "T3"]
    assert queues(table, "T1") == {"b-b": 4}


def test_wiped_permissions_last_until_the_topics_change(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A), topics("T1"), "conn")
    for counter, perm in ((1, 4), (2, 6)):
        assert table.wipe_write_perm("b-a") == 1
        table.register_broker(0, broker(0, A), topics("T1", counter=counter), "conn")
        route = table.route("T1")
        assert route is not None
        assert route.queue_datas[0].perm == perm


def test_topics_by_flags_of_units(table: RouteTable) -> None:
    body = RegisterBrokerBody(
        topics={f"T{flags}": TopicConfig(f"T{flags}", topic_sys_flag=flags) for flags in range(4)},
        data_version=DataVersion(1),
    )
    table.register_broker(0, broker(0, A), body, "conn")
    assert table.topics_with(flag=UNIT_FLAG) == ["T1", "T3"]
    assert table.topics_with(flag=UNIT_SUBSCRIBED_FLAG) == ["T2", "T3"]
    assert table.topics_with(flag=UNIT_SUBSCRIBED_FLAG, without=UNIT_FLAG) == ["T2"]


def test_topic_is_registered_for_known_groups_only() -> None:
    table = RouteTable(limits=TableLimits(topics_max=1))
    table.register_broker(0, broker(0, A), topics(), "conn")
    table.register_topic("T", [QueueData("b-x", 4, 4, 6)])
    assert table.topic_list() == []
    table.register_topic("T", [QueueData("b-x", 4, 4, 6), QueueData("b-a", 3, 3, 6)])
    assert queues(table, "T") == {"b-a": 3}
    with pytest.raises(TableFull, match="1 topics"):
        table.register_topic("U", [QueueData("b-a", 3, 3, 6)])


def test_heartbeat_keeps_a_broker_that_registered() -> None:
    table = RouteTable(expiry_seconds=10)
    table.register_broker(0, broker(0, A), topics("T"), "conn")
    table.heartbeat(9, A)
    table.heartbeat(9, B)
    assert table.expire(18) == []
    table.heartbeat(18, A, 100)
    assert table.expire(100) == []
    assert [each.address for each in table.expire(119)] == [A]


def test_members_of_a_group_are_returned(table: RouteTable) -> None:
    table.register_broker(0, broker(0, A), topics(), "conn")
    table.register_broker(0, broker(1, B), topics(), "conn")
    assert table.member_group("c1", "b-a").broker_addrs == {0: A, 1: B}
    assert table.member_group("c2", "b-a").broker_addrs == {}
    assert table.member_group("c1", "b-b").broker_addrs == {}


def test_route_table_refuses_entries_beyond_its_limits() -> None:
    limits = TableLimits(broker_groups_max=2, brokers_per_group_max=2, topics_max=3)
    table = RouteTable(limits=limits)
    table.register_broker(0, broker(0, A), topics("T1", "T2"), "conn")
    with pytest.raises(TableFull, match="3 topics"):
        table.register_broker(0, broker(0, B, group="b-b"), topics("T3", "T4"), "conn")
    assert addresses(table, "b-b") == {}, "what is refused leaves no trace"
    table.register_broker(0, broker(0, B, group="b-b"), topics("T3"), "conn")
    with pytest.raises(TableFull, match="2 broker groups"):
        table.register_broker(0, broker(0, C, group="b-c"), topics(), "conn")
    table.register_broker(0, broker(1, C), topics(), "conn")
    with pytest.raises(TableFull, match="2 brokers in group b-a"):
        table.register_broker(0, broker(2, "10.0.0.4:1"), topics(), "conn")
    table.register_broker(0, broker(1, "10.0.0.4:1"), topics(), "conn")


def test_topics_of_all_groups_and_brokers_are_bounded() -> None:
    table = RouteTable(limits=TableLimits(brokers_max=2, routes_max=4))
    table.register_broker(0, broker(0, A), topics("T1", "T2"), "conn")
    with pytest.raises(TableFull, match="4 topics of broker groups"):
        table.register_broker(0, broker(0, B, group="b-b"), topics("T1", "T2", "T3"), "conn")
    assert table.cluster_info().brokers.keys() == {"b-a"}, "what is refused leaves no trace"
    table.register_broker(0, broker(0, B, group="b-b"), topics("T1", "T2"), "conn")
    with pytest.raises(TableFull, match="4 topics of broker groups"):
        table.register_topic("T3", [QueueData("b-a", 1, 1, 6)])
    table.register_topic("T2", [QueueData("b-a", 1, 1, 6)])  # known already
    with pytest.raises(TableFull, match="2 brokers"):
        table.register_broker(0, broker(1, C), topics(), "conn")
    table.register_broker(0, broker(0, B, group="b-b"), topics("T1", "T2"), "conn")
    table.delete_topic("T1")
    table.register_topic("T3", [QueueData("b-a", 1, 1, 6), QueueData("b-b", 1, 1, 6)])


LONG = "x" * (NAME_LENGTH_MAX + 1)


@pytest.mark.parametrize(
    ("who", "body", "ha_address"),
    [
        (broker(0, LONG), topics(), ""),
        (broker(0, A, group=LONG), topics(), ""),
        (broker(0, A, cluster=LONG), topics(), ""),
        (broker(0, A), topics("T", LONG), ""),
        (broker(1, A), topics("T", LONG), ""),
        (broker(0, A), topics(), LONG),
        (broker(0, A), RegisterBrokerBody(filter_servers=[LONG]), ""),
    ],
)
def test_unknown_names_are_refused(who: BrokerId, body: RegisterBrokerBody, ha_address: str, table: RouteTable) -> None:
    with pytest.raises(NameTooLong, match=f"{NAME_LENGTH_MAX + 1} characters"):
        table.register_broker(0, who, body, "conn", ha_address=ha_address)
    assert table.cluster_info().brokers == {}


def test_broker_has_few_filter_servers(table: RouteTable) -> None:
    most = [A] * FILTER_SERVERS_MAX
    table.register_broker(0, broker(0, A), RegisterBrokerBody(filter_servers=most), "conn")
    with pytest.raises(TableFull, match="filter servers"):
        table.register_broker(0, broker(0, A), RegisterBrokerBody(filter_servers=[*most, A]), "conn")


class RouteTableMachine(RuleBasedStateMachine):
    """Whatever brokers do, who is listed lives, and topics lead somewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(expiry_seconds=10)
        self.now = 0.0
        self.seen: dict[str, float] = {}

    @rule(
        broker_id=st.integers(0, 2),
        address=st.sampled_from([A, B, C]),
        group=st.sampled_from(["b-a", "b-b"]),
        names=st.sets(st.sampled_from(["T1", "T2", "T3"])),
        term=st.integers(0, 3),
        connection=st.integers(0, 2),
    )
    def register(self, broker_id: int, address: str, group: str, names: set[str], term: int, connection: int) -> None:
        body = topics(*names, term=term, counter=len(names))
        if self.table.register_broker(self.now, broker(broker_id, address, group), body, connection).accepted:
            self.seen[address] = self.now
            assert addresses(self.table, group)[broker_id] == address

    @rule(address=st.sampled_from([A, B, C]))
    def unregister(self, address: str) -> None:
        self.table.unregister_broker(broker(0, address))
        self.seen.pop(address, None)

    @rule(connection=st.integers(0, 2))
    def close(self, connection: int) -> None:
        for gone in self.table.connection_closed(connection):
            del self.seen[gone.address]

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for gone in self.table.expire(self.now):
            assert self.now - self.seen.pop(gone.address) > 10

    @invariant()
    def listed_brokers_live_in_one_place(self) -> None:
        info = self.table.cluster_info()
        listed = [address for data in info.brokers.values() for address in data.broker_addrs.values()]
        assert len(listed) == len(set(listed))
        assert all(self.now - self.seen[address] <= 10 for address in listed)
        assert all(data.broker_addrs for data in info.brokers.values())
        assert sorted(info.brokers) == sorted(name for names in info.clusters.values() for name in names)

    @invariant()
    def routes_are_counted(self) -> None:
        assert self.table._routes == sum(map(len, self.table._topics.values()))

    @invariant()
    def topics_lead_somewhere(self) -> None:
        for topic in self.table.topic_list():
            route = self.table.route(topic)
            assert route is not None
            names = [data.broker_name for data in route.queue_datas]
            assert names == [data.broker_name for data in route.broker_datas]
            assert names


TestRouteTable = RouteTableMachine.TestCase
TestRouteTable.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, derandomize=True)
