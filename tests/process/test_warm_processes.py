"""Processes that tests fork are as those that would be started: see `tests.support.warm_processes`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen.deployments.leftovers import RUN_VARIABLE, lock_directory, run_of
from tests.support.warm_processes import ROOT, cold_processes, wanted_module, warm_processes

pytestmark = pytest.mark.process

CLI = (sys.executable, "-m", "mq.cli")


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    with warm_processes():
        yield


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_forked(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\0\0")  # the room that its command does not need


def test_forked_command_prints_and_exits_like_a_started_command(tmp_path: Path) -> None:
    options = ["archive", "cat", "no-such-place", "--help"], ["broker", "--peers", "x"], ["log", "verify", "nowhere"]
    for arguments in options:
        forked = subprocess.run([*CLI, *arguments], cwd=tmp_path, capture_output=True, text=True)
        with cold_processes():
            started = subprocess.run([*CLI, *arguments], cwd=ROOT, capture_output=True, text=True)
        assert (forked.returncode, forked.stderr) == (started.returncode, started.stderr)
        assert forked.stdout == started.stdout


def test_forked_server_is_killed_and_reaped_like_a_child_process(tmp_path: Path) -> None:
    command = [
        *CLI,
        "namesrv",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        str(tmp_path / "names"),
        "--until-stdin-closes",
    ]
    for end in (signal.SIGKILL, signal.SIGTERM, None):
        with (tmp_path / "log").open("wb") as log:
            server = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log, start_new_session=True)
        while b"listening" not in (tmp_path / "log").read_bytes():
            assert server.poll() is None, (tmp_path / "log").read_text()
        assert is_forked(server.pid)
        assert b"-m\0mq.cli\0namesrv\0" in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert parent_of(server.pid) == os.getpid()
        assert os.getsid(server.pid) == server.pid
        if end is not None:
            server.send_signal(end)
        server.communicate(timeout=30)
        assert server.returncode == (-end if end == signal.SIGKILL else 0)


def test_harness_finds_forked_servers_of_dead_runs(tmp_path: Path) -> None:
    """The next run of the harness kills what an earlier one has left; it finds it in /proc."""
    command = [
        *CLI,
        "namesrv",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        str(tmp_path / "names"),
        "--until-stdin-closes",
    ]
    environment = {**os.environ, RUN_VARIABLE: str(tmp_path)}
    with lock_directory(tmp_path), (tmp_path / "log").open("wb") as log:  # no other test may take it for such a server
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log, env=environment)
        while b"listening" not in (tmp_path / "log").read_bytes():
            assert server.poll() is None, (tmp_path / "log").read_text()
        assert is_forked(server.pid)
        assert run_of(Path(f"/proc/{server.pid}/environ").read_bytes()) == tmp_path
        server.kill()
        server.communicate(timeout=30)


def test_only_mq_commands_of_this_python_are_forked(tmp_path: Path) -> None:
    here, nothing = str(ROOT), dict[str, str]()
    assert wanted_module([*CLI, "status"], here, nothing) == (["mq.cli", "status"], {}, here)
    assert wanted_module(["env", "A=b", *CLI], here, nothing) == (["mq.cli"], {"A": "b"}, here)
    assert wanted_module([*CLI], str(tmp_path), {"PYTHONPATH": here}) is not None
    (tmp_path / "mq").mkdir()
    safe = [sys.executable, "-P", "-m", "mq.store.archive.worker"]
    assert wanted_module(safe, str(tmp_path), {"PYTHONPATH": here}) == (safe[3:], {"PYTHONPATH": here}, None)
    assert wanted_module([*CLI], str(tmp_path), nothing) is None, "another checkout"
    assert wanted_module([*CLI], here, {"PYTHONPATH": str(tmp_path)}) is not None, "the directory comes first"
    for other in ([sys.executable, "-O", *CLI[1:]], ["/usr/bin/python3", *CLI[1:]], [sys.executable, "-m", "pytest"]):
        assert wanted_module(other, here, nothing) is None


def test_processes_with_a_setting_of_python_are_started() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    server = subprocess.Popen([*CLI, "consume", "--help"], env=environment, stdout=subprocess.DEVNULL)
    assert not is_forked(server.pid)
    assert server.wait() == 0


def test_forked_process_forks_its_own_servers() -> None:
    command = [*CLI, "dev", "--ephemeral", "--port", "0", "--json", "--until-stdin-closes"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as dev:
        assert dev.stdout is not None
        assert b"namesrv" in dev.stdout.readline()
        children = Path(f"/proc/{dev.pid}/task/{dev.pid}/children").read_text().split()
        servers = [pid for pid in map(int, children) if os.getsid(pid) == pid]
        assert servers
        assert all(map(is_forked, servers))
        (interpreter,) = set(map(int, children)) - set(servers)
        said = Path(f"/proc/{interpreter}/cmdline").read_bytes()
        assert b"mq.cli" not in said, "it ends a moment after the command, for which nobody may take it"
        assert dev.stdin is not None
        dev.stdin.close()
        assert dev.wait(60) == 0
    assert not any(os.path.exists(f"/proc/{pid}") for pid in servers)
