"""Runs Celery's workers as processes, and kills them."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.procfs import process_tree
from mq.local_cluster import Processes

READY = re.compile(r" ready\.")
READY_SECONDS_MAX = 180.0


@dataclass(slots=True)
class Workers:
    """The workers of one application, each with a pool of processes. `kills`: when each process was killed."""

    application: str
    directory: Path
    environment: Mapping[str, str]
    pool_size: int = 2
    arguments: tuple[str, ...] = ()
    kills: dict[int, float] = field(default_factory=dict)
    _processes: Processes = field(init=False)

    def __post_init__(self) -> None:
        self._processes = Processes(self.directory)

    async def start(self, name: str) -> None:
        """Start a worker and wait until it is ready. Raises ServersFailed."""
        begin = self._processes.log_bytes(name)
        command = [sys.executable, "-m", "celery", "-A", self.application, "worker", "-n", f"{name}@host"]
        command += ["--loglevel", "info", "--concurrency", str(self.pool_size), *self.arguments]
        self._processes.start(name, command, self.environment)
        await self._processes.wait_said(name, READY, begin, READY_SECONDS_MAX)

    def pids(self, name: str) -> list[int]:
        """Return the process ids of the worker and of its pool."""
        return process_tree(self._processes.pid(name))

    def kill(self, name: str) -> None:
        """Send SIGKILL to the worker and its pool."""
        pids = self.pids(name)
        self._processes.kill_session(name)
        self.kills |= dict.fromkeys(pids, time.time())

    def kill_pool_process(self, name: str, which: int) -> None:
        """Send SIGKILL to one process of a worker's pool."""
        _, *pool = process_tree(self._processes.pid(name))
        if pool:
            pid = pool[which % len(pool)]
            os.kill(pid, signal.SIGKILL)
            self.kills[pid] = time.time()

    def check(self) -> None:
        """Raise ServersFailed if a worker has ended by itself."""
        self._processes.check()

    def close(self) -> None:
        """Kill all workers and their pools."""
        self._processes.kill_all()
