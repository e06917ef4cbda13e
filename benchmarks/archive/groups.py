"""Starts groups that archive their logs in an object store of the benchmark, and waits for their archives."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from benchmarks.load.frames import QUEUES, send_frame
from benchmarks.pulling import fill_with
from jepsen.deployments.object_storage import BUCKET, ENVIRONMENT, ObjectStorage, open_object_storage
from mq.client.admin import Admin
from mq.local_cluster import HOST, DevCluster, Ports, ServersFailed
from mq.local_cluster.any_disk import ANY_DISK

PREFIX = "broker-a"
URL = f"s3://{BUCKET}/{PREFIX}"
SEGMENT_BYTES = 64 * 1024 * 1024
QUICK = {"segment_bytes": str(2 * 1024 * 1024), "message_bytes_max": "524288", "entry_bytes_max": "524288"}
"""Settings for a hundredth of the data."""
WAIT_SECONDS_MAX = 120.0


@asynccontextmanager
async def archiving_group(
    directory: Path, nodes: int, *, quick: bool, settings: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[DevCluster, ObjectStorage]]:
    """Run a group and its object store. Both keep their files below ``directory``."""
    os.environ.update(ENVIRONMENT)  # for brokers, which are started from here
    async with open_object_storage(directory / "store") as storage:
        all_settings = {
            **ANY_DISK,
            "segment_bytes": str(SEGMENT_BYTES),
            "archive_url": URL,
            "archive_endpoint_url": storage.url,
            "archive_bytes_per_second": "0",
            "retention_check_seconds": "0.5",
            **(QUICK if quick else {}),
            **(settings or {}),
        }
        async with DevCluster.open(
            directory / "replicas", nodes=nodes, ports=Ports.free(nodes), settings=all_settings
        ) as cluster:
            yield cluster, storage


async def fill_group(cluster: DevCluster, leader: str, nbytes: int, body_bytes: int = 64 * 1024) -> None:
    """Send messages with bodies of ``nbytes`` in total to the topic of the benchmarks."""
    frames = [send_frame(number + 1, body_bytes, number % QUEUES) for number in range(QUEUES)]
    fill = partial(fill_with, (HOST, cluster.port(leader)), -(-nbytes // body_bytes), frames)
    await trio.to_thread.run_sync(fill)


async def wait_until(what: str, is_so: Callable[[], Awaitable[bool]], seconds: float = WAIT_SECONDS_MAX) -> None:
    """Call ``is_so`` until it returns True. Raises ServersFailed, with ``what``, if that takes too long."""
    with trio.move_on_after(seconds):
        while not await is_so():  # noqa: ASYNC110 - other processes have no event to wait for
            await trio.sleep(0.05)
        return
    raise ServersFailed(f"not within {seconds:g} s: {what}")


async def runtime(admin: Admin, address: str) -> dict[str, int]:
    """Return the figures of a replica that are numbers."""
    table = await admin.broker_runtime(address)
    return {name: int(text) for name, text in table.items() if text.isdigit()}


async def wait_archived(cluster: DevCluster, *, base_moves: bool) -> None:
    """Wait until complete files are archived, and with ``base_moves`` until all replicas have deleted old ones."""
    async with Admin(cluster.namesrv) as admin:

        async def is_archived(node: str) -> bool:
            figures = await runtime(admin, cluster.address(node))
            has_moved = not base_moves or figures["raftmq.basePosition"] > 0
            return figures["raftmq.archiveIndex"] > 0 and not figures["raftmq.archiveLagBytes"] and has_moved

        for node in cluster.node_ids:
            await wait_until(f"{node} knows that its log is archived", partial(is_archived, node))
