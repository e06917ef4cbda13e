"""Two name servers and three brokers as processes, each with a network of its own, to be killed, cut off, moved."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from jepsen.deployments.cluster import GROUP, ROOT, Cluster, ClusterFailed, node_names, open_cluster
from jepsen.deployments.netns import Networks, open_networks
from mq.cli.cluster_view import UNREACHABLE, GroupStatus, ask_cluster
from mq.client.errors import ClientError

__all__ = ["ROOT", "ClusterFailed", "FailoverCluster", "open_failover_cluster"]

NODES = 3
READY_SECONDS_MAX = 60.0
LAG_ENTRIES_MAX = 20


@dataclass(frozen=True, slots=True)
class FailoverCluster:
    """Nodes n0, n1, n2; made by `open_failover_cluster`."""

    cluster: Cluster
    networks: Networks

    @property
    def namesrv(self) -> str:
        """Addresses of the name servers."""
        return self.cluster.namesrv

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The brokers."""
        return self.cluster.nodes

    def node_at(self, host: str) -> str:
        """Who has this address."""
        return next(node for node in self.node_ids if self.networks.clients_reach(node)[0] == host)

    async def start(self, node: str) -> None:
        """Start a broker; does not wait until it serves."""
        await self.cluster.start(node)

    async def end(self, node: str, number: signal.Signals) -> None:
        """Send a signal that ends the process, and wait until it has."""
        await self.cluster.end(node, number)

    async def cut(self, node: str) -> None:
        """Silence the network of a node."""
        await self.networks.cut_off(node)

    async def heal(self) -> None:
        """Undo `cut`."""
        await self.networks.heal()

    async def command(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command of ours as an operator would."""
        return await self.cluster.command(*arguments)

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
        logs = self.cluster.directory / "logs"
        raise ClusterFailed(f"no {what} within {READY_SECONDS_MAX:g} s, last {status}; logs are in {logs}")


def _is_settled(status: GroupStatus) -> bool:
    replicas = [replica for replica in status.replicas if replica.role != UNREACHABLE]
    in_step = all(r.lag_entries is not None and r.lag_entries <= LAG_ENTRIES_MAX for r in replicas)
    leads = any(replica.node_id == status.leader and replica.broker_id == 0 for replica in replicas)
    return len(replicas) == NODES and in_step and leads


@asynccontextmanager
async def open_failover_cluster(directory: Path) -> AsyncIterator[FailoverCluster]:
    """Start everything, and end it with the block. Raises ClusterFailed, OSError, subprocess.CalledProcessError."""
    async with open_networks(NODES) as networks, open_cluster(directory, networks, node_names(NODES)) as cluster:
        failover = FailoverCluster(cluster, networks)
        await failover.wait_settled()
        yield failover
