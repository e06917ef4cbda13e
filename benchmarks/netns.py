"""Processes that share a machine and not a network: a namespace for each, joined by a bridge, and cut off at will.

A cut is silent: packets of the node disappear, nobody gets an error, connections stay open. That is what pulled cables
and broken switches look like, and what a signal cannot do. Needs root, `ip` (iproute2) and `nft` (nftables).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

PREFIX = "rmqf"
NETWORK = "10.78.0"
OUTSIDE = f"{NETWORK}.254"
"""The address of whoever is in no namespace."""

_CUT = f"""table inet {PREFIX} {{
  chain in {{ type filter hook input priority 0; iifname "eth0" drop; }}
  chain out {{ type filter hook output priority 0; oifname "eth0" drop; }}
}}
"""


def unavailable() -> str | None:
    """Why namespaces cannot be used here, in words; None when they can."""
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return None if os.geteuid() == 0 else "only root may make network namespaces"


@dataclass(frozen=True, slots=True)
class Networks:
    """One namespace for each of ``count`` nodes; made by `open_networks`."""

    count: int

    def host(self, number: int) -> str:
        """The address of a node, reachable from all the others and from outside."""
        return f"{NETWORK}.{number + 1}"

    def command(self, number: int) -> list[str]:
        """What goes before a command so that it runs in the node's namespace, under its own process id."""
        return ["ip", "netns", "exec", _name(number)]

    async def cut(self, number: int) -> None:
        """No packet leaves or reaches the node any more."""
        await _run(*self.command(number), "nft", "-f", "-", stdin=_CUT)

    async def heal(self, number: int) -> None:
        """Undo `cut`."""
        await _run(*self.command(number), "nft", "delete", "table", "inet", PREFIX)


def _name(number: int) -> str:
    return f"{PREFIX}-n{number}"


@asynccontextmanager
async def open_networks(count: int) -> AsyncIterator[Networks]:
    """Make bridge and namespaces, and remove them at the end. Raises subprocess.CalledProcessError."""
    bridge = f"{PREFIX}-br"
    await _remove(count)
    try:
        await _run("ip", "link", "add", bridge, "type", "bridge")
        await _run("ip", "addr", "add", f"{OUTSIDE}/24", "dev", bridge)
        await _run("ip", "link", "set", bridge, "up")
        for number in range(count):
            name, outer = _name(number), f"{PREFIX}-v{number}"
            inside = ("ip", "-n", name)
            await _run("ip", "netns", "add", name)
            await _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
            await _run("ip", "link", "set", outer, "master", bridge, "up")
            await _run(*inside, "addr", "add", f"{NETWORK}.{number + 1}/24", "dev", "eth0")
            await _run(*inside, "link", "set", "eth0", "up")
            await _run(*inside, "link", "set", "lo", "up")
        yield Networks(count)
    finally:
        with trio.CancelScope(shield=True):  # a dozen short commands
            await _remove(count)


async def _remove(count: int) -> None:
    """Remove what this run or an interrupted one made."""
    commands: list[Sequence[str]] = [("ip", "netns", "del", _name(number)) for number in range(count)]
    for command in [*commands, ("ip", "link", "del", f"{PREFIX}-br")]:
        await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)


async def _run(*command: str, stdin: str = "") -> None:
    await trio.run_process(command, stdin=stdin.encode(), capture_stdout=True, stderr=subprocess.STDOUT)
