"""The thread, event loop and clients that all connections of a process to one address share.

A session belongs to the process that has opened it. A connection of kombu that finds itself in a forked child gets
another one.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import anyio
from kombu.transport.virtual.exchange import TopicExchange

from mq.celery.address import Address
from mq.celery.blocking_send import BlockingSends, TaskProducer
from mq.celery.broadcasts import Broadcasts
from mq.celery.channel_consumer import ChannelConsumer
from mq.celery.deliveries import Delivery
from mq.celery.envelope import Outgoing
from mq.celery.topics import Binding, Topics, queues_of
from mq.client.errors import ClientClosed, ClientError, SendOutcomeUnknown, TopicNotFound
from mq.client.logs import log
from mq.client.message import Message, MessageQueue
from mq.client.net.forks import call_in_children, forks
from mq.client.sync.loop_thread import LoopThread
from mq.tasks.queue_calls import QueueCalls
from mq.tasks.sending import send_by_level

P = ParamSpec("P")
R = TypeVar("R")

PING_SECONDS_MAX: Final = 2.0
_PRODUCER: Final = "RAFTMQ_PRODUCER"
_SEQUENCE: Final = "RAFTMQ_SEQUENCE"

_sessions: dict[Address, Session] = {}
_lock = threading.Lock()


class _NumberedMessage(NamedTuple):
    """A message with a number, so that it is stored once; and the turn and priority that choose its queue."""

    message: Message
    turn: int
    priority: int


Unsure = dict[str, tuple[_NumberedMessage, MessageQueue]]
"""Maps a topic to a message of an earlier attempt, with unknown outcome, and to the queue that may have it."""


class Session:
    """An event loop in a thread, and the clients in it. `acquire` opens one, or returns the open one."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._forks = forks()
        self._users = 0
        self._numbers = itertools.count()
        self._turns = itertools.count()
        self._name = uuid.uuid4().hex
        settings = address.remoting_settings()
        servers = list(address.name_servers)
        self.calls = QueueCalls(servers, remoting=settings)
        self._producer = TaskProducer(
            servers,
            timeout=address.publish_timeout,
            retries=1000,  # a message that is stored twice is recognized by its number
            auto_create_topics=False,
            remoting=settings,
        )
        self.topics = Topics(self.calls, address.prefix)
        self.broadcasts = Broadcasts(servers, address.prefix, settings, self.topics)
        self._blocking_sends = BlockingSends(
            self._producer, settings, publish_seconds=address.publish_timeout, on_forwarded=self._refresh_route
        )
        self._thread = LoopThread("raftmq.celery")
        self._read_task: Future[None] | None = None
        self._channel_consumers: dict[ChannelConsumer, Future[None]] = {}
        try:
            self._thread.call(self._open)
            self._read_task = self._thread.portal.start_task_soon(self.broadcasts.run)
        except BaseException:
            self._thread.stop("opening")
            raise

    async def _open(self) -> None:
        await self.calls.open()
        try:
            await self.calls.ping(timeout=min(self.address.connect_timeout, PING_SECONDS_MAX))
            await self._producer.open()
        except BaseException:
            await self.calls.aclose()  # noqa: ASYNC102 - shields itself
            raise

    @classmethod
    def acquire(cls, address: Address) -> Session:
        """Return this process's session for an address, to be released. Raises ClientError if no server answers."""
        forks()  # a thread of the parent may hold the lock
        with _lock:
            session = _sessions.get(address)
            if session is None or not session.is_alive:
                session = _sessions[address] = cls(address)
            session._users += 1
            return session

    def release(self) -> None:
        """Stop using the session. The last user closes it."""
        if self.is_parents:
            return
        with _lock:
            self._users -= 1
            if self._users > 0:
                return
            if _sessions.get(self.address) is self:
                del _sessions[self.address]
        self.close()

    @property
    def is_parents(self) -> bool:
        """Whether the parent of this forked process opened the session."""
        return self._forks != forks()

    @property
    def is_alive(self) -> bool:
        """Whether this process can use the session."""
        return not self.is_parents and self._read_task is not None and not self._read_task.done()

    def close(self) -> None:
        """Wait for messages in flight, and stop the thread."""
        read_task, self._read_task = self._read_task, None
        if read_task is None:
            return
        self._blocking_sends.close()
        read_task.cancel()
        try:
            self._thread.call(self._close)
        except ClientError as error:
            log.info("close_failed", client="raftmq.celery", reason=str(error))
        self._thread.stop("messages in flight")

    async def _close(self) -> None:
        async with anyio.create_task_group() as tasks:
            for consumer in self._channel_consumers:
                tasks.start_soon(consumer.close)
        await self._producer.aclose()
        await self.calls.aclose()

    def call(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a coroutine function in the event loop. Raises ClientClosed if the session has ended."""
        self._check()
        return self._thread.call(functools.partial(function, *args, **kwargs))

    def call_now(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a plain function in the event loop."""

        async def call() -> R:
            return function(*args, **kwargs)

        return self.call(call)

    def start(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Future[Any]:
        """Start a coroutine function in the event loop, without waiting for it. Raises ClientClosed."""
        self._check()
        try:
            return self._thread.portal.start_task_soon(function, *args)
        except RuntimeError as error:
            raise ClientClosed("the connection was closed") from error

    def soon(self, function: Callable[[], None]) -> None:
        """Call a plain function, which must not raise, in the event loop, without waiting. Raises ClientClosed."""
        self._check()
        self._thread.soon(function)

    def _check(self) -> None:
        if self.is_parents:
            raise ClientClosed(
                f"process {os.getpid()} was forked from the one that has opened this channel: open another one here"
            )
        if self._read_task is None:
            raise ClientClosed("the connection was closed")

    # Publishing.

    def publish(self, exchange: str, kind: str, routing_key: str, message: Outgoing, unsure: Unsure) -> bool:
        """Send a message to the queues that its exchange chooses. Returns False if there are none. Raises ClientError.

        For the application's threads. A message for one queue that is known takes the short way. `unsure` is the
        message that earlier attempts of the same call left, also in another session: it keeps its number, and is sent
        to the same queue.
        """
        self._check()
        topic = self.topics.of_queue(routing_key)
        if exchange or unsure or self.broadcasts.get(routing_key) is not None or not self.topics.is_known(topic):
            return self.call(self.publish_here, exchange, kind, routing_key, message, unsure)
        send = self._number_message(topic, message)
        outcome, queue = self._blocking_sends.send(*send)
        if outcome != "yes":
            seconds = self.address.publish_timeout - self._blocking_sends.seconds
            self.call(self._send, send, seconds, unsure, may_be_in=queue if outcome == "unknown" else None)
        return True

    async def publish_here(
        self, exchange: str, kind: str, routing_key: str, message: Outgoing, unsure: Unsure | None = None
    ) -> bool:
        """Publish a message, as `publish` does, from the event loop."""
        topics = await self._topics_for(exchange, kind, routing_key)
        if len(topics) == 1:
            await self.send(topics[0], message, unsure)
        elif topics:
            errors: list[ClientError] = []

            async def send(topic: str) -> None:
                try:
                    await self.send(topic, message, unsure)
                except ClientError as error:
                    errors.append(error)

            async with anyio.create_task_group() as tasks:
                for topic in topics:
                    tasks.start_soon(send, topic)
            if errors:
                raise errors[0]
        return bool(topics)

    async def _topics_for(self, exchange: str, kind: str, routing_key: str) -> list[str]:
        if not exchange:
            topic = self.topics.of_queue(routing_key)
            if self.broadcasts.get(routing_key) is None and await self.topics.is_declared(topic):
                return [topic]
            broadcasts = self.topics.of_exchange("")
            return [broadcasts] if await self.topics.exists(broadcasts) else []
        queues = queues_of(_filter_bindings(await self.topics.bindings(exchange), kind, routing_key))
        topics = [self.topics.of_queue(queue) for queue in queues]
        broadcasts = self.topics.of_exchange(exchange)
        if await self.topics.exists(broadcasts):
            topics.append(broadcasts)
        if not topics:
            queues = queues_of(_filter_bindings(await self.topics.bindings(exchange, fresh=True), kind, routing_key))
            topics = [self.topics.of_queue(queue) for queue in queues]
        return topics

    async def single_queue(self, exchange: str, routing_key: str) -> tuple[str, int] | None:
        """Return the topic and priority levels of the only queue that would get such a message; None if not one.

        None if it is sent to no queue, to several queues, or to what processes read for themselves. Raises ClientError.
        """
        topics = await self._topics_for(exchange, "direct", routing_key)
        if len(topics) != 1 or topics[0] == self.topics.of_exchange(exchange):
            return None
        queues = await self._producer.queues(topics[0])
        return topics[0], 1 + max((each.queue_id for each in queues), default=0)

    async def send(self, topic: str, outgoing: Outgoing, unsure: Unsure | None = None) -> None:
        """Send a message from the event loop. Returns when a majority has stored it, once. Raises ClientError."""
        message, queue = (unsure or {}).get(topic) or (self._number_message(topic, outgoing), None)
        await self._send(message, self.address.publish_timeout, unsure, may_be_in=queue)

    def _number_message(self, topic: str, outgoing: Outgoing) -> _NumberedMessage:
        numbers = {_PRODUCER: self._name, _SEQUENCE: str(next(self._numbers))}
        message = Message(
            topic,
            outgoing.body,
            keys=outgoing.keys,
            properties={**outgoing.properties, **numbers},
            deliver_at=outgoing.deliver_at_ms,
        )
        return _NumberedMessage(message, next(self._turns), outgoing.priority)

    async def _send(
        self,
        send: _NumberedMessage,
        seconds: float,
        unsure: Unsure | None = None,
        *,
        may_be_in: MessageQueue | None = None,
    ) -> None:
        topic = send.message.topic
        topic_error: TopicNotFound | None = None
        try:
            try:
                await self._send_to_leader(send, seconds, may_be_in=may_be_in)
            except TopicNotFound as error:
                topic_error = error
            if topic_error is not None:
                if not await self.topics.declare_again(topic):
                    raise topic_error
                await self._send_to_leader(send, seconds, may_be_in=may_be_in)
        except SendOutcomeUnknown as error:
            if unsure is not None and (queue := error.queue or may_be_in) is not None:
                unsure[topic] = send, queue
            raise

    async def _send_to_leader(
        self, send: _NumberedMessage, seconds: float, *, may_be_in: MessageQueue | None = None
    ) -> None:
        await send_by_level(
            self._producer,
            send.message,
            turn=send.turn,
            priority=send.priority,
            seconds=seconds,
            may_be_in=may_be_in,
        )

    def _refresh_route(self, topic: str) -> None:
        async def refresh() -> None:
            try:
                await self._producer.refresh_route(topic)
            except ClientError as error:
                log.info("route_not_refreshed", topic=topic, reason=str(error))

        self.start(refresh)

    # Consuming.

    def open_consumer(
        self,
        emit: Callable[[list[Delivery]], None],
        fail: Callable[[BaseException], None],
        on_unwanted: Callable[[Delivery, str], Awaitable[bool]],
    ) -> ChannelConsumer:
        """Open the consumer of a channel; `close_consumer` closes it."""
        consumer = self.call_now(
            lambda: ChannelConsumer(
                self.calls,
                self.topics,
                invisible=self.address.visibility_timeout,
                redeliveries_max=self.address.redeliveries_max,
                emit=emit,
                fail=fail,
                on_unwanted=on_unwanted,
            )
        )
        self._channel_consumers[consumer] = self.start(consumer.run)
        return consumer

    def close_consumer(self, consumer: ChannelConsumer) -> None:
        """Put the messages of a consumer back into their queues, and stop its task."""
        channel_consumer = self._channel_consumers.pop(consumer, None)
        if channel_consumer is None or not self.is_alive:
            return
        try:
            self.call(consumer.close)
        except ClientError as error:
            log.warning("close_failed", client="raftmq.celery", reason=str(error))
        channel_consumer.cancel()


def now_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


_TOPIC_EXCHANGE: Final = TopicExchange(None)


def _filter_bindings(bindings: list[Binding], kind: str, routing_key: str) -> list[Binding]:
    kind = bindings[0].kind if bindings else kind
    if kind == "fanout":
        return bindings
    if kind == "topic":
        pattern = _TOPIC_EXCHANGE.key_to_pattern
        return [each for each in bindings if _TOPIC_EXCHANGE._match(pattern(each.routing_key), routing_key)]
    return [each for each in bindings if each.routing_key == routing_key]


def _forget_parents_sessions() -> None:
    global _lock
    _lock = threading.Lock()
    _sessions.clear()


call_in_children(_forget_parents_sessions)


@atexit.register
def _close_all() -> None:
    for session in list(_sessions.values()):
        if session.is_alive:
            session.close()
