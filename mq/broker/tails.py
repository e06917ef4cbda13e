"""The writing ends of queues, on the leader: which queue offset the next message gets."""

from __future__ import annotations

from collections.abc import Callable

from mq.broker.metadata import Metadata
from mq.protocol.names import SCHEDULE_TOPIC
from mq.protocol.records import FIXED


class QueueTail:
    """The writing end of one queue, on the leader: where the next message goes."""

    __slots__ = (
        "entries",
        "first_offset",
        "fixed_bytes",
        "is_schedule",
        "next_offset",
        "queue_id",
        "topic",
        "topic_field",
    )

    def __init__(self, topic: str, queue_id: int, next_offset: int) -> None:
        name = topic.encode()
        self.topic = topic
        self.topic_field = bytes([len(name)]) + name
        self.fixed_bytes = FIXED + len(name)
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.first_offset = 0
        self.entries: list[bytes] = []
        self.is_schedule = topic == SCHEDULE_TOPIC
        """Whether the queue's tag codes are the times at which its messages are due."""


class QueueTails:
    """All tails of this leadership. One lives as long as the leadership, since messages may be pending on it.

    Args:
        next_offset: where a queue ends that was not written to since this replica leads.

    Attributes:
        by_topic: tails of the write queues, by queue id, of topics that were written to. The send handler looks here
            first; `of_topic` fills it.
    """

    def __init__(self, metadata: Metadata, next_offset: Callable[[str, int], int]) -> None:
        self._metadata = metadata
        self._next_offset = next_offset
        self._tails: dict[tuple[str, int], QueueTail] = {}
        self.by_topic: dict[str, list[QueueTail]] = {}

    def forget(self) -> None:
        """This replica does not lead any more: another one gives out queue offsets."""
        self.by_topic.clear()
        self._tails.clear()

    def topic_changed(self, topic: str) -> None:
        """Look the topic's queues up anew with its next message."""
        self.by_topic.pop(topic, None)

    def of_topic(self, topic: str) -> list[QueueTail]:
        """The tails of a topic's write queues, by queue id. The topic must exist."""
        tails = self.by_topic.get(topic)
        if tails is None:
            count = self._metadata.topics[topic].write_queues
            tails = self.by_topic[topic] = [self.get(topic, number) for number in range(count)]
        return tails

    def get(self, topic: str, queue_id: int) -> QueueTail:
        """The tail of one queue, whatever the topic's configuration says."""
        tail = self._tails.get((topic, queue_id))
        if tail is None:
            tail = self._tails[topic, queue_id] = QueueTail(topic, queue_id, self._next_offset(topic, queue_id))
        return tail
