"""Where messages are placed that may have to wait for their time before anybody sees them."""

from __future__ import annotations

from mq.broker.refusal import RequestRefused
from mq.broker.tails import QueueTail, QueueTails
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.delay import LEVEL_MAX, delay_level
from mq.protocol.names import SCHEDULE_TOPIC

Place = tuple[QueueTail, dict[str, str]]
"""Where a message is stored, and the properties it has there."""


class WaitingPlaces:
    """Decides where a message waits: in the queue of a delay level, or not at all. Changes nothing."""

    def __init__(self, *, tails: QueueTails) -> None:
        self._tails = tails

    @property
    def level_max(self) -> int:
        """The highest delay level."""
        return LEVEL_MAX

    def place(self, properties: dict[str, str], topic: str, queue_id: int, now_ms: int) -> Place:
        """Where a message to this queue goes that may ask for a delay in its properties: there, if it does not.

        Raises RequestRefused for a delay that cannot be.
        """
        if level := _level(properties):
            return self.at_level(properties, topic, queue_id, level)
        if any(name in properties for name in props.TIMER_PROPERTIES):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                "messages for a certain time are not served by this version, use a delay level",
            )
        return self._tails.get(topic, queue_id), properties

    def at_level(self, properties: dict[str, str], topic: str, queue_id: int, level: int) -> Place:
        """Where a message to this queue waits at a delay level, 1 or more; the highest one for those above it."""
        level = min(level, LEVEL_MAX)
        own = {props.DELAY: str(level), props.REAL_TOPIC: topic, props.REAL_QUEUE_ID: str(queue_id)}
        return self._tails.get(SCHEDULE_TOPIC, level - 1), properties | own


def _level(properties: dict[str, str]) -> int:
    try:
        return delay_level(properties.get(props.DELAY, "0"))
    except ValueError:
        text = properties[props.DELAY][:40]
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"DELAY {text!r} is no number") from None
