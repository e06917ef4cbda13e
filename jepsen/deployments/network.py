"""The links by which servers of a run reach each other, and their faults."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mq.local_cluster.processes import ChildProcess

CLIENTS = "clients"
"""Stands in grudges for everything that is not a server."""

NAME_SERVERS = ("ns0", "ns1")
"""Each knows all brokers; brokers and clients know both."""

Grudges = Mapping[str, frozenset[str]]
"""Maps a server to the servers or `CLIENTS` from which it receives nothing."""

Address = tuple[str, int]

RAFTMQ = (sys.executable, "-m", "mq.cli")
"""The command `raftmq` of the current checkout."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The environment of a starting server, besides its arguments."""

    data_dir: Path
    """Exists."""
    files: Sequence[Path] = ()
    """Further files that it reads."""
    environment: Mapping[str, str] = field(default_factory=dict)
    source: Path | None = None
    """The checkout to run; None: the deployment's."""
    descriptors_max: int | None = None
    """Limit of open files; None: the default."""

    @property
    def prefix(self) -> list[str]:
        """A command prefix with these settings, on this machine."""
        number = self.descriptors_max
        limit = [] if number is None else ["prlimit", f"--nofile={number}:{number}"]
        environment = dict(self.environment)
        if self.source is not None:
            environment["PYTHONPATH"] = str(self.source)
        return [*limit, "env", *(f"{variable}={value}" for variable, value in environment.items())]


class Network(Protocol):
    """Addresses of servers, the namespace that each runs in, and partitions."""

    @property
    def backend(self) -> str:
        """The name of the back end on the command line."""
        ...

    def clients_reach(self, name: str) -> Address:
        """The address of a server for clients."""
        ...

    def listens(self, name: str) -> Address:
        """The address at which a server listens for clients; not the one that they use if a proxy is in between."""
        ...

    def registers_at(self, node: str, name_server: str) -> Address:
        """The address of a name server for a broker."""
        ...

    def replicates(self, node: str) -> Address:
        """The address at which a broker listens for other brokers."""
        ...

    def peer(self, node: str, other: str) -> Address:
        """The address at which ``node`` reaches the replication port of ``other``."""
        ...

    def program(self, name: str, launch: Launch) -> list[str]:
        """The command `raftmq` in the server's surroundings, to which its arguments are appended."""
        ...

    async def server_pid(self, name: str, process: ChildProcess) -> int:
        """The process id of the server that the command ``process`` runs. Raises OSError if it did not start."""
        ...

    def administrators(self) -> str:
        """Addresses of operators, for the setting admin_networks."""
        ...

    async def drop(self, grudges: Grudges) -> None:
        """Let servers receive nothing from the servers named for them, without errors; connections stay open."""
        ...

    async def dropped_count(self) -> int:
        """Packets or pieces lost or blocked since `drop`: above 0 once it takes effect."""
        ...

    async def heal(self) -> None:
        """Undo `drop`; does nothing without one."""
        ...
