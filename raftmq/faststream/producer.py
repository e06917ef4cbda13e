"""Sends for FastStream: messages, requests and replies."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException, IncorrectState
from faststream.response import PublishCommand
from faststream.response.publish_type import PublishType

from mq.client import (
    ClientError,
    NoReply,
    NotARequest,
    PopConsumer,
    Producer,
    ReceivedMessage,
    ReplyNotDelivered,
    SendResult,
)
from raftmq.faststream.messages import MessageParser, RaftmqPublishCommand, message_of

log = logging.getLogger("raftmq.faststream")

__all__ = ["RaftmqProducer", "RaftmqProducerUnset", "ReplyPublisher", "TopicPublisher"]


class RaftmqProducer(ProducerProto[RaftmqPublishCommand]):
    """FastStream's view of a `Producer`, while that is open."""

    def __init__(self, parser: Any, decoder: Any) -> None:
        default = MessageParser()
        self._parser: Callable[[Any], Awaitable[Any]] = ParserComposition(parser, default.parse_message)
        self._decoder: Callable[[Any], Awaitable[Any]] = ParserComposition(decoder, default.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: Any = None
        self._producer: Producer | None = None

    def connect(self, producer: Producer | None, serializer: Any, codec: CodecProto | None) -> None:
        """Send by this producer from now on; None: by none."""
        self._producer = producer
        self.serializer = serializer
        self.codec = codec or DefaultCodec()

    def _connected(self) -> Producer:
        if self._producer is None:
            raise IncorrectState("the broker is not connected: await broker.connect(), or start it")
        return self._producer

    async def publish(self, cmd: RaftmqPublishCommand) -> SendResult:
        """Send, and wait until it is stored. Raises ClientError; its `stored` says whether it may be."""
        producer = self._connected()
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        return await producer.send(message_of(cmd, body, content_type))

    async def request(self, cmd: RaftmqPublishCommand) -> ReceivedMessage:
        """Send, and wait for the reply. Raises TimeoutError if none came in time, and ClientError."""
        began = anyio.current_time()
        producer = self._connected()
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        try:
            return await producer.request(message_of(cmd, body, content_type), timeout=cmd.timeout)
        except ClientError as error:
            is_late = cmd.timeout is not None and anyio.current_time() - began >= cmd.timeout
            if isinstance(error, NoReply) or is_late:
                raise TimeoutError(str(error)) from error
            raise

    async def publish_batch(self, cmd: RaftmqPublishCommand) -> Any:
        """Raise FeatureNotSupportedException: raftmq has no batches in FastStream's sense."""
        raise FeatureNotSupportedException("batches: publish messages at once, with RaftmqBroker(linger=0.005)")


class RaftmqProducerUnset(RaftmqProducer):
    """The producer of a router, which has no broker yet."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def __bool__(self) -> bool:
        return False


class TopicPublisher(FakePublisher):
    """Sends what a handler returns to the topic that `reply_to` of its message names."""

    def __init__(self, producer: RaftmqProducer, topic: str) -> None:
        super().__init__(producer=producer)
        self._topic = topic

    def patch_command(self, cmd: PublishCommand) -> RaftmqPublishCommand:
        """Set the topic of a command."""
        own = RaftmqPublishCommand.from_cmd(super().patch_command(cmd))
        own.destination = self._topic
        return own


class ReplyPublisher(FakePublisher):
    """Replies to a request with what its handler returns."""

    def __init__(self, producer: RaftmqProducer, consumer: PopConsumer, request: ReceivedMessage) -> None:
        super().__init__(producer=_Replies(producer, consumer, request))

    def patch_command(self, cmd: PublishCommand) -> RaftmqPublishCommand:
        """Mark a command as a reply."""
        own = RaftmqPublishCommand.from_cmd(super().patch_command(cmd))
        own.publish_type = PublishType.REPLY
        return own


class _Replies(RaftmqProducer):
    def __init__(self, producer: RaftmqProducer, consumer: PopConsumer, request: ReceivedMessage) -> None:
        super().__init__(None, None)
        self.connect(producer._producer, producer.serializer, producer.codec)
        self._consumer = consumer
        self._request = request

    async def publish(self, cmd: RaftmqPublishCommand) -> Any:
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        message = message_of(cmd, body, content_type)
        try:
            await self._consumer.reply(self._request, message.body, properties=message.properties)
        except (NotARequest, ReplyNotDelivered) as error:
            log.info("no reply to %s: %s", self._request, error)  # no caller waits for it any longer
