"""Runs etcd with three members. Each message in flight is a key, and each put a new revision of it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from benchmarks.peers.peer import Peer, Target, nothing_to_prepare, package_missing, words_of
from mq.local_cluster import HOST, Ports, open_processes

NODES = ("n0", "n1", "n2")
QUOTA_BYTES = 16 * 2**30


@asynccontextmanager
async def _open(directory: Path) -> AsyncIterator[Target]:
    ports = Ports.free(len(NODES))
    clients = dict(zip(NODES, ports.clients, strict=True))
    members = dict(zip(NODES, ports.replication, strict=True))
    with open_processes(directory) as servers:
        pids = []
        for node in NODES:
            options = {
                "name": node,
                "data-dir": str(directory / node),
                "listen-client-urls": f"http://{HOST}:{clients[node]}",
                "advertise-client-urls": f"http://{HOST}:{clients[node]}",
                "listen-peer-urls": f"http://{HOST}:{members[node]}",
                "initial-advertise-peer-urls": f"http://{HOST}:{members[node]}",
                "initial-cluster": ",".join(f"{name}=http://{HOST}:{port}" for name, port in members.items()),
                "quota-backend-bytes": str(QUOTA_BYTES),
            }
            pids.append(servers.start(node, ["etcd", *(f"--{name}={value}" for name, value in options.items())]))

        async def leader() -> int | None:
            for port in clients.values():
                status = await trio.to_thread.run_sync(_status, port)
                if status.get("leader") == status["header"]["member_id"]:
                    return port
            return None

        yield Target((HOST, await servers.wait_until("leader of etcd", leader)), pids, servers.check)


def _status(port: int) -> dict[str, Any]:
    """The status of a member and its leader. Raises OSError."""
    request = urllib.request.Request(f"http://{HOST}:{port}/v3/maintenance/status", data=b"{}")
    with urllib.request.urlopen(request, timeout=4) as answer:  # noqa: S310
        status: dict[str, Any] = json.load(answer)
        return status


ETCD = (
    Peer(
        name="etcd",
        system="etcd",
        replicas=len(NODES),
        durability="majority, on disk",
        settings=f"`--quota-backend-bytes` of {QUOTA_BYTES // 2**30} GiB; a batch is a transaction of puts",
        wire="etcd",
        has_batches=True,
        missing_programs=partial(package_missing, "etcd", "etcd-server"),
        prepare=nothing_to_prepare,
        version=lambda: words_of(["etcd", "--version"]).splitlines()[0].rpartition(" ")[2],
        open=_open,
    ),
)
