"""Sends requests from a replica to others of its group, at their client addresses."""

from __future__ import annotations

from collections.abc import Callable

from mq.broker.limits import DEFAULT, NetLimits
from mq.broker.net.client_requests import ClientRequests, NoResponse, OnResponse
from mq.broker.replication.peer_authentication import PeerAuthentication
from mq.broker.replication.peer_connection import PeerConnection
from mq.protocol.codes import ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.wire.encoding import encode_request
from raftlog import Reactor

CONNECT_SECONDS_MAX = 1.0


class _Link:
    """The connection to one replica, and frames that wait until it is open and authenticated."""

    __slots__ = ("dialled_at", "upstream", "waiting_bytes", "waiting_frames")

    def __init__(self, upstream: PeerConnection, now: float) -> None:
        self.upstream = upstream
        self.dialled_at = now
        self.waiting_frames: list[bytes] = []
        self.waiting_bytes = 0


class PeerCalls:
    """Sends requests to other replicas, over one connection to each, which is opened by the first request.

    Args:
        clock: monotonic seconds.
    """

    def __init__(
        self,
        reactor: Reactor,
        authentication: PeerAuthentication,
        clock: Callable[[], float],
        limits: NetLimits = DEFAULT.net,
    ) -> None:
        self._waiting_bytes_max = limits.peer_waiting_bytes_max
        self._reactor = reactor
        self._authentication = authentication
        self._clock = clock
        self._links: dict[str, _Link] = {}
        self._questions: ClientRequests[PeerConnection] = ClientRequests(clock, limits.client_requests_max)

    def ask(
        self, address: str, code: int, ext: dict[str, str], body: bytes, seconds: float, on_response: OnResponse
    ) -> None:
        """Send a request. ``on_response`` gets the response, or the failure after at most ``seconds``.

        It may be called immediately. The number of waiting requests is limited here; the caller limits their bytes.
        """
        link = self._links.get(address) or self._dial(address)
        full = link.upstream.waiting_bytes + link.waiting_bytes > self._waiting_bytes_max
        opaque = None if full else self._questions.add(link.upstream, seconds, on_response)
        if opaque is None:
            on_response(NoResponse.BUSY, b"")
            return
        frame = encode_request(code, opaque, ext=ext, body=body)
        if link.upstream.connected:
            link.upstream.send(frame)
        else:
            link.waiting_frames.append(frame)
            link.waiting_bytes += len(frame)

    @property
    def are_open(self) -> bool:
        """Whether `expire` may have something to time out."""
        return len(self._questions) > 0 or any(not link.upstream.connected for link in self._links.values())

    def expire(self) -> None:
        """Time out requests without a response, and connections that do not open; called by a timer."""
        self._questions.expire()
        latest = self._clock() - CONNECT_SECONDS_MAX
        for address, link in list(self._links.items()):
            if not link.upstream.connected and link.dialled_at < latest:
                link.upstream.close()
                self._on_close(address, link, "no answer to a connection attempt")

    def check_invariants(self) -> None:
        """Assert that requests that wait for a connection are counted, and that none waits once it is open."""
        self._questions.check_invariants()
        for address, link in self._links.items():
            nbytes = sum(map(len, link.waiting_frames))
            assert nbytes == link.waiting_bytes, f"{nbytes} bytes wait for {address}, counted {link.waiting_bytes}"
            assert not nbytes or not link.upstream.connected, f"{nbytes} bytes wait for {address}, which is connected"

    def close(self) -> None:
        """Close all connections; requests in flight fail."""
        for address, link in list(self._links.items()):
            link.upstream.close()
            self._on_close(address, link, "closed here")

    def _dial(self, address: str) -> _Link:
        upstream = PeerConnection(
            self._reactor,
            address,
            self._authentication,
            on_connected=lambda: self._on_connect(link),
            on_response=lambda response, body: self._on_response(link, response, body),
            on_closed=lambda reason: self._on_close(address, link, reason),
        )
        link = self._links[address] = _Link(upstream, self._clock())
        upstream.dial()
        return link

    def _on_connect(self, link: _Link) -> None:
        nbytes = sum(map(len, link.waiting_frames))
        assert nbytes == link.waiting_bytes, f"requests of {nbytes} bytes wait, {link.waiting_bytes} are counted"
        frames, link.waiting_frames, link.waiting_bytes = link.waiting_frames, [], 0
        for frame in frames:
            link.upstream.send(frame)

    def _on_response(self, link: _Link, response: Response, body: bytes) -> None:
        self._questions.on_response(link.upstream, response, body)
        if response.code == ResponseCode.NO_PERMISSION:
            # The group's secret or its members changed; the next request authenticates again.
            link.upstream.close()
            self._on_close(link.upstream.address, link, "no longer trusted")

    def _on_close(self, address: str, link: _Link, reason: str) -> None:
        if self._links.get(address) is link:
            del self._links[address]
        link.waiting_frames.clear()
        link.waiting_bytes = 0
        self._questions.connection_closed(link.upstream)
