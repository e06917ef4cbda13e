"""Sends the output of streams at the end of a turn; with compiled modules in one call for most of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from raftlog.compiled.loaded import IS_COMPILED, send_single_buffers


class Flushable(Protocol):
    """A stream that has bytes to send; see `raftlog.net.stream.StreamSocket`."""

    @property
    def raw_fd(self) -> int:
        """Return the descriptor of a socket without TLS, -1 for others."""

    def flush(self) -> None:
        """Send as much as the system accepts."""

    def take_single_buffer(self) -> bytes | None:
        """Take the output, to send it to ``raw_fd``. None leaves it to `flush`."""

    def put_back(self, data: bytes, sent_bytes: int) -> None:
        """Put back the bytes after the first ``sent_bytes``, which were not sent."""


class SocketCalls(Protocol):
    """The calls of the system for many sockets. A simulation passes its own."""

    def send(self, fd: int, data: bytes) -> int:
        """Works like `socket.socket.send`, for the socket with this descriptor. Raises `OSError`."""


def flush_streams(streams: Sequence[Flushable], calls: SocketCalls | None = None) -> None:
    """Send as much of each stream as the system accepts; see `StreamSocket.flush`.

    ``calls`` sends instead of the system.
    """
    for stream in send_single_buffers(streams, calls) if IS_COMPILED else streams:
        stream.flush()
