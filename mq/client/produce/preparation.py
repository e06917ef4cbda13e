"""Prepares messages for sending: checks their queue, compresses them, and gives them ids and spans."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from mq.client.errors import MessageRefused
from mq.client.message import Message, MessageQueue
from mq.client.produce.numbering import Numbering
from mq.client.produce.outgoing_message import OutgoingMessage, make_batch_ready, make_ready
from mq.client.spans import SendSpan, Spans
from mq.protocol import properties as props
from mq.protocol.message_ids import UniqKeyGenerator
from mq.protocol.messages.compression import Codec


def wall_clock_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Preparation:
    """Prepares the messages of one producer while it is open.

    Args:
        compress, compress_bytes_min: see `Producer`.
        spans: None without OpenTelemetry.
        numbering: None if the messages get no numbers; leaves room for them.
    """

    def __init__(
        self,
        unique_keys: UniqKeyGenerator,
        spans: Spans | None,
        *,
        compress: Codec | None,
        compress_bytes_min: int,
        numbering: Numbering | None = None,
    ) -> None:
        self._numbering = numbering
        self._unique_keys = unique_keys
        self._spans = spans
        self._compress = compress
        self._compress_bytes_min = compress_bytes_min

    def message(
        self, message: Message, queue: MessageQueue | None, own: Mapping[str, str] | None
    ) -> tuple[OutgoingMessage, SendSpan | None]:
        """Prepare a message with the further properties ``own``, and start its span. Raises MessageRefused."""
        if queue is not None:
            _check_queue(message.topic, queue)
        span = None
        if self._spans is not None:
            span = self._spans.start_send([message], transaction=bool(own and props.TRANSACTION_PREPARED in own))
            message = message if span is None else span.with_span_context(message)
        try:
            outgoing = make_ready(
                message,
                unique_key=self._unique_keys.next(),
                born_timestamp_ms=time.time_ns() // 1_000_000,
                compress=self._compress,
                compress_bytes_min=self._compress_bytes_min,
                own=own,
                room_bytes=0 if self._numbering is None else self._numbering.room_for(message.properties),
            )
        except MessageRefused as error:
            if span is not None:
                span.not_sent(error)
            raise
        return outgoing, span

    def batch(
        self, messages: Sequence[Message], queue: MessageQueue | None, properties: Mapping[str, str] | None
    ) -> tuple[OutgoingMessage, SendSpan | None]:
        """Prepare messages of one topic for one request, and start their span. Raises MessageRefused."""
        span = None if self._spans is None else self._spans.start_send(messages, is_batch=True)
        try:
            outgoing = make_batch_ready(
                messages,
                new_unique_key=self._unique_keys.next,
                born_timestamp_ms=wall_clock_ms(),
                properties={**(properties or {}), **(span.carrier if span is not None else {})},
                room_bytes=0 if self._numbering is None else self._numbering.room_in_batch(messages, properties or {}),
            )
            if queue is not None:
                _check_queue(outgoing.topic, queue)
        except MessageRefused as error:
            if span is not None:
                span.not_sent(error)
            raise
        return outgoing, span


def _check_queue(topic: str, queue: MessageQueue) -> None:
    any_queue: Any = queue
    if not isinstance(any_queue, MessageQueue):
        raise MessageRefused(f"queue is one that queues(topic) returns, not {any_queue!r}")
    if queue.topic != topic:
        raise MessageRefused(f"a message of topic {topic} cannot go to a queue of {queue.topic}")
