"""A broker whose clients take all file descriptors that they can get."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from jepsen.wire import Wire, open_wire
from mq.local_cluster import HOST, Ports
from mq.protocol.codes import RequestCode, ResponseCode

SEND = {"a": "P", "b": "T", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 0, "h": 0, "i": "", "j": 0, "k": "false"}
BODY = bytes(100 * 1024)


async def _wait_up(port: int) -> None:
    with trio.fail_after(30):
        up = False
        while True:
            try:
                async with open_wire(HOST, port) as wire:
                    up = await _is_stored(wire)
            except* OSError:
                pass
            if up:
                return
            await trio.sleep(0.05)


async def _is_stored(wire: Wire) -> bool:
    with trio.fail_after(60):
        answer, _ = await wire.ask(RequestCode.SEND_MESSAGE_V2, SEND, BODY)
    return answer.code == ResponseCode.SUCCESS


async def _run(port: int) -> None:
    stored = False
    with ExitStack() as stack:
        await _wait_up(port)
        async with open_wire(HOST, port) as wire:
            assert await _is_stored(wire)
            for _ in range(150):
                stack.enter_context(socket.create_connection((HOST, port)))
            for _ in range(30):  # three files of the log, or more
                assert await _is_stored(wire)
            stored = True
        assert stored, "the broker hung up"


@pytest.mark.process
@pytest.mark.slow
def test_log_continues_when_clients_exhaust_descriptors(tmp_path: Path) -> None:
    ports = Ports.free(1)
    settings = ["--set", f"segment_bytes={1024 * 1024}", "--set", f"message_bytes_max={256 * 1024}"]
    peers = ["--peers", f"n0@{HOST}:{ports.replication[0]}", "--listen", f"{HOST}:{ports.clients[0]}"]
    broker = [sys.executable, "-m", "mq.cli", "broker", "--data-dir", str(tmp_path / "n0"), *peers, *settings]
    limited = ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh", *broker]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(limited, stdout=log, stderr=log) as process:
        try:
            trio.run(_run, ports.clients[0])
            assert process.poll() is None
        finally:
            process.terminate()
