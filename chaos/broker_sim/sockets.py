"""Simulated sockets: what a broker's connections and its reactor need of the real ones.

A *line* joins two ends and carries bytes in order. Between two machines it stalls while their link is cut, and breaks
if that lasts; between a client and a machine it works until one of them closes it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from chaos.log_sim.node import Node, Process
from chaos.network import Network
from raftlog.net.reactor import EPOLLIN, EPOLLOUT, RECEIVE_BYTES, Unsent
from raftlog.net.stream import StreamSocket

_SILENCE_SECONDS_MAX = 3.0
"""A connection breaks after so long across a cut link."""
_CUT_POLL_SECONDS = 0.05

Address = tuple[str, int]

_received = memoryview(bytearray(2 * RECEIVE_BYTES))


class End(Protocol):
    """One end of a line."""

    def arrived(self, data: bytes) -> None:
        """Bytes came."""

    def hung_up(self) -> None:
        """The other end is closed; nothing arrives any more."""


class Surroundings(Protocol):
    """What lines and their users need of the simulation; see `BrokerCluster`."""

    now: float
    rng: random.Random
    network: Network

    def at(self, time: float, event: Callable[..., object], *arguments: object) -> None:
        """Run ``event`` at that time."""

    def later(self, node: Node, seconds: float, step: Callable[[], object]) -> None:
        """Run ``step`` in the node's process, unless it has ended by then."""

    def in_process(self, process: Process, what: str, step: Callable[[], object]) -> None:
        """Run a step in a turn of a process, unless it has ended."""

    def client_latency(self) -> float:
        """Seconds until the next bytes from or to a client arrive."""

    def address_of(self, node: Node) -> Address:
        """Where a broker serves clients."""

    def node_at(self, address: Address) -> Node:
        """The machine with an address."""

    def accept(self, node: Node, line: Line, side: int, peer: Address) -> None:
        """A connection to a running broker is opened."""


class Line:
    """A connection; ``ends`` are its two sides, ``nodes`` their machines, None for a client's."""

    def __init__(self, cluster: Surroundings, nodes: tuple[Node | None, Node | None]) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self.ends: list[End | None] = [None, None]
        self._under_way: tuple[deque[tuple[float, bytes | None]], ...] = (deque(), deque())
        self._last_at = [0.0, 0.0]
        self._stuck_since: list[float | None] = [None, None]

    def carry(self, side: int, data: bytes | None) -> None:
        """Carry bytes from the end ``side`` to the other one; None hangs up after all earlier bytes."""
        at = max(self._last_at[side], self._cluster.now + self._cluster.client_latency())
        self._last_at[side] = at
        self._under_way[side].append((at, data))
        self._cluster.at(at, self._deliver, side)

    def cut(self, side: int) -> None:
        """The end ``side`` vanishes without closing; what it sent still arrives."""
        self.ends[side] = None

    def _deliver(self, side: int) -> None:
        under_way, cluster = self._under_way[side], self._cluster
        if not under_way or under_way[0][0] > cluster.now:
            return
        if self._is_cut(side):
            since = self._stuck_since[side]
            if since is None:
                since = self._stuck_since[side] = cluster.now
            if cluster.now < since + _SILENCE_SECONDS_MAX:
                cluster.at(cluster.now + _CUT_POLL_SECONDS, self._deliver, side)
                return
            self._break()
            return
        self._stuck_since[side] = None
        while under_way and under_way[0][0] <= cluster.now:
            _, data = under_way.popleft()
            end = self.ends[1 - side]
            if end is None:
                sender, self.ends[side] = self.ends[side], None
                if sender is not None:
                    sender.hung_up()  # the receiver is gone
            elif data is None:
                self.ends[1 - side] = None
                end.hung_up()
            else:
                end.arrived(data)

    def _break(self) -> None:
        for side in (0, 1):
            self._under_way[side].clear()
            end, self.ends[side] = self.ends[side], None
            if end is not None:
                end.hung_up()

    def _is_cut(self, side: int) -> bool:
        src, dst = self._nodes[side], self._nodes[1 - side]
        return src is not None and dst is not None and not self._cluster.network.connected(src.node_id, dst.node_id)


class SimSocket:
    """The end of a line in a process: stands for a connected socket that never blocks, without TLS."""

    shown_certificate: bytes | None = None
    """See `raftlog.net.tls.TlsSocket`."""

    def __init__(self, reactor: SimReactor, line: Line, side: int, peer: Address) -> None:
        self._reactor = reactor
        self._line = line
        self._side = side
        self._peer = peer
        self._inbox = bytearray()
        self._ended = False
        self._fd = reactor.next_fd()
        line.ends[side] = self

    # -- End -----------------------------------------------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        """See `End`."""
        self._reactor.hears(self, data)

    def hung_up(self) -> None:
        """In a turn of the process: bytes arrived, or for none the end of the stream."""
        self._reactor.hears(self, b"")

    def take(self, data: bytes) -> None:
        """In a turn of the process: bytes are there, or for none the end of all bytes."""
        if data:
            self._inbox += data
        else:
            self._ended = True

    @property
    def has_more(self) -> bool:
        """Whether there is something to receive."""
        return bool(self._inbox) or self._ended

    # -- what a stream needs of a socket -------------------------------------------------------------------------------

    def fileno(self) -> int:
        """See `socket.socket.fileno`."""
        return self._fd

    def setblocking(self, flag: bool) -> None:
        """It never blocks anyway."""

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """It has no options."""

    def getpeername(self) -> Address:
        """See `socket.socket.getpeername`."""
        return self._peer

    def recv_into(self, buffer: memoryview, nbytes: int) -> int:
        """See `socket.socket.recv_into`."""
        if not self._inbox:
            if self._ended:
                return 0
            raise BlockingIOError
        count = min(nbytes, len(self._inbox))
        buffer[:count] = self._inbox[:count]
        del self._inbox[:count]
        return count

    def send(self, data: bytes | memoryview) -> int:
        """See `socket.socket.send`."""
        self._line.carry(self._side, bytes(data))
        return len(data)

    def sendmsg(self, buffers: Sequence[bytes | memoryview]) -> int:
        """See `socket.socket.sendmsg`."""
        return self.send(b"".join(buffers))

    def close(self) -> None:
        """Hang up."""
        self._line.cut(self._side)
        self._line.carry(self._side, None)

    def vanish(self) -> None:
        """The process has ended."""
        self._line.cut(self._side)


class SimReactor:
    """The reactor of one process: gives it turns when bytes come in, and flushes its streams at their ends."""

    receive_buffer = _received

    def __init__(self, cluster: Surroundings, process: Process) -> None:
        self._cluster = cluster
        self._process = process
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._sockets: dict[int, SimSocket] = {}
        self._dirty: list[StreamSocket] = []
        self.unsent = Unsent()
        self._fds = 2

    def next_fd(self) -> int:
        """A new descriptor."""
        self._fds += 1
        return self._fds

    def socket(self, line: Line, side: int, peer: Address) -> SimSocket:
        """A new socket of this process."""
        made = SimSocket(self, line, side, peer)
        self._sockets[made.fileno()] = made
        return made

    def vanish(self) -> None:
        """The process has ended, and its sockets with it. Peers learn it soon, or find out by themselves."""
        for sock in self._sockets.values():
            sock.vanish()
            if self._cluster.rng.random() < 0.7:
                sock.close()
        self._sockets.clear()
        self._handlers.clear()

    def hears(self, sock: SimSocket, data: bytes) -> None:
        """Something arrived for a socket; it is read in its own turn."""

        def step() -> None:
            sock.take(data)
            handler = self._handlers.get(sock.fileno())
            while handler is not None and sock.has_more:
                handler(EPOLLIN)
                handler = self._handlers.get(sock.fileno())

        self._cluster.in_process(self._process, "hears a client", step)

    # -- what streams need of a reactor --------------------------------------------------------------------------------

    def add(self, fd: int, handler: Callable[[int], None], events: int = EPOLLIN, *, patient: bool = False) -> None:
        """See `raftlog.net.reactor.Reactor.add`."""
        assert fd not in self._handlers, f"descriptor {fd} is registered already"
        self._handlers[fd] = handler

    def modify(self, fd: int, events: int) -> None:
        """Sends never block here, so writability is not needed."""
        assert not events & EPOLLOUT, f"descriptor {fd} waits to be writable"

    def remove(self, fd: int) -> None:
        """See `raftlog.net.reactor.Reactor.remove`."""
        del self._handlers[fd]
        self._sockets.pop(fd, None)

    def wake(self) -> None:
        """See `raftlog.net.reactor.Reactor.wake`."""
        self._cluster.later(self._process.node, 0.0, lambda: None)

    def turn_within(self, seconds: float) -> None:
        """See `raftlog.net.reactor.Reactor.turn_within`."""
        self._cluster.later(self._process.node, seconds, lambda: None)

    def share_used(self) -> bool:
        """See `raftlog.net.reactor.Reactor.share_used`: time does not advance in a turn."""
        return False

    def go_on_later(self, step: Callable[[], None]) -> None:
        """See `raftlog.net.reactor.Reactor.go_on_later`."""
        self._cluster.later(self._process.node, 0.0, step)

    def mark_dirty(self, stream: StreamSocket) -> None:
        """See `raftlog.net.reactor.Reactor.mark_dirty`."""
        self._dirty.append(stream)

    def flush(self) -> None:
        """Send what streams have buffered; the end of a turn."""
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for stream in dirty:
                stream.flush()

    def dial(
        self, address: Address, on_connected: Callable[[SimSocket], None], on_failed: Callable[[str], None]
    ) -> None:
        """Connect to the broker at an address; an unreachable one never answers."""
        cluster, process = self._cluster, self._process
        target = cluster.node_at(address)
        if not cluster.network.connected(process.node_id, target.node_id):
            return

        def knock() -> None:
            if target.process is None:
                cluster.in_process(process, "is refused", lambda: on_failed("connection refused"))
                return
            line = Line(cluster, (process.node, target))
            here = self.socket(line, 0, address)
            cluster.accept(target, line, 1, cluster.address_of(process.node))
            cluster.in_process(process, "is connected", lambda: on_connected(here))

        cluster.at(cluster.now + cluster.client_latency(), knock)


class SimDialing:
    """Stand-in for `raftlog.Dialing` in a simulated process."""

    def __init__(
        self,
        reactor: SimReactor,
        address: Address,
        on_connected: Callable[[SimSocket], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._open = True
        self._on_connected = on_connected
        self._on_failed = on_failed
        reactor.dial(address, self._connected, self._failed)

    def close(self) -> None:
        """Abort; no callback is called any more."""
        self._open = False

    def _connected(self, sock: SimSocket) -> None:
        if self._open:
            self._open = False
            self._on_connected(sock)
        else:
            sock.close()

    def _failed(self, reason: str) -> None:
        if self._open:
            self._open = False
            self._on_failed(reason)


def latency(rng: random.Random) -> float:
    """Seconds that a client's bytes travel."""
    return rng.uniform(0.0002, 0.004)
