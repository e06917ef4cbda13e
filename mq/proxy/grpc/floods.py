"""Counts what costs a client nothing and a server something: frames without work in them, and cancelled calls."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final, NamedTuple

from mq.proxy.grpc.limits import GrpcLimits

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES: Final = 9
FRAME_BYTES_MAX: Final = 16_384
"""The longest payload that a client may send: no more is ever announced to it."""

_END_STREAM: Final = 0x1
_SETTING_BYTES: Final = 6
_CONTINUATIONS_MAX: Final = 16
_EARNED_BY_DATA: Final = 2
_EARNED_BY_CALL: Final = 8


class Kind(enum.IntEnum):
    """Types of HTTP/2 frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flood(Exception):
    """A client sends too much of what is no work; the message says of what."""


class FrameTooLong(Exception):
    """A frame of more than `FRAME_BYTES_MAX`."""


class Piece(NamedTuple):
    """Bytes that end where a frame ends, or with what has arrived.

    Attributes:
        kind: of the frame that begins here; None if it began in an earlier piece.
        data: includes the header of that frame.
    """

    kind: int | None
    flags: int
    nbytes: int
    data: bytes


class FrameSplitter:
    """Splits what arrives on one connection where frames end. Keeps nothing but the beginning of a frame's header."""

    def __init__(self) -> None:
        self._preface_left = len(PREFACE)
        self._header = b""
        self._left = 0

    def split(self, data: bytes) -> Iterator[Piece]:
        """The pieces of ``data``. Raises FrameTooLong as soon as the header of such a frame is there."""
        at, end = 0, len(data)
        if self._preface_left:
            at = min(self._preface_left, end)
            self._preface_left -= at
            yield Piece(None, 0, 0, data[:at])
        if self._left and at < end:
            start, at = at, min(at + self._left, end)
            self._left -= at - start
            yield Piece(None, 0, 0, data[start:at])
        if self._header and at < end:
            data, at = self._header + data[at:], 0
            end, self._header = len(data), b""
        while end - at >= FRAME_HEADER_BYTES:
            nbytes = int.from_bytes(data[at : at + 3], "big")
            if nbytes > FRAME_BYTES_MAX:
                raise FrameTooLong(f"a frame of {nbytes} bytes, {FRAME_BYTES_MAX} are allowed")
            start, at = at, min(at + FRAME_HEADER_BYTES + nbytes, end)
            self._left = FRAME_HEADER_BYTES + nbytes - (at - start)
            yield Piece(data[start + 3], data[start + 4], nbytes, data[start:at])
        if at < end:
            self._header = data[at:]


class Allowance:
    """What may be spent: so much at once, and so much per second."""

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        self._burst = self._left = burst
        self._per_second = per_second
        self._since = now

    def spend(self, amount: float, now: float) -> bool:
        """Whether there was enough; then it is spent."""
        if amount > self._left:
            self._left = min(self._burst, self._left + (now - self._since) * self._per_second)
            self._since = now
            if amount > self._left:
                return False
        self._left -= amount
        return True

    def earn(self, amount: float) -> None:
        """More may be spent, at most the burst at once."""
        self._left = min(self._burst, self._left + amount)


class FloodGuard:
    """The counters of one connection. Its methods raise Flood."""

    def __init__(self, limits: GrpcLimits, now: float) -> None:
        self._control = Allowance(limits.control_frames_burst, limits.control_frames_per_second, now)
        self._resets = Allowance(limits.resets_burst, limits.resets_per_second, now)
        self._block_bytes_max = limits.header_list_bytes_max
        self._block_bytes = self._block_frames = 0

    def frame(self, kind: int, flags: int, nbytes: int, now: float) -> None:
        """A frame begins."""
        match kind:
            case Kind.DATA if nbytes or flags & _END_STREAM:
                # Who sends data measures the line with pings.
                self._control.earn(1)
            case Kind.HEADERS:
                self._block_bytes = self._block_frames = 0
                self._header_block(nbytes)
            case Kind.RST_STREAM:
                self.reset(now)
            case Kind.CONTINUATION:
                self._spend(1, kind, now)
                self._header_block(nbytes)
                self._block_frames += 1
                if self._block_frames > _CONTINUATIONS_MAX:
                    raise Flood(f"headers in more than {_CONTINUATIONS_MAX} frames")
            case Kind.SETTINGS:
                self._spend(1 + nbytes // _SETTING_BYTES, kind, now)
            case _:
                self._spend(1, kind, now)

    def reset(self, now: float) -> None:
        """A call was cancelled by the client, or was refused because there are too many."""
        if not self._resets.spend(1, now):
            raise Flood("cancelled calls")

    def sent_data(self) -> None:
        """A frame with data is sent: its receiver answers with window updates and pings."""
        self._control.earn(_EARNED_BY_DATA)

    def finished_call(self) -> None:
        """A call was answered."""
        self._control.earn(_EARNED_BY_CALL)
        self._resets.earn(1)

    def _header_block(self, nbytes: int) -> None:
        self._block_bytes += nbytes
        if self._block_bytes > self._block_bytes_max:
            raise Flood(f"headers of more than {self._block_bytes_max} bytes")

    def _spend(self, amount: float, kind: int, now: float) -> None:
        if not self._control.spend(amount, now):
            name = Kind(kind).name if kind in Kind.__members__.values() else f"type {kind}"
            raise Flood(f"frames of {name} without a call")
