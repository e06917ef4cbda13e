"""Where the queues of a topic begin whose name was used before."""

from __future__ import annotations

import pytest

from mq.broker.limits import StateLimits
from mq.broker.state.commands import CommitOffsets, DeleteGroup, DeleteTopic, PutTopic, ResetOffset, TopicConfig
from mq.broker.state.former_topics import FormerTopic, FormerTopics
from mq.broker.state.metadata import Metadata
from mq.broker.state.table import SnapshotDamaged
from mq.protocol.numbers import QueueOffset
from mq.protocol.topic_identity import first_offset, topic_identity


def put(name: str = "T", queues: int = 2) -> PutTopic:
    return PutTopic(config=TopicConfig(name=name, read_queues=queues, write_queues=queues), timestamp_ms=1000)


def delete(metadata: Metadata, name: str = "T", **ends: int) -> None:
    command = DeleteTopic(name=name, timestamp_ms=2000, continued=True)
    metadata.apply(command, lambda _: {int(queue[1:]): QueueOffset(end) for queue, end in ends.items()})


def commit(*rows: tuple[str, str, int, int]) -> CommitOffsets:
    return CommitOffsets(offsets=[(group, topic, queue, QueueOffset(offset)) for group, topic, queue, offset in rows])


def recreated(queues: int = 2) -> Metadata:
    """Group G read 40 of 100 messages of T, which was deleted and created again."""
    metadata = Metadata()
    metadata.apply(put())
    metadata.apply(commit(("G", "T", 0, 40)))
    delete(metadata, q0=100, q1=50)
    metadata.apply(put(queues=queues))
    return metadata


@pytest.mark.parametrize("queues", [1, 2, 3])
def test_groups_of_deleted_topic_begin_at_first_offsets(queues: int) -> None:
    metadata = recreated(queues)
    assert metadata.consumer_offsets == {("G", "T"): {0: 100, 1: 50} | ({2: 0} if queues == 3 else {})}


def test_creation_reports_first_offsets_of_queues() -> None:
    metadata = Metadata()
    metadata.apply(put())
    delete(metadata, q0=100, q3=7)
    assert metadata.consumer_offsets == {}
    assert metadata.apply(put(queues=1)).begun_queues == (("T", 0, 100), ("T", 3, 7))
    assert metadata.apply(put(queues=4)).begun_queues == ()
    assert [metadata.former_topics.begin("T", queue_id) for queue_id in range(5)] == [100, 0, 0, 7, 0]


@pytest.mark.parametrize("command", [commit(("G", "T", 0, 60), ("H", "T", 0, 60)), None])
def test_late_offset_of_deleted_topic_becomes_first_offset(command: CommitOffsets | None) -> None:
    metadata = recreated()
    metadata.apply(command or ResetOffset(group="G", topic="T", queue_id=0, offset=QueueOffset(60)))
    assert {offsets[0] for offsets in metadata.consumer_offsets.values()} == {100}
    metadata.apply(commit(("G", "T", 0, 101)))
    assert metadata.consumer_offset("G", "T", 0) == 101


def test_queue_ends_never_fall_over_repeated_deletions() -> None:
    metadata = recreated()
    delete(metadata, q0=100)
    delete(metadata, q0=130)  # messages came while it did not exist
    delete(metadata)
    assert metadata.former_topics.deleted_topics == {"T": FormerTopic((QueueOffset(130), QueueOffset(50)), ("G",))}
    metadata.apply(put())
    assert metadata.consumer_offsets == {("G", "T"): {0: 130, 1: 50}}
    assert metadata.former_topics.deleted_topics == {}


def test_deleted_topic_without_messages_is_not_recorded() -> None:
    metadata = Metadata()
    before = metadata.snapshot()
    metadata.apply(put())
    delete(metadata, q0=0)
    assert metadata.former_topics.deleted_topics == {}
    assert b"former_topics" not in before + metadata.snapshot()


def test_group_with_deleted_offsets_starts_from_the_beginning() -> None:
    metadata = Metadata()
    metadata.apply(put())
    metadata.apply(commit(("G", "T", 0, 40), ("H", "T", 0, 40)))
    delete(metadata, q0=100)
    metadata.apply(DeleteGroup(name="H", timestamp_ms=3000))
    metadata.apply(DeleteGroup(name="G", timestamp_ms=3000, remove_offsets=True))
    metadata.apply(put())
    assert metadata.consumer_offsets == {("H", "T"): {0: 100, 1: 0}}


def test_topic_deleted_by_an_older_release_restarts_at_offset_zero() -> None:
    metadata = recreated()
    metadata.apply(DeleteTopic(name="T", timestamp_ms=2000), lambda _: {0: QueueOffset(120)})
    assert metadata.apply(put()).begun_queues == ()
    assert metadata.consumer_offsets == {}


def test_snapshot_restores_earlier_topics_of_the_same_name() -> None:
    metadata = recreated()
    metadata.apply(put("U"))
    delete(metadata, "U", q0=5)
    copy = Metadata()
    copy.restore(metadata.snapshot())
    assert copy.snapshot() == metadata.snapshot()
    assert (copy.former_topics.begins, copy.former_topics.deleted_topics) == (
        {"T": (100, 50)},
        {"U": FormerTopic((QueueOffset(5),), ())},
    )


@pytest.mark.parametrize("rows", [[("T", [-1], None)], [("T", [1], None), ("T", [2], [])]])
def test_damaged_rows_are_refused(rows: list[object]) -> None:
    with pytest.raises(SnapshotDamaged):
        FormerTopics().restore(rows)


@pytest.mark.parametrize("limits", [StateLimits(deleted_topics_max=3), StateLimits(deleted_rows_max=6)])
def test_oldest_deletion_is_forgotten_above_limit(limits: StateLimits) -> None:
    table = FormerTopics(limits)
    for number in range(9):
        table.delete(f"T{number}", {0: QueueOffset(5)}, ["G"])
        table.delete("T0", {}, [])  # still deleted: now the last one
    assert list(table.deleted_topics) == ["T7", "T8", "T0"]
    copy = FormerTopics(limits)
    copy.restore(table.capture()())
    for each in (table, copy):
        each.delete("T9", {0: QueueOffset(5)}, ["G"])
        assert list(each.deleted_topics) == ["T8", "T0", "T9"]


def test_identity_contains_the_first_offsets() -> None:
    metadata = recreated()
    identity = metadata.topic_identity("T")
    assert identity == topic_identity(3, 1000, (QueueOffset(100), QueueOffset(50))) == "3-1000-100.50"
    assert [first_offset(identity, queue_id) for queue_id in range(3)] == [100, 50, 0]
    assert [first_offset(each, 0) for each in ("", "3", "3-1000", "3-1000-x")] == [0] * 4
