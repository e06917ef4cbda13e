"""Children with names and logs: programs of the shell here, servers elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mq.local_cluster import HOST, Processes, ServersFailed, open_processes
from mq.local_cluster.processes import last_words
from tests.free_ports import free_ports
from tests.support.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with open_processes(tmp_path) as started:
        yield started


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def test_unexpected_end_is_reported_with_the_last_line(processes: Processes) -> None:
    processes.start("server", shell("echo it starts; echo no room; exit 3"))
    wait_until(lambda: not processes.is_running("server"))
    assert processes.exit_codes() == {"server": 3}
    with pytest.raises(ServersFailed, match=r"^server stopped with exit code 3: no room \(see .*server\.log\)$"):
        processes.check()
    processes.expect_end("server")
    assert not processes.exit_codes()


def test_killed_process_has_not_ended_unexpectedly(processes: Processes) -> None:
    processes.start("server", ["sleep", "100"])
    processes.kill("server")
    assert trio.run(processes.wait_ended, "server") == -signal.SIGKILL
    processes.check()
    first = processes.pid("server")
    assert processes.start("server", ["sleep", "100"]) != first
    with pytest.raises(AssertionError, match="server is running already"):
        processes.start("server", ["sleep", "100"])


def test_process_can_be_stopped_from_another_thread(processes: Processes) -> None:
    starting = threading.Thread(target=processes.start, args=("server", ["sleep", "100"]), kwargs={"input_pipe": True})
    starting.start()
    starting.join()
    trio.run(processes.stop, "server")
    assert processes.exit_code("server") == -signal.SIGTERM


def test_process_that_ignores_the_signal_is_killed_after_a_while(processes: Processes) -> None:
    processes.start("server", shell("trap '' TERM; echo ready; while true; do sleep 0.05; done"))
    trio.run(processes.wait_said, "server", re.compile("ready"))
    trio.run(processes.stop, "server", 0.1)
    assert processes.exit_code("server") == -signal.SIGKILL


def test_stop_all_terminates_a_suspended_process(processes: Processes) -> None:
    processes.start("server", ["sleep", "100"])
    processes.send_signal("server", signal.SIGSTOP)
    trio.run(processes.stop_all)
    assert processes.exit_code("server") == -signal.SIGTERM


def test_wait_reads_only_the_log_of_the_present_run(processes: Processes) -> None:
    processes.start("server", shell("echo port 1"))
    wait_until(lambda: not processes.is_running("server"))
    begin = processes.log_bytes("server")
    processes.start("server", shell("echo port 2; sleep 100"))
    assert trio.run(processes.wait_said, "server", re.compile(r"port (\d)"), begin)[1] == "2"
    processes.kill("server")


def test_server_that_ends_instead_of_listening_is_reported(processes: Processes) -> None:
    processes.start("server", shell("echo the port is taken; exit 1"))
    with pytest.raises(ServersFailed, match="server stopped with exit code 1: the port is taken"):
        trio.run(processes.wait_listening, "server", free_ports(1)[0])


def test_server_that_does_not_listen_in_time_is_reported(processes: Processes) -> None:
    port = free_ports(1)[0]
    processes.start("server", ["sleep", "100"])
    with pytest.raises(ServersFailed, match=rf"no server on port {port} within 0\.1 s .*{HOST}.*server says it said"):
        trio.run(processes.wait_listening, "server", port, 0.1)


def test_killing_a_server_kills_its_children(processes: Processes) -> None:
    processes.start("server", shell("sleep 100 & echo child $!; wait"))
    child = int(trio.run(processes.wait_said, "server", re.compile(r"child (\d+)\n"))[1])
    processes.kill_all()
    wait_until(lambda: state_of(child) in ("", "Z"))


@pytest.mark.parametrize("starts_late", [False, True])
def test_children_die_with_their_parent(tmp_path: Path, starts_late: bool) -> None:
    slow = tmp_path / "bin" / "setpriv"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep 0.3\nexec {shutil.which("setpriv")} "$@"\n')
    slow.chmod(0o755)
    path = f"{slow.parent}:{os.environ['PATH']}" if starts_late else os.environ["PATH"]
    code = (
        "import sys, time; from pathlib import Path; from mq.local_cluster import Processes; "
        "print(Processes(Path(sys.argv[1])).start('server', ['sleep', '100']), flush=True); time.sleep(100)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    environment = os.environ | {"PATH": path}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.kill()
    wait_until(lambda: state_of(child) in ("", "Z"))


@pytest.mark.parametrize("has_pipe", [True, False])
def test_starting_a_missing_program_fails_at_once(tmp_path: Path, has_pipe: bool) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        Processes(tmp_path).start("server", ["no-such-program"], input_pipe=has_pipe)


def test_error_of_a_failed_java_server_is_shown_without_its_stack_trace(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text("java.net.BindException: Address already in use\n\tat sun.nio.ch.Net.bind(Net.java:1)\n")
    assert last_words(log) == f"java.net.BindException: Address already in use (see {log})"


def state_of(pid: int) -> str:
    """The letter that the kernel has for a process; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""
