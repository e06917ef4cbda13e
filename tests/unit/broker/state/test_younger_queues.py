"""Queues that were added after a group had offsets in their topic."""

from __future__ import annotations

import pytest

from mq.broker.state.commands import CommitOffsets, DeleteGroup, DeleteTopic, PutTopic, ResetOffset, TopicConfig
from mq.broker.state.format_level import LEVEL_OF_YOUNGER_QUEUES, RaiseLevel
from mq.broker.state.metadata import Metadata
from mq.protocol.numbers import QueueOffset


def put(read_queues: int, write_queues: int | None = None) -> PutTopic:
    write_queues = read_queues if write_queues is None else write_queues
    config = TopicConfig(name="T", read_queues=read_queues, write_queues=write_queues)
    return PutTopic(config=config, timestamp_ms=1)


def younger(metadata: Metadata, group: str = "G", queues: int = 10) -> list[int]:
    return [queue_id for queue_id in range(queues) if metadata.younger_queues.has(group, "T", queue_id)]


@pytest.fixture
def metadata() -> Metadata:
    metadata = Metadata()
    metadata.apply(RaiseLevel(level=LEVEL_OF_YOUNGER_QUEUES, timestamp_ms=1))
    metadata.apply(put(4))
    metadata.apply(CommitOffsets(offsets=[("G", "T", 0, QueueOffset(7))]))
    return metadata


def test_added_queues_are_younger_than_groups_with_offsets(metadata: Metadata) -> None:
    assert younger(metadata) == []
    metadata.apply(put(6))
    metadata.apply(CommitOffsets(offsets=[("New", "T", 0, QueueOffset(7))]))
    assert younger(metadata) == [4, 5, 6, 7, 8, 9]
    assert younger(metadata, "New") == []
    metadata.apply(put(8))
    assert younger(metadata) == [4, 5, 6, 7, 8, 9]
    assert younger(metadata, "New") == [6, 7, 8, 9]


@pytest.mark.parametrize("config", [put(2), put(4, 2), put(4, 4), put(2, 4)])
def test_existing_queues_are_not_younger(metadata: Metadata, config: PutTopic) -> None:
    metadata.apply(config)
    assert younger(metadata) == []


def test_write_only_queue_is_reported_as_added(metadata: Metadata) -> None:
    metadata.apply(put(4, 5))
    assert younger(metadata, queues=5) == [4]


def test_younger_queues_survive_a_snapshot(metadata: Metadata) -> None:
    metadata.apply(put(6))
    restored = Metadata()
    restored.restore(metadata.snapshot())
    assert younger(restored) == younger(metadata) != []
    assert restored.snapshot() == metadata.snapshot()


def test_group_with_removed_offsets_is_new(metadata: Metadata) -> None:
    metadata.apply(put(6))
    metadata.apply(DeleteGroup(name="G", timestamp_ms=1))
    assert younger(metadata) != []
    metadata.apply(DeleteGroup(name="G", timestamp_ms=1, remove_offsets=True))
    assert younger(metadata) == []


def test_deleting_a_topic_also_removes_its_younger_queues(metadata: Metadata) -> None:
    metadata.apply(put(6))
    metadata.apply(DeleteTopic(name="T", timestamp_ms=1))
    metadata.apply(put(6))
    metadata.apply(ResetOffset(group="G", topic="T", queue_id=0, offset=QueueOffset(0)))
    assert younger(metadata) == []


def test_older_format_level_records_no_younger_queues() -> None:
    metadata = Metadata()
    metadata.apply(put(4))
    metadata.apply(CommitOffsets(offsets=[("G", "T", 0, QueueOffset(7))]))
    before = metadata.younger_queues.capture()()
    metadata.apply(put(6))
    assert metadata.younger_queues.capture()() == before is None
