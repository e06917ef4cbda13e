"""Decides when a pipeline commits, as its trigger says, and when it ends."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

UNTIL_STDIN_CLOSES: Final = "--until-stdin-closes"
"""An argument of the driver: it ends at once when its input does, with the exit code `GAVE_UP`."""
GAVE_UP: Final = 3
IDLE_SECONDS: Final = 0.5
"""Seconds that a continuous pipeline that has read everything waits before it looks again."""


class StopCondition(Protocol):
    """Tells a pipeline whether to end after the current commit."""

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for a request to end, 0 to only check. Returns whether there is one."""
        ...


class StopSignal:
    """Implements `StopCondition` for handlers of signals: a `threading.Event` may be locked by the very code that they
    interrupt.
    """

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()

    def ask(self, *_: Any) -> None:
        """Request the end; to be installed as a handler of signals."""
        os.write(self._write_fd, b"x")

    def wait(self, timeout: float) -> bool:
        """Wait as `StopCondition.wait`."""
        return bool(select.select([self._read_fd], [], [], timeout)[0])

    def close(self) -> None:
        """Close the pipe by which it waits. No signal may be handled afterwards."""
        os.close(self._read_fd)
        os.close(self._write_fd)


def keep_pace(
    commit: Callable[[], bool],
    every_seconds: float | None,
    is_behind: Callable[[], bool],
    stop: StopCondition,
    clock: Callable[[], float],
) -> None:
    """Call ``commit`` until nothing is left (``every_seconds`` None) or ``stop`` says so.

    ``commit`` tells whether there was anything. The rest of a backlog is committed at once; then a commit begins
    ``every_seconds`` after the last one began, or, if that is 0, as soon as there is something.
    """
    while not stop.wait(0):
        began = clock()
        if commit():
            if not every_seconds or is_behind():
                continue
        elif every_seconds is None:
            return
        stop.wait(max(0.0, every_seconds - (clock() - began)) if every_seconds else IDLE_SECONDS)


def end_with_input() -> None:
    """End this process at once when its standard input ends, because the process that started it is gone.

    Spark's Java ends with it. Uncommitted messages are not in the table, as after a kill.
    """

    def watch() -> None:
        # Not `sys.stdin`, which the end of the interpreter waits for.
        while os.read(0, 4096):
            pass
        os._exit(GAVE_UP)

    threading.Thread(target=watch, name="input", daemon=True).start()
