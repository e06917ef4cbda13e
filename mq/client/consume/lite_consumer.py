"""The consumer of lite topics: subscribes to any number of them at run time, and gets their messages in order.

It is a pop consumer whose broker groups each answer one request for all lite topics. What it subscribes to is in the
memory of a broker group's leader, so it says it again when a leader does not know it.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import anyio

from mq.client.body_codecs import BodyCodec
from mq.client.consume.policies import OnError
from mq.client.consume.pop_consumer import BATCH_MAX, PopConsumer, PoppingOptions
from mq.client.consume.popped_messages import LITE_QUEUE_ID, AckBatch, PoppedMessage, read_popped_lite
from mq.client.errors import BrokerError, ClientError
from mq.client.events import ClientEvent, OnEvent
from mq.client.message import BodyT, MessageQueue
from mq.client.metrics.recorder import ClientMetrics
from mq.client.net.client_core import ClientCore, RemotingSettings
from mq.client.net.connection import RespondLater
from mq.client.net.leader_calls import Repeat, call_leader
from mq.client.net.replies import LeftOut
from mq.client.spans import TracerProvider
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response, UnknownRequest
from mq.protocol.names import check_lite_topic, lite_queue
from mq.protocol.requests.lite import (
    AckLiteExt,
    Action,
    LiteSubscription,
    LiteSubscriptionSet,
    NotifyUnsubscribeLite,
    OffsetKind,
    OffsetOption,
    Policy,
    PopLiteExt,
)
from mq.protocol.wire.request import Request


@dataclass(frozen=True, slots=True)
class LiteStart:
    """The position in a lite topic at which a group starts. The methods below make one."""

    kind: OffsetKind
    value: int

    @staticmethod
    def first() -> LiteStart:
        """Start at the first message that is still stored."""
        return LiteStart(OffsetKind.POLICY, Policy.MIN)

    @staticmethod
    def end() -> LiteStart:
        """Start at the next message."""
        return LiteStart(OffsetKind.POLICY, Policy.MAX)

    @staticmethod
    def tail(count: int) -> LiteStart:
        """Start at the last `count` messages."""
        return LiteStart(OffsetKind.TAIL_N, count)

    @staticmethod
    def offset(offset: int) -> LiteStart:
        """Start at this offset of the lite topic, as in `PoppedMessage.queue_offset`."""
        return LiteStart(OffsetKind.OFFSET, offset)

    @staticmethod
    def at(time: dt.datetime) -> LiteStart:
        """Start at the first message stored at `time` or later. Raises ValueError if `time` has no time zone."""
        if time.tzinfo is None:
            raise ValueError(f"{time} has no time zone")
        return LiteStart(OffsetKind.TIMESTAMP, int(time.timestamp() * 1000))


class LiteConsumerOptions(PoppingOptions, total=False):
    """Keyword arguments of `LiteConsumer`, but for `codec`, which has a type of its own."""

    lite_topics: Iterable[str] | None


class LiteConsumer(PopConsumer[BodyT]):
    """Pops messages of lite topics, on trio or asyncio.

        async with LiteConsumer("127.0.0.1:9876", "agents", "Sessions", invisible=60.0) as consumer:
            await consumer.subscribe("session-17", "session-18")
            async for message in consumer:
                await answer(message.lite_topic, message.body)
                await consumer.ack(message)

    `topic` is the parent: its attribute `message.type` is LITE, and the attribute `lite.bind.topic` of the group names
    it. The messages of a lite topic come in order, each after the previous one was acknowledged, to one member of the
    group at a time; other lite topics do not wait. A message that is returned (`nack`), or not acknowledged within
    `invisible` seconds, comes again before those behind it, with a higher `reconsume_times`, as often as it takes: a
    handler that gives up acknowledges it. One that is not ready yet, as while a user thinks, calls
    `suspend(message, seconds)`: the lite topic rests for so long, and `reconsume_times` stays as it is.

    `lite_topics` are those to begin with; None stands for all of them, which needs a group with the attribute
    `lite.sub.wildcard`. A group that reads a lite topic for the first time begins at its first message. With the
    attribute `lite.sub.model` Exclusive, a member that subscribes to a lite topic takes it from the one that had it;
    that one gets the event "revoked", with the queue of the lite topic. All other arguments are as for `PopConsumer`.
    """

    _kind = "lite_consumer"
    _is_lite = True
    _pop_code: ClassVar[RequestCode] = RequestCode.POP_LITE_MESSAGE

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        topic: str,
        *,
        lite_topics: Iterable[str] | None = (),
        invisible: float = 60.0,
        ahead: int = BATCH_MAX,
        hold_seconds: float = 15.0,
        timeout: float = 10.0,
        codec: BodyCodec[BodyT] | None = None,
        on_error: OnError | None = None,
        otel: bool | TracerProvider = False,
        metrics: ClientMetrics | None = None,
        ping: bool = False,
        on_event: OnEvent | None = None,
        remoting: RemotingSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(
            namesrv,
            group,
            topic,
            ordered=True,
            invisible=invisible,
            ahead=ahead,
            hold_seconds=hold_seconds,
            timeout=timeout,
            codec=codec,
            on_error=on_error,
            otel=otel,
            metrics=metrics,
            ping=ping,
            on_event=on_event,
            remoting=remoting,
            rng=rng,
        )
        self._lite_topics: set[str] | None = None if lite_topics is None else _check_names(lite_topics)
        self._subscribed_at: set[str] = set()
        """Broker groups that know all that this consumer subscribes to, unless their leader has changed."""
        self._begun_brokers: set[str] = set()
        """Broker groups that this consumer has told what it begins with."""

    @property
    def lite_topics(self) -> frozenset[str] | None:
        """The lite topics that the consumer subscribes to; None if it subscribes to all."""
        return None if self._lite_topics is None else frozenset(self._lite_topics)

    async def subscribe(self, *lite_topics: str, start: LiteStart | None = None) -> None:
        """Subscribe to more lite topics, which need not exist yet; returns when all broker groups know of it.

        With `start`, the whole group continues there, also in those that this consumer subscribes to already. Raises
        BrokerError, with code 2018 for more than a client may subscribe to; other errors of `ClientError` after
        `timeout` seconds: then the consumer continues to try, but `start` may have had no effect.
        """
        await self._change(Action.PARTIAL_ADD, _check_names(lite_topics), start)

    async def unsubscribe(self, *lite_topics: str) -> None:
        """Stop popping messages of these lite topics. Messages that were popped already may still be delivered.

        Raises ClientError if a broker group has not confirmed it within `timeout` seconds; it will be told.
        """
        await self._change(Action.PARTIAL_REMOVE, _check_names(lite_topics), None)

    async def _change(self, action: Action, lites: set[str], start: LiteStart | None) -> None:
        core = self._open_core()
        if self._lite_topics is None:
            raise ValueError("this consumer reads all lite topics")
        if not lites:
            return
        names = sorted((await core.route(self.topic)).brokers)
        errors: list[ClientError] = []

        async def send(broker_name: str) -> None:
            try:
                await self._send_subscriptions(core, broker_name)
                await self._control(core, broker_name, action, lites, start)
            except ClientError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for broker_name in names:
                tasks.start_soon(send, broker_name)
        broker_errors = [error for error in errors if isinstance(error, BrokerError)]
        if not broker_errors:
            self._lite_topics = self._lite_topics | lites if action is Action.PARTIAL_ADD else self._lite_topics - lites
        # One that has not confirmed it, or has another leader by now, hears all of them before the next pop.
        self._subscribed_at.difference_update(names)
        if errors:
            raise (broker_errors or errors)[0]

    async def _control(
        self,
        core: ClientCore,
        broker_name: str,
        action: Action,
        lites: Collection[str],
        start: LiteStart | None,
        *,
        seconds: float | None = None,
    ) -> None:
        option = None if start is None else OffsetOption(type=start.kind, value=start.value)
        entry = LiteSubscription(
            action=action,
            client_id=self.client_id,
            group=self.group,
            topic=self.topic,
            lite_topics=sorted(lites),
            offset_option=option,
        )
        await call_leader(
            core,
            self.topic,
            broker_name,
            RequestCode.LITE_SUBSCRIPTION_CTL,
            {},
            LiteSubscriptionSet(subscriptions=[entry]).encode(),
            seconds=self.timeout if seconds is None else seconds,
            repeat=Repeat.ALWAYS,
            busy_codes=(ResponseCode.SERVICE_NOT_AVAILABLE,),
        )

    # Life cycle.

    def _on_connect(self, core: ClientCore) -> None:
        super()._on_connect(core)
        self._subscribed_at.clear()
        self._begun_brokers.clear()

    async def _leave(self, core: ClientCore) -> None:
        route = core.known_route(self.topic)
        with anyio.move_on_after(1.0):
            for broker_name in () if route is None else sorted(route.brokers):
                try:
                    await self._control(core, broker_name, Action.COMPLETE_REMOVE, (), None, seconds=1.0)
                except ClientError:
                    continue  # it is forgotten after some minutes
        await super()._leave(core)

    def _answer_server(
        self, request: Request | UnknownRequest, body: memoryview, respond_later: RespondLater
    ) -> bytes | None:
        if isinstance(request, NotifyUnsubscribeLite):
            ext = request.ext
            if ext.client_id == self.client_id and self._lite_topics is not None:
                self._lite_topics.discard(ext.lite_topic)
                queue = MessageQueue(lite_queue(self.topic, ext.lite_topic), "", LITE_QUEUE_ID)
                reason = f"another member of {self.group} has subscribed to it"
                self._emit(ClientEvent("revoked", ext.lite_topic, reason, frozenset((queue,))))
            return None
        return super()._answer_server(request, body, respond_later)

    # Pops.

    async def _before_pop(self, broker_name: str) -> None:
        assert self._core is not None, "a pop before the consumer was opened"
        await self._send_subscriptions(self._core, broker_name)

    async def _send_subscriptions(self, core: ClientCore, broker_name: str) -> None:
        """Send all subscriptions to a broker group, unless it has them. Raises ClientError."""
        if broker_name in self._subscribed_at:
            return
        self._subscribed_at.add(broker_name)
        # It takes the topics that it begins with from other members, which may be gone; not the ones it repeats.
        is_first = bool(self._lite_topics) and broker_name not in self._begun_brokers
        action = Action.PARTIAL_ADD if is_first else Action.COMPLETE_ADD
        try:
            await self._control(core, broker_name, action, self._lite_topics or (), None)
            self._begun_brokers.add(broker_name)
        except BaseException:
            self._subscribed_at.discard(broker_name)
            raise

    def _pops_again(self, broker_name: str, response: Response) -> bool:
        if response.code != ResponseCode.SUBSCRIPTION_NOT_EXIST:
            return False
        self._subscribed_at.discard(broker_name)
        return True

    def _pop_ext(self, attempt: str) -> dict[str, str]:
        ext = PopLiteExt(
            client_id=self.client_id,
            consumer_group=self.group,
            topic=self.topic,
            max_messages=min(BATCH_MAX, self._ahead),
            invisible_ms=math.ceil(self.invisible * 1000),
            poll_ms=int(self._hold_seconds * 1000),
            born_ms=time.time_ns() // 1_000_000,
            attempt_id=attempt,
            says_subscriptions=True,
        )
        return ext.fields()

    def _read_popped(
        self, broker_name: str, response: Response, body: memoryview, hidden_until: float, left_out: list[LeftOut]
    ) -> list[PoppedMessage[Any]]:
        return read_popped_lite(self.topic, broker_name, response, body, hidden_until, left_out)

    async def _send_batch(self, broker_name: str, batch: AckBatch) -> None:
        """Acknowledge one by one: lite topics have no batches of acknowledgements."""
        errors: list[ClientError] = []

        async def acknowledge(message: PoppedMessage[Any]) -> None:
            receipt = message.receipt
            ext = AckLiteExt(
                consumer_group=self.group,
                topic=self.topic,
                queue_id=LITE_QUEUE_ID,
                extra_info=receipt.encode(),
                offset=receipt.offset,
                lite_topic=message.lite_topic or "",
            )
            try:
                await self._send_until_answered(broker_name, RequestCode.ACK_LITE_MESSAGE, ext.fields(), b"")
            except ClientError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for message in batch.messages:
                tasks.start_soon(acknowledge, message)
        if errors:
            raise errors[0]


def _check_names(lite_topics: Iterable[str]) -> set[str]:
    if isinstance(lite_topics, str):
        raise TypeError(f"lite topics are given one by one or in a list, not as one text: {lite_topics!r}")
    names = set(lite_topics)
    for name in names:
        check_lite_topic(name)
    return names
