"""The systems to measure: the floor, raftmq with its client library and with the load generator, and others."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.load.frames import QUEUES, TOPIC
from benchmarks.low_rate.job import LowRateJob
from benchmarks.peers.nats import NATS
from benchmarks.peers.peer import Peer, nothing_to_prepare
from benchmarks.peers.rabbitmq import RABBITMQ
from benchmarks.peers.rocketmq import ROCKETMQ
from benchmarks.suites.case_load import ROOT
from mq.client.admin import Admin
from mq.local_cluster import HOST, DevCluster, Ports, open_processes
from mq.local_cluster.any_disk import ANY_DISK

NODES = 3
FLOOR, SDK, GENERATOR = "floor", "raftmq", "raftmq-wire"


@dataclass(frozen=True, slots=True)
class Running:
    """A running system. ``pids``: its servers' process ids, the leader's first if it is known.

    ``job``: completes the job of a client; ``client``: the module that does it. ``check`` raises an error if a server
    has ended, or leads no longer.
    """

    pids: Sequence[int]
    client: str
    job: Callable[..., LowRateJob]
    check: Callable[[], None]


@dataclass(frozen=True, slots=True)
class LowRateSystem:
    """A system to measure. ``about``: its description in the table. ``missing_programs``, ``prepare``: see
    `benchmarks.peers.peer.Peer`. ``has_idle``: whether to measure it without messages, too. ``open``: starts it.
    ``is_jvm``: whether it gets a warm-up.
    """

    name: str
    about: str
    missing_programs: Callable[[], str | None]
    prepare: Callable[[], None]
    has_idle: bool
    open: Callable[[Path], AbstractAsyncContextManager[Running]]
    is_jvm: bool = False


@asynccontextmanager
async def _open_floor(directory: Path) -> AsyncIterator[Running]:
    port = Ports.free(1).clients[0]
    with open_processes(directory) as servers:
        command = [sys.executable, "-m", "benchmarks.low_rate.floor_server", str(port), str(directory / "file")]
        pid = servers.start("floor", command, {"PYTHONPATH": str(ROOT)})
        await servers.wait_listening("floor", port)
        job = partial(LowRateJob, wire="rocketmq", address=(HOST, port))
        yield Running([pid], "benchmarks.low_rate.wire_load", job, servers.check)


@asynccontextmanager
async def _open_raftmq(wire: str, directory: Path) -> AsyncIterator[Running]:
    async with DevCluster.open(directory, nodes=NODES, ports=Ports.free(NODES), settings=ANY_DISK) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(TOPIC, QUEUES)
        leader = await cluster.leader()
        pids = [cluster.pid(node) for node in (leader, *(each for each in cluster.node_ids if each != leader))]
        if wire:
            job = partial(LowRateJob, wire=wire, address=(HOST, cluster.port(leader)))
            yield Running(pids, "benchmarks.low_rate.wire_load", job, cluster.check)
        else:
            job = partial(LowRateJob, namesrv=cluster.namesrv, topic=TOPIC)
            yield Running(pids, "benchmarks.low_rate.sdk_load", job, cluster.check)


@asynccontextmanager
async def _open_peer(peer: Peer, directory: Path) -> AsyncIterator[Running]:
    async with peer.open(directory) as target:
        job = partial(LowRateJob, wire=peer.wire, address=target.address)
        yield Running(target.pids, "benchmarks.low_rate.wire_load", job, target.check)


def _as_system(peer: Peer) -> LowRateSystem:
    about = f"{peer.system}, {peer.replicas} server{'s' * (peer.replicas > 1)}, {peer.durability}"
    return LowRateSystem(
        peer.name, about, peer.missing_programs, peer.prepare, False, partial(_open_peer, peer), peer.is_jvm
    )


SYSTEMS = (
    LowRateSystem(
        FLOOR,
        "a loop of epoll, receive, write, fdatasync, send; one process, no replication",
        lambda: None,
        nothing_to_prepare,
        False,
        _open_floor,
    ),
    LowRateSystem(
        SDK,
        "three replicas, majority, on disk; the client is our Python library",
        lambda: None,
        nothing_to_prepare,
        True,
        partial(_open_raftmq, ""),
    ),
    LowRateSystem(
        GENERATOR,
        "the same, with the client of the floor and of the other systems",
        lambda: None,
        nothing_to_prepare,
        False,
        partial(_open_raftmq, "rocketmq"),
    ),
    *map(_as_system, (*NATS, *RABBITMQ, *ROCKETMQ)),
)
"""The systems in the order of the run and of the table."""
