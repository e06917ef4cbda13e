"""Detects floods: frames without work and cancelled calls, which cost a client little and the server much."""

from __future__ import annotations

from typing import Final

from mq.proxy.grpc.frames import END_STREAM, ErrorCode, Http2Error, Kind
from mq.proxy.grpc.limits import GrpcLimits

_SETTING_BYTES: Final = 6
_CONTINUATIONS_MAX: Final = 16
_EARNED_BY_DATA: Final = 2
_EARNED_BY_CALL: Final = 8


class Allowance:
    """A rate limit: allows a burst, and an amount per second."""

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        self._burst = self._credit = burst
        self._per_second = per_second
        self._since = now

    def spend(self, amount: float, now: float) -> bool:
        """Spend ``amount`` if the allowance has that much; returns whether it did."""
        if amount > self._credit:
            self._credit = min(self._burst, self._credit + (now - self._since) * self._per_second)
            self._since = now
            if amount > self._credit:
                return False
        self._credit -= amount
        return True

    def earn(self, amount: float) -> None:
        """Add ``amount`` to the allowance, at most up to the burst."""
        self._credit = min(self._burst, self._credit + amount)


class FloodGuard:
    """Limits the costly frames of one connection. Its methods raise Http2Error."""

    def __init__(self, limits: GrpcLimits, now: float) -> None:
        self._control = Allowance(limits.control_frames_burst, limits.control_frames_per_second, now)
        self._resets = Allowance(limits.resets_burst, limits.resets_per_second, now)
        self._block_bytes_max = limits.header_list_bytes_max
        self._block_bytes = self._block_frames = 0

    def frame(self, kind: int, flags: int, nbytes: int, now: float) -> None:
        """Count a received frame."""
        match kind:
            case Kind.DATA if nbytes or flags & END_STREAM:
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
                    raise _flood(f"the client sent headers in more than {_CONTINUATIONS_MAX} frames")
            case Kind.SETTINGS:
                self._spend(1 + nbytes // _SETTING_BYTES, kind, now)
            case _:
                self._spend(1, kind, now)

    def reset(self, now: float) -> None:
        """Count a call that the client cancelled, or that was refused because of too many calls."""
        if not self._resets.spend(1, now):
            raise _flood("the client cancelled too many calls")

    def sent_data(self) -> None:
        """Allow the window updates and pings with which a client answers a data frame."""
        self._control.earn(_EARNED_BY_DATA)

    def finished_call(self) -> None:
        """Allow more control frames and resets, because a call was answered."""
        self._control.earn(_EARNED_BY_CALL)
        self._resets.earn(1)

    def _header_block(self, nbytes: int) -> None:
        self._block_bytes += nbytes
        if self._block_bytes > self._block_bytes_max:
            raise _flood(f"the client sent headers of more than {self._block_bytes_max} bytes")

    def _spend(self, amount: float, kind: int, now: float) -> None:
        if not self._control.spend(amount, now):
            name = Kind(kind).name if kind in Kind.__members__.values() else f"type {kind}"
            raise _flood(f"the client sent many frames of {name} without a call")


def _flood(what: str) -> Http2Error:
    return Http2Error(ErrorCode.ENHANCE_YOUR_CALM, what)
