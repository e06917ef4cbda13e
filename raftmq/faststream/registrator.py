"""`subscriber` and `publisher`, of brokers and routers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from faststream import AckPolicy
from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection

from mq.client import Sql
from raftmq.faststream.config import (
    PublisherConfig,
    PublisherSpecConfig,
    RaftmqBrokerConfig,
    SubscriberConfig,
    SubscriberOptions,
    SubscriberSpecConfig,
)
from raftmq.faststream.publisher import PublisherDescription, RaftmqTopicPublisher
from raftmq.faststream.subscriber import RaftmqSubscriber, SubscriberDescription

__all__ = ["RaftmqRegistrator"]


class RaftmqRegistrator(Registrator[Any, RaftmqBrokerConfig]):
    """The common methods of brokers and routers."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str = "faststream",
        tags: str | Sql = "*",
        visibility: float = 60.0,
        prefetch: int = 0,
        max_workers: int = 1,
        max_attempts: int = 16,
        retry_delay: float = 10.0,
        consume_from: Literal["first", "last"] = "last",
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> RaftmqSubscriber:
        """Handle messages of a topic, together with all subscribers of the group.

        `max_workers` messages are handled at a time, and `prefetch` more may wait here. A message stays with its
        subscriber until it is acknowledged; if its process is killed, others get it `visibility` seconds later. If its
        handler fails, it comes again after `retry_delay` seconds; after `max_attempts` deliveries it is a dead letter.
        A new group begins at `consume_from`.
        """
        if max_workers < 1 or max_attempts < 1:
            raise ValueError(f"max_workers {max_workers} and max_attempts {max_attempts} must be at least 1")
        config = cast("RaftmqBrokerConfig", self.config)
        options = SubscriberOptions(
            topic=topic,
            group=group,
            tags=tags,
            visibility=visibility,
            prefetch=prefetch,
            max_workers=max_workers,
            max_attempts=max_attempts,
            retry_delay=retry_delay,
            consume_from=consume_from,
        )
        calls = CallsCollection[Any]()
        description_config = SubscriberSpecConfig(
            topic=topic, title_=title, description_=description, include_in_schema=include_in_schema
        )
        subscriber = RaftmqSubscriber(
            SubscriberConfig(_outer_config=config, options=options, no_reply=no_reply, _ack_policy=ack_policy),
            SubscriberDescription(config, description_config, calls),
            calls,
        )
        super().subscriber(subscriber, persistent=persistent)
        subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )
        return subscriber

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        tags: str | None = None,
        keys: tuple[str, ...] = (),
        sharding_key: str | None = None,
        delay: float | None = None,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
    ) -> RaftmqTopicPublisher:
        """Send to a topic: what a handler returns, or by `publish`."""
        config = cast("RaftmqBrokerConfig", self.config)
        description_config = PublisherSpecConfig(
            topic=topic, schema_=schema, title_=title, description_=description, include_in_schema=include_in_schema
        )
        options = {"tags": tags, "keys": keys, "sharding_key": sharding_key, "delay": delay, "reply_to": reply_to}
        publisher = RaftmqTopicPublisher(
            PublisherConfig(_outer_config=config, topic=topic, options=options, headers=headers or {}),
            PublisherDescription(config, description_config),
        )
        super().publisher(publisher, persistent=persistent)
        return publisher
