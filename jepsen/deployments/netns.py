"""Processes that share a machine and not a network: a namespace for each, joined by a bridge, and cut off at will.

A cut is silent: packets of the node disappear, nobody gets an error, connections stay open. That is what pulled cables
and broken switches look like, and what a signal cannot do. Needs root, `ip` (iproute2) and `nft` (nftables).

Names and addresses are the same in every run, so only one run at a time has them; whatever an interrupted one left is
removed by the next, by name.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from jepsen.deployments.network import CLIENTS, Address, Grudges

PREFIX = "rmqf"
BRIDGE = f"{PREFIX}-br"
NETWORK = "10.78.0"
OUTSIDE = f"{NETWORK}.254"
"""The address of whoever is in no namespace."""

CLIENT_PORT, REPLICATION_PORT, NAMESRV_PORT = 10911, 10931, 9876

_CUT = f"""table inet {PREFIX} {{
  chain in {{ type filter hook input priority 0; iifname "eth0" counter drop; }}
  chain out {{ type filter hook output priority 0; oifname "eth0" counter drop; }}
}}
"""
_HEAL = f"table inet {PREFIX} {{ }}\ndelete table inet {PREFIX}\n"
"""Made first, so that there is something to delete in any case."""


_LET_PASS = ("-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT")


class NetworksInUse(OSError):
    """Another run has the namespaces."""


def unavailable() -> str | None:
    """Why namespaces cannot be used here, in words; None when they can."""
    missing = [tool for tool in ("ip", "nft", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return None if os.geteuid() == 0 else "only root may make network namespaces"


def deaf_to(hosts: Iterable[str]) -> str:
    """Rules under which a node hears nothing of some hosts, and counts what it would have heard."""
    return f"""table inet {PREFIX} {{
  chain in {{ type filter hook input priority 0; ip saddr {{ {", ".join(sorted(hosts))} }} counter drop; }}
}}
"""


def packets_counted(listing: bytes) -> int:
    """The sum of all counters in what `nft -j list table` says."""

    def counters(value: object) -> Iterator[int]:
        if isinstance(value, dict):
            counter = value.get("counter")
            if isinstance(counter, dict):
                yield int(counter["packets"])
            for each in value.values():
                yield from counters(each)
        elif isinstance(value, list):
            for each in value:
                yield from counters(each)

    return sum(counters(json.loads(listing)))


@dataclass(frozen=True, slots=True)
class Networks:
    """One namespace for each of ``count`` nodes n0, n1, ...; made by `open_networks`."""

    count: int

    # -- a network of a deployment -----------------------------------------------------------------------------------

    @property
    def backend(self) -> str:
        """How it is called on the command line."""
        return "netns"

    @property
    def namesrv(self) -> Address:
        """The name server is in no namespace."""
        return OUTSIDE, NAMESRV_PORT

    def clients_reach(self, node: str) -> Address:
        """The node's address; nothing is in between."""
        return self.host(_number(node)), CLIENT_PORT

    def listens(self, node: str) -> Address:
        """As above."""
        return self.clients_reach(node)

    def replicates(self, node: str) -> Address:
        """The same address with another port."""
        return self.host(_number(node)), REPLICATION_PORT

    def peer(self, node: str, other: str) -> Address:
        """The same for everybody."""
        return self.replicates(other)

    def administrators(self) -> str:
        """Whoever is in no namespace."""
        return OUTSIDE

    async def drop(self, grudges: Grudges) -> None:
        """Drop what comes in from others, in the namespace of each node with a grudge."""
        await self.heal_all()
        for node, others in grudges.items():
            hosts = [OUTSIDE if other == CLIENTS else self.host(_number(other)) for other in others]
            if hosts:
                await _run(*self.command(node), "nft", "-f", "-", stdin=deaf_to(hosts))

    async def dropped(self) -> int:
        """Packets dropped in all namespaces."""
        total = 0
        for number in range(self.count):
            done = await trio.run_process(
                [*self._inside(number), "nft", "-j", "list", "ruleset"], capture_stdout=True, capture_stderr=True
            )
            total += packets_counted(done.stdout)
        return total

    def command(self, node: str) -> list[str]:
        """What goes before a command so that it runs in the node's namespace, under its own process id."""
        return self._inside(_number(node))

    async def heal(self) -> None:
        """Remove all rules in all namespaces."""
        await self.heal_all()

    # -- one node at a time ------------------------------------------------------------------------------------------

    def host(self, number: int) -> str:
        """The address of a node, reachable from all the others and from outside."""
        return f"{NETWORK}.{number + 1}"

    async def cut_off(self, node: str) -> None:
        """No packet leaves or reaches the node any more."""
        await _run(*self.command(node), "nft", "-f", "-", stdin=_CUT)

    async def heal_all(self) -> None:
        """Undo everything that was cut."""
        for number in range(self.count):
            await _run(*self._inside(number), "nft", "-f", "-", stdin=_HEAL)

    def _inside(self, number: int) -> list[str]:
        # Not `ip netns exec`: each would have mounts of its own, and keep disks mounted that are detached here.
        return ["nsenter", f"--net=/run/netns/{_name(number)}"]


def _number(node: str) -> int:
    return int(node[1:])


def _name(number: int) -> str:
    return f"{PREFIX}-n{number}"


@asynccontextmanager
async def open_networks(count: int) -> AsyncIterator[Networks]:
    """Make bridge and namespaces, and remove them at the end. Raises NetworksInUse, subprocess.CalledProcessError."""
    bridge = BRIDGE
    with _held():
        await _remove(count)
        try:
            await _run("ip", "link", "add", bridge, "type", "bridge")
            await _run("ip", "addr", "add", f"{OUTSIDE}/24", "dev", bridge)
            await _run("ip", "link", "set", bridge, "up")
            if _is_filtered():
                await _run("iptables", "-I", "FORWARD", *_LET_PASS)
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


@contextmanager
def _held() -> Iterator[None]:
    """Keep other runs out, until the block ends or this process does. Raises NetworksInUse, OSError."""
    path = Path(tempfile.gettempdir()) / f"{PREFIX}-networks.lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NetworksInUse(f"another run has the network namespaces {PREFIX}-* (lock: {path})") from None
        yield


async def _remove(count: int) -> None:
    """Remove what this run or an interrupted one made."""
    commands: list[Sequence[str]] = [("ip", "netns", "del", _name(number)) for number in range(count)]
    for command in [*commands, ("ip", "link", "del", BRIDGE)]:
        await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)
    if _is_filtered():
        drop_rule = ["iptables", "-D", "FORWARD", *_LET_PASS]
        while not (await trio.run_process(drop_rule, check=False, capture_stderr=True)).returncode:
            pass  # each interrupted run left one


def _is_filtered() -> bool:
    """Whether packets of bridges go through the rules of this machine, which may drop them, as those of Docker do."""
    called = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    return called.exists() and called.read_text().strip() == "1" and shutil.which("iptables") is not None


async def _run(*command: str, stdin: str = "") -> None:
    await trio.run_process(command, stdin=stdin.encode(), capture_stdout=True, stderr=subprocess.STDOUT)
