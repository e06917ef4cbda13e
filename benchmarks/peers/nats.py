"""Runs NATS JetStream: three servers, and a stream with a replica on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.peers.peer import Peer, Target, nothing_to_prepare, package_missing
from benchmarks.wires.nats_stream import DEFAULT, NatsError, configuration, open_nats, version_of
from mq.local_cluster import HOST, Ports, open_processes
from tests.interop.clients import CACHE, run_tool, tools_missing

NODES = ("n0", "n1", "n2")
ALWAYS = "always"
NEWER = "v2.12.1"
"""Debian's version does not support `sync_interval: always`."""
NEWER_PROGRAM = CACHE / f"nats-server-{NEWER}" / "nats-server"
FILE_BYTES_MAX = "20GB"
_DEFAULTS = "defaults: files are synced every two minutes"


@asynccontextmanager
async def _open(program: str, sync_interval: str, directory: Path) -> AsyncIterator[Target]:
    free = iter(Ports.free(len(NODES)).all)
    ports = {node: (next(free), next(free)) for node in NODES}
    with open_processes(directory) as servers:
        pids = []
        for node in NODES:
            config = directory / f"{node}.conf"
            config.write_text(configuration(node, ports, directory / node, sync_interval, FILE_BYTES_MAX))
            pids.append(servers.start(node, [program, "--config", str(config)]))

        async def leader() -> str | None:
            async with open_nats(HOST, ports[NODES[0]][0]) as client:
                try:
                    leader_name, followers = await client.stream_state()
                    return leader_name if followers == len(NODES) - 1 else None
                except NatsError as error:
                    if error.code == 404:
                        try:
                            await client.create_stream(len(NODES))
                        except NatsError:
                            pass  # not all servers are connected yet
                    return None

        yield Target((HOST, ports[await servers.wait_until("leader of the stream", leader)][0]), pids, servers.check)


def _build() -> None:
    if not NEWER_PROGRAM.exists():
        NEWER_PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        install = ["go", "install", f"github.com/nats-io/nats-server/v2@{NEWER}"]
        run_tool(["env", f"GOBIN={NEWER_PROGRAM.parent}", "GOFLAGS=-mod=mod", *install], CACHE)


def _missing_newer() -> str | None:
    if NEWER_PROGRAM.exists() or (reason := tools_missing("go")) is None:
        return None
    return f"{reason}, which compiles nats-server {NEWER}: Debian's does not know `sync_interval: always`"


def _newer(name: str, sync_interval: str, durability: str, settings: str) -> Peer:
    return Peer(
        name=name,
        system="NATS JetStream R3",
        replicas=len(NODES),
        durability=durability,
        settings=settings,
        wire="nats",
        has_batches=False,
        missing_programs=_missing_newer,
        prepare=_build,
        version=lambda: version_of(str(NEWER_PROGRAM)),
        open=partial(_open, str(NEWER_PROGRAM), sync_interval),
    )


NATS = (
    Peer(
        name="nats",
        system="NATS JetStream R3",
        replicas=len(NODES),
        durability="majority, page cache",
        settings=_DEFAULTS,
        wire="nats",
        has_batches=False,
        missing_programs=partial(package_missing, "nats-server", "nats-server"),
        prepare=nothing_to_prepare,
        version=partial(version_of, "nats-server"),
        open=partial(_open, "nats-server", DEFAULT),
    ),
    _newer("nats-2.12", DEFAULT, "majority, page cache", _DEFAULTS),
    _newer("nats-always", ALWAYS, "majority, on disk", "`sync_interval: always`"),
)
