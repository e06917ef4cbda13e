"""Members that are kept out of a group: by which connections they are known."""

from __future__ import annotations

from mq.broker.net.clients import ClientRegistry
from mq.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData


def beat(registry: ClientRegistry[str], connection: str, client_id: str) -> None:
    consumers = [ConsumerData("g", [SubscriptionData("T")])]
    registry.heartbeat(0.0, connection, HeartbeatData(client_id=client_id, consumers=consumers), "JAVA", 409)


def keep_out(registry: ClientRegistry[str], client_id: str, until: float = 60.0) -> None:
    registry.remove_member("g", client_id, until=until, reason="", operator="")


def test_one_connection_may_name_two_removed_clients() -> None:
    registry: ClientRegistry[str] = ClientRegistry()
    for number, client_id in enumerate(("one", "two")):
        keep_out(registry, client_id, until=60.0 + number)
        beat(registry, "c1", client_id)
        registry.check_invariants()
    kept = registry.kept_out.at("c1", "g", 1.0)
    assert kept is not None
    assert kept.client_id == "two", "the connection is that of the client which it named last"
    assert [len(each.connections) for each in registry.kept_out.of_group("g", 1.0)] == [0, 1]
    registry.connection_closed("c1")
    registry.check_invariants()
    assert [each.client_id for each in registry.kept_out.expired(100.0)] == ["one", "two"]
    registry.check_invariants()


def test_connection_that_names_another_client_is_allowed() -> None:
    registry: ClientRegistry[str] = ClientRegistry()
    beat(registry, "c1", "one")
    keep_out(registry, "one")
    assert registry.kept_out.at("c1", "g", 1.0) is not None
    beat(registry, "c1", "two")
    assert registry.kept_out.at("c1", "g", 1.0) is None
    assert registry.consumer_ids("g") == ["two"]
    registry.check_invariants()


def test_connection_that_names_a_removed_client_leaves_the_group() -> None:
    registry: ClientRegistry[str] = ClientRegistry()
    keep_out(registry, "two")
    beat(registry, "c1", "one")
    beat(registry, "c1", "two")
    assert registry.consumer_ids("g") == []
    assert registry.connection_count == 0
    registry.check_invariants()
