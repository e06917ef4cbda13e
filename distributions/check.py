"""``make dist-check``: tries what `make dist` has built, in new virtual environments of each interpreter.

The client alone: how many distributions and bytes it installs, what importing it costs, what is at its top level, what
the command says. The servers: `raftmq dev`, to which the client in its own environment sends and from which it
receives. The test kit, in a session of pytest. The servers again, built from their source distribution without a
compiler: all in Python. With the first interpreter also the extras, each by a program that needs it.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from distributions.build import DIST, ROOT
from distributions.extras import (
    CLIENT_EXTRAS,
    SERVER_EXTRAS,
    check_client_extra,
    check_server_extra,
    check_together,
    install_together,
    untried,
)
from distributions.interpreters import Environment, Interpreter, clean_environment, find_interpreters, new_environment
from distributions.measured import IMPORT_CPU_SECONDS, INSTALLED, import_cpu_seconds, installed_bytes
from tests.free_ports import free_ports

DISTRIBUTIONS_MAX: Final = 5
BYTES_MAX: Final = 10_000_000
START_SECONDS_MAX: Final = 120.0
MESSAGES: Final = 100

_OUR_TOP_LEVEL: Final = """
import json
from importlib.metadata import distribution

tops = {path.parts[0] for path in distribution("raftmq").files if path.parts[0] != ".."}
print(json.dumps(sorted(top for top in tops if not top.endswith(".dist-info"))))
"""

_SEND_AND_RECEIVE: Final = """
import asyncio, sys
from raftmq import Admin, Message, Producer, PushConsumer
from raftmq.sync import SyncProducer

namesrv, count = sys.argv[1], int(sys.argv[2])
bodies = {b"%d" % number for number in range(count)}

async def main():
    async with Admin(namesrv) as admin:
        await admin.create_topic("Tried", queues=4)
    async with Producer(namesrv, group="trying") as producer:
        for body in sorted(bodies)[: count // 2]:
            await producer.send(Message("Tried", body))
    with SyncProducer(namesrv, group="trying-threads") as producer:
        for body in sorted(bodies)[count // 2 :]:
            producer.send(Message("Tried", body))
    received = set()
    async with asyncio.timeout(60), PushConsumer(namesrv, group="readers", consume_from="first") as consumer:
        consumer.subscribe("Tried")
        async for message in consumer:
            received.add(message.body)
            if len(received) == count:
                break
    assert received == bodies
    print(len(received))

asyncio.run(main())
"""

_KIT_TEST: Final = """
import asyncio
from raftmq import Message, Producer
from raftmq.sync import SyncProducer
from raftmq.testing import open_kit

def test_sync(raftmq_kit):
    with SyncProducer(raftmq_kit.namesrv) as producer:
        producer.send(Message("Tried", b"late", delay=40 * 86_400))
    raftmq_kit.advance(days=40)
    raftmq_kit.assert_stored("Tried", b"late")

def test_asyncio():
    async def main():
        async with open_kit(replicas=3) as kit, Producer(kit.namesrv) as producer:
            await producer.send(Message("Tried", b"1"))
            await kit.lose_leader()
            await producer.send(Message("Tried", b"2"))
            kit.assert_stored("Tried", b"1", b"2")
    asyncio.run(main())

def test_processes(raftmq_broker):
    with SyncProducer(raftmq_broker.namesrv) as producer:
        producer.send(Message("Tried", b"1"))
"""

_IS_COMPILED: Final = """
import mq.compiled, raftlog.compiled.loaded
print(mq.compiled.IS_COMPILED and raftlog.compiled.loaded.IS_COMPILED, mq.compiled.__file__)
"""


class CheckFailed(Exception):
    """What was built does not do what it should."""


def main() -> int:
    """Exit code 1 if a check fails, 3 if nothing was built."""
    if not list(DIST.glob("raftmq-*.whl")):
        print("raftmq: nothing is built: make dist", file=sys.stderr)
        return 3
    failed = False
    interpreters = find_interpreters()
    for number, interpreter in enumerate(interpreters):
        try:
            with tempfile.TemporaryDirectory(prefix="raftmq-check-") as directory:
                check(interpreter, Path(directory), is_first=number == 0)
        except (CheckFailed, subprocess.CalledProcessError) as error:
            print(f"Python {interpreter.version}: FAILED: {error}", flush=True)
            failed = True
    print(f"tried with {', '.join(each.version for each in interpreters)}")
    return int(failed)


def check(interpreter: Interpreter, directory: Path, *, is_first: bool) -> None:
    """All checks with one interpreter; types and extras if it is the first. Raises CheckFailed, CalledProcessError."""

    def say(text: str) -> None:
        print(f"Python {interpreter.version}: {text}", flush=True)

    (client_wheel,) = DIST.glob("raftmq-*.whl")
    client = new_environment(interpreter, directory / "client")
    client.pip("install", "--only-binary", ":all:", str(client_wheel))
    say(check_client(client))
    if is_first:
        say(check_types(new_environment(interpreter, directory / "types"), client_wheel, directory / "programs"))
    server = new_environment(interpreter, directory / "server")
    wheels = list(DIST.glob(f"raftmq_server-*-{interpreter.tag}-*.whl"))
    (source,) = DIST.glob("raftmq_server-*.tar.gz")
    server.pip("install", str(client_wheel), str(wheels[0] if wheels else source))
    say(f"servers, from {'a wheel' if wheels else 'the source distribution'}: {check_server(server, client)}")
    say(f"test kit: {check_kit(server, directory / 'tests')}")
    if is_first:
        for said in check_extras(interpreter, directory, client_wheel, server, wheels[0] if wheels else source):
            say(said)
    # Over the wheel, with the same dependencies: what pip builds where nothing can compile.
    server.pip("install", "--force-reinstall", "--no-deps", "--no-cache-dir", str(source), CC="/no/compiler")
    if not server.run("-c", _IS_COMPILED).startswith("False "):
        raise CheckFailed("compiled modules were built without a compiler")
    say(f"servers, built without a compiler: {check_server(server, client, compiled=False)}")


def check_client(client: Environment) -> str:
    """An environment with the client alone. Raises CheckFailed, CalledProcessError."""
    client.pip("check")
    sizes = installed_bytes(client)
    needed = sorted(set(sizes) - {"raftmq"})
    total = sum(sizes.values())
    if len(needed) > DISTRIBUTIONS_MAX or total > BYTES_MAX:
        raise CheckFailed(f"the client installs {total} bytes, and needs {', '.join(needed)}")
    top = json.loads(client.run("-c", _OUR_TOP_LEVEL))
    if top != ["mq", "raftmq"]:
        raise CheckFailed(f"the client's top level has {', '.join(top)}")
    command = subprocess.run([client.directory / "bin/raftmq", "status"], check=False, capture_output=True, text=True)
    if (
        command.returncode != 3
        or "pip install 'raftmq[server]'" not in command.stderr
        or command.stderr.count("\n") > 1
    ):
        raise CheckFailed(f"the command without servers: {command}")
    seconds = import_cpu_seconds(client)
    said = (
        f"client: {total / 1e6:.1f} MB, of it raftmq {sizes['raftmq'] / 1e6:.1f}; needs {', '.join(needed)}; "
        f"import mq.client: {seconds:.3f} s of CPU"
    )
    if seconds > 2 * IMPORT_CPU_SECONDS:
        raise CheckFailed(said)
    return said


def check_types(types: Environment, client_wheel: Path, programs: Path) -> str:
    """Programs of users, with type checkers that see the installed client. Raises CheckFailed, CalledProcessError."""
    types.pip("install", str(client_wheel), "mypy", "pyright[nodejs]")
    shutil.copytree(ROOT / "tests/users", programs, ignore=shutil.ignore_patterns("__pycache__"))
    (programs / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    said = []
    for name, arguments in {
        "mypy": ["--strict", "--config-file=", str(programs)],
        "pyright": ["--project", str(programs), "--pythonpath", types.python],
    }.items():
        result = subprocess.run(
            [types.python, "-m", name, *arguments],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=types.directory,
            env=clean_environment(),
        )
        if result.returncode == 1:
            raise CheckFailed(f"{name} on programs of users:\n{result.stdout}")
        last = result.stdout.strip().rpartition("\n")[2]
        said.append(f"{name}: {last}" if result.returncode == 0 else f"{name} could not run: {last}")
    return f"types, strict: {'; '.join(said)}"


def check_server(server: Environment, client: Environment, *, compiled: bool = True) -> str:
    """`raftmq dev` of one environment with a program in another. Raises CheckFailed, CalledProcessError."""
    server.pip("check")
    is_compiled, _, where = server.run("-c", _IS_COMPILED).strip().partition(" ")
    if is_compiled != str(compiled) or str(server.directory) not in where:
        raise CheckFailed(f"compiled: {is_compiled}, from {where}")
    with running_dev(server) as namesrv:
        count = client.run("-c", _SEND_AND_RECEIVE, namesrv, str(MESSAGES)).strip()
        status: Any = json.loads(
            subprocess.run(
                [server.directory / "bin/raftmq", "status", "--json", "--namesrv", namesrv],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
    if count != str(MESSAGES) or not status:
        raise CheckFailed(f"{count} of {MESSAGES} messages, status {status}")
    installed = installed_bytes(server)
    return (
        f"{sum(installed.values()) / 1e6:.0f} MB in {len(installed)} distributions, compiled: {is_compiled}; "
        f"raftmq dev passed {count} messages on"
    )


def check_extras(
    interpreter: Interpreter, directory: Path, client_wheel: Path, server: Environment, server_distribution: Path
) -> Iterator[str]:
    """Each extra of the client in an environment of its own, those of the servers in theirs, and all of them in one.
    Raises CheckFailed, CalledProcessError.
    """
    if missing := untried():
        raise CheckFailed(f"extras without a program in distributions/extras.py: {', '.join(sorted(missing))}")
    with running_dev(server) as namesrv:
        for extra in CLIENT_EXTRAS:
            yield check_client_extra(
                extra, interpreter, directory / f"extra-{extra}", client_wheel, namesrv, listing=INSTALLED
            )
    for extra in SERVER_EXTRAS:
        yield check_server_extra(extra, server, server_distribution)
    together = install_together(interpreter, directory / "together", client_wheel)
    with running_dev(together) as namesrv:
        yield check_together(together, namesrv, listing=INSTALLED)


def check_kit(server: Environment, tests: Path) -> str:
    """A session of pytest with the fixtures of the test kit, which it finds by itself. Raises CheckFailed."""
    server.pip("install", "pytest")
    tests.mkdir()
    (tests / "test_kit.py").write_text(_KIT_TEST)
    command = [server.python, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tests)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tests, env=clean_environment())
    if result.returncode != 0:
        raise CheckFailed(f"the test kit:\n{result.stdout}{result.stderr}")
    return result.stdout.strip().rpartition("\n")[2]


@contextmanager
def running_dev(server: Environment) -> Iterator[str]:
    """`raftmq dev` with one replica; yields the address of its name server. Raises CheckFailed."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="raftmq-dev-") as data:
        process = subprocess.Popen(
            [server.directory / "bin/raftmq", "dev", "--dir", data, "--nodes", "1", "--base-port", str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment(),
            cwd=data,
        )
        try:
            _wait_until_ready(process)
            yield f"127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def _wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    said: list[str] = []
    deadline = time.monotonic() + START_SECONDS_MAX
    for line in process.stdout:
        said.append(line)
        if line.startswith("ready"):
            return
        if time.monotonic() > deadline:
            break
    raise CheckFailed(f"raftmq dev did not start:\n{''.join(said)}")


if __name__ == "__main__":
    sys.exit(main())
