"""Chooses the queue in which a message waits before it becomes visible."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from mq.broker.context import BrokerContext
from mq.broker.net.refusals import RequestRefused
from mq.broker.schedule.delay_levels import DelayLevels
from mq.broker.write_path.queue_tails import QueueTail
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.delay import delay_level, timer_slot
from mq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC


class Destination(NamedTuple):
    """The queue in which a message is stored, and the properties with which it is stored."""

    tail: QueueTail
    properties: dict[str, str]


_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_INT64_MAX: Final = 2**63 - 1
_ASKING: Final = frozenset((props.DELAY, *props.TIMER_PROPERTIES))


class WaitingQueues:
    """Chooses where a message waits: in the queue of a delay level, in a slot of the timer wheel, or nowhere.

    Changes nothing.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._levels: Final = DelayLevels(context.settings.delay_levels_ms)
        self._delay_max_ms: Final = context.settings.timer_delay_max_seconds * 1000
        self._tails = context.queue_tails

    def place(self, properties: dict[str, str], topic: str, queue_id: int, now_ms: int) -> Destination:
        """Return the queue in which to store a message: its own queue, if its properties ask for no delay.

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
        """Return the queue for a message with a delay level from 1; a level above the highest one counts as that."""
        level = self._levels.cap(level)
        assert level >= 1, f"a message for {topic} is delayed at level {level}"
        properties = {name: value for name, value in properties.items() if name not in props.TIMER_PROPERTIES}
        properties[props.DELAY] = str(level)
        if not self._levels.has_queue(level):
            return self.at_time(properties, topic, queue_id, now_ms + self._levels.delay_ms(level))
        own = {props.REAL_TOPIC: topic, props.REAL_QUEUE_ID: str(queue_id)}
        return Destination(self._tails.get(SCHEDULE_TOPIC, level - 1), properties | own)

    def at_time(self, properties: dict[str, str], topic: str, queue_id: int, due_ms: int) -> Destination:
        """Return the queue for a message that is due at ``due_ms``. With a DELAY property it cannot be recalled."""
        assert due_ms > 0, f"a message for {topic} is due at {due_ms}"
        own = {props.TIMER_OUT_MS: str(due_ms), props.REAL_TOPIC: topic, props.REAL_QUEUE_ID: str(queue_id)}
        return Destination(self._tails.get(TIMER_TOPIC, timer_slot(due_ms)), properties | own)


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
