"""The broker that Dramatiq calls, in threads of the application."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from dramatiq import Broker, Consumer, Message, MessageProxy, Middleware, errors
from dramatiq.common import q_name

from mq.client import ClientError, MessageRefused, RemotingSettings
from mq.client.net.client_core import parse_addresses
from mq.client.net.forks import forks
from raftmq.dramatiq.consumer import HeldMessage, RaftmqConsumer, closed
from raftmq.dramatiq.session import Options, Session

__all__ = ["RaftmqBroker"]

DELAY_MAX_MS: Final = 40 * 86_400_000
PRIORITY_MAX: Final = 31
KEY_LENGTH_MAX: Final = 255

_not_found: Callable[[str], errors.QueueNotFound] = errors.QueueNotFound
_join_timeout: Callable[[str], errors.QueueJoinTimeout] = errors.QueueJoinTimeout


class RaftmqBroker(Broker):
    """Sends the messages of actors to topics of raftmq or RocketMQ, and gets them from there.

    Workers of all processes with the same `namespace` share the messages of a queue. A message that a worker has
    belongs to it for as long as its actor runs; it comes to another one `visibility` seconds after its worker was
    killed, and at once if that was shut down. One that was delivered `max_deliveries` times, and not acknowledged,
    becomes a dead letter.

    With `max_priority`, messages may have an option `broker_priority` from 0 to `max_priority`, and those with a higher
    one are delivered first. Connects at the first message that is sent or consumed, in each process anew.

    Topics that do not exist are created, unless `create_topics` is false. `send_timeout` is for one message, in
    seconds, over all its attempts. Raises ValueError for arguments that cannot be used.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        middleware: list[Middleware] | None = None,
        namespace: str = "dramatiq",
        max_priority: int | None = None,
        visibility: float = 60.0,
        max_deliveries: int = 64,
        send_timeout: float = 30.0,
        create_topics: bool = True,
        remoting: RemotingSettings | None = None,
    ) -> None:
        super().__init__(middleware=middleware)
        if max_priority is not None and not 1 <= max_priority <= PRIORITY_MAX:
            raise ValueError(f"max_priority is {max_priority}; allowed: 1 to {PRIORITY_MAX}, or None")
        if not namespace or visibility < 1 or max_deliveries < 1 or send_timeout <= 0:
            raise ValueError(
                f"namespace {namespace!r} must not be empty, visibility {visibility} and max_deliveries "
                f"{max_deliveries} be at least 1, send_timeout {send_timeout} above 0"
            )
        self.queues: set[str] = set()
        self._max_deliveries = max_deliveries
        self._options = Options(
            namesrv=tuple(parse_addresses(namesrv)),
            namespace=namespace,
            levels=1 + (max_priority or 0),
            visibility=visibility,
            send_timeout=send_timeout,
            create_topics=create_topics,
            remoting=remoting,
        )
        self._forks = forks()
        self._lock = threading.Lock()
        self._session: Session | None = None

    def close(self) -> None:
        """Disconnect: messages that are not acknowledged are given back. Sending something connects again."""
        self._forget_parents()
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; its topic is created when the first message is sent or consumed."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        """The names of the queues that were declared."""
        return set(self.queues)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Returns when the message is on disk on a majority of the brokers, once. They hold it for `delay` ms.

        Raises ValueError for a delay or a priority that cannot be, MessageRefused for a message that is too large, and
        ConnectionClosed if no broker has answered for `send_timeout`; its cause says whether the message may be
        delivered all the same.
        """
        queue_name = q_name(message.queue_name)
        self._check_delay(delay)
        priority = self._priority(message)
        sent = message.copy(queue_name=queue_name)
        self.declare_queue(queue_name)
        self.emit_before("enqueue", sent, delay)
        key = sent.message_id
        try:
            session = self._connected()
            session.call(
                session.send,
                queue_name,
                sent.encode(),
                key=key if len(key) <= KEY_LENGTH_MAX and key.isprintable() and " " not in key else None,
                priority=priority,
                delay=delay / 1000 if delay else None,
            )
        except ClientError as error:
            if isinstance(message, HeldMessage):
                message.is_unsent = True  # Dramatiq would acknowledge it, although it will not be retried
            if isinstance(error, MessageRefused):
                raise
            raise closed(error) from error
        self.emit_after("enqueue", sent, delay)
        return sent

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> Consumer:
        """Open a consumer that has at most `prefetch` unacknowledged messages; `timeout` in ms.

        Raises QueueNotFound if the queue was never declared, and ConnectionClosed.
        """
        if queue_name not in self.queues:
            raise _not_found(queue_name)
        try:
            return RaftmqConsumer(self._connected(), queue_name, prefetch, timeout, self._max_deliveries)
        except ClientError as error:
            raise closed(error) from error

    def flush(self, queue_name: str) -> None:
        """Drop the messages that wait in a queue. Of those that wait for their time, only those that this process has
        sent are dropped.
        """
        try:
            session = self._connected()
            session.call(session.flush, queue_name)
        except ClientError as error:
            raise closed(error) from error

    def flush_all(self) -> None:
        """Drop the messages of all declared queues."""
        for queue_name in self.get_declared_queues():
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until all messages of a queue are acknowledged, with the delayed ones that this process has sent.

        For tests; asks the brokers each `interval` ms. Raises QueueNotFound, and QueueJoinTimeout after `timeout` ms.
        """
        if queue_name not in self.queues:
            raise _not_found(queue_name)
        try:
            session = self._connected()
            seconds = None if timeout is None else timeout / 1000
            is_done = session.call(session.join, queue_name, interval / 1000, seconds)
        except ClientError as error:
            raise closed(error) from error
        if not is_done:
            raise _join_timeout(queue_name)

    def _connected(self) -> Session:
        self._forget_parents()
        with self._lock:
            if self._session is None:
                self._session = Session(self._options)
            return self._session

    def _forget_parents(self) -> None:
        """Drop lock and session in a forked process: a thread of the parent may hold the lock."""
        if self._forks != forks():
            self._forks, self._lock, self._session = forks(), threading.Lock(), None

    def _check_delay(self, delay: int | None) -> None:
        if delay is not None and not 0 <= delay <= DELAY_MAX_MS:
            raise ValueError(f"the delay is {delay} ms; allowed: 0 to {DELAY_MAX_MS}, which are 40 days")

    def _priority(self, message: Message[Any] | MessageProxy) -> int:
        given = message.options.get("broker_priority")
        if given is None:
            return 0
        if isinstance(given, int) and 0 <= given < self._options.levels:
            return given
        raise ValueError(
            f"the broker_priority of {message.actor_name} is {given!r}, this broker has 0 to "
            f"{self._options.levels - 1}: RaftmqBroker(max_priority=...) sets that"
        )
