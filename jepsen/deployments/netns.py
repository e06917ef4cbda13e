"""Processes on one machine with separate networks: a namespace for each, joined by a bridge, and cut off on demand.

A cut is silent: packets of the node disappear, without errors, and connections stay open, as with pulled cables and
broken switches. Needs root, `ip` (iproute2) and `nft` (nftables).

Names and addresses are the same in every run, so only one run at a time can use them; leftovers of an interrupted run
are removed by name.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import trio

from jepsen.deployments.leftovers import NAMESPACES
from jepsen.deployments.network import CLIENTS, NAME_SERVERS, RAFTMQ, Address, Grudges, Launch
from jepsen.deployments.packets import OUTSIDE_CARD, OUTSIDE_PORT, Shape
from mq.local_cluster.processes import ChildProcess

PREFIX = "rmqf"
BRIDGE = f"{PREFIX}-br"
NETWORK_CARDS = Path("/sys/class/net")
_CHECKOUT = Path(__file__).parent.parent.parent
NETWORK = "10.78.0"
OUTSIDE = f"{NETWORK}.254"
"""The address outside of all namespaces."""

TOOLS = {"ip": "iproute2", "nft": "nftables", "nsenter": "util-linux"}
"""Commands, and the Debian packages that have them."""

CLIENT_PORT, REPLICATION_PORT, NAMESRV_PORT = 10911, 10931, 9876

_CUT = f"""table inet {PREFIX} {{
  chain in {{ type filter hook input priority 0; iifname "eth0" counter drop; }}
  chain out {{ type filter hook output priority 0; oifname "eth0" counter drop; }}
}}
"""
HEAL = f"table inet {PREFIX} {{ }}\ndelete table inet {PREFIX}\n"
"""Creates the table first, so that deleting it always works."""


_LET_PASS = ("-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT")


class NetworksFailed(OSError):
    """The process that switches packets between the namespaces has ended."""


class NetworksInUse(OSError):
    """Another run has the namespaces."""


def unavailable() -> str | None:
    """Return the reason that namespaces are not available here, as text; None if they are."""
    tools_missing = [f"{tool} (apt install {package})" for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if tools_missing:
        return f"not installed: {', '.join(tools_missing)}"
    return None if os.geteuid() == 0 else "only root may make network namespaces"


def deaf_to(hosts: Iterable[str]) -> str:
    """Return nft rules that drop and count all packets that a node receives from some hosts."""
    return f"""table inet {PREFIX} {{
  chain in {{ type filter hook input priority 0; ip saddr {{ {", ".join(sorted(hosts))} }} counter drop; }}
}}
"""


def packets_counted(ruleset: bytes) -> int:
    """Return the sum of all counters in the output of `nft -j list table`."""

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

    return sum(counters(json.loads(ruleset)))


@dataclass(frozen=True, slots=True)
class Networks:
    """One namespace for each of ``count`` brokers n0, n1, ... and for each name server; made by `open_networks`."""

    count: int
    switch: trio.Process | None = None
    """The switch for all packets, if links can be slow or lossy; otherwise a kernel bridge."""

    # -- a network of a deployment -----------------------------------------------------------------------------------

    @property
    def backend(self) -> str:
        """The name of the back end on the command line."""
        return "netns"

    def clients_reach(self, name: str) -> Address:
        """Return the address of a server; no proxy is between it and clients."""
        return self.host(name), NAMESRV_PORT if name in NAME_SERVERS else CLIENT_PORT

    def listens(self, name: str) -> Address:
        """Return the address at which a server listens. Clients use the same one."""
        return self.clients_reach(name)

    def registers_at(self, node: str, name_server: str) -> Address:
        """Return the address of a name server, which is the same for every broker."""
        return self.clients_reach(name_server)

    def replicates(self, node: str) -> Address:
        """Return the address of a broker, with its port for replication."""
        return self.host(node), REPLICATION_PORT

    def peer(self, node: str, other: str) -> Address:
        """Return the address of the replication port of ``other``, which is the same for every broker."""
        return self.replicates(other)

    def administrators(self) -> str:
        """Return the address of this machine outside of all namespaces."""
        return OUTSIDE

    async def drop(self, grudges: Grudges) -> None:
        """Make each server drop the packets that arrive from the servers named for it in ``grudges``."""
        await self.heal_all()
        for node, others in grudges.items():
            hosts = [OUTSIDE if other == CLIENTS else self.host(other) for other in others]
            if hosts:
                await _run(*self.command(node), "nft", "-f", "-", stdin=deaf_to(hosts))

    async def dropped_count(self) -> int:
        """Return the number of packets dropped in all namespaces."""
        total = 0
        for name in _servers(self.count):
            process = await trio.run_process(
                [*self.command(name), "nft", "-j", "list", "ruleset"], capture_stdout=True, capture_stderr=True
            )
            total += packets_counted(process.stdout)
        return total

    def command(self, name: str) -> list[str]:
        """Return a command prefix that runs a command in the server's namespace, in the same process."""
        # Not `ip netns exec`: each would have its own mounts, and keep disks mounted that are unmounted here.
        return ["nsenter", f"--net=/run/netns/{namespace(name)}"]

    def program(self, name: str, launch: Launch) -> list[str]:
        """Return the command that runs this checkout's server in its namespace."""
        return [*self.command(name), *launch.prefix, *RAFTMQ]

    async def server_pid(self, name: str, process: ChildProcess) -> int:
        """Return the id of the started process: it is the server itself."""
        return process.pid

    async def heal(self) -> None:
        """Remove the packet filters of all namespaces."""
        await self.heal_all()

    async def shape(self, shapes: Mapping[tuple[str, str], Shape]) -> dict[str, int]:
        """Set the faults of the links in ``shapes`` (key: sender, receiver), and remove the faults of all other links.

        Both are servers or `CLIENTS`. Returns packet counts of the previous shapes (`packets.Link`). Needs the switch.
        """
        assert self.switch is not None, "links have no shape without the switch"
        assert self.switch.stdin is not None, "the switch is told by its input"
        orders = [(self._port(source), self._port(target), shape) for (source, target), shape in shapes.items()]
        await self.switch.stdin.send_all(msgspec.json.encode(orders) + b"\n")
        return msgspec.json.decode(await _line(self.switch), type=dict[str, int])

    # -- one node at a time ------------------------------------------------------------------------------------------

    def host(self, name: str) -> str:
        """Return the address of a server, which all servers and this machine can reach."""
        return _host(_servers(self.count).index(name))

    async def cut_off(self, node: str) -> None:
        """Drop every packet from and to the node."""
        await _run(*self.command(node), "nft", "-f", "-", stdin=_CUT)

    async def heal_all(self) -> None:
        """Undo the cuts of all servers."""
        for name in _servers(self.count):
            await _run(*self.command(name), "nft", "-f", "-", stdin=HEAL)

    def _port(self, name: str) -> int:
        return OUTSIDE_PORT if name == CLIENTS else _servers(self.count).index(name)


async def _line(process: trio.Process) -> bytes:
    """Read the next line of a process's output. Raises NetworksFailed if the output ends."""
    assert process.stdout is not None, "the switch answers by its output"
    line = b""
    while not line.endswith(b"\n"):
        piece = await process.stdout.receive_some()
        if not piece:
            raise NetworksFailed(f"the switch ended with exit code {await process.wait()}")
        line += piece
    return line


def _servers(count: int) -> list[str]:
    """The names of ``count`` brokers, and of the name servers."""
    return [*(f"n{number}" for number in range(count)), *NAME_SERVERS]


def _host(number: int) -> str:
    return f"{NETWORK}.{number + 1}"


def namespace(name: str) -> str:
    """Return the name of a server's namespace, which is also the name of its container."""
    return f"{PREFIX}-{name}"


async def _make_namespace(name: str) -> None:
    await _run("ip", "netns", "add", namespace(name))


@asynccontextmanager
async def open_networks(
    count: int,
    *,
    switched: bool = False,
    make: Callable[[str], Awaitable[None]] = _make_namespace,
    remove: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
) -> AsyncIterator[Networks]:
    """Make the namespaces and a network between them. The end of the block removes all of them.

    Args:
        switched: packets pass a switch of ours and not a bridge of the kernel, so that links can be of poor quality.
        make: makes the namespace of a server, by the server's name.
        remove: removes what ``make`` made, or an interrupted run, besides namespaces.

    Raises NetworksInUse, NetworksFailed, subprocess.CalledProcessError.
    """
    with lock("networks"):
        await remove()
        await _remove()
        try:
            for name in _servers(count):
                await make(name)
            if switched:
                async with _open_switch(count) as switch:
                    await _address(count, OUTSIDE_CARD)
                    yield Networks(count, switch)
            else:
                await _make_bridge(count)
                await _address(count, BRIDGE)
                yield Networks(count)
        finally:
            with trio.CancelScope(shield=True):  # a dozen short commands
                await remove()
                await _remove()


async def _make_bridge(count: int) -> None:
    await _run("ip", "link", "add", BRIDGE, "type", "bridge")
    if _is_filtered():
        await _run("iptables", "-I", "FORWARD", *_LET_PASS)
    for name in _servers(count):
        outer = f"{PREFIX}-v-{name}"
        await _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", namespace(name))
        await _run("ip", "link", "set", outer, "master", BRIDGE, "up")


@asynccontextmanager
async def _open_switch(count: int) -> AsyncIterator[trio.Process]:
    """Run the switch; it ends with its input, also if this process is killed, and its cards with it."""
    command = [sys.executable, "-m", "jepsen.deployments.switch", "switch", *map(namespace, _servers(count))]
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            partial(
                trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False, cwd=_CHECKOUT
            )
        )
        await _line(process)
        try:
            yield process
        finally:
            process.kill()


async def _address(count: int, outside: str) -> None:
    """Give all cards their addresses, and set them up."""
    await _run("ip", "addr", "add", f"{OUTSIDE}/24", "dev", outside)
    await _run("ip", "link", "set", outside, "up")
    for number, name in enumerate(_servers(count)):
        inside = ("ip", "-n", namespace(name))
        await _run(*inside, "addr", "add", f"{_host(number)}/24", "dev", "eth0")
        await _run(*inside, "link", "set", "eth0", "up")
        await _run(*inside, "link", "set", "lo", "up")


@contextmanager
def lock(what: str) -> Iterator[None]:
    """Keep other runs from using ``what`` until the block or this process ends. Raises NetworksInUse, OSError."""
    path = Path(tempfile.gettempdir()) / f"{PREFIX}-{what}.lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NetworksInUse(f"another run has the {what} {PREFIX}-* (lock: {path})") from None
        yield


async def _remove() -> None:
    """Remove leftovers of this run or an interrupted one, which may have had more brokers."""
    # A namespace and its links exist as long as a connection in it waits for the other side: for minutes.
    commands: list[Sequence[str]] = [("ip", "link", "del", name) for name in left_in(NETWORK_CARDS)]
    commands += [("ip", "netns", "del", name) for name in left_in(NAMESPACES)]
    for command in commands:
        await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)
    if _is_filtered():
        drop_rule = ["iptables", "-D", "FORWARD", *_LET_PASS]
        while not (await trio.run_process(drop_rule, check=False, capture_stderr=True)).returncode:
            pass  # each interrupted run left one


def left_in(directory: Path) -> list[str]:
    """Return the names of namespaces or network cards, listed in ``directory``, that a run has made."""
    return sorted(path.name for path in directory.glob(f"{PREFIX}-*"))


def _is_filtered() -> bool:
    """Whether bridged packets pass the firewall rules of this machine, which may drop them, as Docker's rules do."""
    setting = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    return setting.exists() and setting.read_text().strip() == "1" and shutil.which("iptables") is not None


async def _run(*command: str, stdin: str = "") -> None:
    await trio.run_process(command, stdin=stdin.encode(), capture_stdout=True, stderr=subprocess.STDOUT)
