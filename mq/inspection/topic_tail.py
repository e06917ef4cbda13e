"""Follows the end of a topic without a consumer group."""

from __future__ import annotations

from typing import Final

from mq.client.consume.pull_consumer import PullConsumer
from mq.client.filters import Sql

NEW_QUEUES_SECONDS: Final = 5.0
"""Seconds between two looks of a follower whether its topic has got more queues."""


async def take_new_queues(consumer: PullConsumer, topic: str, tags: str | Sql) -> None:
    """Read new queues of the topic from their beginning. Raises TopicNotFound, ClientError."""
    queues = await consumer.queues(topic)
    assignment = consumer.assignment
    if new := [queue for queue in queues if queue not in assignment]:
        await consumer.assign(queues, tags)
        for queue in new:
            await consumer.seek(queue, "first")
