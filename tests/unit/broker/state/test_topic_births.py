"""Where topics were created, and topics that a broker group creates by itself."""

from __future__ import annotations

import pytest

from mq.broker.state.commands import DeleteTopic, PutTopic, RestoreTopic, TopicConfig, decode_command
from mq.broker.state.format_level import LEVEL_OF_TOPIC_BIRTHS, RaiseLevel
from mq.broker.state.metadata import Metadata
from mq.broker.state.table import SnapshotDamaged
from mq.broker.state.topic_births import TopicBirths
from mq.broker.state.topic_rules import auto_create, missing_system_topics
from mq.protocol.numbers import PhysicalOffset
from mq.store.dispatch import META_TOPIC

PUT = PutTopic(config=TopicConfig(name="T", read_queues=1, write_queues=1), timestamp_ms=1)


def at_level(level: int) -> Metadata:
    metadata = Metadata()
    metadata.apply(RaiseLevel(level=level, timestamp_ms=1))
    return metadata


def put(metadata: Metadata, position: int) -> int:
    metadata.apply(PUT, position=PhysicalOffset(position))
    metadata.check_invariants()
    return metadata.births.get("T")


def delete(metadata: Metadata, *, restorable: bool) -> int:
    metadata.apply(DeleteTopic(name="T", timestamp_ms=2, continued=True, restorable=restorable))
    metadata.check_invariants()
    return metadata.births.get("T")


def test_below_the_level_nothing_is_written() -> None:
    metadata = at_level(LEVEL_OF_TOPIC_BIRTHS - 1)
    assert put(metadata, 500) == 0
    assert b"births" not in metadata.snapshot()


def test_changed_topic_keeps_its_position() -> None:
    metadata = at_level(LEVEL_OF_TOPIC_BIRTHS)
    assert put(metadata, 500) == 500
    metadata.apply(PutTopic(config=TopicConfig(name="T", read_queues=2, write_queues=2), timestamp_ms=1))
    assert metadata.births.get("T") == 500


def test_restored_topic_keeps_its_position() -> None:
    metadata = at_level(LEVEL_OF_TOPIC_BIRTHS)
    put(metadata, 500)
    assert delete(metadata, restorable=True) == 500
    metadata.apply(RestoreTopic(name="T", timestamp_ms=3), position=PhysicalOffset(900))
    metadata.check_invariants()
    assert metadata.births.get("T") == 500
    assert delete(metadata, restorable=True) == 500
    assert put(metadata, 1000) == 1000
    assert delete(metadata, restorable=False) == 0


def test_snapshot_keeps_topic_births() -> None:
    metadata, restored = at_level(LEVEL_OF_TOPIC_BIRTHS), Metadata()
    put(metadata, 500)
    restored.restore(metadata.snapshot())
    assert restored.births.get("T") == 500
    assert restored.snapshot() == metadata.snapshot()
    with pytest.raises(SnapshotDamaged):
        TopicBirths().restore([("T", -1)])


def topic(name: str, queues: int = 4, perm: int = 6) -> TopicConfig:
    return TopicConfig(name=name, read_queues=queues, write_queues=queues, perm=perm)


def metadata_with(*configs: TopicConfig) -> Metadata:
    metadata = Metadata()
    for config in configs:
        metadata.apply(PutTopic(config=config, timestamp_ms=1))
    return metadata


@pytest.mark.parametrize(
    ("template_queues", "asked", "created"), [(8, 4, 4), (8, 16, 8), (2, 4, 2), (8, 1, 1), (8, 0, None), (8, -3, None)]
)
def test_auto_create_takes_the_smaller_number_of_queues(template_queues: int, asked: int, created: int | None) -> None:
    metadata = metadata_with(topic("TBW102", template_queues, perm=7))
    command = auto_create(metadata, "new", "TBW102", asked, 77)
    expected = PutTopic(config=topic("new", created or 1, perm=6), timestamp_ms=77, unless_there=True)
    assert command == (None if created is None else expected)


@pytest.mark.parametrize(
    ("name", "template"),
    [("new", "missing"), ("new", "closed"), ("there", "TBW102"), ("a/b", "TBW102"), (META_TOPIC, "TBW102")],
)
def test_auto_create_refuses_unusable_names_and_templates(name: str, template: str) -> None:
    metadata = metadata_with(topic("TBW102", 8, perm=7), topic("closed", 8, perm=6), topic("there"))
    assert auto_create(metadata, name, template, 4, 77) is None


def test_auto_create_inherits_a_read_only_template_without_the_inherit_bit() -> None:
    metadata = metadata_with(topic("template", 8, perm=5))
    command = auto_create(metadata, "new", "template", 4, 77)
    assert command is not None
    assert command.config.perm == 4


def test_system_topics_are_created_once_and_marked() -> None:
    metadata = Metadata()
    for body in missing_system_topics(metadata, "DefaultCluster", "broker-a", 50):
        metadata.apply(decode_command(body))
    assert {name: (config.write_queues, config.perm) for name, config in metadata.topics.items()} == {
        "TBW102": (8, 7),
        "SELF_TEST_TOPIC": (1, 6),
        "BenchmarkTest": (1024, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "rmq_sys_wheel_timer": (1440, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "TRANS_CHECK_MAX_TIME_TOPIC": (1, 6),
        "DefaultCluster": (16, 7),
        "broker-a": (1, 7),
        "RMQ_SYS_TRACE_TOPIC": (1, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
    }
    assert metadata.system_topics == frozenset(metadata.topics)
    assert missing_system_topics(metadata, "DefaultCluster", "broker-a", 60) == []
    metadata.apply(PutTopic(config=topic("mine"), timestamp_ms=1))
    assert "mine" not in metadata.system_topics


def test_cluster_with_an_invalid_topic_name_gets_no_topic() -> None:
    names = [decode_command(body) for body in missing_system_topics(Metadata(), "my.cluster", "TBW102", 50)]
    made = [command.config.name for command in names if isinstance(command, PutTopic)]
    assert made[:3] == ["TBW102", "SELF_TEST_TOPIC", "BenchmarkTest"]
    assert "my.cluster" not in made
