"""A filter server as a process, beside the replicas of a group: its command, consumers of it, and a failover."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mq.client import Message
from mq.client.sync import SyncAdmin, SyncProducer
from mq.testing import ServerProcesses, running_processes
from tests.free_ports import free_ports
from tests.support.filter_servers import begins_with
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

RAFTMQ = (sys.executable, "-m", "mq.cli")


@contextmanager
def filter_server(servers: ServerProcesses, replica: str) -> Iterator[str]:
    """The command, beside a replica; yields its address."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    given = ["--broker", servers.address(replica), "--namesrv", servers.namesrv, "--listen", address]
    process = subprocess.Popen(
        [*RAFTMQ, "filter-server", *given, "--set", "metrics_listen=off", "--until-stdin-closes"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield address
    finally:
        process.kill()
        process.communicate()


def consumed(namesrv: str, count: int, wanted: str) -> list[str]:
    """What the command prints."""
    given = ["Orders", "--group", "billing", "--count", str(count), "--filter", wanted, "--namesrv", namesrv]
    done = subprocess.run([*RAFTMQ, "consume", *given], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


def test_filter_of_a_group_survives_a_failover(tmp_path: Path) -> None:
    path = tmp_path / "begins_with_a.wasm"
    path.write_bytes(begins_with("a"))
    with running_processes(replicas=3) as servers, SyncAdmin(servers.namesrv) as admin:
        admin.create_topic("Orders", queues=1)
        with SyncProducer(servers.namesrv, timeout=30) as producer:
            first = servers.leader()
            second = next(each for each in servers.replicas if each != first)
            with filter_server(servers, first) as address, filter_server(servers, second) as other:

                def known() -> set[str]:
                    route = admin.route("Orders")
                    return {each for found in route.filter_servers.values() for each in found}

                wait_until(lambda: known() == {address, other})
                for body in (b"apple", b"bread", b"avocado"):
                    producer.send(Message("Orders", body))
                assert consumed(servers.namesrv, 2, str(path)) == ["apple", "avocado"]
                servers.kill(first)
                for body in (b"cheese", b"almond"):
                    producer.send(Message("Orders", body))
                assert consumed(servers.namesrv, 1, str(path)) == ["almond"]
