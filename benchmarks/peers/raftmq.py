"""Runs raftmq itself, with three replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

from benchmarks.load.frames import QUEUES, TOPIC
from benchmarks.peers.peer import Peer, Target, nothing_to_prepare
from mq.client.admin import Admin
from mq.local_cluster import HOST, DevCluster, Ports
from mq.local_cluster.any_disk import ANY_DISK

NODES = 3


@asynccontextmanager
async def _open(durability: str, directory: Path) -> AsyncIterator[Target]:
    settings = {**ANY_DISK, "durability": durability}
    async with DevCluster.open(directory, nodes=NODES, ports=Ports.free(NODES), settings=settings) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(TOPIC, QUEUES)
        pids = [cluster.pid(node_id) for node_id in cluster.node_ids]
        yield Target((HOST, cluster.port(await cluster.leader())), pids, cluster.check, cluster.namesrv)


def _peer(name: str, durability: str, in_words: str) -> Peer:
    return Peer(
        name=name,
        system="raftmq",
        replicas=NODES,
        durability=in_words,
        settings=f"`durability={durability}`",
        wire="rocketmq",
        has_batches=True,
        missing_programs=lambda: None,
        prepare=nothing_to_prepare,
        version=partial(version, "raftmq"),
        open=partial(_open, durability),
    )


RAFTMQ = (
    _peer("raftmq", "quorum-fsync", "majority, on disk"),
    _peer("raftmq-memory", "quorum-memory", "majority, page cache"),
)
