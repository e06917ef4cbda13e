"""Pops messages for a channel, and passes them to the application.

One task pops as many messages as the prefetch limit leaves room for, and only from queues that have some, as a broker
has said; so a busy worker takes nothing away from others. If there is only one queue, a broker holds the pop until it
has some: that is one request less for each message.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final

import anyio
import anyio.abc

from mq.celery.broadcasts import TransientQueue
from mq.celery.deliveries import Deliveries, Delivery
from mq.celery.envelope import decode, priority_of
from mq.celery.held_pop_connection import HeldPopConnection
from mq.celery.topics import Topics
from mq.client.consume.popped_messages import PoppedMessage
from mq.client.errors import ClientError, TopicNotFound
from mq.client.logs import log
from mq.client.message import ReceivedMessage
from mq.tasks.queue_calls import POP_MAX, QueueCalls, Source, is_transient

WAIT_SECONDS: Final = 15.0
"""Seconds for which a broker may hold the question whether there are messages."""
RETRY_SECONDS: Final = 0.2
EMPTY_SECONDS_MAX: Final = 0.5
"""The longest pause if a broker says that there are messages, but others get them all."""
STAND_BACK_SECONDS: Final = 0.001
"""Seconds for which the thread of the event loop waits after a held pop has brought messages. Only one thread of a
process runs Python code at a time: otherwise the application's thread, which hands a task to its pool now, would wait
until the event loop has asked for the next message.
"""
LAST_POPS_SECONDS: Final = 1.0
"""Seconds for the last pops of a closed channel: their messages are given back."""


class _ConsumedQueue:
    """A queue that the channel consumes, in one broker group."""

    __slots__ = ("empty_seconds", "is_hot", "is_waiting", "levels", "queue", "source")

    def __init__(self, queue: str, source: Source, levels: int) -> None:
        self.queue = queue
        self.source = source
        self.levels = levels
        self.is_hot = True
        """Whether it may have messages."""
        self.is_waiting = False
        self.empty_seconds = 0.0


class ChannelConsumer:
    """Receives the messages of one channel. Belongs to one event loop.

    `emit` is called there with deliveries, and must hand them to the application's thread, all at once. `fail` is
    called with what ends the consumer.
    """

    def __init__(
        self,
        calls: QueueCalls,
        topics: Topics,
        *,
        invisible: float,
        redeliveries_max: int | None,
        emit: Callable[[list[Delivery]], None],
        fail: Callable[[BaseException], None],
        on_unwanted: Callable[[Delivery, str], Awaitable[bool]],
    ) -> None:
        self._calls = calls
        self._topics = topics
        self._invisible = invisible
        self._emit = emit
        self._fail = fail
        self.deliveries = Deliveries(
            calls,
            invisible=invisible,
            redeliveries_max=redeliveries_max,
            on_unwanted=on_unwanted,
            on_settled=self._on_room,
        )
        self._held_pops = HeldPopConnection(calls, self._start)
        self._queues: list[_ConsumedQueue] = []
        self._transient: list[TransientQueue] = []
        self._prefetch = 0
        self._change_event = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._run_scope = anyio.CancelScope()
        self._end_event = anyio.Event()
        self._pops = 0
        """In flight, without those that a broker holds."""
        self._pop_event = anyio.Event()
        self._turn = 0
        self._is_over = False
        self._emits = 0
        self.takes = 0
        """Deliveries that the application's thread has taken; only that thread counts them."""

    # What the channel asks for.

    async def run(self) -> None:
        """Pop messages, and renew their invisible time, until cancelled."""
        try:
            with self._run_scope:
                async with anyio.create_task_group() as tasks:
                    self._tasks = tasks
                    tasks.start_soon(self.deliveries.run)
                    tasks.start_soon(self._follow_routes)
                    await self._pop()
        except Exception as error:
            self._fail(error)
        finally:
            self._tasks = None
            self._end_event.set()

    def _start(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        assert self._tasks is not None, "starts a task before it runs"
        self._tasks.start_soon(function)

    def limit(self, prefetch: int) -> None:
        """Set how many deliveries may be open; 0 for any number."""
        self._prefetch = prefetch
        self._on_change()

    async def consume(self, queue: str) -> None:
        """Start to pop messages of a queue. Raises ClientError."""
        levels = await self._calls.sources(self._topics.of_queue(queue))
        self._queues += [_ConsumedQueue(queue, source, count) for source, count in levels.items()]
        self._on_change()

    def consume_transient(self, queue: TransientQueue) -> None:
        """Start to take messages of a transient queue."""
        self._transient.append(queue)
        queue.on_message = self._pump
        self._pump()

    def cancel(self, queue: str) -> None:
        """Stop taking messages of a queue."""
        self._queues = [each for each in self._queues if each.queue != queue]
        for each in [each for each in self._transient if each.name == queue]:
            each.on_message = None
            self._transient.remove(each)

    async def get(self, queue: str, wait_seconds: float) -> Delivery | None:
        """Wait `wait_seconds` for one message, even above the prefetch limit; None without one. Raises ClientError."""
        sources = [
            _ConsumedQueue(queue, *each) for each in (await self._calls.sources(self._topics.of_queue(queue))).items()
        ]
        deadline = anyio.current_time() + wait_seconds
        while True:
            for each in sources:
                if deliveries := await self._pop_some(each, 1):
                    return self.deliveries.keep(deliveries[0])
            remaining_seconds = deadline - anyio.current_time()
            if remaining_seconds <= 0 or not sources:
                return None
            with anyio.move_on_after(remaining_seconds):
                async with anyio.create_task_group() as tasks:
                    for each in sources:
                        tasks.start_soon(self._wait_one, each.source, remaining_seconds, tasks.cancel_scope)

    async def _wait_one(self, source: Source, seconds: float, scope: anyio.CancelScope) -> None:
        try:
            await self._calls.wait(source, seconds)
        except ClientError:
            await anyio.sleep(RETRY_SECONDS)
        scope.cancel()

    def get_transient(self, queue: TransientQueue) -> Delivery | None:
        """Take one message of a transient queue; None if it is empty."""
        message = queue.take()
        return (
            None if message is None else self.deliveries.keep(Delivery(queue.name, message, _payload(message), queue))
        )

    async def close(self) -> None:
        """Put open messages back, and those of pops in flight; wait for acknowledgements; end `run`."""
        self._is_over = True
        for each in self._transient:
            each.on_message = None
        if self._tasks is not None:
            with anyio.move_on_after(LAST_POPS_SECONDS):
                await self._held_pops.finish()
                while self._pops:
                    self._pop_event = anyio.Event()
                    await self._pop_event.wait()
            self._run_scope.cancel()
            await self._end_event.wait()
        self._held_pops.close()
        await self.deliveries.close()

    # Popping.

    def _room(self) -> int:
        if self._is_over:
            return 0
        return self._prefetch - len(self.deliveries.open) if self._prefetch else POP_MAX - (self._emits - self.takes)

    def on_take(self) -> None:
        """Fetch more deliveries, because the application's thread took some."""
        self._on_room()

    def _on_room(self) -> None:
        self._on_change()
        self._pump()

    def _on_change(self) -> None:
        self._change_event.set()

    def _give(self, deliveries: list[Delivery]) -> None:
        self._emits += len(deliveries)
        self._emit(deliveries)

    def _pump(self) -> None:
        """Deliver the messages in transient queues."""
        for queue in self._transient:
            while len(queue) and self._room() > 0 and not self._is_over:
                if (delivery := self.get_transient(queue)) is not None:
                    self._give([delivery])

    async def _pop(self) -> None:
        while True:
            self._change_event = anyio.Event()
            if self._room() > 0:
                hot = [each for each in self._in_turn() if each.is_hot]
                for each in hot:
                    if (room := self._room()) > 0:
                        await self._pop_hot(each, min(room, POP_MAX))
                if hot:
                    continue
            for each in self._queues:
                if not each.is_hot and not each.is_waiting and (self._room() > 0 or not self._is_alone(each)):
                    each.is_waiting = True
                    self._start(partial(self._wait, each))
            await self._change_event.wait()

    def _is_alone(self, queue: _ConsumedQueue) -> bool:
        """Return whether a pop of this queue may fill all the room.

        A second queue may be consumed while a pop of the first one is held; so once, both may fill the same room.
        """
        return self._queues == [queue] and queue.levels == 1 and not self._transient

    def _in_turn(self) -> Iterator[_ConsumedQueue]:
        """Return the queues, starting with the one whose turn it is."""
        self._turn += 1
        count = len(self._queues)
        return iter([self._queues[(self._turn + at) % count] for at in range(count)])

    async def _pop_hot(self, queue: _ConsumedQueue, count: int) -> None:
        failure: ClientError | None = None
        deliveries: list[Delivery] = []
        self._pops += 1
        try:
            deliveries = await self._pop_some(queue, count)
        except ClientError as error:
            if not is_transient(error):
                raise
            failure = error
        finally:
            self._pops -= 1
            self._pop_event.set()
        if failure is not None:
            log.info("pop_failed", queue=queue.queue, reason=str(failure))
            queue.is_hot = False
            queue.empty_seconds = RETRY_SECONDS
            if isinstance(failure, TopicNotFound) and not await self._topics.declare_again(queue.source.topic):
                raise failure
        elif deliveries:
            queue.empty_seconds = 0.0
        else:
            queue.is_hot = False
            queue.empty_seconds = min(max(2 * queue.empty_seconds, 0.002), EMPTY_SECONDS_MAX)
        await self._give_all(queue, deliveries)

    async def _give_all(self, queue: _ConsumedQueue, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self.deliveries.keep(delivery)
        if self._is_over:
            return  # `close` gives them back
        if queue in self._queues:
            if deliveries:
                self._give(deliveries)
            return
        for delivery in deliveries:  # the application has cancelled it meanwhile
            await self.deliveries.give_back(delivery.tag)

    async def _pop_some(self, queue: _ConsumedQueue, count: int) -> list[Delivery]:
        """Pop messages of the highest priority that has some, without unwanted ones."""
        deliveries: list[Delivery] = []
        for level in range(queue.levels - 1, -1, -1):
            try:
                messages = await self._calls.pop(queue.source, level, count - len(deliveries), self._invisible)
            except ClientError:
                if not deliveries:
                    raise
                break  # or messages of higher priority would stay hidden; the next pop meets the same failure
            deliveries += await self._accept_all(queue, messages)
            if len(deliveries) >= count:
                break
        return sorted(deliveries, key=lambda each: -priority_of(each.message))

    async def _accept_all(self, queue: _ConsumedQueue, messages: list[PoppedMessage]) -> list[Delivery]:
        accept = self.deliveries.accept
        return [each for message in messages if (each := await accept(queue.queue, message)) is not None]

    async def _wait(self, queue: _ConsumedQueue) -> None:
        """Wait until a queue may have messages."""
        if queue.empty_seconds > 0.002:
            await anyio.sleep(queue.empty_seconds)
        is_hot = True
        try:
            while queue in self._queues:
                if self._is_alone(queue):
                    if (room := self._room()) > 0:
                        is_hot = await self._pop_held(queue, min(room, POP_MAX))
                    else:
                        is_hot = False
                    break
                if await self._calls.wait(queue.source, WAIT_SECONDS):
                    break
                queue.empty_seconds = 0.0
        except TopicNotFound:
            pass  # the pop finds out
        except ClientError as error:
            if self._is_over:
                return  # the broker has dropped the pop
            if not is_transient(error):
                raise
            log.info("pop_failed", queue=queue.queue, reason=str(error))
            await anyio.sleep(RETRY_SECONDS)
            await self._look_for_leader(queue)
        queue.is_waiting = False
        queue.is_hot = is_hot
        self._on_change()

    async def _pop_held(self, queue: _ConsumedQueue, count: int) -> bool:
        """Wait for messages and take them; returns whether there may be more."""
        emitted_ids: set[int] = set()

        def give(popped_messages: list[PoppedMessage]) -> None:
            """Deliver wanted messages at once, without waiting for the next turn of the event loop."""
            if self._is_over or queue not in self._queues:
                return
            deliveries: list[Delivery] = []
            for message in popped_messages:
                delivery, reason = self.deliveries.judge(queue.queue, message)
                if not reason:
                    deliveries.append(self.deliveries.keep(delivery))
                    emitted_ids.add(id(message))
            if deliveries:
                self._give(deliveries)
                time.sleep(STAND_BACK_SECONDS)

        messages = await self._held_pops.pop(queue.source, count, self._invisible, give)
        accepted_deliveries = await self._accept_all(queue, [each for each in messages if id(each) not in emitted_ids])
        queue.empty_seconds = 0.0
        await self._give_all(queue, accepted_deliveries)
        return len(messages) == count

    async def _follow_routes(self) -> None:
        while True:
            await anyio.sleep(self._topics.limits.route_seconds)
            for queue in {each.queue for each in self._queues}:
                topic = self._topics.of_queue(queue)
                try:
                    levels = await self._calls.sources(topic)
                except ClientError as error:
                    log.info("route_not_refreshed", topic=topic, reason=str(error))
                    continue
                by_source = {each.source: each for each in self._queues if each.queue == queue}
                for source, count in levels.items() if by_source else ():
                    if source not in by_source:
                        self._queues.append(_ConsumedQueue(queue, source, count))
                    elif count > by_source[source].levels:
                        by_source[source].levels, by_source[source].is_hot = count, True
            self._on_change()

    async def _look_for_leader(self, queue: _ConsumedQueue) -> None:
        try:
            await self._calls.refresh(queue.source.topic)
        except ClientError as error:
            log.info("route_not_refreshed", topic=queue.source.topic, reason=str(error))


def _payload(message: ReceivedMessage) -> dict[str, Any]:
    try:
        return decode(message, redelivered=False)
    except ValueError:
        log.error("foreign_message", message_id=message.message_id, reason="not a message of kombu")
        return {"properties": {"delivery_tag": message.message_id, "delivery_info": {}}, "body": ""}
