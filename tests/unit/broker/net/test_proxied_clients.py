"""Clients of proxies as members of groups, and members that are kept out of a group."""

from __future__ import annotations

from dataclasses import replace

from mq.accounts import Permission
from mq.broker.access.needs import ROWS, is_of_consumers
from mq.broker.net.clients import ROUND_CALLS, ClientRegistry
from mq.broker.net.heartbeat_limits import HeartbeatLimits
from mq.protocol.requests.clients import (
    ClientBehindProxy,
    ConsumerData,
    HeartBeat,
    HeartbeatData,
    HeartbeatOfProxy,
    ProducerData,
    SubscriptionData,
)


def client(client_id: str, group: str = "g", *topics: str, expression: str = "*") -> ClientBehindProxy:
    return ClientBehindProxy(
        client_id, group, "192.0.2.7:1", subscriptions=[(each, expression, "TAG") for each in topics]
    )


def beat(registry: ClientRegistry[str], proxy: str, *behind: ClientBehindProxy, now: float = 0.0) -> None:
    told = HeartbeatOfProxy(client_id=proxy, producers=[ProducerData("p")], proxied_clients=list(behind))
    registry.heartbeat(now, proxy, HeartbeatOfProxy.decode(told.encode()), "PYTHON", 409)
    registry.check_invariants()


def members(registry: ClientRegistry[str], group: str = "g") -> list[tuple[str, str]]:
    return [(at, each.client_id) for at, each in registry.proxied_clients.members(group)]


def test_heartbeat_replaces_the_clients_of_its_proxy_only() -> None:
    registry: ClientRegistry[str] = ClientRegistry()
    beat(registry, "p1", client("a"), client("b"), client("a", "other", "T"))
    beat(registry, "p2", client("b"))
    assert members(registry) == [("p1", "a"), ("p1", "b"), ("p2", "b")]
    assert registry.proxied_clients.connection("g", "b") == "p2"  # it has gone over to the other proxy
    assert registry.proxied_clients.groups_of_topic("T") == ["other"]
    beat(registry, "p1", client("c"))
    assert members(registry) == [("p2", "b"), ("p1", "c")]
    assert dict(registry.proxied_clients.counts()) == {"g": 2}
    assert registry.connection_closed("p2") == []
    assert members(registry) == [("p1", "c")]
    beat(registry, "p1")
    assert members(registry) == []


def test_only_clients_of_a_silent_proxy_are_removed() -> None:
    limits = HeartbeatLimits(expiry_seconds=120.0)
    registry: ClientRegistry[str] = ClientRegistry(limits)
    beat(registry, "p1", client("a"))
    beat(registry, "p2", client("b"))
    beat(registry, "p2", client("b"), now=100.0)  # nothing new, and heard all the same
    for _ in range(2 * ROUND_CALLS):
        registry.expire_some(130.0)
    assert members(registry) == [("p2", "b")]
    registry.check_invariants()


def test_heartbeat_parts_beyond_a_limit_are_dropped() -> None:
    limits = replace(HeartbeatLimits(), proxied_clients_max=3)
    registry: ClientRegistry[str] = ClientRegistry(limits)
    beat(
        registry,
        "p1",
        client("x" * 385),
        client(""),
        client("a", "no group name"),
        client("b", "g", "T", expression="t" * 5000),
        client("same"),
        client("same"),
        client("c"),
    )
    assert members(registry) == [("p1", "same"), ("p1", "c")]
    beat(registry, "p2", client("d"), client("e"))
    assert members(registry) == [("p1", "same"), ("p1", "c"), ("p2", "d")]
    assert registry.producers("p") == ["p1", "p2"]


def test_proxied_clients_are_not_members_that_share_queues() -> None:
    registry: ClientRegistry[str] = ClientRegistry()
    beat(registry, "p1", client("a"))
    assert registry.consumer_ids("g") == []
    assert registry.consumer_group("g") is None


def test_users_but_not_proxies_need_permissions_for_named_clients() -> None:
    request = HeartBeat()
    body = HeartbeatOfProxy("p1", proxied_clients=[client("a", "g", "T")]).encode()
    row = ROWS[HeartBeat]
    assert callable(row)
    assert list(row(request, body)) == [("%RETRY%g", Permission.SUB), ("T", Permission.SUB)]
    assert not is_of_consumers(request, body)


def test_older_brokers_read_the_heartbeat_of_a_proxy() -> None:
    body = HeartbeatOfProxy("p1", producers=[ProducerData("p")], proxied_clients=[client("a")]).encode()
    assert HeartbeatData.decode(body) == HeartbeatData("p1", consumers=[], producers=[ProducerData("p")])


def kept_out_beat(registry: ClientRegistry[str], connection: str, client_id: str) -> None:
    consumers = [ConsumerData("g", [SubscriptionData("T")])]
    registry.heartbeat(0.0, connection, HeartbeatData(client_id=client_id, consumers=consumers), "JAVA", 409)


def keep_out(registry: ClientRegistry[str], client_id: str, until: float = 60.0) -> None:
    registry.remove_member("g", client_id, until=until, reason="", operator="")


def test_one_connection_may_name_two_removed_clients() -> None:
    registry: ClientRegistry[str] = ClientRegistry()
    for number, client_id in enumerate(("one", "two")):
        keep_out(registry, client_id, until=60.0 + number)
        kept_out_beat(registry, "c1", client_id)
        registry.check_invariants()
    kept = registry.removed_members.at("c1", "g", 1.0)
    assert kept is not None
    assert kept.client_id == "two", "the connection is that of the client which it named last"
    assert [len(each.connections) for each in registry.removed_members.of_group("g", 1.0)] == [0, 1]
    registry.connection_closed("c1")
    registry.check_invariants()
    assert [each.client_id for each in registry.removed_members.take_expired(100.0)] == ["one", "two"]
    registry.check_invariants()


def test_connection_that_names_another_client_is_allowed() -> None:
    registry: ClientRegistry[str] = ClientRegistry()
    kept_out_beat(registry, "c1", "one")
    keep_out(registry, "one")
    assert registry.removed_members.at("c1", "g", 1.0) is not None
    kept_out_beat(registry, "c1", "two")
    assert registry.removed_members.at("c1", "g", 1.0) is None
    assert registry.consumer_ids("g") == ["two"]
    registry.check_invariants()


def test_connection_that_names_a_removed_client_leaves_the_group() -> None:
    registry: ClientRegistry[str] = ClientRegistry()
    keep_out(registry, "two")
    kept_out_beat(registry, "c1", "one")
    kept_out_beat(registry, "c1", "two")
    assert registry.consumer_ids("g") == []
    assert registry.connection_count == 0
    registry.check_invariants()
