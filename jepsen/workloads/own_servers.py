"""Runs servers beside the cluster for one workload. For faults, they are clients in separate processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import trio

from jepsen.deployments.cluster import Cluster
from mq.local_cluster import HOST, Ports

REST_SECONDS: Final = 0.02
"""Between the end of a process and the start of the next one."""


class OwnServers:
    """Servers of raftmq by name. The event of a server in ``ready_events`` is set while it serves."""

    def __init__(self, cluster: Cluster, names: Sequence[str]) -> None:
        self._cluster = cluster
        self.ports = dict(zip(names, Ports.free(1).all, strict=False))
        self.ready_events = {name: trio.Event() for name in names}

    async def run(self, name: str, *command: str) -> None:
        """Run the command `raftmq` of a server until cancelled, and restart it whenever it ends."""
        command += ("--listen", f"{HOST}:{self.ports[name]}", "--set", "metrics_listen=off", "--until-stdin-closes")
        # Its log is written to its standard output, on which it says that it listens.
        program = ["sh", "-c", 'exec "$@" 2>&1', name, sys.executable, "-m", "mq.cli", *command]
        while True:
            process = await self._cluster.start_client(name, program)
            assert process.stdout is not None, "started with a pipe"
            try:
                with self._cluster.log_file(name).open("ab") as log:
                    async for data in process.stdout:
                        log.write(data)
                        if b'"listening"' in data:
                            self._cluster.client_joined(name)
                            self.ready_events[name].set()
            finally:
                if process.stdin is not None:
                    with trio.CancelScope(shield=True):
                        await process.stdin.aclose()
            self.ready_events[name] = trio.Event()
            await process.wait()
            await trio.sleep(REST_SECONDS)
