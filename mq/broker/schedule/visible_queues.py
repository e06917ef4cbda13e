"""Chooses the queue in which consumers see a message: after its delay, and by its priority."""

from __future__ import annotations

from collections.abc import Mapping

from mq.broker.net.refusals import RequestRefused
from mq.broker.state.commands import TopicConfig
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.queue_tails import QueueTail, QueueTails
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.message_types import PriorityInvalid, level_of, priority_of
from mq.protocol.names import SEND_FORBIDDEN_TOPICS
from mq.protocol.numbers import PhysicalOffset


def tail_of(
    topic: str,
    queue_id: int,
    metadata: Metadata,
    tails: QueueTails,
    *,
    since: PhysicalOffset | None = None,
    priority: int | None = None,
) -> QueueTail | None:
    """Return the queue to which a message goes after its wait; None if its topic does not exist any more.

    ``since`` is the physical offset at which it waits: from before the creation of the topic, it was for one that had
    the same name. In a deleted topic that can be restored it is behind the others, and visible after the restore.

    A message with a priority gets the queue for it among the present queues of the topic. Another one gets another
    queue of the topic only if the number of queues was reduced.
    """
    config = _config_of(topic, metadata, since)
    if config is None or config.write_queues == 0 or topic in SEND_FORBIDDEN_TOPICS:
        return None
    if priority is not None:
        queue_id = level_of(priority, config.write_queues)
    elif not 0 <= queue_id < max(config.read_queues, config.write_queues):
        queue_id %= config.write_queues
    assert 0 <= queue_id < max(config.read_queues, config.write_queues), f"{topic} has no queue {queue_id}"
    return tails.get(topic, queue_id)


def is_for_nobody(topic: str, metadata: Metadata, since: PhysicalOffset) -> bool:
    """Whether the topic of a delayed message was deleted after its physical offset ``since``."""
    return _config_of(topic, metadata, since) is None


def _config_of(topic: str, metadata: Metadata, since: PhysicalOffset | None) -> TopicConfig | None:
    if since is not None and since < metadata.births.get(topic):
        return None
    row = metadata.deleted_topics.rows.get(topic)
    return metadata.topics.get(topic, None if row is None else row.config)


def wanted_priority(properties: Mapping[str, str]) -> int | None:
    """Return the priority that a client gave a message, None without one. Raises RequestRefused if it is invalid."""
    try:
        return priority_of(properties)
    except PriorityInvalid as error:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
