"""Waits until a time to the microsecond in a trio program. Trio's own timers may be a millisecond late."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Final

import trio

_ABSOLUTE: Final = 1


# struct itimerspec: interval and first expiry, each as seconds and nanoseconds.
_Timer = ctypes.c_long * 4


class Alarm:
    """A timer of the kernel, for one task. It stays open until the process ends."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")

    async def wait_until(self, at: float) -> None:
        """Wait until the time ``at`` on CLOCK_MONOTONIC. Returns at once if it has passed."""
        when = _Timer(0, 0, int(at), int(at % 1 * 1e9))
        if self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(when), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")
        await trio.lowlevel.wait_readable(self._fd)
