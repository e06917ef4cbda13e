"""The writing ends of queues: a deletion that has its place in the log counts before it is applied."""

from __future__ import annotations

from pathlib import Path

from mq.broker.state.commands import DeleteTopic, PutTopic, TopicConfig
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.queue_tails import LITE_TAILS_MAX, QueueTail, QueueTails
from mq.protocol.names import lite_queue
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.dispatch import QUEUE_ENTRY_BYTES, QueueRun
from mq.store.queue_store import QueueStore, QueueStoreSettings

LITE = lite_queue("P", "a")


class Applied:
    """What a replica has applied: the topics, and how far their queues have come."""

    def __init__(self) -> None:
        self.metadata = Metadata()
        self.ends: dict[tuple[str, int], int] = {}
        self.tails = QueueTails(self.metadata, lambda topic, queue_id: QueueOffset(self.ends.get((topic, queue_id), 0)))

    def create(self, topic: str, queues: int = 2) -> None:
        config = TopicConfig(name=topic, read_queues=queues, write_queues=queues)
        self.metadata.apply(PutTopic(config=config, timestamp_ms=0))

    def delete(self, topic: str) -> None:
        for name in self.metadata.apply(DeleteTopic(name=topic, timestamp_ms=0)).deleted_topics:
            self.tails.deletion_applied(name)
            self.ends = {queue: end for queue, end in self.ends.items() if queue[0] != name}


def next_offsets(applied: Applied) -> list[int]:
    return [tail.next_offset for tail in applied.tails.of_topic("T")]


def test_offsets_restart_at_zero_before_a_deletion_is_applied() -> None:
    applied = Applied()
    applied.create("T")
    applied.ends["T", 0] = 5
    assert applied.tails.get("T", 0).next_offset == 5
    applied.tails.reset("T")
    assert next_offsets(applied) == [0, 0]


def test_topic_recreated_during_its_deletion_starts_at_zero() -> None:
    # Messages had come behind an earlier deletion: the store has a queue that the metadata does not know.
    applied = Applied()
    applied.ends["T", 1] = 5
    applied.tails.reset("T")
    applied.create("T")
    assert next_offsets(applied) == [0, 0]


def test_new_queue_beyond_a_shrunk_topic_starts_at_zero() -> None:
    applied = Applied()
    applied.create("T", 1)
    applied.ends["T", 3] = 5
    applied.tails.reset("T")
    assert applied.tails.get("T", 3).next_offset == 0


def test_last_of_several_deletions_resets_the_tail() -> None:
    applied = Applied()
    applied.ends["T", 0] = 5
    applied.tails.reset("T")
    applied.tails.reset("T")
    applied.delete("T")
    applied.ends["T", 0] = 2  # came between the two
    assert applied.tails.get("T", 0).next_offset == 0


def test_queue_ends_come_from_the_store_after_a_deletion() -> None:
    applied = Applied()
    applied.create("T")
    applied.tails.reset("T")
    applied.delete("T")
    applied.create("T")
    applied.ends["T", 0] = 7
    assert applied.tails.get("T", 0).next_offset == 7


def test_resigning_leader_drops_its_unfinished_deletions() -> None:
    applied = Applied()
    applied.create("T")
    applied.ends["T", 0] = 7
    applied.tails.reset("T")
    applied.tails.resign()
    assert applied.tails.get("T", 0).next_offset == 7


def test_recreated_lite_topic_begins_at_the_beginning_of_its_queue() -> None:
    applied = Applied()
    applied.ends[LITE, 0] = 5
    assert applied.tails.of_lite(LITE).next_offset == 5
    applied.tails.deletion_applied(LITE)
    del applied.ends[LITE, 0]
    assert applied.tails.of_lite(LITE).next_offset == 0


def test_messages_behind_the_end_of_a_lite_topic_keep_their_offsets() -> None:
    applied = Applied()
    applied.ends[LITE, 0] = 5
    applied.tails.of_lite(LITE).next_offset = QueueOffset(7)
    applied.tails.deletion_applied(LITE)
    del applied.ends[LITE, 0]
    assert applied.tails.of_lite(LITE).next_offset == 7


def test_tails_of_lite_topics_are_forgotten_once_their_messages_are_applied(tmp_path: Path) -> None:
    store = QueueStore.open(str(tmp_path), QueueStoreSettings(), queues={}, dropped_count=0, log_end=PhysicalOffset(0))
    tails = QueueTails(Metadata(), store.max_offset, queue_of=store.get)

    def send(name: str) -> QueueTail:
        tail = tails.of_lite(lite_queue("P", name))
        tail.next_offset = QueueOffset(tail.next_offset + 1)
        return tail

    def apply(tail: QueueTail) -> None:
        store.append_built([(tail, QueueOffset(tail.next_offset - 1), 1, b"e" * QUEUE_ENTRY_BYTES)])

    oldest = send("oldest")
    for number in range(LITE_TAILS_MAX + 10):
        apply(send(f"s{number}"))
    assert tails.of_lite(lite_queue("P", "oldest")) is oldest, "its message is not applied yet"
    apply(oldest)
    for number in range(LITE_TAILS_MAX + 20):
        apply(send(f"s{number}"))
    again = tails.of_lite(lite_queue("P", "oldest"))
    assert (again is oldest, again.next_offset) == (False, 1)
    apply(send("oldest"))
    assert store.max_offset(lite_queue("P", "oldest"), 0) == 2
    store.close()


def test_message_after_a_lite_topics_end_is_stored_in_its_next_queue(tmp_path: Path) -> None:
    store = QueueStore.open(str(tmp_path), QueueStoreSettings(), queues={}, dropped_count=0, log_end=PhysicalOffset(0))
    store.append_run(QueueRun(LITE, 0, QueueOffset(0), b"e" * 3 * QUEUE_ENTRY_BYTES))
    former = store.get(LITE, 0)
    tails = QueueTails(Metadata(), store.max_offset, queue_of=store.get)
    tail = tails.of_lite(LITE)
    assert (tail.next_offset, tail.queue) == (3, former)
    tail.next_offset = QueueOffset(4)  # a message is on its way
    tails.deletion_applied(LITE)
    store.drop_topic(LITE)
    store.append_built([(tail, QueueOffset(3), 1, b"m" * QUEUE_ENTRY_BYTES)])
    queue = store.get(LITE, 0)
    assert queue is not None
    assert queue is not former
    assert queue is tail.queue
    assert (queue.min_offset, queue.max_offset, tails.of_lite(LITE).next_offset) == (3, 4, 4)
    store.close()
