"""The pop consumer: pops messages of a topic and acknowledges each one separately.

It owns no queues, so members of a group need not agree on anything, and a member that hangs blocks no other: messages
that it popped are hidden from the others for a while, and redelivered unless they are acknowledged by then. One task
per broker group pops; acknowledgements that arrive while one is in flight are batched.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, Literal, Self

import anyio
import anyio.abc
import anyio.lowlevel

from mq.client.body_codecs import BodyCodec
from mq.client.consume.consumer import Consumer
from mq.client.consume.policies import OnError
from mq.client.consume.pop_options import INVISIBLE_SECONDS_MAX, check_pop_options, popping_heartbeat
from mq.client.consume.popped_messages import AckBatch, Inbox, PoppedMessage, batch_ack, check_popped, read_popped
from mq.client.consume.removal import OwnRemoval
from mq.client.consume.renewals import Renewals
from mq.client.consume.subscription import subscription_of
from mq.client.errors import BodyNotDecoded, BrokerError, ClientClosed, ClientError, TopicNotFound, UnreadableAnswer
from mq.client.events import ClientEvent, OnEvent
from mq.client.filters import Sql
from mq.client.logs import log
from mq.client.long_wait import LongWait
from mq.client.message import BodyT, MessageQueue
from mq.client.metrics.recorder import ClientMetrics
from mq.client.net.client_core import ClientCore, RemotingSettings
from mq.client.net.connection import Connection
from mq.client.net.leader_calls import Repeat, call_leader, leader_address
from mq.client.net.replies import LeftOut, fields_of
from mq.client.net.routes import TopicRoute
from mq.client.options import ClientOptions
from mq.client.spans import TracerProvider, now_ns
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.names import check_topic, pop_retry_topic
from mq.protocol.requests.pop import ChangeInvisibleExt, PopExt, PopTimes
from mq.protocol.requests.receipts import NORMAL

RETRY_SECONDS = 0.2
ANSWER_SECONDS = 5.0
"""Time to wait for the answer to a pop after the time for which it may be held."""
WARN_SECONDS = 30.0
"""Between two warnings that the topic does not exist."""
BATCH_MAX = 32

_NOTHING = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND})
_NOT_NOW = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR})


class PoppingOptions(ClientOptions, total=False):
    """Keyword arguments of `PopConsumer` that `LiteConsumer` has, too."""

    invisible: float
    ahead: int
    hold_seconds: float
    timeout: float
    on_error: OnError | None


class PopConsumerOptions(PoppingOptions, total=False):
    """Keyword arguments of `PopConsumer`, but for `codec`, which has a type of its own."""

    ordered: bool
    renew: bool
    consume_from: Literal["first", "last"]


class PopConsumer(Consumer[BodyT]):
    """Pops messages of a topic, on trio or asyncio.

        async with PopConsumer("127.0.0.1:9876", "billing", "Orders", invisible=60.0) as consumer:
            async for message in consumer:
                try:
                    await bill(message)
                except BankClosed:
                    await consumer.nack(message, delay=600)
                else:
                    await consumer.ack(message)

    A message is hidden from the rest of the group for `invisible` seconds. If it is neither acknowledged nor returned
    by then, it is redelivered to any member of the group, with a higher `reconsume_times`. `tags` filters messages as
    in `PushConsumer.subscribe`. A new group begins at `consume_from`. `ahead` is the maximum number of messages of a
    broker group that wait here; popping pauses above it, and waiting messages whose invisible time ends are dropped.
    With `ahead=0` one message is popped at a time, and only while a task waits for it.

    With `renew`, a message stays hidden until it is acknowledged or returned, however long that takes: the consumer
    extends its invisible time, also while it waits here. `invisible` is then the time after which the messages of a
    consumer that died are redelivered. One that is closed returns its messages at once. Not with `ordered`.

    With `ordered`, the messages of a queue are delivered in order, each after the previous one was acknowledged, and
    the whole group handles one message of a queue at a time. A message that is returned or not acknowledged in time is
    redelivered before those behind it. Messages of a queue that were popped together, at most `ahead`, are hidden for
    `invisible` seconds together. All members of a group must use the same value.

    `timeout` limits `ack` and `nack`, in seconds: within it they are retried across a change of leader. `otel` as for
    `Producer`: receiving a message, `ack` and `nack` are spans. `metrics` counts them, see `mq.client.metrics`.

    `codec` decodes the bodies, see `mq.client.body_codecs`. A message whose body it cannot decode is left out, and
    becomes a dead letter of the group; or what `on_error={BodyNotDecoded: ...}` says. With `StopConsumer`, receiving
    raises BodyNotDecoded, and the message is returned.
    """

    _kind = "pop_consumer"
    _is_lite: ClassVar[bool] = False
    """Whether it pops lite topics."""
    _pop_code: ClassVar[RequestCode] = RequestCode.POP_MESSAGE

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        topic: str,
        tags: str | Sql = "*",
        *,
        ordered: bool = False,
        invisible: float = 60.0,
        renew: bool = False,
        consume_from: Literal["first", "last"] = "last",
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
            otel=otel,
            metrics=metrics,
            codec=codec,
            on_error=on_error,
            ping=ping,
            on_event=on_event,
            remoting=remoting,
            rng=rng,
        )
        check_topic(topic)
        check_pop_options(consume_from, invisible, ahead, hold_seconds, timeout, ordered=ordered, renew=renew)
        self.topic = topic
        self.invisible = invisible
        self.timeout = timeout
        self._subscription = subscription_of(topic, tags)
        if self._subscription.program is not None:
            raise TypeError("a filter program needs a PushConsumer: pops are filtered by tags, or by sql(...)")
        self._ordered = ordered
        self._init_mode = 0 if consume_from == "first" else 1
        self._hold_seconds = hold_seconds
        self._ahead = ahead
        self._attempts = 0
        self._pop_connections: dict[str, Connection] = {}
        self._polled_brokers: set[str] = set()
        self._acks: dict[str, AckBatch] = {}
        self._inbox = Inbox(ahead, ordered=ordered)
        self._renewals = Renewals(invisible, self._renew_message) if renew else None
        self._waits: dict[str, LongWait] = {}
        self._removal = OwnRemoval(group, lambda _: None)
        self._warn_at = self._tell_left_out_at = -math.inf
        self._unfinished_messages: list[PoppedMessage[Any]] = []
        """Messages that were open when the consumer was closed, and are returned: in ordered consumption, and with
        `renew`.
        """

    # Life cycle.

    def _on_connect(self, core: ClientCore) -> None:
        self._inbox = Inbox(self._ahead, ordered=self._ordered)
        self._polled_brokers.clear()
        self._pop_connections.clear()
        self._acks.clear()
        self._waits.clear()
        self._removal = OwnRemoval(self.group, core.emit)
        self._warn_at = self._tell_left_out_at = -math.inf
        if self._renewals is not None:
            self._renewals = Renewals(self.invisible, self._renew_message)

    async def _start(self, core: ClientCore, tasks: anyio.abc.TaskGroup) -> None:
        """Start popping. Raises TopicNotFound, NameServersUnavailable."""
        self._on_route(await core.route(self.topic, refresh=True))
        if self._renewals is not None:
            tasks.start_soon(self._renewals.run)

    def _on_close(self) -> None:
        for batch in self._acks.values():
            batch.fail()
        self._acks.clear()
        self._unfinished_messages = self._inbox.close()
        if self._renewals is not None:
            self._unfinished_messages = self._renewals.close()

    def _checked_topics(self) -> Collection[str]:
        return (self.topic,)

    def _troubles(self) -> Iterator[str]:
        yield from super()._troubles()
        if self._removal.is_removed:
            yield self._removal.reason
        yield from (f"{name}: {wait.reason}" for name, wait in self._waits.items() if wait.reason is not None)

    def _wait_goes_on(self, wait: LongWait, reason: str, broker_name: str) -> None:
        if wait.warn_if_long(reason, group=self.group, broker_name=broker_name) and self._core is not None:
            self._core.emit(ClientEvent("stuck", broker_name, reason))

    async def _leave(self, core: ClientCore) -> None:
        if self._unfinished_messages:
            # Otherwise their queues would be blocked until their time is over. The connections of pops that are still
            # held at the brokers are closed, or those pops would get the messages again.
            for connection in self._pop_connections.values():
                connection.close("the consumer left while a pop was waiting")
            await self._give_back(self._unfinished_messages, 0.0)
        await core.unregister(self.client_id)

    def __repr__(self) -> str:
        return self._show(f" of {self.topic}", "open")

    def _on_route(self, route: TopicRoute) -> None:
        if self._tasks is None or route.topic != self.topic:
            return
        for broker_name in route.brokers.keys() - self._polled_brokers:
            self._polled_brokers.add(broker_name)
            self._tasks.start_soon(self._poll, broker_name)

    # Messages.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PoppedMessage[BodyT]:
        """Wait for the next message. Raises ClientClosed; BodyNotDecoded if `on_error` says `StopConsumer`."""
        self._open_core()
        began_ns = 0 if self._spans is None else now_ns()
        message = await self._inbox.get()
        while (error := self._decoder.failure(message)) is not None:
            await self._put_aside(message, error)
            message = await self._inbox.get()
        if self._spans is not None:
            self._spans.on_receive("pop", [message], began_ns, is_batch=False)
        if self._recorder is not None:
            self._recorder.on_receive([message])
        return message

    async def _put_aside(self, message: PoppedMessage[Any], error: BodyNotDecoded) -> None:
        """Apply the policy to a message that cannot be decoded; not cancelled, it takes some seconds at most."""
        retry_after: float | None = 0.0
        try:
            retry_after = await self._decoder.put_aside(message, error)
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await (self.ack(message) if retry_after is None else self.nack(message, retry_after))
                except ClientError as unsaid:  # it is redelivered when its invisible time is over
                    log.info("pop_failed", topic=self.topic, broker_name=message.queue.broker_name, reason=str(unsaid))

    async def ack(self, message: PoppedMessage[Any]) -> None:
        """Acknowledge a message, and wait until a broker confirms that. Raises ClientError if none does in time.

        If its invisible time was over before, it is redelivered all the same. With `ordered`, the next message of its
        queue may be delivered from this call on. If cancelled, it may be acknowledged.
        """
        self._check_process()
        check_popped(message)
        if self._renewals is not None:
            await self._renewals.release(message)
        self._open_core()
        self._inbox.release_next(message)
        batch = self._queue_ack(message)
        with nullcontext() if self._spans is None else self._spans.trace_settle("ack", message.topic, [message]):
            await batch.response_event.wait()
            if batch.error is not None:
                raise batch.error
        if self._recorder is not None:
            self._recorder.on_settle(message.topic, "done")

    def _queue_ack(self, message: PoppedMessage[Any]) -> AckBatch:
        """Add a message to the next batch of acknowledgements of its broker group, and return the batch."""
        assert self._tasks is not None, "open without tasks"
        broker_name = message.queue.broker_name
        batch = self._acks.get(broker_name)
        if batch is None:
            batch = self._acks[broker_name] = AckBatch()
            self._tasks.start_soon(self._send_acks, broker_name)
        batch.messages.append(message)
        return batch

    async def nack(self, message: PoppedMessage[Any], delay: float = 0.0) -> None:
        """Redeliver a message in `delay` seconds, instead of at the end of its invisible time. Raises ClientError.

        Afterwards it can no longer be acknowledged. With `ordered`, those behind it come after it.
        """
        await self._return(message, delay, suspend=False)

    async def suspend(self, message: PoppedMessage[Any], seconds: float) -> None:
        """Redeliver a message `seconds` from now, as `nack` does, but without counting an attempt.

        With `ordered`, that holds for those behind it as well, and nothing of its queue comes meanwhile. Until all
        replicas of the broker group have a version that knows this (format level 7), the attempt is counted.
        """
        await self._return(message, seconds, suspend=True)

    async def _return(self, message: PoppedMessage[Any], delay: float, *, suspend: bool) -> None:
        self._check_process()
        check_popped(message)
        if not 0 <= delay <= INVISIBLE_SECONDS_MAX:
            raise ValueError(f"a delay of {delay} seconds; allowed: 0 to {INVISIBLE_SECONDS_MAX}")
        if self._renewals is not None:
            await self._renewals.release(message)
        self._open_core()
        with nullcontext() if self._spans is None else self._spans.trace_settle("nack", message.topic, [message]):
            errors = await self._give_back(self._inbox.drop(message), delay, suspend=suspend)
            if errors:
                raise errors[0]
        if self._recorder is not None:
            self._recorder.on_settle(message.topic, "sent_back")

    async def extend(self, message: PoppedMessage[Any], seconds: float) -> bool:
        """Hide a message for `seconds` from now on. Returns whether it was still hidden for this consumer.

        If not, it is redelivered, and acknowledging it has no effect. Raises ClientError if no answer came in time, and
        ValueError with `ordered`; then, as after a cancellation, the message may be redelivered although it is
        acknowledged.
        """
        if self._ordered:
            raise ValueError("extend is not allowed with ordered=True: pass an `invisible` longer than the handling")
        self._check_process()
        check_popped(message)
        if not 0.001 <= seconds <= INVISIBLE_SECONDS_MAX:
            raise ValueError(f"seconds is {seconds}; allowed: 0.001 to {INVISIBLE_SECONDS_MAX}")
        async with nullcontext() if self._renewals is None else self._renewals.pause(message):
            self._open_core()
            return await self._extend(message, seconds)

    async def _extend(self, message: PoppedMessage, seconds: float) -> bool:
        asked_at = anyio.current_time()
        response = await self._change_invisible(message, seconds)
        if response is None:
            return False
        # From now on the message has a checkpoint of its own, that begins at its offset.
        times = fields_of(PopTimes, response)
        message.receipt = message.receipt._replace(
            start=message.receipt.offset,
            pop_time_ms=times.pop_time_ms,
            invisible_ms=times.invisible_ms,
            revive_queue=times.revive_queue,
        )
        message.hidden_until = asked_at + seconds
        return True

    async def _renew_message(self, message: PoppedMessage[Any]) -> bool:
        return await self._extend(message, self.invisible)

    async def _change_invisible(
        self, message: PoppedMessage[Any], seconds: float, *, suspend: bool = False
    ) -> Response | None:
        """Let the invisible time end in `seconds`. None if the message is not hidden. Raises ClientError."""
        receipt = message.receipt
        ext = ChangeInvisibleExt(
            lite_topic=message.lite_topic if self._is_lite else None,
            consumer_group=self.group,
            topic=self.topic if receipt.mark == NORMAL else pop_retry_topic(self.group, self.topic),
            queue_id=receipt.queue_id,
            extra_info=receipt.encode(),
            offset=receipt.offset,
            invisible_ms=math.ceil(seconds * 1000),
            suspend=suspend or None,
        )
        return await self._send_until_answered(
            message.queue.broker_name, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext.fields(), b""
        )

    async def _give_back(
        self, messages: Sequence[PoppedMessage[Any]], delay: float, *, suspend: bool = False
    ) -> list[ClientError]:
        """Return messages for redelivery; returns the errors."""
        errors: list[ClientError] = []

        async def change(message: PoppedMessage[Any]) -> None:
            try:
                await self._change_invisible(message, delay, suspend=suspend)
            except ClientError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for message in messages:
                tasks.start_soon(change, message)
        return errors

    async def _send_acks(self, broker_name: str) -> None:
        """Send batched acknowledgements until none are left."""
        await anyio.lowlevel.checkpoint()
        while (batch := self._acks[broker_name]).messages:
            self._acks[broker_name] = AckBatch()
            try:
                await self._send_batch(broker_name, batch)
            except ClientError as error:
                batch.error = error
            except BaseException:  # the consumer is closing
                batch.fail()
                raise
            batch.response_event.set()
        del self._acks[broker_name]

    async def _send_batch(self, broker_name: str, batch: AckBatch) -> None:
        """Send these acknowledgements. Raises ClientError."""
        receipts = [message.receipt for message in batch.messages]
        body = batch_ack(broker_name, [(self.group, self.topic, each) for each in receipts])
        await self._send_until_answered(broker_name, RequestCode.BATCH_ACK_MESSAGE, None, body)

    async def _send_until_answered(
        self, broker_name: str, code: int, ext: dict[str, str] | None, body: bytes
    ) -> Response | None:
        """Send a request about popped messages and retry it while there is time: it is idempotent.

        None if these messages are no longer hidden, as the broker says.
        """
        core = self._core
        assert core is not None, "something is said of messages before there are any"
        try:
            response, _ = await call_leader(
                core,
                self.topic,
                broker_name,
                code,
                ext,
                body,
                seconds=self.timeout,
                repeat=Repeat.ALWAYS,
                busy_codes=_NOT_NOW,
            )
        except BrokerError as error:
            if error.code not in (ResponseCode.NO_MESSAGE, ResponseCode.TOPIC_NOT_EXIST):
                raise
            log.info("popped_message_gone", topic=self.topic, group=self.group, reason=error.remark)
            return None
        return response

    # Pops.

    async def _poll(self, broker_name: str) -> None:
        """Pop messages of a broker group until cancelled. Raises BrokerError for permanent failures."""
        core = self._core
        assert core is not None, "pops before the consumer was opened"
        refresh = False
        wait = self._waits[broker_name] = LongWait("cannot_pop", core.settings.limits)
        attempt = self._new_attempt()
        while True:
            await self._inbox.room()
            asked_at = anyio.current_time()
            try:
                address = await leader_address(core, self.topic, broker_name, refresh=refresh)
                connection = await core.connection(address)
                await self._before_pop(broker_name)
                self._pop_connections[broker_name] = connection
                response, body = await connection.request(
                    self._pop_code,
                    self._pop_ext(attempt),
                    timeout=self._hold_seconds + ANSWER_SECONDS,
                    may_be_held=True,
                )
                del self._pop_connections[broker_name]
                attempt = self._new_attempt()
                if self._removal.check_response(response, broker_name):
                    await anyio.sleep(self._removal.pause_seconds)
                    continue
                refresh = response.code in _NOT_NOW
                is_success = response.code == ResponseCode.SUCCESS
                left_out = self._deliver_popped(broker_name, response, body) if is_success else []
                if refresh:
                    self._wait_goes_on(wait, f"code {response.code}: {response.remark}", broker_name)
                elif left_out:
                    self._wait_goes_on(wait, str(left_out[0].error), broker_name)
                elif is_success or response.code in _NOTHING:
                    wait.end()
                if is_success:
                    continue
                if response.code == ResponseCode.TOPIC_NOT_EXIST:
                    raise TopicNotFound(self.topic)
                if self._pops_again(broker_name, response):
                    continue
                if response.code not in _NOTHING and not refresh:
                    raise BrokerError(response.code, response.remark or "", address)
                if anyio.current_time() < asked_at + RETRY_SECONDS:
                    await anyio.sleep(RETRY_SECONDS)  # not held: the broker is busy, or its clock differs
            except BrokerError:
                raise
            except ClientClosed:
                return
            except UnreadableAnswer as error:
                # Drop the whole answer: its messages are redelivered, by another leader if this one does not recover.
                log.warning("replica_damaged", broker_name=broker_name, topic=self.topic, reason=str(error))
                refresh = True
                await anyio.sleep(RETRY_SECONDS)
            except ClientError as error:
                if isinstance(error, TopicNotFound) and asked_at >= self._warn_at:  # it may be created again
                    self._warn_at = asked_at + WARN_SECONDS
                    log.warning("cannot_consume", group=self.group, topic=self.topic, reason=str(error))
                log.info("pop_failed", topic=self.topic, broker_name=broker_name, reason=str(error))
                self._wait_goes_on(wait, str(error), broker_name)
                refresh = True
                await anyio.sleep(RETRY_SECONDS)

    def _deliver_popped(self, broker_name: str, response: Response, body: memoryview) -> list[LeftOut]:
        """Deliver popped messages. Returns those that cannot be delivered. Raises UnreadableAnswer."""
        left_out: list[LeftOut] = []
        # Only now: the pop may have been held for longer than the invisible time.
        hidden_until = anyio.current_time() + self.invisible
        messages = self._filter_by_tag(self._read_popped(broker_name, response, body, hidden_until, left_out))
        deliverable = self._deliverable(messages, left_out)
        if self._renewals is not None:
            self._renewals.hold(deliverable)
        self._inbox.put(deliverable)
        return left_out

    async def _before_pop(self, broker_name: str) -> None:
        """Called before each pop. Raises ClientError."""

    def _pops_again(self, broker_name: str, response: Response) -> bool:
        """Return whether to pop again at once after an answer without messages."""
        return False

    def _read_popped(
        self, broker_name: str, response: Response, body: memoryview, hidden_until: float, left_out: list[LeftOut]
    ) -> list[PoppedMessage[Any]]:
        return read_popped(self.topic, broker_name, response, body, hidden_until, left_out=left_out)

    def _filter_by_tag(self, messages: list[PoppedMessage[Any]]) -> list[PoppedMessage[Any]]:
        """Return the messages with the tags of the subscription; the others are acknowledged.

        Brokers compare only hash codes of tags, and different tags can have the same one.
        """
        matches_tag = self._subscription.matches_tag
        matches = [message for message in messages if matches_tag(message.tags)]
        if len(matches) < len(messages):
            for message in messages:
                if not matches_tag(message.tags):
                    self._queue_ack(message)
        return matches

    def _deliverable(self, messages: list[PoppedMessage[Any]], left_out: list[LeftOut]) -> list[PoppedMessage[Any]]:
        """Return the popped messages that may be delivered, although some were left out; logs those now and then.

        Those are redelivered when their invisible time is over; in ordered consumption those behind them, too.
        """
        if not left_out:
            return messages
        now = anyio.current_time()
        if now >= self._tell_left_out_at:
            self._tell_left_out_at = now + WARN_SECONDS
            queue, offset, error = left_out[0]
            log.error("body_not_inflated", group=self.group, queue=queue, offset=offset, reason=str(error))
        if not self._ordered:
            return messages
        ends: dict[MessageQueue, int] = {}
        for queue, offset, _ in left_out:
            ends[queue] = min(offset, ends.get(queue, offset))
        return [each for each in messages if each.queue_offset < ends.get(each.queue, math.inf)]

    def _new_attempt(self) -> str:
        """The attempt id of a pop. With the same id, an ordered pop gets the messages again whose answer was lost."""
        self._attempts += 1
        return f"{self.client_id}#{self._attempts}"

    def _pop_ext(self, attempt: str) -> dict[str, str]:
        subscription = self._subscription
        ext = PopExt(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=-1,
            max_messages=min(BATCH_MAX, max(1, self._ahead)),
            invisible_ms=math.ceil(self.invisible * 1000),
            poll_ms=int(self._hold_seconds * 1000),
            born_ms=time.time_ns() // 1_000_000,
            init_mode=self._init_mode,
            expression_type=subscription.expression_type,
            expression=subscription.expression,
            order=self._ordered,
            attempt_id=attempt if self._ordered else None,
            client_id=self.client_id,
        )
        return ext.fields()

    def _heartbeat_body(self) -> bytes:
        return popping_heartbeat(self.client_id, self.group, self._subscription)
