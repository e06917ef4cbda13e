"""What is attacked: a broker with accounts and a name server as real processes, and what must hold afterwards."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import trio

from mq.broker.state.format_level import LEVEL_NEWEST
from mq.local_cluster import Processes, open_processes
from mq.protocol.codes import RequestCode, ResponseCode
from raftlog.net.secret_file import read_secrets
from tests.free_ports import free_ports
from tests.support.running_broker import Answer, Client
from tests.support.waiting import until

HOST = "127.0.0.1"
MIB = 1024 * 1024
SECONDS_MAX = 60.0
MEMORY_GROWTH_MAX = 192 * MIB
"""Peak above the memory after the start: what the settings below allow for requests and replies, and twice as much."""

ADMIN, PRODUCER, CONSUMER = (
    ("administrator", "admin-SECRET-1"),
    ("producer", "send-SECRET-22"),
    ("consumer", "read-SECRET-333"),
)
ACCOUNTS = f"""
accounts:
- {{accessKey: {ADMIN[0]}, secretKey: {ADMIN[1]}, admin: true}}
- {{accessKey: {PRODUCER[0]}, secretKey: {PRODUCER[1]}, topicPerms: [T=PUB]}}
- {{accessKey: {CONSUMER[0]}, secretKey: {CONSUMER[1]}, topicPerms: [T=SUB], groupPerms: [G=SUB]}}
"""
_SETTINGS = {
    "segment_bytes": 8 * MIB,
    "partial_request_bytes_max": 32 * MIB,
    "unread_replies_bytes_max": 32 * MIB,
    "metrics_listen": "off",
    "connections_max": 2000,
}
_NAME_SERVER_SETTINGS = {
    "RAFTMQ_NAMESRV_METRICS_LISTEN": "off",
    "RAFTMQ_NAMESRV_UNFINISHED_BYTES_MAX": str(32 * MIB),
    "RAFTMQ_NAMESRV_UNREAD_BYTES_MAX": str(32 * MIB),
}


class State(NamedTuple):
    """What attacks must not change."""

    term: str
    entries: int
    """Of the log, but for those of `Target.send`."""
    topics: bytes
    groups: bytes
    settings: bytes
    cluster: bytes
    """The brokers that the name server knows."""
    routes: bytes
    files: tuple[tuple[str, str], ...]
    """Names and digests of files outside of what servers write to."""


class Target:
    """A running broker with the topic ``T`` and a name server. ``directory`` is everything that they may see."""

    def __init__(self, directory: Path, processes: Processes, ports: list[int]) -> None:
        self.directory = directory
        self.processes = processes
        self.namesrv, self.clients, self.replication = ports
        self.acl_file = directory / "plain_acl.yml"
        self._sent = 0
        self._memory = {name: memory_bytes(processes.pid(name), "VmRSS") for name in processes.names}

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The secrets of the group."""
        return read_secrets(str(self.directory / "broker" / "group.secret"))

    @asynccontextmanager
    async def client(self, keys: tuple[str, str] | None = None) -> AsyncIterator[Client]:
        """A connection to the broker; requests are signed if keys are given."""
        async with connected(self.clients) as client:
            client.keys = keys
            yield client

    async def state(self) -> State:
        """See `State`."""
        async with self.client(ADMIN) as admin, connected(self.namesrv) as names:
            info = await admin.info()
            return State(
                info["raftmq.term"],
                int(info["raftmq.lastIndex"]) - self._sent,
                await body(admin, RequestCode.GET_ALL_TOPIC_CONFIG),
                await body(admin, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
                await body(admin, RequestCode.GET_BROKER_CONFIG),
                await body(names, RequestCode.GET_BROKER_CLUSTER_INFO),
                await body(names, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
                tuple(self._files()),
            )

    async def send(self, producer: Client, body: bytes = b"body", **given: Any) -> Answer:
        """A message of somebody who may send it: one entry of the log."""
        sent = await producer.send("T", body, **given)
        assert sent.code == ResponseCode.SUCCESS, sent
        self.note_sent()
        return sent

    def note_sent(self) -> None:
        """Somebody who may has added an entry to the log."""
        self._sent += 1

    async def serve_first(self) -> None:
        """Serve somebody for the first time, and wait until the consumer group that this makes is known everywhere."""
        await self.serve_somebody()
        async with self.client(ADMIN) as admin, connected(self.namesrv) as names:
            with trio.fail_after(SECONDS_MAX):
                while b'"%RETRY%G"' not in await body(admin, RequestCode.GET_ALL_TOPIC_CONFIG):
                    pass
                while b'"G"' not in await body(admin, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
                    pass
                while b'"%RETRY%G"' not in await body(names, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER):
                    pass
            await admin.wait_for(lambda info: info["raftmq.appliedIndex"] == info["raftmq.lastIndex"])

    async def serve_somebody(self) -> None:
        """A producer and a consumer with the right keys, and a client of the name server, get what they want."""
        async with self.client(PRODUCER) as producer, self.client(CONSUMER) as consumer:
            sent = await self.send(producer)
            found = await consumer.pull("T", offset=int(sent.ext["queueOffset"]))
            assert [record.body for record in found.records] == [b"body"], found
        async with connected(self.namesrv) as names:
            route = await names.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
            assert route.code == ResponseCode.SUCCESS, route

    def check_processes(self) -> None:
        """They run, their memory is bounded, and they wrote no secret into their logs."""
        known = [secret for _, secret in (ADMIN, PRODUCER, CONSUMER)]
        known += [shown for secret in self.secrets for shown in (secret.hex(), repr(secret))]
        for name in self.processes.names:
            log = self.processes.log_path(name).read_text()
            assert self.processes.is_running(name), log[-2000:]
            grown = memory_bytes(self.processes.pid(name), "VmHWM") - self._memory[name]
            assert grown < MEMORY_GROWTH_MAX, f"{name} took {grown} bytes more"
            assert not [secret for secret in known if secret in log], f"a secret is in the log of the {name}"
            assert "Traceback" not in log, log[-4000:]

    def _files(self) -> Iterator[tuple[str, str]]:
        for folder, _, names in sorted(os.walk(self.directory.parent)):
            if Path(folder).is_relative_to(self.directory / "broker"):
                continue
            for path in (Path(folder, name) for name in sorted(names) if not name.endswith(".log")):
                yield str(path), hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def running_target(directory: Path) -> Iterator[Target]:
    """Start it, and stop it."""
    ports = free_ports(3)
    (directory / "plain_acl.yml").write_text(ACCOUNTS)
    namesrv, clients, replication = (f"{HOST}:{port}" for port in ports)
    settings = [f"--set={name}={value}" for name, value in _SETTINGS.items()]
    commands = {
        "namesrv": ["namesrv", "--listen", namesrv, "--data-dir", str(directory / "names")],
        "broker": [
            *("broker", "--data-dir", str(directory / "broker"), "--listen", clients, "--namesrv", namesrv),
            *("--peers", f"n0@{replication}", f"--set=acl_file={directory / 'plain_acl.yml'}", *settings),
        ],
    }
    with open_processes(directory) as processes:
        for name, command in commands.items():
            processes.start(name, [sys.executable, "-m", "mq.cli", *command], _NAME_SERVER_SETTINGS)
        trio.run(until, partial(_is_serving, ports[0], ports[1]))
        target = Target(directory, processes, ports)
        trio.run(target.serve_first)
        yield target


async def _is_serving(namesrv: int, clients: int) -> bool:
    try:
        async with connected(clients) as admin, connected(namesrv) as names:
            admin.keys = ADMIN
            if (await admin.create_topic("T")).code != ResponseCode.SUCCESS:
                return False
            if (await admin.info())["raftmq.formatLevel"] != str(LEVEL_NEWEST):
                return False  # the leader will add an entry for that
            route = await names.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
            return route.code == ResponseCode.SUCCESS
    except (OSError, trio.BrokenResourceError, AssertionError):
        return False


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    """A connection that speaks frames."""
    async with await trio.open_tcp_stream(HOST, port) as stream:
        yield Client(stream)


async def body(client: Client, code: int) -> bytes:
    """The body of an answer that must be a success."""
    answer = await client.request(code)
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer.body


def memory_bytes(pid: int, field: str) -> int:
    """VmRSS, or VmHWM: the most it ever was."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field} of process {pid}")
