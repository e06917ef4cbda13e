"""Checks messages for lite topics, and chooses the queue of the lite topic, which they also get a place in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mq.broker.context import BrokerContext
from mq.broker.net.refusals import RequestRefused, check_level
from mq.broker.state.format_level import LEVEL_OF_LITE_TOPICS
from mq.broker.write_path.pending import LiteTail
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE
from mq.protocol.names import NameRefused, check_lite_topic, lite_queue
from mq.protocol.requests.lite_attributes import LITE, is_lite

_EXCLUDED: Final = {
    props.SHARDING_KEY: "a sharding key: a lite topic is in order by itself",
    props.PRIORITY: "a priority",
    props.TRANSACTION_PREPARED: "a transaction",
    **dict.fromkeys((props.DELAY, *props.TIMER_PROPERTIES), "a delay"),
}
"""The properties that a message of a lite topic cannot have."""


class LiteTopics:
    """Checks messages that producers send to lite topics, and chooses their queues."""

    def __init__(self, context: BrokerContext) -> None:
        self._metadata = context.metadata
        self._store = context.store
        self._tails = context.queue_tails
        self._topics_max = context.limits.lite.topics_max

    def tail(self, properties: Mapping[str, str], topic: str) -> LiteTail:
        """Return the queue of the lite topic that ``properties`` name, under ``topic``. Raises RequestRefused."""
        lite = properties[props.LITE_TOPIC]
        if not is_lite(self._metadata.topics[topic].attributes):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the topic {topic} has no lite topics: it needs the attribute {MESSAGE_TYPE_ATTRIBUTE}={LITE}",
            )
        check_level(self._metadata.format_level.level, LEVEL_OF_LITE_TOPICS, "lite topics need")
        try:
            check_lite_topic(lite)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        for name, what in _EXCLUDED.items():
            if properties.get(name, "0").lower() not in ("0", "false"):
                raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"a message of a lite topic cannot have {what}")
        queue = lite_queue(topic, lite)
        if self._store.lite_count >= self._topics_max and self._store.get(queue, 0) is None:
            raise RequestRefused(
                ResponseCode.LMQ_QUOTA_EXCEEDED,
                f"there are {self._store.lite_count} lite topics; maximum: {self._topics_max}",
            )
        return LiteTail(queue, self._tails)
