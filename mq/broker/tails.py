"""The writing ends of queues, on the leader: which queue offset the next message gets."""

from __future__ import annotations

from collections.abc import Callable

from mq.broker.state.metadata import Metadata
from mq.protocol.delay import TURNS_MS
from mq.protocol.records import FIXED


class QueueTail:
    """The writing end of one queue, on the leader: where the next message goes."""

    __slots__ = (
        "entries",
        "first_offset",
        "fixed_bytes",
        "next_offset",
        "queue_id",
        "topic",
        "topic_bytes",
        "topic_field",
        "turn_ms",
    )

    def __init__(self, topic: str, queue_id: int, next_offset: int) -> None:
        name = topic.encode()
        self.topic = topic
        self.topic_bytes = name
        self.topic_field = bytes([len(name)]) + name
        self.fixed_bytes = FIXED + len(name)
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.first_offset = 0
        self.entries: list[bytes] = []
        self.turn_ms = TURNS_MS.get(topic)
        """Where messages wait: what makes of store time, queue id and properties the tag code; else None."""


class QueueTails:
    """All tails of this leadership. One lives as long as the leadership, since messages may be pending on it.

    Args:
        next_offset: where a queue ends that was not written to since this replica leads.
    """

    def __init__(self, metadata: Metadata, next_offset: Callable[[str, int], int]) -> None:
        self._metadata = metadata
        self._next_offset = next_offset
        self._tails: dict[tuple[str, int], QueueTail] = {}

    def forget(self) -> None:
        """This replica does not lead any more: another one gives out queue offsets."""
        self._tails.clear()

    def of_topic(self, topic: str) -> list[QueueTail]:
        """The tails of a topic's queues, by queue id. The topic must exist.

        A queue that is only read any more can still be written to by whoever asks for it, as with stock brokers: a
        producer may not know yet that it has fewer queues to choose from.
        """
        config = self._metadata.topics[topic]
        return [self.get(topic, number) for number in range(max(config.write_queues, config.read_queues))]

    def get(self, topic: str, queue_id: int) -> QueueTail:
        """The tail of one queue, whatever the topic's configuration says."""
        tail = self._tails.get((topic, queue_id))
        if tail is None:
            tail = self._tails[topic, queue_id] = QueueTail(topic, queue_id, self._next_offset(topic, queue_id))
        return tail
