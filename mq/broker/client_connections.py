"""Tracks all client connections, limits their number and memory, and closes idle and stalled ones."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import Environment
from mq.broker.net.client_requests import ClientRequests
from mq.broker.net.connection import ClientConnection
from mq.broker.net.flow_control import UnreadReplies
from mq.broker.net.request_table import RequestTable
from mq.broker.settings import BrokerSettings
from mq.protocol.incoming.partial_requests import PartialRequests
from raftlog import SniffingSocket, TlsSocket, Unsent


class ClientConnections:
    """Tracks all client connections. Iterates over them in order of arrival, so that simulations are deterministic.

    Args:
        environment: of the process.
        client_requests_max: of requests of the broker that clients have not answered yet.
        on_closed: called with each connection that has been closed.

    Attributes:
        unsent: counts the bytes of replies that the kernel has not taken.
        unsent_bytes_max: above that, call `drop_slow_readers`.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        environment: Environment,
        *,
        client_requests_max: int,
        on_closed: Callable[[ClientConnection], None],
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._on_closed = on_closed
        self._clock = environment.clock
        self._limited_log = RateLimitedLog(environment.log, environment.wall_clock_ms)
        self._open: dict[ClientConnection, None] = {}
        self._drops = 0
        self._refusals = 0
        self._tls_failures = 0
        self.unsent = Unsent()
        self.unsent_bytes_max = settings.unread_replies_bytes_max
        self._partial_requests: PartialRequests[ClientConnection] = PartialRequests(
            bytes_max=settings.partial_request_bytes_max,
            seconds_max=settings.partial_request_seconds_max,
            on_closed=self._log_stalled,
        )
        self._unread: UnreadReplies[ClientConnection] = UnreadReplies(
            bytes_max=self.unsent_bytes_max,
            unsent=lambda: self.unsent.nbytes,
            connections=lambda: self._open,
            on_dropped=self._log_too_slow,
        )
        self._client_requests: ClientRequests[ClientConnection] = ClientRequests(environment.clock, client_requests_max)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(self._open)

    def accept(self, sock: socket.socket, requests: RequestTable) -> None:
        """Serve a new connection with ``requests``, or close it if there are too many."""
        if len(self._open) >= self._settings.connections_max:
            self._refuse(sock, "too_many_connections", self._settings.connections_max)
            return
        # The system assigns the lowest free number, so a high one shows how many descriptors are in use overall.
        limits = self._environment.descriptors
        if len(self._open) >= limits.clients_max or sock.fileno() >= limits.number_max:
            self._refuse(sock, "too_many_descriptors", limits.clients_max)
            return
        connection = ClientConnection(
            reactor=self._environment.reactor,
            sock=self._secure(sock),
            requests=requests,
            questions=self._client_requests,
            on_closed=self._on_close,
            partial_requests=self._partial_requests,
            unread=self._unread,
            unsent=self.unsent,
            output_bytes_max=self._settings.client_unread_replies_bytes_max,
            access=self._environment.access,
            log=self._environment.log,
        )
        assert connection not in self._open, f"{connection.peer} was accepted twice"
        self._open[connection] = None

    def _secure(self, sock: socket.socket) -> socket.socket | TlsSocket | SniffingSocket:
        """Wrap a socket for TLS as the settings require."""
        certificate = self._environment.certificate
        if certificate is None or self._settings.tls_mode == "disabled":
            return sock
        context, der = certificate.for_clients()
        kind = TlsSocket if self._settings.tls_mode == "enforcing" else SniffingSocket
        return kind(sock, context, self._log_tls_failure, certificate=der)

    def _log_tls_failure(self, reason: str) -> None:
        self._tls_failures += 1
        self._limited_log.warning("tls_failed", reason=reason.replace("_", " ").lower(), failures=self._tls_failures)

    def _refuse(self, sock: socket.socket, event: str, limit: int) -> None:
        sock.close()
        self._refusals += 1
        self._limited_log.warning(event, limit=limit, connections=len(self._open), refused=self._refusals)

    def _log_stalled(self, connection: ClientConnection, reason: str) -> None:
        self._drops += 1
        self._limited_log.warning("unfinished_requests", client=connection.peer, reason=reason, dropped=self._drops)

    def _log_too_slow(self, connection: ClientConnection) -> None:
        self._drops += 1
        self._limited_log.warning(
            "clients_too_slow",
            client=connection.peer,
            waiting_bytes=connection.waiting_bytes,
            all_waiting_bytes=self.unsent.nbytes,
            dropped=self._drops,
        )

    def _on_close(self, connection: ClientConnection) -> None:
        self._open.pop(connection, None)
        self._on_closed(connection)

    @property
    def open_requests(self) -> int:
        """The number of requests of the broker to which clients have not responded yet."""
        return len(self._client_requests)

    def expire_requests(self) -> None:
        """Time out requests of the broker to which clients have not responded."""
        self._client_requests.expire()

    @property
    def kept_waiting(self) -> int:
        """The number of clients that are paused until they have read responses."""
        return self._unread.kept_waiting

    def resume_readers(self) -> None:
        """Resume clients that have read their responses. Call it several times a second."""
        self._unread.resume_readers()

    def drop_slow_readers(self) -> None:
        """Drop the clients with the most unread responses. Called if those of all clients exceed the limit."""
        assert self.unsent.nbytes > self.unsent_bytes_max, f"{self.unsent.nbytes} bytes of replies are unsent"
        self._unread.drop_some()

    def close_stalled(self) -> None:
        """Close connections whose requests stay incomplete for too long; see `PartialRequests`."""
        self._partial_requests.close_stalled(self._clock())

    def close_idle(self) -> None:
        """Close connections that were silent since the last call, except those of replicas.

        One that holds a pull, or held one at the last call, is not silent: its client has just got the answer.
        """
        for connection in list(self._open):
            if not connection.heard and not connection.held_pulls and not connection.trusted:
                connection.close("idle")
            connection.heard = connection.held_pulls > 0

    def close_all(self) -> None:
        """Close every connection."""
        for connection in list(self._open):
            connection.close("broker stops")

    def has_unsent_replies(self) -> bool:
        """Return whether responses to any client wait to be sent."""
        return any(connection.waiting_bytes for connection in self._open)

    def check_invariants(self) -> None:
        """Assert the invariants that hold between two turns, for tests: slow."""
        self._client_requests.check_invariants()
        self._unread.check_invariants()
        peers = [connection.peer for connection in self._open if connection.closed]
        assert not peers, f"{len(peers)} of {len(self._open)} connections are closed, such as {peers[0]}"
        count, count_max = len(self._open), self._settings.connections_max
        assert count <= count_max, f"{count} connections; maximum: {count_max}"

    def counters(self) -> dict[str, int]:
        """Return counters for metrics and runtime information."""
        return {
            "connections": len(self._open),
            "connections_refused": self._refusals,
            "connections_dropped": self._drops,
            "tls_failures": self._tls_failures,
            "unfinished_bytes": self._partial_requests.nbytes,
            "unfinished_waiting": self._partial_requests.waiting_count,
            "unread_bytes": self.unsent.nbytes,
            "unread_waiting": self._unread.kept_waiting,
        }
