"""A name server and three brokers as processes, each broker with a network of its own, to be killed, cut off, moved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from benchmarks.netns import OUTSIDE, Networks, open_networks
from mq.cli.cluster_view import UNREACHABLE, GroupStatus, ask_cluster
from mq.client.errors import ClientError
from raftlog.secret_file import create_secret

ROOT = Path(__file__).parent.parent
NODES = 3
CLIENT_PORT, REPLICATION_PORT, NAMESRV_PORT = 10911, 10931, 9876
GROUP = "broker-a"
READY_SECONDS_MAX = 60.0
LAG_ENTRIES_MAX = 20


class ClusterFailed(Exception):
    """The cluster did not get where it should in time; the message says where, and where the logs are."""


@dataclass(slots=True)
class FailoverCluster:
    """Nodes n0, n1, n2; made by `open_cluster`."""

    directory: Path
    networks: Networks
    _nursery: trio.Nursery
    _processes: dict[str, trio.Process] = field(default_factory=dict)

    @property
    def namesrv(self) -> str:
        """Address of the name server."""
        return f"{OUTSIDE}:{NAMESRV_PORT}"

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The brokers."""
        return tuple(f"n{number}" for number in range(NODES))

    def node_at(self, host: str) -> str:
        """Who has this address."""
        return next(node for number, node in enumerate(self.node_ids) if self.networks.host(number) == host)

    async def start_namesrv(self) -> None:
        """Start the name server, outside of all namespaces, and wait until it listens. Raises ClusterFailed."""
        await self._spawn("namesrv", [], ["namesrv", "--listen", self.namesrv])
        for _ in range(200):
            try:
                stream = await trio.open_tcp_stream(OUTSIDE, NAMESRV_PORT)
            except OSError:
                await trio.sleep(0.1)
            else:
                await trio.aclose_forcefully(stream)
                return
        raise ClusterFailed(f"no name server at {self.namesrv}; logs are in {self.directory}")

    async def start(self, node: str) -> None:
        """Start a broker; does not wait until it serves."""
        number = self.node_ids.index(node)
        host = self.networks.host
        peers = ",".join(f"{name}@{host(i)}:{REPLICATION_PORT}" for i, name in enumerate(self.node_ids))
        arguments = ["broker", "--group", GROUP, "--node-id", node, "--peers", peers, "--namesrv", self.namesrv]
        arguments += ["--listen", f"{host(number)}:{CLIENT_PORT}", "--data-dir", str(self.directory / node)]
        secret_file = self.directory / "group.secret"
        create_secret(str(secret_file))
        arguments += ["--set", f"admin_from={OUTSIDE}", "--set", f"secret_file={secret_file}"]
        await self._spawn(node, self.networks.command(number), arguments)

    async def end(self, node: str, number: signal.Signals) -> None:
        """Send a signal that ends the process, and wait until it has."""
        process = self._processes[node]
        process.send_signal(number)
        await process.wait()

    def kill(self, node: str) -> None:
        """SIGKILL, without waiting."""
        self._processes[node].kill()

    async def cut(self, node: str) -> None:
        """Silence the network of a node."""
        await self.networks.cut(self.node_ids.index(node))

    async def heal(self, node: str) -> None:
        """Undo `cut`."""
        await self.networks.heal(self.node_ids.index(node))

    async def command(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command of ours as an operator would."""
        return await trio.run_process(
            [sys.executable, "-m", "mq.cli", *arguments],
            check=False,
            capture_stdout=True,
            capture_stderr=True,
            cwd=ROOT,
        )

    async def wait_settled(self) -> None:
        """Wait until all brokers are registered, one leads, and nobody lags. Raises ClusterFailed after a minute."""
        await self._wait(_is_settled, "three replicas in step")

    async def _wait(self, is_good: Callable[[GroupStatus], bool], what: str) -> None:
        status: GroupStatus | None = None
        with trio.move_on_after(READY_SECONDS_MAX):
            while True:
                try:
                    groups = await ask_cluster(self.namesrv)
                except ClientError:
                    groups = []  # not up yet
                status = next((group for group in groups if group.group == GROUP), None)
                if status is not None and is_good(status):
                    return
                await trio.sleep(0.2)
        raise ClusterFailed(f"no {what} within {READY_SECONDS_MAX:g} s, last {status}; logs are in {self.directory}")

    async def _spawn(self, name: str, prefix: list[str], arguments: list[str]) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = await self._nursery.start(
                partial(
                    trio.run_process,
                    [*prefix, sys.executable, "-m", "mq.cli", *arguments, "--until-stdin-closes"],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=False,
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
            )


def _is_settled(status: GroupStatus) -> bool:
    replicas = [replica for replica in status.replicas if replica.role != UNREACHABLE]
    in_step = all(r.lag_entries is not None and r.lag_entries <= LAG_ENTRIES_MAX for r in replicas)
    leads = any(replica.node_id == status.leader and replica.broker_id == 0 for replica in replicas)
    return len(replicas) == NODES and in_step and leads


@asynccontextmanager
async def open_cluster(directory: Path) -> AsyncIterator[FailoverCluster]:
    """Start everything, and end it with the block. Raises ClusterFailed, OSError, subprocess.CalledProcessError."""
    async with open_networks(NODES) as networks, trio.open_nursery() as nursery:
        cluster = FailoverCluster(directory, networks, nursery)
        await cluster.start_namesrv()
        for node in cluster.node_ids:
            await cluster.start(node)
        await cluster.wait_settled()
        yield cluster
        nursery.cancel_scope.cancel()
