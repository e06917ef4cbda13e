"""Deleted topics that can be restored: what a restore brings back, and what ends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mq.broker.state.commands import (
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    ForbidTopic,
    ForgetTopic,
    PutTopic,
    ResetOffset,
    RestoreTopic,
    TopicConfig,
    decode_command,
    encode_command,
)
from mq.broker.state.format_level import RaiseLevel
from mq.broker.state.metadata import Metadata
from mq.broker.state.pop_checkpoints import AckMessages, PopMessages
from mq.broker.state.request_modes import PutRequestMode
from mq.broker.state.table import SnapshotDamaged
from mq.broker.state.topic_deletion import queue_effects
from mq.protocol.numbers import QueueOffset

DELETED = DeleteTopic(name="T", timestamp_ms=2000, continued=True, restorable=True, by="ann from 10.0.0.1:5")
RESTORED = RestoreTopic(name="T", timestamp_ms=3000)


class Group:
    """Metadata, and where its queues end; each command is encoded and decoded, as in a log."""

    def __init__(self, **ends: int) -> None:
        self.metadata = Metadata()
        self.ends: dict[str, dict[int, int]] = {"T": {int(name[1:]): end for name, end in ends.items()}}

    def queue_ends(self, topic: str) -> Mapping[int, QueueOffset]:
        return {queue_id: QueueOffset(end) for queue_id, end in self.ends.get(topic, {}).items()}

    def apply(self, command: Command) -> Any:
        changes = self.metadata.apply(decode_command(encode_command(command)), self.queue_ends)
        self.metadata.check_invariants()
        return changes


def put(name: str = "T", queues: int = 2, **given: Any) -> PutTopic:
    return PutTopic(config=TopicConfig(name=name, read_queues=queues, write_queues=queues, **given), timestamp_ms=1000)


def commit(group: str, *offsets: int) -> CommitOffsets:
    return CommitOffsets(offsets=[(group, "T", queue_id, QueueOffset(at)) for queue_id, at in enumerate(offsets)])


@pytest.fixture
def group() -> Group:
    """T has 100 and 50 messages; G is behind, H was reset and may not read it, and has younger queues."""
    group = Group(q0=100, q1=50)
    group.apply(put(queues=1, attributes={"message.type": "NORMAL"}))
    group.apply(PutTopic(config=TopicConfig(name="other", read_queues=1, write_queues=1), timestamp_ms=1))
    group.apply(commit("H", 7))
    group.apply(RaiseLevel(level=7, timestamp_ms=1))
    group.apply(put(queues=2, attributes={"message.type": "NORMAL"}))
    group.apply(commit("G", 40, 50))
    group.apply(ResetOffset(group="H", topic="T", queue_id=0, offset=QueueOffset(3), restart=True))
    group.apply(ForbidTopic(group="H", topic="T", forbidden=True))
    group.apply(PutRequestMode(topic="T", group="G", mode="POP", shared=1))
    return group


def state(group: Group) -> dict[str, Any]:
    metadata = group.metadata
    return {
        "topics": dict(metadata.topics),
        "identities": dict(metadata.topic_identities),
        "offsets": {key: dict(table) for key, table in metadata.consumer_offsets.items()},
        "resets": {key: dict(table) for key, table in metadata.offset_resets.items()},
        "forbidden": set(metadata.forbidden),
        "modes": dict(metadata.request_modes.table),
        "younger": [metadata.younger_queues.has("H", "T", queue_id) for queue_id in range(3)],
        "begins": dict(metadata.former_topics.begins),
    }


def test_restored_topic_is_unchanged(group: Group) -> None:
    before = state(group)
    changes = group.apply(DELETED)
    assert (changes.topics, changes.deleted_topics, changes.hidden_topics) == (("T",), (), ("T",))
    assert "T" not in group.metadata.topics
    assert not group.metadata.consumer_offsets
    row = group.metadata.deleted_topics.rows["T"]
    assert (row.deleted_ms, row.by, row.ends) == (2000, "ann from 10.0.0.1:5", [100, 50])
    assert group.apply(RESTORED).topics == ("T",)
    assert state(group) == before
    assert not group.metadata.deleted_topics.rows
    assert group.apply(RESTORED).topics == ()


def test_deleted_topic_survives_a_snapshot(group: Group) -> None:
    again = Group()
    before = state(group)
    group.apply(DELETED)
    again.metadata.restore(group.metadata.snapshot())
    assert again.metadata.snapshot() == group.metadata.snapshot()
    again.apply(RESTORED)
    assert state(again) == before


def test_deleting_once_more_changes_nothing(group: Group) -> None:
    before = state(group)
    group.apply(DELETED)
    group.ends["T"][0] = 103  # delayed messages became due
    assert group.apply(DELETED).deleted_topics == ()
    group.apply(RESTORED)
    assert state(group) == before


def test_deleting_for_good_removes_restorable_topics(group: Group) -> None:
    retry = "%RETRY%G_T"
    group.apply(put(retry, queues=1))
    group.apply(DeleteTopic(name=retry, timestamp_ms=2000, continued=True, restorable=True, along_with="T"))
    group.apply(DELETED)
    changes = group.apply(DeleteTopic(name="T", timestamp_ms=2500, continued=True))
    assert changes.deleted_topics == (retry, "T")
    assert not group.metadata.deleted_topics.rows
    assert not group.metadata.request_modes.table
    assert group.apply(RESTORED).topics == ()
    assert group.apply(put(queues=1)).begun_queues == (("T", 0, 100), ("T", 1, 50))


def test_recreated_topic_cannot_be_restored(group: Group) -> None:
    group.apply(DELETED)
    assert group.apply(put(queues=1)).begun_queues == (("T", 0, 100), ("T", 1, 50))
    assert not group.metadata.deleted_topics.rows
    assert not group.metadata.request_modes.table
    assert group.apply(RESTORED).topics == ()
    assert group.metadata.consumer_offset("G", "T", 0) == 100
    group.ends["T"] = {0: 110, 1: 50}
    group.apply(DELETED)  # the second one can, with its own first offsets
    group.apply(RESTORED)
    assert group.metadata.former_topics.begin("T", 0) == 100
    assert group.metadata.consumer_offset("G", "T", 0) == 100


def test_restored_topic_omits_removed_group_offsets(group: Group) -> None:
    group.apply(DELETED)
    group.apply(DeleteGroup(name="H", timestamp_ms=1, remove_offsets=True))
    group.apply(DeleteGroup(name="G", timestamp_ms=1, remove_offsets=False))
    group.apply(RESTORED)
    assert {key[0] for key in group.metadata.consumer_offsets} == {"G"}


def test_popped_messages_without_acknowledgement_come_once_more(group: Group) -> None:
    taken: dict[str, Any] = {"group": "G", "topic": "T", "queue_id": 0, "pop_time_ms": 1, "invisible_ms": 60_000}
    group.apply(
        PopMessages(before=QueueOffset(40), next_offset=QueueOffset(44), start=QueueOffset(40), taken=15, **taken)
    )
    group.apply(AckMessages(rows=[("G", "T", 0, QueueOffset(40), 1, 0b1011)]))
    assert group.metadata.consumer_offset("G", "T", 0) == 44
    group.apply(DELETED)
    assert not group.metadata.pops.queues
    group.apply(RESTORED)
    assert group.metadata.consumer_offset("G", "T", 0) == 42


def test_restoring_a_topic_restores_its_retry_topics(group: Group) -> None:
    group.apply(put("%RETRY%G_T", queues=1))
    group.apply(DeleteTopic(name="%RETRY%G_T", timestamp_ms=2, continued=True, restorable=True, along_with="T"))
    group.apply(DELETED)
    assert set(group.apply(RESTORED).topics) == {"T", "%RETRY%G_T"}
    assert "%RETRY%G_T" in group.metadata.topics


def test_creating_a_topic_drops_its_deleted_retry_topics(group: Group) -> None:
    group.apply(put("%RETRY%G_T", queues=1))
    group.apply(DeleteTopic(name="%RETRY%G_T", timestamp_ms=2, continued=True, restorable=True, along_with="T"))
    group.apply(DELETED)
    assert group.apply(put()).deleted_topics == ("%RETRY%G_T",)
    assert not group.metadata.deleted_topics.rows


def test_forgetting_a_topic_deletes_its_queues_and_prevents_restoring(group: Group) -> None:
    group.apply(DELETED)
    grown = ForgetTopic(name="T", ends=[(0, QueueOffset(99)), (1, QueueOffset(50))])
    assert group.apply(grown).deleted_topics == ()  # a delayed message came since: that stays
    exact = ForgetTopic(name="T", ends=[(0, QueueOffset(100)), (1, QueueOffset(50))])
    assert group.apply(exact).deleted_topics == ("T",)
    assert group.apply(exact).deleted_topics == ()
    assert group.apply(RESTORED).topics == ()
    group.apply(put())
    assert group.metadata.consumer_offset("G", "T", 0) == 100  # offsets of the name still go on


def test_topic_with_lite_topics_is_not_deleted_by_a_late_command() -> None:
    group = Group()
    group.apply(put(attributes={"message.type": "LITE"}))
    assert group.apply(DELETED).topics == ()
    assert "T" in group.metadata.topics


@pytest.mark.parametrize(
    ("restored", "expired"),
    [(True, ()), (False, (("T", 0, 100), ("T", 1, 50)))],
)
def test_replica_that_fills_its_queues_drops_no_restored_topic(
    restored: bool, expired: tuple[Any, ...], group: Group
) -> None:
    """A leader may forget the oldest topic while its restore is on its way: the metadata tells which was first."""
    group.apply(DELETED)
    forget = ForgetTopic(name="T", ends=[(0, QueueOffset(100)), (1, QueueOffset(50))])
    if restored:
        group.apply(RESTORED)
    group.apply(forget)
    assert queue_effects(forget, group.metadata, group.queue_ends).expired == expired
    assert queue_effects(DELETED, group.metadata, group.queue_ends).deleted_topics == ()


def test_catching_up_replica_starts_a_recreated_topic_at_its_first_offset(group: Group) -> None:
    group.apply(DELETED)
    group.apply(put())
    assert queue_effects(put(), group.metadata, group.queue_ends).expired == (("T", 0, 100), ("T", 1, 50))
    group.apply(DELETED)
    assert queue_effects(put(), group.metadata, group.queue_ends).expired == (("T", 0, 100), ("T", 1, 50))


@pytest.mark.parametrize("damage", [{"ends": [-1]}, {"offsets": {"G": [0]}}, {"begins": [-5]}])
def test_damaged_snapshot_is_refused(damage: dict[str, Any], group: Group) -> None:
    group.apply(DELETED)
    rows = group.metadata.deleted_topics.capture()()
    assert isinstance(rows, list)
    with pytest.raises(SnapshotDamaged):
        group.metadata.deleted_topics.restore([rows[0] | damage])
    with pytest.raises(SnapshotDamaged):
        group.metadata.deleted_topics.restore([rows[0], rows[0]])
    assert "T" in group.metadata.deleted_topics.rows
