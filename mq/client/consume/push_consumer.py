"""The push consumer: a member of a consumer group that shares the queues of its topics with the other members.

Theory of operation. A `GroupMember` keeps one `Puller` for each queue that is ours; each fills its `ProcessQueue`; the
`DeliveryBoard` hands messages out, to the handlers that `run` drives or to the streams that users iterate over. Every
5 s the smallest offset not yet acknowledged of each queue goes to its leader. A crash, a lost leader, or a new member
therefore repeats at most what was acknowledged since, and skips nothing. What happens when is in `consumer`.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, TypedDict

import anyio
import anyio.abc

from mq.client.consume.allocation import Strategy, allocate_averagely
from mq.client.consume.consumer import Consumer
from mq.client.consume.delivery import DeliveryBoard, DeliveryStream, MessageStream
from mq.client.consume.diagnostics import read_reset, running_info, status
from mq.client.consume.handlers import Handler, HandlerT, Handling, check_handler
from mq.client.consume.local_offsets import LocalOffsets
from mq.client.consume.member import COMMIT_SECONDS, REBALANCE_SECONDS, GroupMember
from mq.client.consume.offsets import ConsumeFrom, GroupOffsets, check_position
from mq.client.consume.process_queue import ProcessQueue
from mq.client.consume.pull_loop import PullSettings
from mq.client.consume.send_back import give_back
from mq.client.consume.subscription import Subscribed, subscription_of
from mq.client.errors import ClientError
from mq.client.filters import Sql
from mq.client.message import MessageQueue, ReceivedMessage
from mq.client.net.client_core import ClientCore, RemotingSettings
from mq.client.net.connection import AnswerLater
from mq.client.net.replies import received_messages
from mq.client.net.routes import TopicRoute
from mq.client.spans import TracerProvider
from mq.protocol.bodies import ConsumerData, HeartbeatData
from mq.protocol.codes import ResponseCode
from mq.protocol.group_requests import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    ResetConsumerClientOffset,
)
from mq.protocol.headers import NotifyConsumerIdsChanged, Request, UnknownRequest, encode_response
from mq.protocol.names import check_topic, retry_topic

__all__ = ["PushConsumer", "PushConsumerOptions"]

FOR_OPERATORS_MAX = 16
"""Messages that operators have handled right now, at most so many at once."""


REMIND_SECONDS = 10.0
"""An open consumer with handlers whose `run` was not called by then says so in its log."""


class PushConsumerOptions(TypedDict, total=False):
    """What `PushConsumer` takes by name."""

    consume_from: ConsumeFrom
    ordered: bool
    exclusive: bool
    broadcast: str | os.PathLike[str] | None
    allocate: Strategy
    concurrency: int
    retry_delay: float
    max_reconsume_times: int | None
    pull: PullSettings | None
    trace: bool | str
    otel: bool | TracerProvider
    remoting: RemotingSettings | None
    commit_seconds: float
    rebalance_seconds: float
    rng: random.Random | None


class PushConsumer(Consumer):
    """Receives messages as a member of a consumer group (clustering mode), on trio or asyncio. With handlers:

        consumer = PushConsumer("127.0.0.1:9876", group="billing")

        @consumer.on("Orders", tags="new || changed")
        async def bill(message: ReceivedMessage) -> None: ...

        async with consumer:
            await consumer.run()

    or as a stream, in which a message counts as done when the next one is asked for:

        async with PushConsumer("127.0.0.1:9876", group="billing") as consumer:
            consumer.subscribe("Orders")
            async for message in consumer: ...

    or with explicit acknowledgement, `async for delivery in consumer.deliveries(): with delivery as message: ...`. What
    follows about order and failures is about handlers; a delivery that fails is handed out again by this member.

    Every message is handed out at least once; duplicates follow crashes, lost leaders and changes of the group.
    `ordered` (the default) hands out each queue's messages one after the other: a handler that raises gets the message
    again after `retry_delay` seconds, doubled each time up to 30 s, and it holds up its queue meanwhile.

    With `ordered=False` up to `concurrency` messages are handled at once whatever their queue, and one whose handler
    raises is given back to its broker. It comes again, to any member of the group, after 10 s, 30 s, 1 min ... 2 h,
    with `reconsume_times` counting; after `max_reconsume_times` (default: as the group is configured, 16 unless
    changed) it goes to the topic `%DLQ%` and the group's name. If its broker does not take it back, another one of the
    topic gets a copy, and if there is none that does, it is handled as in `ordered`, except that it holds up nothing
    but the group's offset.

    With `exclusive` a queue is locked at its broker as well, so that no two members handle messages of it at the same
    time, also when one of them was cut off without noticing; what a member commits that lost its lock does not count.
    The price: the queues of a member that died without a word rest until their locks are over, up to 60 s.

    With `broadcast` every member gets all messages, and keeps its offsets in that file, which must be its own. What a
    handler fails at it gets again itself.

    `allocate` shares out the queues, see `mq.client.consume.allocation`; it must be the same on all members.

    `consume_from` says where a group without stored offsets begins: "first", "last", or an aware datetime. A queue that
    its broker still has in memory from the first message on is consumed from there in any case, so that nobody misses
    the beginning of a new topic; that is the brokers' rule for clients in all languages.
    Messages are pulled ahead of the handlers within `pull.limits`. `trace` and `otel` are as those of a
    `Producer`: handling a message is a span, from its handler's first line to the last, or from the time at which a
    stream hands it out until it is acknowledged or given back.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        *,
        consume_from: ConsumeFrom = "last",
        ordered: bool = True,
        exclusive: bool = False,
        broadcast: str | os.PathLike[str] | None = None,
        allocate: Strategy = allocate_averagely,
        concurrency: int = 16,
        retry_delay: float = 1.0,
        max_reconsume_times: int | None = None,
        pull: PullSettings | None = None,
        trace: bool | str = False,
        otel: bool | TracerProvider = False,
        remoting: RemotingSettings | None = None,
        commit_seconds: float = COMMIT_SECONDS,
        rebalance_seconds: float = REBALANCE_SECONDS,
        rng: random.Random | None = None,
    ) -> None:
        model: Literal["clustering", "broadcasting"] = "clustering" if broadcast is None else "broadcasting"
        super().__init__(namesrv, group, trace=trace, otel=otel, model=model, remoting=remoting, rng=rng)
        if concurrency < 1 or retry_delay <= 0:
            raise ValueError(f"concurrency {concurrency} must be at least 1 and retry_delay {retry_delay} positive")
        if exclusive and (broadcast is not None or not ordered):
            raise ValueError("exclusive=True needs ordered=True and no broadcast")
        if max_reconsume_times is not None and ordered:
            raise ValueError("max_reconsume_times needs ordered=False: ordered consumption never gives up a message")
        check_position(consume_from)
        self._consume_from = consume_from
        self._ordered = ordered
        self._started_ms = time.time_ns() // 1_000_000
        self._exclusive = exclusive
        self._broadcast = None if broadcast is None else Path(broadcast)
        self._allocate = allocate
        self._max_reconsume_times = max_reconsume_times
        self._pull_settings = pull or PullSettings()
        self._commit_seconds = commit_seconds
        self._rebalance_seconds = rebalance_seconds
        self._subscribed: dict[str, Subscribed] = {}
        self._retry_topic = retry_topic(group)
        self._paused: set[MessageQueue] = set()
        self._all_paused = False
        self._board = DeliveryBoard(self._note_progress, retry_seconds=retry_delay)
        self._handling = Handling(
            self._board,
            self._subscribed,
            group=group,
            concurrency=concurrency,
            ordered=ordered,
            # What one member of many that get everything failed at is nobody else's.
            give_back=None if ordered or broadcast is not None else self._give_back,
            spans=self._spans,
        )
        self._handling_for_operators = 0
        self._offsets: GroupOffsets | LocalOffsets | None = None
        self._member: GroupMember | None = None

    # Life.

    def _connected(self, remoting: ClientCore) -> None:
        """Raises OffsetsFileDamaged, OSError."""
        self._board.open()
        if self._broadcast is None:
            self._offsets = GroupOffsets(remoting, self.group, self._consume_from)
        else:
            self._offsets = LocalOffsets(remoting, self._broadcast, self._consume_from)

    async def _start(self, remoting: ClientCore, tasks: anyio.abc.TaskGroup) -> None:  # noqa: ASYNC910
        assert self._offsets is not None, "started before it was connected"
        self._handling.tracer = self._tracer
        self._member = GroupMember(
            tasks,
            remoting,
            self._offsets,
            self._board,
            self._subscribed,
            group=self.group,
            client_id=self.client_id,
            allocate=self._allocate if self._broadcast is None else None,
            exclusive=self._exclusive,
            is_paused=self._is_paused,
            pull=self._pull_settings,
            commit_seconds=self._commit_seconds,
            rebalance_seconds=self._rebalance_seconds,
        )
        tasks.start_soon(self._member.run)
        tasks.start_soon(self._handling.remind, REMIND_SECONDS)

    def _stop(self) -> None:
        self.stop()

    def _closed(self) -> None:
        self._board.close()
        if self._member is not None:
            self._member.assignment.changed.set()

    async def _leave(self, remoting: ClientCore) -> None:
        if self._member is not None:
            await self._member.leave()
        await remoting.unregister(self.client_id, consumer_group=self.group)

    def __repr__(self) -> str:
        what = ", ".join(sorted(self._subscribed.keys() - {self._retry_topic})) or "nothing"
        return self._show(f" of {what}", f"{len(self.assignment)} queues")

    def _heartbeat_body(self) -> bytes:
        position = self._consume_from
        from_where = "TIMESTAMP" if isinstance(position, dt.datetime) else f"{position.upper()}_OFFSET"
        consumer = ConsumerData(
            self.group,
            subscriptions=[each.data() for each in self._subscribed.values()],
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING" if self._broadcast is None else "BROADCASTING",
            consume_from_where=f"CONSUME_FROM_{from_where}",
        )
        return HeartbeatData(self.client_id, consumers=[consumer]).encode()

    def _answer_server(
        self, request: Request | UnknownRequest, body: memoryview, answer_later: AnswerLater
    ) -> bytes | None:
        member = self._member
        if member is None:
            return super()._answer_server(request, body, answer_later)
        if isinstance(request, NotifyConsumerIdsChanged):
            member.members_changed()
            return None
        if isinstance(request, ResetConsumerClientOffset):
            member.reset(read_reset(body))
            return None
        if isinstance(request, GetConsumerStatusFromClient):
            return encode_response(
                request.opaque, 0, body=status(member.assignment.commit_offsets(), request.ext.topic)
            )
        if isinstance(request, GetConsumerRunningInfo):
            subscriptions = [each.data() for each in self._subscribed.values()]
            queues = member.assignment.process_queues
            text = running_info(queues, subscriptions, ordered=self._ordered, started_ms=self._started_ms)
            return encode_response(request.opaque, 0, body=text)
        if isinstance(request, ConsumeMessageDirectly) and self._tasks is not None:
            if self._handling_for_operators >= FOR_OPERATORS_MAX:
                return encode_response(request.opaque, ResponseCode.SYSTEM_BUSY, remark="too many messages at once")
            self._handling_for_operators += 1
            self._tasks.start_soon(self._handle_for_operator, request, bytes(body), answer_later)
            return None
        return super()._answer_server(request, body, answer_later)

    async def _handle_for_operator(
        self, request: ConsumeMessageDirectly, body: bytes, answer_later: AnswerLater
    ) -> None:
        try:
            [message] = received_messages(request.ext.broker_name or "", memoryview(body))
            result = await self._handling.handle_for_operator(message)
            answer_later(encode_response(request.opaque, ResponseCode.SUCCESS, body=result.encode()))
        except (ClientError, ValueError) as error:
            answer_later(encode_response(request.opaque, ResponseCode.SYSTEM_ERROR, remark=f"no message: {error}"))
        finally:
            self._handling_for_operators -= 1

    # Subscriptions.

    def subscribe(self, topic: str, tags: str | Sql = "*") -> None:
        """Receive the messages of `topic` that carry one of `tags`: `"A || B"`, or `"*"` for all.

        With `mq.client.sql("a > 5")` instead, those whose properties satisfy the expression.

        All members of a group must have the same subscriptions. Raises NameRefused, SubscriptionError.
        """
        self._subscribe(topic, tags, None, None)

    def on(self, topic: str, tags: str | Sql = "*", *, batch: int | None = None) -> Callable[[HandlerT], HandlerT]:
        """Decorator: subscribe, and have `run` give each message to this coroutine function.

        With `batch` it gets lists of 1 to `batch` messages of one queue, which succeed or fail together.
        """
        if batch is not None and batch < 1:
            raise ValueError(f"batch {batch} must be at least 1")
        if callable(topic):
            raise TypeError('pass the topic: @consumer.on("Orders")')

        def register(handler: HandlerT) -> HandlerT:
            check_handler(handler)
            self._subscribe(topic, tags, handler, batch)
            return handler

        return register

    def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of `topic`; its queues are given up soon."""
        self._subscribed.pop(topic, None)
        self._subscriptions_changed()

    def _subscribe(
        self, topic: str, tags: str | Sql, handler: Callable[[Any], Awaitable[None]] | None, batch: int | None
    ) -> None:
        check_topic(topic)
        self._subscribed[topic] = Subscribed(
            subscription=subscription_of(topic, tags),
            sub_version=int(time.time() * 1000),
            handler=handler,
            batch=batch,
        )
        if not self._ordered and self._broadcast is None and self._retry_topic not in self._subscribed:
            self._subscribe(self._retry_topic, "*", self._handling.handle_again, None)
            return
        self._subscriptions_changed()

    def _subscriptions_changed(self) -> None:
        if self._remoting is not None:
            self._remoting.heartbeat_soon()
        if self._member is not None:
            self._member.rebalance_soon()

    def _note_route(self, route: TopicRoute) -> None:
        if self._member is not None:
            self._member.note_route(route)

    def _note_progress(self, process_queue: ProcessQueue) -> None:
        self._entered().note_progress(process_queue)

    def _entered(self) -> GroupMember:
        """What we have of our group, or had, if the block has ended. Raises ClientClosed before the block."""
        if self._member is None:
            self._opened()
        assert self._member is not None, "open without a member"
        return self._member

    # Looking at the assignment.

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours at present."""
        return self._member.assignment.queues if self._member is not None else frozenset()

    async def wait_assigned(self) -> frozenset[MessageQueue]:
        """Wait until at least one queue is ours. Raises ClientClosed."""
        self._opened()
        assignment = self._entered().assignment
        while not assignment.queues:
            if assignment.changed.is_set():  # else others wait for it, too
                assignment.changed = anyio.Event()
            await assignment.changed.wait()
            self._opened()
        return assignment.queues

    @property
    def positions(self) -> Mapping[MessageQueue, int]:
        """For each of our queues the offset up to which all messages are acknowledged."""
        return self._entered().assignment.commit_offsets()

    async def commit(self) -> None:
        """Store the offsets of all acknowledged messages now, and wait until that is done (at most a second)."""
        self._opened()
        await self._entered().commit()

    # Pausing.

    def pause(self, *queues: MessageQueue) -> None:
        """Hand out nothing more of these queues, or of all if none is named, and pull nothing, until `resume`.

        What is being handled is finished and committed. The queues stay ours, and a pause outlives their loss.
        """
        self._paused.update(queues)
        self._all_paused = self._all_paused or not queues
        self._pauses_changed()

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with these queues, or with all if none is named. After `pause()` only `resume()` helps."""
        if queues:
            self._paused.difference_update(queues)
        else:
            self._paused.clear()
            self._all_paused = False
        self._pauses_changed()

    def _is_paused(self, queue: MessageQueue) -> bool:
        return self._all_paused or queue in self._paused

    def _pauses_changed(self) -> None:
        if self._member is not None:
            self._member.pauses_changed()

    # Consuming.

    def __aiter__(self) -> MessageStream:
        """A stream of messages, each acknowledged when the next one is asked for."""
        self._opened()
        return MessageStream(self._board, exclusive=self._exclusive, tracer=self._handling.tracer, spans=self._spans)

    def deliveries(self) -> DeliveryStream:
        """A stream of deliveries, to be acknowledged one by one in any order."""
        self._opened()
        return DeliveryStream(self._board, exclusive=self._exclusive, tracer=self._handling.tracer, spans=self._spans)

    async def run(self, handler: Handler | None = None) -> None:
        """Give messages to the handlers until `stop` is called, the consumer is left or the caller is cancelled.

        `handler` takes the messages of topics without a handler of their own. What was handed out and not finished
        when this ends is handed out again, by the next `run` or to the next owner of the queue.
        """
        self._opened()
        if handler is not None:
            check_handler(handler)
        await self._handling.run(handler)

    def stop(self) -> None:
        """End `run`, cancelling the handlers that are at work."""
        self._handling.stop()

    async def _give_back(self, message: ReceivedMessage) -> bool:
        assert self._remoting is not None, "a message is given back before the consumer is entered"
        with nullcontext() if self._spans is None else self._spans.settling("nack", message.topic, [message]):
            return await give_back(self._remoting, self.group, message, max_reconsume_times=self._max_reconsume_times)
