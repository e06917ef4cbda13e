"""The SDK for programs without an event loop: the same clients, on an event loop in a separate thread.

A method here takes, returns and raises the same as the asynchronous client's method of that name, and blocks until it
is done. Many threads may use one object at once. Threads that wait for messages when its block ends get ClientClosed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, cast

import anyio
import anyio.from_thread
import anyio.to_thread

from mq.client.admin import Admin
from mq.client.application_code import failure_in
from mq.client.consume.delivery import Delivery, DeliveryStream, MessageStream
from mq.client.consume.pop_consumer import PopConsumer, PopConsumerOptions
from mq.client.consume.popped_messages import PoppedMessage
from mq.client.consume.pull_consumer import PullConsumer, PullConsumerOptions
from mq.client.consume.push_consumer import PushConsumer, PushConsumerOptions
from mq.client.errors import ClientClosed, ClientError
from mq.client.filters import Sql
from mq.client.logs import log
from mq.client.message import Message, MessageQueue, ReceivedMessage, SendResult
from mq.client.net.client_core import RemotingSettings
from mq.client.produce.outgoing_message import Pending
from mq.client.produce.producer import Producer, ProducerOptions
from mq.client.produce.transactions import Transaction, TransactionProducer

__all__ = [
    "SyncAdmin",
    "SyncDelivery",
    "SyncPopConsumer",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "SyncTransactionProducer",
]

C = TypeVar("C", bound=AbstractAsyncContextManager[Any])
C_co = TypeVar("C_co", bound=AbstractAsyncContextManager[Any], covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
SyncHandlerT = TypeVar("SyncHandlerT", bound=Callable[[Any], None])


def _apart(make: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `make` in a thread without an event loop, so that the result belongs to none.

    The caller may be in an event loop: in a notebook, or in `python -m asyncio`. Events and limiters would bind to it.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(functools.partial(make, *args, **kwargs)).result()


async def _outcome(call: Callable[[], Awaitable[R]]) -> tuple[R | None, BaseException | None]:
    """The result or the exception of a call.

    As a value, since an exception that is no `Exception` would end the event loop as well, and with it all other calls.
    """
    try:
        return await call(), None
    except anyio.get_cancelled_exc_class():
        raise
    except BaseException as error:
        return None, error


def _result(outcome: tuple[R | None, BaseException | None]) -> R:
    result, error = outcome
    if error is not None:
        raise error
    return cast("R", result)


class _Facade(Generic[C_co]):
    """An asynchronous client and the thread with its event loop, while the block is open.

    `help` shows the arguments of the wrapped class, `of`.
    """

    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, *, of: type) -> None:
        super().__init_subclass__()
        cls.__signature__ = inspect.signature(of)

    def __init__(self, client: C_co) -> None:
        self._client = client
        self._portal: anyio.from_thread.BlockingPortal | None = None
        self._stack = ExitStack()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._client!r}>"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(anyio.from_thread.start_blocking_portal("trio"))
            stack.enter_context(self._portal.wrap_async_context_manager(self._client))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._portal = None
        self._stack.__exit__(kind, error, traceback)

    def _call(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a coroutine function in the event loop."""
        if self._portal is None:
            raise ClientClosed(f"it is not open: use it within 'with {type(self).__name__}(...)'")
        return _result(self._portal.call(_outcome, functools.partial(function, *args, **kwargs)))

    def _call_now(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a plain function in the event loop, or directly if there is none."""
        if self._portal is None:
            return function(*args, **kwargs)

        async def call() -> R:
            return function(*args, **kwargs)

        return _result(self._portal.call(_outcome, call))


def _waits(method: Callable[Concatenate[C, P], Awaitable[R]]) -> Callable[Concatenate[_Facade[C], P], R]:
    """The blocking method for a coroutine function."""

    @functools.wraps(method)
    def call(facade: _Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return facade._call(method, facade._client, *args, **kwargs)

    return call


def _at_once(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[_Facade[C], P], R]:
    """The method for a function that does not wait."""

    @functools.wraps(method)
    def call(facade: _Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return facade._call_now(method, facade._client, *args, **kwargs)

    return call


async def _settle(future: Future[SendResult], pending: Pending) -> None:
    """Give the outcome of a message to a future, whose callbacks run here."""
    outcome = await pending.wait_outcome()
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, ClientError):
        error = failure_in(future.set_exception, outcome)
    else:
        error = failure_in(future.set_result, outcome)
    if error is not None:  # of a callback; `concurrent.futures` logs only an `Exception`
        log.exception("send_callback_failed", error, message_id=pending.message_id)


class SyncProducer(_Facade[Producer], of=Producer):
    """`Producer` for threads; takes the same arguments.

    with SyncProducer("127.0.0.1:9876", group="orders") as producer:
        producer.send(Message("Orders", b"body"))
    """

    def __init__(
        self, namesrv: str | Sequence[str], group: str = "raftmq_python", **options: Unpack[ProducerOptions]
    ) -> None:
        super().__init__(_apart(Producer, namesrv, group, **options))

    send = _waits(Producer.send)
    send_oneway = _waits(Producer.send_oneway)
    recall = _waits(Producer.recall)
    send_batch = _waits(Producer.send_batch)
    send_many = _waits(Producer.send_many)
    request = _waits(Producer.request)
    flush = _waits(Producer.flush)
    queues = _waits(Producer.queues)

    def submit(
        self, message: Message, *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> Future[SendResult]:
        """Start sending a message, and return a future; blocks only while `in_flight_max` are in flight."""
        pending = self._call(self._client.submit, message, timeout=timeout, queue=queue)
        assert self._portal is not None, "submitted without an event loop"
        future: Future[SendResult] = Future()
        self._portal.start_task_soon(_settle, future, pending)
        return future

    @property
    def in_flight(self) -> int:
        """Messages in flight."""
        return self._client.in_flight

    @property
    def dropped_replies(self) -> int:
        """As `Producer.dropped_replies`."""
        return self._client.dropped_replies


class SyncTransactionProducer(SyncProducer, of=TransactionProducer):
    """`TransactionProducer` for threads; takes the same arguments. `check` is a plain function, run in a thread.

    with SyncTransactionProducer("127.0.0.1:9876", group="shop", check=check) as producer:
        with producer.transaction(Message("Orders", b"two apples")) as transaction:
            database.store_order(..., transaction.message_id)
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        *,
        check: Callable[[ReceivedMessage], bool | None],
        **options: Unpack[ProducerOptions],
    ) -> None:
        def checked(message: ReceivedMessage) -> bool | None:
            try:
                return check(message)
            except SystemExit as error:  # ends a thread, as elsewhere, but not the program
                raise RuntimeError(f"the check called sys.exit({error.code!r})") from error

        async def in_thread(message: ReceivedMessage) -> bool | None:
            return await anyio.to_thread.run_sync(checked, message)

        self._transactions = _apart(TransactionProducer, namesrv, group, check=in_thread, **options)
        _Facade.__init__(self, self._transactions)

    def transaction(
        self, message: Message, *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> AbstractContextManager[Transaction]:
        """As `TransactionProducer.transaction`."""
        if self._portal is None:
            raise ClientClosed(f"it is not open: use it within 'with {type(self).__name__}(...)'")
        return self._portal.wrap_async_context_manager(
            self._transactions.transaction(message, timeout=timeout, queue=queue)
        )


class SyncPushConsumer(_Facade[PushConsumer], of=PushConsumer):
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

    def __init__(self, namesrv: str | Sequence[str], group: str, **options: Unpack[PushConsumerOptions]) -> None:
        super().__init__(_apart(PushConsumer, namesrv, group, **options))
        self._limiter = _apart(anyio.CapacityLimiter, options.get("concurrency", 16))
        self._stream: MessageStream | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        super().__exit__(kind, error, traceback)

    subscribe = _at_once(PushConsumer.subscribe)
    unsubscribe = _at_once(PushConsumer.unsubscribe)
    pause = _at_once(PushConsumer.pause)
    resume = _at_once(PushConsumer.resume)
    stop = _at_once(PushConsumer.stop)
    commit = _waits(PushConsumer.commit)
    reply = _waits(PushConsumer.reply)
    dead_letter = _waits(PushConsumer.dead_letter)
    wait_assigned = _waits(PushConsumer.wait_assigned)

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """As `PushConsumer.assignment`."""
        return self._call_now(lambda: self._client.assignment)

    @property
    def positions(self) -> Mapping[MessageQueue, int]:
        """As `PushConsumer.positions`."""
        return self._call_now(lambda: self._client.positions)

    def on(
        self, topic: str, tags: str | Sql = "*", *, batch: int | None = None
    ) -> Callable[[SyncHandlerT], SyncHandlerT]:
        """As `PushConsumer.on`, for plain functions."""

        def register(handler: SyncHandlerT) -> SyncHandlerT:
            self._call_now(lambda: self._client.on(topic, tags, batch=batch)(self._in_thread(handler)))
            return handler

        return register

    def run(self, handler: Callable[[ReceivedMessage], None] | None = None) -> None:
        """As `PushConsumer.run`, for a plain function; `stop`, from any thread, waits for running handlers."""
        self._call(self._client.run, None if handler is None else self._in_thread(handler))

    def _in_thread(self, handler: Callable[[Any], None]) -> Callable[[Any], Awaitable[None]]:
        async def handle(messages: Any) -> None:
            await anyio.to_thread.run_sync(handler, messages, limiter=self._limiter)

        return handle

    def receive(self, *, timeout: float | None = None) -> ReceivedMessage | None:
        """The next message, acknowledging the previous one; None after `timeout` seconds without one."""

        async def next_message() -> ReceivedMessage | None:
            if self._stream is None:
                self._stream = aiter(self._client)
            with anyio.move_on_after(timeout):
                return await anext(self._stream)
            return None

        return self._call(next_message)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while (message := self.receive()) is not None:
            yield message

    def deliveries(self) -> Iterator[SyncDelivery]:
        """As `PushConsumer.deliveries`: `for delivery in consumer.deliveries(): with delivery as message: ...`."""
        stream: DeliveryStream = self._call_now(self._client.deliveries)
        while True:
            yield SyncDelivery(self._call(stream.__anext__), self)


class SyncDelivery:
    """`Delivery` for threads."""

    def __init__(self, delivery: Delivery, facade: _Facade[PushConsumer]) -> None:
        self._delivery = delivery
        self._facade = facade

    @property
    def message(self) -> ReceivedMessage:
        """The delivered message."""
        return self._delivery.message

    @property
    def finished(self) -> bool:
        """Whether it was acknowledged or returned."""
        return self._delivery.finished

    def ack(self) -> None:
        """As `Delivery.ack`."""
        self._facade._call_now(self._delivery.ack)

    def nack(self, delay: float | None = None) -> None:
        """As `Delivery.nack`."""
        self._facade._call_now(self._delivery.nack, delay)

    def __repr__(self) -> str:
        return repr(self._delivery)

    def __enter__(self) -> ReceivedMessage:
        return self._delivery.__enter__()  # its span becomes the current one of this thread

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._facade._call_now(self._delivery.settle, error)
        finally:
            if self._delivery.work is not None:
                self._delivery.work.__exit__(kind, error, traceback)


class SyncPullConsumer(_Facade[PullConsumer], of=PullConsumer):
    """`PullConsumer` for threads; takes the same arguments."""

    def __init__(self, namesrv: str | Sequence[str], group: str, **options: Unpack[PullConsumerOptions]) -> None:
        super().__init__(_apart(PullConsumer, namesrv, group, **options))

    queues = _waits(PullConsumer.queues)
    assign = _waits(PullConsumer.assign)
    seek = _waits(PullConsumer.seek)
    pause = _at_once(PullConsumer.pause)
    resume = _at_once(PullConsumer.resume)
    poll = _waits(PullConsumer.poll)
    reply = _waits(PullConsumer.reply)
    dead_letter = _waits(PullConsumer.dead_letter)
    position = _at_once(PullConsumer.position)
    commit = _waits(PullConsumer.commit)
    committed = _waits(PullConsumer.committed)

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """As `PullConsumer.assignment`."""
        return self._call_now(lambda: self._client.assignment)

    @property
    def positions(self) -> Mapping[MessageQueue, int]:
        """As `PullConsumer.positions`."""
        return self._call_now(lambda: self._client.positions)


class SyncPopConsumer(_Facade[PopConsumer], of=PopConsumer):
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
        **options: Unpack[PopConsumerOptions],
    ) -> None:
        super().__init__(_apart(PopConsumer, namesrv, group, topic, tags, **options))

    ack = _waits(PopConsumer.ack)
    nack = _waits(PopConsumer.nack)
    reply = _waits(PopConsumer.reply)
    dead_letter = _waits(PopConsumer.dead_letter)

    def receive(self, *, timeout: float | None = None) -> PoppedMessage | None:
        """The next message; None after `timeout` seconds without one."""

        async def next_message() -> PoppedMessage | None:
            with anyio.move_on_after(timeout):
                return await anext(self._client)
            return None

        return self._call(next_message)

    def __iter__(self) -> Iterator[PoppedMessage]:
        while (message := self.receive()) is not None:
            yield message


class SyncAdmin(_Facade[Admin], of=Admin):
    """`Admin` for threads; takes the same arguments."""

    def __init__(self, namesrv: str | Sequence[str], *, remoting: RemotingSettings | None = None) -> None:
        super().__init__(_apart(Admin, namesrv, remoting=remoting))

    cluster_info = _waits(Admin.cluster_info)
    broker_runtime = _waits(Admin.broker_runtime)
    manage_group = _waits(Admin.manage_group)
    create_topic = _waits(Admin.create_topic)
    delete_topic = _waits(Admin.delete_topic)
    topics = _waits(Admin.topics)
    route = _waits(Admin.route)
    topic_config = _waits(Admin.topic_config)
    topic_identities = _waits(Admin.topic_identities)
    topic_stats = _waits(Admin.topic_stats)
    figure = _waits(Admin.figure)
    message_by_id = _waits(Admin.message_by_id)
    messages_by_key = _waits(Admin.messages_by_key)
    trace = _waits(Admin.trace)
    consumer_groups = _waits(Admin.consumer_groups)
    put_consumer_group = _waits(Admin.put_consumer_group)
    delete_consumer_group = _waits(Admin.delete_consumer_group)
    group_progress = _waits(Admin.group_progress)
    reset_group = _waits(Admin.reset_group)
    skip_message = _waits(Admin.skip_message)
    min_offset = _waits(Admin.min_offset)
    max_offset = _waits(Admin.max_offset)
    offset = _waits(Admin.offset)
    consumers = _waits(Admin.consumers)
    group_offset = _waits(Admin.group_offset)
