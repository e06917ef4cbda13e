"""The thread, event loop, clients and held messages that all consumers and senders of a process share."""

from __future__ import annotations

import contextlib
import functools
import heapq
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

import anyio

from mq.client import (
    BrokerError,
    ClientClosed,
    ClientError,
    NotRecalled,
    PoppedMessage,
    RemotingSettings,
    TopicNotFound,
)
from mq.client.consume.renewals import Renewals
from mq.client.net.forks import forks
from mq.client.sync.loop_thread import LoopThread
from mq.tasks.names import queue_topic
from mq.tasks.queue_calls import CALL_SECONDS, QueueCalls, Source
from mq.tasks.sending import Sending

__all__ = ["Options", "Session"]

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("raftmq.dramatiq")

DELAYED_MAX: Final = 10_000
"""The number of delayed messages that are remembered, for `flush` and `join`."""
DELAYED_SECONDS: Final = 60.0
"""Seconds after its time for which a delayed message is remembered."""
CLOSE_SECONDS: Final = 5.0
"""Seconds to give messages back when a process ends."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a broker's connections, and for the topics it creates."""

    namesrv: tuple[str, ...]
    namespace: str
    levels: int
    visibility: float
    send_timeout: float
    create_topics: bool
    remoting: RemotingSettings | None


class _Delayed:
    """Delayed messages that this process has sent, by their time; belongs to one event loop."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str, str, str]] = []

    def add(self, due: float, topic: str, message_id: str, handle: str) -> None:
        """Remember a message that is due at `due`, a time of the event loop; forget old ones."""
        heapq.heappush(self._heap, (due, topic, message_id, handle))
        now = anyio.current_time()
        while self._heap and (self._heap[0][0] < now - DELAYED_SECONDS or len(self._heap) > DELAYED_MAX):
            heapq.heappop(self._heap)

    def of(self, topic: str) -> list[tuple[float, str, str, str]]:
        """List the delayed messages of a topic."""
        return [each for each in self._heap if each[1] == topic]

    def forget(self, gone: list[tuple[float, str, str, str]]) -> None:
        """Forget messages that were delivered or recalled."""
        self._heap = [each for each in self._heap if each not in gone]
        heapq.heapify(self._heap)


class Session:
    """The session of one process; a forked one needs another. Raises ClientError if it cannot be opened."""

    def __init__(self, options: Options) -> None:
        _refuse_gevent()
        self.options = options
        self._forks = forks()
        self._known: set[str] = set()
        self._running: list[Future[None]] = []
        self._delayed = _Delayed()
        self._thread = LoopThread("raftmq.dramatiq")
        try:
            self._thread.call(self._open)
            self.start(self.renewals.run)
        except BaseException:
            self._thread.stop("opening")
            raise

    async def _open(self) -> None:
        # Here, and not in the thread of the caller, which may have an event loop of its own.
        options = self.options
        self.calls = QueueCalls(options.namesrv, remoting=options.remoting)
        self._sending = Sending(options.namesrv, timeout=options.send_timeout, remoting=options.remoting)
        self.renewals = Renewals(options.visibility, lambda message: self.calls.extend(message, options.visibility))
        await self.calls.open()
        try:
            await self._sending.open()
        except BaseException:
            await self.calls.aclose()  # noqa: ASYNC102 - shields itself
            raise

    @property
    def is_parents(self) -> bool:
        """Whether it was opened by the process from which this one was forked."""
        return self._forks != forks()

    def close(self) -> None:
        """Give back unacknowledged messages, and end the thread."""
        for each in self._running:
            each.cancel()
        with contextlib.suppress(ClientError):
            self._thread.call(self._close)
        self._thread.stop("requests in flight")

    async def _close(self) -> None:
        with anyio.move_on_after(CLOSE_SECONDS):
            await self.give_back(self.renewals.close())
        await self._sending.aclose()
        await self.calls.aclose()

    def call(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a coroutine function in the event loop, and wait for it. Raises ClientClosed."""
        if self.is_parents:
            raise ClientClosed("this process was forked from the one that has opened the connection")
        return self._thread.call(functools.partial(function, *args, **kwargs))

    def start(self, function: Callable[[], Awaitable[None]]) -> None:
        """Start a coroutine function in the event loop, which ends with the session."""
        self._running = [each for each in self._running if not each.done()]
        self._running.append(self._thread.portal.start_task_soon(function))

    # In the event loop.

    def topic(self, queue: str) -> str:
        """The topic of a queue, and the name of the group of its workers."""
        return queue_topic(self.options.namespace, queue)

    async def sources(self, queue: str) -> dict[Source, int]:
        """The broker groups of a queue, with the number of its levels there; creates the topic if it may. Raises
        TopicNotFound, ClientError.
        """
        topic = self.topic(queue)
        sources: dict[Source, int] = {}
        with contextlib.suppress(TopicNotFound):
            sources = await self.calls.sources(topic)
        if self.options.create_topics and (not sources or min(sources.values()) < self.options.levels):
            try:
                await self.calls.create_topic(topic, self.options.levels)
            except BrokerError as error:
                error.add_note(f"create the topic {topic} yourself, and use RaftmqBroker(create_topics=False)")
                raise
            sources = await self.calls.sources(topic)
        if not sources:
            raise TopicNotFound(topic)
        self._known.add(topic)
        return sources

    async def send(self, queue: str, body: bytes, *, key: str | None, priority: int, delay: float | None) -> None:
        """Returns when a majority has stored the message, once. Raises ClientError."""
        topic = self.topic(queue)
        if topic not in self._known:
            await self.sources(queue)
        keys = () if key is None else (key,)
        send = functools.partial(self._sending.send, topic, body, priority=priority, keys=keys, delay=delay)
        try:
            result = await send()
        except TopicNotFound:
            self._known.discard(topic)  # another client has deleted it
            await self.sources(queue)
            result = await send()
        if delay is not None and result.recall_handle is not None:
            self._delayed.add(anyio.current_time() + delay, topic, result.message_id, result.recall_handle)

    async def acknowledge(self, message: PoppedMessage[Any]) -> None:
        """Finish the message. Raises ClientError if no broker confirms that while the message is hidden from others."""
        await self.renewals.release(message)
        seconds = max(CALL_SECONDS, self.options.visibility)
        await self.calls.acknowledge(Source.from_message(message), [message.receipt], seconds=seconds)

    async def bury(self, message: PoppedMessage[Any], reason: str) -> None:
        """Make a dead letter of it. Raises ClientError; then the message is still held."""
        await self.calls.bury(Source.from_message(message), message, reason)
        await self.acknowledge(message)

    async def give_back(self, messages: Sequence[PoppedMessage[Any]]) -> None:
        """Let others have these messages, at once. Those that no broker gives back come when their time is over."""

        async def change(message: PoppedMessage[Any]) -> None:
            await self.renewals.release(message)
            try:
                await self.calls.change(Source.from_message(message), message.receipt, 0.0)
            except ClientError as error:
                log.warning(
                    "a message of %s comes again within %s s: %s", message.topic, self.options.visibility, error
                )

        async with anyio.create_task_group() as tasks:
            for message in messages:
                tasks.start_soon(change, message)

    async def flush(self, queue: str) -> None:
        """Skip all messages that wait, and recall those that wait for their time and were sent here."""
        topic = self.topic(queue)
        delayed = self._delayed.of(topic)
        for _, _, _, handle in delayed:
            with contextlib.suppress(NotRecalled):
                await self._sending.recall(handle)
        self._delayed.forget(delayed)
        with contextlib.suppress(TopicNotFound):
            await self.calls.purge(topic)

    async def join(self, queue: str, interval: float, timeout: float | None) -> bool:
        """Wait until all messages are acknowledged; False if they are not within `timeout` seconds."""
        with anyio.move_on_after(timeout):
            while await self._unfinished(queue):  # noqa: ASYNC110 - no broker tells when it is done
                await anyio.sleep(interval)
            return True
        return False

    async def _unfinished(self, queue: str) -> int:
        """The number of unacknowledged messages, with the delayed ones that were sent here."""
        topic = self.topic(queue)
        delivered, waiting = [], 0
        for each in self._delayed.of(topic):
            # Two matters of an order: first whether it is delivered, then how many are in the queue.
            if await self.calls.messages_by_key(topic, each[2], unique=True):
                delivered.append(each)
            else:
                waiting += 1
        self._delayed.forget(delivered)
        with contextlib.suppress(TopicNotFound):
            return waiting + await self.calls.pending_count(topic)
        return waiting


def _refuse_gevent() -> None:
    """Raises RuntimeError where threads are greenlets: an event loop in one of them would stop all others."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        raise RuntimeError("raftmq does not run under gevent, which replaces threads: start workers by `dramatiq`")
