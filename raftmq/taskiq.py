"""A broker for Taskiq: `pip install raftmq[taskiq]`.

    from raftmq.taskiq import RaftmqBroker

    broker = RaftmqBroker("127.0.0.1:9876")

    @broker.task
    async def add(a: int, b: int) -> int:
        return a + b

A task is a message of a topic, workers are a consumer group that pops it. It belongs to its worker until it is
acknowledged, however long it runs, and is delivered to another worker if its own ends. The page for users is
`docs/taskiq.md`.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import logging
from collections.abc import AsyncGenerator, Sequence

import anyio

from mq.client import (
    Admin,
    AlreadyOpen,
    BrokerError,
    ClientClosed,
    ClientError,
    Message,
    PopConsumer,
    PoppedMessage,
    Producer,
    RemotingSettings,
    TopicNotFound,
)
from raftmq.attempts import give_up

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'raftmq[taskiq]'", name=error.name) from error

__all__ = ["RaftmqBroker"]

log = logging.getLogger("raftmq.taskiq")

PRIORITIES_MAX = 32

_Taken = tuple[int, int, PopConsumer, PoppedMessage]


class RaftmqBroker(AsyncBroker):
    """Sends tasks to a topic of raftmq or RocketMQ, and gets them from there. Only on asyncio, as Taskiq itself.

    Workers with the same `group` share the tasks of `topic`. A task that a worker has taken comes to another worker
    `visibility` seconds after its own was killed, and at once if that was shut down. One that was delivered
    `max_attempts` times, and not acknowledged, becomes a dead letter of the group.

    With `priorities`, tasks may have a label `priority` from 0 to `priorities - 1`; those with a higher one come first.
    `prefetch` tasks of a worker may wait until it has a free place; with 0 it gets one only when it has.

    `startup` creates the topics that do not exist, with `queues` queues, unless `create_topics` is false.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        topic: str = "taskiq",
        group: str = "taskiq",
        priorities: int = 1,
        prefetch: int = 0,
        visibility: float = 60.0,
        max_attempts: int = 16,
        queues: int = 8,
        create_topics: bool = True,
        remoting: RemotingSettings | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= priorities <= PRIORITIES_MAX:
            raise ValueError(f"priorities is {priorities}; allowed: 1 to {PRIORITIES_MAX}")
        if prefetch < 0 or max_attempts < 1 or queues < 1:
            raise ValueError(f"prefetch {prefetch} must be at least 0, max_attempts {max_attempts}, queues {queues} 1")
        self.topics = tuple(topic if level == 0 else f"{topic}-priority-{level}" for level in range(priorities))
        """The topic of each priority."""
        self._namesrv = namesrv
        self._max_attempts = max_attempts
        self._queues = queues
        self._creates_topics = create_topics
        self._remoting = remoting
        self._producer = Producer(namesrv, group=group, remoting=remoting)
        # With several priorities, one of each must be here to know which one comes first.
        ahead = prefetch if priorities == 1 else max(1, prefetch)
        self._consumers = [
            PopConsumer(
                namesrv,
                group,
                each,
                invisible=visibility,
                renew=True,
                consume_from="first",
                ahead=ahead,
                remoting=remoting,
            )
            for each in reversed(self.topics)
        ]
        """By priority, the highest first."""
        self._taken: list[_Taken] = []
        self._order = itertools.count()
        self._opening = anyio.Lock()

    async def startup(self) -> None:
        """Connect. Raises ClientError: NameServersUnavailable, NoRoute, TopicNotFound, BrokerError."""
        if self._creates_topics:
            await self._create_topics()
        with contextlib.suppress(AlreadyOpen):
            await self._producer.open()
        if self.is_worker_process:
            await self._open_consumers()
        await super().startup()

    async def shutdown(self) -> None:
        """Disconnect: wait for tasks that are being sent, and give back those that are not acknowledged."""
        try:
            await super().shutdown()  # its handlers may send tasks
        finally:
            self._taken.clear()
            async with anyio.create_task_group() as tasks:
                for client in (self._producer, *self._consumers):
                    tasks.start_soon(client.aclose)

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task, and wait until it is on disk on a majority of the brokers.

        Raises ValueError for labels that cannot be used, and ClientError; its `stored` says whether the task may be
        executed all the same. If cancelled, it may be, too.
        """
        delay = _number(message, "delay")
        priority = _number(message, "priority")
        if not (priority.is_integer() and 0 <= priority < len(self.topics)):
            raise ValueError(
                f"the priority of {message.task_name} is {priority:g}, this broker has 0 to {len(self.topics) - 1}: "
                "RaftmqBroker(priorities=...) sets how many there are"
            )
        sent = Message(
            self.topics[int(priority)], message.message, keys=[message.task_id], delay=delay if delay > 0 else None
        )
        try:
            await self._producer.send(sent)
        except ClientClosed as error:
            error.add_note("await broker.startup() connects it")
            raise

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:  # noqa: ASYNC900 - Taskiq closes it
        """The tasks, for ever. Raises ClientError if it is refused to get them, and ClientClosed after `shutdown`."""
        await self._open_consumers()
        while True:
            consumer, message = await self._next()
            if message.reconsume_times >= self._max_attempts:
                await give_up(consumer, message, log)
            else:
                yield AckableMessage(data=message.body, ack=functools.partial(_acknowledge, consumer, message))

    async def _create_topics(self) -> None:
        async with Admin(self._namesrv, remoting=self._remoting) as admin:
            for topic in self.topics:
                try:
                    await admin.route(topic)
                except TopicNotFound:
                    try:
                        await admin.create_topic(topic, self._queues)
                    except BrokerError as error:
                        error.add_note(f"create the topic {topic} yourself, and use RaftmqBroker(create_topics=False)")
                        raise

    async def _open_consumers(self) -> None:
        async with self._opening:
            for consumer in self._consumers:
                with contextlib.suppress(AlreadyOpen):
                    await consumer.open()

    async def _next(self) -> tuple[PopConsumer, PoppedMessage]:
        """Wait for a task; takes the one with the highest priority that is here. Cancelling it loses none."""
        if len(self._consumers) == 1:
            return self._consumers[0], await anext(self._consumers[0])
        failures: list[ClientError] = []
        while not self._taken:
            async with anyio.create_task_group() as tasks:

                async def take(level: int, consumer: PopConsumer, done: anyio.CancelScope = tasks.cancel_scope) -> None:
                    try:
                        message = await anext(consumer)
                        heapq.heappush(self._taken, (level, next(self._order), consumer, message))
                    except ClientError as error:
                        failures.append(error)
                    done.cancel()

                for level, consumer in enumerate(self._consumers):
                    tasks.start_soon(take, level, consumer)
            if failures and not self._taken:
                raise failures[0]
        _, _, consumer, message = heapq.heappop(self._taken)
        return consumer, message


async def _acknowledge(consumer: PopConsumer, message: PoppedMessage) -> None:
    """Acknowledge a message; log a failure, since Taskiq's tasks cannot handle it."""
    try:
        await consumer.ack(message)
    except ClientError as error:
        log.warning("the task %s is done, but may be executed again: %s", message.keys, error)


def _number(message: BrokerMessage, label: str) -> float:
    """A label that Taskiq may have turned into text; 0 without it. Raises ValueError."""
    value = message.labels.get(label)
    try:
        return 0.0 if value is None else float(value)
    except (TypeError, ValueError):
        raise ValueError(f"label {label} of {message.task_name}: expected a number, got {value!r}") from None
