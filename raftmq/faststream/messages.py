"""Converts messages of the SDK to FastStream's, and back."""

from __future__ import annotations

from typing import Any

from faststream.message import StreamMessage, decode_message
from faststream.response import PublishCommand, Response
from faststream.response.publish_type import PublishType

from mq.client import Message, PopConsumer, PoppedMessage, ReceivedMessage
from mq.protocol import properties as props

__all__ = ["MessageParser", "RaftmqMessage", "RaftmqPublishCommand", "RaftmqResponse", "message_of"]

CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TO = "reply_to"
EMPTY = "faststream_empty"
"""The property of a message that FastStream sees without a body; brokers store none of these."""


class RaftmqMessage(StreamMessage[ReceivedMessage]):
    """A message in a handler. `raw_message` is the SDK's message."""

    consumer: PopConsumer | None = None
    """The consumer that popped it; None for replies, and in tests without brokers."""
    retry_delay = 0.0

    async def ack(self) -> None:
        """Acknowledge it. Raises ClientError if that is not confirmed in time."""
        if self.committed is None and self._popped is not None:
            consumer, message = self._popped
            await consumer.ack(message)
        await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """Redeliver the message in `delay` seconds, by default its subscriber's `retry_delay`. Raises ClientError."""
        if self.committed is None and self._popped is not None:
            consumer, message = self._popped
            await consumer.nack(message, delay=self.retry_delay if delay is None else delay)
        await super().nack()

    async def reject(self, reason: str = "rejected by its handler") -> None:
        """Store it in the dead letter topic of the group. Raises ClientError; then it is redelivered."""
        if self.committed is None and self._popped is not None:
            consumer, message = self._popped
            await consumer.dead_letter(message, reason)
            await consumer.ack(message)
        await super().reject()

    @property
    def _popped(self) -> tuple[PopConsumer, PoppedMessage] | None:
        if self.consumer is None or not isinstance(self.raw_message, PoppedMessage):
            return None
        return self.consumer, self.raw_message


class MessageParser:
    """Makes FastStream's messages from the messages that `consumer` popped."""

    def __init__(self, retry_delay: float = 0.0) -> None:
        self.consumer: PopConsumer | None = None
        self._retry_delay = retry_delay

    async def parse_message(self, message: ReceivedMessage) -> RaftmqMessage:
        """Convert a received message to FastStream's."""
        properties = dict(message.user_properties)
        reply_to = properties.pop(REPLY_TO, "") or message.properties.get(props.REPLY_TO_CLIENT, "")
        parsed = RaftmqMessage(
            raw_message=message,
            body=b"" if properties.pop(EMPTY, None) else message.body,
            headers=properties,
            reply_to=reply_to,
            content_type=properties.get(CONTENT_TYPE),
            correlation_id=properties.get(CORRELATION_ID),
            message_id=message.message_id,
        )
        parsed.consumer = self.consumer
        parsed.retry_delay = self._retry_delay
        return parsed

    async def decode_message(self, message: StreamMessage[Any]) -> Any:
        """Decode the body of a message by its content type."""
        return decode_message(message)


class RaftmqResponse(Response):
    """A handler's response with more than a body."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        tags: str | None = None,
        keys: tuple[str, ...] = (),
        sharding_key: str | None = None,
        delay: float | None = None,
    ) -> None:
        super().__init__(body=body, headers=headers, correlation_id=correlation_id)
        self.options: dict[str, Any] = {"tags": tags, "keys": keys, "sharding_key": sharding_key, "delay": delay}

    def as_publish_command(self) -> RaftmqPublishCommand:
        """Make the command that publishes this response."""
        return RaftmqPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            _publish_type=PublishType.PUBLISH,
            **self.options,
        )


class RaftmqPublishCommand(PublishCommand):
    """A message to send, with its destination."""

    def __init__(
        self,
        message: Any,
        *,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        tags: str | None = None,
        keys: tuple[str, ...] = (),
        sharding_key: str | None = None,
        delay: float | None = None,
        timeout: float | None = None,
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            body=message,
            destination=topic,
            correlation_id=correlation_id,
            headers=headers,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.tags = tags
        self.keys = keys
        self.sharding_key = sharding_key
        self.delay = delay
        self.timeout = timeout

    @classmethod
    def from_cmd(cls, cmd: PublishCommand) -> RaftmqPublishCommand:
        """A command of any broker as one of this."""
        if isinstance(cmd, RaftmqPublishCommand):
            return cmd
        return cls(
            cmd.body,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )


def message_of(cmd: RaftmqPublishCommand, body: bytes, content_type: str | None) -> Message:
    """The message to send. Its properties are the headers, as text, and what FastStream needs."""
    properties = {name: str(value) for name, value in cmd.headers.items()}
    if content_type:
        properties[CONTENT_TYPE] = content_type
    if cmd.correlation_id:
        properties[CORRELATION_ID] = cmd.correlation_id
    if cmd.reply_to:
        properties[REPLY_TO] = cmd.reply_to
    if not body:
        properties[EMPTY] = "true"
    return Message(
        cmd.destination,
        body or b"\0",
        tags=cmd.tags,
        keys=cmd.keys,
        properties=properties,
        sharding_key=cmd.sharding_key,
        delay=cmd.delay,
    )
