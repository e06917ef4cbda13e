"""One connection of the load generator, as bytes: the first requests, the answered requests, and the next ones."""

from __future__ import annotations

import socket
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.load.frames import QUEUES


class LoadFailed(Exception):
    """The server refused a message or closed a connection; the message has its response."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The requests that one connection keeps in flight: ``count``, numbered from ``first`` over all connections.

    ``body_bytes``: of each message. ``batch``: messages in each request. ``topics``: RocketMQ's protocol only; the
    number of topics in whose queues slots take turns, ``queues`` in each. ``keys``: as ``topics``; sign with this
    access key and secret key. ``lite_topics``: as ``topics``; the number of lite topics in which slots take turns, 0
    for none. ``exchange``: AMQP only; where messages are published, the default exchange unless it is named.
    """

    first: int
    count: int
    body_bytes: int
    batch: int = 1
    topics: int = 1
    queues: int = QUEUES
    keys: tuple[str, str] | None = None
    lite_topics: int = 0
    exchange: str = ""

    @property
    def numbers(self) -> range:
        """The slots."""
        return range(self.first, self.first + self.count)

    def body(self, slot: int) -> bytes:
        """The body of a slot's messages."""
        return bytes((slot + i) % 251 for i in range(self.body_bytes))


class Wire(Protocol):
    """The protocol of one kind of server, for one connection. A key identifies a request until it is answered."""

    def __init__(self, slots: Slots) -> None: ...

    def open(self, sock: socket.socket) -> None:
        """Do the handshake before the first message; ``sock`` still blocks. Raises LoadFailed, OSError."""

    def initial(self) -> tuple[Iterable[Hashable], bytes]:
        """The keys of all requests in flight, and their bytes."""

    def idle(self) -> Sequence[Hashable]:
        """The keys to pass to `again`, one or more at a time, in loads that do not send `first`."""

    def read_answers(self, data: bytes) -> tuple[Sequence[Any], int]:
        """Read responses; returns the keys of the answered requests, and the number of bytes of whole responses.

        Raises LoadFailed if a request was refused.
        """

    def repeat(self, keys: Sequence[Any]) -> tuple[Iterable[Hashable], bytes]:
        """Make a new request for each answered one; returns their keys, and bytes to send. Follows `read_answers`."""


def receive_until(sock: socket.socket, end: bytes) -> bytes:
    """Receive bytes of a server, up to ``end`` at the end of a piece. Raises LoadFailed if it hangs up."""
    data = b""
    while not data.endswith(end):
        data += receive_some(sock)
    return data


def receive_some(sock: socket.socket) -> bytes:
    """Receive the next piece. Raises LoadFailed if the connection is closed."""
    chunk = sock.recv(65536)
    if not chunk:
        raise LoadFailed("the server closed the connection before the first message")
    return chunk
