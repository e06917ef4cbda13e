"""Transactional messages: consumers see them if, and only if, the application's own work succeeds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from enum import Enum
from inspect import isawaitable
from typing import Any, Unpack, overload

import anyio
import anyio.abc

from mq.client.application_code import failure_of
from mq.client.body_codecs import BodyCodec, decode_body, encode_message
from mq.client.errors import BrokerError, ClientError, SendOutcomeUnknown
from mq.client.logs import log
from mq.client.long_wait import LongWait
from mq.client.message import BodyT, Message, MessageQueue, ReceivedMessage, SendResult, SendStatus
from mq.client.net.client_core import ClientCore
from mq.client.net.connection import RespondLater
from mq.client.net.leader_calls import Repeat, call_leader, is_busy
from mq.client.net.replies import received_messages
from mq.client.produce.preparation import Preparation
from mq.client.produce.producer import Producer
from mq.client.produce.producer_options import ProducerOptions
from mq.client.produce.transaction_sets import CheckSet, SetTransaction, check_not_ended
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import UnknownRequest
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.records import COMMITTED, ROLLBACK
from mq.protocol.names import AUTO_CREATE_TEMPLATE
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.transactions import CheckTransactionState, EndTransactionExt
from mq.protocol.wire.encoding import encode_request
from mq.protocol.wire.request import Request

CHECKS_MAX = 64
"""Concurrent checks in one producer; further check-backs are ignored, and the broker repeats them."""

ROLLBACK_SECONDS = 2.0
"""Maximum delay of an exception that leaves a transaction."""

_OUTCOMES = {True: COMMITTED, False: ROLLBACK}

Check = Callable[[ReceivedMessage[BodyT]], Awaitable[bool | None] | bool | None]
"""Whether the transaction of a message was carried out: True, False, or None for "not known yet".

A coroutine function, or a plain one that does not block.
"""


class TransactionState(Enum):
    """The state of a transaction, as this process knows it."""

    OPEN = "open"
    """Undecided; if it stays so, a broker will check back."""
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class Transaction:
    """A transaction of one message, which is stored but not visible yet.

    Store `message_id` together with the application's own changes, so that a check finds it later. `confirmed` says
    that a broker has confirmed the end.
    """

    def __init__(self, message: Message[Any], result: SendResult) -> None:
        self.message = message
        self.result = result
        self.state = TransactionState.OPEN
        self.confirmed = False
        self._decision: bool | None = True
        self._ended = False

    def __repr__(self) -> str:
        return f"<Transaction {self.message_id} of {self.message.topic} {self.state.value}>"

    @property
    def message_id(self) -> str:
        """The UNIQ_KEY of the message, which the copy that consumers get has, too."""
        return self.result.message_id

    def rollback(self) -> None:
        """Keep the message invisible when the block ends. The last call of this and `leave_open` counts.

        Raises ValueError after the block.
        """
        check_not_ended(self, ended=self._ended)
        self._decision = False

    def leave_open(self) -> None:
        """Leave the outcome open when the block ends: a broker then checks back, see `Check`.

        Raises ValueError after the block.
        """
        check_not_ended(self, ended=self._ended)
        self._decision = None


class TransactionProducer(Producer[BodyT]):
    """A `Producer` that also sends transactional messages.

        async def check(message: ReceivedMessage) -> bool | None:
            return await database.has_order(message.message_id)

        async with TransactionProducer("127.0.0.1:9876", group="shop", check=check) as producer:
            async with producer.transaction(Message("Orders", b"two apples")) as transaction:
                await database.store_order(..., transaction.message_id)

    or several messages, and the offsets of a consumer, which take effect together:

        async with producer.transaction() as transaction:
            for message in messages:
                await transaction.send(Message("Prices", price_of(message)))
            await transaction.commit_offsets(consumer)

    `check` is called, in any process of the group, for transactions without an end: the process or the network failed.
    It returns True (commit), False (roll back), or None (check again later); an exception counts as None. Every process
    of a group must be able to answer for the others. A message whose body `codec` cannot decode is not asked for: that
    is logged, and the broker asks again, as after an exception. `check_set` does the same for transactions of several
    messages; without it, those that have no end are rolled back. Takes the arguments of `Producer`.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        *,
        check: Check[BodyT] | None = None,
        check_set: CheckSet | None = None,
        codec: BodyCodec[BodyT] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        for name, function in (("check", check), ("check_set", check_set)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be callable, not {function!r}")
        super().__init__(namesrv, group, codec=codec, **options)
        self._check = check
        self._check_set = check_set
        self._checks = 0
        self._tasks: anyio.abc.TaskGroup | None = None

    @overload
    def transaction(
        self, message: Message[BodyT], *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> AbstractAsyncContextManager[Transaction]: ...
    @overload
    def transaction(self, *, timeout: float | None = None) -> AbstractAsyncContextManager[SetTransaction[BodyT]]: ...
    def transaction(
        self,
        message: Message[BodyT] | None = None,
        *,
        timeout: float | None = None,
        queue: MessageQueue | None = None,
    ) -> AbstractAsyncContextManager[Any]:
        """Start a transaction: of one message, stored at once, or of several that you add in the block.

        *With a message*: it is stored, invisible, and becomes visible when the block ends, unless an exception ends it.
        The exception propagates. `timeout` limits entering, and also leaving. Entering raises the errors of `send`;
        then the message stays invisible unless `check` commits it. Only a numbered producer sends it twice, so that
        each transaction has one message. Leaving raises BrokerError if the broker refuses the commit or the rollback;
        if it is unreachable, that is logged, `Transaction.confirmed` is False, and `check` is called later. Raises
        ValueError without a `check`.

        *Without a message*: all messages and consumer offsets that are added become visible when the block ends, in one
        step; or nothing does, if an exception ends it. They are in one broker group, and together at most as large as
        one message. `timeout`, in seconds, limits each of the two requests on leaving. Leaving raises TransactionFenced
        if another consumer has consumed the messages, and TransactionOutcomeUnknown if no answer came in time; after
        any other ClientError, nothing is visible. If leaving is cancelled, the outcome is not known either.
        """
        if message is None:
            if queue is not None:
                raise ValueError("pass the queue to send() of the transaction")
            return self._set_transaction(timeout)
        if self._check is None:
            raise ValueError("give the TransactionProducer a check: it decides if this process stops in between")
        return self._transaction(message, timeout, queue)

    @asynccontextmanager
    async def _set_transaction(self, timeout: float | None) -> AsyncGenerator[SetTransaction[BodyT]]:
        seconds = self._budget(timeout)
        self._open_pipeline()
        assert self._core is not None, "open without connections"
        transaction = SetTransaction(
            self._core,
            self.group,
            transaction_id=self._unique_keys.next(),
            preparation=Preparation(self._unique_keys, None, compress=None, compress_bytes_min=0),
            codec=self._codec,
            rng=self._random,
            seconds=seconds,
            auto_create_topics=self._auto_create_topics,
            may_wait=self._check_set is not None,
        )
        try:
            yield transaction
        except BaseException:
            if transaction._decision is not None or transaction._half is None:
                transaction.rollback()
            with anyio.move_on_after(ROLLBACK_SECONDS, shield=True), suppress(ClientError):
                await transaction._end(ROLLBACK_SECONDS)
            raise
        await transaction._end(seconds)

    @asynccontextmanager
    async def _transaction(
        self, message: Message[BodyT], timeout: float | None, queue: MessageQueue | None
    ) -> AsyncGenerator[Transaction]:
        seconds = self._budget(timeout)
        own = {props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: self.group}
        retries = 0 if self._numbering is None else None  # a numbered one is stored once
        result = await self._send(encode_message(message, self._codec), seconds, queue, own=own, retries=retries)
        transaction = Transaction(message, result)
        if result.status is not SendStatus.OK:
            transaction.rollback()
            await self._end(transaction, seconds)
            raise SendOutcomeUnknown(
                f"the half message was stored with status {result.status}", result.queue, 1, result.message_id
            )
        try:
            yield transaction
        except BaseException:
            if transaction._decision is not None:
                transaction.rollback()
            with anyio.move_on_after(ROLLBACK_SECONDS, shield=True), suppress(ClientError):
                await self._end(transaction, ROLLBACK_SECONDS)
            raise
        await self._end(transaction, seconds)

    async def _end(self, transaction: Transaction, seconds: float) -> None:
        """Send the decision of a transaction to the broker. Raises BrokerError."""
        decision, transaction._ended = transaction._decision, True
        if self._tracer is not None:
            self._tracer.trace_transaction_end(transaction.message, transaction.result, decision)
        if decision is None:
            return
        transaction.state = TransactionState.COMMITTED if decision else TransactionState.ROLLED_BACK
        result = transaction.result
        ext = EndTransactionExt(
            producer_group=self.group,
            half_queue_offset=QueueOffset(result.queue_offset),
            half_physical_offset=parse_offset_message_id(result.offset_message_id).physical_offset,
            commit_or_rollback=_OUTCOMES[decision],
            msg_id=result.message_id,
            transaction_id=result.message_id,
            topic=result.queue.topic,
        )
        assert self._core is not None, "a transaction without connections"
        queue, code = result.queue, RequestCode.END_TRANSACTION
        operation = "commit" if decision else "rollback"
        try:
            with nullcontext() if self._spans is None else self._spans.trace_settle(operation, queue.topic):
                await call_leader(
                    self._core,
                    queue.topic,
                    queue.broker_name,
                    code,
                    ext.fields(),
                    seconds=seconds,
                    repeat=Repeat.ALWAYS,
                )
            transaction.confirmed = True
        except ClientError as error:
            if isinstance(error, BrokerError):
                is_late = error.code == ResponseCode.ILLEGAL_OPERATION
                if not is_late and not is_busy(error):
                    raise
            # The broker was unreachable, busy, or it is too late: `check` decides.
            log.warning(
                "transaction_not_confirmed",
                message_id=result.message_id,
                wanted=transaction.state.value,
                reason=str(error),
            )

    # Check-backs.

    def _start_tasks(self, tasks: anyio.abc.TaskGroup, core: ClientCore) -> None:
        self._tasks = tasks
        self._checks = 0
        tasks.start_soon(self._stay_connected, core)

    async def _stay_connected(self, core: ClientCore) -> None:
        """Stay connected to all replicas, even if nothing is sent: each may become leader and check back."""
        wait = LongWait("cannot_be_checked", core.settings.limits)
        while True:
            try:
                route = await core.route(AUTO_CREATE_TEMPLATE, refresh=True)
                await core.connect_all(route.addresses())
                if any(core.find_connection(address) is not None for address in route.addresses()):
                    wait.end()
                else:
                    wait.warn_if_long("no broker can be reached", group=self.group)
            except ClientError as error:
                log.debug("brokers_unknown", reason=str(error))
                wait.warn_if_long(error, group=self.group)
            await anyio.sleep(core.settings.limits.stay_connected_seconds)

    def _ask(self, check: Check[BodyT], message: ReceivedMessage[Any]) -> Awaitable[bool | None] | bool | None:
        """Ask about the transaction of one message. Raises BodyNotDecoded, and what `check` raises."""
        if self._codec is not None and (error := decode_body(message, self._codec)) is not None:
            raise error
        return check(message)

    def _answer_server(
        self, request: Request | UnknownRequest, body: memoryview, respond_later: RespondLater
    ) -> bytes | None:
        if not isinstance(request, CheckTransactionState):
            return super()._answer_server(request, body, respond_later)
        if self._tasks is None or self._checks >= CHECKS_MAX:
            return None
        try:
            [message] = received_messages("", body)
        except (ClientError, ValueError) as error:
            log.warning("check_unreadable", reason=str(error))
            return None
        self._checks += 1
        self._tasks.start_soon(self._answer_check, request, message, respond_later)
        return None

    async def _answer_check(
        self, request: CheckTransactionState, message: ReceivedMessage[Any], respond_later: RespondLater
    ) -> None:
        self._mark_own_task()
        answers: list[bool | None] = []

        async def ask(message: ReceivedMessage[Any]) -> None:
            if props.TRANSACTION_SET in message.properties:
                decision: Any = False if self._check_set is None else self._check_set(message.message_id)
            elif self._check is None:
                decision = None
            else:
                decision = self._ask(self._check, message)
            if isawaitable(decision):
                decision = await decision
            answers.append(None if decision is None else bool(decision))

        try:
            error = await failure_of(ask, message)
        finally:
            self._checks -= 1
        if error is not None:
            log.exception("check_failed", error, message_id=message.message_id)
            return
        [decision] = answers
        if self._tracer is not None:
            self._tracer.end_check(message, decision)
        if decision is None:
            return
        fields = EndTransactionExt(
            producer_group=message.properties.get(props.PRODUCER_GROUP, self.group),
            half_queue_offset=request.ext.half_queue_offset,
            half_physical_offset=request.ext.half_physical_offset,
            commit_or_rollback=_OUTCOMES[decision],
            msg_id=message.message_id,
            transaction_id=message.message_id,
            topic=message.topic,
            from_transaction_check=True,
        ).fields()
        assert self._core is not None, "a question came without a connection"
        credentials = self._core.settings.credentials
        if credentials is not None:
            fields = credentials.sign(RequestCode.END_TRANSACTION, fields, b"")
        respond_later(encode_request(RequestCode.END_TRANSACTION, request.opaque, ext=fields, oneway=True))
