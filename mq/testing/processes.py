"""Runs servers as processes, for tests that need what a kit lacks: real sockets and files, and kills."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import trio

from mq.client.sync.loop_thread import LoopThread
from mq.local_cluster import DevCluster, Ports
from mq.local_cluster.any_disk import ANY_DISK

_POLL_SECONDS = 0.005
_SETTINGS: Mapping[str, str] = {
    "segment_bytes": str(16 * 1024 * 1024),
    "metrics_listen": "off",
    **ANY_DISK,
}


class ServerProcesses:
    """A name server and a group of brokers, each a process; see `running_processes`.

    Attributes:
        namesrv: the address for clients.
        replicas: the ids of the brokers.
    """

    def __init__(self, cluster: DevCluster, thread: LoopThread) -> None:
        self._cluster = cluster
        self._thread = thread
        self.namesrv = cluster.namesrv
        self.replicas = cluster.node_ids

    def address(self, replica: str) -> str:
        """Return the client address of a broker."""
        return self._cluster.address(replica)

    def pid(self, replica: str) -> int:
        """Return the process id of a broker."""
        return self._cluster.pid(replica)

    def log(self, replica: str) -> Path:
        """Return the log file of a broker."""
        return self._cluster.log_path(replica)

    def leader(self) -> str:
        """Return the broker that leads. Raises `mq.local_cluster.ServersFailed` if none does within a minute."""
        return self._thread.call(self._cluster.leader)

    def kill(self, replica: str) -> None:
        """Kill a broker with SIGKILL, and wait until it is dead. `start` starts it again."""

        async def kill() -> None:
            self._cluster.kill(replica)
            while self._cluster.is_running(replica):  # noqa: ASYNC110 - the kernel sends no event
                await trio.sleep(_POLL_SECONDS)

        self._thread.call(kill)

    def start(self, replica: str) -> None:
        """Start a killed broker, and wait until all brokers are ready."""

        async def start() -> None:
            await self._cluster.start(replica)
            await self._cluster.wait_ready()

        self._thread.call(start)


@contextlib.contextmanager
def running_processes(*, replicas: int = 1, **settings: str) -> Iterator[ServerProcesses]:
    """Start servers on free ports of the loopback address for the block; remove their files at its end.

    ``settings`` are a broker's, as text. The servers stop, too, if this process is killed.

    Raises `mq.local_cluster.ServersFailed`, with the end of the log of the server that did not start.
    """
    if replicas not in (1, 3, 5):
        raise ValueError(f"a group has 1, 3 or 5 replicas, not {replicas}")
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="raftmq-processes-", ignore_cleanup_errors=True)
        )
        thread = LoopThread("servers of raftmq.testing")
        stack.callback(thread.stop, "the servers of a test")
        cluster_context = DevCluster.open(
            Path(directory), nodes=replicas, ports=Ports.free(replicas), settings={**_SETTINGS, **settings}
        )
        cluster = stack.enter_context(thread.portal.wrap_async_context_manager(cluster_context))
        yield ServerProcesses(cluster, thread)
