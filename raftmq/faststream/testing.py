"""Tests of applications without brokers: messages are passed straight to the handlers of their topic."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

import anyio
from faststream._internal.parser import DefaultCodec
from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from mq.client import ReceivedMessage
from mq.client.consume.subscription import subscription_of
from mq.client.message import MessageQueue
from mq.protocol import properties as props
from mq.protocol.messages.records import decode_record, encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from raftmq.faststream.broker import RaftmqBroker
from raftmq.faststream.messages import RaftmqPublishCommand, message_of
from raftmq.faststream.producer import RaftmqProducer
from raftmq.faststream.publisher import RaftmqTopicPublisher
from raftmq.faststream.subscriber import RaftmqSubscriber

__all__ = ["TestRaftmqBroker"]

_offsets = itertools.count()


class TestRaftmqBroker(TestBroker[RaftmqBroker, Any], broker=RaftmqBroker):
    """A test of an application without brokers; each group of a topic gets what its filter selects, once.

    async with TestRaftmqBroker(broker) as tested:
        await tested.publish("hello", "greetings")
        handler.mock.assert_called_once_with("hello")
    """

    def create_publisher_fake_subscriber(
        self, broker: RaftmqBroker, publisher: RaftmqTopicPublisher
    ) -> tuple[RaftmqSubscriber, bool]:
        """Find the subscriber of the publisher's topic, or make one; also returns whether it is the application's."""
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        return broker.subscriber(publisher.topic, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: RaftmqBroker) -> Generator[None]:
        config = broker.config.broker_config
        config.has_brokers = False
        try:
            with change_producer(config, _InMemoryProducer(broker, self.brokers)):
                yield
        finally:
            config.has_brokers = True

    async def _fake_connect(self, broker: RaftmqBroker, *args: Any, **kwargs: Any) -> Any:
        return MagicMock()


class _InMemoryProducer(RaftmqProducer):
    def __init__(self, broker: RaftmqBroker, brokers: Sequence[RaftmqBroker]) -> None:
        super().__init__(broker._parser, broker._decoder)
        self._broker = broker
        self._brokers = brokers
        self.codec = broker.config.broker_codec or DefaultCodec()

    async def _received(self, cmd: RaftmqPublishCommand, body: Any) -> ReceivedMessage:
        encoded, content_type = await self.codec.encode(body, self._broker.config.fd_config._serializer)
        return received(cmd, encoded, content_type)

    async def publish(self, cmd: RaftmqPublishCommand) -> Any:
        message = await self._received(cmd, cmd.body)
        groups: set[str] = set()
        for subscriber in _subscribers(self._brokers):
            if subscriber.options.group not in groups and _gets(subscriber, message):
                groups.add(subscriber.options.group)
                await subscriber.process_message(message)

    async def request(self, cmd: RaftmqPublishCommand) -> Any:
        message = await self._received(cmd, cmd.body)
        for subscriber in _subscribers(self._brokers):
            if _gets(subscriber, message):
                with anyio.fail_after(cmd.timeout):
                    result = await subscriber.process_message(message)
                cmd.headers, cmd.correlation_id = result.headers, result.correlation_id
                return await self._received(cmd, result.body)
        raise SubscriberNotFound


def _subscribers(brokers: Iterable[RaftmqBroker]) -> list[RaftmqSubscriber]:
    """List the subscribers in the order in which the application declared them."""
    found = (each for broker in brokers for each in broker.subscribers if isinstance(each, RaftmqSubscriber))
    return sorted(found, key=lambda each: each.number)


def _gets(subscriber: RaftmqSubscriber, message: ReceivedMessage) -> bool:
    """Whether a broker would give the subscriber the message: its topic and filter match."""
    if subscriber.topic != message.topic:
        return False
    subscription = subscription_of(message.topic, subscriber.options.tags)
    if subscription.sql is not None:
        return subscription.sql.matches(message.properties)
    return subscription.matches_tag(message.tags)


def received(cmd: RaftmqPublishCommand, body: bytes, content_type: str | None) -> ReceivedMessage:
    """The message of a command, as if it had come from a broker."""
    sent = message_of(cmd, body, content_type)
    offset = next(_offsets)
    properties = dict(sent.properties) | {props.UNIQUE_KEY: f"{offset:032X}"}
    for name, value in (
        (props.TAGS, sent.tags),
        (props.KEYS, " ".join(sent.keys)),
        (props.SHARDING_KEY, sent.sharding_key),
    ):
        if value:
            properties[name] = value
    now_ms, host = time.time_ns() // 1_000_000, encode_host("127.0.0.1", 1)
    record = decode_record(
        memoryview(
            encode_record(
                topic=cmd.destination,
                queue_id=0,
                body=sent.body,
                properties=props.encode(properties),
                queue_offset=QueueOffset(offset),
                physical_offset=PhysicalOffset(offset),
                born_timestamp_ms=now_ms,
                born_host=host,
                store_timestamp_ms=now_ms,
                store_host=host,
            )
        )
    )
    return ReceivedMessage(record, MessageQueue(cmd.destination, "in-memory", 0), record.body)
