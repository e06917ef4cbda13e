"""Writes a history while the run goes on, so that a killed run leaves the history up to then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from checkers.events import Event
from checkers.recording import Recording


class Recorder(Recording):
    """Writes the history of one run to a new file at ``path``. Close it, or use it as a context manager.

    Args:
        now_ns: the one clock of the run, monotonic, in nanoseconds.
    """

    def __init__(self, path: Path, now_ns: Callable[[], int]) -> None:
        self._file = path.open("xb", buffering=0)
        encoder = msgspec.json.Encoder()

        def write(event: Event) -> None:
            self._file.write(encoder.encode(event) + b"\n")

        super().__init__(write, now_ns)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
