"""The tails of queues, on the leader: the queue offsets that the next messages get."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from mq.broker.net.service import Service
from mq.broker.state.metadata import Metadata
from mq.protocol.messages.delay import TURNS_MS
from mq.protocol.messages.records import FIXED, IPV4_HOST_BYTES
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.store.consume_queue import ConsumeQueue

LITE_TAILS_MAX: Final = 4096
"""Tails of lite topics that are kept although everything of them is applied."""


class TopicName:
    """A topic's name in the forms that records and runs contain. All queues of the topic share one, to save memory."""

    __slots__ = ("encoded", "field", "fixed_bytes", "text")

    def __init__(self, topic: str, host_bytes: int = IPV4_HOST_BYTES) -> None:
        self.text = topic
        self.encoded = topic.encode()
        self.field = bytes([len(self.encoded)]) + self.encoded
        self.fixed_bytes = FIXED + host_bytes - IPV4_HOST_BYTES + len(self.encoded)


class QueueTail:
    """The tail of one queue, on the leader: the queue offset of the next message.

    While an entry is built, ``run`` has the queue entries that it adds, up to ``next_offset``. ``queue`` is the consume
    queue that received earlier runs; not always the current queue of this name, which may have been dropped since.
    """

    __slots__ = (
        "fixed_bytes",
        "next_offset",
        "queue",
        "queue_id",
        "run",
        "topic",
        "topic_bytes",
        "topic_field",
        "turn_ms",
    )

    def __init__(self, name: TopicName, queue_id: int, next_offset: QueueOffset) -> None:
        self.topic = name.text
        self.topic_bytes = name.encoded
        self.topic_field = name.field
        self.fixed_bytes = name.fixed_bytes
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.run: list[bytes] | None = None
        self.queue: ConsumeQueue | None = None
        self.turn_ms = TURNS_MS.get(name.text)
        """Computes the tag code for an internal queue from store time, queue id and properties; else None."""

    @classmethod
    def of_lite(cls, queue: str, next_offset: QueueOffset, consume_queue: ConsumeQueue | None) -> QueueTail:
        """Return the tail of a lite topic. It has no fields for records, which name the parent topic.

        Most sends to very many lite topics make one, and this takes less than half the time.
        """
        tail = cls.__new__(cls)
        tail.topic = queue
        tail.topic_bytes = queue.encode()
        tail.queue_id = 0
        tail.next_offset = next_offset
        tail.run = None
        tail.queue = consume_queue
        tail.turn_ms = None
        return tail


class QueueTails(Service):
    """The tails of all queues during one leadership. They are kept so long, since pending messages refer to them.

    Args:
        next_offset: the end of a queue that was not written to since this replica leads.
        host_bytes: size of this broker's address in records.
        queue_of: finds the consume queue of a lite topic, so that a message searches for it once.
    """

    def __init__(
        self,
        metadata: Metadata,
        next_offset: Callable[[str, int], QueueOffset],
        host_bytes: int = IPV4_HOST_BYTES,
        queue_of: Callable[[str, int], ConsumeQueue | None] | None = None,
    ) -> None:
        self._host_bytes = host_bytes
        self._metadata = metadata
        self._next_offset = next_offset
        self._queue_of = queue_of
        self._names: dict[str, TopicName] = {}
        self._tails: dict[tuple[str, int], QueueTail] = {}
        self._lite: OrderedDict[str, QueueTail] = OrderedDict()
        """The tails of lite topics with messages that may not be applied yet, the oldest first.

        Finding the first one of an ordinary table takes the longer the more were removed before it.
        """
        self._deletions: Counter[str] = Counter()
        """Deletions per topic that are in the log but not applied yet."""
        self.deletions_asked: Counter[str] = Counter()
        """The number of times that this leader was asked to delete each topic: callers compare it that append something
        which must not be in the next topic of its name.
        """

    def resign(self) -> None:
        """Forget all tails, since this replica stops leading and another one assigns queue offsets."""
        self._tails.clear()
        self._lite.clear()
        self._names.clear()
        self._deletions.clear()
        self.deletions_asked.clear()

    def reset(self, topic: str) -> None:
        """Start the queue offsets of a topic at 0 again, because its deletion is in the log.

        Until `deletion_applied`, this also applies to queues without a tail: they still exist in the store, whether or
        not the metadata has the topic. Tails stay, since pending messages may refer to them.
        """
        self._deletions[topic] += 1
        for (name, _), tail in self._tails.items():
            if name == topic:
                tail.next_offset = FIRST_OFFSET

    def deletion_applied(self, topic: str) -> None:
        """Record that a deletion of a topic is applied: the store drops its queues next."""
        tail = self._lite.get(topic)
        if tail is not None and tail.next_offset == self._next_offset(topic, 0):
            # Otherwise messages behind the end of this lite topic are in flight, and continue from there.
            del self._lite[topic]
        if self._deletions[topic] > 1:
            self._deletions[topic] -= 1
        else:
            del self._deletions[topic]

    def of_lite(self, queue: str) -> QueueTail:
        """Return the tail of a lite topic's queue, for the entry that is being built. Do not keep it.

        Tails whose messages are all applied are forgotten after a while: the store says where such a queue ends.
        """
        tail = self._lite.get(queue)
        if tail is None:
            consume_queue = None if self._queue_of is None else self._queue_of(queue, 0)
            end = self._next_offset(queue, 0) if consume_queue is None else consume_queue.max_offset
            tail = QueueTail.of_lite(queue, end, consume_queue)
            self._forget_some_lite()
            self._lite[queue] = tail
        else:
            self._lite.move_to_end(queue)
        return tail

    def lite_end(self, queue: str) -> QueueOffset:
        """Return the queue offset of the next message of a lite topic, after messages that are not applied yet."""
        tail = self._lite.get(queue)
        return self._next_offset(queue, 0) if tail is None else tail.next_offset

    def _forget_some_lite(self) -> None:
        """Forget the oldest tails of lite topics, if they are too many and nothing of them is in flight."""
        while len(self._lite) >= LITE_TAILS_MAX:
            name, tail = next(iter(self._lite.items()))
            if tail.run is not None:
                return
            # What the tail keeps spares a search among very many queues. It is another queue if the topic has ended.
            end = None if tail.queue is None else tail.queue.max_offset
            if end != tail.next_offset and self._next_offset(name, 0) != tail.next_offset:
                return
            del self._lite[name]

    def of_topic(self, topic: str) -> list[QueueTail]:
        """Return the tails of a topic's queues, by queue id. The topic must exist.

        Queues that are no longer writable are included, as with stock brokers: a producer may not know yet that the
        number of queues was reduced.
        """
        config = self._metadata.topics[topic]
        return [self.get(topic, number) for number in range(max(config.write_queues, config.read_queues))]

    def end_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """Return the queue offset of the next message. No offset that is committed later may be above it."""
        tail = self._tails.get((topic, queue_id))
        if tail is not None:
            return tail.next_offset
        if topic in self._deletions:
            return FIRST_OFFSET
        return max(self._next_offset(topic, queue_id), self._metadata.former_topics.begin(topic, queue_id))

    def get(self, topic: str, queue_id: int) -> QueueTail:
        """Return the tail of one queue, even if the topic has no such queue."""
        tail = self._tails.get((topic, queue_id))
        if tail is None:
            name = self._names.get(topic)
            if name is None:
                name = self._names[topic] = TopicName(topic, self._host_bytes)
            # Nothing was written after a deletion that is not applied yet, otherwise there would be a tail.
            tail = self._tails[name.text, queue_id] = QueueTail(name, queue_id, self.end_offset(topic, queue_id))
        return tail

    def check_invariants(self) -> None:
        """Assert that tails and stored queues agree between two turns of a leader; for tests.

        The next offset of a queue is not below the stored end, otherwise two messages would get one offset; unless the
        queue's deletion is in the log and not applied yet. What an entry adds is gathered only while it is built.
        """
        for (topic, queue_id), tail in self._tails.items():
            assert tail.run is None, (
                f"{topic}/{queue_id}: {len(tail.run or ())} messages of an entry are still gathered"
            )
            end = self._next_offset(topic, queue_id)
            assert topic in self._deletions or tail.next_offset >= end, (
                f"{topic}/{queue_id}: the next message gets {tail.next_offset}, and {end} are stored"
            )
        for queue, tail in self._lite.items():
            end = self._next_offset(queue, 0)
            assert tail.run is None, f"{queue}: {len(tail.run or ())} messages of an entry are still gathered"
            assert tail.next_offset >= end, f"{queue}: the next message gets {tail.next_offset}, {end} are stored"
        assert all(count > 0 for count in self._deletions.values()), f"deletions on their way: {self._deletions}"
