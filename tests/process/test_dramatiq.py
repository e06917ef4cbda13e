"""Dramatiq's own command runs workers: the page's example, a worker and a leader that are killed, an application that
forks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from raftmq.testing import running_processes
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "dramatiq.md"
MESSAGES = 20

MODULE = """
import os, time
from pathlib import Path
import dramatiq
from raftmq.dramatiq import RaftmqBroker

dramatiq.set_broker(RaftmqBroker("127.0.0.1:9876", namespace="real", visibility=2.0))
here = Path(__file__).parent

def note(line):
    with open(here / "notes", "a") as file:
        file.write(line + "\\n")

@dramatiq.actor
def work(name):
    note(f"began {name} in {os.getpid()}")
    if "HANG" in os.environ:
        time.sleep(3600)
    if name == "long":
        time.sleep(6)  # three times as long as a message of a dead worker stays hidden
    note(f"ended {name}")
"""
SENDER = """
import os
import real

real.work.send("parent")
if os.fork() == 0:  # the connection is the parent's
    real.work.send("child")
    real.dramatiq.get_broker().close()
    os._exit(0)
assert os.wait()[1] == 0
for number in range(NUMBER):
    real.work.send(str(number))
real.work.send("long")
real.dramatiq.get_broker().close()
"""


@contextmanager
def worker(directory: Path, module: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """`dramatiq` and its two processes, ended with all that it started."""
    command = [sys.executable, "-m", "dramatiq", module, "--processes", "2", "--threads", "2", "--path", str(directory)]
    with (directory / "output").open("ab") as output:
        process = subprocess.Popen(
            command, cwd=directory, env=_environment(environment), stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        kill(process)


def _environment(more: dict[str, str]) -> dict[str, str]:
    return os.environ | more | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def kill(process: subprocess.Popen[bytes]) -> None:
    """By SIGKILL, with its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run(directory: Path, code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=directory, env=_environment({}), check=True, timeout=120)


def lines(directory: Path) -> list[str]:
    notes = directory / "notes"
    return notes.read_text().splitlines() if notes.exists() else []


def ended(directory: Path) -> Counter[str]:
    return Counter(line.split()[1] for line in lines(directory) if line.startswith("ended"))


def test_messages_survive_the_end_of_a_worker_and_of_a_leader(tmp_path: Path) -> None:
    with running_processes(replicas=3) as servers, ExitStack() as stack:
        (tmp_path / "real.py").write_text(MODULE.replace("127.0.0.1:9876", servers.namesrv))
        hanging = stack.enter_context(worker(tmp_path, "real", HANG="1"))
        run(tmp_path, "import real; real.work.send('first'); real.dramatiq.get_broker().close()")
        wait_until(lambda: len(lines(tmp_path)) == 1)
        servers.kill(servers.leader())
        run(tmp_path, SENDER.replace("NUMBER", str(MESSAGES)))
        wait_until(lambda: len(lines(tmp_path)) == 4)  # two processes with two threads hang in as many
        kill(hanging)
        second = stack.enter_context(worker(tmp_path, "real"))
        expected = Counter(["first", "parent", "child", "long", *map(str, range(MESSAGES))])
        wait_until(lambda: ended(tmp_path).keys() == expected.keys())
        assert ended(tmp_path) == expected
        assert sum(line.startswith("began long") for line in lines(tmp_path)) <= 2  # one hung in it, perhaps
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0

        tasks, application = PAGE.read_text().split("```python\n")[1:3]
        (tmp_path / "tasks.py").write_text(tasks.split("```")[0].replace("127.0.0.1:9876", servers.namesrv))
        stack.enter_context(worker(tmp_path, "tasks"))
        run(tmp_path, application.split("```")[0])
        output = tmp_path / "output"
        wait_until(lambda: "1 + 2" in output.read_text() and "3 + 4" in output.read_text())
