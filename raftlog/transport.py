"""Connections between the replicas of one group.

Every replica calls every other one twice: the *control* lane carries votes, heartbeats and acknowledgements, the
*bulk* lane carries entries, so that a vote never waits behind megabytes. A connection carries messages in one
direction only, from the caller. Nothing here blocks or retries a message: what cannot leave is dropped, and Raft
sends it again.

Peers come and go with the configuration, see `Transport.set_members`. A caller that is let in without being a member
(`raftlog.admission`) is called back where it says that it listens.

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
from raftlog.admission import Address, Admission, format_address, parse_address
from raftlog.consensus.types import NodeId
from raftlog.segment.errors import FrameCorrupt
from raftlog.wire import Hello, Kind, OtherVersion, Welcome, WireError

CONNECT_SECONDS_MAX = 1.0
HANDSHAKE_SECONDS_MAX = 2.0
PING_SECONDS = 1.0
SILENCE_SECONDS_MAX = 3.0
STRANGERS_MAX = 64
"""Connections without a handshake yet; beyond it the oldest is closed, so that they take no descriptors of the log."""
STRANGER_BYTES_MAX = 64 * 1024
"""What a handshake may have: members' names and addresses."""
NOT_RECORDED = "its directory is being recorded, it may call again"
_BACKOFF_SECONDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)

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


class ListenRefused(Exception):
    """The replication address cannot be listened on; ``error`` is the system's."""

    def __init__(self, address: Address, error: Exception) -> None:
        super().__init__(f"cannot listen on {format_address(address)}: {error}")
        self.address = address
        self.error = error


class Transport:
    """All connections of one replica.

    Args:
        admission: what this replica knows of its group, and whom it therefore lets in.
        incarnation: a number that differs for every start of this process.
        on_frame: gets every frame of a peer on the reactor's thread; the payload is only valid during the call.
        on_peer_gone: the process behind this peer has ended.

    Raises:
        ListenRefused: ``listen`` cannot be used.
    """

    def __init__(
        self,
        *,
        reactor: Reactor,
        admission: Admission,
        incarnation: str,
        listen: Address,
        on_frame: FrameHandler,
        on_peer_gone: Callable[[NodeId], None],
        log: Log,
    ) -> None:
        self._reactor = reactor
        self._admission = admission
        self._incarnation = incarnation
        self._guests: dict[NodeId, tuple[int, str]] = {}
        self._callers: dict[NodeId, tuple[str, trio.CancelScope]] = {}
        self._nursery: trio.Nursery | None = None
        self._on_frame = on_frame
        self._on_peer_gone = on_peer_gone
        self._log = log
        self._outbound: dict[tuple[NodeId, Lane], StreamSocket] = {}
        self._incarnations: dict[NodeId, str] = {}
        self._inbound: set[_Inbound] = set()
        self._strangers: dict[_Inbound, None] = {}
        self.refusals: set[str] = set()
        """Why callers were refused so far, each reason once."""
        try:
            self._listener = Listener(reactor, *listen, self._accept)
        except (OSError, UnicodeError) as error:
            raise ListenRefused(listen, error) from error

    @property
    def port(self) -> int:
        """The port that this replica listens on."""
        return self._listener.port

    @property
    def peers(self) -> frozenset[NodeId]:
        """Everybody who is called: members and guests."""
        members = {NodeId(node) for node in self._admission.addresses}
        return frozenset((members | self._guests.keys()) - {self._admission.identity.node_id})

    def connected(self, peer: NodeId) -> bool:
        """Whether both lanes to ``peer`` stand."""
        return all((peer, lane) in self._outbound for lane in Lane)

    def is_peer_host(self, host: str) -> bool:
        """Whether a replica of this group is connected from the IP address ``host``, or to it."""
        return any(inbound.source is not None and inbound.stream.peer[0] == host for inbound in self._inbound) or any(
            stream.peer[0] == host for stream in self._outbound.values()
        )

    def send(self, peer: NodeId, lane: Lane, buffers: list[bytes | memoryview], nbytes: int) -> bool:
        """Queue one frame; returns False when it was dropped (no connection, or too much waiting in it)."""
        stream = self._outbound.get((peer, lane))
        if stream is None or stream.out_bytes > lane.queued_bytes_max:
            return False
        stream.send_all(buffers, nbytes)
        return True

    def set_members(self, conf_index: int, addresses: Mapping[NodeId, str]) -> None:
        """Keep connections to these nodes (``HOST:PORT`` each, itself included) and to nobody else from now on.

        ``conf_index`` is the entry that says so. Raises ValueError for what is no address; nothing has changed then.
        """
        for text in addresses.values():
            parse_address(text)
        self._admission.configure(conf_index, {str(node): text for node, text in addresses.items()})
        self._guests = {
            node: guest for node, guest in self._guests.items() if guest[0] > conf_index and node not in addresses
        }
        for inbound in list(self._inbound):
            if inbound.source is not None and not self._is_wanted(inbound.source):
                inbound.stream.close("no member any more")
        self._call_members()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep both lanes to every peer open until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._call_members()
                nursery.start_soon(self._expire_silent_callers)
                task_status.started()
        finally:
            self._nursery = None
            self.close()

    def _is_wanted(self, node: NodeId) -> bool:
        return node in self._admission.addresses or node in self._guests

    def _call_members(self) -> None:
        """Start and stop calling, so that exactly members and guests are called."""
        if (nursery := self._nursery) is None:
            return
        wanted = {NodeId(node): text for node, text in self._admission.addresses.items()}
        wanted |= {node: text for node, (_, text) in self._guests.items()}
        wanted.pop(self._admission.identity.node_id, None)
        for node, (text, scope) in list(self._callers.items()):
            if wanted.get(node) != text:
                del self._callers[node]
                scope.cancel()
        for node, text in wanted.items():
            if node not in self._callers:
                scope = trio.CancelScope()
                self._callers[node] = (text, scope)
                nursery.start_soon(self._call, node, parse_address(text), scope)

    async def _call(self, peer: NodeId, address: Address, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                for lane in Lane:
                    nursery.start_soon(self._keep_open, peer, address, lane)

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
            except (OSError, ValueError, trio.TooSlowError, trio.BrokenResourceError, WireError, PeerRefused) as error:
                failures += 1  # a ValueError: a name that no host can have
                if isinstance(error, ConnectionRefusedError):
                    self._gone(peer)
                if (text := str(error) or type(error).__name__) not in (reported, NOT_RECORDED):
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
                welcome = await _shake_hands(sock, self._admission.hello(peer, lane.label, self._incarnation))
        except BaseException:
            sock.close()
            raise
        refusal = welcome.refusal or self._admission.why_not_store(
            peer, welcome.store_id, welcome.stores, welcome.conf_index
        )
        if refusal is None and self._admission.must_wait(peer):
            refusal = NOT_RECORDED
        if refusal is not None:
            sock.close()
            raise PeerRefused(refusal)
        return socket.socket(fileno=sock.detach()), welcome.incarnation

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
        if len(self._strangers) > STRANGERS_MAX:
            next(iter(self._strangers)).stream.close("too many strangers")

    async def _expire_silent_callers(self) -> None:
        while True:
            await trio.sleep(HANDSHAKE_SECONDS_MAX / 2)
            now = trio.current_time()
            for inbound in list(self._strangers):
                if now > inbound.accepted_at + HANDSHAKE_SECONDS_MAX:
                    inbound.stream.close("no handshake")

    def _why_not(self, hello: Hello) -> str | None:
        """Why this caller is refused, or None; then it is called back if nobody else would."""
        admission = self._admission
        if (refusal := admission.why_not(hello)) is not None:
            return refusal
        source = NodeId(hello.source)
        if admission.must_wait(source):
            return NOT_RECORDED
        now = trio.current_time()
        for inbound in list(self._inbound):
            if inbound.source == source and inbound.incarnation != hello.incarnation:
                if now < inbound.heard_at + SILENCE_SECONDS_MAX:
                    return f"another process with the id {source!r} is connected from {inbound.stream.peer[0]}"
                inbound.stream.close("replaced by a new process")
        if source not in admission.addresses:
            text = hello.addresses[source]
            try:
                parse_address(text)
            except ValueError as error:
                return str(error)
            self._guests[source] = (hello.conf_index, text)
            self._call_members()
        return None


class _Inbound:
    """A connection that a peer opened: a handshake, then its messages."""

    def __init__(self, transport: Transport, sock: socket.socket) -> None:
        self._transport = transport
        self.source: NodeId | None = None
        self.incarnation = ""
        self.accepted_at = self.heard_at = trio.current_time()
        self.stream = StreamSocket(transport._reactor, sock, self._on_data, self._on_closed)
        transport._inbound.add(self)
        transport._strangers[self] = None

    def _on_data(self, data: memoryview) -> int:
        transport = self._transport
        self.heard_at = trio.current_time()
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
            if self.source is None and len(data) - consumed > STRANGER_BYTES_MAX:
                raise WireError(f"{len(data)} bytes came without a handshake")
        except (WireError, FrameCorrupt) as error:
            if isinstance(error, OtherVersion) and self.source is None:
                # It cannot read the words, but our version in front of them, and says so at its side.
                self.stream.send(wire.encode_cold(transport._admission.welcome(transport._incarnation, str(error))))
                self.stream.flush()
            transport._log.warning("peer_sent_garbage", peer=self.source or self.stream.peer, error=str(error))
            self.stream.close("garbage")
            return 0
        return consumed

    def _greet(self, hello: Any) -> None:
        if not isinstance(hello, Hello):
            raise WireError(f"a {type(hello).__name__} came before the handshake")
        transport = self._transport
        refusal = transport._why_not(hello)
        self.stream.send(wire.encode_cold(transport._admission.welcome(transport._incarnation, refusal)))
        if refusal is None:
            self.source = NodeId(hello.source)
            transport._strangers.pop(self, None)
            self.incarnation = hello.incarnation
            return
        self.stream.flush()
        self.stream.close("refused")
        if refusal is not NOT_RECORDED and refusal not in transport.refusals and len(transport.refusals) < 100:
            # Once per reason: a caller that was set up wrongly comes back twice a second.
            transport.refusals.add(refusal)
            transport._log.warning("peer_refused", peer=hello.source, reason=refusal)

    def _on_closed(self, reason: str) -> None:
        self._transport._inbound.discard(self)
        self._transport._strangers.pop(self, None)


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
