"""Bodies of operators' queries about queues: content and age."""

from __future__ import annotations

from collections.abc import Sequence

from mq.protocol.bodies import SubscriptionData
from mq.protocol.json_body import Body
from mq.protocol.numbers import FIRST_OFFSET, PhysicalOffset, QueueOffset
from mq.protocol.wire_names import wire

__all__ = ["ConsumeQueueView", "QueueEntry", "QueueName", "TimeSpan", "TimeSpans"]


class QueueName(Body, rename=wire()):
    """One queue of a topic in one broker group."""

    topic: str
    broker_name: str
    queue_id: int


class TimeSpan(
    Body,
    rename=wire(
        queue="messageQueue",
        min_ms="minTimeStamp",
        max_ms="maxTimeStamp",
        consumed_ms="consumeTimeStamp",
        delay_ms="delayTime",
    ),
):
    """Store times of the first and last message of a queue, and of the last one that a group consumed; -1 for none.

    ``delay_ms`` is how long the group's next message has been waiting; 0 without one.
    """

    queue: QueueName
    min_ms: int
    max_ms: int
    consumed_ms: int
    delay_ms: int


class TimeSpans(Body, rename=wire(spans="consumeTimeSpanSet")):
    """One for each queue of a topic (request code 303)."""

    spans: Sequence[TimeSpan] = ()


class QueueEntry(
    Body,
    rename=wire(
        physical_offset="physicOffset", nbytes="physicSize", tag_code="tagsCode", is_wanted="eval", message="msg"
    ),
):
    """One entry of a consume queue. ``is_wanted``: whether it matches the group's subscription."""

    physical_offset: PhysicalOffset
    nbytes: int
    tag_code: int
    is_wanted: bool = True
    message: str | None = None
    bit_map: str | None = None
    extend_data_json: str | None = None


class ConsumeQueueView(Body, rename=wire(entries="queueData", min_offset="minQueueIndex", max_offset="maxQueueIndex")):
    """A part of a consume queue (request code 321)."""

    entries: Sequence[QueueEntry] = ()
    min_offset: QueueOffset = FIRST_OFFSET
    max_offset: QueueOffset = FIRST_OFFSET
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
