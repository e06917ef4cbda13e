"""Where servers of a run reach each other, and what can be done to the links between them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import trio

CLIENTS = "clients"
"""In a grudge: everybody who is no server."""

NAME_SERVERS = ("ns0", "ns1")
"""Each knows all brokers; brokers and clients know both."""

Grudges = Mapping[str, frozenset[str]]
"""By server: from whom it hears nothing, servers or `CLIENTS`."""

Address = tuple[str, int]

RAFTMQ = (sys.executable, "-m", "mq.cli")
"""The command `raftmq` of the checkout in which it is run."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a server finds where it starts, besides its arguments."""

    data_dir: Path
    """Exists."""
    files: Sequence[Path] = ()
    """Others that it reads."""
    environment: Mapping[str, str] = field(default_factory=dict)
    source: Path | None = None
    """The checkout that it is run from; None: that of the deployment."""
    descriptors_max: int | None = None
    """How many files it may have open; None: as many as others."""

    @property
    def prefix(self) -> list[str]:
        """A command that starts the command behind it so, on this machine."""
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
        """How it is called on the command line."""
        ...

    def clients_reach(self, name: str) -> Address:
        """Where clients reach a server."""
        ...

    def listens(self, name: str) -> Address:
        """Where a server listens for clients; differs from the above if there is a proxy in between."""
        ...

    def registers_at(self, node: str, name_server: str) -> Address:
        """Where a broker reaches a name server."""
        ...

    def replicates(self, node: str) -> Address:
        """Where a broker listens for other brokers."""
        ...

    def peer(self, node: str, other: str) -> Address:
        """Where ``node`` reaches the replication port of ``other``."""
        ...

    def program(self, name: str, launch: Launch) -> list[str]:
        """The command `raftmq` where the server runs; its arguments come behind."""
        ...

    async def server_pid(self, name: str, process: trio.Process) -> int:
        """The process id of the server that the command ``process`` runs. Raises OSError if it did not start."""
        ...

    def administrators(self) -> str:
        """From where operators may change brokers, as their setting admin_from."""
        ...

    async def drop(self, grudges: Grudges) -> None:
        """Servers hear nothing of whom they have a grudge against. Nobody gets an error; connections stay open."""
        ...

    async def dropped(self) -> int:
        """How much was lost or held back since `drop`, in packets or pieces: more than 0 once it takes effect."""
        ...

    async def heal(self) -> None:
        """Undo `drop`. Does nothing if there was none."""
        ...
