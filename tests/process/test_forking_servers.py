"""Clients in web servers that import the application and fork afterwards: gunicorn and uWSGI, real ones.

They are installed into an environment of their own; uWSGI is compiled there. Skipped without a package index or a
compiler.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from mq.client.sync import SyncPullConsumer
from mq.testing import ServerProcesses, running_processes
from tests.free_ports import free_ports

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
REQUESTS: Final = 60
SECONDS_MAX: Final = 60.0
STOP_SECONDS: Final = 5.0
APPLICATION: Final = "tests.support.forking_application"
TOPIC: Final = "web-orders"
UWSGI: Final = [
    "uwsgi", "--http-socket", "127.0.0.1:{port}", "--module", f"{APPLICATION}:application", "--master", "--need-app",
    "--die-on-term", "--disable-logging", "--enable-threads",
]  # fmt: skip
GUNICORN: Final = ["gunicorn", "--bind", "127.0.0.1:{port}", "--workers", "2", f"{APPLICATION}:application"]


class Server(NamedTuple):
    """How a server is started, what opens the producer, and why a worker opens it again at its first request."""

    command: list[str]
    opened_by: str
    opened_again: str = ""


# uWSGI is left out with a client that was open before it forked: it gives up the interpreter while it forks, and a
# worker hangs if a thread of its parent had the interpreter at that moment.
SERVERS: Final = {
    "gunicorn": Server(GUNICORN, "import"),
    "gunicorn, preload": Server([*GUNICORN, "--preload"], "import", "ClientForked"),
    "uWSGI": Server([*UWSGI, "--processes", "2"], "uwsgidecorators"),
    "uWSGI, lazy-apps": Server([*UWSGI, "--processes", "2", "--lazy-apps"], "import"),
    "uWSGI, cheaper": Server(
        [*UWSGI, "--processes", "3", "--cheaper", "1", "--cheaper-initial", "1"], "uwsgidecorators"
    ),
    "uWSGI, threads": Server([*UWSGI, "--processes", "2", "--threads", "4"], "request", "ClientClosed"),
    "uWSGI, hooks of Python": Server([*UWSGI, "--processes", "2", "--py-call-osafterfork"], "request", "ClientClosed"),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers are installed."""
    directory = tmp_path_factory.mktemp("web-servers") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    install = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python"), "install", "--quiet"]
    done = subprocess.run([*install, "gunicorn", "uwsgi"], capture_output=True, text=True, timeout=500, check=False)
    if done.returncode:
        pytest.skip(f"gunicorn and uWSGI cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    return directory / "bin"


@pytest.fixture
def brokers() -> Iterator[ServerProcesses]:
    with running_processes() as processes:
        yield processes


@contextmanager
def running(server: Server, programs: Path, namesrv: str, log: Path) -> Iterator[int]:
    """The server, until the block ends; yields its port. Says what it logged if it fails."""
    [port] = free_ports(1)
    program, *arguments = [each.format(port=port) for each in server.command]
    installed = sysconfig.get_paths()["purelib"]
    own = str(next((programs.parent / "lib").iterdir()) / "site-packages")
    environment = {
        **os.environ,
        "NAMESRV": namesrv,
        "OPENED_BY": server.opened_by,
        "PYTHONPATH": os.pathsep.join([str(ROOT), own, installed]),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(programs / program), *arguments],
            stdout=output,
            stderr=output,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
    try:
        yield port
    except BaseException as error:
        error.add_note(log.read_text(errors="replace")[-5000:])
        raise
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):  # uWSGI forgets workers that are just starting
            process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ask(port: int, path: str) -> dict[str, Any]:
    """The answer of the application, as soon as it serves."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS_MAX)
        try:
            connection.request("GET", path)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
            continue
        with connection.getresponse() as answer:
            assert answer.status == 200, answer.read()
            found: dict[str, Any] = json.load(answer)
            return found


def stored(namesrv: str) -> Counter[bytes]:
    with SyncPullConsumer(namesrv, "readers", consume_from="first") as consumer:
        consumer.assign(consumer.queues(TOPIC))
        return Counter(message.body for message in consumer.read_to_end())


@pytest.mark.parametrize("name", SERVERS)
def test_each_web_worker_sends_over_its_own_connections(
    name: str, programs: Path, brokers: ServerProcesses, tmp_path: Path
) -> None:
    server = SERVERS[name]
    with running(server, programs, brokers.namesrv, tmp_path / "log") as port, ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda number: ask(port, f"/{number}"), range(REQUESTS)))
        if server.opened_by != "import" or server.opened_again:  # it forks another worker, of what it has imported
            killed = answers[-1]["pid"]
            os.kill(killed, signal.SIGKILL)
        answers += [ask(port, f"/{number}") for number in range(REQUESTS, REQUESTS + 20)]
    bodies = stored(brokers.namesrv)
    imported = bodies.pop(b"imported", 0)
    assert bodies == Counter({b"/%d" % number: 1 for number in range(REQUESTS + 20)})
    workers = {each["pid"] for each in answers}
    assert {each["opened"] for each in answers} <= {"", server.opened_again}
    opened_again = {each["pid"] for each in answers if each["opened"]}
    assert opened_again == (workers if server.opened_again else set())
    if server.opened_by == "import":
        assert imported == 1 if server.opened_again else imported >= len(workers)
    else:
        assert imported == 0
