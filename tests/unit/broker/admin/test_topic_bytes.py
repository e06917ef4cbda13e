"""Which messages of a topic exceed its limit in bytes, compared with a count of every entry."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mq.broker.base.topic_bytes import CHUNK_BYTES, CHUNK_ENTRIES, TopicBytes
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.queue_store import QueueStore, QueueStoreSettings

EVERYTHING = PhysicalOffset(1 << 60)


class Topic:
    """Queues of one topic in a log."""

    def __init__(self, path: Path, queues: int) -> None:
        start = PhysicalOffset(0)
        self.store = QueueStore.open(str(path), QueueStoreSettings(), queues={}, dropped_count=0, log_end=start)
        self.queues = [self.store.add_empty("T", number, QueueOffset(7 * number)) for number in range(queues)]
        self.end = 0

    def add(self, number: int, size: int, count: int = 1) -> None:
        for _ in range(count):
            queue = self.queues[number]
            queue.append(queue.max_offset, QUEUE_ENTRY.pack(self.end, size, 0))
            self.end += size

    def nbytes(self) -> int:
        return sum(size for queue in self.queues for _, size in entries(queue))

    def expire(self, topic: TopicBytes, before: PhysicalOffset = EVERYTHING) -> list[int]:
        """Let everything expire that exceeds the limit; returns the places of what is gone, and checks their order."""
        while topic.count(self.queues, 500) >= 500:
            pass
        assert topic.nbytes == self.nbytes()
        gone: list[int] = []
        for number, offset in topic.excess_begins(before):
            queue = self.queues[number]
            gone += [place for place, _ in entries(queue)[: offset - queue.min_offset]]
            queue.begin_at(offset)
        topic.count(self.queues, 500)
        assert topic.nbytes == self.nbytes()
        for counted in topic.queues.values():
            counted.check_invariants()
        return gone


def entries(queue: ConsumeQueue) -> list[tuple[int, int]]:
    read = queue.read(queue.min_offset, queue.max_offset - queue.min_offset)
    return [(place, size) for place, size, _ in QUEUE_ENTRY.iter_unpack(read)]


def test_oldest_messages_are_deleted_down_to_the_limit(tmp_path: Path) -> None:
    topic, limited = Topic(tmp_path, 2), TopicBytes(4 * CHUNK_BYTES)
    topic.add(0, CHUNK_BYTES // 2, 8)
    topic.add(1, CHUNK_BYTES // 2, 8)
    assert len(topic.expire(limited)) == 8
    assert (topic.queues[0].min_offset, topic.queues[1].min_offset) == (6, 9), "the last chunk of a queue stays"
    assert topic.expire(limited) == []


def test_topic_below_its_byte_limit_loses_no_message(tmp_path: Path) -> None:
    topic, limited = Topic(tmp_path, 1), TopicBytes(10 * CHUNK_BYTES)
    topic.add(0, CHUNK_BYTES, 10)
    assert topic.expire(limited) == []
    topic.add(0, CHUNK_BYTES - 1)
    assert topic.expire(limited) == [], "a chunk that exceeds the limit only in part stays"
    topic.add(0, 1)
    assert topic.expire(limited) == [0]


def test_small_messages_are_deleted_in_chunks(tmp_path: Path) -> None:
    topic, limited = Topic(tmp_path, 1), TopicBytes(100 * CHUNK_ENTRIES)
    topic.add(0, 100, 2 * CHUNK_ENTRIES)
    topic.expire(limited)
    assert topic.queues[0].min_offset == CHUNK_ENTRIES


def test_leased_entries_are_not_expired(tmp_path: Path) -> None:
    topic, limited = Topic(tmp_path, 1), TopicBytes(CHUNK_BYTES)
    topic.add(0, CHUNK_BYTES, 5)
    assert topic.expire(limited, PhysicalOffset(2 * CHUNK_BYTES)) == [0, CHUNK_BYTES]
    assert topic.expire(limited) == [2 * CHUNK_BYTES, 3 * CHUNK_BYTES]


def test_entries_expired_by_other_rules_are_subtracted(tmp_path: Path) -> None:
    topic, limited = Topic(tmp_path, 1), TopicBytes(1 << 30)
    topic.add(0, 100, 3 * CHUNK_ENTRIES)
    topic.expire(limited)
    topic.queues[0].begin_at(QueueOffset(CHUNK_ENTRIES + 5))  # in the middle of a chunk
    topic.expire(limited)
    topic.queues[0].begin_at(QueueOffset(9 * CHUNK_ENTRIES))  # everything
    topic.expire(limited)
    assert limited.nbytes == 0
    topic.add(0, 100)
    topic.expire(limited)
    assert limited.nbytes == 100


@pytest.mark.parametrize("seed", range(20))
def test_random_topics_keep_their_newest_messages(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    topic, limited = Topic(tmp_path, rng.randint(1, 5)), TopicBytes(rng.choice((1, 3, 10)) * CHUNK_BYTES)
    slack = 2 * (CHUNK_BYTES + 100_000)
    for _ in range(20):
        for _ in range(rng.randrange(30)):
            topic.add(rng.randrange(len(topic.queues)), rng.choice((100, 5000, 100_000)), rng.choice((1, 1, 50)))
        if rng.random() < 0.2:
            queue = rng.choice(topic.queues)
            queue.begin_at(QueueOffset(rng.randint(queue.min_offset, queue.max_offset)))
        before = topic.nbytes()
        topic.expire(limited)
        assert topic.nbytes() >= min(before, limited.bytes_max)
        assert topic.nbytes() <= limited.bytes_max + slack * len(topic.queues)
