"""Transactions of several messages and consumer offsets: everything becomes visible, or nothing.

Theory of operation. Messages are collected here and sent to the broker in one request, together with the offsets: there
they are one half message. A second request ends it. So whatever fails, brokers have all messages of a transaction or
none, and each of the two requests has one outcome.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Generic

import anyio.lowlevel

from mq.client.body_codecs import BodyCodec, encode_message
from mq.client.errors import (
    BrokerError,
    ClientError,
    MessageRefused,
    TransactionFenced,
    TransactionOutcomeUnknown,
)
from mq.client.message import BodyT, Message, MessageQueue, ReceivedMessage
from mq.client.net.client_core import ClientCore
from mq.client.net.leader_calls import Repeat, call_leader, is_busy
from mq.client.net.replies import fields_of
from mq.client.produce.consumed import ConsumedOffsets, ConsumingClient
from mq.client.produce.outgoing_message import BODY_BYTES_MAX, OutgoingMessage
from mq.client.produce.preparation import Preparation, wall_clock_ms
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.hashes import java_string_hash
from mq.protocol.messages.records import COMMITTED, ROLLBACK
from mq.protocol.messages.transaction_sets import (
    SET_MESSAGES_MAX,
    SET_OFFSETS_MAX,
    ConsumedRange,
    SetMessage,
    TransactionSet,
    set_bytes,
)
from mq.protocol.requests.transactions import EndTransactionExt, StageTransactionExt, TransactionStaged

CheckSet = Callable[[str], Awaitable[bool | None] | bool | None]
"""Whether the transaction with this id was carried out: True, False, or None for "not known yet".

A coroutine function, or a plain one that does not block.
"""

RECORD_BYTES = 200
"""Bytes that a stored message has at most more than in the request, besides the name of its topic."""

_END_SECONDS = 2.0

_NEW_SECONDS = 3.0
"""A broker group that has just begun, or has just been upgraded, reaches its format level in that time."""
_NEW_PAUSE_SECONDS = 0.2


def check_not_ended(transaction: object, *, ended: bool) -> None:
    """Raise ValueError if the transaction has ended, so that a call can no longer change it."""
    if ended:
        raise ValueError(f"{transaction} has ended: its outcome can be decided only in its block")


class SetTransaction(Generic[BodyT]):
    """One transaction of several messages and consumer offsets, see `TransactionProducer.transaction`.

    `id` is chosen when the transaction begins; `is_committed` is True once the broker has confirmed the commit.
    """

    def __init__(
        self,
        core: ClientCore,
        group: str,
        *,
        transaction_id: str,
        preparation: Preparation,
        codec: BodyCodec[BodyT] | None,
        rng: random.Random,
        seconds: float,
        auto_create_topics: bool,
        may_wait: bool,
    ) -> None:
        self.id = transaction_id
        self.is_committed = False
        self._core = core
        self._group = group
        self._preparation = preparation
        self._codec = codec
        self._rng = rng
        self._seconds = seconds
        self._auto_create_topics = auto_create_topics
        self._may_wait = may_wait
        self._messages: list[tuple[OutgoingMessage, MessageQueue | None]] = []
        self._bytes = 0
        self._consumed_ranges: list[ConsumedOffsets] = []
        self._half: TransactionStaged | None = None
        self._place: MessageQueue | None = None
        """A queue of the broker group that has the half message."""
        self._decision: bool | None = True
        self._ended = False

    def __repr__(self) -> str:
        state = "committed" if self.is_committed else "ended" if self._ended else "open"
        return f"<SetTransaction {self.id} with {len(self._messages)} messages, {state}>"

    # What it consists of.

    async def send(self, message: Message[BodyT], *, queue: MessageQueue | None = None) -> str:
        """Add a message and return its `message_id`. It is sent when the block ends, or by `prepare`.

        Raises MessageRefused if it violates a limit of the protocol, or if the messages are too many or too large
        together; TopicNotFound, NoRoute, NameServersUnavailable. Then it is not part of the transaction.
        """
        self._check_open()
        outgoing, _ = self._preparation.message(encode_message(message, self._codec), queue, None)
        if len(self._messages) >= SET_MESSAGES_MAX:
            raise MessageRefused(f"a transaction has at most {SET_MESSAGES_MAX} messages: divide it")
        nbytes = set_bytes([_set_message(outgoing, MessageQueue(outgoing.topic, "", 0))])
        nbytes += RECORD_BYTES + len(outgoing.topic)
        if self._bytes + nbytes > BODY_BYTES_MAX:
            raise MessageRefused(
                f"the messages of the transaction would have {self._bytes + nbytes} bytes together; {BODY_BYTES_MAX} "
                "are allowed, as for one message: divide it"
            )
        await self._core.route(outgoing.topic, auto_create=self._auto_create_topics)
        self._check_open()
        self._bytes += nbytes
        self._messages.append((outgoing, queue))
        return outgoing.unique_key

    async def commit_offsets(
        self,
        consumer: ConsumingClient,
        messages: ReceivedMessage[Any] | Sequence[ReceivedMessage[Any]] | None = None,
    ) -> None:
        """Add consumed offsets: the group's offsets advance if, and only if, the transaction is committed.

        Of a `PullConsumer`: all that it has returned since its last commit; so do not pass `messages`. If the
        transaction is not committed, the consumer returns them again. Of a `PushConsumer`: the `messages` that its
        handler got, one or a batch.

        Raises ValueError if these offsets cannot be stored: the consumer is in another transaction, or earlier messages
        of a queue are not finished (handle them in order). Raises TransactionFenced if a queue belongs to another
        member by now.
        """
        self._check_open()
        await anyio.lowlevel.checkpoint()
        message_list = [messages] if isinstance(messages, ReceivedMessage) else messages
        self._add(consumer._consumed_offsets(message_list))

    def _add(self, offsets: ConsumedOffsets) -> None:
        self._consumed_ranges.append(offsets)

    async def prepare(self) -> None:
        """Store everything at the broker, invisible. Nothing can be added afterwards; the end of the block decides.

        Call it before the application's own work, such as the commit of its database, is done: if the process stops
        between that and the end of the block, brokers ask `check_set`, with `id`. Raises ValueError if the producer has
        no `check_set`, and the errors of leaving the block.
        """
        if not self._may_wait:
            raise ValueError(
                "give the TransactionProducer a check_set: it decides if this process stops after prepare()"
            )
        self._check_open()
        await self._stage(self._seconds)

    def rollback(self) -> None:
        """Roll the transaction back when the block ends. The last call of this and `leave_open` counts.

        Raises ValueError after the block.
        """
        check_not_ended(self, ended=self._ended)
        self._decision = False

    def leave_open(self) -> None:
        """Leave the outcome open when the block ends: brokers then ask `check_set`.

        Raises ValueError without one, and after the block.
        """
        check_not_ended(self, ended=self._ended)
        if not self._may_wait:
            raise ValueError("give the TransactionProducer a check_set: it decides how this transaction ends")
        self._decision = None

    def _check_open(self) -> None:
        if self._ended or self._half is not None:
            raise MessageRefused(f"nothing can be added to {self}: it was already sent to the broker")

    # How it ends.

    async def _end(self, seconds: float) -> None:
        """Commit or roll back at the end of the block. Raises the errors of `TransactionProducer.transaction`."""
        try:
            if self._decision is False:
                await self._roll_back(seconds)
                await self._notify_consumers(committed=False)
                return
            if self._half is None and (self._messages or any(each.ranges for each in self._consumed_ranges)):
                await self._stage(seconds)
            if self._decision is None:
                await self._notify_consumers(committed=False)
                return
            if self._half is not None:
                await self._commit(seconds)
            self.is_committed = True
            await self._notify_consumers(committed=True)
        except BaseException:
            await self._notify_consumers(committed=False)  # noqa: ASYNC102 - shields itself, and waits for nothing; unless they know it already
            raise
        finally:
            self._ended = True

    async def _notify_consumers(self, *, committed: bool) -> None:
        """Tell each consumer the outcome, once."""
        offsets, self._consumed_ranges = self._consumed_ranges, []
        with anyio.CancelScope(shield=True):  # none of them waits for anything
            for each in offsets:
                await (each.on_commit() if committed else each.on_abort())

    async def _fence(self, error: BrokerError) -> TransactionFenced:
        """Tell the consumers that another member consumed the messages first, and return the error that says so."""
        offsets, self._consumed_ranges = self._consumed_ranges, []
        for each in offsets:
            await each.on_fence()
        return TransactionFenced(error.remark or "the group's offset has moved")

    async def _stage(self, seconds: float) -> None:
        queues = await self._queues()
        offsets = [
            ConsumedRange(each.group, queue.topic, queue.queue_id, first, end)  # type: ignore[arg-type]
            for each in self._consumed_ranges
            for queue, (first, end) in each.ranges.items()
        ]
        if len(offsets) > SET_OFFSETS_MAX:
            raise MessageRefused(f"the transaction consumes from {len(offsets)} queues; {SET_OFFSETS_MAX} are allowed")
        messages = [_set_message(outgoing, queue) for (outgoing, _), queue in zip(self._messages, queues, strict=True)]
        place = queues[0] if queues else next(queue for each in self._consumed_ranges for queue in each.ranges)
        ext = StageTransactionExt(producer_group=self._group, transaction_id=self.id, born_timestamp_ms=wall_clock_ms())
        body = TransactionSet(messages, offsets).encode()
        try:
            self._half, self._place = await self._call_stage(place, ext, body, seconds), place
        except ClientError as error:
            if isinstance(error, BrokerError) and error.code == ResponseCode.PULL_OFFSET_MOVED:
                raise await self._fence(error) from error  # noqa: ASYNC120
            if error.stored == "unknown":
                raise TransactionOutcomeUnknown(self.id, f"it may be stored, invisible: {error}") from error
            raise

    async def _call_stage(
        self, place: MessageQueue, ext: StageTransactionExt, body: bytes, seconds: float
    ) -> TransactionStaged:
        new_until = anyio.current_time() + min(_NEW_SECONDS, seconds / 2)
        while True:
            try:
                response, _ = await call_leader(
                    self._core,
                    place.topic,
                    place.broker_name,
                    RequestCode.STAGE_TRANSACTION,
                    ext.fields(),
                    body,
                    seconds=seconds,
                    repeat=Repeat.UNLESS_CARRIED_OUT,
                )
            except BrokerError as error:
                if error.code != ResponseCode.VERSION_NOT_SUPPORTED or anyio.current_time() >= new_until:
                    raise
                await anyio.sleep(_NEW_PAUSE_SECONDS)
            else:
                return fields_of(TransactionStaged, response)

    async def _commit(self, seconds: float) -> None:
        try:
            await self._call_end(COMMITTED, seconds)
        except BrokerError as error:
            if error.code == ResponseCode.PULL_OFFSET_MOVED:
                with suppress(ClientError):
                    await self._call_end(ROLLBACK, _END_SECONDS)  # noqa: ASYNC120 - a cancellation comes first
                raise await self._fence(error) from error  # noqa: ASYNC120
            if is_busy(error):
                raise TransactionOutcomeUnknown(self.id, str(error)) from error
            raise
        except ClientError as error:
            raise TransactionOutcomeUnknown(self.id, str(error)) from error

    async def _roll_back(self, seconds: float) -> None:
        """Ask for a rollback; without an answer, brokers roll back later: when they check back, or give up."""
        if self._half is not None:
            with suppress(ClientError):
                await self._call_end(ROLLBACK, seconds)

    async def _call_end(self, outcome: int, seconds: float) -> None:
        half, place = self._half, self._place
        assert half is not None and place is not None, "a transaction ends that was not staged"  # noqa: PT018
        ext = EndTransactionExt(
            producer_group=self._group,
            half_queue_offset=half.half_queue_offset,
            half_physical_offset=half.half_physical_offset,
            commit_or_rollback=outcome,
            msg_id=self.id,
            transaction_id=self.id,
            topic=place.topic,
        )
        await call_leader(
            self._core,
            place.topic,
            place.broker_name,
            RequestCode.END_TRANSACTION,
            ext.fields(),
            seconds=seconds,
            repeat=Repeat.ALWAYS,
        )

    # Where it goes.

    async def _queues(self) -> list[MessageQueue]:
        """The queue of each message, all in one broker group. Raises MessageRefused, and the errors of `route`."""
        fixed_queues = [await self._fixed_queue(outgoing, queue) for outgoing, queue in self._messages]
        groups = {queue.broker_name for queue in fixed_queues if queue is not None}
        groups |= {queue.broker_name for each in self._consumed_ranges for queue in each.ranges}
        if len(groups) > 1:
            raise MessageRefused(
                f"the transaction has queues of the broker groups {', '.join(sorted(groups))}, and a transaction is in "
                "one: consume the queues of each broker group with separate consumers and transactions, and send "
                "to queues of that group (`queue=`), without a sharding key that leads elsewhere"
            )
        group = next(iter(groups), None)
        queues: list[MessageQueue] = []
        for (message, _), queue in zip(self._messages, fixed_queues, strict=True):
            if queue is None:
                queue = await self._any_queue(message.topic, group)
                group = queue.broker_name
            queues.append(queue)
        return queues

    async def _fixed_queue(self, message: OutgoingMessage, queue: MessageQueue | None) -> MessageQueue | None:
        if queue is not None or message.sharding_key is None:
            return queue
        queues = await self._writable(message.topic)
        return queues[java_string_hash(message.sharding_key) % len(queues)]

    async def _any_queue(self, topic: str, group: str | None) -> MessageQueue:
        queues = [queue for queue in await self._writable(topic) if group in (None, queue.broker_name)]
        if not queues:
            raise MessageRefused(
                f"topic {topic} has no writable queue in broker group {group}, the one of the transaction: create it "
                "there"
            )
        return self._rng.choice(queues)

    async def _writable(self, topic: str) -> Sequence[MessageQueue]:
        route = await self._core.route(topic, auto_create=self._auto_create_topics)
        if not route.write_queues:
            raise MessageRefused(f"no queue of topic {topic} is writable")
        return route.write_queues


def _set_message(message: OutgoingMessage, queue: MessageQueue) -> SetMessage:
    return SetMessage(message.topic, queue.queue_id, message.body, message.properties, message.flag)
