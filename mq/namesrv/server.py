"""The trio shell of a name server: listens, splits frames, calls `Handlers`, and enforces timeouts."""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Hashable
from functools import partial

import structlog
import trio

from mq.accounts import AccountsFile
from mq.certificate import Certificate
from mq.monitoring.families import Kind
from mq.monitoring.http import Monitoring, open_metrics_listeners
from mq.namesrv.handlers import Handlers
from mq.namesrv.kv_config import KvConfig
from mq.namesrv.kv_file import KvFile
from mq.namesrv.metrics import collect
from mq.namesrv.route_table import RouteTable, TableLimits
from mq.namesrv.running_config import RunningConfig
from mq.namesrv.settings import NamesrvSettings
from mq.namesrv.unidentified import UnidentifiedConnections
from mq.protocol.access.address_patterns import is_loopback
from mq.protocol.errors import FrameError
from mq.protocol.frames import split_frames
from mq.protocol.incoming.partial_requests import SMALL_BYTES, PartialRequests
from mq.tls_or_plain import Stream, TlsFailed, secure

RECEIVE_BYTES = 64 * 1024
REPLY_BYTES = 1024 * 1024
_LENGTH_BYTES = 4
_SLICE_SECONDS = 0.005
"""Maximum time to serve one peer's requests before others get their turn."""
_LOOK_SECONDS = 1.0
_OWN_DESCRIPTORS = 64
"""Descriptors for the key-value configuration, whose file must not depend on the number of peers."""
_LOG_EVERY_SECONDS = 60.0

Log = structlog.stdlib.BoundLogger


async def serve(
    settings: NamesrvSettings,
    *,
    listener: trio.abc.Listener[trio.SocketStream] | None = None,
    log: Log | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a name server until cancelled. ``task_status`` gets the address it listens on.

    With ``listener`` the name server uses that, and does not change the limits of the process.

    Raises:
        OSError: it cannot listen there, or cannot read the key-value configuration.
        AclFileInvalid: the file with the accounts is invalid.
        KvFileDamaged: the key-value configuration is damaged.
        CertificateUnusable: the settings require TLS, but there is no certificate.
    """
    log = log or structlog.get_logger("namesrv")
    table = RouteTable(
        expiry_seconds=settings.broker_expiry_seconds,
        limits=TableLimits(
            broker_groups_max=settings.broker_groups_max,
            brokers_max=settings.brokers_max,
            routes_max=settings.routes_max,
            topics_max=settings.topics_max,
        ),
    )
    kv = KvConfig(entries_max=settings.kv_entries_max, bytes_max=settings.kv_bytes_max)
    kv_file = KvFile(kv, settings.data_dir)
    if (fault := kv_file.load()) is not None:
        log.error("kv_config_from_backup", error=fault)
    accounts = None if settings.acl_file is None else AccountsFile(settings.acl_file, log)
    handlers = Handlers(
        table,
        kv,
        RunningConfig(settings),
        clock=trio.current_time,
        log=log,
        accounts=None if accounts is None else (lambda: accounts.accounts),
    )
    certificate: Certificate | None = None
    if settings.tls_mode != "disabled" and settings.tls_certificate is not None and settings.tls_key is not None:
        files = settings.tls_certificate, settings.tls_key, settings.tls_clients_ca
        certificate = Certificate(*files, log, lambda: time.time_ns() // 1_000_000)
    connections_max = settings.connections_max if listener is not None else _connections_max(settings.connections_max)
    server = _NameServer(settings, handlers, kv, kv_file, certificate, accounts, log, connections_max)
    handlers.close_connection = server.close_connection
    host, port = settings.listen_host, settings.listen_port
    listeners: list[trio.abc.Listener[trio.SocketStream]]
    if listener is None:
        tcp_listeners = await trio.open_tcp_listeners(port, host=host)
        host, port = tcp_listeners[0].socket.getsockname()[:2]
        listeners = [*tcp_listeners]
    else:
        listeners = [listener]
    log.info("listening", host=host, port=port)
    if accounts is None and not is_loopback(host):
        reason = "everybody who reaches this address may register brokers: see acl_file"
        log.warning("brokers_not_authenticated", listen=f"{host}:{port}", reason=reason)
    try:
        monitoring_listeners = await open_metrics_listeners(
            settings.metrics_address, log, is_required=settings.metrics_listen is not None
        )
        async with trio.open_nursery() as nursery:
            if monitoring_listeners:
                monitoring = Monitoring(
                    lambda: collect(table, server.counters, None if certificate is None else certificate.valid_until),
                    _check_ready,
                )
                nursery.start_soon(monitoring.serve, monitoring_listeners)
            nursery.start_soon(_expire_forever, handlers, settings.scan_seconds)
            nursery.start_soon(server.check_forever)
            await nursery.start(partial(trio.serve_listeners, server.serve_connection, listeners))
            task_status.started((host, port))
    finally:
        log.info("stopped", host=host, port=port)


async def _check_ready() -> None:
    """Return None, since a running name server is always ready."""
    await trio.lowlevel.checkpoint()


async def _expire_forever(handlers: Handlers, scan_seconds: float) -> None:
    while True:
        await trio.sleep(scan_seconds)
        handlers.expire()


def _connections_max(limit: int) -> int:
    """Raise the limit of open files to the maximum; returns how many of them may be connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return limit if hard == resource.RLIM_INFINITY else min(limit, max(1, hard - _OWN_DESCRIPTORS))


class _PeerConnection:
    """A connection, the received part of its next request, and whether there is room for the rest.

    ``answering_bytes``: size of the requests being answered; they stay in memory until their answers are read.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.buffer = bytearray()
        self.unfinished = False
        self.answering_bytes = 0
        self.room = trio.Event()
        self.room.set()
        self.scope = trio.CancelScope()

    @property
    def unfinished_bytes(self) -> int:
        return len(self.buffer)

    def on_admit(self) -> None:
        self.room.set()

    def close(self, reason: str) -> None:
        self.scope.cancel()


class _NameServer:
    def __init__(
        self,
        settings: NamesrvSettings,
        handlers: Handlers,
        kv: KvConfig,
        kv_file: KvFile,
        certificate: Certificate | None,
        accounts: AccountsFile | None,
        log: Log,
        connections_max: int,
    ) -> None:
        self._settings = settings
        self._certificate = certificate
        self._accounts = accounts
        self._handlers = handlers
        self._kv = kv
        self._kv_file = kv_file
        self._log = log
        self._numbers = itertools.count(1)
        self._connections = 0
        self._connections_max = connections_max
        self._refusals = 0
        self._log_again_at = 0.0
        self._partial_requests: PartialRequests[_PeerConnection] = PartialRequests(
            bytes_max=settings.partial_request_bytes_max,
            seconds_max=settings.partial_request_seconds_max,
            on_closed=lambda peer, reason: log.warning("unfinished_request", peer=peer.name, reason=reason),
        )
        self._unidentified: UnidentifiedConnections[_PeerConnection] = UnidentifiedConnections(
            settings.unidentified_connections_max, settings.unidentified_seconds_max
        )
        self._peers: dict[str, _PeerConnection] = {}
        self._sends: dict[_PeerConnection, int] = {}
        self._sending_bytes = 0
        self._dropped_bytes = 0
        self._gave_back = trio.Event()
        """Set, and replaced, whenever a dropped peer is done."""

    def counters(self) -> dict[str, tuple[Kind, str, int]]:
        """Metrics of the connections, by name."""
        return {
            "connections": (Kind.GAUGE, "Open connections.", self._connections),
            "connections_refused": (
                Kind.COUNTER,
                "Connections closed at once: there were too many.",
                self._refusals,
            ),
            "requests_incomplete_bytes": (
                Kind.GAUGE,
                "Requests that have not arrived whole.",
                self._partial_requests.nbytes,
            ),
            "replies_unread_bytes": (Kind.GAUGE, "Answers that peers have not read yet.", self._sending_bytes),
        }

    async def check_forever(self) -> None:
        """Drop peers whose requests stay incomplete, and read files again that have changed."""
        while True:
            await trio.sleep(_LOOK_SECONDS)
            self._partial_requests.close_stalled(trio.current_time())
            if self._certificate is not None:
                self._certificate.refresh()
            if self._accounts is not None:
                self._accounts.refresh()

    async def serve_connection(self, stream: trio.SocketStream) -> None:
        """Serve one connection until it ends. An error ends only this connection."""
        try:
            address, port = stream.socket.getpeername()[:2] or ("unix", 0)
        except OSError:
            await trio.aclose_forcefully(stream)  # closed already
            return
        # The number distinguishes a connection from an earlier one of the same peer and port.
        connection = f"{address}:{port}#{next(self._numbers)}"
        if self._connections >= self._connections_max and not self._make_room(address):
            self._refuse(connection)
            await trio.aclose_forcefully(stream)
            return
        self._connections += 1
        peer = self._peers[connection] = _PeerConnection(connection)
        now = trio.current_time()
        self._unidentified.add(peer, address, now)
        while (oldest := self._unidentified.overdue(now)) is not None:
            self._close_stranger(oldest)
        try:
            with peer.scope:
                await self._serve(await self._secure(stream, peer), peer)
        except FrameError as error:
            self._log.warning("bad_frame", peer=connection, error=error.reason)
        except TlsFailed as error:
            self._log.warning("tls_failed", peer=connection, reason=str(error))
        except trio.BrokenResourceError as error:
            self._log.debug("connection_broken", peer=connection, error=str(error))
        except OSError as error:
            # A change may be lost after a restart, so it must not be confirmed.
            self._log.error("kv_config_not_saved", peer=connection, error=str(error))
        except Exception:
            # No input of a peer may end the process, not even through a bug of ours.
            self._log.exception("connection_failed", peer=connection)
        finally:
            self._connections -= 1
            self._unidentified.discard(peer)
            del self._peers[connection]
            self._partial_requests.on_frame_end(peer)
            self._handlers.connection_closed(connection)
            await trio.aclose_forcefully(stream)

    async def _secure(self, stream: trio.SocketStream, peer: _PeerConnection) -> Stream:
        """The stream, wrapped for TLS as the settings require. Raises TlsFailed."""
        await trio.lowlevel.checkpoint()
        if self._certificate is None:
            return stream
        with trio.move_on_after(self._settings.idle_seconds_max) as scope:
            return await secure(stream, self._certificate.context, must=self._settings.tls_mode == "enforcing")
        assert scope.cancelled_caught, "no stream came, and nothing was cancelled"
        raise TlsFailed("the client sent no TLS handshake in time")

    def _make_room(self, address: str) -> bool:
        """Close a connection without a complete request, of an address that has many such connections."""
        peer = self._unidentified.in_favour_of(address)
        if peer is not None:
            self._close_stranger(peer)
        return peer is not None

    def _close_stranger(self, peer: _PeerConnection) -> None:
        self._unidentified.discard(peer)
        self._log.info("connection_silent", peer=peer.name, unfinished_bytes=peer.unfinished_bytes)
        peer.close("too many unidentified connections")

    def close_connection(self, connection: Hashable) -> None:
        """Close the connection of a broker that another one has unregistered: if it lives, it registers again."""
        if (peer := self._peers.get(str(connection))) is not None:
            peer.close("unregistered by another connection")

    def _refuse(self, connection: str) -> None:
        self._refusals += 1
        if (now := trio.current_time()) >= self._log_again_at:
            self._log_again_at = now + _LOG_EVERY_SECONDS
            self._log.warning(
                "connection_refused", peer=connection, connections=self._connections, refused=self._refusals
            )

    async def _serve(self, stream: Stream, peer: _PeerConnection) -> None:
        settings = self._settings
        buffer = peer.buffer
        deadline = trio.current_time() + settings.idle_seconds_max
        while True:
            with trio.move_on_at(deadline) as scope:
                await peer.room.wait()
                chunk = await stream.receive_some(RECEIVE_BYTES)
            if scope.cancelled_caught:
                self._log.info("connection_silent", peer=peer.name, unfinished_bytes=len(buffer))
                return
            if not chunk:
                return
            buffer += chunk
            # A large request comes in many chunks; it is copied once, when it is complete.
            if _may_be_complete(buffer, settings.frame_bytes_max):
                frames, nbytes = split_frames(memoryview(bytes(buffer)), frame_bytes_max=settings.frame_bytes_max)
                del buffer[:nbytes]
                peer.answering_bytes = nbytes
                peer.unfinished = False
                self._partial_requests.on_frame_end(peer)
                self._unidentified.discard(peer)
                await self._answer(stream, peer, frames)
                # Only a complete request extends the deadline: single bytes do not keep a connection open.
                deadline = trio.current_time() + settings.idle_seconds_max
            if len(buffer) >= _LENGTH_BYTES and not peer.unfinished:
                self._begin(peer, _LENGTH_BYTES + int.from_bytes(buffer[:_LENGTH_BYTES], "big"))

    def _begin(self, peer: _PeerConnection, nbytes: int) -> None:
        """Reserve room for a large request that begins to arrive; without room, the rest is not read."""
        if nbytes > SMALL_BYTES:
            peer.unfinished = True
            if not self._partial_requests.begin(peer, nbytes):
                peer.room = trio.Event()

    async def _answer(
        self, stream: Stream, peer: _PeerConnection, frames: list[tuple[int, memoryview, memoryview]]
    ) -> None:
        """Send the replies to all frames of a chunk at once, or in several pieces if they are large or slow."""
        await self._dropped_are_gone()
        kv_version = self._kv.version
        replies = bytearray()
        since = trio.current_time()
        for at, (serialization, header, body) in enumerate(frames, 1):
            replies += self._handlers.handle(serialization, header, body, peer.name)
            if at < len(frames) and len(replies) < REPLY_BYTES and trio.current_time() - since < _SLICE_SECONDS:
                continue
            if self._kv.version != kv_version:
                await self._kv_file.save()
                kv_version = self._kv.version
            await self._send(stream, peer, replies)
            replies = bytearray()
            await self._dropped_are_gone()
            since = trio.current_time()

    async def _dropped_are_gone(self) -> None:
        """Wait until dropped peers have freed enough memory for more answers."""
        await trio.lowlevel.checkpoint()
        while self._dropped_bytes > self._settings.unread_replies_bytes_max:
            await self._gave_back.wait()

    async def _send(self, stream: Stream, peer: _PeerConnection, replies: bytearray) -> None:
        nbytes = len(replies) + peer.answering_bytes
        self._sends[peer] = nbytes
        self._sending_bytes += nbytes
        try:
            self._drop_some(peer)
            with trio.move_on_after(self._settings.send_seconds_max) as scope:
                await stream.send_all(replies)
        finally:
            if self._sends.pop(peer, None) is None:
                self._dropped_bytes -= nbytes
                self._gave_back.set()
                self._gave_back = trio.Event()
            else:
                self._sending_bytes -= nbytes
        if scope.cancelled_caught:
            self._log.warning("peer_does_not_read", peer=peer.name, waiting_bytes=nbytes)
            peer.close("does not read")
            await trio.lowlevel.checkpoint()

    def _drop_some(self, latest: _PeerConnection) -> None:
        """While too many bytes are unread, drop the peer that has not read for the longest time."""
        while self._sending_bytes > self._settings.unread_replies_bytes_max:
            oldest = next(iter(self._sends))
            if oldest is latest:
                return
            nbytes = self._sends.pop(oldest)
            self._sending_bytes -= nbytes
            self._dropped_bytes += nbytes
            self._log.warning("peer_does_not_read", peer=oldest.name, waiting_bytes=nbytes)
            oldest.close("does not read")


def _may_be_complete(buffer: bytearray, frame_bytes_max: int) -> bool:
    if len(buffer) < 4:
        return False
    # Checks the lengths now, before the rest has arrived.
    split_frames(memoryview(bytes(buffer[:8])), frame_bytes_max=frame_bytes_max)
    return len(buffer) >= 4 + int.from_bytes(buffer[:4], "big")
