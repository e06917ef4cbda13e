"""The synchronous producers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar, Unpack, cast, overload

import anyio.to_thread

from mq.client.application_code import failure_in, is_async
from mq.client.body_codecs import BodyCodec
from mq.client.errors import ClientClosed, ClientError
from mq.client.logs import log
from mq.client.message import BodyT, Message, MessageQueue, ReceivedMessage, SendResult
from mq.client.produce.consumed import ConsumedOffsets
from mq.client.produce.outgoing_message import Pending
from mq.client.produce.producer import Producer
from mq.client.produce.producer_options import ProducerOptions
from mq.client.produce.transaction_sets import SetTransaction
from mq.client.produce.transactions import Transaction, TransactionProducer
from mq.client.sync.facade import Facade, run_without_event_loop, waits

ReplyT = TypeVar("ReplyT")
ArgumentT = TypeVar("ArgumentT")


async def _complete_future(future: Future[SendResult], send: Pending) -> None:
    """Set the outcome of a message in a future, whose callbacks run here."""
    outcome = await send.wait_outcome()
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, ClientError):
        error = failure_in(future.set_exception, outcome)
    else:
        error = failure_in(future.set_result, outcome)
    if error is not None:  # of a callback; `concurrent.futures` logs only an `Exception`
        log.exception("send_callback_failed", error, message_id=send.message_id)


class SyncProducer(Facade[Producer[BodyT]], Generic[BodyT], of=Producer):
    """`Producer` for threads; takes the same arguments.

    with SyncProducer("127.0.0.1:9876", group="orders") as producer:
        producer.send(Message("Orders", b"body"))
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str = "raftmq_python",
        *,
        codec: BodyCodec[BodyT] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(run_without_event_loop(lambda: Producer(namesrv, group, codec=codec, **options)))

    recall = waits(Producer.recall)
    flush = waits(Producer.flush)
    queues = waits(Producer.queues)

    def send(
        self, message: Message[BodyT], *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> SendResult:
        """Works like `Producer.send`."""
        return self._call(self._client.send, message, timeout=timeout, queue=queue)

    def send_oneway(self, message: Message[BodyT], *, queue: MessageQueue | None = None) -> None:
        """Works like `Producer.send_oneway`."""
        self._call(self._client.send_oneway, message, queue=queue)

    def send_batch(
        self,
        messages: Sequence[Message[BodyT]],
        *,
        timeout: float | None = None,
        queue: MessageQueue | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> list[SendResult]:
        """Works like `Producer.send_batch`."""
        return self._call(self._client.send_batch, messages, timeout=timeout, queue=queue, properties=properties)

    def send_many(
        self, messages: Iterable[Message[BodyT]], *, timeout: float | None = None
    ) -> list[SendResult | ClientError]:
        """Works like `Producer.send_many`."""
        return self._call(self._client.send_many, messages, timeout=timeout)

    @overload
    def request(
        self,
        message: Message[BodyT],
        *,
        timeout: float | None = None,
        queue: MessageQueue | None = None,
        reply_codec: None = None,
    ) -> ReceivedMessage[BodyT]: ...
    @overload
    def request(
        self,
        message: Message[BodyT],
        *,
        timeout: float | None = None,
        queue: MessageQueue | None = None,
        reply_codec: BodyCodec[ReplyT],
    ) -> ReceivedMessage[ReplyT]: ...
    def request(
        self,
        message: Message[BodyT],
        *,
        timeout: float | None = None,
        queue: MessageQueue | None = None,
        reply_codec: BodyCodec[Any] | None = None,
    ) -> ReceivedMessage[Any]:
        """Works like `Producer.request`."""
        request = cast("Callable[..., Awaitable[ReceivedMessage[Any]]]", self._client.request)
        return self._call(request, message, timeout=timeout, queue=queue, reply_codec=reply_codec)

    def submit(
        self, message: Message[BodyT], *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> Future[SendResult]:
        """Start to send a message, and return a future. Blocks only while `in_flight_max` are in flight."""
        send = self._call(self._client.submit, message, timeout=timeout, queue=queue)
        future: Future[SendResult] = Future()
        self._open_thread().portal.start_task_soon(_complete_future, future, send)
        return future

    @property
    def in_flight(self) -> int:
        """The number of messages in flight."""
        self._check_process()
        return self._client.in_flight

    @property
    def dropped_replies(self) -> int:
        """Works like `Producer.dropped_replies`."""
        self._check_process()
        return self._client.dropped_replies


class SyncTransactionProducer(SyncProducer[BodyT], of=TransactionProducer):
    """`TransactionProducer` for threads, with the same arguments. Its checks are plain functions, run in a thread.

    with SyncTransactionProducer("127.0.0.1:9876", group="shop", check=check) as producer:
        with producer.transaction(Message("Orders", b"two apples")) as transaction:
            database.store_order(..., transaction.message_id)
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        *,
        check: Callable[[ReceivedMessage[BodyT]], bool | None] | None = None,
        check_set: Callable[[str], bool | None] | None = None,
        codec: BodyCodec[BodyT] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        checks = self._asked_in_thread(check), self._asked_in_thread(check_set)
        self._transactions = run_without_event_loop(
            lambda: TransactionProducer(namesrv, group, check=checks[0], check_set=checks[1], codec=codec, **options)
        )
        Facade.__init__(self, self._transactions)

    def _asked_in_thread(
        self, check: Callable[[ArgumentT], bool | None] | None
    ) -> Callable[[ArgumentT], Awaitable[bool | None]] | None:
        if check is None:
            return None
        if is_async(check):
            raise TypeError(f"the check of a synchronous producer is a plain function (def), not {check!r}")

        def guarded_check(argument: ArgumentT) -> bool | None:
            try:
                return check(argument)
            except SystemExit as error:  # ends a thread, as elsewhere, but not the program
                raise RuntimeError(f"the check called sys.exit({error.code!r})") from error

        async def in_thread(argument: ArgumentT) -> bool | None:
            return await anyio.to_thread.run_sync(self._for_thread(guarded_check), argument)

        return in_thread

    @overload
    def transaction(
        self, message: Message[BodyT], *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> AbstractContextManager[Transaction]: ...
    @overload
    def transaction(self, *, timeout: float | None = None) -> AbstractContextManager[SyncSetTransaction[BodyT]]: ...
    def transaction(
        self,
        message: Message[BodyT] | None = None,
        *,
        timeout: float | None = None,
        queue: MessageQueue | None = None,
    ) -> AbstractContextManager[Any]:
        """Works like `TransactionProducer.transaction`."""
        begin = cast("Callable[..., AbstractAsyncContextManager[Any]]", self._transactions.transaction)
        block = self._open_thread().portal.wrap_async_context_manager(begin(message, timeout=timeout, queue=queue))
        return block if message is not None else self._set_transaction(block)

    @contextmanager
    def _set_transaction(
        self, block: AbstractContextManager[SetTransaction[BodyT]]
    ) -> Iterator[SyncSetTransaction[BodyT]]:
        with block as transaction:
            yield SyncSetTransaction(self, transaction)


class SyncSetTransaction(Generic[BodyT]):
    """`SetTransaction` for threads."""

    def __init__(self, producer: SyncTransactionProducer[BodyT], transaction: SetTransaction[BodyT]) -> None:
        self._producer = producer
        self._transaction = transaction

    def __repr__(self) -> str:
        return f"<SyncSetTransaction of {self._transaction!r}>"

    @property
    def id(self) -> str:
        """Works like `SetTransaction.id`."""
        return self._transaction.id

    @property
    def is_committed(self) -> bool:
        """Works like `SetTransaction.is_committed`."""
        return self._transaction.is_committed

    def send(self, message: Message[BodyT], *, queue: MessageQueue | None = None) -> str:
        """Works like `SetTransaction.send`."""
        return self._producer._call(self._transaction.send, message, queue=queue)

    def commit_offsets(
        self,
        consumer: Facade[Any],
        messages: ReceivedMessage[Any] | Sequence[ReceivedMessage[Any]] | None = None,
    ) -> None:
        """Works like `SetTransaction.commit_offsets`, for a `SyncPullConsumer` or `SyncPushConsumer`."""
        message_list = [messages] if isinstance(messages, ReceivedMessage) else messages
        self._transaction._check_open()
        used: ConsumedOffsets = consumer._call_now(consumer._client._consumed_offsets, message_list)
        there = partial(self._there, consumer)
        self._transaction._add(
            used._replace(on_commit=there(used.on_commit), on_abort=there(used.on_abort), on_fence=there(used.on_fence))
        )

    @staticmethod
    def _there(consumer: Facade[Any], function: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Wrap a function of `ConsumedOffsets` so that it runs in the event loop of the consumer."""

        def call() -> None:
            with suppress(ClientClosed):  # then the consumer begins at its stored offsets when it is opened again
                consumer._call(function)

        return partial(anyio.to_thread.run_sync, call)

    def prepare(self) -> None:
        """Works like `SetTransaction.prepare`."""
        self._producer._call(self._transaction.prepare)

    def rollback(self) -> None:
        """Works like `SetTransaction.rollback`."""
        self._transaction.rollback()

    def leave_open(self) -> None:
        """Works like `SetTransaction.leave_open`."""
        self._transaction.leave_open()
