"""Writes histories: numbers events and processes, and gives each event its time. Pure, except for the callables."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from checkers.events import NEMESIS, RUN, Event, Type


class Recording:
    """The history of one run, event by event.

    Args:
        write: gets each event, and may raise OSError.
        now_ns: the one clock of the run, monotonic, in nanoseconds.
    """

    def __init__(self, write: Callable[[Event], object], now_ns: Callable[[], int]) -> None:
        self._write = write
        self._now_ns = now_ns
        self._count = 0
        self._processes = itertools.count()
        self._faults = itertools.count()

    def new_process(self) -> int:
        """Return an unused process id."""
        return next(self._processes)

    def add(self, process: int | str, what: Type, name: str, **fields: Any) -> None:
        """Write one event, now. ``fields`` as in `Event`. Raises OSError."""
        self._write(Event(self._count, self._now_ns(), process, what, name, **fields))
        self._count += 1

    def note(self, name: str, **fields: Any) -> None:
        """Record something that the run itself did or observed."""
        self.add(RUN, "info", name, **fields)

    def fault_begins(self, kind: str, what: str, nodes: tuple[str, ...], *, majority: bool) -> int:
        """Record the injection of a fault. Returns its number, which the two methods below take."""
        number = next(self._faults)
        value = {"id": number, "kind": kind, "what": what, "nodes": nodes, "majority": majority}
        self.add(NEMESIS, "info", "begins", v=value)
        return number

    def fault_confirmed(self, number: int, seen: str) -> None:
        """Record that the effect of a fault was observed; ``seen`` says how."""
        self.add(NEMESIS, "info", "confirmed", v={"id": number, "seen": seen})

    def fault_ends(self, number: int) -> None:
        """Record the end of a fault: later failures are not its effect."""
        self.add(NEMESIS, "info", "ends", v={"id": number})


class Worker:
    """Executes one operation after the other, with a new process id after each unknown outcome.

    Attributes:
        process: the id of the next operation.
    """

    def __init__(self, recorder: Recording) -> None:
        self._recorder = recorder
        self._numbers = itertools.count()
        self.process = recorder.new_process()

    def next_number(self) -> int:
        """Return a number that is new for this worker; with the process id it makes values unique."""
        return next(self._numbers)

    def invoke(self, name: str, **fields: Any) -> None:
        """Record that an operation begins."""
        self._recorder.add(self.process, "invoke", name, **fields)

    def ok(self, name: str, **fields: Any) -> None:
        """Record that an operation happened. Without `invoke` before: a delivery to this worker."""
        self._recorder.add(self.process, "ok", name, **fields)

    def fail(self, name: str, error: str, **fields: Any) -> None:
        """Record that an operation certainly did not happen."""
        self._recorder.add(self.process, "fail", name, err=error, **fields)

    def info(self, name: str, error: str, **fields: Any) -> None:
        """Record that the outcome of an operation is unknown."""
        self._recorder.add(self.process, "info", name, err=error, **fields)
        self.process = self._recorder.new_process()
