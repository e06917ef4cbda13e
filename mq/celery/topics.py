"""The topics of queues and exchanges, and the bindings between them, which the brokers replicate.

A queue is a topic with one queue for each level of priority. Its attributes say under which name it was declared, and
to which exchanges it is bound; so a binding is there for every process as soon as it is made, and is deleted with its
queue.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import anyio

from mq.celery.limits import DEFAULT, TransportLimits
from mq.client.errors import BrokerError, TopicNotFound
from mq.client.logs import log
from mq.client.message import MessageQueue
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.topics import TopicConfig
from mq.tasks.names import bindings_topic, exchange_topic, is_queue_topic, queue_topic
from mq.tasks.queue_calls import QueueCalls

QUEUE_ATTRIBUTE: Final = "kombu.queue"
BINDING_ATTRIBUTE: Final = "kombu.binding."
VERSION_ATTRIBUTE: Final = "kombu.bindings"
"""Changes in a separate topic with each change of any binding, so that others need not list all topics."""


class Binding(NamedTuple):
    """Says that messages of an exchange whose routing key equals, or matches, this one are sent to a queue."""

    exchange: str
    kind: str
    routing_key: str
    queue: str

    def attribute(self) -> tuple[str, str]:
        """Return the name and value of the topic attribute that stores the binding."""
        value = json.dumps([self.exchange, self.kind, self.routing_key])
        digest = hashlib.sha256(json.dumps([self.exchange, self.routing_key]).encode()).hexdigest()
        return f"{BINDING_ATTRIBUTE}{digest[:12]}", value


class TooManyBindings(BrokerError):
    """A queue has no room for another binding. Nothing was changed."""

    def __init__(self, binding: Binding, refusal: BrokerError) -> None:
        super().__init__(refusal.code, refusal.remark, refusal.address)
        self.binding = binding

    def __str__(self) -> str:
        return (
            f"queue {self.binding.queue!r} has no room for another binding (exchange {self.binding.exchange!r}, "
            f"routing key {self.binding.routing_key!r}): bindings are attributes of its topic, 1,024 bytes in all. "
            f"Bind it with a pattern of a topic exchange, or use further queues ({self.remark})"
        )


class Topics:
    """The topics that this process knows. Belongs to one event loop."""

    def __init__(self, calls: QueueCalls, prefix: str, limits: TransportLimits = DEFAULT) -> None:
        self.limits = limits
        self._calls = calls
        self._prefix = prefix
        self._version_topic = bindings_topic(prefix)
        self._levels: dict[str, int] = {}
        """Topics that exist, with their number of queues in a broker group."""
        self._declarations: dict[str, dict[str, str]] = {}
        """Queues that this process has declared, with their attributes."""
        self._bindings: set[Binding] = set()
        self._own: set[Binding] = set()
        self._read_at = -self.limits.fresh_seconds
        self._version: str | None = None
        """Of the bindings when they were read; None if that is unknown."""
        self._listed_at = -self.limits.list_seconds
        self._lock = anyio.Lock()
        self._may_list = True

    def of_queue(self, queue: str) -> str:
        """Return the name of a queue's topic."""
        return queue_topic(self._prefix, queue)

    def of_exchange(self, exchange: str) -> str:
        """Return the name of the topic for an exchange's broadcasts."""
        return exchange_topic(self._prefix, exchange)

    async def exists(self, topic: str) -> bool:
        """Return whether a topic exists. If it did not, asks the name server each time, because a process that has just
        started to listen may rely on messages sent from now on.
        """
        if topic in self._levels:
            return True
        try:
            route = await self._calls.route(topic)
        except TopicNotFound:
            return False
        self._levels[topic] = 1 + max((each.queue_id for each in route.read_queues), default=0)
        return True

    def is_known(self, topic: str) -> bool:
        """Return whether a topic existed when this process last checked. Any thread may call this."""
        return topic in self._levels

    async def is_declared(self, topic: str) -> bool:
        """Return whether messages can be sent to a topic: it exists, or is created again, as it was declared here."""
        return topic in self._declarations or await self.exists(topic)

    async def declare(self, topic: str, *, levels: int = 1, queue: str | None = None) -> None:
        """Create a topic if there is none; add priority levels if it has too few. Raises ClientError."""
        if queue is not None:
            self._declarations.setdefault(topic, {QUEUE_ATTRIBUTE: queue})
        async with self._lock:
            if await self.exists(topic) and self._levels[topic] >= levels:
                return
            await self._calls.create_topic(topic, levels, attributes=self._declarations.get(topic))
            self._levels[topic] = levels

    async def declare_again(self, topic: str) -> bool:
        """Create a deleted topic again, as this process declared it. Returns False if it declared none."""
        levels = self._levels.pop(topic, 1)
        if topic not in self._declarations:
            return False
        log.warning("queue_declared_again", topic=topic, reason="somebody else has deleted it")
        await self._calls.create_topic(topic, levels, attributes=self._declarations[topic])
        self._levels[topic] = levels
        return True

    async def delete(self, topic: str) -> None:
        """Delete the topic of a queue, with its group and bindings."""
        self._forget(topic)
        try:
            await self._calls.delete_topic(topic)
            await self._calls.delete_consumer_group(topic, topics=True)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
        obsolete = {each for each in self._own | self._bindings if self.of_queue(each.queue) == topic}
        for bindings in (self._own, self._bindings):
            bindings -= obsolete
        if obsolete:
            await self._announce_change()

    def _forget(self, topic: str) -> None:
        self._levels.pop(topic, None)
        self._declarations.pop(topic, None)

    async def bind(self, binding: Binding) -> None:
        """Bind a queue to an exchange. Returns when all processes can see that. Raises ClientError."""
        if binding in self._own:
            return
        topic = self.of_queue(binding.queue)
        await self.declare(topic, queue=binding.queue)
        name, value = binding.attribute()
        if binding not in await self._read(self.limits.fresh_seconds) and self._may_list:
            try:
                await self._calls.create_topic(
                    topic, self._levels[topic], attributes={QUEUE_ATTRIBUTE: binding.queue, name: value}
                )
            except BrokerError as error:
                if error.code == ResponseCode.INVALID_PARAMETER and "size of attributes" in (error.remark or ""):
                    raise TooManyBindings(binding, error) from error
                raise
            await self._announce_change()
        self._declarations[topic][name] = value
        self._own.add(binding)

    async def end(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get. Raises ClientError."""
        return await self._calls.max_offset(queue)

    async def unbind(self, binding: Binding) -> None:
        """Unbind a queue from an exchange. Raises ClientError."""
        topic = self.of_queue(binding.queue)
        name, _ = binding.attribute()
        for bindings in (self._own, self._bindings):
            bindings.difference_update(
                [each for each in bindings if each.queue == binding.queue and each.attribute()[0] == name]
            )
        self._declarations.get(topic, {}).pop(name, None)
        if await self.exists(topic):
            await self._calls.create_topic(topic, self._levels[topic], attributes={name: None})
            await self._announce_change()

    async def bindings(self, exchange: str, *, fresh: bool = False) -> list[Binding]:
        """Return the bindings of an exchange; those that other processes have just made only if `fresh`."""
        all_bindings = await self._read(self.limits.missed_seconds if fresh else self.limits.fresh_seconds)
        return [each for each in all_bindings if each.exchange == exchange]

    async def _read(self, seconds: float) -> set[Binding]:
        """Return all bindings, as of at most `seconds` ago. Topics are listed only if bindings have changed since."""
        now = anyio.current_time()
        if self._may_list and now >= self._read_at + seconds:
            try:
                version = await self._read_version()
                if version is None or version != self._version or now >= self._listed_at + self.limits.list_seconds:
                    self._bindings = set(_bindings_of(await self._calls.all_topics(), self._prefix))
                    self._version, self._listed_at = version, now
            except BrokerError as error:
                if error.code != ResponseCode.NO_PERMISSION:
                    raise
                self._may_list = False
                log.warning("bindings_not_shared", reason=str(error), missing="the permission to list all topics")
            self._read_at = now
        return self._bindings | self._own

    async def _read_version(self) -> str | None:
        """Return the version of the bindings, of all broker groups; None before the first one."""
        try:
            configs = await self._calls.topic_config(self._version_topic)
        except TopicNotFound:
            return None
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return None
        return " ".join(configs[name].attributes.get(VERSION_ATTRIBUTE, "") for name in sorted(configs))

    async def _announce_change(self) -> None:
        """Let all processes read the changed bindings."""
        await self._calls.create_topic(self._version_topic, 1, attributes={VERSION_ATTRIBUTE: uuid.uuid4().hex})


def _bindings_of(topics: Mapping[str, TopicConfig], prefix: str) -> Iterator[Binding]:
    for name, config in topics.items():
        queue = config.attributes.get(QUEUE_ATTRIBUTE)
        if queue is None or not is_queue_topic(prefix, name):
            continue
        for attribute, value in config.attributes.items():
            if attribute.startswith(BINDING_ATTRIBUTE):
                try:
                    exchange, kind, routing_key = json.loads(value)
                except (ValueError, TypeError):
                    continue  # of a later release
                yield Binding(exchange, kind, routing_key, queue)


def queues_of(bindings: Iterable[Binding]) -> list[str]:
    """List the queues of bindings, each once, in a fixed order."""
    return sorted({each.queue for each in bindings})
