"""Lets the log's writer send a frame to a peer, right after the write that the frame acknowledges.

An acknowledgement of entries waits for their write. Without this, the writer's thread wakes the event loop, which then
builds and sends the frame. Here it is sealed in advance, and the writer's thread sends it by itself.

Frames of a connection are numbered by their tags. So the frame is taken back before any other one on its connection: if
it has not been sent, its number is used again. The writer uses a descriptor of its own, since the connection may be
closed, and its descriptor used for something else, at any time.
"""

from __future__ import annotations

import os
from typing import Protocol

from raftlog.net.authentication import Seal
from raftlog.net.stream import StreamSocket


class SendingWriter(Protocol):
    """The part of a log's writer that sends; see `raftlog.segment.writer.LogWriter`."""

    def send_after(self, ticket: int, fd: int, frame: bytes) -> bool: ...
    def take_back(self) -> int: ...


class AfterSync:
    """Holds the one frame that waits for a sync, among all connections of a replica; none without a ``writer``."""

    def __init__(self, writer: SendingWriter | None) -> None:
        self._writer = writer
        self._stream: StreamSocket | None = None
        self._seal: Seal | None = None
        self._frame = b""
        self._fds: dict[StreamSocket, int] = {}
        self._has_left = False

    def put(self, stream: StreamSocket, seal: Seal, frame: bytes, ticket: int) -> bool:
        """Have ``frame`` sent once the log is durable up to ``ticket``; returns False if it must be sent otherwise.

        After True, `has_left` must be called before the next one.
        """
        writer = self._writer
        if writer is None or self._stream is not None or stream.closed or stream.raw_fd < 0 or stream.out_bytes:
            return False
        fd = self._fds.get(stream)
        if fd is None:
            try:
                fd = self._fds[stream] = os.dup(stream.raw_fd)
            except OSError:
                return False  # this process has no descriptor left
        frame_and_tag = frame + seal.tag(frame)
        if not writer.send_after(ticket, fd, frame_and_tag):
            seal.forget_last()
            return False
        self._stream, self._seal, self._frame, self._has_left = stream, seal, frame_and_tag, False
        return True

    def before_use(self, stream: StreamSocket) -> None:
        """Take back an unsent frame of ``stream``, for which another frame is about to be sealed."""
        if stream is self._stream:
            self._take_back()

    def has_left(self) -> bool:
        """Take back the frame of the last `put` unless it was sent; returns whether it was."""
        self._take_back()
        return self._has_left

    def forget(self, stream: StreamSocket) -> None:
        """Take back an unsent frame of a connection that is no longer used, and close its descriptor."""
        self.before_use(stream)
        if (fd := self._fds.pop(stream, None)) is not None:
            os.close(fd)

    def _take_back(self) -> None:
        stream, seal = self._stream, self._seal
        if stream is None or seal is None or self._writer is None:
            return
        self._stream = self._seal = None
        nbytes = self._writer.take_back()
        self._has_left = nbytes > 0
        if not nbytes:
            seal.forget_last()
        elif nbytes < len(self._frame):
            stream.send(self._frame[nbytes:])
