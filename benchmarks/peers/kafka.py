"""Kafka without ZooKeeper: its servers, and as a peer three of them with `acks=all`, with a sync of each message and
without. Jars come from Maven.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from benchmarks.load.frames import QUEUES, TOPIC
from benchmarks.peers.consuming.clients import install_package
from benchmarks.peers.peer import Peer, Target
from benchmarks.wires.kafka import CRC_PACKAGE, create_topic
from benchmarks.wires.wire import LoadFailed
from mq.local_cluster import HOST, Ports, open_processes
from tests.interop.clients import CACHE, fetch_jars, tools_missing

VERSION = "4.2.0"
NODES = (1, 2, 3)
JARS = CACHE / f"kafka-{VERSION}" / "lib"
_JVM = ("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
OFFSETS = "__consumer_offsets"


def _configuration(node: int, nodes: Sequence[int], ports: Ports, directory: Path) -> str:
    clients = dict(zip(nodes, ports.clients, strict=True))
    controllers = dict(zip(nodes, ports.replication, strict=True))
    settings = {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": ",".join(f"{each}@{HOST}:{port}" for each, port in controllers.items()),
        "listeners": f"PLAINTEXT://{HOST}:{clients[node]},CONTROLLER://{HOST}:{controllers[node]}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{clients[node]}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": directory / f"n{node}",
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": len(nodes),
        "group.initial.rebalance.delay.ms": 0,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


@asynccontextmanager
async def open_servers(
    directory: Path, nodes: Sequence[int], create_topics: Callable[[int], None]
) -> AsyncIterator[Target]:
    """Run Kafka's servers until the block ends. ``create_topics`` gets the port of the first server, and is called
    again while it raises OSError.
    """
    ports = Ports.free(len(nodes))
    java = ["java", *_JVM, "-cp", f"{JARS}/*"]
    with open_processes(directory) as servers:
        pids = []
        for node in nodes:
            path = directory / f"n{node}.properties"
            path.write_text(_configuration(node, nodes, ports, directory))
            form = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(path)]
            await trio.run_process(form, capture_stdout=True, capture_stderr=True)
            pids.append(servers.start(f"n{node}", [*java, "kafka.Kafka", str(path)]))
        for node, port in zip(nodes, ports.clients, strict=True):
            await servers.wait_listening(f"n{node}", port)

        async def created() -> bool:
            await trio.to_thread.run_sync(create_topics, ports.clients[0])
            return True

        await servers.wait_until("topic of Kafka", created)
        yield Target((HOST, ports.clients[0]), pids, servers.check)


@asynccontextmanager
async def _open(settings: dict[str, str], directory: Path) -> AsyncIterator[Target]:
    async with open_servers(directory, NODES, lambda port: _create_topics(port, settings)) as target:
        yield target


def _create_topics(port: int, settings: dict[str, str]) -> None:
    """Create the topics with the first node as leader of all: the load knows one address. Raises OSError."""
    try:
        with socket.create_connection((HOST, port), timeout=10) as sock:
            create_topic(sock, OFFSETS, 1, NODES, {"cleanup.policy": "compact"})
            create_topic(sock, TOPIC, QUEUES, NODES, {"min.insync.replicas": "2", **settings})
    except LoadFailed as error:
        raise ConnectionError(str(error)) from error


def missing_programs() -> str | None:
    """Name the programs that Kafka needs and this machine lacks, and how to install them; None if it has all."""
    if (reason := tools_missing("java")) is not None:
        return f"{reason}: apt-get install openjdk-17-jre-headless"
    if not _is_fetched() and (reason := tools_missing("mvn")) is not None:
        return f"{reason}: apt-get install maven"
    return None


def _is_fetched() -> bool:
    return (JARS / f"kafka_2.13-{VERSION}.jar").exists()


def prepare() -> None:
    """Download the files of the servers and of the load, unless they exist. Raises BuildFailed."""
    install_package(CRC_PACKAGE)
    if not _is_fetched():
        fetch_jars("kafka.xml", {"kafka.version": VERSION}, JARS.parent)


_PEER = partial(
    Peer,
    replicas=len(NODES),
    wire="kafka",
    has_batches=True,
    missing_programs=missing_programs,
    prepare=prepare,
    version=lambda: VERSION,
    is_jvm=True,
)
_SETTINGS = (
    "`acks=all`, `min.insync.replicas=2`, 1 GiB of heap with G1; one node leads all partitions; messages of a "
    "connection that wait for an answer travel in one request, as Kafka's producer sends them"
)
KAFKA = (
    _PEER(
        name="kafka",
        system="Kafka",
        durability="majority, page cache",
        settings=_SETTINGS,
        open=partial(_open, {}),
    ),
    _PEER(
        name="kafka-flush",
        system="Kafka, each message synced",
        durability="majority, on disk",
        settings="`flush.messages=1`; otherwise as `kafka`",
        open=partial(_open, {"flush.messages": "1"}),
    ),
)
