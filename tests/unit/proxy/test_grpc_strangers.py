"""Programs of others against the gRPC server, on a socket: grpcio as its client, and h2spec."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest
import structlog
import trio

from mq.certificate import Certificate
from mq.proxy.grpc import OwnCertificate
from tests.support.certificates import Authority
from tests.support.grpc_serving import serving

ROOT = Path(__file__).parents[3]
H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
EXPECTED = {
    "unary": "hello",
    "large": 3_000_000,
    "compressed": 3_000_000,
    "stream": [0, 1, 70_000, 900_000],
    "many": 5_000,
    "refused": "NOT_FOUND",
    "unknown": "UNIMPLEMENTED",
    "failed": "INTERNAL",
    "too late": "DEADLINE_EXCEEDED",
    "too large": "RESOURCE_EXHAUSTED",
}


async def test_grpcio_calls_every_kind_of_method_with_and_without_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("server", "localhost")
    tls = OwnCertificate(Certificate(*files, None, structlog.get_logger(), lambda: time.time_ns() // 1_000_000))
    listeners = await trio.open_tcp_listeners(0, host="localhost")
    port = str(listeners[0].socket.getsockname()[1])
    async with serving(tls=tls, listeners=listeners) as server:
        for more in ([], [str(authority.file)]):
            command = [sys.executable, "-m", "tests.support.grpcio_calls", port, *more]
            done = await trio.run_process(command, cwd=ROOT, capture_stdout=True)
            assert json.loads(done.stdout) == EXPECTED
        assert {call.secure for call in server.calls} == {False, True}
        assert server.counters.streams == 0


@pytest.mark.nightly
async def test_grpc_server_passes_h2spec(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("h2spec is written in Go")
    install = ["env", f"GOBIN={tmp_path}", "go", "install", H2SPEC]
    await trio.run_process(install)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = str(listeners[0].socket.getsockname()[1])
    async with serving(listeners=listeners):
        command = [str(tmp_path / "h2spec"), "-h", "127.0.0.1", "-p", port, "-o", "5"]
        done = await trio.run_process(command, capture_stdout=True, check=False)
    report = done.stdout.decode()
    assert done.returncode == 0, report
    assert "0 skipped, 0 failed" in report
