"""The push consumer: shares the queues of its topics with the other members of its group.

Theory of operation. `GroupMember` keeps one `Puller` for each assigned queue; each fills its `ProcessQueue`; the
`DeliveryBoard` delivers messages, to the handlers of `run` or to streams. Every 5 s the smallest unacknowledged offset
of each queue is sent to its leader. A crash, a lost leader, or a new member therefore repeats at most messages
acknowledged since, and skips nothing. For the life cycle see `consumer`.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.abc

from mq.client.body_codecs import BodyCodec
from mq.client.consume.allocation import Strategy, allocate_averagely
from mq.client.consume.delivery import DeliveryBoard, DeliveryStream, MessageStream
from mq.client.consume.diagnostics import read_reset, running_info, status
from mq.client.consume.handler_options import attempts_max, check_handler, check_order
from mq.client.consume.handlers import Handler, HandlerPool
from mq.client.consume.local_offsets import LocalOffsets, offsets_path
from mq.client.consume.member import COMMIT_SECONDS, REBALANCE_SECONDS, GroupMember
from mq.client.consume.offsets import ConsumeFrom, GroupOffsets, check_position
from mq.client.consume.policies import OnError
from mq.client.consume.process_queue import ProcessQueue
from mq.client.consume.pull_loop import PullSettings, check_pull_settings
from mq.client.consume.send_back import failure_text, give_back
from mq.client.consume.stop_signals import check_seconds, drain_on_signals
from mq.client.consume.subscribing_consumer import SubscribingConsumer
from mq.client.consume.subscription import TopicSubscription
from mq.client.errors import ClientError, TransactionFenced
from mq.client.events import OnEvent
from mq.client.long_wait import LongWait
from mq.client.message import BodyT, MessageQueue, ReceivedMessage, check_queues
from mq.client.metrics.recorder import ClientMetrics
from mq.client.net.client_core import ClientCore, RemotingSettings
from mq.client.net.connection import RespondLater
from mq.client.net.replies import received_messages
from mq.client.net.routes import TopicRoute
from mq.client.options import ClientOptions
from mq.client.produce.consumed import ConsumedOffsets
from mq.client.spans import TracerProvider
from mq.client.task_group import open_task_group
from mq.protocol.codes import ResponseCode
from mq.protocol.incoming.headers import UnknownRequest
from mq.protocol.requests.clients import ConsumerData, HeartbeatData, NotifyConsumerIdsChanged
from mq.protocol.requests.group_progress import ResetConsumerClientOffset
from mq.protocol.requests.relayed import ConsumeMessageDirectly, GetConsumerRunningInfo, GetConsumerStatusFromClient
from mq.protocol.wire.encoding import encode_response
from mq.protocol.wire.fields import INT32_MAX
from mq.protocol.wire.request import Request

if TYPE_CHECKING:
    from mq.client.consume.offsets_lock import OffsetsLock

FOR_OPERATORS_MAX = 16
"""Maximum number of messages handled at once on request of operators."""
DRAIN_SECONDS = 30.0
"""Default time for running handlers to finish; what starts containers usually waits so long before it kills."""


class PushConsumerOptions(ClientOptions, total=False):
    """Keyword arguments of `PushConsumer`, but for `codec`, which has a type of its own."""

    consume_from: ConsumeFrom
    ordered: bool | Literal["key"]
    exclusive: bool
    broadcast: str | os.PathLike[str] | bool | None
    allocate: Strategy
    concurrency: int
    retry_delay: float
    max_reconsume_times: int | None
    on_error: OnError | None
    pull: PullSettings | None
    trace: bool | str
    commit_seconds: float
    rebalance_seconds: float


def _check_options(
    consume_from: ConsumeFrom, allocate: object, pull: object, commit_seconds: float, rebalance_seconds: float
) -> None:
    """Raise TypeError for a wrong strategy or wrong settings, ValueError for a wrong position or interval."""
    check_position(consume_from)
    if not callable(allocate):
        raise TypeError(f"allocate is a strategy of mq.client.consume.allocation, not {allocate!r}")
    check_pull_settings(pull)
    check_seconds("commit_seconds", commit_seconds)
    check_seconds("rebalance_seconds", rebalance_seconds)


class PushConsumer(SubscribingConsumer[BodyT]):
    """Receives messages as a member of a consumer group (clustering mode), on trio or asyncio. With handlers:

        consumer = PushConsumer("127.0.0.1:9876", group="billing")

        @consumer.on("Orders", tags="new || changed")
        async def bill(message: ReceivedMessage) -> None: ...

        async with consumer:
            await consumer.run()

    or as a stream, in which requesting the next message acknowledges the previous one:

        async with PushConsumer("127.0.0.1:9876", group="billing") as consumer:
            consumer.subscribe("Orders")
            async for message in consumer: ...

    or with explicit acknowledgement, `async for delivery in consumer.deliveries(): with delivery as message: ...`. The
    following about order and failures applies to handlers; a failed delivery is retried by this member.

    A dead letter is in the topic `%DLQ%` plus the group's name, with the exception and the place of the original in its
    properties.

    Every message is delivered at least once; duplicates follow crashes, lost leaders and changes of the group.
    `ordered` (the default) delivers each queue's messages one after the other: if a handler raises, it gets the message
    again after `retry_delay` seconds, doubled each time up to 30 s, and the queue waits. After `max_reconsume_times`
    such retries (default: 120, about an hour; -1: never) the message becomes a dead letter, and the queue continues.
    This process counts, and continues when the queue comes back from another member, and starts again after a restart.
    Before a handler's batch is given up, it gets the messages of the batch one by one.

    `ordered="key"` does that for each sharding key: up to `concurrency` messages of different keys are handled at once.

    With `ordered=False` up to `concurrency` messages are handled at once, whatever their queue, and a message whose
    handler raises is sent back to its broker. It is redelivered, to any member of the group, after 10 s, 30 s, 1 min
    ... 2 h, with increasing `reconsume_times`; after `max_reconsume_times` (default: as the group is configured, 16
    unless changed) it goes to the topic `%DLQ%` plus the group's name. If its broker does not take it back, another
    broker of the topic gets a copy; if none does, it is retried as with `ordered`, except that it holds back only the
    group's offset.

    With `exclusive` a queue is also locked at its broker, so that no two members handle its messages at the same time,
    even if one of them was cut off without noticing; commits of a member that lost its lock are ignored. The price:
    queues of a member that died are blocked until its locks expire, up to 60 s.

    With `broadcast` every member gets all messages, and keeps its offsets in that file, which must be its own, or with
    True in memory: then it begins at `consume_from` each time it is opened. Queues that are added later begin at their
    first message. Failed messages are retried by the member itself.

    `on_error` are the policies of all handlers, see `on`. `codec` decodes the bodies, see `mq.client.body_codecs`; one
    that it cannot decode fails with BodyNotDecoded, and is a dead letter unless `on_error` says otherwise. Streams
    leave such messages out.

    `allocate` is the allocation strategy, see `mq.client.consume.allocation`; it must be the same on all members.

    `consume_from` is where a group without stored offsets begins: "first", "last", or an aware datetime. A queue that
    its broker still has in memory from the first message on is consumed from there in any case, so that no message of a
    new topic is missed; brokers apply that rule to clients in all languages. Messages are pulled ahead of the handlers
    within `pull.limits`. `trace` and `otel` as for `Producer`: handling a message is a span, from the start of its
    handler to its end, or from its delivery by a stream until it is settled.
    `metrics` counts and times what the consumer does, see `mq.client.metrics`.
    """

    _kind = "push_consumer"
    _handling_for_operators = 0
    _offsets: GroupOffsets | LocalOffsets | None = None
    _offsets_lock: OffsetsLock | None = None
    _member: GroupMember | None = None
    _all_paused = False

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        *,
        consume_from: ConsumeFrom = "last",
        ordered: bool | Literal["key"] = True,
        exclusive: bool = False,
        broadcast: str | os.PathLike[str] | bool | None = None,
        allocate: Strategy = allocate_averagely,
        concurrency: int = 16,
        retry_delay: float = 1.0,
        max_reconsume_times: int | None = None,
        on_error: OnError | None = None,
        codec: BodyCodec[BodyT] | None = None,
        pull: PullSettings | None = None,
        trace: bool | str = False,
        otel: bool | TracerProvider = False,
        metrics: ClientMetrics | None = None,
        ping: bool = False,
        on_event: OnEvent | None = None,
        remoting: RemotingSettings | None = None,
        commit_seconds: float = COMMIT_SECONDS,
        rebalance_seconds: float = REBALANCE_SECONDS,
        rng: random.Random | None = None,
    ) -> None:
        is_broadcast = broadcast is not None and broadcast is not False
        super().__init__(
            namesrv,
            group,
            trace=trace,
            otel=otel,
            metrics=metrics,
            model="broadcasting" if is_broadcast else "clustering",
            codec=codec,
            on_error=on_error,
            ping=ping,
            on_event=on_event,
            remoting=remoting,
            rng=rng,
        )
        if retry_delay <= 0:
            raise ValueError(f"retry_delay {retry_delay} must be positive")
        if exclusive and (is_broadcast or ordered is not True):
            raise ValueError("exclusive=True needs ordered=True and no broadcast")
        _check_options(consume_from, allocate, pull, commit_seconds, rebalance_seconds)
        self._consume_from = consume_from
        self._ordered, self._by_key = check_order(ordered)
        self._started_ms = time.time_ns() // 1_000_000
        self._exclusive, self._is_broadcast = exclusive, is_broadcast
        self._retries_at_brokers = not (self._ordered or is_broadcast)
        self._offsets_file = offsets_path(broadcast)
        self._allocate = allocate
        self._max_reconsume_times = INT32_MAX if max_reconsume_times == -1 else max_reconsume_times
        self._pull_settings = pull or PullSettings()
        self._commit_seconds, self._rebalance_seconds = commit_seconds, rebalance_seconds
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._board = DeliveryBoard(self._on_progress, retry_seconds=retry_delay)
        self._handlers = self._new_handlers(concurrency, max_reconsume_times)
        self._paused_queues: set[MessageQueue] = set()

    def _new_handlers(self, concurrency: int, max_reconsume_times: int | None) -> HandlerPool:
        if concurrency < 1:
            raise ValueError(f"concurrency {concurrency} must be at least 1")
        return HandlerPool(
            self._board,
            self._subscriptions,
            group=self.group,
            concurrency=concurrency,
            ordered=self._ordered,
            by_key=self._by_key,
            # A failed message of a broadcast member concerns no other member.
            give_back=self._give_back if self._retries_at_brokers else None,
            give_up=self._give_up,
            attempts_max=attempts_max(max_reconsume_times),
            on_error=self._on_error,
            decoder=self._decoder,
            spans=self._spans,
        )

    # Life cycle.

    def _on_connect(self, core: ClientCore) -> None:
        """Read the offsets file. Raises OffsetsFileDamaged, OSError; AlreadyOpen if another consumer has the file."""
        self._board.open()
        self._handlers.open()
        self._handling_for_operators = 0
        self._member = None
        if not self._is_broadcast:
            self._offsets = GroupOffsets(core, self.group, self._consume_from)
        else:
            self._release_offsets()  # an event loop may have been given up with it
            if self._offsets_file is not None:
                from mq.client.consume.offsets_lock import OffsetsLock  # here, because most consumers have no file

                self._offsets_lock = OffsetsLock(self._offsets_file)
            try:
                self._offsets = LocalOffsets(core, self._offsets_file, self._consume_from)
            except BaseException:
                self._release_offsets()
                raise

    async def _start(self, core: ClientCore, tasks: anyio.abc.TaskGroup) -> None:  # noqa: ASYNC910
        assert self._offsets is not None, "started before it was connected"
        self._handlers.tracer = self._tracer
        self._handlers.recorder = recorder = self._recorder
        if recorder is not None:
            recorder.show_work()
        self._member = GroupMember(
            tasks,
            core,
            self._offsets,
            self._board,
            self._subscriptions,
            group=self.group,
            client_id=self.client_id,
            allocate=None if self._is_broadcast else self._allocate,
            exclusive=self._exclusive,
            is_paused=self._is_paused,
            pull=self._pull_settings,
            commit_seconds=self._commit_seconds,
            rebalance_seconds=self._rebalance_seconds,
        )
        tasks.start_soon(self._member.run)
        tasks.start_soon(self._handlers.warn_if_idle, core.settings.limits.remind_seconds)

    def _stop(self) -> None:
        self._handlers.stop()

    def _on_close(self) -> None:
        self._board.close()
        if self._member is not None:
            self._member.assignment.change_event.set()

    def _checked_topics(self) -> Collection[str]:
        return self._subscriptions.keys() - {self._retry_topic}

    def _troubles(self) -> Iterator[str]:
        yield from super()._troubles()
        if self._member is not None:
            assignment = self._member.assignment
            if not assignment.queues:
                yield assignment.unassigned_reason(self._checked_topics())
            yield from assignment.troubles

    async def _leave(self, core: ClientCore) -> None:
        try:
            if self._member is not None:
                await self._member.leave()
            await core.unregister(self.client_id, consumer_group=self.group)
        finally:
            self._release_offsets()

    def _release_offsets(self) -> None:
        if self._offsets_lock is not None:
            self._offsets_lock.release()
            self._offsets_lock = None

    def __repr__(self) -> str:
        what = ", ".join(sorted(self._subscriptions.keys() - {self._retry_topic})) or "nothing"
        return self._show(f" of {what}", f"{len(self.assignment)} queues")

    def _heartbeat_body(self) -> bytes:
        position = self._consume_from
        from_where = "TIMESTAMP" if isinstance(position, dt.datetime) else f"{position.upper()}_OFFSET"
        consumer = ConsumerData(
            self.group,
            subscriptions=[each.data() for each in self._subscriptions.values()],
            consume_type="CONSUME_PASSIVELY",
            message_model="BROADCASTING" if self._is_broadcast else "CLUSTERING",
            consume_from_where=f"CONSUME_FROM_{from_where}",
        )
        return HeartbeatData(self.client_id, consumers=[consumer]).encode()

    def _answer_server(
        self, request: Request | UnknownRequest, body: memoryview, respond_later: RespondLater
    ) -> bytes | None:
        member = self._member
        if member is None:
            return super()._answer_server(request, body, respond_later)
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
            subscriptions = [each.data() for each in self._subscriptions.values()]
            queues = member.assignment.process_queues
            text = running_info(queues, subscriptions, ordered=self._ordered, started_ms=self._started_ms)
            return encode_response(request.opaque, 0, body=text)
        if isinstance(request, ConsumeMessageDirectly) and self._tasks is not None:
            if self._handling_for_operators >= FOR_OPERATORS_MAX:
                return encode_response(request.opaque, ResponseCode.SYSTEM_BUSY, remark="too many messages at once")
            self._handling_for_operators += 1
            self._tasks.start_soon(self._handle_for_operator, request, bytes(body), respond_later)
            return None
        return super()._answer_server(request, body, respond_later)

    async def _handle_for_operator(
        self, request: ConsumeMessageDirectly, body: bytes, respond_later: RespondLater
    ) -> None:
        self._mark_own_task()
        try:
            [message] = received_messages(request.ext.broker_name or "", memoryview(body))
            result = await self._handlers.handle_for_operator(message)
            respond_later(encode_response(request.opaque, ResponseCode.SUCCESS, body=result.encode()))
        except (ClientError, ValueError) as error:
            respond_later(encode_response(request.opaque, ResponseCode.SYSTEM_ERROR, remark=f"no message: {error}"))
        finally:
            self._handling_for_operators -= 1

    def _subscriptions_changed(self) -> None:
        if self._core is not None:
            self._core.heartbeat_soon()
        if self._member is not None:
            self._member.rebalance_soon()

    def _on_route(self, route: TopicRoute) -> None:
        if self._member is not None:
            self._member.on_route(route)

    def _on_progress(self, process_queue: ProcessQueue) -> None:
        if self._member is not None:
            self._member.on_progress(process_queue)

    def _membership(self) -> GroupMember:
        """The current group membership, or the last one after the block. Raises ClientClosed before the block."""
        self._check_process()
        if self._member is None:
            self._open_core()
        assert self._member is not None, "open without a member"
        return self._member

    # Assignment.

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are assigned now."""
        self._check_process()
        return self._member.assignment.queues if self._member is not None else frozenset()

    async def wait_assigned(self) -> frozenset[MessageQueue]:
        """Wait until at least one queue is assigned.

        After 10 s it logs the reason (`not_assigned`), and then every half minute. Raises ClientClosed.
        """
        self._open_core()
        assignment = self._membership().assignment
        limits = self._limits
        wait = LongWait("not_assigned", limits)
        while not assignment.queues:
            topics = self._subscriptions.keys() - {self._retry_topic}
            wait.warn_if_long(assignment.unassigned_reason(topics), group=self.group)
            if assignment.change_event.is_set():  # otherwise other tasks wait for it, too
                assignment.change_event = anyio.Event()
            with anyio.move_on_after(limits.warn_after_seconds):
                await assignment.change_event.wait()
            self._open_core()
        return assignment.queues

    @property
    def positions(self) -> Mapping[MessageQueue, int]:
        """Maps each assigned queue to the offset before which all messages are acknowledged."""
        return self._membership().assignment.commit_offsets()

    async def commit(self) -> None:
        """Store the offsets of all acknowledged messages now, and wait for the answers, for a second at most."""
        self._open_core()
        await self._membership().commit()

    def _consumed_offsets(self, messages: Sequence[ReceivedMessage[Any]] | None) -> ConsumedOffsets:
        """Messages of a handler, for a transaction; see `ConsumedOffsets`. Raises ValueError, TransactionFenced."""
        if not messages:
            raise ValueError("pass the messages that the handler got: commit_offsets(consumer, message)")
        if self._is_broadcast:
            raise ValueError("a broadcast consumer has no offsets at the broker")
        process_queues = {each.queue: each for each in self._membership().assignment.process_queues}
        offsets_by_queue: dict[MessageQueue, list[int]] = {}
        for message in messages:
            offsets_by_queue.setdefault(message.queue, []).append(message.queue_offset)
        for queue, offsets in offsets_by_queue.items():
            offsets.sort()
            if queue not in process_queues:
                raise TransactionFenced(f"queue {queue} belongs to another member of {self.group} by now")
            oldest = process_queues[queue].oldest(len(offsets))
            if oldest != offsets:
                raise ValueError(
                    f"offset {oldest[0] if oldest else None} of {queue} is not finished: a transaction cannot consume "
                    f"{offsets[0]} before it. Handle messages in order (ordered=True), and pass whole batches"
                )

        async def on_end() -> None:
            """Do nothing: the handler acknowledges its messages, or gets them again."""

        ranges = {queue: (offsets[0], offsets[-1] + 1) for queue, offsets in offsets_by_queue.items()}
        return ConsumedOffsets(self.group, ranges, on_end, on_end, on_end)

    # Pause and resume.

    def pause(self, *queues: MessageQueue) -> None:
        """Stop pulling and delivering messages of these queues, or of all if none is named, until `resume`.

        Messages being handled are finished and committed. The queues stay assigned, and a pause survives their loss.
        Raises TypeError for a value that is not a queue.
        """
        self._check_process()
        check_queues(*queues)
        self._paused_queues.update(queues)
        self._all_paused = self._all_paused or not queues
        self._pauses_changed()

    def resume(self, *queues: MessageQueue) -> None:
        """Resume these queues, or all if none is named. A `pause()` of all queues ends only by `resume()` of all."""
        self._check_process()
        check_queues(*queues)
        if queues:
            self._paused_queues.difference_update(queues)
        else:
            self._paused_queues.clear()
            self._all_paused = False
        self._pauses_changed()

    def _is_paused(self, queue: MessageQueue) -> bool:
        return self._all_paused or queue in self._paused_queues

    def _pauses_changed(self) -> None:
        if self._member is not None:
            self._member.pauses_changed()

    # Consuming.

    def __aiter__(self) -> MessageStream[BodyT]:
        """Return a stream of messages; requesting the next message acknowledges the previous one. See `deliveries`."""
        return MessageStream(self.deliveries())

    def deliveries(self) -> DeliveryStream[BodyT]:
        """Iterate over deliveries, which you acknowledge in any order. Raises AlreadyOpen during `run`."""
        self._open_core()
        self._board.refuse_beside_run()
        return DeliveryStream(
            self._board,
            self._decoder,
            exclusive=self._exclusive,
            tracer=self._handlers.tracer,
            spans=self._spans,
            recorder=self._recorder,
        )

    async def run(
        self, handler: Handler[BodyT] | None = None, *, signals: bool = False, drain_timeout: float = DRAIN_SECONDS
    ) -> None:
        """Call the handlers with messages until `stop` is called, the consumer is closed or the caller is cancelled.

        `handler` handles topics without their own handler. Unfinished messages are delivered again, by the next
        `run` or to the next owner of the queue.

        With `signals`, SIGTERM and SIGINT do what `drain(drain_timeout)` does, and a second one what `stop` does; that
        needs the main thread. Raises the exception for which `StopConsumer` was the policy, and AlreadyOpen while
        another `run` is at work or a task waits for a message of a stream, which continues.
        """
        self._open_core()
        self._handlers.refuse_second_run()
        check_seconds("drain_timeout", drain_timeout)
        if handler is not None:
            check_handler(handler, "message")
        if not signals:
            await self._handlers.run(handler)
            return
        async with open_task_group() as tasks:
            await tasks.start(drain_on_signals, self, drain_timeout)
            await self._handlers.run(handler)
            tasks.cancel_scope.cancel()

    async def drain(self, timeout: float = DRAIN_SECONDS) -> bool:
        """Take no more messages, wait for the running handlers, and end `run`.

        After `timeout` seconds they are cancelled. Returns whether all of them finished; True if `run` is not running.
        Offsets are stored then. What was not handled is delivered again: to other members as soon as the consumer is
        closed, or by the next `run`. If cancelled, `run` ends all the same when the handlers have finished. In a
        handler, for which it would wait, it raises ClientError.
        """
        self._open_core()
        check_seconds("timeout", timeout)
        are_finished = await self._handlers.drain(timeout)
        await self._membership().commit()
        return are_finished

    def stop(self) -> None:
        """End `run`; running handlers are cancelled."""
        self._check_process()
        self._handlers.stop()

    async def _give_back(self, message: ReceivedMessage[Any], error: BaseException, seconds: float | None) -> bool:
        return await self._send_back(message, failure_text(error), self._max_reconsume_times, seconds=seconds)

    async def _give_up(self, message: ReceivedMessage[Any], error: BaseException) -> bool:
        return await self._send_back(message, failure_text(error), None, is_dead=True)

    async def _send_back(
        self,
        message: ReceivedMessage[Any],
        failure: str,
        max_reconsume_times: int | None,
        *,
        is_dead: bool = False,
        seconds: float | None = None,
    ) -> bool:
        assert self._core is not None, "a message is given back before the consumer is entered"
        with nullcontext() if self._spans is None else self._spans.trace_settle("nack", message.topic, [message]):
            return await give_back(
                self._core,
                self.group,
                message,
                max_reconsume_times=max_reconsume_times,
                failure=failure,
                is_dead=is_dead,
                seconds=seconds,
            )
