"""Describes a system to compare: its setting, how to start it, and what its acknowledgement guarantees."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Target:
    """Running servers. ``address``: the leader's, to which messages go. ``pids``: of all servers. ``namesrv``: the name
    server, for our client library.

    ``check`` raises ServersFailed if one of them has ended.
    """

    address: tuple[str, int]
    pids: Sequence[int]
    check: Callable[[], None]
    namesrv: str = ""


@dataclass(frozen=True, slots=True)
class Peer:
    """A system with one configuration.

    Attributes:
        name: for ``--peer``.
        system: its name, without its version.
        replicas: the number of servers that keep each message.
        durability: where a message is when it is acknowledged.
        settings: the differences from its defaults, and the reasons; for the page.
        wire: its protocol, a name of `benchmarks.load.closed_loop.WIRES`.
        has_batches: whether one request may carry many messages.
        missing_programs: the programs that this machine lacks to run it, with the command to get them, or None.
        prepare: download its files, once. Raises BuildFailed.
        version: of the servers, once they are available.
        open: start the servers in an empty directory, create the topics or queues, and kill them at the end.
        is_jvm: whether a compiler makes its servers faster in their first minute, so that they get a longer warm-up.
    """

    name: str
    system: str
    replicas: int
    durability: str
    settings: str
    wire: str
    has_batches: bool
    missing_programs: Callable[[], str | None]
    prepare: Callable[[], None]
    version: Callable[[], str]
    open: Callable[[Path], AbstractAsyncContextManager[Target]]
    is_jvm: bool = False


def package_missing(program: str, package: str) -> str | None:
    """Return the message that a program is not on PATH, and how to install it; None if it is there."""
    return None if shutil.which(program) else f"{program} is not installed: apt-get install {package}"


def words_of(command: Sequence[str]) -> str:
    """Run a program, and return its output. Raises OSError, subprocess.CalledProcessError."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def nothing_to_prepare() -> None:
    """Do nothing: the peer is installed separately."""
