"""Retry topics of groups that pop: the topic to which a message is copied for redelivery.

Such a topic has one queue, or one for each level if the original topic is for messages with priorities. So a message
keeps its priority.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from mq.broker.context import BrokerContext
from mq.broker.state.commands import PutTopic, TopicConfig
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.queue_tails import QueueTail
from mq.protocol.messages.message_types import level_of, lowest_level, stored_priority, takes_priorities
from mq.protocol.names import pop_retry_topic


class PopRetryTopics:
    """Chooses the queues of retry topics to which messages are copied for redelivery."""

    def __init__(self, context: BrokerContext) -> None:
        self._metadata: Final[Metadata] = context.metadata
        self._tails: Final = context.queue_tails
        self._priority_order_asc: Final = context.settings.priority_order_asc

    def tail(self, group: str, topic: str, origin: str, properties: Mapping[str, str]) -> QueueTail:
        """Return the queue of the retry topic to which a message is copied for redelivery to ``group``.

        Args:
            topic: where it was popped: ``origin``, or its retry topic.
            origin: the topic that it was sent to.
            properties: those of the message.
        """
        return self._tails.get(pop_retry_topic(group, topic), self._level(origin, properties))

    def put(self, tail: QueueTail, origin: str, now_ms: int) -> PutTopic | None:
        """Return the command that creates this retry topic, or adds queues to it; None if the queue exists."""
        queues = max(self._levels(origin), tail.queue_id + 1)
        current = self._metadata.topics.get(tail.topic)
        if current is None:
            config = TopicConfig(name=tail.topic, read_queues=queues, write_queues=queues)
            return PutTopic(config=config, timestamp_ms=now_ms, unless_there=queues == 1)
        if current.read_queues > tail.queue_id:
            return None
        wider = msgspec.structs.replace(current, read_queues=queues, write_queues=max(queues, current.write_queues))
        return PutTopic(config=wider, timestamp_ms=now_ms)

    def _level(self, origin: str, properties: Mapping[str, str]) -> int:
        queues = self._levels(origin)
        if queues == 1:
            return 0
        priority = stored_priority(properties)
        if priority is None:
            return lowest_level(queues, ascending=self._priority_order_asc)
        level = level_of(priority, queues)
        assert 0 <= level < queues, f"priority {priority} of {origin} has level {level} of {queues}"
        return level

    def _levels(self, origin: str) -> int:
        """Return how many queues the retry topic of a topic has: one for each priority level, or 1."""
        config = self._metadata.topics.get(origin)
        return max(config.write_queues, 1) if config is not None and takes_priorities(config.attributes) else 1
