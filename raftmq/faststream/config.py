"""The options and configuration of brokers, routers, subscribers and publishers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from faststream import AckPolicy
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY

from mq.client import Admin, PopConsumer, TopicNotFound
from raftmq.faststream.annotations import driver_annotations
from raftmq.faststream.producer import RaftmqProducerUnset

__all__ = [
    "PublisherConfig",
    "PublisherSpecConfig",
    "RaftmqBrokerConfig",
    "SubscriberConfig",
    "SubscriberOptions",
    "SubscriberSpecConfig",
]


@dataclass(kw_only=True)
class RaftmqBrokerConfig(BrokerConfig):
    """The configuration of a broker or router; `consumer_options` are for all its consumers."""

    producer: Any = field(default_factory=RaftmqProducerUnset)
    namesrv: Any = None
    remoting: Any = None
    has_brokers: bool = True
    """Whether there are brokers: not in a `TestRaftmqBroker`."""
    consumer_options: Mapping[str, Any] = field(default_factory=dict)
    default_driver_annotations: Any = field(default_factory=driver_annotations)

    async def open_consumer(self, consumer: PopConsumer) -> None:
        """Open it; if its topic does not exist, create that. Raises ClientError."""
        try:
            await consumer.open()
        except TopicNotFound:
            async with Admin(self.namesrv, remoting=self.remoting) as admin:
                await admin.create_topic(consumer.topic)
            await consumer.open()


@dataclass(kw_only=True, frozen=True)
class SubscriberOptions:
    """The options of a subscriber; see `RaftmqRegistrator.subscriber`."""

    topic: str
    group: str
    tags: Any
    visibility: float
    prefetch: int
    max_workers: int
    max_attempts: int
    retry_delay: float
    consume_from: Any

    def consumer(self, topic: str, config: RaftmqBrokerConfig) -> PopConsumer:
        """The consumer, not open yet."""
        return PopConsumer(
            config.namesrv,
            self.group,
            topic,
            self.tags,
            invisible=self.visibility,
            renew=True,
            ahead=self.prefetch,
            consume_from=self.consume_from,
            remoting=config.remoting,
            **config.consumer_options,
        )


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """The configuration of a subscriber."""

    options: SubscriberOptions

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy set here or in an outer router; by default, messages whose handler fails are redelivered."""
        outer = self._outer_config.ack_policy
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        return AckPolicy.NACK_ON_ERROR if outer is EMPTY else outer


@dataclass(kw_only=True)
class SubscriberSpecConfig(SubscriberSpecificationConfig):
    """The configuration of a subscriber's AsyncAPI description."""

    topic: str


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    """The configuration of a publisher."""

    topic: str
    options: Mapping[str, Any]
    headers: dict[str, Any]


@dataclass(kw_only=True)
class PublisherSpecConfig(PublisherSpecificationConfig):
    """The configuration of a publisher's AsyncAPI description."""

    topic: str
