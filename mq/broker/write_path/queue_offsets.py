"""The writing ends of queues, on the leader: which queue offset the next message gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from mq.broker.net.service import Service
from mq.broker.state.metadata import Metadata
from mq.protocol.delay import TURNS_MS
from mq.protocol.records import FIXED
from mq.store.consume_queue import ConsumeQueue


class TopicName:
    """A topic's name in all the forms that records and runs need; one for all of its queues, for caches are small."""

    __slots__ = ("encoded", "field", "fixed_bytes", "text")

    def __init__(self, topic: str) -> None:
        self.text = topic
        self.encoded = topic.encode()
        self.field = bytes([len(self.encoded)]) + self.encoded
        self.fixed_bytes = FIXED + len(self.encoded)


class NextOffset:
    """The writing end of one queue, on the leader: where the next message goes.

    While an entry of the log is built, ``run`` is what that adds to the queue, at last up to ``next_offset``. ``queue``
    is where such runs arrived so far: not always the queue of this name, for it may have been dropped since.
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

    def __init__(self, name: TopicName, queue_id: int, next_offset: int) -> None:
        self.topic = name.text
        self.topic_bytes = name.encoded
        self.topic_field = name.field
        self.fixed_bytes = name.fixed_bytes
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.run: list[bytes] | None = None
        self.queue: ConsumeQueue | None = None
        self.turn_ms = TURNS_MS.get(name.text)
        """Where messages wait: what makes of store time, queue id and properties the tag code; else None."""


class QueueOffsets(Service):
    """All tails of this leadership. One lives as long as the leadership, since messages may be pending on it.

    Args:
        next_offset: where a queue ends that was not written to since this replica leads.
    """

    def __init__(self, metadata: Metadata, next_offset: Callable[[str, int], int]) -> None:
        self._metadata = metadata
        self._next_offset = next_offset
        self._names: dict[str, TopicName] = {}
        self._tails: dict[tuple[str, int], NextOffset] = {}
        self._deletions: Counter[str] = Counter()
        """How many deletions of a topic have a place in the log and are not applied yet."""

    def resign(self) -> None:
        """This replica does not lead any more: another one gives out queue offsets."""
        self._tails.clear()
        self._names.clear()
        self._deletions.clear()

    def begin_anew(self, topic: str) -> None:
        """The topic's deletion has its place in the log: what comes behind it finds empty queues.

        That holds for queues that have no tail yet as well, until `deletion_applied`: so long they are in the store,
        whether the metadata has the topic or not. Tails stay, for messages may be pending on them.
        """
        self._deletions[topic] += 1
        for (name, _), tail in self._tails.items():
            if name == topic:
                tail.next_offset = 0

    def deletion_applied(self, topic: str) -> None:
        """The store has dropped the topic's queues, as a deletion in the log says, perhaps one of an older leader."""
        if self._deletions[topic] > 1:
            self._deletions[topic] -= 1
        else:
            del self._deletions[topic]

    def of_topic(self, topic: str) -> list[NextOffset]:
        """The tails of a topic's queues, by queue id. The topic must exist.

        A queue that is only read any more can still be written to by whoever asks for it, as with stock brokers: a
        producer may not know yet that it has fewer queues to choose from.
        """
        config = self._metadata.topics[topic]
        return [self.get(topic, number) for number in range(max(config.write_queues, config.read_queues))]

    def get(self, topic: str, queue_id: int) -> NextOffset:
        """The tail of one queue, whatever the topic's configuration says."""
        tail = self._tails.get((topic, queue_id))
        if tail is None:
            name = self._names.get(topic)
            if name is None:
                name = self._names[topic] = TopicName(topic)
            # Nothing was written behind a deletion that is not applied yet, or there were a tail.
            next_offset = 0 if topic in self._deletions else self._next_offset(topic, queue_id)
            tail = self._tails[name.text, queue_id] = NextOffset(name, queue_id, next_offset)
        return tail
