"""Servers that cannot start say what is wrong and where, in one line, with exit code 2, and damage nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mq.local_cluster import Ports
from tests.support.commands import Done, run_here
from tests.support.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.process


IN_THE_WAY, REFUSED = 1, 2
"""Exit codes: of a start that may succeed later as it is, and of one that cannot."""


def refused(*arguments: str, code: int = REFUSED) -> str:
    """What a server that must not start says."""
    done = subprocess.run(
        [sys.executable, "-m", "mq.cli", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    return only_line(Done(done.returncode, done.stdout, done.stderr), code)


def refused_at_once(*arguments: str) -> str:
    """What a command says that does not begin to start anything: it needs no process of its own."""
    return only_line(run_here(*arguments))


def only_line(done: Done, code: int = REFUSED) -> str:
    assert done.code == code, done
    said = [line for line in done.err.splitlines() if line.startswith("raftmq: ")]
    assert len(said) == 1, done
    return said[0]


def broker_arguments(directory: Path, ports: Ports, *, node: str = "n0", group: str = "broker-a") -> list[str]:
    return [
        *("broker", "--data-dir", str(directory), "--group", group, "--node-id", node),
        *("--peers", f"{node}@127.0.0.1:{ports.replication[0]}", "--listen", f"127.0.0.1:{ports.clients[0]}"),
    ]


@contextmanager
def running(arguments: list[str], port: int) -> Iterator[None]:
    """A server that listens, stopped at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mq.cli", *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )

    def listens() -> bool:
        assert process.poll() is None, f"it ended: {process.stderr.read() if process.stderr else ''}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_name_server_names_the_port_in_use() -> None:
    with taken_port() as port:
        assert f"127.0.0.1:{port}" in refused("namesrv", "--listen", f"127.0.0.1:{port}", code=IN_THE_WAY)


def test_name_server_without_accounts_is_not_restarted(tmp_path: Path) -> None:
    """As for a broker: a file that a setting names is part of the settings."""
    refused("namesrv", "--listen", "127.0.0.1:0", "--set", f"acl_file={tmp_path / 'none.yml'}")


def test_broker_names_the_client_port_in_use(tmp_path: Path) -> None:
    ports = Ports.free(1)
    with taken_port() as port:
        arguments = broker_arguments(tmp_path, ports)
        arguments[-1] = f"127.0.0.1:{port}"
        assert f"127.0.0.1:{port}" in refused(*arguments, code=IN_THE_WAY)


def test_broker_names_the_replication_port_in_use(tmp_path: Path) -> None:
    ports = Ports.free(1)
    with taken_port() as port:
        said = refused(*broker_arguments(tmp_path, Ports(ports.namesrv, ports.clients, (port,))), code=IN_THE_WAY)
    assert f"127.0.0.1:{port}" in said


def test_absent_config_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "absent.toml"
    assert str(path) in refused("broker", "--config", str(path))


def test_malformed_config_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("listen = ")
    assert str(path) in refused_at_once("broker", "--config", str(path))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("nosuchsetting = 1", "nosuchsetting"),
        ('listen = "nowhere"', "nowhere"),
        ('durability = "none"', "durability"),
        ('node_id = "n7"', "n7"),
    ],
)
def test_wrong_setting_is_reported(tmp_path: Path, text: str, names: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    said = refused_at_once("broker", "--config", str(path))
    assert str(path) in said
    assert names in said


def test_data_directory_that_is_a_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("I am a file")
    assert str(path) in refused(*broker_arguments(path, Ports.free(1)))
    assert path.read_text() == "I am a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_data_directory_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir(mode=0o500)
    assert str(path) in refused(*broker_arguments(path, Ports.free(1)), code=IN_THE_WAY)


@pytest.mark.slow
def test_second_broker_on_one_directory_is_refused(tmp_path: Path) -> None:
    ports, others = Ports.free(1), Ports.free(1)
    with running(broker_arguments(tmp_path, ports), ports.clients[0]):
        assert str(tmp_path) in refused(*broker_arguments(tmp_path, others), code=IN_THE_WAY)


@pytest.mark.slow
@pytest.mark.parametrize(("node", "group"), [("n1", "broker-a"), ("n0", "broker-b")])
def test_directory_of_another_node_or_group_is_refused(tmp_path: Path, node: str, group: str) -> None:
    ports = Ports.free(1)
    arguments = broker_arguments(tmp_path, ports)
    with running(arguments, ports.clients[0]):
        pass
    assert str(tmp_path) in refused(*broker_arguments(tmp_path, Ports.free(1), node=node, group=group))
    with running(arguments, ports.clients[0]):
        pass


def test_optimised_interpreter_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-m", "mq.cli", "status"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "-O" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("dev", "--dir", "x", "--nodes", "2"),
        ("namesrv", "--listen", "nowhere"),
        ("consume", "T", "--group", "g", "--from", "middle"),
        ("status", "--namesrv", "no address"),
        ("broker", "--set", "novalue"),
    ],
)
def test_wrong_option_is_refused(arguments: tuple[str, ...]) -> None:
    refused_at_once(*arguments)
