"""Defines the links between the servers of a run, and the faults of these links."""

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
    """The directory, files and environment with which a server starts."""

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
        """The prefix of a command that runs with these settings on this machine."""
        number = self.descriptors_max
        limit = [] if number is None else ["prlimit", f"--nofile={number}:{number}"]
        environment = dict(self.environment)
        if self.source is not None:
            environment["PYTHONPATH"] = str(self.source)
        return [*limit, "env", *(f"{variable}={value}" for variable, value in environment.items())]


class Network(Protocol):
    """Knows the address and the namespace of each server, and cuts links between servers."""

    @property
    def backend(self) -> str:
        """The network's name in the option ``--backend``."""
        ...

    def clients_reach(self, name: str) -> Address:
        """Return the address at which clients reach a server."""
        ...

    def listens(self, name: str) -> Address:
        """Return the address at which a server listens. Clients use another one if a proxy is in between."""
        ...

    def registers_at(self, node: str, name_server: str) -> Address:
        """Return the address at which a broker reaches a name server."""
        ...

    def replicates(self, node: str) -> Address:
        """Return the address at which a broker listens for other brokers."""
        ...

    def peer(self, node: str, other: str) -> Address:
        """Return the address at which ``node`` reaches the replication port of ``other``."""
        ...

    def program(self, name: str, launch: Launch) -> list[str]:
        """Return the command `raftmq` in the server's namespace; the caller appends its arguments."""
        ...

    async def server_pid(self, name: str, process: ChildProcess) -> int:
        """Return the process id of the server that ``process`` runs. Raises OSError if it did not start."""
        ...

    def administrators(self) -> str:
        """Return the addresses of operators, for the setting admin_networks."""
        ...

    async def drop(self, grudges: Grudges) -> None:
        """Silently drop all data that a server receives from the servers named for it. Connections stay open."""
        ...

    async def dropped_count(self) -> int:
        """Return the number of packets or pieces that `drop` has dropped or held back so far."""
        ...

    async def heal(self) -> None:
        """Undo `drop`; does nothing if nothing is dropped."""
        ...
