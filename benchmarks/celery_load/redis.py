"""Runs Redis as a process, for the results of tasks, and as a broker to compare with. Debian: redis-server."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.peer import package_missing
from mq.local_cluster import HOST, Ports, ServersFailed, open_processes

PROGRAM = "redis-server"
READY_SECONDS_MAX = 10.0


def redis_missing() -> str | None:
    """Return the command that installs Redis, if it is not installed; otherwise None."""
    return package_missing(PROGRAM, "redis-server")


@contextmanager
def open_redis(directory: Path, *settings: str) -> Iterator[tuple[int, int]]:
    """Run Redis, without files on disk by default. Yields its port and process id. Raises ServersFailed, OSError."""
    port = Ports.free(1).namesrv
    directory.mkdir(exist_ok=True)
    command = [PROGRAM, "--port", str(port), "--bind", HOST, "--dir", str(directory), "--save", "", *settings]
    with open_processes(directory) as processes:
        pid = processes.start("redis", command)
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not _listens(port):
            processes.check()
            if time.monotonic() > deadline:
                raise ServersFailed(f"{PROGRAM} does not answer: {processes.last_words('redis')}")
            time.sleep(0.02)
        yield port, pid


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
