"""Consumer offsets of lite topics, and the commands that reset them and end lite topics."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mq.broker.state.changes import Changes
from mq.broker.state.commands import (
    Command,
    DeleteGroup,
    DeleteTopic,
    PutTopic,
    TopicConfig,
    decode_command,
    encode_command,
)
from mq.broker.state.lite_offsets import ROWS_MAX, ExpireLiteTopics, ResetLiteOffsets
from mq.broker.state.metadata import Metadata
from mq.broker.state.pop_checkpoints import AckMessages, PopMessages
from mq.broker.state.table import CommandInvalid, SnapshotDamaged
from mq.broker.state.topic_deletion import dropped_by
from mq.protocol.names import lite_queue
from mq.protocol.numbers import QueueOffset

A, B = lite_queue("P", "a"), lite_queue("P", "b")
OFFSET = QueueOffset


class Replica:
    """Metadata with the topic P, and the ends of the queues of its lite topics."""

    def __init__(self) -> None:
        self.metadata = Metadata()
        self.ends = {A: 5, B: 5}
        self.apply(PutTopic(config=TopicConfig(name="P", read_queues=1, write_queues=1), timestamp_ms=1))

    def apply(self, command: Command) -> Changes:
        changes = self.metadata.apply(decode_command(encode_command(command)), self.queue_ends)
        self.metadata.check_invariants()
        return changes

    def queue_ends(self, topic: str) -> Mapping[int, QueueOffset]:
        return {0: OFFSET(self.ends[topic])} if topic in self.ends else {}

    def pop(self, queue: str, start: int, *, before: int, taken: int = 1, group: str = "G") -> None:
        self.apply(
            PopMessages(
                group=group,
                topic=queue,
                queue_id=0,
                before=OFFSET(before),
                next_offset=OFFSET(start + taken.bit_length()),
                start=OFFSET(start),
                pop_time_ms=7,
                invisible_ms=1000,
                taken=taken,
                attempt="",
            )
        )

    def ack(self, queue: str, start: int, bits: int = 1) -> None:
        self.apply(AckMessages(rows=[("G", queue, 0, OFFSET(start), 7, bits)]))

    def offset(self, queue: str, group: str = "G") -> int | None:
        return self.metadata.consumer_offset(group, queue, 0)


def restored(replica: Replica) -> Metadata:
    snapshot = replica.metadata.snapshot()
    other = Metadata()
    other.restore(snapshot)
    other.check_invariants()
    assert other.snapshot() == snapshot
    return other


def test_acknowledgements_move_the_lite_offset_which_snapshots_keep() -> None:
    replica = Replica()
    assert b"lite" not in replica.metadata.snapshot(), "older software reads snapshots without lite topics"
    replica.pop(A, 0, before=-1, taken=0b11)
    assert replica.offset(A) == 0
    replica.ack(A, 0)
    assert replica.offset(A) == 1
    replica.ack(A, 0, 0b10)
    assert replica.offset(A) == 2
    assert replica.offset(B) is None
    assert restored(replica).consumer_offset("G", A, 0) == 2


def test_lite_topic_with_a_later_message_is_not_ended() -> None:
    replica = Replica()
    replica.pop(A, 0, before=-1)
    replica.ack(A, 0)
    changes = replica.apply(ExpireLiteTopics(rows=[(A, OFFSET(4)), (lite_queue("P", "none"), OFFSET(0))]))
    assert changes.deleted_topics == ()
    assert replica.offset(A) == 1


def test_expired_lite_topic_loses_its_offsets_and_popped_messages() -> None:
    replica = Replica()
    replica.pop(A, 0, before=-1)
    replica.pop(A, 0, before=-1, group="G2")
    replica.pop(B, 0, before=-1)
    ends = ExpireLiteTopics(rows=[(A, OFFSET(5)), (B, OFFSET(4))])
    assert dropped_by(ends, replica.queue_ends) == (A,), "what restores queues must drop the same ones"
    assert replica.apply(ends).deleted_topics == (A,)
    assert (replica.offset(A), replica.offset(A, "G2"), replica.offset(B)) == (None, None, 0)
    assert list(replica.metadata.pops.queues) == [("G", B, 0)]
    replica.ack(A, 0)
    assert replica.offset(A) is None, "a receipt of the former lite topic means nothing to the next one"


def test_reset_moves_anywhere_up_to_the_end_and_cancels_pops() -> None:
    replica = Replica()
    replica.pop(A, 0, before=-1, taken=0b111)
    replica.apply(ResetLiteOffsets(group="G", rows=[(A, OFFSET(3)), (B, OFFSET(99))]))
    assert (replica.offset(A), replica.offset(B)) == (3, 5)
    assert not replica.metadata.pops.queues
    replica.ack(A, 0, 0b111)
    assert replica.offset(A) == 3
    replica.apply(ResetLiteOffsets(group="G", rows=[(A, OFFSET(0))]))
    assert replica.offset(A) == 0
    # Its end may be in the log before the reset.
    replica.apply(ExpireLiteTopics(rows=[(B, OFFSET(5))]))
    del replica.ends[B]
    replica.apply(ResetLiteOffsets(group="G", rows=[(B, OFFSET(5))]))
    assert replica.offset(B) is None, "nothing would ever remove it"


def test_deleting_a_parent_deletes_offsets_of_its_lite_topics() -> None:
    replica = Replica()
    replica.pop(A, 0, before=-1)
    replica.apply(DeleteTopic(name="P", timestamp_ms=2, continued=True))
    replica.pop(A, 0, before=-1)
    assert replica.offset(A) is None
    assert not replica.metadata.pops.queues


def test_offsets_of_a_deleted_group_stay_unless_their_removal_is_requested() -> None:
    replica = Replica()
    replica.pop(A, 0, before=-1)
    replica.apply(DeleteGroup(name="G", timestamp_ms=2))
    assert replica.offset(A) == 0
    assert replica.apply(DeleteGroup(name="G", timestamp_ms=3, remove_offsets=True)).offsets == 1
    assert replica.offset(A) is None


@pytest.mark.parametrize(
    "command",
    [
        ExpireLiteTopics(rows=[]),
        ExpireLiteTopics(rows=[(A, OFFSET(-1))]),
        ExpireLiteTopics(rows=[("%LMQ%$P$a/b", OFFSET(0))]),
        ExpireLiteTopics(rows=[("%LMQ%$P", OFFSET(0))]),
        ExpireLiteTopics(rows=[(A, OFFSET(0))] * (ROWS_MAX + 1)),
        ResetLiteOffsets(group="", rows=[(A, OFFSET(0))]),
        ResetLiteOffsets(group="G", rows=[(A, OFFSET(-1))]),
        ResetLiteOffsets(group="G", rows=[("%LMQ%$P$" + "a" * 65, OFFSET(0))]),
    ],
)
def test_commands_with_wrong_values_do_not_enter_the_log(command: Command) -> None:
    with pytest.raises(CommandInvalid):
        encode_command(command)


@pytest.mark.parametrize("rows", [[["G", "P", 1, []]], [["G", "P", 255, [["a", 1]]]], [["G", "P", 0, "x"]]])
def test_damaged_snapshot_is_refused(rows: list[object]) -> None:
    metadata = Metadata()
    with pytest.raises((SnapshotDamaged, ValueError)):
        metadata.lite.restore(rows)
    assert metadata.lite.capture()() is None
