"""A broker's receiving side on real sockets, in all forms of the send path, driven turn by turn.

Everything between the socket and the log is the broker's own code: reactor, stream, connection, send handler, appender.
The log is a model, whose time stands still, so all forms and all ways to cut a stream can be compared byte for byte.
"""

from __future__ import annotations

import fcntl
import itertools
import socket
import struct
import termios
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import structlog

from mq.broker.net.call import Call
from mq.broker.net.client_requests import ClientRequests
from mq.broker.net.connection import ClientConnection
from mq.broker.net.flow_control import UnreadReplies
from mq.broker.net.refusals import RequestRefused
from mq.protocol.errors import HeaderError
from mq.protocol.incoming.partial_requests import PartialRequests
from mq.protocol.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from mq.protocol.wire.encoding import encode_response
from raftlog import Reactor
from tests.support.model_log import HOST
from tests.support.send_paths import Broker

WAIT_SECONDS_MAX = 20.0
PIECE_BYTES = 1 << 20
WRITE_BYTES_MAX = 80 * 1024
"""More than a receive, and less than a socket holds."""


class _Requests:
    """Serves sends with the send handler, and answers everything else with its name."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.sends = broker.sends

    def serve(self, connection: Any, incoming: Iterable[tuple[Any, bytes, int]]) -> None:
        for request, body, serialization in incoming:
            try:
                if isinstance(request, HeaderError):
                    raise HeaderError(request.code, request.opaque, request.remark)
                call = Call(connection, request, body, serialization)
                if isinstance(request, SendBatchMessage):
                    self._broker.sends.handle_batch(call)
                elif isinstance(request, SendMessage | SendMessageV2):
                    self._broker.sends.handle(call)
                else:
                    reply = encode_response(request.opaque, 0, remark=type(request).__name__, body=body)
                    connection.answer(request, reply)
            except (RequestRefused, HeaderError) as error:
                connection.refuse(request, serialization, error)


class ServedBroker:
    """A broker and its clients. ``commits_each_turn``: otherwise nothing is committed before `commit`, so that the
    entries are the same however the stream was cut.
    """

    def __init__(self, *, form: str, commits_each_turn: bool = False, **given: Any) -> None:
        self.broker = Broker(form=form, **given)
        # Time stands still, so that no client ever uses up its share of a turn.
        self.reactor = Reactor(clock=lambda: 0.0, cpu_clock=lambda: 0.0)
        self.reactor.serve_together(self.broker.sends.receive)
        if commits_each_turn:
            self.reactor.at_turn_end(self._commit_turn)
        self.connections: list[ClientConnection] = []
        self.clients: list[socket.socket] = []
        self._ends: list[socket.socket] = []
        self._requests = _Requests(self.broker)
        self.unsent = self.reactor.unsent

    def connect(self, **buffers: int) -> int:
        """A new client; returns its number."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            for name, size in buffers.items():
                server.setsockopt(socket.SOL_SOCKET, getattr(socket, name), size)
            client = socket.socket()
            for name, size in buffers.items():
                client.setsockopt(socket.SOL_SOCKET, getattr(socket, name), size)
            client.connect(server.getsockname())
            ours, _ = server.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setblocking(False)
        partial_requests: PartialRequests[ClientConnection] = PartialRequests(
            bytes_max=1 << 26, seconds_max=60.0, on_closed=lambda connection, reason: None
        )
        unread: UnreadReplies[ClientConnection] = UnreadReplies(
            bytes_max=1 << 26,
            unsent=lambda: self.unsent.nbytes,
            connections=lambda: self.connections,
            on_dropped=lambda connection: None,
        )
        connection = ClientConnection(
            reactor=self.reactor,
            sock=ours,
            requests=self._requests,
            questions=ClientRequests(lambda: 0.0),
            on_closed=lambda connection: None,
            partial_requests=partial_requests,
            unread=unread,
            unsent=self.unsent,
            output_bytes_max=1 << 26,
            log=structlog.get_logger(),
        )
        connection.host = HOST  # as a port that never changes
        self.connections.append(connection)
        self._ends.append(ours)
        self.clients.append(client)
        return len(self.clients) - 1

    def write(self, client: int, data: bytes) -> None:
        """Let the broker receive these bytes, and nothing after them, before it does anything else."""
        at = 0
        while at < len(data):
            at += self._write_some(client, memoryview(data)[at : at + WRITE_BYTES_MAX])

    def leave(self, client: int) -> None:
        """The client closes its connection."""
        self.clients[client].close()
        self.turns()

    def turns(self) -> None:
        """Turns of the reactor until nothing is ready."""
        while ready := self.reactor._epoll.poll(0, 512):
            self.reactor._turn(ready)

    def commit(self) -> list[object]:
        """Commit all that is pending, and send the answers; what can be seen of the log."""
        stored = self._commit()
        self.reactor.end_turn()
        self.turns()
        return stored

    def received(self, client: int, frames_min: int = 0) -> bytes:
        """What a client has received; it waits until these are so many frames."""
        got = bytearray()
        sock = self.clients[client]
        sock.settimeout(WAIT_SECONDS_MAX if frames_min else 0.0)
        while not frames_min or _count_frames(got) < frames_min:
            try:
                piece = sock.recv(PIECE_BYTES)
            except BlockingIOError:
                break
            if not piece:
                break
            got += piece
            self.turns()
        return bytes(got)

    def close(self) -> None:
        for each in self.clients:
            each.close()
        for connection in self.connections:
            connection.close("the test ends")
        self.reactor.close()

    def _write_some(self, client: int, data: memoryview) -> int:
        sent = self.clients[client].send(data)
        if not self.connections[client].closed:
            # The kernel may take a moment; afterwards it is known what the broker will receive.
            end = self._ends[client]
            deadline = itertools.count()
            while unread_bytes(end) < sent:
                assert next(deadline) < 1_000_000, f"{sent} bytes were written, the other end has {unread_bytes(end)}"
        self.turns()
        return sent

    def _commit_turn(self) -> None:
        self._commit()

    def _commit(self) -> list[object]:
        log, appender = self.broker.log, self.broker.appender
        while appender.start_round():
            pass
        appender.on_commit(len(log.framed))
        return [bytes(log.data), self.broker.ends(), appender.pending_bytes, appender.messages]


@contextmanager
def served(*, form: str, **given: Any) -> Iterator[ServedBroker]:
    """A broker, closed at the end."""
    broker = ServedBroker(form=form, **given)
    try:
        yield broker
    finally:
        broker.close()


def seen_of(pieces: Sequence[bytes], *, form: str, **given: Any) -> list[object]:
    """All that can be seen when one client writes these pieces: log, ends of queues, replies, whether it was closed."""
    with served(form=form, **given) as both:
        client = both.connect()
        for piece in pieces:
            both.write(client, piece)
        stored = both.commit()
        return [stored, both.received(client), both.connections[client].closed]


def _count_frames(data: bytearray) -> int:
    at = count = 0
    while at + 4 <= len(data) and at + 4 + int.from_bytes(data[at : at + 4], "big") <= len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "big")
        count += 1
    return count


def unread_bytes(sock: socket.socket) -> int:
    """How many bytes the kernel holds that were not received yet."""
    answer = fcntl.ioctl(sock.fileno(), termios.FIONREAD, b"\0\0\0\0")
    return int(struct.unpack("i", answer)[0])
