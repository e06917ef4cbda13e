"""The kombu transport for Celery: `import raftmq.celery`, and `Celery(broker="raftmq://127.0.0.1:9876")`."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections import deque
from typing import Any, Final

from amqp.exceptions import ChannelError as AmqpChannelError
from kombu.exceptions import ChannelError
from kombu.transport import virtual

import mq.client.errors as errors
from mq.celery import channel
from mq.celery.address import DEFAULT_PORT, address_of
from mq.celery.deliveries import Delivery
from mq.celery.session import Session

SLICE_SECONDS: Final = 1.0
"""A wait without end looks for ctrl-C and failures so often."""
AT_ONCE_MAX: Final = 100
"""Messages that one turn of the application's loop delivers."""


class Transport(virtual.Transport):
    """The kombu transport: connects to raftmq."""

    Channel = channel.Channel
    default_port = DEFAULT_PORT
    driver_type = "raftmq"
    driver_name = "raftmq"
    uses_tls = False
    connection_errors = (
        errors.NameServersUnavailable,
        errors.ConnectFailed,
        errors.ConnectionLost,
        errors.RequestTimeout,
        errors.UnreadableAnswer,
        errors.NoRoute,
        errors.SendOutcomeUnknown,
        errors.ProducerBusy,
        errors.ClientClosed,
        ConnectionError,
    )
    channel_errors = (
        ChannelError,
        AmqpChannelError,
        errors.BrokerError,
        errors.SendRejected,
        errors.MessageRefused,
        errors.TopicNotFound,
    )
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        check_threads()
        super().__init__(client, **kwargs)
        self._session: Session | None = None
        self._ready: deque[tuple[channel.Channel, Delivery]] = deque()
        self._failure: BaseException | None = None
        self._arrival_event = threading.Event()
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._loop: Any = None

    def driver_version(self) -> str:
        """Return the version of this distribution."""
        from importlib.metadata import version

        return version("raftmq")

    # Connections.

    @property
    def session(self) -> Session:
        """The session that all connections of this process share. A forked process opens its own."""
        if self._session is None or self._session.is_parents:
            self._session = Session.acquire(address_of(self.client, tls=self.uses_tls))
        return self._session

    def establish_connection(self) -> Transport:
        """Connect to the brokers. Raises ClientError if no name server, or no broker, answers."""
        self._failure = None
        if self._session is not None and not self._session.is_alive:
            self._session = None
        session = self.session
        assert session.is_alive, "a session that has just ended"
        return self

    def verify_connection(self, connection: Any) -> bool:
        """Return whether the connection can be used."""
        return self._failure is None and self._session is not None and self._session.is_alive

    def close_connection(self, connection: Any) -> None:
        """Close all channels, except the parent's channels in a forked process."""
        self.unregister_from_event_loop(connection, self._loop)
        super().close_connection(connection)
        self._ready.clear()
        session, self._session = self._session, None
        if session is not None:
            session.release()

    # Deliveries.

    def on_deliveries(self, to: channel.Channel, deliveries: list[Delivery]) -> None:
        """Queue deliveries for the application's thread. Called in the event loop of the session.

        All at once: the application may hand over the first one and cancel its consumer before the next one is there.
        """
        self._ready.extend([(to, delivery) for delivery in deliveries])
        self._ring()

    def on_failure(self, error: BaseException) -> None:
        """Record the error that ended the deliveries of a channel. Called in the event loop of the session."""
        self._failure = _first_error(error)
        self._ring()

    def forget(self, closed_channel: channel.Channel) -> None:
        """Drop the queued deliveries of a closed channel, which returns them to their queues itself."""
        for _ in range(len(self._ready)):
            if (each := self._ready.popleft())[0] is not closed_channel:
                self._ready.append(each)

    def _ring(self) -> None:
        self._arrival_event.set()
        if (bell := self._bell) is not None:
            with contextlib.suppress(OSError):  # full: it rings already
                bell[1].send(b"\0")

    def _deliver_ready(self) -> int:
        """Pass the arrived messages to the application. Raises the error that ended the deliveries."""
        self._arrival_event.clear()
        count = 0
        channels = set()
        while self._ready and count < AT_ONCE_MAX:
            to, delivery = self._ready.popleft()
            channels.add(to)
            count += 1
            to.hand_over(delivery)
        for each in channels:
            each.on_take()
        if self._ready:
            self._ring()
        if count == 0 and self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return count

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Wait for messages, and pass them to the application. Raises TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._deliver_ready():
            remaining_seconds = SLICE_SECONDS if deadline is None else deadline - time.monotonic()
            if remaining_seconds <= 0:
                raise TimeoutError
            self._arrival_event.wait(min(remaining_seconds, SLICE_SECONDS))

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let Celery's event loop call the transport when messages arrive."""
        if self._bell is None:
            self._bell = socket.socketpair()
            for each in self._bell:
                each.setblocking(False)
        self._loop = loop
        loop.add_reader(self._bell[0].fileno(), self._on_bell)
        self._ring()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Undo `register_with_event_loop`."""
        bell, self._bell, self._loop = self._bell, None, None
        if bell is None:
            return
        if loop is not None:
            loop.remove_reader(bell[0].fileno())
        for each in bell:
            each.close()

    def _on_bell(self) -> None:
        if self._bell is not None:
            with contextlib.suppress(OSError):
                self._bell[0].recv(4096)
        self._deliver_ready()

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """The connection parameters that a URL may leave out."""
        return {"port": self.default_port, "hostname": "localhost"}


class TLSTransport(Transport):
    """The kombu transport over TLS."""

    uses_tls = True


def check_threads() -> None:
    """Raise RuntimeError if eventlet or gevent has replaced threads."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if (gevent is not None and gevent.is_module_patched("threading")) or (
        eventlet is not None and eventlet.is_monkey_patched("thread")
    ):
        raise RuntimeError(
            "raftmq needs real threads, which gevent and eventlet replace: use --pool threads or --pool prefork"
        )


def _first_error(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
