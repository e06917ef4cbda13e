"""`raftmq table` as a process: what it prints, whom it started, and how it ends."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
SECONDS_MAX: Final = 300


class TableCommand:
    """One process; ``arguments`` follow `raftmq table`."""

    def __init__(self, log: Path, *arguments: str | Path, environment: dict[str, str] | None = None) -> None:
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mq.cli", "table", *map(str, arguments)],
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.printed: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next object that it prints for which that holds."""
        deadline = time.monotonic() + SECONDS_MAX
        while (line := self._lines.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
            self.printed.append(line)
            if is_it(told := json.loads(line)):
                return dict(told)
        raise AssertionError(f"it has ended: {self.errors()}")

    def ended(self) -> int:
        """Wait for its end; the exit code. The rest is in ``printed``."""
        code = self.process.wait(SECONDS_MAX)
        while (line := self._lines.get(timeout=SECONDS_MAX)) is not None:
            self.printed.append(line)
        return code

    def driver(self) -> int:
        """The process id of Spark's driver, which it has started."""
        children = (
            child
            for task in Path(f"/proc/{self.process.pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        )
        (found,) = (each for each in children if b"spark.tables.job" in Path(f"/proc/{each}/cmdline").read_bytes())
        return int(found)

    def errors(self) -> str:
        """What was written to standard error."""
        return self._log.read_text()[-5000:]

    def close(self) -> None:
        """Kill what still runs."""
        self.process.kill()
        self.process.wait()


def is_alive(pid: int) -> bool:
    """Whether the process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
