"""Three nats-servers on this machine, each with a disk that can lose power."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from jepsen.deployments.disks import Disk
from jepsen.deployments.leftovers import RUN_VARIABLE
from jepsen.nats.client import NatsError, open_nats
from mq.local_cluster import HOST, Ports, Processes

READY_SECONDS_MAX = 60.0
DEFAULT = "default"
"""The name for a server's default `sync_interval`."""


class NatsFailed(Exception):
    """The servers did not reach a state in time; the message says which, and where the logs are."""


def configuration(
    node: str,
    ports: Mapping[str, tuple[int, int]],
    store: Path,
    sync_interval: str,
    file_bytes_max: str = "512MB",
) -> str:
    """A server's configuration; ``ports``: for clients and for routes, by node."""
    routes = ", ".join(f'"nats://{HOST}:{route}"' for other, (_, route) in ports.items() if other != node)
    sync = "" if sync_interval == DEFAULT else f"\n  sync_interval: {sync_interval}"
    return f"""server_name: {node}
listen: "{HOST}:{ports[node][0]}"
jetstream {{
  store_dir: "{store}"
  max_mem: 64MB
  max_file: {file_bytes_max}{sync}
}}
cluster {{
  name: jepsen
  listen: "{HOST}:{ports[node][1]}"
  routes: [{routes}]
}}
"""


@dataclass(slots=True)
class Servers:
    """Servers n0, n1, ...; made by `open_servers`."""

    program: str
    directory: Path
    disks: Mapping[str, Disk]
    ports: Mapping[str, tuple[int, int]]
    sync_interval: str
    _processes: Processes

    def address(self, node: str) -> tuple[str, int]:
        """Where clients reach it."""
        return HOST, self.ports[node][0]

    def start(self, node: str) -> None:
        """Start a server, the first time or again; does not wait until it serves."""
        store = self.disks[node].point / "data"
        store.mkdir(exist_ok=True)
        config = self.directory / f"{node}.conf"
        config.write_text(configuration(node, self.ports, store, self.sync_interval))
        command = [self.program, "--config", str(config)]
        self._processes.start(node, command, {RUN_VARIABLE: str(self.directory)})

    def kill_all(self) -> None:
        """All at once."""
        self._processes.kill_all()

    async def wait_stream(self, followers: int) -> bool:
        """Wait until the stream has a leader and this many followers; False if there is no stream. Raises
        `NatsFailed`.
        """
        missing, told = 0, ""
        with trio.move_on_after(READY_SECONDS_MAX):
            while missing < 20:  # a server that has just started may not know it yet
                for node in self.ports:
                    try:
                        with trio.fail_after(2):
                            async with open_nats(*self.address(node)) as client:
                                *_, current = await client.stream_state()
                        if current >= followers:
                            return True
                    except NatsError as error:
                        missing += error.code == 404
                        told = str(error)
                    except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
                        told = str(error)
                await trio.sleep(0.5)
            return False
        raise NatsFailed(f"no stream within {READY_SECONDS_MAX:g} s ({told}); logs are in {self.directory / 'logs'}")

    async def create_stream(self) -> None:
        """Create the stream on all servers, and sync it. Raises `NatsFailed`."""
        told = ""
        with trio.move_on_after(READY_SECONDS_MAX):
            while True:
                try:
                    with trio.fail_after(5):
                        async with open_nats(*self.address(next(iter(self.ports)))) as client:
                            await client.create_stream(len(self.ports))
                    break
                except (NatsError, OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
                    told = str(error)
                await trio.sleep(0.5)
            if await self.wait_stream(len(self.ports) - 1):
                for disk in self.disks.values():
                    await trio.run_process(["sync", "--file-system", str(disk.point)])
                return
        raise NatsFailed(f"the stream could not be made: {told}; logs are in {self.directory / 'logs'}")


@asynccontextmanager
async def open_servers(
    program: str, directory: Path, disks: Mapping[str, Disk], sync_interval: str
) -> AsyncIterator[Servers]:
    """Start one for each disk; they are killed at the end. Raises OSError, ServersFailed if there are no ports."""
    free = iter(Ports.free(len(disks)).all)
    ports = {node: (next(free), next(free)) for node in disks}
    servers = Servers(program, directory, disks, ports, sync_interval, Processes(directory / "logs"))
    try:
        for node in disks:
            servers.start(node)
        yield servers
    finally:
        servers.kill_all()


def version_of(program: str) -> str:
    """The version of ``program``, such as "2.9.10". Raises OSError, subprocess.CalledProcessError."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return said.strip().rpartition(" ")[2].removeprefix("v")
