"""The process of `raftmq proxy`: what it becomes, how it ends, and what it takes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.procfs import rss_bytes
from mq.local_cluster import HOST, Ports

pytestmark = pytest.mark.process

IDLE_MIB_MAX = 46
"""A tenth of what the proxy of RocketMQ takes, with something to spare. Measured: 39 MiB; 60 MiB with the libraries
that read settings and the command line.
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mq.cli", "proxy", "--namesrv", f"{HOST}:9", *arguments]


@contextmanager
def listening(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command(*arguments), stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    try:
        said = ""
        for line in process.stderr:
            said += line
            if '"listening"' in line:
                break
        else:
            pytest.fail(f"it ended: {said}")
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def ended(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return said


def test_proxy_takes_little_memory_and_stops_at_sigterm() -> None:
    with listening("--listen", f"{HOST}:0", "--set", "metrics_listen=off") as process:
        assert rss_bytes(process.pid) / 2**20 < IDLE_MIB_MAX
        assert b"pydantic" not in Path(f"/proc/{process.pid}/maps").read_bytes()
        process.send_signal(signal.SIGTERM)
        assert '"stopped"' in ended(process)


def test_proxy_ends_with_its_parent() -> None:
    with listening("--listen", f"{HOST}:0", "--until-stdin-closes") as process:
        assert '"stopped"' in ended(process)  # closes its standard input


def test_proxy_names_its_unusable_address() -> None:
    port = Ports.free(1).namesrv
    with listening("--listen", f"{HOST}:{port}", "--set", "metrics_listen=off"):
        done = subprocess.run(command("--listen", f"{HOST}:{port}"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"raftmq: cannot listen on {HOST}:{port}: ")
    assert "Traceback" not in done.stderr


def test_wrong_proxy_setting_ends_the_command_at_start(tmp_path: Path) -> None:
    files = ["--set", f"tls_certificate={tmp_path / 'absent.pem'}", "--set", f"tls_key={tmp_path / 'absent.key'}"]
    for arguments, said in ((["--set", "calls_max=many"], "calls_max"), (files, "absent.pem")):
        done = subprocess.run(
            command("--listen", f"{HOST}:0", *arguments), capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_proxy_imports_no_modules_from_the_working_directory(tmp_path: Path) -> None:
    """As with `raftmq` itself, the script."""
    (tmp_path / "trio.py").write_text("raise SystemExit('the module of a stranger')")
    script = Path(sys.executable).parent / "raftmq"
    done = subprocess.run(
        [script, "proxy", "--listen", f"{HOST}:0", "--set", "tls_certificate=a", "--set", "tls_key=b"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert "stranger" not in done.stderr
    assert (done.returncode, done.stderr.startswith("raftmq: ")) == (2, True), done.stderr
