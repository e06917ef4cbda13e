"""Runs name servers and a broker group as processes, which tests kill, pause, stop and observe from outside.

The processes themselves are `mq.local_cluster.Processes`; here is where they run, with which arguments and directories.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from jepsen.deployments.disks import Disk
from jepsen.deployments.leftovers import PREFIX, RUN_VARIABLE, is_held
from jepsen.deployments.network import NAME_SERVERS, Address, Launch, Network
from jepsen.deployments.object_storage import ObjectStorage
from jepsen.deployments.shim import Shim
from jepsen.wire import ask_figures
from mq.local_cluster import Processes

ROOT = Path(__file__).parent.parent.parent
GROUP = "broker-a"
READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
POLL_SECONDS = 0.1
SAID_CHARS_MAX = 300
PAGE_BYTES = os.sysconf("SC_PAGESIZE")


class ClusterFailed(Exception):
    """The cluster did not reach a state in time. The message names the state, and the directory of the logs."""


class NotRecovered(ClusterFailed):
    """After the end of all faults, the group still does not work, or a replica lags."""


@dataclass(slots=True)
class Cluster:
    """Brokers n0, n1, ... and name servers; `open_cluster` starts them.

    Each has a directory of its name; logs are in ``logs``.

    Attributes:
        nodes: the current members of the group.
        spares: names of brokers that may join it.
        founders: the initial members.
    """

    directory: Path
    network: Network
    nodes: tuple[str, ...]
    settings: Mapping[str, str]
    source: Path
    """The checkout that servers run from."""
    disks: Mapping[str, Disk]
    """Separate file systems, by broker; empty if all are in ``directory``."""
    shims: Mapping[str, Shim]
    """Libraries that fake clocks and disks for brokers; empty without."""
    _processes: Processes
    spares: tuple[str, ...]
    founders: tuple[str, ...]
    storage: ObjectStorage | None = None
    """The store in which brokers archive their log; None if they do not."""
    earlier: Path | None = None
    """The code of the earlier release, if brokers may run it."""
    _earlier: set[str] = field(default_factory=set)
    _small_disks: dict[str, Path] = field(default_factory=dict)
    _new_members: set[str] = field(default_factory=set)
    _clients: set[str] = field(default_factory=set)

    @property
    def namesrv(self) -> str:
        """The addresses of the name servers, in the form that clients take."""
        return ";".join(_text(self.network.clients_reach(name)) for name in NAME_SERVERS)

    def data_dir(self, node: str) -> Path:
        """Return the data directory of a broker."""
        return self._small_disks.get(node) or self._home(node)

    def _home(self, node: str) -> Path:
        return self.disks[node].point / "data" if node in self.disks else self.directory / node

    def log_file(self, name: str) -> Path:
        """Return the file with the output of all processes of a server."""
        return self._processes.log_path(name)

    # -- processes ---------------------------------------------------------------------------------------------------

    async def start(self, name: str, *, descriptors_max: int | None = None) -> None:
        """Start or restart a server; returns before it serves.

        Run a broker with additional options, which replace its own, in a process that should exit by itself.
        """
        program = self.network.program(name, self._launch(name, descriptors_max))
        if name in NAME_SERVERS:
            arguments = ["namesrv", "--listen", _text(self.network.listens(name)), "--data-dir"]
            arguments += [str(self.data_dir(name))]
        else:
            arguments = self._arguments(name)
        command = [*program, *arguments, "--until-stdin-closes"]
        self._processes.start(name, command, directory=self._source(name), input_pipe=True)
        self._processes.set_pid(name, await self.network.server_pid(name, self._processes.process(name)))

    async def start_once(self, node: str, *options: str, seconds: float) -> tuple[int, str] | None:
        """Run a broker with additional ``options``, until it exits or for ``seconds``.

        Returns its exit code and the end of its output; None if it still ran after ``seconds``, and was stopped.
        """
        command = [*self.network.program(node, self._launch(node)), *self._arguments(node), *options]
        with trio.move_on_after(seconds):
            process = await trio.run_process(
                command,
                check=False,
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.source,
            )
            return process.returncode, process.stdout.decode(errors="replace").strip()[-SAID_CHARS_MAX:]
        return None

    def _arguments(self, node: str) -> list[str]:
        """Arguments of the command that starts a broker."""
        network = self.network
        peers = ",".join(f"{other}@{_text(network.peer(node, other))}" for other in self.founders)
        name_servers = ";".join(_text(network.registers_at(node, name)) for name in NAME_SERVERS)
        arguments = ["broker", "--group", GROUP, "--node-id", node, "--namesrv", name_servers]
        arguments += ["--join"] if node in self._new_members else ["--peers", peers]
        arguments += ["--listen", _text(network.listens(node)), "--data-dir", str(self.data_dir(node))]
        arguments += ["--replication-listen", _text(network.replicates(node))]
        settings = {
            "advertise": _text(network.clients_reach(node)),
            "admin_networks": network.administrators(),
            "secret_file": str(self._secret),
            **self.settings,
        }
        for name, value in settings.items():
            arguments += ["--set", f"{name}={value}"]
        return arguments

    def use_earlier(self, node: str, earlier: bool) -> None:
        """Make the next starts of a broker run the earlier release, or the current code again."""
        assert self.earlier is not None or not earlier, "there is no earlier release in this run"
        (self._earlier.add if earlier else self._earlier.discard)(node)

    def is_earlier(self, node: str) -> bool:
        """Whether the next start of a broker runs the earlier release."""
        return node in self._earlier

    def code_of(self, node: str) -> Path | None:
        """Return the directory of the code that a broker's process runs; None if the process does not exist."""
        try:
            environment = Path(f"/proc/{self.pid(node)}/environ").read_bytes()
        except OSError:
            return None
        variables = dict(each.partition(b"=")[::2] for each in environment.split(b"\0"))
        return Path(os.fsdecode(variables[b"PYTHONPATH"])) if b"PYTHONPATH" in variables else self.source

    def _source(self, name: str) -> Path:
        return self.earlier if self.earlier is not None and name in self._earlier else self.source

    async def start_client(self, name: str, command: Sequence[str]) -> trio.Process:
        """Start or restart a client in a separate process. Returns the process, with pipes for its input and output."""
        with self.log_file(name).open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), RUN_VARIABLE: str(self.directory)}
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                cwd=ROOT,
                env=environment,
            )
        self._processes.adopt(name, process)
        self._clients.discard(name)
        return process

    def client_joined(self, name: str) -> None:
        """Record that a started client has joined its group; `clients_at_work` then includes it."""
        self._clients.add(name)

    def clients_at_work(self) -> list[str]:
        """Return the names of the running separate clients that have joined their group."""
        return sorted(name for name in self._clients if self.is_running(name))

    async def kill(self, name: str) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        await self.end(name, signal.SIGKILL)

    async def stop(self, name: str) -> None:
        """Send SIGTERM, and wait until the process has ended; kill it if that takes too long."""
        await self._processes.stop(name, STOP_SECONDS_MAX)

    async def end(self, name: str, signal_number: signal.Signals) -> None:
        """Send a signal that ends the process, and wait until it has ended. Does nothing if it has ended already."""
        await self._processes.end(name, signal_number)

    def expect_end(self, name: str) -> None:
        """Treat an exit of this server as expected, until `must_not_end`."""
        self._processes.expect_end(name)

    def must_not_end(self, name: str) -> None:
        """Treat an exit of this server as unexpected again."""
        self._processes.must_not_end(name)

    def send_signal(self, name: str, signal_number: signal.Signals) -> None:
        """Send a signal to a server's process, and return at once."""
        self._processes.send_signal(name, signal_number)

    def pid(self, name: str) -> int:
        """Return the process id of a server that was started."""
        return self._processes.pid(name)

    def is_running(self, name: str) -> bool:
        """Whether a server was started and has not ended."""
        return self._processes.is_running(name)

    def memory_bytes(self, name: str) -> int:
        """Return the resident memory of a server in bytes; 0 if it does not run."""
        try:
            return int(Path(f"/proc/{self.pid(name)}/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES
        except (OSError, IndexError):
            return 0  # it has ended

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of a server that has ended; None while it runs."""
        return self._processes.exit_code(name)

    def ended_by_themselves(self) -> dict[str, int]:
        """Return the exit codes of servers that ended unexpectedly. Each of them is returned once."""
        exit_codes = self._processes.exit_codes()
        for name in exit_codes:
            self._processes.expect_end(name)
        return exit_codes

    def _launch(self, name: str, descriptors_max: int | None = None) -> Launch:
        shim = self.shims.get(name)
        data_dir = self.data_dir(name)
        data_dir.mkdir(parents=True, exist_ok=True)
        return Launch(
            data_dir,
            files=[self._secret, *(shim.files if shim is not None else ())],
            environment={RUN_VARIABLE: str(self.directory), **(shim.environment if shim is not None else {})},
            source=None if self._source(name) == ROOT else self._source(name),
            descriptors_max=descriptors_max,
        )

    @property
    def _secret(self) -> Path:
        return self.directory / "group.secret"

    # -- status --------------------------------------------------------------------------------------------------------

    async def figures(self, node: str, seconds: float = 1.0) -> dict[str, str] | None:
        """Ask a broker for its figures; None if it does not answer in time."""
        return await ask_figures(*self.network.clients_reach(node), seconds)

    async def all_figures(self, seconds: float = 1.0) -> dict[str, dict[str, str]]:
        """Ask all brokers for their figures concurrently. Returns those of brokers that answer in ``seconds``."""
        tables: dict[str, dict[str, str]] = {}

        async def ask(node: str) -> None:
            if (table := await self.figures(node, seconds)) is not None:
                tables[node] = table

        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(ask, node)
        return tables

    async def leader(self) -> str:
        """Return the leader with the highest term, once there is one. Raises NotRecovered after a minute."""
        with trio.move_on_after(READY_SECONDS_MAX):
            while True:
                tables = await self.all_figures()
                leads = [(int(t["raftmq.term"]), node) for node, t in tables.items() if t["raftmq.role"] == "leader"]
                if leads:
                    return max(leads)[1]
                await trio.sleep(POLL_SECONDS)
        raise NotRecovered(f"no leader within {READY_SECONDS_MAX:g} s; logs are in {self.directory / 'logs'}")

    async def wait_caught_up(self, node: str, seconds: float) -> None:
        """Wait until a broker has applied all entries that the leader has committed by now. Raises NotRecovered."""
        goal = index = -1
        with trio.move_on_after(seconds):
            while goal < 0:
                table = await self.figures(await self.leader())
                goal = int(table["raftmq.commitIndex"]) if table is not None else -1
            while True:
                table = await self.figures(node)
                index = int(table["raftmq.appliedIndex"]) if table is not None else index
                if index >= goal:
                    return
                await trio.sleep(POLL_SECONDS)
        raise NotRecovered(f"{node}: expected applied index {goal} within {seconds:g} s of its start, got {index}")

    async def wait_level(self) -> None:
        """Wait until all brokers answer, and have applied the whole log, up to the same entry. Raises NotRecovered.

        No client may send meanwhile.
        """
        tables: dict[str, dict[str, str]] = {}
        with trio.move_on_after(READY_SECONDS_MAX):
            while True:
                tables = await self.all_figures()
                ends = {(t["raftmq.appliedIndex"], t["raftmq.lastIndex"]) for t in tables.values()}
                if len(tables) == len(self.nodes) and len(ends) == 1 and len(set(*ends)) == 1:
                    return
                await trio.sleep(POLL_SECONDS)
        indexes = {node: table["raftmq.appliedIndex"] for node, table in tables.items()}
        raise NotRecovered(f"replicas are not level within {READY_SECONDS_MAX:g} s after healing: {indexes}")

    async def command(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command of `raftmq`, as an operator does."""
        return await trio.run_process(
            [sys.executable, "-m", "mq.cli", *arguments],
            check=False,
            capture_stdout=True,
            capture_stderr=True,
            cwd=self.source,
        )

    # -- directories -------------------------------------------------------------------------------------------------

    async def forget(self, node: str) -> None:
        """Remove all data of a stopped broker. It starts as a node that waits until an operator adds it."""
        await self.wipe(node)
        self._new_members.add(node)

    async def wipe(self, node: str) -> None:
        """Remove all data of a stopped broker. It still starts as a member."""
        assert not self.is_running(node), f"{node} runs"
        await trio.to_thread.run_sync(partial(shutil.rmtree, self.data_dir(node), ignore_errors=True))

    def add_member(self, node: str) -> None:
        """Move a node from `spares` to `nodes`, the members."""
        self.spares = tuple(each for each in self.spares if each != node)
        self.nodes = (*self.nodes, node)

    def remove_member(self, node: str) -> None:
        """Move a node from `nodes`, the members, to `spares`."""
        self.nodes = tuple(each for each in self.nodes if each != node)
        self.spares = (*self.spares, node)

    async def move_to_small_disk(self, node: str, size_bytes: int) -> Path:
        """Move the data of a stopped broker to a file system of ``size_bytes``. Returns the path of that file system.

        Raises PermissionError if mounting is not allowed.
        """
        small = self.directory / f"{PREFIX}small-{node}"
        small.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(small)]
        process = await trio.run_process(mount, check=False, capture_stderr=True)
        if process.returncode:
            raise PermissionError(f"mount: {process.stderr.decode(errors='replace').strip()}")
        home = self.data_dir(node)
        await trio.to_thread.run_sync(shutil.copytree, home, small / "data")
        await trio.to_thread.run_sync(shutil.rmtree, home)
        self._small_disks[node] = small / "data"
        return small

    async def move_back(self, node: str) -> None:
        """Undo `move_to_small_disk` for a stopped broker."""
        data = self._small_disks.pop(node)
        await trio.to_thread.run_sync(shutil.copytree, data, self.data_dir(node))
        await trio.run_process(["umount", str(data.parent)])


def _text(address: Address) -> str:
    return "{}:{}".format(*address)


def node_names(count: int) -> tuple[str, ...]:
    """Return the names of brokers: n0, n1, ..."""
    return tuple(f"n{number}" for number in range(count))


@asynccontextmanager
async def open_cluster(
    directory: Path,
    network: Network,
    nodes: tuple[str, ...],
    *,
    spares: tuple[str, ...] = (),
    settings: Mapping[str, str] | None = None,
    source: Path = ROOT,
    disks: Mapping[str, Disk] | None = None,
    shims: Mapping[str, Shim] | None = None,
    earlier: Path | None = None,
) -> AsyncIterator[Cluster]:
    """Start all servers, and wait for a leader; the end of the block stops them. Raises ClusterFailed, OSError."""
    assert directory.is_absolute(), f"{directory} means something else to servers, which run in another directory"
    assert is_held(directory), f"another run would take servers of {directory} for leftovers: hold it while they run"
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    secret = directory / "group.secret"
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_hex(32) + "\n")
    processes = Processes(directory / "logs")
    cluster = Cluster(
        directory, network, nodes, dict(settings or {}), source, disks or {}, shims or {}, processes, spares, nodes
    )
    cluster.earlier = earlier
    for node in nodes if earlier is not None else ():
        cluster.use_earlier(node, True)
    try:
        for name in (*NAME_SERVERS, *nodes):
            await cluster.start(name)
        await cluster.leader()
        yield cluster
    finally:
        await processes.stop_all(NAME_SERVERS, STOP_SECONDS_MAX)  # noqa: ASYNC102 - shields itself
