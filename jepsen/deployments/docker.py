"""Runs brokers and name servers in containers, from the image for users: `make docker-image` builds it.

Each server has a sandbox: an idle container that keeps a network namespace for the whole run. The server is a second
container in that namespace, created at each start. So the namespaces are as in `netns`, with the same switch and the
same rules, and every fault of links works on them; the image needs neither tools nor privileges. Signals, control
groups and /proc are the machine's, by the server's process id there.

A container sees only what its server needs: its own data directory, the group's secret, and the library that fakes
clocks and disks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from jepsen.deployments.leftovers import PREFIX
from jepsen.deployments.netns import TOOLS, Networks, namespace, open_networks
from jepsen.deployments.network import Launch
from mq.local_cluster.processes import ChildProcess

IMAGE = "raftmq:local"
SITE = "/opt/raftmq/site"
"""The directory in the image with raftmq and the packages that it needs."""
START_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05
_IDLE = "import signal; signal.pause()"
_LABEL = f"{PREFIX}run"
"""The label of every container that a run makes."""


def unavailable() -> str | None:
    """Return the reason that containers are not available here, as text; None if they are."""
    tools = {"docker": "docker.io", **TOOLS}
    tools_missing = [f"{tool} (apt install {package})" for tool, package in tools.items() if shutil.which(tool) is None]
    if tools_missing:
        return f"not installed: {', '.join(tools_missing)}"
    if os.geteuid() != 0:
        return "only root may cut the networks of containers"
    process = subprocess.run(["docker", "image", "inspect", IMAGE], check=False, capture_output=True, text=True)
    if process.returncode == 0:
        return None
    if "No such image" in process.stderr:
        return f"there is no image {IMAGE}: make docker-image"
    return "no Docker Engine answers; deploy/start-docker.sh starts one of its own"


@dataclass(frozen=True, slots=True)
class Containers(Networks):
    """Containers, each in the network namespace of a sandbox; `open_containers` makes them."""

    @property
    def backend(self) -> str:
        """The name of the back end on the command line."""
        return "docker"

    def program(self, name: str, launch: Launch) -> list[str]:
        """Return the command of a container that is removed when its process ends."""
        # As root, like the other back ends: the owner of the run's directory reads its files and removes them.
        options = ["--rm", "--interactive", "--name", namespace(name), "--label", _LABEL, "--user", "0:0"]
        options += ["--network", f"container:{_sandbox(name)}", "--read-only", "--tmpfs", "/tmp"]  # noqa: S108 (in the container)
        for path in (launch.data_dir, *launch.files):
            options += ["--mount", f"type=bind,source={path},target={path}"]
        environment = dict(launch.environment)
        if launch.source is not None:
            options += ["--mount", f"type=bind,source={launch.source},target={launch.source},readonly"]
            environment["PYTHONPATH"] = f"{launch.source}:{SITE}"
        for variable, value in environment.items():
            options += ["--env", f"{variable}={value}"]
        if launch.descriptors_max is not None:
            options += ["--ulimit", f"nofile={launch.descriptors_max}:{launch.descriptors_max}"]
        return ["docker", "run", *options, IMAGE]

    async def server_pid(self, name: str, process: ChildProcess) -> int:
        """Return the process id, outside of the container, of the server. Raises OSError if it does not run."""
        with trio.move_on_after(START_SECONDS_MAX):
            while process.poll() is None:
                if pid := await _pid(namespace(name)):
                    return pid
                await trio.sleep(POLL_SECONDS)
        raise ChildProcessError(f"the container {namespace(name)} did not start")


async def _pid(container: str) -> int:
    """The process id of a container's first process on this machine; 0 if it does not run."""
    inspect = ["docker", "inspect", "--format", "{{.State.Pid}}", container]
    process = await trio.run_process(inspect, check=False, capture_stdout=True, capture_stderr=True)
    return int(text) if (text := process.stdout.strip()).isdigit() else 0


def _sandbox(name: str) -> str:
    return f"{namespace(name)}-sandbox"


async def _make_sandbox(name: str) -> None:
    """Start a container without a network, whose namespace gets the name that `ip netns` knows it by."""
    options = ["--detach", "--rm", "--network", "none", "--name", _sandbox(name), "--label", _LABEL, "--read-only"]
    run = ["docker", "run", *options, "--entrypoint", "python3.11", IMAGE, "-c", _IDLE]
    await trio.run_process(run, capture_stdout=True)
    await trio.run_process(["ip", "netns", "attach", namespace(name), str(await _pid(_sandbox(name)))])


@asynccontextmanager
async def open_containers(count: int, *, switched: bool = False) -> AsyncIterator[Containers]:
    """Make the sandboxes and a network between them. The end of the block removes all containers.

    Args:
        switched: as for `open_networks`.

    Raises NetworksInUse, NetworksFailed, subprocess.CalledProcessError.
    """
    async with open_networks(count, switched=switched, make=_make_sandbox, remove=_remove) as networks:
        yield Containers(networks.count, networks.switch)


async def _remove() -> None:
    """Remove the containers of this run or of an interrupted one."""
    command = ["docker", "ps", "--all", "--quiet", "--filter", f"label={_LABEL}"]
    process = await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)
    ids: Sequence[str] = process.stdout.decode().split()
    if ids:
        await trio.run_process(["docker", "rm", "--force", *ids], check=False, capture_stdout=True, capture_stderr=True)
