"""Runs two name servers and three brokers in network namespaces, where tests kill, cut off and restart them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import trio

from jepsen.deployments.cluster import GROUP, Cluster, ClusterFailed, node_names, open_cluster
from jepsen.deployments.leftovers import lock_directory
from jepsen.deployments.netns import Networks, open_networks
from mq.client.errors import ClientError
from mq.inspection.cluster import UNREACHABLE, GroupStatus, ask_cluster

NODES = 3
READY_SECONDS_MAX = 60.0
LAG_ENTRIES_MAX = 20


async def wait_in_step(cluster: Cluster) -> None:
    """Wait until all brokers are registered, one leads, and none lags. Raises ClusterFailed after a minute."""
    status: GroupStatus | None = None
    with trio.move_on_after(READY_SECONDS_MAX):
        while True:
            try:
                groups = await ask_cluster(cluster.namesrv)
            except ClientError:
                groups = []  # not up yet
            status = next((group for group in groups if group.group == GROUP), None)
            if status is not None and _is_in_step(status):
                return
            await trio.sleep(0.2)
    logs = cluster.directory / "logs"
    raise ClusterFailed(f"replicas not in step within {READY_SECONDS_MAX:g} s, last {status}; logs are in {logs}")


def _is_in_step(status: GroupStatus) -> bool:
    replicas = [replica for replica in status.replicas if replica.role != UNREACHABLE]
    in_step = all(r.lag_entries is not None and r.lag_entries <= LAG_ENTRIES_MAX for r in replicas)
    leads = any(replica.node_id == status.leader and replica.broker_id == 0 for replica in replicas)
    return len(replicas) == NODES and in_step and leads


@asynccontextmanager
async def open_failover_cluster(directory: Path) -> AsyncIterator[tuple[Cluster, Networks]]:
    """Run the cluster until the block ends. Raises ClusterFailed, OSError, subprocess.CalledProcessError."""
    async with AsyncExitStack() as stack:
        networks = await stack.enter_async_context(open_networks(NODES))
        stack.enter_context(lock_directory(directory))
        cluster = await stack.enter_async_context(open_cluster(directory, networks, node_names(NODES)))
        await wait_in_step(cluster)
        yield cluster, networks
