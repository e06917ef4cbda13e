"""The interface between a load generator and a server's protocol: makes requests as bytes, and reads responses."""

from __future__ import annotations

import socket
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.load.frames import QUEUES


class LoadFailed(Exception):
    """The server refused a message, or closed a connection. The message has its response."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The ``count`` requests that one connection keeps in flight, numbered from ``first`` over all connections.

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
        """The numbers of the slots."""
        return range(self.first, self.first + self.count)

    def body(self, slot: int) -> bytes:
        """Return the body of a slot's messages."""
        return bytes((slot + i) % 251 for i in range(self.body_bytes))


class Wire(Protocol):
    """The protocol of one kind of server for one connection. A key identifies a request until it is answered."""

    def __init__(self, slots: Slots) -> None: ...

    def open(self, sock: socket.socket) -> None:
        """Do the handshake before the first message; ``sock`` still blocks. Raises LoadFailed, OSError."""

    def initial(self) -> tuple[Iterable[Hashable], bytes]:
        """Return the keys of the first request of each slot, and the bytes to send."""

    def idle(self) -> Sequence[Hashable]:
        """Return the keys to pass to `repeat`, one or more at a time, in loads that do not send `initial`."""

    def read_responses(self, data: bytes) -> tuple[Sequence[Any], int]:
        """Read responses. Returns the keys of the answered requests, and the number of bytes of whole responses.

        Raises LoadFailed if a request was refused.
        """

    def repeat(self, keys: Sequence[Any]) -> tuple[Iterable[Hashable], bytes]:
        """Make a request for each answered one. Returns their keys, and the bytes to send. Follows `read_responses`."""


def receive_until(sock: socket.socket, end: bytes) -> bytes:
    """Receive bytes until a received piece ends with ``end``. Raises LoadFailed if the server closes the connection."""
    data = b""
    while not data.endswith(end):
        data += receive_some(sock)
    return data


def receive_some(sock: socket.socket) -> bytes:
    """Receive the next piece. Raises LoadFailed if the server closes the connection."""
    chunk = sock.recv(65536)
    if not chunk:
        raise LoadFailed("the server closed the connection before the first message")
    return chunk
