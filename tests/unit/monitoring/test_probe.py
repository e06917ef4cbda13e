"""The health check for containers, against a real port."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator

import trio

from mq.monitoring.families import Families
from mq.monitoring.http import Monitoring, open_listeners


async def test_probe_exits_with_the_status_of_the_server() -> None:
    reason: str | None = None

    def collect() -> Generator[None, None, Families]:
        yield
        return []

    async def ready() -> str | None:
        await trio.lowlevel.checkpoint()
        return reason

    async def probe(url: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "mq.monitoring.probe", url]
        done = await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)
        return done.returncode, (done.stdout + done.stderr).decode().strip()

    listeners = await open_listeners("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Monitoring(collect, ready).serve, listeners)
        assert await probe(f"http://127.0.0.1:{port}/readyz") == (0, "ok")
        reason = "no leader has a majority"
        assert await probe(f"http://127.0.0.1:{port}/readyz") == (1, reason)
        nursery.cancel_scope.cancel()
    assert (await probe(f"http://127.0.0.1:{port}/readyz"))[0] == 1
    assert (await probe("file:///etc/passwd"))[0] == 2


def test_probe_without_arguments_exits_with_usage() -> None:
    assert (
        subprocess.run([sys.executable, "-m", "mq.monitoring.probe"], check=False, capture_output=True).returncode == 2
    )
