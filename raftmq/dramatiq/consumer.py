"""The messages of one queue for one worker.

A task in the event loop pops the messages for which the worker's prefetch leaves room, those with the highest priority
first, and puts them into a queue between threads. While there are none, it lets the brokers say when there are.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterable
from typing import Any, Final

import anyio
from dramatiq import Consumer, DecodeError, Message, MessageProxy, errors

from mq.client import ClientError, PoppedMessage, TopicNotFound
from mq.tasks.queue_calls import POP_MAX, Source, is_transient
from raftmq.dramatiq.session import Session

__all__ = ["HeldMessage", "RaftmqConsumer", "closed"]

log = logging.getLogger("raftmq.dramatiq")

WAIT_SECONDS: Final = 15.0
"""Seconds for which a broker may hold the question whether there are messages."""
RETRY_SECONDS: Final = 0.2
EMPTY_SECONDS_MAX: Final = 0.5
"""The longest pause if a broker says that there are messages, but others get them all."""
REASON_LENGTH_MAX: Final = 400

closed: Callable[[ClientError], errors.ConnectionClosed] = errors.ConnectionClosed
"""The error that Dramatiq expects if brokers do not answer. The constructors of its errors have no types."""


class HeldMessage(MessageProxy):
    """A message that is hidden from other workers until it is settled."""

    def __init__(self, message: Message[Any], popped: PoppedMessage[Any]) -> None:
        super().__init__(message)
        self.popped = popped
        self.is_unsent = False
        """Whether its retry could not be sent: then it is given back instead of acknowledged."""


class _Prefetcher:
    """Pops for one consumer, in the event loop of the session; only `ready` is for the worker's thread."""

    def __init__(self, session: Session, queue_name: str, prefetch: int) -> None:
        self._session = session
        self._queue = queue_name
        self._prefetch = max(1, prefetch)
        self.ready: queue.SimpleQueue[PoppedMessage[Any] | ClientError] = queue.SimpleQueue()
        self._open: set[str] = set()
        """Message ids that were popped and are not settled."""
        self._changed = anyio.Event()
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._turn = 0

    async def run(self) -> None:
        """Pop until `close`; puts what ends it into `ready`."""
        try:
            with self._scope:
                await self._pop_all()
        except ClientError as error:
            self.ready.put(error)
        finally:
            self._ended.set()

    async def close(self) -> None:
        """Take no more messages, and give back those that the worker's thread has not taken."""
        self._scope.cancel()
        await self._ended.wait()
        left = []
        while not self.ready.empty():
            if isinstance(item := self.ready.get_nowait(), PoppedMessage):
                left.append(item)
        await self._session.give_back(left)

    def settled(self, message: PoppedMessage[Any]) -> None:
        """Make room for another message in place of a settled one."""
        self._open.discard(_name(message))
        self._changed.set()

    async def _pop_all(self) -> None:
        sources = await self._session.sources(self._queue)
        pause = 0.0
        while True:
            self._changed = anyio.Event()
            if (room := self._prefetch - len(self._open)) <= 0:
                await self._changed.wait()
                continue
            try:
                if await self._pop(sources, min(room, POP_MAX)):
                    pause = 0.0
                    continue
                await anyio.sleep(pause)
                came = await self._wait(sources)
                pause = min(max(2 * pause, 0.002), EMPTY_SECONDS_MAX) if came else 0.0
                if not came:
                    sources = await self._session.sources(self._queue)  # there may be more broker groups now
            except TopicNotFound as error:
                log.warning("the topic of the queue %s does not exist: %s", self._queue, error)
                await anyio.sleep(RETRY_SECONDS)
                sources = await self._session.sources(self._queue)
            except ClientError as error:
                if not is_transient(error):
                    raise
                log.info("no messages of %s for now: %s", self._queue, error)
                await anyio.sleep(RETRY_SECONDS)
                await self._look_for_leader()

    async def _pop(self, sources: dict[Source, int], count: int) -> int:
        """Messages of the highest level that has some; how many. Raises ClientError if there is nothing else."""
        self._turn += 1
        names = list(sources)
        names = names[self._turn % len(names) :] + names[: self._turn % len(names)]
        failure: ClientError | None = None
        for level in range(max(sources.values()) - 1, -1, -1):
            for source in names:
                if level >= sources[source]:
                    continue
                with anyio.CancelScope(shield=True):  # or the messages of a cancelled pop would be hidden for nothing
                    try:
                        messages = await self._session.calls.pop(source, level, count, self._session.options.visibility)
                    except ClientError as error:
                        failure = error
                        continue
                    self._session.renewals.hold(messages)
                    for message in messages:
                        self._open.add(_name(message))
                        self.ready.put(message)
                if messages:
                    return len(messages)
        if failure is not None:
            raise failure
        return 0

    async def _wait(self, sources: dict[Source, int]) -> bool:
        """Wait until a broker says that there are messages; False if none does for a while. Raises ClientError."""
        asked_at = anyio.current_time()
        answers: list[bool] = []
        failures: list[ClientError] = []
        async with anyio.create_task_group() as tasks:

            async def ask(source: Source) -> None:
                try:
                    came = await self._session.calls.wait(source, WAIT_SECONDS)
                except ClientError as error:
                    failures.append(error)
                    await anyio.sleep(RETRY_SECONDS)
                    came = True
                answers.append(came)
                if came:
                    tasks.cancel_scope.cancel()

            for source in sources:
                tasks.start_soon(ask, source)
        if failures:
            raise failures[0]
        if not any(answers) and anyio.current_time() < asked_at + RETRY_SECONDS:
            await anyio.sleep(RETRY_SECONDS)  # not held: the broker is busy, or its clock differs
        return any(answers)

    async def _look_for_leader(self) -> None:
        try:
            await self._session.calls.refresh(self._session.topic(self._queue))
        except ClientError as error:
            log.info("no route of %s for now: %s", self._queue, error)


class RaftmqConsumer(Consumer):
    """The messages of a queue, for a worker to iterate over. Any thread may settle them, also after `close`."""

    def __init__(self, session: Session, queue_name: str, prefetch: int, timeout_ms: int, max_deliveries: int) -> None:
        self._session = session
        self._queue = queue_name
        self._timeout = timeout_ms / 1000
        self._max_deliveries = max_deliveries

        async def prefetcher() -> _Prefetcher:
            return _Prefetcher(session, queue_name, prefetch)

        self._prefetcher = session.call(prefetcher)
        session.start(self._prefetcher.run)

    def __next__(self) -> MessageProxy | None:
        """The next message, None after `timeout` without one. Raises ConnectionClosed if it may not consume."""
        try:
            item = self._prefetcher.ready.get(timeout=self._timeout)
        except queue.Empty:
            return None
        if isinstance(item, ClientError):
            raise closed(item) from item
        if item.reconsume_times >= self._max_deliveries:
            self._refuse(item, f"delivered {item.reconsume_times} times, and never acknowledged")
            return None
        try:
            return HeldMessage(Message.decode(bytes(item.body)), item)
        except DecodeError as error:
            self._refuse(item, f"not a message that Dramatiq can decode: {error.error!r}")
            return None

    def ack(self, message: MessageProxy) -> None:
        """Acknowledge a message of this broker, and wait until that is stored. Raises ConnectionClosed."""
        if not isinstance(message, HeldMessage):
            return
        if message.is_unsent:
            log.warning("%s is delivered again: its retry could not be sent", message)
            self.requeue([message])
            return
        self._settle(self._session.acknowledge, message.popped)

    def nack(self, message: MessageProxy) -> None:
        """Store the message as a dead letter, then return. Raises ConnectionClosed; then the message is still held."""
        if not isinstance(message, HeldMessage):
            return
        failure = message._exception
        reason = f"{type(failure).__name__}: {failure}" if failure is not None else "rejected"
        self._settle(self._session.bury, message.popped, reason[:REASON_LENGTH_MAX])

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Let other workers have these messages, at once."""
        held = [each.popped for each in messages if isinstance(each, HeldMessage)]

        async def give_back() -> None:
            await self._session.give_back(held)
            for each in held:
                self._prefetcher.settled(each)

        if held:
            self._call(give_back)

    def close(self) -> None:
        """Stop taking messages; the worker keeps the messages that it has."""
        self._call(self._prefetcher.close)

    def _refuse(self, popped: PoppedMessage[Any], reason: str) -> None:
        log.error("a message of %s (%s) becomes a dead letter: %s", self._queue, popped.message_id, reason)
        self._settle(self._session.bury, popped, reason[:REASON_LENGTH_MAX])

    def _settle(self, function: Any, popped: PoppedMessage[Any], *args: str) -> None:
        async def settle() -> None:
            await function(popped, *args)
            self._prefetcher.settled(popped)

        self._call(settle)

    def _call(self, function: Any) -> None:
        try:
            self._session.call(function)
        except ClientError as error:
            raise closed(error) from error


def _name(message: PoppedMessage[Any]) -> str:
    """The name of one delivery."""
    return f"{message.queue.broker_name} {message.offset_message_id}"
