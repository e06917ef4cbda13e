"""Brokers on the loopback address, without root: partitions by proxies between them.

Each broker reaches each other one, and each name server, through a separate proxy, so that any link can be blocked, in
either direction. So do clients. Blocked data waits and continues when the link is healed, as with TCP on a lossy
network. Two differences from a network: a proxy accepts new connections during a partition and lets them wait; and
traffic from a broker to another one's client port (forwarded requests) passes the proxy of clients, so only blocking
clients blocks it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from jepsen.deployments.network import CLIENTS, NAME_SERVERS, RAFTMQ, Address, Grudges, Launch
from jepsen.deployments.proxy import LoopbackProxy, serve
from mq.local_cluster import HOST, Ports
from mq.local_cluster.processes import ChildProcess


@dataclass(frozen=True, slots=True)
class Loopback:
    """Ports and proxies of brokers n0, n1, ... and name servers; made by `open_loopback`."""

    listen_ports: dict[str, int]
    replication_ports: dict[str, int]
    links: dict[tuple[str, str], LoopbackProxy]
    """The proxies by connecting side and target."""

    @property
    def backend(self) -> str:
        """The name of the back end on the command line."""
        return "local"

    def clients_reach(self, name: str) -> Address:
        """Return the address of the proxy through which clients reach a server."""
        return HOST, self.links[CLIENTS, name].port

    def listens(self, name: str) -> Address:
        """Return the address behind the proxies at which a server listens."""
        return HOST, self.listen_ports[name]

    def registers_at(self, node: str, name_server: str) -> Address:
        """Return the address of the proxy through which a broker reaches a name server."""
        return HOST, self.links[node, name_server].port

    def replicates(self, node: str) -> Address:
        """Return the address at which a broker listens for other brokers, behind their proxies."""
        return HOST, self.replication_ports[node]

    def peer(self, node: str, other: str) -> Address:
        """Return the address of the proxy from one broker to another; a broker reaches itself without a proxy."""
        return self.replicates(node) if node == other else (HOST, self.links[node, other].port)

    def program(self, name: str, launch: Launch) -> list[str]:
        """Return the command of a server, which runs beside the others, without a namespace."""
        return [*launch.prefix, *RAFTMQ]

    async def server_pid(self, name: str, process: ChildProcess) -> int:
        """Return the id of the started process: it is the server itself."""
        return process.pid

    def administrators(self) -> str:
        """Return the address for the setting admin_networks: this machine."""
        return HOST

    async def drop(self, grudges: Grudges) -> None:
        """Block traffic to servers as given by `grudges`."""
        await self.heal()
        for (source, target), link in self.links.items():
            link.hold(
                forth=source in grudges.get(target, ()),
                back=target in grudges.get(source, ()),
            )
        await trio.lowlevel.checkpoint()

    async def dropped_count(self) -> int:
        """Return the number of pieces of data that wait, or have waited since `drop`."""
        await trio.lowlevel.checkpoint()
        return sum(link.wait_count for link in self.links.values())

    async def heal(self) -> None:
        """Let all bytes pass again."""
        for link in self.links.values():
            link.hold(forth=False, back=False)
            link.wait_count = 0
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_loopback(count: int) -> AsyncIterator[Loopback]:
    """Choose ports, and run proxies until the block ends. Raises OSError; ServersFailed without free ports."""
    nodes = [f"n{number}" for number in range(count)]
    pairs = [(one, other) for one in [*nodes, CLIENTS] for other in [*nodes, *NAME_SERVERS] if one != other]
    ports = iter(Ports.free((2 * count + len(NAME_SERVERS) + len(pairs) + 1) // 2).all)
    listens = {name: next(ports) for name in [*nodes, *NAME_SERVERS]}
    replicates = {node: next(ports) for node in nodes}
    links = {
        (source, target): LoopbackProxy(next(ports), (listens if source == CLIENTS else listens | replicates)[target])
        for source, target in pairs
    }
    async with trio.open_nursery() as nursery:
        for link in links.values():
            await nursery.start(serve, link)
        yield Loopback(listens, replicates, links)
        nursery.cancel_scope.cancel()
