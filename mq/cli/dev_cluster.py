"""A name server and a broker group as child processes: for development, the demonstration, tests and benchmarks.

Theory of operation. Each server runs in its own session, so that ctrl-C on the terminal reaches only the parent, which
stops servers in order. Each server holds the reading end of a pipe from the parent: if the parent is killed, the kernel
closes it and the servers stop by themselves. Nothing is restarted without a request.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import trio

import mq
from mq.cli.errors import lone_errors
from mq.cli.own_ports import BLOCK_PORTS, OWN_PORTS, NoFreePorts, is_free
from mq.cli.own_ports import HOST as HOST
from mq.client.errors import ClientError
from mq.durable_files import replace_file
from mq.inspection.cluster import UNREACHABLE, GroupStatus, ask_cluster
from raftlog.net.secret_file import FILE_NAME, create_secret

READY_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05
WATCH_SECONDS = 0.5
STOP_SECONDS_MAX = 10.0
_DISK_MENTIONED = 0.8
_LISTENS = re.compile(r'"port": (\d+), "event": "listening"')

LOCK_FILE = "lock"
"""File in the directory of a group that the process which runs it holds locked."""
PORTS_FILE = "cluster.json"
"""File in the directory of a group with its ports. Without it the directory is new."""
GROUP_PORTS = BLOCK_PORTS
"""Distance between the ports of broker groups; metrics ports are 100 above client ports."""


class DevClusterFailed(Exception):
    """A server did not start, or ended unexpectedly; the message names it, with the end of its log."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of the servers, all on the loopback address. ``clients`` and ``replication`` are by node."""

    namesrv: int
    clients: tuple[int, ...]
    replication: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        """Every port."""
        return (self.namesrv, *self.clients, *self.replication)

    @classmethod
    def conventional(cls, nodes: int) -> Ports:
        """The ports RocketMQ's users expect: 9876 for the name server, 10911 and up for brokers."""
        return cls(9876, tuple(10911 + i for i in range(nodes)), tuple(10931 + i for i in range(nodes)))

    @classmethod
    def from_base(cls, base: int, nodes: int) -> Ports:
        """``base`` for the name server and the next ones for the brokers."""
        first = base + 1
        return cls(base, tuple(range(first, first + nodes)), tuple(range(first + nodes, first + 2 * nodes)))

    def of_group(self, number: int) -> Ports:
        """The ports of a further group, ``number`` 1 and up: same name server, other brokers."""
        step = number * GROUP_PORTS
        return Ports(
            self.namesrv,
            tuple(port + step for port in self.clients),
            tuple(port + step for port in self.replication),
        )

    @classmethod
    def free(cls, nodes: int, *, groups: int = 1) -> Ports:
        """Ports on which nobody listens and that no other process chooses while this one lives, those of metrics
        included; also for each `of_group` of ``groups`` groups. Raises DevClusterFailed.
        """
        try:
            return cls.from_base(OWN_PORTS.take(1 + 2 * nodes, blocks=groups), nodes)
        except NoFreePorts as error:
            raise DevClusterFailed(str(error)) from error


@dataclass(slots=True)
class _Child:
    name: str
    process: trio.Process
    log: Path
    wanted: bool = True


@dataclass(slots=True)
class DevCluster:
    """One broker group in ``directory``, with its name server unless it uses another group's; created by `open`.

    ``node_ids`` are n0, n1, ...; each stores its data in a directory of that name, logs are in ``logs/``. A restart in
    the same directory uses the same ports, so that replicas find each other again.

    Servers started from now on have ``settings``, and run from ``checkout``, another version of this project with a
    virtual environment in ``.venv``; None for this one.
    """

    module: ClassVar[str] = "mq.cli"
    """Run by each server; a benchmark may derive a class whose servers run another one, with the same arguments."""

    directory: Path
    ports: Ports
    settings: Mapping[str, str]
    group: str
    listen_host: str
    client_host: str
    checkout: Path | None
    _nursery: trio.Nursery
    _children: dict[str, _Child] = field(default_factory=dict)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        directory: Path,
        *,
        nodes: int = 3,
        ports: Ports | None = None,
        settings: Mapping[str, str] | None = None,
        group: str = "broker-a",
        listen_host: str = HOST,
        client_host: str = HOST,
        checkout: Path | None = None,
        beside: DevCluster | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> AsyncIterator[DevCluster]:
        """Start everything, wait until the group has a leader and all replicas are registered, and stop it at the end.

        Args:
            ports: default: those last used in this directory, else the conventional ones.
            settings: further settings of every broker, by the names of BrokerSettings.
            listen_host, client_host: where brokers listen for clients, and which address clients get.
            checkout: another version of this project to run servers from; see the class.
            beside: a running group whose name server this one uses; without it a name server is started.
            on_progress: called with a text about what is being waited for.

        Raises:
            DevClusterFailed: with the end of the log of the server that did not start; or a port or the directory is
                in use, and nothing was changed.
            OSError: the directory is unusable.
        """
        shared = None if beside is None else beside.ports.namesrv
        check_ports_of_new_directory(directory, nodes, ports, shared)
        directory = _made(directory)
        with _held(directory):
            ports = _choose_ports(directory, nodes, ports, shared)
            create_secret(str(directory / FILE_NAME))
            async with lone_errors(), trio.open_nursery() as nursery:
                cluster = cls(
                    directory, ports, dict(settings or {}), group, listen_host, client_host, checkout, nursery
                )
                try:
                    if beside is None:
                        on_progress("starting the name server")
                        await cluster._spawn_namesrv()
                    for node_id in cluster.node_ids:
                        on_progress(f"starting {node_id}")
                        await cluster.start(node_id)
                    if beside is None:
                        await cluster._wait_namesrv()
                    on_progress("waiting for a leader")
                    await cluster.wait_ready()
                    yield cluster
                finally:
                    with trio.CancelScope(shield=True):  # bounded: `_stop` kills servers that do not stop in time
                        await cluster._stop_all()
                    nursery.cancel_scope.cancel()

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The replicas' ids, in order."""
        return tuple(f"n{number}" for number in range(len(self.ports.clients)))

    @property
    def namesrv(self) -> str:
        """Address of the name server."""
        return f"{HOST}:{self.ports.namesrv}"

    @property
    def secret_file(self) -> Path:
        """Path of the group's secret, shared by all replicas."""
        return self.directory / FILE_NAME

    def address(self, node_id: str) -> str:
        """The client address of a replica."""
        return f"{self.client_host}:{self.port(node_id)}"

    def port(self, node_id: str) -> int:
        """The port of `address`."""
        return self.ports.clients[self.node_ids.index(node_id)]

    def pid(self, node_id: str) -> int:
        """Process id of a started replica."""
        return self._children[node_id].process.pid

    def log_path(self, name: str) -> Path:
        """Log file of a replica, of "namesrv", "proxy" or "console"."""
        return self.directory / "logs" / f"{name}.log"

    def is_running(self, name: str) -> bool:
        """Whether this server was started and has not ended."""
        child = self._children.get(name)
        return child is not None and child.process.poll() is None

    async def start(self, node_id: str) -> None:
        """Start a replica, the first time or after it was killed or stopped. Does not wait until it serves."""
        number = self.node_ids.index(node_id)
        peers = ",".join(
            f"{name}@{HOST}:{port}" for name, port in zip(self.node_ids, self.ports.replication, strict=True)
        )
        arguments = ["broker", "--group", self.group, "--node-id", node_id, "--peers", peers]
        arguments += ["--listen", f"{self.listen_host}:{self.ports.clients[number]}", "--namesrv", self.namesrv]
        if self.client_host != self.listen_host:
            arguments += ["--set", f"advertise={self.address(node_id)}"]
        arguments += ["--data-dir", str(self.directory / node_id), "--set", f"secret_file={self.secret_file}"]
        for name, value in self.settings.items():
            arguments += ["--set", f"{name}={value}"]
        await self._spawn(node_id, arguments)

    async def start_all(self) -> None:
        """Start every replica that does not run; one that was just killed as soon as it has ended."""
        for node_id in self.node_ids:
            child = self._children.get(node_id)
            if child is not None and not child.wanted:
                await child.process.wait()  # the system may take a while to end it
            if not self.is_running(node_id):
                await self.start(node_id)

    def kill(self, node_id: str) -> None:
        """SIGKILL: unsynced data survives only in the page cache, connections are reset."""
        child = self._children[node_id]
        child.wanted = False
        child.process.kill()

    async def stop(self, node_id: str) -> None:
        """SIGTERM, and wait until it has ended."""
        await self._stop(self._children[node_id])

    async def status(self) -> GroupStatus | None:
        """The state of the group, or None if no replica is registered (yet). Raises ClientError."""
        groups = await ask_cluster(self.namesrv)
        return next((group for group in groups if group.group == self.group), None)

    async def leader(self) -> str:
        """Node id of the leader; waits until there is one. Raises DevClusterFailed after a minute."""
        status = await self._wait_status("leader", lambda status: status.leader is not None)
        assert status.leader is not None, "waited for a leader and got none"
        return status.leader

    async def wait_ready(self) -> None:
        """Wait until the leader accepts messages, and every running replica is registered."""
        running = {node_id for node_id in self.node_ids if self.is_running(node_id)}

        def is_ready(status: GroupStatus) -> bool:
            there = {replica.node_id: replica for replica in status.replicas if replica.role != UNREACHABLE}
            leads = there.get(status.leader or "")
            # Clients find it only once it is registered with id 0.
            return leads is not None and leads.broker_id == 0 and running <= there.keys()

        await self._wait_status(f"leader with {len(running)} registered replicas", is_ready)

    async def watch(self) -> None:
        """Runs until cancelled. Raises DevClusterFailed soon after a server ended unexpectedly."""
        while True:
            self.check()
            await trio.sleep(WATCH_SECONDS)

    async def _wait_status(self, what: str, is_good: Callable[[GroupStatus], bool]) -> GroupStatus:
        status: GroupStatus | None = None
        with trio.move_on_after(READY_SECONDS_MAX):
            while True:
                self.check()
                try:
                    status = await self.status()
                except ClientError:
                    status = None  # not up yet
                if status is not None and is_good(status):
                    return status
                _check_permission(status)
                await trio.sleep(POLL_SECONDS)
        raise DevClusterFailed(
            f"still no {what} after {READY_SECONDS_MAX:g} s: {_in_words(status)}; logs are in {self.directory / 'logs'}"
        )

    def check(self) -> None:
        """Raises DevClusterFailed if a server has ended unexpectedly."""
        for name, code in self.ended().items():
            raise DevClusterFailed(f"{name} stopped with exit code {code}: {_last_words(self.log_path(name))}")

    def ended(self) -> dict[str, int]:
        """Exit codes of servers that have ended unexpectedly, by name; a negative one is a signal."""
        codes = {child.name: child.process.poll() for child in self._children.values() if child.wanted}
        return {name: code for name, code in codes.items() if code is not None}

    async def start_proxy(self, port: int) -> int:
        """Start a proxy for gRPC clients and wait until it listens; returns its port, the given one unless that is 0.

        Raises DevClusterFailed.
        """
        return await self._start_beside("proxy", port, "--set", "metrics_listen=off")

    async def start_console(self, port: int) -> int:
        """Start a web console that may change everything; as `start_proxy`."""
        return await self._start_beside("console", port, "--allow-changes")

    async def _start_beside(self, name: str, port: int, *options: str) -> int:
        """Start another server, whose command has this name, and wait until it listens. Raises DevClusterFailed."""
        begin = self.log_path(name).stat().st_size if self.log_path(name).exists() else 0
        await self._spawn(name, [name, "--namesrv", self.namesrv, "--listen", f"{HOST}:{port}", *options])
        with trio.move_on_after(READY_SECONDS_MAX):
            while self.is_running(name):
                said = self.log_path(name).read_bytes()[begin:].decode(errors="replace")
                if (listens := _LISTENS.search(said)) is not None:
                    return int(listens[1])
                await trio.sleep(POLL_SECONDS)
        self.check()
        raise DevClusterFailed(f"the {name} does not listen: {_last_words(self.log_path(name))}")

    async def _spawn_namesrv(self) -> None:
        await self._spawn(
            "namesrv", ["namesrv", "--listen", self.namesrv, "--data-dir", str(self.directory / "namesrv")]
        )

    async def _wait_namesrv(self) -> None:
        """Until it listens: its start takes less than that of brokers, which come meanwhile."""
        with trio.move_on_after(READY_SECONDS_MAX):
            while True:
                self.check()
                try:
                    stream = await trio.open_tcp_stream(HOST, self.ports.namesrv)
                except OSError:
                    await trio.sleep(POLL_SECONDS)
                else:
                    await trio.aclose_forcefully(stream)
                    self.check()  # another process may have answered on a port that our server could not bind
                    return
        raise DevClusterFailed(
            f"the name server does not listen on {self.namesrv}: {_last_words(self.log_path('namesrv'))}"
        )

    @asynccontextmanager
    async def running_module(
        self, name: str, arguments: list[str], environment: Mapping[str, str] | None = None
    ) -> AsyncIterator[trio.Process]:
        """Run a module of this project as a child process, with pipes for its input and output, until the block ends.

        ``name`` names its log for standard error. ``arguments`` begin with the module. ``environment`` extends ours. A
        module that reads its input ends when this process does, however it ends.
        """
        with self.log_path(name).open("ab") as log:
            async with trio.open_nursery() as nursery:
                process: trio.Process = await nursery.start(
                    partial(
                        trio.run_process,
                        [sys.executable, "-m", *arguments],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        check=False,
                        start_new_session=True,
                        env={**os.environ, "PYTHONPATH": _python_path(), **(environment or {})},
                    )
                )
                yield process
                nursery.cancel_scope.cancel()

    def _python(self) -> str:
        return sys.executable if self.checkout is None else str(self.checkout / ".venv" / "bin" / "python")

    async def _spawn(self, name: str, arguments: list[str]) -> None:
        assert not self.is_running(name), f"{name} is running already"
        log = self.log_path(name)
        with log.open("ab") as output:
            process = await self._nursery.start(
                partial(
                    trio.run_process,
                    [self._python(), "-m", self.module, *arguments, "--until-stdin-closes"],
                    cwd=self.checkout,  # Python looks there first
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    check=False,
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": _python_path() if self.checkout is None else str(self.checkout)},
                )
            )
        self._children[name] = _Child(name, process, log)

    async def _stop(self, child: _Child) -> None:
        child.wanted = False
        if child.process.poll() is None:
            child.process.send_signal(signal.SIGTERM)
            with trio.move_on_after(STOP_SECONDS_MAX):
                await child.process.wait()
        if child.process.poll() is None:
            child.process.kill()
        await child.process.wait()

    async def _stop_all(self) -> None:
        async with trio.open_nursery() as nursery:
            for name, child in self._children.items():
                if name != "namesrv":
                    nursery.start_soon(self._stop, child)
        if (namesrv := self._children.get("namesrv")) is not None:
            await self._stop(namesrv)


def _check_permission(status: GroupStatus | None) -> None:
    """Raises DevClusterFailed if the brokers have accounts, and this process has no account that may ask them."""
    refusals = [] if status is None else [replica.refusal for replica in status.replicas]
    if refusals and all(refusals):
        raise DevClusterFailed(
            f"the brokers refuse to answer this process: {refusals[0]}; give it the keys of an administrator in "
            "RAFTMQ_ACCESS_KEY and RAFTMQ_SECRET_KEY, or in the file that RAFTMQ_CREDENTIALS names"
        )


def _in_words(status: GroupStatus | None) -> str:
    if status is None:
        return "no replica is registered at the name server"
    replicas = ", ".join(
        f"{replica.node_id} is {replica.role}"
        + (f" in term {replica.term:,}" if replica.term is not None else "")
        + (" and abstains" if replica.abstaining else "")
        + (f", its disk is {replica.disk_used:.0%} full" if (replica.disk_used or 0) >= _DISK_MENTIONED else "")
        for replica in status.replicas
    )
    return replicas or "no replica answers"


def _python_path() -> str:
    """PYTHONPATH for children: this project, then our own path."""
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.pathsep.join([str(Path(mq.__file__).parent.parent), *inherited])


def _last_words(log: Path) -> str:
    # An exception group is printed in a frame of these characters; its last line is only frame.
    lines = [text for line in log.read_text(errors="replace").splitlines() if (text := line.strip(" |+-"))]
    return (lines[-1] if lines else "it said nothing") + f" (see {log})"


def _made(directory: Path) -> Path:
    directory = directory.resolve()
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Lock ``directory`` until the block or this process ends. Raises DevClusterFailed, OSError."""
    with (directory / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "of unknown id"
            raise DevClusterFailed(f"{directory} is in use: a group runs in it, started by process {holder}") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def check_ports_of_new_directory(
    directory: Path, nodes: int, wanted: Ports | None, shared_namesrv: int | None = None
) -> None:
    """Raises DevClusterFailed, before anything is written, if the ports for a new group are not free.

    Does not check the directory of an existing group: that group may be the one listening.
    """
    if not (directory / PORTS_FILE).exists():
        _free_ports(directory, nodes, wanted, shared_namesrv)


def _choose_ports(directory: Path, nodes: int, wanted: Ports | None, shared_namesrv: int | None) -> Ports:
    """As `_free_ports`, and stores them for the next time."""
    chosen = _free_ports(directory, nodes, wanted, shared_namesrv)
    path = directory / PORTS_FILE
    if chosen != remembered_ports(path):
        replace_file(path, json.dumps(asdict(chosen)).encode() + b"\n")
    return chosen


def _free_ports(directory: Path, nodes: int, wanted: Ports | None, shared_namesrv: int | None) -> Ports:
    """``wanted``; else the ports this directory was used with; else the conventional ones.

    With ``shared_namesrv`` that is the port of the name server, which another group's name server may use.

    Raises DevClusterFailed if a port is in use, or if the directory belongs to a group of another size.
    """
    known = remembered_ports(directory / PORTS_FILE)
    if known is not None and len(known.clients) != nodes:
        raise DevClusterFailed(f"{directory} holds a group of {len(known.clients)} replicas, not of {nodes}")
    chosen = wanted or known or Ports.conventional(nodes)
    if shared_namesrv is not None:
        chosen = replace(chosen, namesrv=shared_namesrv)
    if taken := [port for port in chosen.all if port != shared_namesrv and not is_free(port)]:
        raise DevClusterFailed(
            f"another process listens on {HOST}:{taken[0]}; stop it, or choose other ports with --base-port"
        )
    return chosen


def remembered_ports(path: Path) -> Ports | None:
    """The ports in the file; None without a file. Raises DevClusterFailed if it cannot be read."""
    if not path.exists():
        return None
    try:
        known = json.loads(path.read_text())
        return Ports(int(known["namesrv"]), tuple(known["clients"]), tuple(known["replication"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DevClusterFailed(f"{path} cannot be read: {error}") from error
