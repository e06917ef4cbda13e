"""Stores messages whose properties ask for more than a place in their queue: delays, transactions, lite topics."""

from __future__ import annotations

from functools import partial
from typing import Final

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.produce.dedup import Dedup
from mq.broker.produce.lite_topics import LiteTopics
from mq.broker.schedule.waiting_queues import WaitingQueues
from mq.broker.transaction.half_messages import is_half
from mq.broker.transaction.transactions import Transactions
from mq.broker.write_path.outcome import Stored
from mq.broker.write_path.pending import SendRequest
from mq.protocol import properties as props
from mq.protocol.messages.recall_handle import recall_fields
from mq.protocol.messages.sequencing import SequenceRange
from mq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, TIMER_TOPIC

_OF_BROKER: Final = frozenset((props.LITE_QUEUE, props.LITE_OFFSET, props.LITE_PLACE, props.DELAY))
"""The properties that only the broker writes into a message of a lite topic, or that have no effect there."""


class Placement:
    """Stores messages with special properties for `mq.broker.produce.send`, after topic and queue are checked."""

    def __init__(
        self, context: BrokerContext, *, places: WaitingQueues, dedup: Dedup, transactions: Transactions
    ) -> None:
        self._broker_name = context.settings.group
        self._internal_messages = context.internal_messages
        self._places = places
        self._tails = context.queue_tails
        self._dedup = dedup
        self._transactions = transactions
        self._lite = LiteTopics(context)
        self._wall_clock_ms = context.wall_clock_ms

    def add(self, call: Call[SendRequest], properties: dict[str, str], topic: str, queue_id: int) -> None:
        """Append a message with special properties to the log. The client gets the response when it is committed.

        Raises:
            RequestRefused: the message was not stored, and will not be.
        """
        # A message to a retry topic is a consumer's copy of a received message, with all its properties.
        is_copy = topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        if not is_copy:
            self._internal_messages.check_sent(call.request.ext.properties)
        if is_copy or props.SEQUENCE not in properties:
            self._add(call, properties, topic, queue_id, None)
            return
        send = self._dedup.admit(call, properties)
        if send is None:
            return
        try:
            self._add(send.call, properties, topic, queue_id, send.numbers)
        except RequestRefused:
            send.end()
            raise

    def _add(
        self,
        call: Call[SendRequest],
        properties: dict[str, str],
        topic: str,
        queue_id: int,
        sequence: SequenceRange | None,
    ) -> None:
        if props.LITE_TOPIC in properties and not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            self._internal_messages.add(
                call,
                tail=self._tails.get(topic, queue_id),
                properties={name: value for name, value in properties.items() if name not in _OF_BROKER},
                queue_id=queue_id,
                sequence=sequence,
                lite=self._lite.tail(properties, topic),
            )
            return
        if is_half(properties, call.request.ext.reconsume_times):
            tail, properties = self._transactions.place_half(properties, topic, queue_id)
        else:
            tail, properties = self._places.place(properties, topic, queue_id, self._wall_clock_ms())
        self._internal_messages.add(
            call,
            tail=tail,
            properties=properties,
            queue_id=queue_id,
            more=partial(self._recall_fields, topic, properties) if tail.topic == TIMER_TOPIC else None,
            sequence=sequence,
        )

    def _recall_fields(self, topic: str, properties: dict[str, str], at: Stored, unique_key: str) -> dict[str, str]:
        return recall_fields(self._broker_name, topic, properties, at.queue_offset, unique_key)
