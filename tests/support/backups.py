"""Groups of real brokers that are backed up by the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import trio

from mq.local_cluster import DevCluster

SETTINGS = {
    "segment_bytes": "262144",
    "message_bytes_max": "65536",
    "entry_bytes_max": "65536",
    "checkpoint_seconds": "0.3",
}
EXPIRING = SETTINGS | {"retention_bytes": "1048576", "retention_check_seconds": "0.3"}


async def raftmq(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    with trio.fail_after(90):
        return await trio.run_process(
            [sys.executable, "-m", "mq.cli", *arguments], capture_stdout=True, capture_stderr=True, check=False
        )


async def printed(*arguments: str) -> str:
    """What a command prints that must succeed."""
    done = await raftmq(*arguments)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout.decode()


async def backed_up(cluster: DevCluster, directory: Path, node_id: str, last_index: int) -> list[dict[str, Any]]:
    """Runs of a backup until it has that entry; what each of them printed."""
    runs: list[dict[str, Any]] = []
    with trio.fail_after(60):
        while not runs or runs[-1]["last_index"] < last_index:
            data_dir = str(cluster.directory / node_id)
            command = ["backup", str(directory), "--data-dir", data_dir, "--namesrv", cluster.namesrv, "--json"]
            runs.append(json.loads(await printed(*command)))
    return runs


async def committed(cluster: DevCluster, node_id: str | None = None) -> int:
    """The commit index of a replica, or of the one that knows most."""
    status = await cluster.status()
    assert status is not None
    return max(each.commit_index or 0 for each in status.replicas if node_id in (None, each.node_id))
