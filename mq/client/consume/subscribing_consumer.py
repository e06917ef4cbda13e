"""The subscriptions of a push consumer: topics with their filters, handlers, policies and codecs."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from mq.client.body_codecs import BodyCodec, check_body_codec
from mq.client.consume.consumer import PositionedConsumer
from mq.client.consume.handler_options import check_handler
from mq.client.consume.handlers import HandlerPool, MiddlewareT
from mq.client.consume.policies import OnError, check_policies
from mq.client.consume.stop_signals import check_seconds
from mq.client.consume.subscription import TopicSubscription, subscription_of
from mq.client.filters import Filter
from mq.client.message import BodyT, ReceivedMessage
from mq.protocol.names import check_topic, retry_topic

ValueT = TypeVar("ValueT")
ReturnT = TypeVar("ReturnT", bound=Awaitable[None])


class SubscribingConsumer(PositionedConsumer[BodyT]):
    """A consumer with subscriptions and handlers; its subclass makes `_handlers`."""

    _handlers: HandlerPool
    _subscriptions: dict[str, TopicSubscription]
    _retries_at_brokers: bool
    """Whether failed messages come back through the group's retry topic."""

    @abstractmethod
    def _subscriptions_changed(self) -> None:
        """Send the subscriptions to the brokers, and take or release queues."""

    @property
    def _retry_topic(self) -> str:
        return retry_topic(self.group)

    def _codec_of(self, topic: str) -> BodyCodec[Any] | None:
        subscription = self._subscriptions.get(topic)
        return self._codec if subscription is None or subscription.codec is None else subscription.codec

    def subscribe(self, topic: str, tags: str | Filter = "*", *, filter: Filter | None = None) -> None:  # noqa: A002
        """Receive the messages of `topic` with one of `tags`: `"A || B"`, or `"*"` for all.

        With `mq.client.sql("a > 5")` instead, those whose properties satisfy the expression. With
        `filter=WasmFilter(module)` or `filter=BodyFilter(expression)`, those that a filter server lets through; with
        tags besides, only messages with one of them reach that filter.

        All members of a group must have the same subscriptions. Raises NameRefused, SubscriptionError.
        """
        self._subscribe(topic, tags, filter_=filter)

    @overload
    def on(
        self,
        topic: str,
        tags: str | Filter = "*",
        *,
        batch: None = None,
        timeout: float | None = None,
        on_error: OnError | None = None,
        codec: None = None,
    ) -> Callable[
        [Callable[[ReceivedMessage[BodyT]], ReturnT]],
        Callable[[ReceivedMessage[BodyT]], ReturnT],
    ]: ...
    @overload
    def on(
        self,
        topic: str,
        tags: str | Filter = "*",
        *,
        batch: int,
        timeout: float | None = None,
        on_error: OnError | None = None,
        codec: None = None,
    ) -> Callable[
        [Callable[[list[ReceivedMessage[BodyT]]], ReturnT]],
        Callable[[list[ReceivedMessage[BodyT]]], ReturnT],
    ]: ...
    @overload
    def on(
        self,
        topic: str,
        tags: str | Filter = "*",
        *,
        batch: None = None,
        timeout: float | None = None,
        on_error: OnError | None = None,
        codec: BodyCodec[ValueT],
    ) -> Callable[
        [Callable[[ReceivedMessage[ValueT]], ReturnT]],
        Callable[[ReceivedMessage[ValueT]], ReturnT],
    ]: ...
    @overload
    def on(
        self,
        topic: str,
        tags: str | Filter = "*",
        *,
        batch: int,
        timeout: float | None = None,
        on_error: OnError | None = None,
        codec: BodyCodec[ValueT],
    ) -> Callable[
        [Callable[[list[ReceivedMessage[ValueT]]], ReturnT]],
        Callable[[list[ReceivedMessage[ValueT]]], ReturnT],
    ]: ...
    def on(
        self,
        topic: str,
        tags: str | Filter = "*",
        *,
        batch: int | None = None,
        timeout: float | None = None,
        on_error: OnError | None = None,
        codec: BodyCodec[Any] | None = None,
    ) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """Decorator: subscribe to `topic`, and pass each message of it to this coroutine function during `run`.

        With `batch` it gets lists of 1 to `batch` messages of one queue, which succeed or fail together. After
        `timeout` seconds the function is cancelled, and has failed with TimeoutError. `on_error` says what becomes of
        its messages by exception, see `mq.client.consume.policies`; exceptions that it does not name are looked up in
        the consumer's. `codec` decodes the bodies, by default that of the consumer; a message whose body it cannot
        decode fails with BodyNotDecoded, without its handler, and without others of its batch.

        A topic has one handler: ValueError is raised for a second one.
        """
        self._check_process()
        if timeout is not None:
            check_seconds("timeout", timeout)
        policies = check_policies(on_error)
        check_body_codec(codec)
        if batch is not None and batch < 1:
            raise ValueError(f"batch {batch} must be at least 1")
        if callable(topic):
            raise TypeError('pass the topic: @consumer.on("Orders")')

        def register(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
            check_handler(handler, "message" if batch is None else "messages")
            before = self._subscriptions.get(topic)
            if before is not None and before.handler is not None:
                raise ValueError(
                    f"topic {topic} already has a handler; it would get no more messages. Name the tags of both in one "
                    f"handler, as 'a || b', and look at message.tags; or call unsubscribe({topic!r}) first"
                )
            self._subscribe(topic, tags, handler, batch, timeout, policies, codec)
            return handler

        return register

    def use(self, middleware: MiddlewareT) -> MiddlewareT:
        """Decorator: call this coroutine function around each handler, `async def f(message, call_next)`.

        It awaits `call_next(message)`, or does not handle the message; it may raise as a handler. For a handler
        with `batch` it gets the list. The first one is the outermost. It applies from the next messages on.
        """
        self._check_process()
        check_handler(middleware, "message", "call_next")
        self._handlers.middleware.append(middleware)
        return middleware

    def unsubscribe(self, topic: str) -> None:
        """Stop receiving messages of `topic`. Its queues are released soon."""
        self._check_process()
        self._subscriptions.pop(topic, None)
        self._subscriptions_changed()

    def _subscribe(
        self,
        topic: str,
        tags: str | Filter,
        handler: Callable[[Any], Awaitable[None]] | None = None,
        batch: int | None = None,
        timeout: float | None = None,
        on_error: OnError | None = None,
        codec: BodyCodec[Any] | None = None,
        filter_: Filter | None = None,
    ) -> None:
        self._check_process()
        check_topic(topic)
        self._subscriptions[topic] = TopicSubscription(
            subscription=subscription_of(topic, tags, filter_),
            sub_version=int(time.time() * 1000),
            handler=handler,
            batch=batch,
            timeout=timeout,
            on_error=on_error or {},
            codec=codec,
        )
        self._decoder.is_on |= codec is not None
        if self._retries_at_brokers and self._retry_topic not in self._subscriptions:
            self._subscribe(self._retry_topic, "*", self._handlers.handle_again)
            return
        self._subscriptions_changed()
