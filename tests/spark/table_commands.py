"""`raftmq table` as a process: what it prints, whom it started, and how it ends; and a place where it works."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet

from spark.tables.state_directory import StateDirectory
from tests.spark.stage import Stage

ROOT: Final = Path(__file__).parents[2]
BATCH: Final = 1000
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


class Place:
    """A topic, and a directory with pipelines that write the same table."""

    def __init__(self, stage: Stage, directory: Path) -> None:
        self._stage = stage
        self.topic = stage.topic("Orders", 2)
        self.directory = directory
        self.commands: list[TableCommand] = []
        self._sent = 0

    def send(self, count: int) -> None:
        self._stage.send(self.topic, [b'{"id": %d}' % (self._sent + number) for number in range(count)])
        self._sent += count

    def file(self, name: str, more: str) -> Path:
        path = self.directory / f"{name}.yaml"
        path.write_text(
            f"name: t\nnamesrv: {self._stage.namesrv}\ntopic: {self.topic}\nmax_messages_per_commit: {BATCH}\n"
            f"decode: {{format: json, schema: {{id: bigint}}}}\ntable: {{format: parquet, location: table}}\n{more}\n"
        )
        return path

    def start(self, *arguments: str | Path, environment: dict[str, str] | None = None) -> TableCommand:
        started = TableCommand(self.directory / "errors.log", *arguments, environment=environment)
        self.commands.append(started)
        return started

    def ids(self) -> Counter[int]:
        """How often each message is a row."""
        files = [path for path in (self.directory / "table").rglob("*.parquet") if "_raftmq" not in path.parts]
        return Counter(number for path in files for number in pyarrow.parquet.read_table(path)["id"].to_pylist())

    def is_running(self) -> bool:
        return StateDirectory(self.directory / "table" / "_raftmq").is_running()


def wait_until(is_so: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def bare_python(path: Path) -> Path:
    """Write an interpreter that has what executors need, but not this package; returns its path."""
    packages = path.parent / "packages"
    packages.mkdir(parents=True)
    for name in (
        "msgspec",
        "pyspark",
        "py4j",
        "numpy",
        "numpy.libs",
        "pandas",
        "pyarrow",
        "dateutil",
        "pytz",
        "six.py",
        "tzdata",
    ):
        (packages / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return path
