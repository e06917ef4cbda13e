"""A real broker that joins a group of real brokers."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import trio

from mq.local_cluster import HOST, DevCluster, Ports


async def start_joining(cluster: DevCluster, ports: Ports, nursery: trio.Nursery, number: int) -> None:
    """Start a broker with the settings of a group, which waits to be added, and is not told how large log files are."""
    node_id = f"n{number}"
    command = [sys.executable, "-m", "mq.cli", "broker", "--join", "--node-id", node_id]
    command += [
        "--replication-listen",
        f"{HOST}:{ports.replication[number]}",
        "--listen",
        f"{HOST}:{ports.clients[number]}",
    ]
    command += ["--namesrv", cluster.namesrv, "--data-dir", str(cluster.directory / node_id)]
    own = {name: value for name, value in cluster.settings.items() if name != "segment_bytes"}
    for name, value in (own | {"secret_file": str(cluster.secret_file)}).items():
        command += ["--set", f"{name}={value}"]
    environment = {name: value for name, value in os.environ.items() if name != "RAFTMQ_BROKER_SEGMENT_BYTES"}
    with cluster.log_path(node_id).open("ab") as log:
        run = partial(trio.run_process, command, stdout=log, stderr=subprocess.STDOUT, check=False, env=environment)
        await nursery.start(run)
