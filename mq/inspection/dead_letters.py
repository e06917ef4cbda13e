"""Reads the unresolved dead letters of consumer groups, and says why each one was given up.

A dead letter stays in its topic until retention deletes it. The offset of the consumer group `DEALT_WITH_BY` in that
topic is behind the last dead letter that was dealt with.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mq.client.consume.pull_consumer import PullConsumer
from mq.client.dead_letter_requeue import origin_topic
from mq.client.errors import TopicNotFound
from mq.client.message import MessageQueue, ReceivedMessage
from mq.client.net.client_core import RemotingSettings
from mq.inspection.formatting import time_of
from mq.protocol import properties as props
from mq.protocol.names import dead_letter_topic

DEALT_WITH_BY = "TOOLS_CONSUMER"
"""A group that exists on every broker; its offset in a dead letter topic is behind the last one dealt with."""

Letter = ReceivedMessage[Any]
LetterFilter = Callable[[Letter], bool]


@asynccontextmanager
async def read_letters(
    namesrv: str, group: str, *, everything: bool, remoting: RemotingSettings | None = None
) -> AsyncGenerator[PullConsumer]:
    """Open a consumer of a group's dead letters, at the first unresolved one, or with ``everything`` at the very first.

    The consumer has no queues if the group has no dead letters.
    """
    async with PullConsumer(namesrv, DEALT_WITH_BY, consume_from="first", remoting=remoting) as consumer:
        try:
            queues = await consumer.queues(dead_letter_topic(group))
        except TopicNotFound:
            queues = []
        await consumer.assign(queues)
        if everything:
            for queue in queues:
                await consumer.seek(queue, "first")
        yield consumer


def letter_filter(
    topic: str | None, key: str | None, failure: str | None, since: dt.datetime | None, until: dt.datetime | None
) -> LetterFilter:
    """Return a function that tells whether a dead letter meets all conditions. None means no condition."""

    def is_wanted(letter: Letter) -> bool:
        return (
            (topic is None or origin_topic(letter) == topic)
            and (key is None or key in letter.keys)
            and (failure is None or failure in death_reason(letter))
            and (since is None or letter.stored_at >= since)
            and (until is None or letter.stored_at <= until)
        )

    return is_wanted


def death_reason(letter: Letter) -> str:
    """Say why a dead letter was given up: the broker's reason and the consumer's last failure, if they are known."""
    reasons = (letter.properties.get(name) for name in (props.DEAD_REASON, props.FAILURE))
    return ": ".join(filter(None, reasons))


def letter_fields(letter: Letter) -> dict[str, Any]:
    """Return the place, origin and reason of a dead letter, for JSON."""
    properties = letter.properties
    attempts = properties.get(props.DEAD_ATTEMPTS, "")
    return {
        "queue": queue_name(letter.queue),
        "offset": letter.queue_offset,
        "given_up": time_of(letter.record.store_timestamp_ms),
        "topic": origin_topic(letter),
        "attempts": int(attempts) if attempts.isdigit() else None,
        "reason": properties.get(props.DEAD_REASON),
        "failure": properties.get(props.FAILURE),
        "given_up_by": properties.get(props.DEAD_BY),
        "keys": list(letter.keys),
    }


def queue_name(queue: MessageQueue) -> str:
    """Format broker group and queue id: ``broker-a/3``."""
    return f"{queue.broker_name}/{queue.queue_id}"
