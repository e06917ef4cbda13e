"""Who may consume, and by which subscription."""

from __future__ import annotations

from typing import Any

import pytest

from mq.broker.consume.subscriptions import Subscriptions, scanned_max
from mq.broker.limits import DEFAULT
from mq.broker.net.clients import ClientRegistry
from mq.broker.net.connection import ClientConnection
from mq.broker.net.consumer_group import BROADCASTING
from mq.broker.net.refusals import RequestRefused
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import GroupConfig, PutGroup
from mq.broker.state.metadata import Metadata
from mq.filter.subscription import Subscription, parse_subscription
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from mq.protocol.requests.pull import PullExt
from tests.support.broker_contexts import context_of


def pull(**given: Any) -> PullExt:
    fields: dict[str, Any] = {
        "consumer_group": "G",
        "topic": "T",
        "queue_id": 0,
        "queue_offset": 0,
        "max_messages": 1,
        "sys_flag": 0,
        "commit_offset": 0,
        "suspend_timeout_ms": 0,
        "sub_version": 0,
    }
    return PullExt(**fields | given)


class Home:
    """A registry with one member of group G, whose configuration is ``group``."""

    def __init__(self, *, message_model: str = "CLUSTERING", **group: Any) -> None:
        metadata = Metadata()
        metadata.apply(PutGroup(config=GroupConfig(name="G", **group), timestamp_ms=1))
        clients: ClientRegistry[Any] = ClientRegistry()
        consumer = ConsumerData(
            group="G", subscriptions=[SubscriptionData(topic="T", expression="A")], message_model=message_model
        )
        clients.heartbeat(0.0, "connection", HeartbeatData(client_id="c", consumers=[consumer]), "JAVA", 1)
        self.noted: list[str] = []
        self.asked: list[str] = []
        registry: ClientRegistry[ClientConnection] = clients
        self.subscriptions = Subscriptions(
            context_of(clock=lambda: 0.0, settings=BrokerSettings(), metadata=metadata, clients=registry),
            ensure_group=self.noted.append,
            refresh=lambda _, group: self.asked.append(group),
        )

    def of_pull(self, **given: Any) -> Subscription:
        connection: Any = "connection"
        return self.subscriptions.of_pull(connection, pull(**given))

    def refusal(self, **given: Any) -> ResponseCode | int:
        with pytest.raises(RequestRefused) as refused:
            self.of_pull(**given)
        assert refused.value.remark
        return refused.value.code


def test_pull_uses_its_own_subscription_before_that_of_the_group() -> None:
    home = Home()
    assert home.of_pull().tags == {"A"}
    assert home.of_pull(sys_flag=4, subscription="B").tags == {"B"}
    assert home.of_pull(sys_flag=4).all_tags
    assert home.noted == []


def test_pull_creates_an_unknown_group() -> None:
    home = Home()
    home.of_pull(consumer_group="New", sys_flag=4)
    assert home.noted == ["New"]


def test_pull_without_subscription_is_refused() -> None:
    home = Home()
    assert home.refusal(topic="U") == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert home.refusal(consumer_group="H") == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert home.asked == []
    assert home.refusal(sub_version=1) == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert home.asked == ["G"]


def test_disabled_group_may_not_consume() -> None:
    home = Home(consume_enable=False)
    assert home.refusal() == ResponseCode.NO_PERMISSION
    assert home.refusal(sys_flag=4) == ResponseCode.NO_PERMISSION


def test_group_without_broadcast_permission_may_not_broadcast() -> None:
    assert Home(consume_broadcast_enable=False).of_pull()
    assert Home(message_model=BROADCASTING).of_pull()
    home = Home(consume_broadcast_enable=False, message_model=BROADCASTING)
    assert home.refusal() == ResponseCode.NO_PERMISSION


def test_longer_expressions_are_applied_to_fewer_messages_at_once() -> None:
    assert scanned_max(parse_subscription("T", "a || b", "TAG"), DEFAULT.consume) == 800
    assert scanned_max(parse_subscription("T", "n = 1", "SQL92"), DEFAULT.consume) == 800
    assert scanned_max(parse_subscription("T", " OR ".join(["n = 1000"] * 200), "SQL92"), DEFAULT.consume) == 41
    assert scanned_max(parse_subscription("T", "n = 1" + " " * 16_000 + "OR n = 2", "SQL92"), DEFAULT.consume) == 6
