"""The consumer groups and topics that `raftmq mirror` creates at the target."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from mq.cli.mirror.plan import NewTopic
from mq.cli.mirror.setup import AT_ONCE, create_groups, create_topic, create_topics
from mq.client import BrokerError, SubscriptionGroupConfig
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.topics import TopicConfig

pytestmark = pytest.mark.trio


class Cluster:
    """One broker group, which may be too old for attributes."""

    def __init__(self, *groups: SubscriptionGroupConfig, is_old: bool = False) -> None:
        self.groups = {group.group_name: group for group in groups}
        self.is_old = is_old

    async def consumer_groups(self) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        return {name: {"broker-a": group} for name, group in self.groups.items()}

    async def put_consumer_group(self, config: SubscriptionGroupConfig, *, cluster: str | None = None) -> None:
        if config.attributes and self.is_old:
            raise BrokerError(ResponseCode.VERSION_NOT_SUPPORTED, "upgrade all replicas first", "127.0.0.1:1")
        self.groups[config.group_name] = config


SOURCE = Cluster(
    SubscriptionGroupConfig(group_name="agents", attributes={"lite.bind.topic": "Sessions"}, retry_max_times=3),
    SubscriptionGroupConfig(group_name="usual"),
)


async def test_groups_keep_their_attributes() -> None:
    target, said = Cluster(), list[str]()
    await create_groups(SOURCE, target, said.append)
    assert target.groups["agents"].attributes == {"+lite.bind.topic": "Sessions"}
    assert said == ["created consumer group agents", "created consumer group usual"]
    await create_groups(SOURCE, target, said.append)
    assert len(said) == 2, "they are there"


async def test_a_group_is_created_without_attributes_if_the_target_refuses_them() -> None:
    target, said = Cluster(is_old=True), list[str]()
    await create_groups(SOURCE, target, said.append)
    assert (target.groups["agents"].attributes, target.groups["agents"].retry_max_times) == ({}, 3)
    assert said[0] == "created consumer group agents without its attributes: upgrade all replicas first"
    assert "usual" in target.groups


class Topics:
    """A target that keeps its log for an hour."""

    def __init__(self) -> None:
        self.attributes: dict[str, dict[str, str]] = {}

    async def create_topic(self, topic: str, *, attributes: dict[str, str], **given: Any) -> None:
        if "reserve.time" in attributes:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, "the log is kept for 1 hour", "127.0.0.1:1")
        self.attributes[topic] = attributes


async def test_a_target_that_keeps_less_gets_a_topic_without_its_retention_time() -> None:
    target: Any = Topics()
    said: list[str] = []
    for name, attributes in (("T", {"reserve.time": "72", "owner": "billing"}), ("U", {"owner": "shop"})):
        await create_topic(target, NewTopic("broker-a", TopicConfig(name, attributes=attributes)), said.append)
    assert target.attributes == {"T": {"owner": "billing"}, "U": {"owner": "shop"}}
    assert said == ["topic T is mirrored without reserve.time: the log is kept for 1 hour"]


class SlowTopics:
    """A target whose name servers know a topic a second after it was created; it refuses one."""

    def __init__(self, refused: str = "") -> None:
        self.begun: list[str] = []
        self.created: list[str] = []
        self.refused = refused
        self.visible_seconds = 1.0

    async def create_topic(self, topic: str, **given: Any) -> None:
        self.begun.append(topic)
        await trio.sleep(self.visible_seconds)
        if topic == self.refused:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "no room", "127.0.0.1:1")
        self.created.append(topic)


def topics(count: int) -> list[NewTopic]:
    return [NewTopic("broker-a", TopicConfig(f"T{number:03}")) for number in range(count)]


async def test_many_topics_are_created_at_once(autojump_clock: trio.testing.MockClock) -> None:
    target: Any = SlowTopics()
    said: list[str] = []
    began = trio.current_time()
    await create_topics(target, topics(10 * AT_ONCE), said.append)
    assert trio.current_time() - began == pytest.approx(10)
    assert sorted(target.created) == [each.config.topic_name for each in topics(10 * AT_ONCE)]
    assert len(said) == 10 * AT_ONCE


async def test_no_topic_is_begun_after_one_was_refused(autojump_clock: trio.testing.MockClock) -> None:
    target: Any = SlowTopics(refused="T001")
    with pytest.raises(BrokerError, match="no room"):
        await create_topics(target, topics(10 * AT_ONCE), lambda _: None)
    assert len(target.begun) <= 2 * AT_ONCE
