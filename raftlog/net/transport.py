"""Connects the replicas of one group.

Every replica calls every other one twice: the *control* lane carries votes, heartbeats and acknowledgements, the
*bulk* lane carries entries, so that a vote never waits behind megabytes. A connection carries messages in one
direction only, from the caller. Nothing here blocks or retries a message: messages that cannot be sent are dropped,
and Raft sends them again.

Both sides of a connection prove that they know the group's secret (`raftlog.net.authentication`) before they exchange
identities, and every later frame carries a tag. When a secret becomes invalid, connections opened with it are closed.

Peers change with the configuration, see `Transport.set_members`. A caller that is admitted without being a member
(`raftlog.net.admission`) is called back at the address that it reports.

A lost connection is dialled again at once. If the peer refuses, or answers as a new process, the old process has
certainly ended, and ``on_peer_gone`` is called: a dead leader is noticed in milliseconds, without waiting for silence.
"""

from __future__ import annotations

import enum
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from raftlog.consensus.confchange import MEMBERS_MAX
from raftlog.consensus.types import NodeId
from raftlog.log_numbers import LogIndex
from raftlog.net import authentication
from raftlog.net import frames as wire
from raftlog.net.admission import Address, Admission, format_address, parse_address
from raftlog.net.after_sync import AfterSync, SendingWriter
from raftlog.net.authentication import NONCE_BYTES, TAG_BYTES, AuthenticationFailed, Keys, Seal
from raftlog.net.caller_handshake import (
    PLAIN_BYTES_MAX,
    PURPOSE,
    STRANGER_BYTES_MAX,
    HandshakeKeys,
    PeerRefused,
    failure_in_words,
    shake_hands,
)
from raftlog.net.frames import Hello, Kind, OtherVersion, Welcome, WireError
from raftlog.net.listener import configure_replication_socket
from raftlog.net.machine import this_machine
from raftlog.net.reactor import Reactor
from raftlog.net.refusal_log import RefusalLog
from raftlog.net.replication_tls import ReplicationTls, bound_purpose, caller_context, shown_certificate
from raftlog.net.secret_file import SecretFile, SecretUnusable
from raftlog.net.stream import StreamSocket
from raftlog.net.tls_socket import TlsSocket
from raftlog.net.versions import HANDSHAKE_VERSION, Software
from raftlog.segment.errors import FrameCorrupt
from raftlog.shared_wakeups import seconds_to_step, sleep_to_step

CONNECT_SECONDS_MAX = 1.0
HANDSHAKE_SECONDS_MAX = 2.0
PING_SECONDS = 1.0
SILENCE_SECONDS_MAX = 3.0
UNIDENTIFIED_MAX = 64
"""Limit on connections before their handshake, so that they do not use up descriptors of the log. Above it, the oldest
one of the host with the most is closed: a host that opens many does not disturb the handshakes of others.
"""
SECRET_POLL_SECONDS = 2.0
REFUSALS_KEPT: Final = 100
"""Number of recent refusal reasons kept."""
NOT_RECORDED = "its store id is being recorded; it may connect again"
_REPORTED_MAX: Final = 8
"""Reasons why a peer could not be called that are not logged again until a call succeeds."""
_BACKOFF_SECONDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)

Log = structlog.stdlib.BoundLogger
FrameHandler = Callable[[NodeId, Kind, memoryview], None]


class Lane(enum.Enum):
    """The two connections from one replica to another, with the bytes that may be queued in them."""

    CONTROL = ("control", 4 * 1024 * 1024)
    BULK = ("bulk", 64 * 1024 * 1024)

    def __init__(self, label: str, queued_bytes_max: int) -> None:
        self.label = label
        self.queued_bytes_max = queued_bytes_max


@dataclass(slots=True)
class _OpenConnection:
    """An open connection to a peer, its frame tags, and its protocol version.

    ``is_used``: whether frames were sent since it was looked at the last time.
    """

    stream: StreamSocket
    seal: Seal
    secret_id: bytes
    version: int
    is_used: bool = False


class ListenRefused(Exception):
    """The system refuses the replication address. ``error`` is the system's error."""

    def __init__(self, address: Address, error: Exception) -> None:
        super().__init__(f"cannot listen on {format_address(address)}: {error}")
        self.address = address
        self.error = error


class Transport:
    """Connects one replica with all others, and sends and receives their frames.

    Args:
        admission: what this replica knows about its group, and which peers it therefore admits.
        secrets: the group's; the file is read again when it changes.
        incarnation: a number that differs for every start of this process.
        on_frame: gets every frame of a peer on the reactor's thread; the payload is only valid during the call.
        on_peer_gone: the process of this peer has ended.
        writer: of the log; it sends what `send_after` is given. None: that sends nothing.
        tls: encryption of connections; None: unencrypted.

    Raises:
        ListenRefused: ``listen`` is not available.
    """

    def __init__(
        self,
        *,
        reactor: Reactor,
        admission: Admission,
        secrets: SecretFile,
        incarnation: str,
        listen: Address,
        on_frame: FrameHandler,
        on_peer_gone: Callable[[NodeId], None],
        log: Log,
        writer: SendingWriter | None = None,
        tls: ReplicationTls | None = None,
        refusal_log_seconds: float = 60.0,
    ) -> None:
        self._reactor = reactor
        self._tls = tls
        self._caller_context = caller_context()
        self._admission = admission
        self._secrets = secrets
        self._incarnation = incarnation
        self._guests: dict[NodeId, tuple[int, str]] = {}
        self._callers: dict[NodeId, tuple[str, trio.CancelScope]] = {}
        self._nursery: trio.Nursery | None = None
        self._on_frame = on_frame
        self._on_peer_gone = on_peer_gone
        self._after_sync = AfterSync(writer)
        self._log = log
        self._refusal_log = RefusalLog(log, trio.current_time, refusal_log_seconds)
        self._outbound: dict[tuple[NodeId, Lane], _OpenConnection] = {}
        self._incarnations: dict[NodeId, str] = {}
        self._inbound: set[_Inbound] = set()
        self._unidentified_callers: dict[_Inbound, None] = {}
        self.refusals: deque[str] = deque(maxlen=REFUSALS_KEPT)
        """Reasons of recent refusals, newest last."""
        self.failures: dict[NodeId, str] = {}
        """Why the last calls to unconnected peers failed."""
        self._software: dict[NodeId, Software] = {}
        try:
            self._listener = this_machine().listen(reactor, listen, self._accept)
        except (OSError, UnicodeError) as error:
            raise ListenRefused(listen, error) from error

    @property
    def port(self) -> int:
        """Return the port that this replica listens on."""
        return self._listener.port

    @property
    def peers(self) -> frozenset[NodeId]:
        """Return all peers that this replica calls: members and guests."""
        members = {NodeId(node) for node in self._admission.addresses}
        return frozenset((members | self._guests.keys()) - {self._admission.identity.node_id})

    def connected(self, peer: NodeId) -> bool:
        """Whether both lanes to ``peer`` are open."""
        return all((peer, lane) in self._outbound for lane in Lane)

    def software(self, peer: NodeId) -> Software | None:
        """The software that ``peer`` reported in its last answer; None while a connection to it is missing."""
        return self._software.get(peer) if self.connected(peer) else None

    def send(self, peer: NodeId, lane: Lane, buffers: list[bytes | memoryview], nbytes: int) -> bool:
        """Queue one frame; returns False if it was dropped (no connection, or too much queued).

        Of several buffers the first and the last are covered by the frame's tag; log entries are between them.
        """
        link = self._outbound.get((peer, lane))
        if link is None or link.stream.out_bytes > lane.queued_bytes_max:
            return False
        self._after_sync.before_use(link.stream)
        if link.version != HANDSHAKE_VERSION:
            buffers[0] = wire.with_version(buffers[0], link.version)
        tag = link.seal.tag(buffers[0], buffers[-1]) if len(buffers) > 1 else link.seal.tag(buffers[0])
        link.stream.send_all([*buffers, tag], nbytes + TAG_BYTES)
        if lane is Lane.BULK:
            link.stream.flush()  # the peer begins while this replica does the rest of its turn
        link.is_used = True
        return True

    def send_after(self, ticket: int, peer: NodeId, frame: bytes) -> bool:
        """Have a frame sent on the control lane as soon as the log is durable up to ``ticket``, but not behind another
        one on that lane. Returns False if that is not possible, and sends nothing; after True, call `has_left`.
        """
        link = self._outbound.get((peer, Lane.CONTROL))
        if link is None:
            return False
        if link.version != HANDSHAKE_VERSION:
            frame = bytes(wire.with_version(frame, link.version))
        waits = self._after_sync.put(link.stream, link.seal, frame, ticket)
        link.is_used |= waits
        return waits

    def has_left(self) -> bool:
        """Whether the frame of the last `send_after` was sent. If not, it will not be."""
        return self._after_sync.has_left()

    def set_members(self, conf_index: LogIndex, addresses: Mapping[NodeId, str]) -> None:
        """Keep connections to exactly these nodes from now on (``HOST:PORT`` each, including this one).

        ``conf_index`` is the entry with the configuration. Raises ValueError for an invalid address; then nothing has
        changed.
        """
        for text in addresses.values():
            parse_address(text)
        self._admission.configure(conf_index, {str(node): text for node, text in addresses.items()})
        self._guests = {
            node: guest for node, guest in self._guests.items() if guest[0] > conf_index and node not in addresses
        }
        for inbound in list(self._inbound):
            if inbound.source is not None and not self._is_wanted(inbound.source):
                inbound.stream.close("no longer a member")
        self._call_members()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep both lanes to every peer open until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._call_members()
                nursery.start_soon(self._expire_silent_callers)
                nursery.start_soon(self._follow_secret)
                task_status.started()
        finally:
            self._nursery = None
            self.close()

    def _is_wanted(self, node: NodeId) -> bool:
        return node in self._admission.addresses or node in self._guests

    def _call_members(self) -> None:
        """Start and stop calls, so that exactly members and guests are called."""
        if (nursery := self._nursery) is None:
            return
        targets = {NodeId(node): text for node, text in self._admission.addresses.items()}
        targets |= {node: text for node, (_, text) in self._guests.items()}
        targets.pop(self._admission.identity.node_id, None)
        for node, (text, scope) in list(self._callers.items()):
            if targets.get(node) != text:
                del self._callers[node]
                scope.cancel()
        for node, text in targets.items():
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
        for link in list(self._outbound.values()):
            self._after_sync.forget(link.stream)
            link.stream.close("replica stops")
        for inbound in list(self._inbound):
            inbound.stream.close("replica stops")

    async def _keep_open(self, peer: NodeId, address: Address, lane: Lane) -> None:
        failures = 0
        recent_errors: deque[str] = deque(maxlen=_REPORTED_MAX)
        use_tls = self._tls is not None
        while True:
            await trio.sleep(_BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)])
            try:
                sock, keys, welcome = await self._dial(peer, address, lane, use_tls=use_tls)
            except _DIAL_ERRORS as error:
                failures += 1
                use_tls = self._tls is not None and self._tls.next_call_uses(error, used=use_tls)
                if isinstance(error, ConnectionRefusedError):
                    self._forget_peer(peer)
                text = failure_in_words(error)
                self.failures[peer] = text
                if text not in recent_errors and text != _WAITS:
                    recent_errors.append(text)
                    self._log.warning("peer_unreachable", peer=peer, lane=lane.label, error=text)
                continue
            failures, use_tls = 0, self._tls is not None
            recent_errors.clear()
            self.failures.pop(peer, None)
            if self._incarnations.get(peer, welcome.incarnation) != welcome.incarnation:
                self._forget_peer(peer)
            self._incarnations[peer] = welcome.incarnation
            self._software[peer] = welcome.software
            await self._hold(peer, lane, sock, keys, welcome.version)

    def _forget_peer(self, peer: NodeId) -> None:
        self._incarnations.pop(peer, None)
        self._on_peer_gone(peer)
        self._reactor.wake()

    async def _dial(
        self, peer: NodeId, address: Address, lane: Lane, *, use_tls: bool
    ) -> tuple[socket.socket | TlsSocket, HandshakeKeys, Welcome]:
        with trio.fail_after(CONNECT_SECONDS_MAX):
            plain = await this_machine().connect(address)
        sock: socket.socket | TlsSocket = plain
        try:
            if use_tls:
                sock = TlsSocket(plain, self._caller_context, lambda reason: None, server_side=False)
            with trio.fail_after(HANDSHAKE_SECONDS_MAX):
                hello = self._admission.hello(peer, lane.label, self._incarnation)
                keys, welcome = await shake_hands(sock, hello, self._secrets.current)
        except BaseException:
            sock.close()
            raise
        if not self._is_valid(keys.secret_id):
            sock.close()
            raise AuthenticationFailed("the group secret changed during the handshake")
        refusal = welcome.refusal or self._admission.why_not_welcome(peer, welcome)
        if refusal is None and self._admission.must_wait(peer):
            refusal = NOT_RECORDED
        if refusal is not None:
            sock.close()
            raise PeerRefused(refusal)
        return sock, keys, welcome

    async def _hold(
        self, peer: NodeId, lane: Lane, sock: socket.socket | TlsSocket, keys: HandshakeKeys, version: int
    ) -> None:
        """Serve one open lane until it closes."""
        close_event = trio.Event()
        configure_replication_socket(sock, SILENCE_SECONDS_MAX)
        stream = StreamSocket(self._reactor, sock, lambda data: len(data), lambda reason: close_event.set())
        link = self._outbound[peer, lane] = _OpenConnection(stream, keys.seal, keys.secret_id, version)
        ping = bytes(wire.with_version(wire.PING, version))
        self._log.info("peer_connected", peer=peer, lane=lane.label, version=version, tls=isinstance(sock, TlsSocket))
        try:
            while True:
                with trio.move_on_after(seconds_to_step(PING_SECONDS, trio.current_time())):
                    await close_event.wait()
                    return
                if not link.is_used:
                    self._after_sync.before_use(stream)
                    # Unacknowledged data lets TCP_USER_TIMEOUT detect a dead link before it is needed.
                    stream.send(ping + keys.seal.tag(ping))
                    stream.flush()
                link.is_used = False
        finally:
            del self._outbound[peer, lane]
            self._after_sync.forget(stream)
            stream.close("replica stops")

    async def _follow_secret(self) -> None:
        """Read the secret again when its file changes, and close connections with an invalid secret."""
        while True:
            await sleep_to_step(SECRET_POLL_SECONDS)
            try:
                has_changed = await this_machine().in_thread_together(self._secrets.poll)
            except SecretUnusable as error:
                self._log.error("group_secret_unusable", error=str(error), reason="the previous secret stays valid")
                continue
            if has_changed:
                self._log.info("group_secret_changed", secrets=len(self._secrets.current))
                for link in list(self._outbound.values()):
                    if not self._is_valid(link.secret_id):
                        link.stream.close("opened with a secret that is no longer valid")
                for inbound in list(self._inbound):
                    if not self._is_valid(inbound.secret_id):
                        inbound.stream.close("opened with a secret that is no longer valid")
                self._reactor.wake()

    def _is_valid(self, secret_id: bytes) -> bool:
        return any(authentication.secret_id(secret) == secret_id for secret in self._secrets.current)

    def _report_refusal(self, source: str, caller: str, reason: str) -> None:
        """Log why a caller is refused, once a minute: a misconfigured one returns twice a second."""
        self.refusals.append(reason)
        self._refusal_log.warning("peer_refused", source=source, peer=caller, error=reason)

    def _accept(self, sock: socket.socket) -> None:
        configure_replication_socket(sock, SILENCE_SECONDS_MAX)
        _Inbound(self, sock)
        if len(self._unidentified_callers) > UNIDENTIFIED_MAX:
            hosts = Counter(each.stream.peer[0] for each in self._unidentified_callers)
            [(most, _)] = hosts.most_common(1)
            oldest = next(each for each in self._unidentified_callers if each.stream.peer[0] == most)
            oldest.stream.close("too many unidentified connections")

    async def _expire_silent_callers(self) -> None:
        while True:
            await sleep_to_step(HANDSHAKE_SECONDS_MAX / 2)
            now = trio.current_time()
            for inbound in list(self._unidentified_callers):
                if now > inbound.accepted_at + HANDSHAKE_SECONDS_MAX:
                    inbound.stream.close("no handshake")

    def _why_not(self, hello: Hello) -> str | None:
        """The reason to refuse this caller; None to admit it, and a guest is then called back."""
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
            if source not in self._guests and len(self._guests) >= MEMBERS_MAX:
                return f"{len(self._guests)} guests with newer configurations are connected already"
            text = hello.addresses[source]
            try:
                parse_address(text)
            except ValueError as error:
                return str(error)
            self._guests[source] = (hello.conf_index, text)
            self._call_members()
        return None


class _Inbound:
    """A connection opened by a peer: a handshake, then its messages.

    ``source`` is None until it is authenticated and admitted; ``secret_id`` identifies the secret that it proved.
    """

    def __init__(self, transport: Transport, sock: socket.socket) -> None:
        self._transport = transport
        self.source: NodeId | None = None
        self.secret_id = b""
        self.incarnation = ""
        self._version = HANDSHAKE_VERSION
        self.accepted_at = self.heard_at = trio.current_time()
        self._keys: Keys | None = None
        self._seal: Seal | None = None
        tls = transport._tls
        self._sock = sock if tls is None else tls.accept(sock, self._on_tls_failed)
        self.stream = StreamSocket(transport._reactor, self._sock, self._on_data, self._on_closed)
        transport._inbound.add(self)
        transport._unidentified_callers[self] = None

    def _on_tls_failed(self, reason: str) -> None:
        host = self.stream.peer[0]
        self._transport._refusal_log.warning(
            "peer_message_invalid", source=host, peer=host, error=f"TLS: {reason.replace('_', ' ').lower()}"
        )

    def _on_data(self, data: memoryview) -> int:
        self.heard_at = trio.current_time()
        try:
            consumed = 0 if self._seal is not None else self._on_call(data)
            if self._seal is not None and not self.stream.closed:
                consumed += self._on_frames(data[consumed:], self._seal)
        except OtherVersion as error:
            self._turn_away(str(error))
            return 0
        except AuthenticationFailed as error:
            self._turn_away(f"authentication failed: {error}")
            return 0
        except (WireError, FrameCorrupt) as error:
            caller = self.source or self.stream.peer
            # With its port, each new connection of an unknown host would count as a new source.
            source = self.source or self.stream.peer[0]
            self._transport._refusal_log.warning("peer_message_invalid", source=source, peer=caller, error=str(error))
            self.stream.close("garbage")
            return 0
        return 0 if self.stream.closed else consumed

    def _on_call(self, data: memoryview) -> int:
        """Answer a caller with a challenge; returns the size of its call."""
        frames, consumed = wire.split_frames(data[:PLAIN_BYTES_MAX])
        if not frames:
            if len(data) > PLAIN_BYTES_MAX:
                raise WireError(f"the caller sent {len(data)} bytes, but no call frame")
            return 0
        if len(frames) > 1:
            raise WireError(f"the caller sent {len(frames)} frames before the challenge")
        call_payload = wire.decode_opening(Kind.CALL, *frames[0])
        nonce = os.urandom(NONCE_BYTES)
        purpose = bound_purpose(PURPOSE, shown_certificate(self._sock))
        answer, keys = authentication.challenge(purpose, call_payload, nonce, self._transport._secrets.current)
        self._keys, self._seal = keys, Seal(keys.caller)
        self.stream.send(wire.encode_opening(Kind.CHALLENGE, answer))
        return consumed

    def _on_frames(self, data: memoryview, seal: Seal) -> int:
        frames, consumed = wire.split_tagged(data, TAG_BYTES, self._version)
        for kind, frame, tag in frames:
            seal.check(tag, *wire.tagged_parts(kind, frame))
            if self.source is not None:
                if kind is not Kind.PING:
                    self._transport._on_frame(self.source, kind, frame[8:])
            else:
                self._greet(wire.decode_cold(kind, frame[8:]))
            if self.stream.closed:
                return 0
        if self.source is None and len(data) - consumed > STRANGER_BYTES_MAX:
            raise WireError(f"the caller sent {len(data)} bytes, but no hello")
        return consumed

    def _turn_away(self, reason: str) -> None:
        """Close a connection that is not authenticated; the caller learns only that, and our format version."""
        if self._seal is None:
            self.stream.send(wire.encode_opening(Kind.CHALLENGE, b""))
            self.stream.flush()
        host = self.stream.peer[0]
        self.stream.close("not authenticated")
        self._transport._report_refusal(host, self.source or host, f"{reason} (called from {host})")

    def _greet(self, hello: object) -> None:
        if not isinstance(hello, Hello):
            raise WireError(f"the caller sent a {type(hello).__name__} before its hello")
        assert self._keys is not None, "a hello without a challenge"
        transport = self._transport
        refusal = transport._why_not(hello)
        answer = transport._admission.welcome(transport._incarnation, refusal, hello.software)
        welcome = wire.encode_cold(answer)
        self.stream.send(welcome + Seal(self._keys.listener).tag(welcome))
        if refusal is None:
            self._version = answer.version
            self.source = NodeId(hello.source)
            self.secret_id = self._keys.secret_id
            self.incarnation = hello.incarnation
            transport._unidentified_callers.pop(self, None)
            return
        self.stream.flush()
        self.stream.close("refused")
        if refusal is not NOT_RECORDED:
            transport._report_refusal(self.stream.peer[0], hello.source, refusal)

    def _on_closed(self, reason: str) -> None:
        self._transport._inbound.discard(self)
        self._transport._unidentified_callers.pop(self, None)


_DIAL_ERRORS = (
    OSError,
    ValueError,  # not a possible host name
    trio.TooSlowError,
    trio.BrokenResourceError,
    WireError,
    AuthenticationFailed,
    PeerRefused,
)


_WAITS: Final = f"refused: {NOT_RECORDED}"
