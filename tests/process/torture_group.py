"""The processes of a tortured group: founders, brokers that join, and what is done to their directories."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import trio

from mq.cli.dev_cluster import HOST, DevCluster, Ports
from mq.cli.group_session import GroupSession
from mq.client import ClientError
from mq.protocol.group_admin import GroupAction, GroupAnswer

FOUNDERS = 3
SPARES = 2
PATIENCE_SECONDS = 90.0


class Group:
    """A name server and brokers; ``members`` are those that belong to the group now.

    ``n0`` to ``n2`` found it; the ports of ``SPARES`` more are kept for those that join.
    """

    def __init__(self, cluster: DevCluster, ports: Ports, settings: Mapping[str, str]) -> None:
        self.cluster = cluster
        self.settings = dict(settings)
        self._ports = ports
        self.members = list(cluster.node_ids)
        self.joining: set[str] = set()
        self.moved: dict[str, Path] = {}
        self.rss_max = 0

    # -- names -------------------------------------------------------------------------------------------------------

    @property
    def spare(self) -> str:
        """A node id that no member has."""
        return next(f"n{number}" for number in range(len(self._ports.clients)) if f"n{number}" not in self.members)

    def port(self, node: str) -> int:
        """Where clients reach a broker."""
        return self._ports.clients[int(node[1:])]

    def replication(self, node: str) -> str:
        """Where other brokers reach it."""
        return f"{HOST}:{self._ports.replication[int(node[1:])]}"

    def data_dir(self, node: str) -> Path:
        """Where a broker keeps everything."""
        return self.moved.get(node, self.cluster.directory / node)

    def commitlog(self, node: str) -> Path:
        """Where it keeps its log."""
        return self.data_dir(node) / "commitlog"

    def segments(self, node: str) -> list[Path]:
        """The files of its log, in order."""
        return sorted(path for path in self.commitlog(node).iterdir() if path.name.isdigit())

    # -- processes ---------------------------------------------------------------------------------------------------

    def arguments(self, node: str) -> list[str]:
        """How a broker is started."""
        arguments = ["broker", "--group", self.cluster.group, "--node-id", node, "--namesrv", self.cluster.namesrv]
        arguments += ["--listen", f"{HOST}:{self.port(node)}", "--data-dir", str(self.data_dir(node))]
        arguments += ["--set", f"secret_file={self.cluster.secret_file}"]
        if node in self.joining or int(node[1:]) >= FOUNDERS:
            arguments += ["--join", "--replication-listen", self.replication(node)]
        else:
            founders = (f"n{number}" for number in range(FOUNDERS))
            arguments += ["--peers", ",".join(f"{name}@{self.replication(name)}" for name in founders)]
        for name, value in self.settings.items():
            arguments += ["--set", f"{name}={value}"]
        return arguments

    async def start(self, node: str) -> None:
        """Start a broker. Does not wait until it serves."""
        await self.cluster._spawn(node, self.arguments(node))

    async def stop(self, node: str) -> None:
        """SIGTERM, and wait until it has ended."""
        await self.cluster.stop(node)

    async def kill(self, *nodes: str) -> None:
        """SIGKILL, and wait until they have ended."""
        for node in nodes:
            self.cluster.kill(node)
        for node in nodes:
            while self.is_running(node):  # noqa: ASYNC110 (a killed process ends within milliseconds)
                await trio.sleep(0.01)

    def is_running(self, name: str) -> bool:
        """Whether it was started and has not ended."""
        return self.cluster.is_running(name)

    def check(self) -> None:
        """Raises DevClusterFailed if one has ended that nobody stopped."""
        self.cluster.check()

    def signal(self, node: str, number: signal.Signals) -> None:
        """Send a signal to a broker."""
        os.kill(self.cluster.pid(node), number)

    async def ended(self, *arguments: str) -> tuple[int, str]:
        """Run a command that is to end by itself; its exit code and what it says."""
        with trio.fail_after(60):
            done = await trio.run_process(
                [sys.executable, "-m", "mq.cli", *arguments],
                stdin=subprocess.DEVNULL,
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                check=False,
            )
        return done.returncode, done.stdout.decode(errors="replace")

    async def watch_memory(self) -> None:
        """Note the largest resident set of any broker, in bytes."""
        while True:
            for node, child in list(self.cluster._children.items()):
                if node != "namesrv" and child.process.poll() is None:
                    self.rss_max = max(self.rss_max, _resident_bytes(child.process.pid))
            await trio.sleep(0.5)

    # -- what they say -----------------------------------------------------------------------------------------------

    def log_end(self, node: str) -> int:
        """Where what a broker says next will begin, see `said`."""
        path = self.cluster.log_path(node)
        return path.stat().st_size if path.exists() else 0

    def said(self, node: str, since: int) -> Iterator[dict[str, Any]]:
        """The events that a broker logged after ``since``."""
        with self.cluster.log_path(node).open("rb") as log:
            log.seek(since)
            for line in log.read().splitlines():
                if line.startswith(b"{"):
                    yield json.loads(line)

    def has_said(self, node: str, event: str, since: int) -> bool:
        """Whether a broker logged this event after ``since``."""
        return any(line["event"] == event for line in self.said(node, since))

    # -- membership --------------------------------------------------------------------------------------------------

    async def change(self, action: GroupAction, node: str = "", replaced: str = "") -> GroupAnswer:
        """What `raftmq group` does; "add" and "replace" wait until the node has caught up."""
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                try:
                    async with GroupSession.open(
                        self.cluster.namesrv, self.cluster.group, on_progress=lambda _: None
                    ) as session:
                        where = self.replication(node) if node else ""
                        if action == "add":
                            return await session.add(node, where, voter=False, patience=PATIENCE_SECONDS)
                        if action == "replace":
                            return await session.replace(replaced, node, where, patience=PATIENCE_SECONDS)
                        return await session.change(action, node)
                except ClientError:
                    await trio.sleep(0.5)  # whoever was asked has gone; its outcome is unknown, and it is asked again

    # -- directories -------------------------------------------------------------------------------------------------

    def wipe(self, node: str) -> None:
        """Remove everything that a stopped broker has."""
        assert not self.is_running(node), f"{node} runs"
        shutil.rmtree(self.data_dir(node), ignore_errors=True)

    async def move_to_small_disk(self, node: str, size_bytes: int) -> None:
        """Move a stopped broker's directory to a file system of its own.

        Raises PermissionError if that is not allowed.
        """
        small = self.cluster.directory / f"small-{node}"
        small.mkdir(exist_ok=True)
        done = await trio.run_process(
            ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(small)], check=False, capture_stderr=True
        )
        if done.returncode:
            raise PermissionError(done.stderr.decode())
        shutil.copytree(self.data_dir(node), small / "data")
        shutil.rmtree(self.data_dir(node))
        self.moved[node] = small / "data"

    async def move_back(self, node: str) -> None:
        """Undo `move_to_small_disk` for a stopped broker."""
        small = self.moved.pop(node).parent
        shutil.copytree(small / "data", self.data_dir(node))
        await trio.run_process(["umount", str(small)])

    async def unmount(self) -> None:
        """Move back whatever was moved, at the end; all brokers are stopped."""
        for node in list(self.moved):
            await self.move_back(node)


def group_ports() -> Ports:
    """Ports for the founders and those that may join."""
    return Ports.free(FOUNDERS + SPARES)


def founders_ports(ports: Ports) -> Ports:
    """Those of `group_ports` that the founders have."""
    return Ports(ports.namesrv, ports.clients[:FOUNDERS], ports.replication[:FOUNDERS])


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError):
        return 0  # it has just ended
