"""Where topics were created: kept while a topic can come back, and only at the level that older replicas know."""

from __future__ import annotations

import pytest

from mq.broker.state.commands import DeleteTopic, PutTopic, RestoreTopic, TopicConfig
from mq.broker.state.format_level import LEVEL_OF_TOPIC_BIRTHS, RaiseLevel
from mq.broker.state.metadata import Metadata
from mq.broker.state.table import SnapshotDamaged
from mq.broker.state.topic_births import TopicBirths
from mq.protocol.numbers import PhysicalOffset

PUT = PutTopic(config=TopicConfig(name="T", read_queues=1, write_queues=1), timestamp_ms=1)


def at_level(level: int) -> Metadata:
    metadata = Metadata()
    metadata.apply(RaiseLevel(level=level, timestamp_ms=1))
    return metadata


def put(metadata: Metadata, position: int) -> int:
    metadata.apply(PUT, position=PhysicalOffset(position))
    metadata.check_invariants()
    return metadata.births.of("T")


def delete(metadata: Metadata, *, restorable: bool) -> int:
    metadata.apply(DeleteTopic(name="T", timestamp_ms=2, continued=True, restorable=restorable))
    metadata.check_invariants()
    return metadata.births.of("T")


def test_below_the_level_nothing_is_written() -> None:
    metadata = at_level(LEVEL_OF_TOPIC_BIRTHS - 1)
    assert put(metadata, 500) == 0
    assert b"births" not in metadata.snapshot()


def test_changed_topic_keeps_its_position() -> None:
    metadata = at_level(LEVEL_OF_TOPIC_BIRTHS)
    assert put(metadata, 500) == 500
    metadata.apply(PutTopic(config=TopicConfig(name="T", read_queues=2, write_queues=2), timestamp_ms=1))
    assert metadata.births.of("T") == 500


def test_restored_topic_keeps_its_position() -> None:
    metadata = at_level(LEVEL_OF_TOPIC_BIRTHS)
    put(metadata, 500)
    assert delete(metadata, restorable=True) == 500
    metadata.apply(RestoreTopic(name="T", timestamp_ms=3), position=PhysicalOffset(900))
    metadata.check_invariants()
    assert metadata.births.of("T") == 500
    assert delete(metadata, restorable=True) == 500
    assert put(metadata, 1000) == 1000
    assert delete(metadata, restorable=False) == 0


def test_snapshot_keeps_topic_births() -> None:
    metadata, restored = at_level(LEVEL_OF_TOPIC_BIRTHS), Metadata()
    put(metadata, 500)
    restored.restore(metadata.snapshot())
    assert restored.births.of("T") == 500
    assert restored.snapshot() == metadata.snapshot()
    with pytest.raises(SnapshotDamaged):
        TopicBirths().restore([("T", -1)])
