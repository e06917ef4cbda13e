"""The SDK for programs without an event loop: the same clients, run by an event loop in a thread of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.from_thread

from mq.client.consumer import PushConsumer
from mq.client.delivery import MessageStream
from mq.client.errors import ClientClosed, ClientError
from mq.client.filters import Sql
from mq.client.message import Message, MessageQueue, ReceivedMessage, SendResult
from mq.client.producer import Producer

__all__ = ["SyncConsumer", "SyncProducer"]


class SyncProducer:
    """`Producer` for threads; takes the same arguments and may be used by many threads at once.

    with SyncProducer("127.0.0.1:9876", group="orders") as producer:
        producer.send(Message("Orders", b"body"))
    """

    def __init__(self, namesrv: str | Sequence[str], group: str = "raftmq_python", **options: Any) -> None:
        self._producer = Producer(namesrv, group, **options)
        self._portal: anyio.from_thread.BlockingPortal | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(anyio.from_thread.start_blocking_portal("trio"))
            stack.enter_context(self._portal.wrap_async_context_manager(self._producer))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._portal = None
        self._stack.__exit__(kind, error, traceback)

    def _call(self, function: Callable[[], Any]) -> Any:
        if self._portal is None:
            raise ClientClosed("enter the producer first: with SyncProducer(...) as producer")
        return self._portal.call(function)

    def send(self, message: Message, *, timeout: float | None = None, queue: MessageQueue | None = None) -> SendResult:
        """As `Producer.send`."""
        result: SendResult = self._call(lambda: self._producer.send(message, timeout=timeout, queue=queue))
        return result

    def send_batch(
        self, messages: Sequence[Message], *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> list[SendResult]:
        """As `Producer.send_batch`."""
        results: list[SendResult] = self._call(
            lambda: self._producer.send_batch(messages, timeout=timeout, queue=queue)
        )
        return results

    def send_many(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[SendResult | ClientError]:
        """As `Producer.send_many`."""
        outcomes: list[SendResult | ClientError] = self._call(
            lambda: self._producer.send_many(messages, timeout=timeout)
        )
        return outcomes


class SyncConsumer:
    """`PushConsumer` for threads; takes the same arguments.

        with SyncConsumer("127.0.0.1:9876", group="billing") as consumer:
            consumer.subscribe("Orders")
            for message in consumer: ...

    A message is acknowledged when the next one is asked for.
    """

    def __init__(self, namesrv: str | Sequence[str], group: str, **options: Any) -> None:
        self._consumer = PushConsumer(namesrv, group, **options)
        self._portal: anyio.from_thread.BlockingPortal | None = None
        self._stream: MessageStream | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(anyio.from_thread.start_blocking_portal("trio"))
            stack.enter_context(self._portal.wrap_async_context_manager(self._consumer))
            self._stream = aiter(self._consumer)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._portal = None
        self._stack.__exit__(kind, error, traceback)

    def _call(self, function: Callable[[], Any]) -> Any:
        if self._portal is None:
            raise ClientClosed("enter the consumer first: with SyncConsumer(...) as consumer")
        return self._portal.call(function)

    def subscribe(self, topic: str, tags: str | Sql = "*") -> None:
        """As `PushConsumer.subscribe`."""
        self._call(lambda: self._consumer.subscribe(topic, tags))

    def receive(self, *, timeout: float | None = None) -> ReceivedMessage | None:
        """The next message, acknowledging the one before; None after `timeout` seconds without one."""

        async def next_message() -> ReceivedMessage | None:
            assert self._stream is not None, "entered without a stream"
            with anyio.move_on_after(timeout):
                return await anext(self._stream)
            return None

        message: ReceivedMessage | None = self._call(next_message)
        return message

    def commit(self) -> None:
        """As `PushConsumer.commit`; the message received last is not acknowledged yet."""
        self._call(self._consumer.commit)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while (message := self.receive()) is not None:
            yield message
