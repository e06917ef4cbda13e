"""The synchronous producers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar, Unpack, cast, overload

import anyio.to_thread

from mq.client.application_code import failure_in, is_async
from mq.client.body_codecs import BodyCodec
from mq.client.errors import ClientError
from mq.client.logs import log
from mq.client.message import BodyT, Message, MessageQueue, ReceivedMessage, SendResult
from mq.client.produce.outgoing_message import Pending
from mq.client.produce.producer import Producer
from mq.client.produce.producer_options import ProducerOptions
from mq.client.produce.transactions import Transaction, TransactionProducer
from mq.client.sync.facade import Facade, apart, waits

__all__ = ["SyncProducer", "SyncTransactionProducer"]

ReplyT = TypeVar("ReplyT")


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
        super().__init__(apart(lambda: Producer(namesrv, group, codec=codec, **options)))

    recall = waits(Producer.recall)
    flush = waits(Producer.flush)
    queues = waits(Producer.queues)

    def send(
        self, message: Message[BodyT], *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> SendResult:
        """As `Producer.send`."""
        return self._call(self._client.send, message, timeout=timeout, queue=queue)

    def send_oneway(self, message: Message[BodyT], *, queue: MessageQueue | None = None) -> None:
        """As `Producer.send_oneway`."""
        self._call(self._client.send_oneway, message, queue=queue)

    def send_batch(
        self,
        messages: Sequence[Message[BodyT]],
        *,
        timeout: float | None = None,
        queue: MessageQueue | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> list[SendResult]:
        """As `Producer.send_batch`."""
        return self._call(self._client.send_batch, messages, timeout=timeout, queue=queue, properties=properties)

    def send_many(
        self, messages: Iterable[Message[BodyT]], *, timeout: float | None = None
    ) -> list[SendResult | ClientError]:
        """As `Producer.send_many`."""
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
        """As `Producer.request`."""
        request = cast("Callable[..., Awaitable[ReceivedMessage[Any]]]", self._client.request)
        return self._call(request, message, timeout=timeout, queue=queue, reply_codec=reply_codec)

    def submit(
        self, message: Message[BodyT], *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> Future[SendResult]:
        """Start sending a message, and return a future; blocks only while `in_flight_max` are in flight."""
        pending = self._call(self._client.submit, message, timeout=timeout, queue=queue)
        future: Future[SendResult] = Future()
        self._opened().portal.start_task_soon(_settle, future, pending)
        return future

    @property
    def in_flight(self) -> int:
        """Messages in flight."""
        self._check_process()
        return self._client.in_flight

    @property
    def dropped_replies(self) -> int:
        """As `Producer.dropped_replies`."""
        self._check_process()
        return self._client.dropped_replies


class SyncTransactionProducer(SyncProducer[BodyT], of=TransactionProducer):
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
        check: Callable[[ReceivedMessage[BodyT]], bool | None],
        codec: BodyCodec[BodyT] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        if is_async(check):
            raise TypeError(f"the check of a synchronous producer is a plain function (def), not {check!r}")

        def checked(message: ReceivedMessage[BodyT]) -> bool | None:
            try:
                return check(message)
            except SystemExit as error:  # ends a thread, as elsewhere, but not the program
                raise RuntimeError(f"the check called sys.exit({error.code!r})") from error

        async def in_thread(message: ReceivedMessage[BodyT]) -> bool | None:
            return await anyio.to_thread.run_sync(self._for_thread(checked), message)

        self._transactions = apart(lambda: TransactionProducer(namesrv, group, check=in_thread, codec=codec, **options))
        Facade.__init__(self, self._transactions)

    def transaction(
        self, message: Message[BodyT], *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> AbstractContextManager[Transaction]:
        """As `TransactionProducer.transaction`."""
        return self._opened().portal.wrap_async_context_manager(
            self._transactions.transaction(message, timeout=timeout, queue=queue)
        )
