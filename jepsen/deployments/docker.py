"""Brokers and name servers in containers, from the image that users get: `make docker-image` builds it.

Each container has the network namespace of its own that Docker gives it, on a network of the test with fixed addresses.
Links are cut from outside, in the namespace of the container's process, so that the image needs neither tools nor
rights. Signals go to the server's process, by its id here.

Names and addresses are the same in every run, so only one run at a time has them; whatever an interrupted one left is
removed by the next, by name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from jepsen.deployments.netns import CLIENT_PORT, HEAL, NAMESRV_PORT, REPLICATION_PORT, deaf_to, held, packets_counted
from jepsen.deployments.network import CLIENTS, NAME_SERVERS, Address, Grudges

IMAGE = "raftmq:local"
PREFIX = "rmqf"
NETWORK = "10.79.0"
OUTSIDE = f"{NETWORK}.254"
START_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05


def unavailable() -> str | None:
    """Why containers cannot be used here, in words; None when they can."""
    missing = [tool for tool in ("docker", "nft", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "only root may cut the networks of containers"
    done = subprocess.run(["docker", "image", "inspect", IMAGE], check=False, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    if "No such image" in done.stderr:
        return f"there is no image {IMAGE}: make docker-image"
    return "no Docker Engine answers; deploy/start-docker.sh starts one of its own"


@dataclass(frozen=True, slots=True)
class Containers:
    """Containers of brokers n0, n1, ... and of name servers; made by `open_containers`.

    ``directory`` is that of the run.
    """

    count: int
    directory: Path
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def backend(self) -> str:
        """How it is called on the command line."""
        return "docker"

    def clients_reach(self, name: str) -> Address:
        """The container's address."""
        return _host(name), NAMESRV_PORT if name in NAME_SERVERS else CLIENT_PORT

    def listens(self, name: str) -> Address:
        """As above."""
        return self.clients_reach(name)

    def registers_at(self, node: str, name_server: str) -> Address:
        """The same for everybody."""
        return self.clients_reach(name_server)

    def replicates(self, node: str) -> Address:
        """The same address with another port."""
        return _host(node), REPLICATION_PORT

    def peer(self, node: str, other: str) -> Address:
        """The same for everybody."""
        return self.replicates(other)

    def program(self, name: str) -> list[str]:
        """A container that is gone when its process is; the run's directory has the same name in it."""
        mount = f"type=bind,source={self.directory},target={self.directory}"
        options = ["--rm", "--interactive", "--name", _name(name), "--network", PREFIX, "--ip", _host(name)]
        return ["docker", "run", *options, "--user", "0:0", "--mount", mount, IMAGE]

    async def server_pid(self, name: str, process: trio.Process) -> int:
        """The process that Docker started, by its id outside of the container. Raises OSError if there is none."""
        inspect = ["docker", "inspect", "--format", "{{.State.Pid}}", _name(name)]
        with trio.move_on_after(START_SECONDS_MAX):
            while process.poll() is None:
                done = await trio.run_process(inspect, check=False, capture_stdout=True, capture_stderr=True)
                if (told := done.stdout.strip()).isdigit() and int(told) > 0:
                    self.pids[name] = int(told)
                    return int(told)
                await trio.sleep(POLL_SECONDS)
        raise ChildProcessError(f"the container {_name(name)} did not start")

    def administrators(self) -> str:
        """Whoever is in no container."""
        return OUTSIDE

    async def drop(self, grudges: Grudges) -> None:
        """Drop what comes in from others, in the namespace of each container with a grudge."""
        await self.heal()
        for node, others in grudges.items():
            hosts = [OUTSIDE if other == CLIENTS else _host(other) for other in others]
            if hosts:
                await trio.run_process([*self._inside(node), "nft", "-f", "-"], stdin=deaf_to(hosts).encode())

    async def dropped(self) -> int:
        """Packets dropped in all namespaces."""
        total = 0
        for node in self._running():
            listing = [*self._inside(node), "nft", "-j", "list", "ruleset"]
            done = await trio.run_process(listing, capture_stdout=True, capture_stderr=True)
            total += packets_counted(done.stdout)
        return total

    async def heal(self) -> None:
        """Remove all rules in all namespaces; one of a dead container is gone anyway."""
        for node in self._running():
            heal = [*self._inside(node), "nft", "-f", "-"]
            await trio.run_process(heal, stdin=HEAL.encode(), capture_stderr=True, check=False)

    def _running(self) -> list[str]:
        return [node for node, pid in self.pids.items() if Path(f"/proc/{pid}/ns/net").exists()]

    def _inside(self, node: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pids[node]}/ns/net"]


def _host(name: str) -> str:
    first = 101 if name in NAME_SERVERS else 1
    return f"{NETWORK}.{first + int(name.lstrip('ns'))}"


def _name(node: str) -> str:
    return f"{PREFIX}-{node}"


@asynccontextmanager
async def open_containers(count: int, directory: Path) -> AsyncIterator[Containers]:
    """Make the network, and remove it and all containers at the end.

    Raises NetworksInUse, subprocess.CalledProcessError.
    """
    with held("containers"):
        await _remove(count)
        try:
            subnet = ["--subnet", f"{NETWORK}.0/24", "--gateway", OUTSIDE]
            await trio.run_process(["docker", "network", "create", *subnet, PREFIX], capture_stdout=True)
            yield Containers(count, directory)
        finally:
            with trio.CancelScope(shield=True):  # a few commands
                await _remove(count)


async def _remove(count: int) -> None:
    """Remove what this run or an interrupted one made."""
    names = [*(_name(f"n{number}") for number in range(count)), *map(_name, NAME_SERVERS)]
    for command in (["docker", "rm", "--force", *names], ["docker", "network", "rm", PREFIX]):
        await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)
