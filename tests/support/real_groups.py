"""Groups of real processes: setup and waiting."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
import anyio.from_thread
import anyio.to_thread
import trio

from mq.client import Admin, PushConsumer, ReceivedMessage
from mq.local_cluster import DevCluster, Ports
from mq.protocol.requests.raft_group import GroupCommand
from tests.support.running_broker import Client
from tests.support.waiting import until

SETTINGS = {
    "segment_bytes": str(1024 * 1024),
    "message_bytes_max": str(64 * 1024),
    "entry_bytes_max": "2048",
    "checkpoint_seconds": "0.5",
    "offset_commit_seconds": "0.05",
}


SMALL_ENTRIES = {"entry_bytes_max": "1024"}
"""Of a group whose replicas are cut off between entries: it has many."""

LOST = (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, AssertionError, OSError)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that outlives the event loop of one test: it runs in its own thread."""

    inner: DevCluster
    portal: anyio.from_thread.BlockingPortal

    @property
    def namesrv(self) -> str:
        return self.inner.namesrv

    async def leader(self) -> str:
        return await anyio.to_thread.run_sync(self.portal.call, self.inner.leader)

    async def _wait_ended(self, node_id: str) -> None:
        await until(lambda: not self.inner.is_running(node_id))

    @asynccontextmanager
    async def dead(self, node_id: str) -> AsyncGenerator[None]:
        """The replica is killed now, and is up again when the block has ended."""
        # In the cluster's event loop: another one must not ask its processes, which may then close what that waits for.
        await anyio.to_thread.run_sync(self.portal.call, self.inner.kill, node_id)
        yield
        await anyio.to_thread.run_sync(self.portal.call, self._wait_ended, node_id)
        await anyio.to_thread.run_sync(self.portal.call, self.inner.start, node_id)
        await anyio.to_thread.run_sync(self.portal.call, self.inner.wait_ready)


@contextmanager
def cluster_in_thread(directory: Path, nodes: int = 3, settings: dict[str, str] | None = None) -> Iterator[Cluster]:
    """A group of so many replicas, with these settings."""
    with anyio.from_thread.start_blocking_portal("trio") as portal:
        opened = DevCluster.open(directory, nodes=nodes, ports=Ports.free(nodes), settings=settings, group="broker-a")
        with portal.wrap_async_context_manager(opened) as inner:
            yield Cluster(inner, portal)


async def transfer(cluster: DevCluster, to: str) -> None:
    async with Admin(cluster.namesrv) as admin:
        leader = cluster.address(await cluster.leader())
        command = GroupCommand(action="transfer", node=to)

        async def is_done() -> bool:
            answer = await admin.manage_group(leader, command)
            # A replica that was just discovered gets time to catch up, and one that was too slow is retried.
            assert answer.done or answer.code in ("NOT_CAUGHT_UP", "TRANSFER_FAILED"), answer
            return answer.done

        await until(is_done)


@asynccontextmanager
async def connected(cluster: DevCluster, node_id: str) -> AsyncIterator[Client]:
    host, _, port = cluster.address(node_id).rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        yield Client(stream)


async def wait_level(cluster: DevCluster) -> None:
    """Until all replicas have the same log."""

    async def is_level() -> bool:
        tables = []
        with contextlib.suppress(OSError, trio.BrokenResourceError):  # one may be starting
            for node_id in cluster.node_ids:
                async with connected(cluster, node_id) as client:
                    tables.append(await client.info())
        indexes = {table[name] for table in tables for name in ("raftmq.appliedIndex", "raftmq.lastIndex")}
        return len(tables) == len(cluster.node_ids) and len(indexes) == 1

    await until(is_level)


async def delivered(cluster: Cluster, topic: str, group: str, seen: list[ReceivedMessage]) -> None:
    """Collect all messages of a topic for ever."""
    consumer = PushConsumer(cluster.namesrv, group, consume_from="first")
    consumer.subscribe(topic)
    async with consumer:
        async for message in consumer:
            seen.append(message)
