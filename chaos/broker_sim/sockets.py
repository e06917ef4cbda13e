"""Simulated sockets, with the interface that a broker's connections and its reactor use.

A *line* joins two ends and carries bytes in order. Between two machines it stalls while their link is cut, and breaks
if that lasts; between a client and a machine it works until one of them closes it.

The reactor serves clients together and flushes streams with the code of production, compiled or not; only the system
calls for receiving and sending end here. Bytes that a turn sends leave at its end, in the order of descriptors: the two
forms send in different orders, and the events must be the same.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from chaos.broker_sim.socket_faults import SocketFaults
from chaos.log_sim.node import Node, Process
from chaos.network import Network
from raftlog.compiled.loaded import IS_COMPILED
from raftlog.net.flush import Flushable, flush_streams
from raftlog.net.reactor import EPOLLIN, EPOLLOUT, RECEIVE_BYTES, Begun, Ready, Unsent

_SILENCE_SECONDS_MAX = 3.0
"""The seconds after which a connection across a cut link breaks."""
_CUT_POLL_SECONDS = 0.05
_GATHER_SHARE = 0.3
"""The share of turns that are late, so that they find several sockets ready."""
_GATHER_SECONDS_MAX = 0.003
_STOP_CHANCE = 0.001

Address = tuple[str, int]

_receive_buffer = memoryview(bytearray(2 * RECEIVE_BYTES))


class End(Protocol):
    """One end of a line."""

    def on_data(self, data: bytes) -> None:
        """Handle received bytes."""

    def on_hangup(self) -> None:
        """Handle the end of the stream: the other end is closed, and nothing arrives after that."""


class SocketWorld(Protocol):
    """The parts of the simulation that lines and their users need; see `BrokerCluster`."""

    now: float
    rng: random.Random
    network: Network
    is_healed: bool
    socket_counts: Counter[str]
    """The number of times that each fault of sockets happened."""
    client_faults: random.Random
    """Draws which clients stop in the middle of a request."""

    def at(self, time: float, event: Callable[..., object], *arguments: object) -> None:
        """Run ``event`` at ``time``, in simulated seconds."""

    def later(self, node: Node, seconds: float, step: Callable[[], object]) -> None:
        """Run ``step`` in the node's process, unless it has ended by then."""

    def in_process(self, process: Process, what: str, step: Callable[[], object]) -> None:
        """Run ``step`` in a turn of ``process``, unless the process has ended."""

    def client_latency(self) -> float:
        """Choose at random how many seconds bytes travel between a client and a broker."""

    def address_of(self, node: Node) -> Address:
        """Return the address at which a broker serves clients."""

    def node_at(self, address: Address) -> Node:
        """Return the node with the host of ``address``."""

    def accept(self, node: Node, line: SimConnection, side: int, peer: Address) -> None:
        """Open a connection to a running broker."""


class SimConnection:
    """A connection; ``ends`` are its two sides, ``nodes`` their machines, None for a client's."""

    def __init__(self, cluster: SocketWorld, nodes: tuple[Node | None, Node | None]) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self.ends: list[End | None] = [None, None]
        self._under_way: tuple[deque[tuple[float, bytes | None]], ...] = (deque(), deque())
        self._last_at = [0.0, 0.0]
        self._stuck_since: list[float | None] = [None, None]

    def carry(self, side: int, data: bytes | None) -> None:
        """Carry bytes from the end ``side`` to the other end. None closes the line after all earlier bytes."""
        at = max(self._last_at[side], self._cluster.now + self._cluster.client_latency())
        self._last_at[side] = at
        self._under_way[side].append((at, data))
        self._cluster.at(at, self._deliver, side)

    def cut(self, side: int) -> None:
        """Remove the end ``side`` without closing the line. Bytes that it sent still arrive."""
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
                    sender.on_hangup()  # the receiver is gone
            elif data is None:
                self.ends[1 - side] = None
                end.on_hangup()
            else:
                end.on_data(data)

    def _break(self) -> None:
        for side in (0, 1):
            self._under_way[side].clear()
            end, self.ends[side] = self.ends[side], None
            if end is not None:
                end.on_hangup()

    def _is_cut(self, side: int) -> bool:
        src, dst = self._nodes[side], self._nodes[1 - side]
        return src is not None and dst is not None and not self._cluster.network.connected(src.node_id, dst.node_id)


class SimSocket:
    """An end of a line in a process, in place of a connected socket that never blocks and has no TLS."""

    shown_certificate: bytes | None = None
    """None: the line has no TLS, see `raftlog.net.tls_socket.TlsSocket`."""

    def __init__(
        self, reactor: SimReactor, line: SimConnection, side: int, peer: Address, faults: SocketFaults
    ) -> None:
        self._reactor = reactor
        self._faults = faults
        self._sends: list[bytes] = []
        self._is_closed = False
        self._line = line
        self._side = side
        self._peer = peer
        self._inbox = bytearray()
        self._ended = False
        self._fd = reactor.next_fd()
        line.ends[side] = self

    # -- End -----------------------------------------------------------------------------------------------------------

    def on_data(self, data: bytes) -> None:
        self._reactor.deliver(self, data)

    def on_hangup(self) -> None:
        """Deliver the end of the stream in a turn of the process."""
        self._reactor.deliver(self, b"")

    def deliver(self, data: bytes) -> None:
        """Make bytes available to receive. Empty bytes mean the end of the stream."""
        if data:
            self._inbox += data
        else:
            self._ended = True

    @property
    def has_more(self) -> bool:
        """Whether there is something to receive."""
        return bool(self._inbox) or self._ended

    def full_seconds(self) -> float:
        """Choose at random how many seconds pass until the peer receives something and there is space to send."""
        return self._faults.full_seconds()

    def on_writable(self) -> None:
        """Record that the peer has received something, so that there is space to send again."""
        self._faults.on_writable()

    def end_turn(self) -> None:
        """Send the bytes of this turn, and hang up if the socket was closed."""
        sends, self._sends = self._sends, []
        if sends:
            self._line.carry(self._side, b"".join(sends))
        if self._is_closed:
            self._line.carry(self._side, None)

    # -- what a stream needs of a socket -------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._fd

    def setblocking(self, flag: bool) -> None:
        """Do nothing: a simulated socket never blocks."""

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Do nothing: a simulated socket has no options."""

    def getpeername(self) -> Address:
        return self._peer

    def recv_into(self, buffer: memoryview, nbytes: int) -> int:
        if not self._inbox:
            if self._ended:
                return 0
            raise BlockingIOError
        count = self._faults.receive_count(min(nbytes, len(self._inbox)), calm=self._reactor.calm)
        buffer[:count] = self._inbox[:count]
        del self._inbox[:count]
        return count

    def send(self, data: bytes | memoryview) -> int:
        count = self._faults.send_count(len(data), calm=self._reactor.calm) if data else 0
        self._sends.append(bytes(data[:count]))
        self._reactor.add_to_turn(self)
        return count

    def sendmsg(self, buffers: Sequence[bytes | memoryview]) -> int:
        return self.send(b"".join(buffers))

    def close(self) -> None:
        """Close the socket at the end of the turn."""
        self._line.cut(self._side)
        self._is_closed = True
        self._reactor.add_to_turn(self)

    def vanish(self, *, hangs_up: bool) -> None:
        """End the socket with its process. Bytes that were sent in this turn are lost."""
        self._line.cut(self._side)
        if hangs_up:
            self._line.carry(self._side, None)


class SimReactor:
    """The reactor of one process. It runs a turn when bytes arrive, and flushes streams at the end of the turn."""

    receive_buffer = _receive_buffer

    def __init__(self, cluster: SocketWorld, process: Process) -> None:
        self._cluster = cluster
        self._process = process
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._events: dict[int, int] = {}
        self._sockets: dict[int, SimSocket] = {}
        self._dirty: list[Flushable] = []
        self._turn_sockets: dict[int, SimSocket] = {}
        self._together: Callable[[Ready], tuple[Ready, Begun]] = lambda ready: (ready, ())
        self._late_turns = random.Random(process.node.socket_faults.getrandbits(64))
        self.unsent = Unsent()
        self._fds = 2

    def next_fd(self) -> int:
        """Return a new descriptor."""
        self._fds += 1
        return self._fds

    def socket(self, line: SimConnection, side: int, peer: Address) -> SimSocket:
        """Open a new socket of this process."""
        rng = random.Random(self._process.node.socket_faults.getrandbits(64))
        sock = SimSocket(self, line, side, peer, SocketFaults(rng, self._cluster.socket_counts))
        self._sockets[sock.fileno()] = sock
        return sock

    def vanish(self) -> None:
        """End all sockets with their process. A peer notices that soon, or finds out by itself."""
        self._end_turn()
        for sock in self._sockets.values():
            sock.vanish(hangs_up=self._cluster.rng.random() < 0.7)
        self._sockets.clear()
        self._handlers.clear()
        self._events.clear()

    @property
    def calm(self) -> bool:
        """Whether connections are no longer reset."""
        return self._cluster.is_healed

    def deliver(self, sock: SimSocket, data: bytes) -> None:
        """Deliver bytes to a socket in a turn, alone or together with bytes of other sockets."""

        def step() -> None:
            sock.deliver(data)
            if self._late_turns.random() < _GATHER_SHARE:
                seconds = self._late_turns.uniform(0.0, _GATHER_SECONDS_MAX)
                self._cluster.later(self._process.node, seconds, self._turn)
            else:
                self._turn()

        self._cluster.in_process(self._process, "hears a client", step)

    def _turn(self) -> None:
        """Serve sockets until none has anything to receive; see `raftlog.net.reactor.Reactor`."""
        events = self._events
        while ready := [
            (fd, EPOLLIN)
            for fd, sock in self._sockets.items()
            if (sock._inbox or sock._ended) and events.get(fd, 0) & EPOLLIN
        ]:
            others, calls = self._together(ready)
            for fd, go_on in calls:
                if fd in self._handlers:
                    go_on()
            for fd, mask in others:
                # An earlier handler of this turn may have closed it.
                if (handler := self._handlers.get(fd)) is not None:
                    handler(mask)

    def receive_into(self, fd: int, buffer: memoryview) -> int:
        return self._open(fd).recv_into(buffer, len(buffer))

    def send(self, fd: int, data: bytes) -> int:
        return self._open(fd).send(data)

    def _open(self, fd: int) -> SimSocket:
        if (sock := self._sockets.get(fd)) is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return sock

    def serve_together(self, serve: Callable[[Ready], tuple[Ready, Begun]]) -> None:
        self._together = serve

    # -- what streams need of a reactor --------------------------------------------------------------------------------

    def add(self, fd: int, handler: Callable[[int], None], events: int = EPOLLIN, *, patient: bool = False) -> None:
        assert fd not in self._handlers, f"descriptor {fd} is registered already"
        self._handlers[fd] = handler
        self._events[fd] = events
        if events & EPOLLIN and self._sockets[fd].has_more:
            self._cluster.later(self._process.node, 0.0, self._turn)

    def modify(self, fd: int, events: int) -> None:
        new_events = events & ~self._events[fd]
        self._events[fd] = events
        if new_events & EPOLLIN:
            self._cluster.later(self._process.node, 0.0, self._turn)
        if new_events & EPOLLOUT:
            self._await_writable(fd)

    def _await_writable(self, fd: int) -> None:
        def step() -> None:
            if self._events.get(fd, 0) & EPOLLOUT:
                self._sockets[fd].on_writable()
                self._handlers[fd](EPOLLOUT)
                if self._events.get(fd, 0) & EPOLLOUT:
                    self._await_writable(fd)

        self._cluster.later(self._process.node, self._sockets[fd].full_seconds(), step)

    def remove(self, fd: int) -> None:
        del self._handlers[fd]
        del self._events[fd]
        self._sockets.pop(fd, None)

    def wake(self) -> None:
        self._cluster.later(self._process.node, 0.0, lambda: None)

    def turn_within(self, seconds: float) -> None:
        self._cluster.later(self._process.node, seconds, lambda: None)

    def share_used(self) -> bool:
        """Return False: time does not advance in a turn."""
        return False

    def go_on_later(self, step: Callable[[], None]) -> None:
        self._cluster.later(self._process.node, 0.0, step)

    def mark_dirty(self, stream: Flushable) -> None:
        self._dirty.append(stream)

    def flush(self) -> None:
        """Send the bytes that streams have buffered, at the end of a turn."""
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            flush_streams(dirty if IS_COMPILED else self._sent_together(dirty), self)
        self._end_turn()

    def _sent_together(self, streams: list[Flushable]) -> list[Flushable]:
        """Send single buffers first, as the compiled form does: a stream that fails may close others of this turn, and
        their last bytes would leave in only one of the forms.
        """
        rest: list[Flushable] = []
        buffers: list[tuple[Flushable, bytes]] = []
        for stream in streams:
            data = stream.take_single_buffer()
            if data is None:
                rest.append(stream)
            else:
                buffers.append((stream, data))
        for stream, data in buffers:
            try:
                count = self.send(stream.raw_fd, data)
            except OSError:
                count = 0
            if count != len(data):
                stream.put_back(data, count)
                rest.append(stream)
        return rest

    def add_to_turn(self, sock: SimSocket) -> None:
        """Register a socket whose `SimSocket.end_turn` must be called at the end of this turn."""
        self._turn_sockets[sock.fileno()] = sock

    def _end_turn(self) -> None:
        sockets, self._turn_sockets = self._turn_sockets, {}
        for _, sock in sorted(sockets.items()):
            sock.end_turn()

    def dial(
        self, address: Address, on_connected: Callable[[SimSocket], None], on_failed: Callable[[str], None]
    ) -> None:
        """Connect to the broker at ``address``. If it is unreachable, no callback is called."""
        cluster, process = self._cluster, self._process
        target = cluster.node_at(address)
        if not cluster.network.connected(process.node_id, target.node_id):
            return

        def knock() -> None:
            if target.process is None:
                cluster.in_process(process, "is refused", lambda: on_failed("connection refused"))
                return
            line = SimConnection(cluster, (process.node, target))
            here = self.socket(line, 0, address)
            cluster.accept(target, line, 1, cluster.address_of(process.node))
            cluster.in_process(process, "is connected", lambda: on_connected(here))

        cluster.at(cluster.now + cluster.client_latency(), knock)


class SimDialing:
    """Replaces `raftlog.Dialing` in a simulated process."""

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
        reactor.dial(address, self._on_connect, self._on_failure)

    def close(self) -> None:
        """Abort; no callback is called after that."""
        self._open = False

    def _on_connect(self, sock: SimSocket) -> None:
        if self._open:
            self._open = False
            self._on_connected(sock)
        else:
            sock.close()

    def _on_failure(self, reason: str) -> None:
        if self._open:
            self._open = False
            self._on_failed(reason)


def stops_midway(cluster: SocketWorld, frame: bytes) -> int | None:
    """Choose at random after how many bytes of a frame the client stops; None if it sends the whole frame."""
    rng = cluster.client_faults
    if cluster.is_healed or rng.random() >= _STOP_CHANCE:
        return None
    cluster.socket_counts["clients that stop midway"] += 1
    return rng.randrange(len(frame))


def latency(rng: random.Random) -> float:
    """Choose at random how many seconds a client's bytes travel."""
    return rng.uniform(0.0002, 0.004)
