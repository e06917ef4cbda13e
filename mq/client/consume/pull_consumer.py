"""The pull consumer: reads assigned queues on request, from chosen positions.

It is not a member of its group: it takes no part in rebalancing, and takes no queues from members. The group is only
the name under which it stores offsets. `Puller`s read ahead as for a push consumer; messages returned by `poll` count
as done.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Generic, Literal, Self

import anyio
import anyio.abc
import anyio.lowlevel

from mq.client.body_codecs import BodyCodec
from mq.client.consume.consumer import PositionedConsumer
from mq.client.consume.delivery import DeliveryBoard
from mq.client.consume.filter_uploads import FilterUploads
from mq.client.consume.filter_watch import FilterWatch
from mq.client.consume.offsets import ConsumeFrom, GroupOffsets, check_position, lag_of, queue_offset
from mq.client.consume.policies import OnError
from mq.client.consume.process_queue import ProcessQueue
from mq.client.consume.pull_loop import Puller, PullSettings, check_pull_settings
from mq.client.consume.subscription import TopicSubscription, subscription_of
from mq.client.errors import BodyNotDecoded, ClientError, NoRoute, TopicNotFound
from mq.client.events import OnEvent
from mq.client.filters import Filter
from mq.client.message import BodyT, MessageQueue, ReceivedMessage, check_queues
from mq.client.metrics.recorder import ClientMetrics
from mq.client.net.client_core import ClientCore, RemotingSettings
from mq.client.net.leader_calls import no_leader_reason
from mq.client.net.routes import TopicRoute
from mq.client.options import ClientOptions
from mq.client.produce.consumed import ConsumedOffsets
from mq.client.spans import TracerProvider, now_ns
from mq.protocol.messages.trace import ContextCode
from mq.protocol.names import check_topic
from mq.protocol.wire.fields import INT64_MAX

RETRY_SECONDS = 0.1
LOOK_SECONDS = 0.1
"""Seconds between two looks whether messages that no filter lets through reach to the end."""
NEW_TOPIC_SECONDS = 1.0
LATER_SECONDS = 0.2
"""Seconds for which a message behind the end is left in its queue, while other queues are read."""


class PullConsumerOptions(ClientOptions, total=False):
    """Keyword arguments of `PullConsumer`, but for `codec`, which has a type of its own."""

    consume_from: ConsumeFrom
    timeout: float
    on_error: OnError | None
    pull: PullSettings | None
    trace: bool | str


class PullConsumer(PositionedConsumer[BodyT]):
    """Reads assigned queues from chosen positions, on trio or asyncio.

        async with PullConsumer("127.0.0.1:9876", group="audit", consume_from="first") as consumer:
            await consumer.assign(await consumer.queues("Orders"), tags="new || changed")
            while messages := await consumer.poll(timeout=1.0):
                ...
                await consumer.commit()

    `group` is the name under which `commit` stores offsets. The consumer is not a member of that group: it may read the
    queues of a group with running members. `consume_from` is the start for queues without a stored offset: "first",
    "last", or an aware datetime. Messages are pulled ahead within `pull.limits`. `trace` and `otel` as for `Producer`;
    for `trace`, messages returned by `poll` count as handled; so they do for `metrics`, see `mq.client.metrics`.

    `timeout` limits each request to a leader in `assign`, `seek`, `commit` and `committed`, in seconds: within it they
    are retried across a change of leader.

    `codec` decodes the bodies, see `mq.client.body_codecs`. A message whose body it cannot decode is left out, and
    becomes a dead letter of the group; or what `on_error={BodyNotDecoded: ...}` says. With `StopConsumer`, reading
    raises BodyNotDecoded, and again at that message until `seek` passes it.
    """

    _kind = "pull_consumer"

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        *,
        consume_from: ConsumeFrom = "last",
        timeout: float = 10.0,
        codec: BodyCodec[BodyT] | None = None,
        on_error: OnError | None = None,
        pull: PullSettings | None = None,
        trace: bool | str = False,
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
            trace=trace,
            otel=otel,
            metrics=metrics,
            codec=codec,
            on_error=on_error,
            ping=ping,
            on_event=on_event,
            remoting=remoting,
            rng=rng,
        )
        check_position(consume_from)
        check_pull_settings(pull)
        if timeout <= 0:
            raise ValueError(f"timeout {timeout} must be positive")
        self.timeout = timeout
        self._consume_from = consume_from
        self._pull_settings = pull or PullSettings()
        self._board = DeliveryBoard(self._on_progress, retry_seconds=RETRY_SECONDS)
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._pullers: dict[MessageQueue, Puller] = {}
        self._paused_queues: set[MessageQueue] = set()
        self._uncommitted: dict[MessageQueue, int] = {}
        """By queue, from which offset on messages were returned since the last commit."""
        self._in_transaction = False

    # Life cycle.

    def _on_connect(self, core: ClientCore) -> None:
        # Messages returned by `poll` may be unfinished, so offsets are only sent by `commit`.
        self._offsets = GroupOffsets(core, self.group, self._consume_from, by_hand=True, seconds=self.timeout)
        self._uploads = FilterUploads(self.group)
        self._watch = FilterWatch(self.group, core.emit, core.settings.limits)
        self._subscriptions = {}
        self._pullers = {}
        self._paused_queues = set()
        self._uncommitted = {}
        self._in_transaction = False
        self._board.open()

    def _on_close(self) -> None:
        self._board.close()

    def _troubles(self) -> Iterator[str]:
        yield from super()._troubles()
        yield from (trouble for puller in self._pullers.values() if (trouble := puller.trouble) is not None)

    async def _leave(self, core: ClientCore) -> None:
        await core.unregister(self.client_id)

    def __repr__(self) -> str:
        return self._show("", f"{len(self._pullers)} queues")

    # Assignment.

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic. Raises TopicNotFound, NameServersUnavailable.

        A topic that a broker has just created, such as the topic of a group's first dead letter, comes to the name
        servers a moment later: they are asked again for `NEW_TOPIC_SECONDS`.
        """
        until = anyio.current_time() + NEW_TOPIC_SECONDS
        while True:
            try:
                return list((await self._open_core().route(topic, refresh=True)).read_queues)
            except TopicNotFound:
                if anyio.current_time() >= until:
                    raise
            await anyio.sleep(LOOK_SECONDS)

    async def assign(self, queues: Iterable[MessageQueue], tags: str | Filter = "*") -> None:
        """Read these queues and no others; only messages that match `tags`, as in `PushConsumer.subscribe`.

        A queue that is already read with the same `tags` continues; any other begins at the group's stored offset.
        Raises SubscriptionError, TopicNotFound, TypeError for a value that is not a queue, NoRoute within 2 s for a
        queue that the topic does not have, and ClientError if a queue's leader does not answer in time; then nothing
        has changed.
        """
        self._open_core()
        new_queues = set(queues)
        check_queues(*new_queues)
        for queue in new_queues:
            check_topic(queue.topic)
        topics = {
            topic: TopicSubscription(subscription_of(topic, tags), int(time.time() * 1000), handler=None, batch=None)
            for topic in {queue.topic for queue in new_queues}
        }
        same = {queue for queue in new_queues & self._pullers.keys() if self._same_choice(queue.topic, topics)}
        await self._check_known(new_queues - same)
        begins = {queue: await self._offsets.begin(queue) for queue in new_queues - same}
        for queue in self._pullers.keys() - same:
            self._pullers.pop(queue).stop()
        self._subscriptions = topics
        self._paused_queues &= new_queues
        for queue, offset in sorted(begins.items()):
            self._read_from(queue, offset)
        await anyio.lowlevel.checkpoint()

    async def _check_known(self, queues: Iterable[MessageQueue]) -> None:
        """Raise NoRoute if the name servers still do not know one of the queues after `NEW_TOPIC_SECONDS`."""
        core, until, refresh = self._open_core(), anyio.current_time() + NEW_TOPIC_SECONDS, False
        for queue in sorted(queues):
            while True:
                try:
                    route = await core.route(queue.topic, refresh=refresh)
                except ClientError:
                    return  # whoever asks the leader next waits for the name servers, and says what is the matter
                if queue in route.read_queues:
                    break
                if anyio.current_time() >= until:
                    count = sum(each.broker_name == queue.broker_name for each in route.read_queues)
                    reason = f"queue {queue.queue_id} cannot be read, only the {count} of {queue.broker_name}"
                    if queue.broker_name not in route.brokers:
                        reason = no_leader_reason(route, queue.broker_name)
                    raise NoRoute(queue.topic, f"{reason}: assign those that queues({queue.topic!r}) returns")
                await anyio.sleep(LOOK_SECONDS)
                refresh = True

    def _same_choice(self, topic: str, topics: Mapping[str, TopicSubscription]) -> bool:
        before = self._subscriptions.get(topic)
        return before is not None and before.subscription == topics[topic].subscription

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The assigned queues."""
        self._check_process()
        return frozenset(self._pullers)

    async def seek(self, queue: MessageQueue, position: int | Literal["first", "last"] | dt.datetime) -> None:
        """Continue at an offset, the first message, the end, or the first message stored at or after a time.

        An offset outside of the queue becomes the nearer end when it is read. Raises ValueError if the queue is not
        assigned, and ClientError if its leader does not answer in time.
        """
        self._puller(queue)
        if isinstance(position, int):
            if position < 0:
                raise ValueError(f"offset {position} is negative")
            if position > INT64_MAX:
                raise ValueError(f"offset {position} is above {INT64_MAX}")
            await anyio.lowlevel.checkpoint()
            offset = position
        else:
            check_position(position)
            offset = await queue_offset(self._open_core(), queue, position, seconds=self.timeout)
        self._puller(queue).stop()
        self._read_from(queue, offset)

    def pause(self, *queues: MessageQueue) -> None:
        """Let `poll` return no messages of these queues, or of all assigned ones, until `resume`.

        Raises TypeError for a value that is not a queue.
        """
        self._check_process()
        check_queues(*queues)
        self._paused_queues.update(queues or self._pullers)
        self._pauses_changed()

    def resume(self, *queues: MessageQueue) -> None:
        """Resume these queues, or all. Raises TypeError for a value that is not a queue."""
        self._check_process()
        check_queues(*queues)
        self._paused_queues.difference_update(queues or set(self._paused_queues))
        self._pauses_changed()

    def _pauses_changed(self) -> None:
        for queue, puller in self._pullers.items():
            puller.process_queue.paused = queue in self._paused_queues
            if not puller.process_queue.paused:
                puller.on_progress()
                self._board.offer(puller.process_queue)

    # Messages.

    async def poll(self, count_max: int = 32, *, timeout: float | None = None) -> list[ReceivedMessage[BodyT]]:
        """Wait for messages and return up to `count_max` of them; an empty list after `timeout` seconds.

        Messages of one queue are in order. If cancelled, none is taken. Raises ValueError if there is no `timeout` and
        no queue is assigned, since it would wait forever.
        """
        self._open_core()
        if count_max < 1:
            raise ValueError(f"count_max {count_max} must be at least 1")
        if timeout is None and not self._pullers:
            raise ValueError("no queue is assigned: call assign() first, or pass a timeout")
        await anyio.lowlevel.checkpoint()
        board = self._board
        began_ns = 0 if self._spans is None else now_ns()
        batch: list[ReceivedMessage[Any]] = []
        deadline = math.inf if timeout is None else anyio.current_time() + timeout

        def room(_: ProcessQueue) -> int:
            return count_max - len(batch)

        while len(batch) < count_max:
            part = board.take_nowait(room, exclusive=False)
            if part is None and not batch:
                with anyio.move_on_at(deadline):
                    part = await board.take(room, exclusive=False)
            if part is None:
                break
            process_queue, messages = part
            try:
                readable = await self._readable(process_queue, messages)
            except BodyNotDecoded:
                if batch:
                    break  # the next call raises it
                raise
            board.finish_all(process_queue, readable)
            if self._tracer is not None:
                self._tracer.trace_handling(readable).record_end(ContextCode.SUCCESS)
            if self._recorder is not None:
                self._recorder.on_receive(readable)
            batch += readable
        if self._spans is not None and batch:
            self._spans.on_receive("poll", batch, began_ns, is_batch=True)
        return batch

    async def _readable(
        self, process_queue: ProcessQueue, messages: list[ReceivedMessage[Any]]
    ) -> list[ReceivedMessage[Any]]:
        """Return the first of these messages, before one that cannot be decoded; the others are left in their queue.

        If the first one cannot be decoded, the policy is applied to it, and nothing is returned. Raises
        BodyNotDecoded for `StopConsumer`. It is not cancelled.
        """
        readable, error = self._decoder.first(messages)
        if error is None and len(readable) == len(messages):
            return readable
        process_queue.block(messages[len(readable) :], 0.0)
        self._board.offer(process_queue)
        if error is None:
            return readable
        retry_after: float | None = 0.0
        try:
            retry_after = await self._decoder.put_aside(error.message, error)
        finally:
            if retry_after is None:
                self._board.finish(process_queue, error.message)
            else:
                process_queue.block([error.message], anyio.current_time() + retry_after)
                self._board.offer(process_queue)
        return []

    def _on_return(self, process_queue: ProcessQueue, message: ReceivedMessage[Any]) -> None:
        """Finish a message that `poll` is about to return, and record it."""
        self._board.finish(process_queue, message)
        if self._tracer is not None:
            self._tracer.trace_handling([message]).record_end(ContextCode.SUCCESS)
        if self._recorder is not None:
            self._recorder.on_receive([message])

    def __aiter__(self) -> PulledMessages[BodyT]:
        """Return the messages of all assigned queues, one after the other and for ever, as `poll` returns them."""
        self._open_core()
        return PulledMessages(self, self._board, None)

    async def read_to_end(self) -> PulledMessages[BodyT]:
        """Iterate up to the present ends of the queues: `async for message in await consumer.read_to_end()`.

        It ends when all of them were read, also those that no filter lets through; messages that come later stay for
        `poll`. It does not end while one with unread messages is paused. Raises ClientError if a leader does not
        answer.
        """
        core, positions = self._open_core(), self.positions
        lag = await lag_of(core, positions)
        return PulledMessages(self, self._board, {queue: positions[queue] + count for queue, count in lag.items()})

    async def _take_back(self, messages: Iterable[ReceivedMessage[Any]]) -> None:
        """Read messages again that `poll` has returned, and that did not reach the application."""
        firsts: dict[MessageQueue, int] = {}
        for message in messages:
            firsts.setdefault(message.queue, message.queue_offset)
        for queue, offset in firsts.items():
            if queue in self._pullers:
                self._puller(queue).stop()
                self._read_from(queue, offset)
        await anyio.lowlevel.checkpoint()

    def position(self, queue: MessageQueue) -> int:
        """Return the offset at which `poll` continues in this queue. Raises ValueError if it is not assigned."""
        return self._puller(queue).process_queue.commit_offset

    @property
    def positions(self) -> Mapping[MessageQueue, int]:
        """Maps each queue to the offset at which `poll` continues."""
        self._check_process()
        return {queue: puller.process_queue.commit_offset for queue, puller in self._pullers.items()}

    # Offsets.

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store `offsets`, or those after the messages returned by `poll`, for the group, and wait for the answers.

        Raises ClientError if that is not certain for one of the queues; repeating it is safe. If a member of the group
        has locked a queue, only that member may store its offset: BrokerError with code 16.
        """
        self._open_core()
        check_queues(*(offsets or ()))
        for queue, offset in sorted((self.positions if offsets is None else offsets).items()):
            check_topic(queue.topic)
            with nullcontext() if self._spans is None else self._spans.trace_settle("commit", queue.topic):
                await self._offsets.store(queue, offset)
            self._record_commit(queue, offset)
        await anyio.lowlevel.checkpoint()

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset; None if there is none. Raises ClientError; TypeError for no queue."""
        self._open_core()
        check_queues(queue)
        check_topic(queue.topic)
        return await self._offsets.load(queue)

    def _record_commit(self, queue: MessageQueue, offset: int) -> None:
        if queue in self._uncommitted:
            self._uncommitted[queue] = offset

    def _consumed_offsets(self, messages: Sequence[ReceivedMessage[Any]] | None) -> ConsumedOffsets:
        """Return the messages that `poll` has returned since the last commit, for a transaction. Raises ValueError."""
        self._open_core()
        if messages is not None:
            raise ValueError("a pull consumer commits all messages that it has returned: pass no messages")
        if self._in_transaction:
            raise ValueError(f"{self} is in another transaction, which has not ended")
        began = self._uncommitted
        ranges = {
            queue: (began[queue], position) for queue, position in self.positions.items() if position > began[queue]
        }
        self._in_transaction = True

        async def on_commit() -> None:
            self._in_transaction = False
            for queue, (_, end) in ranges.items():
                self._record_commit(queue, end)

        async def on_abort() -> None:
            self._in_transaction = False
            for queue, (first, _) in ranges.items():
                self._reread(queue, first)

        async def on_fence() -> None:
            try:
                for queue, (first, _) in ranges.items():
                    self._reread(queue, max(await self._offsets.load(queue) or 0, first))
            except ClientError:
                await on_abort()  # the next transaction is refused as well, and asks again
            self._in_transaction = False

        return ConsumedOffsets(self.group, ranges, on_commit, on_abort, on_fence)

    # Pullers.

    def _reread(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset, if the queue is assigned and the consumer open."""
        puller = self._pullers.get(queue)
        if puller is not None and self._is_usable():
            puller.stop()
            self._read_from(queue, offset)

    def _puller(self, queue: MessageQueue) -> Puller:
        self._check_process()
        puller = self._pullers.get(queue)
        if puller is None:
            raise ValueError(f"{queue} is not assigned")
        return puller

    def _read_from(self, queue: MessageQueue, offset: int) -> None:
        tasks, core = self._tasks, self._core
        assert tasks is not None and core is not None, "a queue is read before the consumer was opened"  # noqa: PT018
        topic = self._subscriptions[queue.topic]
        process_queue = ProcessQueue(queue, offset)
        process_queue.paused = queue in self._paused_queues
        self._uncommitted[queue] = offset
        puller = self._pullers[queue] = Puller(
            core,
            self.group,
            topic.subscription,
            process_queue,
            self._offsets,
            self._pull_settings,
            sub_version=topic.sub_version,
            watch=self._watch,
            uploads=self._uploads,
            on_messages=self._board.offer,
            on_offset_moved=self._restart_at,
        )
        tasks.start_soon(puller.run)

    def _restart_at(self, process_queue: ProcessQueue, offset: int) -> None:
        puller = self._pullers.get(process_queue.queue)
        if puller is not None and puller.process_queue is process_queue:
            puller.stop()
            self._read_from(process_queue.queue, offset)

    def _on_progress(self, process_queue: ProcessQueue) -> None:
        if (puller := self._pullers.get(process_queue.queue)) is not None:
            puller.on_progress()

    def _on_route(self, route: TopicRoute) -> None:
        for queue, puller in self._pullers.items():
            if queue.topic == route.topic:
                puller.on_route(route)


class PulledMessages(Generic[BodyT]):
    """Iterates over the messages of a pull consumer, for ever or up to `ends`.

    A message counts as returned when it is: `positions` and `commit` are behind it. Ending a loop early loses nothing.
    """

    def __init__(
        self, consumer: PullConsumer[BodyT], board: DeliveryBoard, ends: Mapping[MessageQueue, int] | None
    ) -> None:
        self._consumer = consumer
        self._board = board
        self._ends = ends

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage[BodyT]:
        if self._ends is None:
            [message] = await self._consumer.poll(1)
            return message
        await anyio.lowlevel.checkpoint()
        while self._is_left(self._ends):
            with anyio.move_on_after(LOOK_SECONDS):
                # Without a message: the rest may be what no filter lets through.
                process_queue, [message] = await self._board.take(lambda _: 1, exclusive=False)
                if message.queue_offset < self._ends.get(message.queue, 0):
                    with anyio.CancelScope(shield=True):  # so that the time to look does not end it
                        readable = await self._consumer._readable(process_queue, [message])
                    if not readable:
                        continue
                    self._consumer._on_return(process_queue, message)
                    return message
                process_queue.block([message], anyio.current_time() + LATER_SECONDS)
                self._board.offer(process_queue)  # it was taken from the board with its last message
        raise StopAsyncIteration

    def _is_left(self, ends: Mapping[MessageQueue, int]) -> bool:
        positions = self._consumer.positions
        return any(positions.get(queue, end) < end for queue, end in ends.items())
