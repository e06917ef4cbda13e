"""Limits the memory that incomplete requests of all clients take together.

A frame states its length first, and a sender may stop in its middle. So a frame of more than a few KiB is *admitted*
before more of it is read: its full length counts until it is complete. Without room, further frames wait and their
connections are not read; the shortest is admitted first. A frame that makes no progress while others wait loses its
room, and its connection is closed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

SMALL_BYTES: Final = 8 * 1024
"""Frames up to this length are not counted: there is at most one incomplete one per connection."""
WAITING_BYTES: Final = 64 * 1024
"""Maximum memory of a waiting frame: one receive."""
SLOW_BYTES: Final = 64 * 1024
"""An admitted frame that grows by less than this from one check to the next is slow ..."""
SLOW_LOOKS_MAX: Final = 2
"""... and is dropped the second time, if others wait. One check may be late on a busy machine, two are not."""


class Receiving(Hashable, Protocol):
    """The part of a connection that `PartialRequests` needs."""

    @property
    def unfinished_bytes(self) -> int:
        """The number of bytes received so far of the connection's incomplete frame."""
        ...

    def close(self, reason: str, /) -> None: ...

    def on_admit(self) -> None:
        """Continue to read: the frame that waited for memory has been admitted."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Receiving)


class _Frame(Generic[ConnectionT]):
    __slots__ = ("connection", "idle_since", "nbytes", "received", "slow_looks")

    def __init__(self, connection: ConnectionT, nbytes: int) -> None:
        self.connection = connection
        self.nbytes = nbytes
        self.received = 0
        self.slow_looks = 0
        self.idle_since: float | None = None


class PartialRequests(Generic[ConnectionT]):
    """Admits the incomplete frames of all connections within a memory limit, at most one frame per connection.

    Args:
        bytes_max: limit for admitted frames; waiting ones take at most as much again. A single frame always fits.
        seconds_max: maximum time for a frame to wait, or to receive nothing.
        on_closed: called with the reason before a connection is closed.

    Attributes:
        nbytes: total length of the admitted frames.
    """

    def __init__(self, *, bytes_max: int, seconds_max: float, on_closed: Callable[[ConnectionT, str], None]) -> None:
        self._bytes_max = bytes_max
        self._seconds_max = seconds_max
        self._on_closed = on_closed
        self._waiting_max = max(1, bytes_max // WAITING_BYTES)
        self._admitted_frames: dict[ConnectionT, _Frame[ConnectionT]] = {}
        self._queue: dict[ConnectionT, _Frame[ConnectionT]] = {}
        self._shortest: list[tuple[int, int, _Frame[ConnectionT]]] = []
        self._number = 0
        self.nbytes = 0

    @property
    def waiting_count(self) -> int:
        """The number of frames that wait for memory."""
        return len(self._queue)

    def begin(self, connection: ConnectionT, nbytes: int) -> bool:
        """Admit a frame of ``nbytes`` if there is memory for it. If this returns False, do not read before `on_admit`.

        If too many wait already, the connection is closed.
        """
        assert connection not in self._admitted_frames, f"a frame of {nbytes} bytes begins within another one"
        assert connection not in self._queue, f"a frame of {nbytes} bytes begins while another one waits"
        frame = _Frame(connection, nbytes)
        if not self._admitted_frames or self.nbytes + nbytes <= self._bytes_max:
            self._admit(frame)
            return True
        if len(self._queue) >= self._waiting_max:
            self._close(connection, f"{len(self._queue)} large requests wait for memory already")
            return False
        self._number += 1
        self._queue[connection] = frame
        heapq.heappush(self._shortest, (nbytes, self._number, frame))
        return False

    def on_frame_end(self, connection: ConnectionT) -> None:
        """Release the memory of the connection's frame, which is complete or never will be; no effect without one."""
        frame = self._admitted_frames.pop(connection, None)
        if frame is None:
            if self._queue.pop(connection, None) is not None and len(self._shortest) > 2 * len(self._queue) + 64:
                self._shortest = [each for each in self._shortest if self._waits(each[2])]
                heapq.heapify(self._shortest)
            return
        self.nbytes -= frame.nbytes
        if self._queue:
            self._admit_more()

    def close_stalled(self, now: float) -> None:
        """Close connections whose incomplete frame stalls. Call it about once a second, with monotonic seconds."""
        for frame in list(self._admitted_frames.values()):
            nbytes = frame.connection.unfinished_bytes
            growth, frame.received = nbytes - frame.received, nbytes
            if frame.idle_since is None:
                frame.idle_since = now  # it may have been admitted a moment ago
                continue
            if growth > 0:
                frame.idle_since = now
            frame.slow_looks = frame.slow_looks + 1 if growth < SLOW_BYTES else 0
            if now - frame.idle_since >= self._seconds_max or (self._queue and frame.slow_looks >= SLOW_LOOKS_MAX):
                self._close(frame.connection, f"of its request of {frame.nbytes} bytes only {nbytes} have arrived")
        # Those that have waited come last: they may just have got the room of one that is closed.
        for frame in list(self._queue.values()):
            if frame.idle_since is None:
                frame.idle_since = now
            elif now - frame.idle_since >= self._seconds_max:
                self._close(frame.connection, f"its request of {frame.nbytes} bytes waited too long for memory")

    def _close(self, connection: ConnectionT, reason: str) -> None:
        self._on_closed(connection, reason)
        connection.close("unfinished request")
        self.on_frame_end(connection)

    def _admit(self, frame: _Frame[ConnectionT]) -> None:
        frame.received = frame.connection.unfinished_bytes
        frame.idle_since = None
        self._admitted_frames[frame.connection] = frame
        self.nbytes += frame.nbytes

    def _waits(self, frame: _Frame[ConnectionT]) -> bool:
        return self._queue.get(frame.connection) is frame

    def _admit_more(self) -> None:
        while self._shortest:
            nbytes, _, frame = self._shortest[0]
            waits = self._waits(frame)
            if waits and self._admitted_frames and self.nbytes + nbytes > self._bytes_max:
                return
            heapq.heappop(self._shortest)
            if waits:
                del self._queue[frame.connection]
                self._admit(frame)
                frame.connection.on_admit()
