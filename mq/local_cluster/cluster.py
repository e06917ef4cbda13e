"""Runs a name server and a broker group as child processes, for development, the demonstration, tests and benchmarks.

Each server holds the reading end of a pipe from the parent: if the parent is killed, the servers stop by themselves.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import trio

import mq
from mq.client.errors import ClientError
from mq.inspection.cluster import UNREACHABLE, GroupStatus, ask_cluster
from mq.local_cluster.port_reservation import HOST
from mq.local_cluster.ports import Ports, check_ports_of_new_directory, choose_ports, lock_directory
from mq.local_cluster.processes import POLL_SECONDS, READY_SECONDS_MAX, Processes, ServersFailed
from raftlog.net.secret_file import FILE_NAME, create_secret

WATCH_SECONDS = 0.5
_NAMESRV = "namesrv"
_DISK_MENTIONED = 0.8
_LISTENS = re.compile(r'"port": (\d+), "event": "listening"')


@dataclass(slots=True)
class DevCluster:
    """A broker group in ``directory``, with a name server unless it uses another group's. Made by `open`.

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
    _processes: Processes

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
        """Start all servers, wait for a leader and until all replicas are registered, and stop them at the end.

        Args:
            ports: default: those last used in this directory, else the conventional ones.
            settings: further settings of every broker, by the names of BrokerSettings.
            listen_host, client_host: where brokers listen for clients, and which address clients get.
            checkout: another version of this project to run servers from; see the class.
            beside: a running group whose name server this one uses; without it a name server is started.
            on_progress: called with a text that says what it waits for.

        Raises:
            ServersFailed: with the end of the log of the server that did not start; or a port or the directory is
                in use, and nothing was changed.
            OSError: the directory is unusable.
        """
        shared_namesrv = None if beside is None else beside.ports.namesrv
        check_ports_of_new_directory(directory, nodes, ports, shared_namesrv)
        directory = _make_directory(directory)
        with lock_directory(directory):
            ports = choose_ports(directory, nodes, ports, shared_namesrv)
            create_secret(str(directory / FILE_NAME))
            processes = Processes(directory / "logs")
            cluster = cls(directory, ports, dict(settings or {}), group, listen_host, client_host, checkout, processes)
            try:
                if beside is None:
                    on_progress("starting the name server")
                    cluster._spawn(
                        _NAMESRV, ["namesrv", "--listen", cluster.namesrv, "--data-dir", str(directory / "namesrv")]
                    )
                for node_id in cluster.node_ids:
                    on_progress(f"starting {node_id}")
                    await cluster.start(node_id)
                if beside is None:  # its start takes less time than the brokers', which start meanwhile
                    await processes.wait_listening(_NAMESRV, ports.namesrv)
                on_progress("waiting for a leader")
                await cluster.wait_ready()
                yield cluster
            finally:
                await processes.stop_all(last=[_NAMESRV])  # noqa: ASYNC102 - shields itself

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The ids of the replicas, in order."""
        return tuple(f"n{number}" for number in range(len(self.ports.clients)))

    @property
    def namesrv(self) -> str:
        """The address of the name server."""
        return f"{HOST}:{self.ports.namesrv}"

    @property
    def secret_file(self) -> Path:
        """The path of the file with the group's secret, which all replicas share."""
        return self.directory / FILE_NAME

    def address(self, node_id: str) -> str:
        """Return the client address of a replica."""
        return f"{self.client_host}:{self.port(node_id)}"

    def port(self, node_id: str) -> int:
        """Return the port of a replica's client address."""
        return self.ports.clients[self.node_ids.index(node_id)]

    def pid(self, node_id: str) -> int:
        """Return the process id of a started replica."""
        return self._processes.pid(node_id)

    def log_path(self, name: str) -> Path:
        """Return the log file of a replica, or of "namesrv", "proxy" or "console"."""
        return self._processes.log_path(name)

    def is_running(self, name: str) -> bool:
        """Whether this server was started and has not ended."""
        return self._processes.is_running(name)

    async def start(self, node_id: str) -> None:
        """Start a replica that was never started, was killed or was stopped. Does not wait until it serves."""
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
        await trio.lowlevel.checkpoint()
        self._spawn(node_id, arguments)

    async def start_all(self) -> None:
        """Start every replica that does not run. Waits for the end of one that was just killed."""
        for node_id in self.node_ids:
            if node_id in self._processes.names and not self._processes.is_wanted(node_id):
                await self._processes.wait_ended(node_id)  # the system may take a while to end it
            if not self.is_running(node_id):
                await self.start(node_id)

    def kill(self, node_id: str) -> None:
        """Send SIGKILL: unsynced data survives only in the page cache, connections are reset."""
        self._processes.kill(node_id)

    async def stop(self, node_id: str) -> None:
        """Send SIGTERM, and wait until the process has ended."""
        await self._processes.stop(node_id)

    async def status(self) -> GroupStatus | None:
        """Return the state of the group; None while no replica is registered. Raises ClientError."""
        groups = await ask_cluster(self.namesrv)
        return next((group for group in groups if group.group == self.group), None)

    async def leader(self) -> str:
        """Wait until there is a leader, and return its node id. Raises ServersFailed after a minute."""
        status = await self._wait_status("leader", lambda status: status.leader is not None)
        assert status.leader is not None, "waited for a leader and got none"
        return status.leader

    async def wait_ready(self) -> None:
        """Wait until the leader accepts messages, and every running replica is registered."""
        running_ids = {node_id for node_id in self.node_ids if self.is_running(node_id)}

        def is_ready(status: GroupStatus) -> bool:
            there = {replica.node_id: replica for replica in status.replicas if replica.role != UNREACHABLE}
            leads = there.get(status.leader or "")
            # Clients find it only once it is registered with id 0.
            return leads is not None and leads.broker_id == 0 and running_ids <= there.keys()

        await self._wait_status(f"leader with {len(running_ids)} registered replicas", is_ready)

    async def watch(self) -> None:
        """Watch the servers until cancelled. Raises ServersFailed soon after one ended unexpectedly."""
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
        raise ServersFailed(
            f"still no {what} after {READY_SECONDS_MAX:g} s: {_in_words(status)}; logs are in {self.directory / 'logs'}"
        )

    def check(self) -> None:
        """Raises ServersFailed if a server has ended unexpectedly."""
        self._processes.check()

    def exit_codes(self) -> dict[str, int]:
        """Return the exit codes of servers that ended unexpectedly, by name; a negative one is a signal."""
        return self._processes.exit_codes()

    async def start_proxy(self, port: int) -> int:
        """Start a proxy for gRPC clients and wait until it listens. Returns its port, ``port`` unless that is 0.

        Raises ServersFailed.
        """
        return await self._start_beside("proxy", port, "--set", "metrics_listen=off")

    async def start_console(self, port: int) -> int:
        """Start a web console that may change everything. ``port`` and result are as for `start_proxy`."""
        return await self._start_beside("console", port, "--allow-changes")

    async def _start_beside(self, name: str, port: int, *options: str) -> int:
        """Start another server, whose command has this name, and wait until it listens. Raises ServersFailed."""
        begin = self._processes.log_bytes(name)
        self._spawn(name, [name, "--namesrv", self.namesrv, "--listen", f"{HOST}:{port}", *options])
        return int((await self._processes.wait_said(name, _LISTENS, begin))[1])

    @asynccontextmanager
    async def running_module(
        self, name: str, arguments: list[str], environment: Mapping[str, str] | None = None
    ) -> AsyncIterator[trio.Process]:
        """Run a module of this project as a child process, with pipes for its input and output, until the block ends.

        Standard error goes to the log ``name``. ``arguments`` begin with the module. ``environment`` extends ours. A
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

    def _spawn(self, name: str, arguments: list[str]) -> None:
        path = _python_path() if self.checkout is None else str(self.checkout)
        self._processes.start(
            name,
            [self._python(), "-m", self.module, *arguments, "--until-stdin-closes"],
            environment={"PYTHONPATH": path},
            directory=self.checkout,  # Python looks there first
            input_pipe=True,
        )


def _check_permission(status: GroupStatus | None) -> None:
    """Raises ServersFailed if the brokers have accounts, and this process has no account that may ask them."""
    refusals = [] if status is None else [replica.refusal for replica in status.replicas]
    if refusals and all(refusals):
        raise ServersFailed(
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
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.pathsep.join([str(Path(mq.__file__).parent.parent), *paths])


def _make_directory(directory: Path) -> Path:
    directory = directory.resolve()
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    return directory
