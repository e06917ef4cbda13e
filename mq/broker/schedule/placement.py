"""Chooses the queue of messages that may have to wait before they become visible."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from mq.broker.context import BrokerContext
from mq.broker.net.refusals import RequestRefused
from mq.broker.state.commands import TopicConfig
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.queue_tails import QueueTail, QueueTails
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.delay import DELAY_LEVELS_MS, LEVEL_MAX, delay_level, timer_slot
from mq.protocol.messages.message_types import PriorityInvalid, level_of, priority_of
from mq.protocol.names import SCHEDULE_TOPIC, SEND_FORBIDDEN_TOPICS, TIMER_TOPIC
from mq.protocol.numbers import PhysicalOffset


class Destination(NamedTuple):
    """The queue in which a message is stored, and its properties there."""

    tail: QueueTail
    properties: dict[str, str]


_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_INT64_MAX: Final = 2**63 - 1
_ASKING: Final = frozenset((props.DELAY, *props.TIMER_PROPERTIES))


class WaitingQueues:
    """Decides where a message waits: in the queue of a delay level, in a slot of the timer wheel, or not at all.

    Only levels with the default delay have their own queues: so each queue is ordered by due time, whatever the
    settings are or were. Messages with other delays wait as timers. Changes nothing.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._levels_ms: Final = context.settings.delay_levels_ms
        self._delay_max_ms: Final = context.settings.timer_delay_max_seconds * 1000
        self._tails = context.queue_tails

    def place(self, properties: dict[str, str], topic: str, queue_id: int, now_ms: int) -> Destination:
        """Choose the queue in which to store a message; the queue itself if the message has no delay properties.

        A level takes precedence over a time. Raises RequestRefused for an invalid delay.
        """
        if _ASKING.isdisjoint(properties):
            return Destination(self._tails.get(topic, queue_id), properties)
        if level := _level(properties):
            return self.at_level(properties, topic, queue_id, level, now_ms)
        due_ms = _due_ms(properties, now_ms)
        if due_ms is None or due_ms <= now_ms:
            return Destination(self._tails.get(topic, queue_id), properties)
        if due_ms - now_ms > self._delay_max_ms:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"timer message illegal, the delay of {due_ms - now_ms} ms should not be bigger than the max delay "
                f"of {self._delay_max_ms} ms",
            )
        properties.pop(props.DELAY, None)
        return self.at_time(properties, topic, queue_id, due_ms)

    def at_level(self, properties: dict[str, str], topic: str, queue_id: int, level: int, now_ms: int) -> Destination:
        """Choose the queue in which to store a message with a delay level of 1 or more; higher ones are capped."""
        level = min(level, len(self._levels_ms))
        assert level >= 1, f"a message for {topic} is delayed at level {level}"
        properties = {name: value for name, value in properties.items() if name not in props.TIMER_PROPERTIES}
        properties[props.DELAY] = str(level)
        delay_ms = self._levels_ms[level - 1]
        if level > LEVEL_MAX or delay_ms != DELAY_LEVELS_MS[level - 1]:
            return self.at_time(properties, topic, queue_id, now_ms + delay_ms)
        own = {props.REAL_TOPIC: topic, props.REAL_QUEUE_ID: str(queue_id)}
        return Destination(self._tails.get(SCHEDULE_TOPIC, level - 1), properties | own)

    def at_time(self, properties: dict[str, str], topic: str, queue_id: int, due_ms: int) -> Destination:
        """Choose the queue for a message that is due at ``due_ms``; one with a DELAY property cannot be recalled."""
        assert due_ms > 0, f"a message for {topic} is due at {due_ms}"
        own = {props.TIMER_OUT_MS: str(due_ms), props.REAL_TOPIC: topic, props.REAL_QUEUE_ID: str(queue_id)}
        return Destination(self._tails.get(TIMER_TOPIC, timer_slot(due_ms)), properties | own)


def tail_of(
    topic: str,
    queue_id: int,
    metadata: Metadata,
    tails: QueueTails,
    *,
    since: PhysicalOffset | None = None,
    priority: int | None = None,
) -> QueueTail | None:
    """The destination of a message that waited for a queue; None if its topic no longer exists.

    ``since`` is the physical offset at which it waits: from before the creation of the topic, it was for one that had
    the same name. In a deleted topic that can be restored it is behind the others, and visible after the restore.

    With a priority it goes to the queue for that among those that the topic has now. Otherwise it goes to another queue
    of the topic only if the number of queues was reduced.
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
    """Whether the topic of the delayed message at the physical offset ``since`` was deleted after that."""
    return _config_of(topic, metadata, since) is None


def _config_of(topic: str, metadata: Metadata, since: PhysicalOffset | None) -> TopicConfig | None:
    if since is not None and since < metadata.births.of(topic):
        return None
    row = metadata.deleted_topics.rows.get(topic)
    return metadata.topics.get(topic, None if row is None else row.config)


def wanted_priority(properties: Mapping[str, str]) -> int | None:
    """The priority of a message that a client sends; None without one. Raises RequestRefused."""
    try:
        return priority_of(properties)
    except PriorityInvalid as error:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error


def relative_wait_ms(properties: Mapping[str, str], levels_ms: Sequence[int]) -> int | None:
    """Milliseconds that a stored message was to wait; None if it was to be delivered at a time, or does not say."""
    for name, unit_ms in ((props.DELAY, 0), (props.TIMER_DELAY_SEC, 1000), (props.TIMER_DELAY_MS, 1)):
        if (text := properties.get(name)) is not None:
            if _NUMBER.fullmatch(text) is None or int(text) < 0:
                return None
            number = int(text)
            return number * unit_ms if unit_ms else levels_ms[min(max(number, 1), len(levels_ms)) - 1]
    return None


def _level(properties: dict[str, str]) -> int:
    try:
        return delay_level(properties.get(props.DELAY, "0"))
    except ValueError:
        text = properties[props.DELAY][:40]
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"DELAY {text!r} is not a number") from None


def _due_ms(properties: dict[str, str], now_ms: int) -> int | None:
    """The requested delivery time, None if there is none. Raises RequestRefused."""
    name = next((name for name in props.TIMER_PROPERTIES if name in properties), None)
    if name is None:
        return None
    text = properties[name]
    if _NUMBER.fullmatch(text) is None or abs(int(text)) > _INT64_MAX:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"{name} {text[:40]!r} is not a 64-bit number")
    number = int(text)
    if name == props.TIMER_DELIVER_MS:
        return number
    return now_ms + (number if name == props.TIMER_DELAY_MS else number * 1000)
