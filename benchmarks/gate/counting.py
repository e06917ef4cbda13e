"""Marks the counted code by calls that no other code makes, at its begin and end; callgrind writes a dump at each.

Only that code is instrumented: callgrind is told through its own control program when it begins and ends, since to
import everything under instrumentation takes six times as long.
"""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

MARK = "getsid"
"""The function of the C library that `Counting` calls."""
BY_CALLGRIND = "--by-callgrind"
CONTROL = "callgrind_control"
"""Comes with valgrind."""


class Counting:
    """Records the name and the number of messages of each counted case, in order.

    ``by_callgrind``: this process runs under callgrind, which instruments nothing yet.
    """

    def __init__(self, *, by_callgrind: bool) -> None:
        self._by_callgrind = by_callgrind
        self.cases: list[tuple[str, int]] = []

    @contextmanager
    def count(self, name: str, messages: int) -> Iterator[None]:
        """Collect garbage, and count the instructions of the block. Raises OSError if callgrind does not respond."""
        gc.collect()
        self.cases.append((name, messages))
        if self._by_callgrind:
            _instrument("on")
        os.getsid(0)
        try:
            yield
        finally:
            os.getsid(0)
            if self._by_callgrind:
                _instrument("off")


def _instrument(state: str) -> None:
    control = subprocess.Popen([CONTROL, f"--instr={state}", str(os.getpid())], stdout=subprocess.DEVNULL)
    # Valgrind looks for orders while code runs, and would have to be traced out of a system call that waits.
    while control.poll() is None:
        pass
    if control.returncode:
        raise OSError(f"{CONTROL} --instr={state} ended with exit code {control.returncode}")
