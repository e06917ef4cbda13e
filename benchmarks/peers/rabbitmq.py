"""Runs RabbitMQ: three nodes with quorum queues, as many as a topic of the other systems has."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from benchmarks.peers.peer import Peer, Target, nothing_to_prepare, package_missing
from benchmarks.wires.amqp import QUEUES, AmqpConnection, queue_name
from benchmarks.wires.wire import LoadFailed
from mq.local_cluster import HOST, Ports, open_processes

NODES = ("n0", "n1", "n2")
LIBRARY = Path("/usr/lib/rabbitmq")
PROGRAM = LIBRARY / "bin" / "rabbitmq-server"
"""The one on PATH starts it as the user of Debian's service."""


@asynccontextmanager
async def _open(directory: Path) -> AsyncIterator[Target]:
    ports = Ports.free(len(NODES))
    cookie = directory / ".erlang.cookie"
    cookie.write_text("bench")
    cookie.chmod(0o400)
    (directory / "enabled_plugins").write_text("[].\n")
    variables = {
        "HOME": str(directory),
        "ERL_EPMD_PORT": str(ports.namesrv),
        "ERL_EPMD_ADDRESS": HOST,
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
    }
    with open_processes(directory) as servers:
        servers.start("epmd", ["epmd"], variables)  # otherwise the first node leaves one running
        await servers.wait_listening("epmd", ports.namesrv)
        pids = []
        for node, port, dist_port in zip(NODES, ports.clients, ports.replication, strict=True):
            config = directory / f"{node}.conf"
            config.write_text(_configuration(port))
            environment = {
                "RABBITMQ_NODENAME": f"{node}@localhost",
                "RABBITMQ_DIST_PORT": str(dist_port),
                "RABBITMQ_CONFIG_FILE": str(config),
                "RABBITMQ_MNESIA_BASE": str(directory / node),
                "RABBITMQ_LOG_BASE": str(directory / node),
            }
            pids.append(servers.start(node, [str(PROGRAM)], variables | environment))
            if node == NODES[0]:
                await servers.wait_listening(node, port)  # the others join it
        for node, port in zip(NODES, ports.clients, strict=True):
            await servers.wait_listening(node, port)

        async def declared() -> bool:
            await trio.to_thread.run_sync(_declare, ports.clients)
            return True

        await servers.wait_until("quorum queues", declared)
        yield Target((HOST, ports.clients[0]), pids, servers.check)


def _configuration(port: int) -> str:
    nodes = [f"cluster_formation.classic_config.nodes.{n} = {node}@localhost" for n, node in enumerate(NODES, 1)]
    return "\n".join(
        [
            f"listeners.tcp.1 = {HOST}:{port}",
            "cluster_formation.peer_discovery_backend = classic_config",
            *nodes,
            "",
        ]
    )


def _declare(ports: tuple[int, ...]) -> None:
    """Declare the queues at the first node, which then leads them, and check that the others have them. Raises
    OSError.
    """
    try:
        for port in ports:
            with socket.create_connection((HOST, port), timeout=10) as sock:
                connection = AmqpConnection(sock)
                connection.open()
                for number in range(QUEUES):
                    connection.declare_quorum_queue(queue_name(number), len(NODES), passive=port != ports[0])
    except LoadFailed as error:
        raise ConnectionError(str(error)) from error


def _version() -> str:
    matches = [re.search(r"rabbitmq_server-([\d.]+)$", path.name) for path in (LIBRARY / "lib").iterdir()]
    return next((each[1] for each in matches if each is not None), "unknown")


RABBITMQ = (
    Peer(
        name="rabbitmq",
        system="RabbitMQ quorum queues",
        replicas=len(NODES),
        durability="majority, on disk",
        settings=f"{QUEUES} queues, all led by the node that clients use; publisher confirms",
        wire="amqp",
        has_batches=False,
        missing_programs=lambda: package_missing(str(PROGRAM), "rabbitmq-server"),
        prepare=nothing_to_prepare,
        version=_version,
        open=_open,
    ),
)
