"""Redis as a process: for the results of tasks, and as a broker to compare with. Debian's package is redis-server."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.peer import package_missing
from mq.cli.dev_cluster import HOST, Ports

PROGRAM = "redis-server"
READY_SECONDS_MAX = 10.0


def redis_missing() -> str | None:
    """How to install it, if it is missing."""
    return package_missing(PROGRAM, "redis-server")


@contextmanager
def open_redis(directory: Path, *settings: str) -> Iterator[tuple[int, int]]:
    """Its port and process. It keeps nothing on the disk unless ``settings`` say so. Raises RuntimeError."""
    port = Ports.free(1).namesrv
    directory.mkdir(exist_ok=True)
    command = [PROGRAM, "--port", str(port), "--bind", HOST, "--dir", str(directory), "--save", "", *settings]
    with (directory / "redis.log").open("wb") as log:
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{PROGRAM} does not answer: {(directory / 'redis.log').read_text()[-500:]}")
            time.sleep(0.02)
        yield port, process.pid
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
