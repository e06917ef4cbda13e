"""The synchronous consumers."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from types import FrameType, TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, cast, overload

import anyio
import anyio.to_thread

from mq.client.body_codecs import BodyCodec
from mq.client.consume.consumer import Consumer
from mq.client.consume.delivery import Delivery, DeliveryStream, MessageStream
from mq.client.consume.handler_options import check_synchronous
from mq.client.consume.lite_consumer import LiteConsumer, LiteConsumerOptions
from mq.client.consume.policies import OnError
from mq.client.consume.pop_consumer import PopConsumer, PopConsumerOptions
from mq.client.consume.popped_messages import PoppedMessage
from mq.client.consume.pull_consumer import PullConsumer, PullConsumerOptions, PulledMessages
from mq.client.consume.push_consumer import DRAIN_SECONDS, PushConsumer, PushConsumerOptions
from mq.client.consume.stop_signals import SIGNALS, check_seconds, log_signal
from mq.client.errors import ClientError
from mq.client.filters import Filter, Sql
from mq.client.message import BodyT, MessageQueue, ReceivedMessage
from mq.client.produce.reply import REPLY_SECONDS
from mq.client.sync.facade import Facade, at_once, run_without_event_loop, waits

ValueT = TypeVar("ValueT")
ClientT = TypeVar("ClientT", bound=Consumer[Any])
MessageT = TypeVar("MessageT")
PopT = TypeVar("PopT", bound=PopConsumer[Any])
SyncMiddlewareT = TypeVar("SyncMiddlewareT", bound=Callable[[Any, Callable[[Any], None]], None])


class _SyncConsumer(Facade[ClientT], Generic[ClientT, BodyT], of=Consumer):
    """The base of all consumers for threads."""

    dead_letter = waits(Consumer.dead_letter)

    @overload
    def reply(
        self,
        message: ReceivedMessage[Any],
        body: BodyT,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float = REPLY_SECONDS,
        codec: None = None,
    ) -> None: ...
    @overload
    def reply(
        self,
        message: ReceivedMessage[Any],
        body: ValueT,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float = REPLY_SECONDS,
        codec: BodyCodec[ValueT],
    ) -> None: ...
    def reply(
        self,
        message: ReceivedMessage[Any],
        body: Any,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float = REPLY_SECONDS,
        codec: BodyCodec[Any] | None = None,
    ) -> None:
        """Works like `PushConsumer.reply`."""
        reply = cast("Callable[..., Awaitable[None]]", self._client.reply)
        self._call(reply, message, body, properties=properties, timeout=timeout, codec=codec)

    def _receive(
        self, rest: deque[MessageT], receive_next: Callable[[], Awaitable[MessageT]], timeout: float | None
    ) -> MessageT | None:
        """Take a message that an interrupted call left in ``rest``, or call ``receive_next``; None after `timeout`."""
        messages: list[MessageT] = []

        async def take() -> None:
            if rest:
                messages.append(rest.popleft())
                return
            with anyio.move_on_after(timeout):
                messages.append(await receive_next())

        try:
            self._call(take)
        except BaseException:
            rest.extend(messages)
            raise
        return messages[0] if messages else None


class SyncPushConsumer(_SyncConsumer[PushConsumer[BodyT], BodyT], of=PushConsumer):
    """`PushConsumer` for threads; takes the same arguments.

        with SyncPushConsumer("127.0.0.1:9876", group="billing") as consumer:
            consumer.subscribe("Orders")
            for message in consumer: ...

    Receiving the next message acknowledges the previous one. With handlers instead, which are plain functions, each
    runs in one of `concurrency` threads:

        @consumer.on("Orders")
        def bill(message: ReceivedMessage) -> None: ...

        consumer.run()
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        *,
        codec: BodyCodec[BodyT] | None = None,
        **options: Unpack[PushConsumerOptions],
    ) -> None:
        super().__init__(run_without_event_loop(lambda: PushConsumer(namesrv, group, codec=codec, **options)))
        self._limiter = run_without_event_loop(anyio.CapacityLimiter, options.get("concurrency", 16))
        self._middleware: list[Callable[..., None]] = []
        self._stream: MessageStream[BodyT] | None = None
        self._leftovers: deque[ReceivedMessage[BodyT]] = deque()
        """Messages for a `receive` that was interrupted."""

    def open(self) -> Self:
        """Open the consumer, as `Facade.open` does."""
        self._stream = None
        self._leftovers.clear()
        return super().open()

    def _before_close(self) -> None:
        if self._thread is not None:
            self.stop()

    subscribe = at_once(PushConsumer.subscribe)
    unsubscribe = at_once(PushConsumer.unsubscribe)
    pause = at_once(PushConsumer.pause)
    resume = at_once(PushConsumer.resume)
    stop = at_once(PushConsumer.stop)
    commit = waits(PushConsumer.commit)
    lag = waits(PushConsumer.lag)
    wait_assigned = waits(PushConsumer.wait_assigned)

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """Works like `PushConsumer.assignment`."""
        return self._call_now(lambda: self._client.assignment)

    @property
    def positions(self) -> Mapping[MessageQueue, int]:
        """Works like `PushConsumer.positions`."""
        return self._call_now(lambda: self._client.positions)

    @overload
    def on(
        self,
        topic: str,
        tags: str | Filter = "*",
        *,
        batch: None = None,
        on_error: OnError | None = None,
        codec: None = None,
    ) -> Callable[[Callable[[ReceivedMessage[BodyT]], None]], Callable[[ReceivedMessage[BodyT]], None]]: ...
    @overload
    def on(
        self,
        topic: str,
        tags: str | Filter = "*",
        *,
        batch: None = None,
        on_error: OnError | None = None,
        codec: BodyCodec[ValueT],
    ) -> Callable[[Callable[[ReceivedMessage[ValueT]], None]], Callable[[ReceivedMessage[ValueT]], None]]: ...
    @overload
    def on(
        self,
        topic: str,
        tags: str | Filter = "*",
        *,
        batch: int,
        on_error: OnError | None = None,
        codec: None = None,
    ) -> Callable[[Callable[[list[ReceivedMessage[BodyT]]], None]], Callable[[list[ReceivedMessage[BodyT]]], None]]: ...
    @overload
    def on(
        self,
        topic: str,
        tags: str | Filter = "*",
        *,
        batch: int,
        on_error: OnError | None = None,
        codec: BodyCodec[ValueT],
    ) -> Callable[
        [Callable[[list[ReceivedMessage[ValueT]]], None]], Callable[[list[ReceivedMessage[ValueT]]], None]
    ]: ...
    def on(
        self,
        topic: str,
        tags: str | Filter = "*",
        *,
        batch: int | None = None,
        on_error: OnError | None = None,
        codec: BodyCodec[Any] | None = None,
    ) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
        """Works like `PushConsumer.on`, for plain functions; without `timeout`, because threads cannot be cancelled."""
        self._check_process()

        def register(handler: Callable[[Any], None]) -> Callable[[Any], None]:
            check_synchronous("a handler", handler, "message" if batch is None else "messages")
            subscribe = cast("Callable[..., Any]", self._client.on)
            decorate = functools.partial(subscribe, topic, tags, batch=batch, on_error=on_error, codec=codec)
            self._call_now(lambda: decorate()(self._in_thread(handler)))
            return handler

        return register

    def use(self, middleware: SyncMiddlewareT) -> SyncMiddlewareT:
        """Works like `PushConsumer.use`, for a plain function `f(message, call_next)`, in the thread of the handler."""
        self._check_process()
        check_synchronous("middleware", middleware, "message", "call_next")
        self._middleware.append(middleware)
        return middleware

    def run(
        self,
        handler: Callable[[ReceivedMessage[BodyT]], None] | None = None,
        *,
        signals: bool = False,
        drain_timeout: float = DRAIN_SECONDS,
    ) -> None:
        """Works like `PushConsumer.run`, for a plain function. Any thread may call `stop`, which waits for handlers."""
        check_seconds("drain_timeout", drain_timeout)
        if handler is not None:
            check_synchronous("a handler", handler, "message")
        async_handler = None if handler is None else self._in_thread(handler)
        with self._draining_on_signals(drain_timeout) if signals else contextlib.nullcontext():
            self._call(self._client.run, async_handler)

    def drain(self, timeout: float = DRAIN_SECONDS) -> bool:
        """Works like `PushConsumer.drain`. Any thread may call it; in a handler it raises ClientError."""
        if self._runs_here():
            raise ClientError(
                "a handler cannot drain its consumer, which waits for it: call stop(), or drain in another thread"
            )
        return self._call(self._client.drain, timeout)

    @contextlib.contextmanager
    def _draining_on_signals(self, seconds: float) -> Iterator[None]:
        """Drain the consumer, and end the block, when this process gets a signal within the block.

        Raises ValueError in another thread.
        """
        thread = self._open_thread()
        drain_task: Future[None] | None = None

        async def drain() -> None:
            await self._client.drain(seconds)

        async def stop() -> None:
            self._client.stop()

        def handle(number: int, _: FrameType | None) -> None:
            nonlocal drain_task
            if drain_task is not None:
                thread.portal.start_task_soon(stop)
                return
            log_signal(number, self, seconds)
            drain_task = thread.portal.start_task_soon(drain)

        before = {number: signal.signal(number, handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, former in before.items():
                signal.signal(number, former)
            if drain_task is not None:  # it stores the offsets after `run` has ended
                with contextlib.suppress(ClientError, CancelledError):  # closed meanwhile, which stores them, too
                    drain_task.result()

    def _in_thread(self, handler: Callable[[Any], None]) -> Callable[[Any], Awaitable[None]]:
        def within_middleware(messages: Any) -> None:
            call = handler
            for each in reversed(self._middleware):
                call = functools.partial(_with_next, each, call)
            call(messages)

        in_thread = self._for_thread(within_middleware)

        async def handle(messages: Any) -> None:
            await anyio.to_thread.run_sync(in_thread, messages, limiter=self._limiter)

        return handle

    def receive(self, *, timeout: float | None = None) -> ReceivedMessage[BodyT] | None:
        """Acknowledge the previous message, and wait for the next one; None after `timeout` seconds."""

        async def receive_next() -> ReceivedMessage[BodyT]:
            if self._stream is None:
                self._stream = aiter(self._client)
            return await anext(self._stream)

        return self._receive(self._leftovers, receive_next, timeout)

    def __iter__(self) -> Iterator[ReceivedMessage[BodyT]]:
        while (message := self.receive()) is not None:
            yield message

    def deliveries(self) -> Iterator[SyncDelivery[BodyT]]:
        """Works like `PushConsumer.deliveries`: `for delivery in consumer.deliveries(): with delivery as message:`."""
        stream: DeliveryStream[BodyT] = self._call_now(self._client.deliveries)
        while True:
            batch: list[Delivery[BodyT]] = []
            try:
                self._call(self._next_delivery, stream, batch)
            except BaseException:
                with contextlib.suppress(ClientError):
                    for each in batch:  # by a call that was interrupted
                        self._call_now(each.nack, 0.0)
                raise
            yield SyncDelivery(batch[0], self)

    @staticmethod
    async def _next_delivery(stream: DeliveryStream[BodyT], deliveries: list[Delivery[BodyT]]) -> None:
        deliveries.append(await anext(stream))


class SyncDelivery(Generic[BodyT]):
    """`Delivery` for threads."""

    def __init__(self, delivery: Delivery[BodyT], facade: Facade[PushConsumer[BodyT]]) -> None:
        self._delivery = delivery
        self._facade = facade

    @property
    def message(self) -> ReceivedMessage[BodyT]:
        """The delivered message."""
        return self._delivery.message

    @property
    def finished(self) -> bool:
        """Whether it was acknowledged or returned."""
        return self._delivery.finished

    def ack(self) -> None:
        """Works like `Delivery.ack`."""
        self._facade._call_now(self._delivery.ack)

    def nack(self, delay: float | None = None) -> None:
        """Works like `Delivery.nack`."""
        self._facade._call_now(self._delivery.nack, delay)

    def __repr__(self) -> str:
        return repr(self._delivery)

    def __enter__(self) -> ReceivedMessage[BodyT]:
        return self._delivery.__enter__()  # its span becomes the current one of this thread

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._facade._call_now(self._delivery.settle, error)
        finally:
            if self._delivery.work is not None:
                self._delivery.work.__exit__(kind, error, traceback)


class SyncPullConsumer(_SyncConsumer[PullConsumer[BodyT], BodyT], of=PullConsumer):
    """`PullConsumer` for threads; takes the same arguments."""

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        *,
        codec: BodyCodec[BodyT] | None = None,
        **options: Unpack[PullConsumerOptions],
    ) -> None:
        super().__init__(run_without_event_loop(lambda: PullConsumer(namesrv, group, codec=codec, **options)))

    lag = waits(PullConsumer.lag)
    queues = waits(PullConsumer.queues)
    assign = waits(PullConsumer.assign)
    seek = waits(PullConsumer.seek)
    pause = at_once(PullConsumer.pause)
    resume = at_once(PullConsumer.resume)
    position = at_once(PullConsumer.position)
    commit = waits(PullConsumer.commit)
    committed = waits(PullConsumer.committed)

    def poll(self, count_max: int = 32, *, timeout: float | None = None) -> list[ReceivedMessage[BodyT]]:
        """Works like `PullConsumer.poll`. If it is interrupted, as by ctrl-C, a later call returns the messages."""
        messages: list[ReceivedMessage[BodyT]] = []

        async def poll() -> None:
            messages.extend(await self._client.poll(count_max, timeout=timeout))

        try:
            self._call(poll)
        except BaseException:
            if messages:
                with contextlib.suppress(ClientError):
                    self._call(self._client._take_back, messages)
            raise
        return messages

    def __iter__(self) -> Iterator[ReceivedMessage[BodyT]]:
        """Return the messages of all assigned queues, one after the other and for ever."""
        return self._iterate(self._call_now(self._client.__aiter__))

    def read_to_end(self) -> Iterator[ReceivedMessage[BodyT]]:
        """Works like `PullConsumer.read_to_end`: `for message in consumer.read_to_end()`."""
        return self._iterate(self._call(self._client.read_to_end))

    def _iterate(self, messages: PulledMessages[BodyT]) -> Iterator[ReceivedMessage[BodyT]]:
        while True:
            batch: list[ReceivedMessage[BodyT]] = []
            try:
                self._call(self._next_message, messages, batch)
            except BaseException:
                with contextlib.suppress(ClientError):
                    self._call(self._client._take_back, batch)  # of a call that was interrupted
                raise
            if not batch:
                return
            yield batch[0]

    @staticmethod
    async def _next_message(messages: PulledMessages[BodyT], batch: list[ReceivedMessage[BodyT]]) -> None:
        async for message in messages:
            batch.append(message)
            return

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """Works like `PullConsumer.assignment`."""
        return self._call_now(lambda: self._client.assignment)

    @property
    def positions(self) -> Mapping[MessageQueue, int]:
        """Works like `PullConsumer.positions`."""
        return self._call_now(lambda: self._client.positions)


class _SyncPops(_SyncConsumer[PopT, BodyT], Generic[PopT, BodyT], of=PopConsumer):
    """The base of consumers for threads that pop messages."""

    def __init__(self, client: PopT) -> None:
        super().__init__(client)
        self._leftovers: deque[PoppedMessage[BodyT]] = deque()
        """Messages for a `receive` that was interrupted."""

    def open(self) -> Self:
        """Open the consumer, as `Facade.open` does."""
        self._leftovers.clear()
        return super().open()

    ack = waits(PopConsumer.ack)
    nack = waits(PopConsumer.nack)
    suspend = waits(PopConsumer.suspend)

    def receive(self, *, timeout: float | None = None) -> PoppedMessage[BodyT] | None:
        """Wait for the next message; None after `timeout` seconds."""
        return self._receive(self._leftovers, self._client.__anext__, timeout)

    def __iter__(self) -> Iterator[PoppedMessage[BodyT]]:
        while (message := self.receive()) is not None:
            yield message


class SyncPopConsumer(_SyncPops[PopConsumer[BodyT], BodyT], of=PopConsumer):
    """`PopConsumer` for threads; takes the same arguments.

    with SyncPopConsumer("127.0.0.1:9876", "billing", "Orders") as consumer:
        for message in consumer:
            bill(message)
            consumer.ack(message)
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        topic: str,
        tags: str | Sql = "*",
        *,
        codec: BodyCodec[BodyT] | None = None,
        **options: Unpack[PopConsumerOptions],
    ) -> None:
        super().__init__(
            run_without_event_loop(lambda: PopConsumer(namesrv, group, topic, tags, codec=codec, **options))
        )

    extend = waits(PopConsumer.extend)


class SyncLiteConsumer(_SyncPops[LiteConsumer[BodyT], BodyT], of=LiteConsumer):
    """`LiteConsumer` for threads; takes the same arguments.

    with SyncLiteConsumer("127.0.0.1:9876", "agents", "Sessions") as consumer:
        consumer.subscribe("session-17")
        for message in consumer:
            answer(message.lite_topic, message.body)
            consumer.ack(message)
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        topic: str,
        *,
        codec: BodyCodec[BodyT] | None = None,
        **options: Unpack[LiteConsumerOptions],
    ) -> None:
        super().__init__(run_without_event_loop(lambda: LiteConsumer(namesrv, group, topic, codec=codec, **options)))

    subscribe = waits(LiteConsumer.subscribe)
    unsubscribe = waits(LiteConsumer.unsubscribe)

    @property
    def lite_topics(self) -> frozenset[str] | None:
        """Works like `LiteConsumer.lite_topics`."""
        return self._client.lite_topics


def _with_next(
    middleware: Callable[[Any, Callable[[Any], None]], None], call_next: Callable[[Any], None], messages: Any
) -> None:
    middleware(messages, call_next)
