"""Chooses the ports of a group's servers, and stores them in a file for the next start."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mq.durable_files import replace_file
from mq.local_cluster.port_reservation import BLOCK_PORTS, HOST, OWN_PORTS, NoFreePorts, is_free
from mq.local_cluster.processes import ServersFailed

LOCK_FILE = "lock"
"""File in the directory of a group that the process which runs it holds locked."""
PORTS_FILE = "cluster.json"
"""File in the directory of a group with its ports. Without it the directory is new."""
GROUP_PORTS = BLOCK_PORTS
"""Distance between the ports of broker groups; metrics ports are 100 above client ports."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the servers, on the loopback address. ``clients`` and ``replication`` have one for each node."""

    namesrv: int
    clients: tuple[int, ...]
    replication: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        """The ports of all servers."""
        return (self.namesrv, *self.clients, *self.replication)

    @classmethod
    def conventional(cls, node_count: int) -> Ports:
        """Return the ports that users of RocketMQ expect: 9876 for the name server, 10911 and up for brokers."""
        return cls(9876, tuple(10911 + i for i in range(node_count)), tuple(10931 + i for i in range(node_count)))

    @classmethod
    def from_base(cls, base: int, node_count: int) -> Ports:
        """Return ``base`` for the name server and the next ports for the brokers."""
        first = base + 1
        return cls(
            base, tuple(range(first, first + node_count)), tuple(range(first + node_count, first + 2 * node_count))
        )

    def of_group(self, number: int) -> Ports:
        """Return the ports of a further group, ``number`` 1 and up: the same name server, other ports for brokers."""
        step = number * GROUP_PORTS
        return Ports(
            self.namesrv,
            tuple(port + step for port in self.clients),
            tuple(port + step for port in self.replication),
        )

    @classmethod
    def free(cls, node_count: int, *, groups: int = 1) -> Ports:
        """Reserve free ports, with metrics ports, for ``groups`` groups (`of_group`), which no other process chooses
        while this one lives. Raises ServersFailed.
        """
        try:
            return cls.from_base(OWN_PORTS.reserve(1 + 2 * node_count, blocks=groups), node_count)
        except NoFreePorts as error:
            raise ServersFailed(str(error)) from error


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock ``directory`` until the block or this process ends. Raises ServersFailed, OSError."""
    with (directory / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "of unknown id"
            raise ServersFailed(f"{directory} is in use: a group runs in it, started by process {holder}") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def is_locked(file: Path) -> bool:
    """Whether a living process locked this file, as `lock_directory` locks a directory's. Raises OSError."""
    try:
        with file.open("r") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def check_ports_of_new_directory(
    directory: Path, node_count: int, ports: Ports | None, shared_namesrv: int | None = None
) -> None:
    """Raises ServersFailed, before anything is written, if the ports for a new group are not free.

    Does not check the directory of an existing group: that group may be the one listening.
    """
    if not (directory / PORTS_FILE).exists():
        _free_ports(directory, node_count, ports, shared_namesrv)


def choose_ports(directory: Path, node_count: int, ports: Ports | None, shared_namesrv: int | None) -> Ports:
    """Works like `_free_ports`, and stores them for the next time."""
    group_ports = _free_ports(directory, node_count, ports, shared_namesrv)
    path = directory / PORTS_FILE
    if group_ports != load_ports(path):
        replace_file(path, json.dumps(asdict(group_ports)).encode() + b"\n")
    return group_ports


def _free_ports(directory: Path, node_count: int, ports: Ports | None, shared_namesrv: int | None) -> Ports:
    """Choose ``ports``, else the ports this directory was used with, else the conventional ones.

    With ``shared_namesrv`` that is the port of the name server, which another group's name server may use.

    Raises ServersFailed if a port is in use, or if the directory belongs to a group of another size.
    """
    previous = load_ports(directory / PORTS_FILE)
    if previous is not None and len(previous.clients) != node_count:
        raise ServersFailed(f"{directory} has a group of {len(previous.clients)} replicas, not of {node_count}")
    group_ports = ports or previous or Ports.conventional(node_count)
    if shared_namesrv is not None:
        group_ports = replace(group_ports, namesrv=shared_namesrv)
    if busy_ports := [port for port in group_ports.all if port != shared_namesrv and not is_free(port)]:
        raise ServersFailed(
            f"another process listens on {HOST}:{busy_ports[0]}; stop it, or choose other ports with --base-port"
        )
    return group_ports


def load_ports(path: Path) -> Ports | None:
    """Read the ports from the file; None without a file. Raises ServersFailed if it cannot be read."""
    if not path.exists():
        return None
    try:
        numbers = json.loads(path.read_text())
        return Ports(int(numbers["namesrv"]), tuple(numbers["clients"]), tuple(numbers["replication"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ServersFailed(f"{path} cannot be read: {error}") from error
