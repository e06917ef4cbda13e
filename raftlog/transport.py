"""Connections between the replicas of one group.

Every replica calls every other one twice: the *control* lane carries votes, heartbeats and acknowledgements, the
*bulk* lane carries entries, so that a vote never waits behind megabytes. A connection carries messages in one
direction only, from the caller. Nothing here blocks or retries a message: what cannot leave is dropped, and Raft
sends it again.

A lost connection is dialled again at once. When the peer refuses, or answers as a new process, the old process is
gone for certain, and ``on_peer_gone`` says so: a dead leader is noticed in milliseconds, without waiting for silence.
"""

from __future__ import annotations

import enum
import socket
from collections.abc import Callable, Mapping
from typing import Any

import structlog
import trio

from raftlog import wire
from raftlog._runtime import Listener, Reactor, StreamSocket, configure_replication_socket
from raftlog.consensus.types import NodeId
from raftlog.segment.errors import FrameCorrupt
from raftlog.wire import Hello, Kind, Welcome, WireError

CONNECT_SECONDS_MAX = 1.0
HANDSHAKE_SECONDS_MAX = 2.0
PING_SECONDS = 1.0
SILENCE_SECONDS_MAX = 3.0
_BACKOFF_SECONDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)

Address = tuple[str, int]
Log = structlog.stdlib.BoundLogger
FrameHandler = Callable[[NodeId, Kind, memoryview], None]


class Lane(enum.Enum):
    """The two connections from one replica to another, with the bytes that may wait in them."""

    CONTROL = ("control", 4 * 1024 * 1024)
    BULK = ("bulk", 64 * 1024 * 1024)

    def __init__(self, label: str, queued_bytes_max: int) -> None:
        self.label = label
        self.queued_bytes_max = queued_bytes_max


class PeerRefused(Exception):
    """The peer does not want to talk to us; the reason is its own."""


class Transport:
    """All connections of one replica.

    Args:
        identity: what both sides of a connection must agree on; ``target`` and ``lane`` are filled in per connection.
        incarnation: a number that differs for every start of this process.
        peers: the other voters and where they listen.
        on_frame: gets every frame of a peer on the reactor's thread; the payload is only valid during the call.
        on_peer_gone: the process behind this peer has ended.
    """

    def __init__(
        self,
        *,
        reactor: Reactor,
        identity: Hello,
        incarnation: str,
        listen: Address,
        peers: Mapping[NodeId, Address],
        on_frame: FrameHandler,
        on_peer_gone: Callable[[NodeId], None],
        log: Log,
    ) -> None:
        self._reactor = reactor
        self._identity = identity
        self._incarnation = incarnation
        self._peers = dict(peers)
        self._on_frame = on_frame
        self._on_peer_gone = on_peer_gone
        self._log = log
        self._outbound: dict[tuple[NodeId, Lane], StreamSocket] = {}
        self._incarnations: dict[NodeId, str] = {}
        self._inbound: set[_Inbound] = set()
        self.refusals: set[str] = set()
        """Why callers were refused so far, each reason once."""
        self._listener = Listener(reactor, listen[0], listen[1], self._accept)

    @property
    def port(self) -> int:
        """The port that this replica listens on."""
        return self._listener.port

    def connected(self, peer: NodeId) -> bool:
        """Whether both lanes to ``peer`` stand."""
        return all((peer, lane) in self._outbound for lane in Lane)

    def send(self, peer: NodeId, lane: Lane, buffers: list[bytes | memoryview], nbytes: int) -> bool:
        """Queue one frame; returns False when it was dropped (no connection, or too much waiting in it)."""
        stream = self._outbound.get((peer, lane))
        if stream is None or stream.out_bytes > lane.queued_bytes_max:
            return False
        stream.send_all(buffers, nbytes)
        return True

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep both lanes to every peer open until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                for peer, address in self._peers.items():
                    for lane in Lane:
                        nursery.start_soon(self._keep_open, peer, address, lane)
                nursery.start_soon(self._expire_silent_callers)
                task_status.started()
        finally:
            self.close()

    def close(self) -> None:
        """Close the listener and every connection."""
        if not self._listener.closed:
            self._listener.close()
        for stream in list(self._outbound.values()):
            stream.close("replica stops")
        for inbound in list(self._inbound):
            inbound.stream.close("replica stops")

    async def _keep_open(self, peer: NodeId, address: Address, lane: Lane) -> None:
        failures = 0
        reported = ""
        while True:
            await trio.sleep(_BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)])
            try:
                sock, incarnation = await self._dial(peer, address, lane)
            except (OSError, trio.TooSlowError, trio.BrokenResourceError, WireError, PeerRefused) as error:
                failures += 1
                if isinstance(error, ConnectionRefusedError):
                    self._gone(peer)
                if (text := str(error) or type(error).__name__) != reported:
                    reported = text
                    self._log.warning("peer_unreachable", peer=peer, lane=lane.label, error=text)
                continue
            failures, reported = 0, ""
            if self._incarnations.get(peer, incarnation) != incarnation:
                self._gone(peer)
            self._incarnations[peer] = incarnation
            await self._hold(peer, lane, sock)

    def _gone(self, peer: NodeId) -> None:
        self._incarnations.pop(peer, None)
        self._on_peer_gone(peer)
        self._reactor.wake()

    async def _dial(self, peer: NodeId, address: Address, lane: Lane) -> tuple[socket.socket, str]:
        with trio.fail_after(CONNECT_SECONDS_MAX):
            infos = await trio.socket.getaddrinfo(*address, type=trio.socket.SOCK_STREAM)
            family, kind, protocol, _, sockaddr = infos[0]
            sock = trio.socket.socket(family, kind, protocol)
            try:
                await sock.connect(sockaddr)
            except BaseException:
                sock.close()
                raise
        try:
            with trio.fail_after(HANDSHAKE_SECONDS_MAX):
                welcome = await _shake_hands(sock, self._hello(peer, lane))
        except BaseException:
            sock.close()
            raise
        if welcome.refusal is not None:
            sock.close()
            raise PeerRefused(welcome.refusal)
        return socket.socket(fileno=sock.detach()), welcome.incarnation

    def _hello(self, peer: NodeId, lane: Lane) -> Hello:
        mine = self._identity
        return Hello(mine.cluster_id, mine.group, mine.source, peer, mine.segment_bytes, lane.label, mine.members)

    async def _hold(self, peer: NodeId, lane: Lane, sock: socket.socket) -> None:
        """Serve one open lane until it closes."""
        closed = trio.Event()
        configure_replication_socket(sock, SILENCE_SECONDS_MAX)
        stream = StreamSocket(self._reactor, sock, lambda data: len(data), lambda reason: closed.set())
        self._outbound[peer, lane] = stream
        self._log.info("peer_connected", peer=peer, lane=lane.label)
        try:
            while True:
                with trio.move_on_after(PING_SECONDS):
                    await closed.wait()
                    return
                # Data that nobody acknowledges lets TCP_USER_TIMEOUT find a dead link before it is needed.
                stream.send(wire.PING)
                self._reactor.wake()
        finally:
            del self._outbound[peer, lane]
            stream.close("replica stops")

    def _accept(self, sock: socket.socket) -> None:
        configure_replication_socket(sock, SILENCE_SECONDS_MAX)
        _Inbound(self, sock)

    async def _expire_silent_callers(self) -> None:
        while True:
            await trio.sleep(HANDSHAKE_SECONDS_MAX / 2)
            now = trio.current_time()
            for inbound in list(self._inbound):
                if inbound.source is None and now > inbound.accepted_at + HANDSHAKE_SECONDS_MAX:
                    inbound.stream.close("no handshake")

    def _check_hello(self, hello: Hello) -> str | None:
        """Why this caller is refused, or None."""
        mine = self._identity
        if hello.cluster_id != mine.cluster_id or hello.group != mine.group:
            return (
                f"this is group {mine.group!r} of cluster {mine.cluster_id}, not {hello.group!r} of {hello.cluster_id}"
            )
        if hello.target != mine.source:
            return f"this is node {mine.source!r}, not {hello.target!r}"
        if hello.source not in self._peers:
            return f"{hello.source!r} is not a peer of node {mine.source!r}"
        if hello.segment_bytes != mine.segment_bytes:
            return f"segments have {mine.segment_bytes} bytes here, {hello.segment_bytes} at {hello.source!r}"
        if set(hello.members) != set(mine.members):
            return f"members are {sorted(mine.members)} here, {sorted(hello.members)} at {hello.source!r}"
        return None


class _Inbound:
    """A connection that a peer opened: a handshake, then its messages."""

    def __init__(self, transport: Transport, sock: socket.socket) -> None:
        self._transport = transport
        self.source: NodeId | None = None
        self.accepted_at = trio.current_time()
        self.stream = StreamSocket(transport._reactor, sock, self._on_data, self._on_closed)
        transport._inbound.add(self)

    def _on_data(self, data: memoryview) -> int:
        transport = self._transport
        try:
            frames, consumed = wire.split_frames(data)
            for kind, payload in frames:
                if kind is Kind.PING:
                    continue
                if self.source is not None:
                    transport._on_frame(self.source, kind, payload)
                else:
                    self._greet(wire.decode_cold(kind, payload))
                if self.stream.closed:
                    return 0
        except (WireError, FrameCorrupt) as error:
            transport._log.warning("peer_sent_garbage", peer=self.source or self.stream.peer, error=str(error))
            self.stream.close("garbage")
            return 0
        return consumed

    def _greet(self, hello: Any) -> None:
        if not isinstance(hello, Hello):
            raise WireError(f"a {type(hello).__name__} came before the handshake")
        transport = self._transport
        refusal = transport._check_hello(hello)
        self.stream.send(wire.encode_cold(Welcome(transport._incarnation, refusal)))
        if refusal is None:
            self.source = NodeId(hello.source)
            return
        self.stream.flush()
        self.stream.close("refused")
        if refusal not in transport.refusals and len(transport.refusals) < 100:
            # Once per reason: a caller that was set up wrongly comes back twice a second.
            transport.refusals.add(refusal)
            transport._log.warning("peer_refused", peer=hello.source, reason=refusal)

    def _on_closed(self, reason: str) -> None:
        self._transport._inbound.discard(self)


async def _shake_hands(sock: trio.socket.SocketType, hello: Hello) -> Welcome:
    stream = trio.SocketStream(sock)
    await stream.send_all(wire.encode_cold(hello))
    received = bytearray()
    while True:
        chunk = await stream.receive_some(4096)
        if not chunk:
            raise WireError("closed during the handshake")
        received += chunk
        frames, _ = wire.split_frames(memoryview(bytes(received)))
        if frames:
            kind, payload = frames[0]
            welcome = wire.decode_cold(kind, payload)
            if not isinstance(welcome, Welcome):
                raise WireError(f"a {type(welcome).__name__} instead of a welcome")
            return welcome
