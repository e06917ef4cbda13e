"""Queues that end with their process: for remote control of workers, events and replies.

What is sent to an exchange is written once to the exchange's topic, if anybody has bound such a queue to it. Each
process reads these topics, from their ends on, and keeps in memory the messages for its own queues. So nothing is left
at the brokers when a process dies, and every process gets what is sent to a fanout exchange.
"""

from __future__ import annotations

import re
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import anyio
import anyio.abc
from kombu.transport.virtual.exchange import TopicExchange

from mq.celery.envelope import is_expired, priority_of, routing_key_of
from mq.celery.topics import Topics
from mq.client.consume.pull_consumer import PullConsumer
from mq.client.errors import ClientError
from mq.client.logs import log
from mq.client.message import MessageQueue, ReceivedMessage
from mq.client.net.client_core import RemotingSettings
from mq.tasks.names import broadcast_group

BUFFER_MAX: Final = 10_000
"""Messages that wait in a queue without a consumer; then the oldest ones are dropped."""
RETRY_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 5.0


@dataclass
class _TopicBinding:
    """Says that a queue gets the messages of one topic from these offsets on."""

    kind: str
    routing_key: str
    begins: dict[MessageQueue, int]

    def wants(self, message: ReceivedMessage) -> bool:
        if message.queue_offset < self.begins.get(message.queue, 0):
            return False
        if self.kind == "fanout":
            return True
        if self.kind == "topic":
            pattern = TopicExchange.key_to_pattern(_TOPIC_EXCHANGE, self.routing_key)
            return re.match(pattern, routing_key_of(message)) is not None
        return routing_key_of(message) == self.routing_key


@dataclass
class TransientQueue:
    """A message queue in the memory of this process."""

    name: str
    by_priority: bool
    on_message: Callable[[], None] | None = None
    """Called when one has come; it takes it."""
    dropped_count: int = 0
    _bindings: dict[tuple[str, str], _TopicBinding] = field(default_factory=dict)
    """The bindings by topic and routing key."""
    _buffer: deque[tuple[ReceivedMessage, float]] = field(default_factory=deque)
    """Each message with the time, on the clock of the event loop, at which it was read."""

    def __len__(self) -> int:
        return len(self._buffer)

    def put(self, message: ReceivedMessage) -> None:
        """Append a message behind those of its priority."""
        if len(self._buffer) >= BUFFER_MAX:
            self._buffer.popleft()
            if self.dropped_count == 0:
                log.warning("queue_not_consumed", queue=self.name, reason=f"{BUFFER_MAX} messages wait in memory")
            self.dropped_count += 1
        if self.by_priority:
            insort(self._buffer, (message, anyio.current_time()), key=lambda each: -priority_of(each[0]))
        else:
            self._buffer.append((message, anyio.current_time()))
        if self.on_message is not None:
            self.on_message()

    def put_back(self, message: ReceivedMessage) -> None:
        """Put messages back in front of the others."""
        self._buffer.appendleft((message, anyio.current_time()))
        if self.on_message is not None:
            self.on_message()

    def take(self) -> ReceivedMessage | None:
        """Take the first message that has not expired; None if there is none."""
        while self._buffer:
            message, read_at = self._buffer.popleft()
            waited_ms = int((anyio.current_time() - read_at) * 1000)
            if not is_expired(message, message.record.store_timestamp_ms + waited_ms):
                return message
        return None

    def clear(self) -> int:
        """Drop all messages, and return their number."""
        count = len(self._buffer)
        self._buffer.clear()
        return count


class Broadcasts:
    """Reads topics of exchanges for the transient queues of this process. Belongs to one event loop."""

    def __init__(self, name_servers: list[str], prefix: str, remoting: RemotingSettings, topics: Topics) -> None:
        self._consumer = PullConsumer(name_servers, broadcast_group(prefix), consume_from="last", remoting=remoting)
        self._topics = topics
        self._queues: dict[str, TransientQueue] = {}
        self._next: dict[MessageQueue, int] = {}
        self._lock = anyio.Lock()
        self._is_open = False
        self._assignment_event = anyio.Event()

    async def run(self) -> None:
        """Read messages once a queue is bound, until cancelled."""
        await self._assignment_event.wait()
        try:
            while True:
                try:
                    for message in await self._consumer.poll(timeout=_POLL_SECONDS):
                        self._dispatch(message)
                except ClientError as error:
                    log.warning("cannot_read_broadcasts", reason=str(error))
                    await anyio.sleep(RETRY_SECONDS)
        finally:
            await self._consumer.aclose()  # noqa: ASYNC102 - shields itself

    def _dispatch(self, message: ReceivedMessage) -> None:
        if message.queue_offset < self._next.get(message.queue, 0):
            return  # read before
        self._next[message.queue] = message.queue_offset + 1
        for queue in list(self._queues.values()):
            bindings = [each for (topic, _), each in queue._bindings.items() if topic == message.topic]
            if any(each.wants(message) for each in bindings):
                queue.put(message)

    def get(self, name: str) -> TransientQueue | None:
        """Return the transient queue of this name; None if this process has not declared it."""
        return self._queues.get(name)

    async def declare(self, name: str, *, by_priority: bool) -> TransientQueue:
        """Declare a queue, which from now on gets the messages that the default exchange sends to its name. Raises
        ClientError.
        """
        queue = self._queues.get(name)
        if queue is None:
            queue = TransientQueue(name, by_priority)
            await self._bind(queue, "", "direct", name)
            self._queues[name] = queue
        return queue

    async def bind(self, name: str, exchange: str, kind: str, routing_key: str) -> None:
        """Send the messages of the exchange to the queue from now on. Raises ClientError."""
        await self._bind(self._queues[name], exchange, kind, routing_key)

    def unbind(self, name: str, exchange: str, routing_key: str) -> None:
        """Stop sending the messages of the exchange to the queue."""
        if (queue := self._queues.get(name)) is not None:
            queue._bindings.pop((self._topics.of_exchange(exchange), routing_key), None)

    def delete(self, name: str) -> None:
        """Delete a queue and its messages."""
        self._queues.pop(name, None)

    async def _bind(self, queue: TransientQueue, exchange: str, kind: str, routing_key: str) -> None:
        topic = self._topics.of_exchange(exchange)
        if (topic, routing_key) in queue._bindings:
            return
        await self._topics.declare(topic)
        async with self._lock:
            if not self._is_open:
                await self._consumer.open()
                self._is_open = True
            read = self._consumer.assignment
            new = {each for each in await self._consumer.queues(topic) if each not in read}
            begins = {each: await self._topics.end(each) for each in {*new, *(q for q in read if q.topic == topic)}}
            if new:
                for each in new:
                    self._next[each] = begins[each]
                await self._consumer.assign({*read, *new})
                for each in new:
                    await self._consumer.seek(each, begins[each])
        queue._bindings[topic, routing_key] = _TopicBinding(kind, routing_key, begins)
        self._assignment_event.set()


_TOPIC_EXCHANGE: Final = TopicExchange(None)
