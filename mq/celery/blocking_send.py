"""The fast path of publishing: the publishing thread itself sends the message and waits for the answer.

Usually nothing is in the way: the topic, its leader and a connection are known. Then handing the message to the event
loop and its outcome back would take longer than the send. Whatever else happens (no leader, a lost connection, a
failure or a late answer), the message is sent again the long way, by `Session`. It keeps its number, so it is stored
once even if this attempt has stored it.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from mq.client.message import Message, MessageQueue
from mq.client.net.client_core import RemotingSettings
from mq.client.net.connection import split_address
from mq.client.net.forks import guard_socket, release_socket
from mq.client.net.identity import new_random, new_unique_keys
from mq.client.net.in_process import in_process_networks
from mq.client.net.routes import TopicRoute
from mq.client.produce.outgoing_message import make_ready
from mq.client.produce.producer import Producer
from mq.client.produce.send_pipeline import send_fields
from mq.client.send_outcome import judge_send
from mq.protocol.codes import RequestCode
from mq.protocol.errors import FrameError, HeaderError
from mq.protocol.frames import split_frames
from mq.protocol.incoming.client_decoding import decode_from_broker
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.forwarding import FORWARDED_TO
from mq.protocol.send_fields import SEND_FIELDS
from mq.protocol.wire.encoding import encode_request

SHORT_SECONDS_MAX: Final = 3.0
"""Then the message is sent by `Session`: at the latest after half of the time that it may take."""
IDLE_MAX: Final = 8
"""Connections kept for threads that send later."""
_COMPRESS_BYTES_MIN: Final = 4096
_RECEIVE_BYTES: Final = 4096


class TaskProducer(Producer[bytes]):
    """The producer of a session, which other threads can ask for routes."""

    def known_route(self, topic: str) -> TopicRoute | None:
        """Return the cached route of a topic; None without one. Any thread may call this."""
        core = self._core
        return None if core is None else core.known_route(topic)

    async def refresh_route(self, topic: str) -> None:
        """Ask a name server for the current leaders of a topic. Raises ClientError."""
        if (core := self._core) is not None:
            await core.route(topic, refresh=True)


class _PooledConnection:
    """A connection that one thread at a time uses."""

    __slots__ = ("__weakref__", "address", "opaque", "socket")

    def __init__(self, address: str, tls: ssl.SSLContext | None, seconds: float) -> None:
        host, port = split_address(address)
        self.address = address
        self.opaque = 0
        if (network := in_process_networks.get(host)) is not None:
            self.socket = network.connect(port)
        else:
            self.socket = socket.create_connection((host, port), seconds)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        guard_socket(self)

    def fileno(self) -> int:
        """Return the file descriptor of the socket."""
        return self.socket.fileno()

    @property
    def is_silent(self) -> bool:
        """Whether nothing arrived since the last answer: no end of the connection, and no unexpected frame."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return not poll.poll(0)

    def ask(self, frame: bytes, deadline: float) -> Response:
        """Send a request and wait for its answer until `deadline`. Raises OSError, FrameError, HeaderError."""
        self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
        self.socket.sendall(frame)
        buffer = b""
        while True:
            chunk = self.socket.recv(_RECEIVE_BYTES)
            if not chunk:
                raise ConnectionResetError(f"closed by {self.address}")
            buffer += chunk
            frames, consumed_bytes = split_frames(memoryview(buffer))
            for serialization, header, _ in frames:
                response = decode_from_broker(serialization, header)
                if isinstance(response, Response) and response.opaque == self.opaque:
                    return response
            buffer = buffer[consumed_bytes:]
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))

    def close(self) -> None:
        release_socket(self)
        self.socket.close()


class BlockingSends:
    """Sends the messages of a session from any thread. Calls `on_forwarded` if a topic has another leader than its
    route says.
    """

    def __init__(
        self,
        producer: TaskProducer,
        remoting: RemotingSettings,
        *,
        publish_seconds: float,
        on_forwarded: Callable[[str], None],
    ) -> None:
        self.seconds = min(SHORT_SECONDS_MAX, publish_seconds / 2)
        """A send takes so long at most."""
        self._on_forwarded = on_forwarded
        self._producer = producer
        self._settings = remoting
        self._unique_keys = new_unique_keys(new_random(None, os.getpid()))
        self._lock = threading.Lock()
        self._idle: deque[_PooledConnection] = deque()
        self._is_closed = False

    def send(
        self, message: Message, turn: int, priority: int
    ) -> tuple[Literal["yes", "no", "unknown"], MessageQueue | None]:
        """Send a message. Returns whether a majority has stored it, and the queue that it was sent to; None: to none.

        It is sent to the broker group whose `turn` it is, and there to the queue of its `priority`. Raises
        MessageRefused.
        """
        place = self._choose_queue(message.topic, turn, priority)
        if place is None:
            return "no", None
        queue, address = place
        with self._lock:
            unique_key = self._unique_keys.next()
        outgoing = make_ready(
            message,
            unique_key=unique_key,
            born_timestamp_ms=time.time_ns() // 1_000_000,
            compress="zlib",
            compress_bytes_min=_COMPRESS_BYTES_MIN,
        )
        code, fields = RequestCode.SEND_MESSAGE_V2, send_fields(self._producer.group, outgoing, queue)
        fields[SEND_FIELDS["default_topic"]] = (
            message.topic
        )  # no template: if another program has deleted the topic, it is declared again, as it was
        if self._settings.credentials is not None:
            fields = self._settings.credentials.sign(code, fields, outgoing.body)
        deadline = time.monotonic() + self.seconds
        try:
            line = self._line_to(address)
        except OSError:  # TimeoutError and errors of TLS are OSErrors
            return "no", queue
        try:
            line.opaque += 1
            response = line.ask(encode_request(code, line.opaque, ext=fields, body=outgoing.body), deadline)
        except (OSError, FrameError, HeaderError):
            line.close()
            return "unknown", queue
        except BaseException:  # of a signal: its answer may still come
            line.close()
            raise
        outcome = judge_send(response.code, response.remark).stored
        if outcome != "yes":
            line.close()
            return outcome, queue
        self._put_back(line)
        if FORWARDED_TO in response.ext:
            self._on_forwarded(message.topic)
        return "yes", queue

    def close(self) -> None:
        """Close the idle connections. One that is in use is closed after its send."""
        self._is_closed = True
        while self._idle:
            self._idle.popleft().close()

    def _choose_queue(self, topic: str, turn: int, priority: int) -> tuple[MessageQueue, str] | None:
        route = self._producer.known_route(topic)
        if route is None:
            return None
        names = sorted({each.broker_name for each in route.write_queues})
        if not names:
            return None
        name = names[turn % len(names)]
        level = min(priority, max(each.queue_id for each in route.write_queues if each.broker_name == name))
        address = route.leader_address(name)
        return None if address is None else (MessageQueue(topic, name, level), address)

    def _line_to(self, address: str) -> _PooledConnection:
        """Take an idle connection to `address`, or open one. Raises OSError."""
        for _ in range(len(self._idle)):
            try:
                line = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if line.address == address and line.is_silent:
                return line
            line.close()
        return _PooledConnection(address, self._settings.tls, self.seconds / 2)

    def _put_back(self, line: _PooledConnection) -> None:
        if self._is_closed or len(self._idle) >= IDLE_MAX:
            line.close()
        else:
            self._idle.append(line)
