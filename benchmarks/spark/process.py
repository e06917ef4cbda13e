"""Runs Spark in a separate process, which answers the requests of `benchmarks.spark.session`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import trio

from benchmarks.procfs import rss_bytes_max
from benchmarks.store.follower import pin
from benchmarks.suites.case_load import ROOT
from mq.monitoring.cpu_time import cpu_seconds_without_running_children

START_SECONDS_MAX = 180.0
_STOP_SECONDS_MAX = 20.0


class QueryResult(NamedTuple):
    """The result of a request. ``rows``: 0 if they were not counted. ``batches``: of a stream."""

    seconds: float
    rows: int
    batches: list[dict[str, Any]]
    digest: int = 0


class QueryFailed(OSError):
    """A query failed in Spark, or Spark ended."""


class SparkProcess:
    """A Spark session in a separate process. It executes one request at a time."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._rest = b""

    @classmethod
    @asynccontextmanager
    async def open(cls, *, pyspark: Path | None = None, jars: Sequence[Path] = ()) -> AsyncIterator[SparkProcess]:
        """Start Spark, and wait until it accepts requests. Raises QueryFailed after three minutes.

        Args:
            pyspark: a directory with PySpark; default: the installed one.
            jars: for its driver and executors.
        """
        command = [sys.executable, "-m", "benchmarks.spark.session", *([",".join(map(str, jars))] if jars else [])]
        environment = dict(os.environ)
        if pyspark is not None:
            environment["PYTHONPATH"] = str(pyspark)
        start = partial(
            trio.run_process,
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            check=False,
            env=environment,
        )
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(start)
            spark = cls(process)
            try:
                with trio.move_on_after(START_SECONDS_MAX) as timeout:
                    await spark._answer()
                if timeout.cancelled_caught:
                    raise QueryFailed(f"Spark has not started within {START_SECONDS_MAX:g} s")
                yield spark
            finally:
                with trio.move_on_after(_STOP_SECONDS_MAX, shield=True):
                    assert process.stdin is not None
                    await process.stdin.aclose()
                    await process.wait()
                nursery.cancel_scope.cancel()

    async def ask(self, do: str, source: str, options: Mapping[str, str] | None = None, **more: Any) -> QueryResult:
        """Execute one request on a table of the format ``source``. Raises QueryFailed."""
        request = {"do": do, "format": source, "options": dict(options or {}), **more}
        assert self._process.stdin is not None
        await self._process.stdin.send_all(json.dumps(request).encode() + b"\n")
        response = await self._answer()
        if "error" in response:
            raise QueryFailed(response["error"])
        return QueryResult(response["seconds"], response["rows"] or 0, response["batches"], response["digest"])

    def worker_cpu_seconds(self) -> float:
        """Return the CPU seconds so far of the Python processes in which Spark runs data sources."""
        return sum(cpu_seconds_without_running_children(pid) for pid in self._workers())

    def cpu_seconds(self) -> float:
        """Return the CPU seconds so far of all of Spark: the driver, the JVM, and the Python processes."""
        total = 0.0
        for pid in self._processes():
            with suppress(FileNotFoundError, ProcessLookupError):
                total += cpu_seconds_without_running_children(pid)
        return total

    def worker_rss_bytes_max(self) -> int:
        """Return the highest peak resident set of a Python process, in bytes."""
        return max((rss_bytes_max(pid) for pid in self._workers()), default=0)

    def pin(self, cores: Sequence[int]) -> None:
        """Let Spark and its workers, also later ones, run only on these cores."""
        for pid in self._processes():
            with suppress(FileNotFoundError, ProcessLookupError):
                pin(pid, cores)

    def _workers(self) -> Iterator[int]:
        """The Python processes among the children. The use of one that ended is included in its parent's."""
        for pid in self._processes():
            with suppress(FileNotFoundError, ProcessLookupError):
                if pid != self._process.pid and Path(f"/proc/{pid}/comm").read_text().startswith("python"):
                    yield pid

    def _processes(self) -> Iterator[int]:
        """The session's process and all its descendants."""
        below = {self._process.pid}
        yield self._process.pid
        for pid in sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
            with suppress(FileNotFoundError, ProcessLookupError):  # a parent is older than its children
                if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) in below:
                    below.add(pid)
                    yield pid

    async def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            data = await self._process.stdout.receive_some()
            if not data:
                raise QueryFailed("Spark has ended; what it said is above")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        response: dict[str, Any] = json.loads(line)
        return response
