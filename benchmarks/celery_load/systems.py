"""Runs the brokers that the comparison uses with Celery, as processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.celery_load.redis import open_redis
from benchmarks.peers.rabbitmq import PROGRAM as RABBITMQ_PROGRAM
from mq.local_cluster import HOST, DevCluster, Ports, open_processes
from mq.local_cluster.any_disk import ANY_DISK

QUORUM = {
    "task_default_queue_type": "quorum",
    "worker_detect_quorum_queues": True,
    "broker_transport_options": {"confirm_publish": True},
}


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker: its URL, and the process ids of its servers."""

    url: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CeleryBroker:
    """A broker with one configuration. `durability`: where a task is stored when `delay` returns."""

    name: str
    durability: str
    open: Callable[[Path], AbstractAsyncContextManager[Broker]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of Celery."""


@asynccontextmanager
async def _raftmq(directory: Path, *, nodes: int, durability: str = "quorum-fsync") -> AsyncIterator[Broker]:
    settings = {**ANY_DISK, "durability": durability}
    async with DevCluster.open(directory, nodes=nodes, ports=Ports.free(nodes), settings=settings) as cluster:
        yield Broker(f"raftmq://{cluster.namesrv}", tuple(cluster.pid(node_id) for node_id in cluster.node_ids))


@asynccontextmanager
async def _redis(directory: Path, *settings: str) -> AsyncIterator[Broker]:
    with open_redis(directory, *settings) as (port, pid):
        yield Broker(f"redis://{HOST}:{port}/0", (pid,))


@asynccontextmanager
async def _rabbitmq(directory: Path) -> AsyncIterator[Broker]:
    ports = Ports.free(1)
    (directory / "enabled_plugins").write_text("[].\n")
    cookie = directory / ".erlang.cookie"
    cookie.write_text("bench")
    cookie.chmod(0o400)
    config = directory / "rabbitmq.conf"
    config.write_text(f"listeners.tcp.1 = {HOST}:{ports.clients[0]}\n")
    environment = {
        "HOME": str(directory),
        "ERL_EPMD_PORT": str(ports.namesrv),
        "ERL_EPMD_ADDRESS": HOST,
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_NODENAME": "celery@localhost",
        "RABBITMQ_DIST_PORT": str(ports.replication[0]),
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "data"),
    }
    with open_processes(directory) as servers:
        servers.start("epmd", ["epmd"], environment)  # otherwise the node leaves one running
        await servers.wait_listening("epmd", ports.namesrv)
        pid = servers.start("rabbitmq", [str(RABBITMQ_PROGRAM)], environment)
        await servers.wait_listening("rabbitmq", ports.clients[0])
        yield Broker(f"pyamqp://guest:guest@{HOST}:{ports.clients[0]}//", (pid,))


SYSTEMS = (
    CeleryBroker("raftmq, one replica", "on disk", partial(_raftmq, nodes=1)),
    CeleryBroker("raftmq, three replicas", "on the disks of a majority", partial(_raftmq, nodes=3)),
    CeleryBroker(
        "raftmq, three replicas, `quorum-memory`",
        "in the memory of a majority",
        partial(_raftmq, nodes=3, durability="quorum-memory"),
    ),
    CeleryBroker("Redis", "in memory", _redis),
    CeleryBroker(
        "Redis, `appendfsync always`",
        "on disk",
        lambda directory: _redis(directory, "--appendonly", "yes", "--appendfsync", "always"),
    ),
    CeleryBroker("RabbitMQ", "nowhere yet: no confirms, Celery's default", _rabbitmq),
    CeleryBroker("RabbitMQ, quorum queue, one node, confirms", "on disk", _rabbitmq, QUORUM),
)


@asynccontextmanager
async def all_open(directory: Path) -> AsyncIterator[list[tuple[CeleryBroker, Broker]]]:
    """Run all systems side by side, each in a separate directory."""
    async with AsyncExitStack() as stack:
        systems = []
        for number, system in enumerate(SYSTEMS):
            (own := directory / f"broker-{number}").mkdir()
            systems.append((system, await stack.enter_async_context(system.open(own))))
        yield systems
