"""Subscribers: pop messages, and call handlers with them."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream.message import StreamMessage
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from mq.client import ClientError, PopConsumer, ReceivedMessage
from mq.protocol import properties as props
from raftmq.attempts import give_up
from raftmq.faststream.config import RaftmqBrokerConfig, SubscriberConfig, SubscriberSpecConfig
from raftmq.faststream.messages import MessageParser, RaftmqMessage
from raftmq.faststream.producer import ReplyPublisher, TopicPublisher

__all__ = ["RaftmqSubscriber", "SubscriberDescription"]

log = logging.getLogger("raftmq.faststream")

REOPEN_SECONDS = 1.0
"""Seconds until a consumer that has failed is opened again: a broker has refused it for good, as without a permission.
"""


class SubscriberDescription(SubscriberSpecification[RaftmqBrokerConfig, SubscriberSpecConfig]):
    """The AsyncAPI description of a subscriber."""

    @property
    def address(self) -> str:
        """The topic, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        """The topic, as the only label of the channel."""
        return [self.address]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Describe the subscriber's channel, for AsyncAPI."""
        payload = resolve_payloads(self.get_payloads())
        operation = Operation(message=Message(title=f"{self.name}:Message", payload=payload), bindings=None)
        return {
            self.name: SubscriberSpec(
                address=self.address, description=self.description, operation=operation, bindings=None
            )
        }


class RaftmqSubscriber(TasksMixin):
    """Pops messages of a topic for a group, `max_workers` at a time."""

    _outer_config: Any
    _numbers = itertools.count()

    def __init__(self, config: SubscriberConfig, specification: SubscriberDescription, calls: Any) -> None:
        self.options = config.options
        self._messages = MessageParser(config.options.retry_delay)
        config.parser = self._messages.parse_message
        config.decoder = self._messages.decode_message
        self.number = next(self._numbers)
        """Rises with each subscriber: FastStream keeps them in a set."""
        super().__init__(config, specification, calls)

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self.options.topic}"

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """The topic, group and message id for log lines about a message."""
        return {
            "topic": self.topic,
            "group": self.options.group,
            "message_id": getattr(message, "message_id", ""),
        }

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[Any]:
        producer = self._outer_config.producer
        raw, consumer = message.raw_message, self._messages.consumer
        if consumer is not None and message.reply_to == raw.properties.get(props.REPLY_TO_CLIENT):
            return (ReplyPublisher(producer, consumer, raw),)
        return (TopicPublisher(producer, message.reply_to),)

    async def start(self) -> None:
        """Open the consumer, and begin to handle messages. Raises ClientError."""
        await super().start()
        if self.calls and self._outer_config.has_brokers:
            consumer = await self._open()
            self._post_start()
            for _ in range(self.options.max_workers):
                self.add_task(self._handle_all, (consumer,), restart_on_failure=False)
        else:
            self._post_start()

    async def _open(self) -> PopConsumer:
        consumer = self._messages.consumer
        if consumer is None:
            consumer = self.options.consumer(self.topic, self._outer_config)
            await self._outer_config.open_consumer(consumer)
            self._messages.consumer = consumer
        return consumer

    async def stop(self) -> None:
        """Wait for handlers, for `graceful_timeout` seconds; messages that are not acknowledged are given back."""
        self.running = False
        consumer = self._messages.consumer
        if consumer is not None:
            await SubscriberUsecase.stop(self)  # waits for the handlers
            self._messages.consumer = None
            await consumer.aclose()
        await super().stop()

    async def _handle_all(self, consumer: PopConsumer) -> None:
        while self.running:
            try:
                message = await self._next(consumer)
            except ClientError as error:
                if self._messages.consumer is not consumer:
                    return  # stopped
                log.error("%s of %s: %s; it is opened again", self.options.group, self.topic, error)
                await anyio.sleep(REOPEN_SECONDS)
                with contextlib.suppress(ClientError):
                    await consumer.open()
                continue
            await self.consume(message)

    async def _next(self, consumer: PopConsumer) -> ReceivedMessage:
        while True:
            message = await anext(consumer)
            if message.reconsume_times < self.options.max_attempts:
                return message
            await give_up(consumer, message, log)

    async def get_one(self, *, timeout: float = 5.0) -> RaftmqMessage | None:
        """The next message, which the caller acknowledges; None after `timeout` seconds without one."""
        assert not self.calls, "a subscriber with handlers has no get_one"
        message: ReceivedMessage | None = None
        with anyio.move_on_after(timeout):
            message = await self._next(await self._open())
        return await self._processed(message)

    async def __aiter__(self) -> AsyncIterator[RaftmqMessage]:  # noqa: ASYNC900 - as FastStream asks for it
        """The messages, for ever; the caller acknowledges them."""
        assert not self.calls, "a subscriber with handlers has no iterator"
        consumer = await self._open()
        while True:
            processed = await self._processed(await self._next(consumer))
            if processed is not None:
                yield processed

    async def _processed(self, message: ReceivedMessage | None) -> RaftmqMessage | None:
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        processed: RaftmqMessage | None = await process_msg(
            msg=message,
            middlewares=(make(message, context=context) for make in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )  # type: ignore[assignment]
        return processed
