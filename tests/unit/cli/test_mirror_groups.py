"""The consumer groups and topics that `raftmq mirror` creates at the target."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mq.cli.mirror.plan import NewTopic
from mq.cli.mirror.setup import AT_ONCE, create_groups, create_topic, create_topics
from mq.client import BrokerError, SubscriptionGroupConfig
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.topics import TopicConfig


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


async def test_group_is_created_without_attributes_that_the_target_refuses() -> None:
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


async def test_target_with_shorter_retention_gets_a_topic_without_its_time() -> None:
    target: Any = Topics()
    said: list[str] = []
    for name, attributes in (("T", {"reserve.time": "72", "owner": "billing"}), ("U", {"owner": "shop"})):
        await create_topic(target, NewTopic("broker-a", TopicConfig(name, attributes=attributes)), said.append)
    assert target.attributes == {"T": {"owner": "billing"}, "U": {"owner": "shop"}}
    assert said == ["topic T is mirrored without reserve.time: the log is kept for 1 hour"]


class OldTopics:
    """A target of an older release, which knows fewer attributes."""

    def __init__(self, *unknown: str) -> None:
        self.unknown = unknown
        self.attributes: dict[str, dict[str, str]] = {}

    async def create_topic(self, topic: str, *, attributes: dict[str, str], **given: Any) -> None:
        if unknown := sorted(attributes.keys() & set(self.unknown)):
            raise BrokerError(ResponseCode.VERSION_NOT_SUPPORTED, f"{unknown} not here", "127.0.0.1:1")
        self.attributes[topic] = attributes


@pytest.mark.parametrize(
    ("unknown", "said"),
    [
        (["reserve.bytes"], "topic T is mirrored without reserve.bytes: ['reserve.bytes'] not here"),
        (
            ["reserve.bytes", "quota.stored.bytes"],
            "topic T is mirrored without reserve.bytes and quota.stored.bytes: ['reserve.bytes'] not here",
        ),
    ],
)
async def test_target_without_some_limits_gets_a_topic_without_these(unknown: list[str], said: str) -> None:
    target: Any = OldTopics(*unknown)
    heard: list[str] = []
    limits = {"reserve.bytes": "1048576", "quota.stored.bytes": "9"}
    topic = NewTopic("broker-a", TopicConfig("T", attributes={**limits, "owner": "billing"}))
    assert await create_topics(target, [topic], heard.append) == {}
    assert target.attributes["T"] == {
        name: each for name, each in topic.config.attributes.items() if name not in unknown
    }
    assert heard[0] == said


async def test_refusal_that_no_limit_causes_ends_the_attempts() -> None:
    target: Any = OldTopics("owner")
    topic = NewTopic("broker-a", TopicConfig("T", attributes={"reserve.bytes": "1048576", "owner": "billing"}))
    with pytest.raises(BrokerError, match="owner"):
        await create_topic(target, topic, lambda _: None)


async def test_topic_the_target_cannot_compact_is_left_out_and_reported() -> None:
    target: Any = OldTopics("cleanup.policy")
    topics = [
        NewTopic("broker-a", TopicConfig("Prices", attributes={"cleanup.policy": "COMPACTION"})),
        NewTopic("broker-a", TopicConfig("Orders")),
    ]
    refused = await create_topics(target, topics, lambda _: None)
    assert list(target.attributes) == ["Orders"]
    assert list(refused) == ["Prices"]
    assert "['cleanup.policy'] not here" in refused["Prices"]
    assert "raftmq mirror --exclude Prices" in refused["Prices"]


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


async def test_many_topics_are_created_at_once(autojump_clock: MockClock) -> None:
    target: Any = SlowTopics()
    said: list[str] = []
    began = trio.current_time()
    await create_topics(target, topics(10 * AT_ONCE), said.append)
    assert trio.current_time() - began == pytest.approx(10)
    assert sorted(target.created) == [each.config.topic_name for each in topics(10 * AT_ONCE)]
    assert len(said) == 10 * AT_ONCE


async def test_mirror_stops_creating_topics_after_a_refusal(autojump_clock: MockClock) -> None:
    target: Any = SlowTopics(refused="T001")
    with pytest.raises(BrokerError, match="no room"):
        await create_topics(target, topics(10 * AT_ONCE), lambda _: None)
    assert len(target.begun) <= 2 * AT_ONCE
