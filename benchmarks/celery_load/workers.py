"""Workers of Celery as processes that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import trio

from benchmarks.procfs import process_tree

READY = b" ready."
READY_SECONDS_MAX = 180.0


class WorkerFailed(Exception):
    """A worker did not start, or ended by itself; the message has the end of its log."""


@dataclass(slots=True)
class Workers:
    """The workers of one application, each with a pool of processes. `kills` says when each process was killed."""

    application: str
    directory: Path
    environment: Mapping[str, str]
    pool_size: int = 2
    arguments: tuple[str, ...] = ()
    kills: dict[int, float] = field(default_factory=dict)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _logs: dict[str, Path] = field(default_factory=dict)

    async def start(self, name: str) -> None:
        """Start a worker and wait until it is ready. Raises WorkerFailed."""
        log = self._logs[name] = self.directory / f"{name}.log"
        begin = log.stat().st_size if log.exists() else 0
        command = [sys.executable, "-m", "celery", "-A", self.application, "worker", "-n", f"{name}@host"]
        command += ["--loglevel", "info", "--concurrency", str(self.pool_size), *self.arguments]
        with log.open("ab") as output:
            process = self._running[name] = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        with trio.move_on_after(READY_SECONDS_MAX):
            while READY not in log.read_bytes()[begin:]:
                self._check(name, process)
                await trio.sleep(0.05)
            return
        raise WorkerFailed(f"{name} is not ready after {READY_SECONDS_MAX:g} s: {self._end(name)}")

    def pids(self, name: str) -> list[int]:
        """The worker's process and those of its pool."""
        return process_tree(self._running[name].pid)

    def kill(self, name: str) -> None:
        """SIGKILL to the worker and its pool."""
        process = self._running.pop(name)
        pids = process_tree(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
        self.kills |= dict.fromkeys(pids, time.time())
        process.wait()

    def kill_pool_process(self, name: str, which: int) -> None:
        """SIGKILL to one process of a worker's pool."""
        _, *pool = process_tree(self._running[name].pid)
        if pool:
            pid = pool[which % len(pool)]
            os.kill(pid, signal.SIGKILL)
            self.kills[pid] = time.time()

    def check(self) -> None:
        """Raises WorkerFailed if one has ended by itself."""
        for name, process in self._running.items():
            self._check(name, process)

    def close(self) -> None:
        """Kill all of them."""
        for name in list(self._running):
            self.kill(name)

    def _check(self, name: str, process: subprocess.Popen[bytes]) -> None:
        if (code := process.poll()) is not None:
            raise WorkerFailed(f"{name} ended with exit code {code}: {self._end(name)}")

    def _end(self, name: str) -> str:
        return self._logs[name].read_text(errors="replace")[-1500:]
