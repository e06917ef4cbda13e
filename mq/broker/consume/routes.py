"""Looks up a topic's queues in all broker groups at name servers, and caches them."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from mq.broker.base.name_server_stream import Stream, open_stream, receive_response
from mq.broker.base.rate_limited_log import Log
from mq.protocol.codes import PERM_READ, RequestCode, ResponseCode
from mq.protocol.errors import ProtocolError
from mq.protocol.requests.namesrv import Route, RouteExt
from mq.protocol.wire.encoding import encode_request
from mq.protocol.wire.queue_tables import QueueRef
from raftlog import format_address

FRESH_SECONDS = 5.0
ANSWER_SECONDS_MAX = 3.0
REMEMBERED_MAX = 10_000
"""Cached topics; above it the oldest are evicted."""
WAITING_MAX = 10_000
QUEUES_MAX = 100_000
"""Queues of one topic; a larger route is rejected."""


Address = tuple[str, int]
Queues = tuple[QueueRef, ...]
OnQueues = Callable[[Queues | None], None]


class _CachedRoute(NamedTuple):
    queues: Queues | None
    since: float


class Routes:
    """Looks up the queues of topics at name servers.

    Args:
        namesrv: may be empty; then only this broker's own queues are known.
        own: the queues of a topic in this broker group, None if it does not exist here.
        wake: makes the reactor send pending answers.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        namesrv: list[Address],
        own: Callable[[str], Queues | None],
        wake: Callable[[], None],
        clock: Callable[[], float],
        tls: ssl.SSLContext | None = None,
        log: Log,
    ) -> None:
        self._tls = tls
        self._namesrv = namesrv
        self._own = own
        self._wake = wake
        self._clock = clock
        self._log = log
        self._cache: dict[str, _CachedRoute] = {}
        self._waiters: dict[str, list[OnQueues]] = {}
        self._waiting_count = 0
        self._ask_event = trio.Event()

    def find(self, topic: str, on_queues: OnQueues) -> None:
        """Call ``on_queues`` with the sorted readable queues of a topic; with None if the topic does not exist.

        At once if they are cached, else later. If no name server answers, with the last known queues.
        """
        if not self._namesrv:
            on_queues(self._own(topic))
            return
        entry = self._cache.get(topic)
        if entry is not None and self._clock() < entry.since + FRESH_SECONDS:
            on_queues(entry.queues)
        elif self._waiting_count >= WAITING_MAX:
            on_queues(None if entry is None else entry.queues)
        else:
            self._waiters.setdefault(topic, []).append(on_queues)
            self._waiting_count += 1
            assert self._waiting_count <= WAITING_MAX, f"{self._waiting_count} requests wait for routes"
            self._ask_event.set()

    async def run(self) -> None:
        """Query name servers, until cancelled."""
        while True:
            await self._ask_event.wait()
            self._ask_event = trio.Event()
            # Topics requested in the meantime are queried in the next round.
            topics = list(self._waiters)
            for address in self._namesrv:
                if not any(topic in self._waiters for topic in topics):
                    break
                try:
                    with trio.fail_after(ANSWER_SECONDS_MAX):
                        stream = await open_stream(address, self._tls)
                    async with stream:
                        await self._ask_all(stream, [topic for topic in topics if topic in self._waiters])
                except (OSError, trio.BrokenResourceError, trio.TooSlowError, ProtocolError) as error:
                    self._log.warning("no_route", namesrv=format_address(address), error=str(error))
            for topic in topics:
                entry = self._cache.get(topic)
                self._tell_waiters(topic, None if entry is None else entry.queues)
            self._wake()

    def check_invariants(self) -> None:
        """Assert that waiting requests are counted right and that the cache is within its limit, for tests."""
        count = sum(map(len, self._waiters.values()))
        assert count == self._waiting_count, f"{count} requests wait for routes, counted {self._waiting_count}"
        assert len(self._cache) <= REMEMBERED_MAX, f"{len(self._cache)} topics are cached; maximum: {REMEMBERED_MAX}"

    async def _ask_all(  # noqa: ASYNC910 - asks for one topic at least
        self, stream: Stream, topics: Sequence[str]
    ) -> None:
        for opaque, topic in enumerate(topics, 1):
            ext = RouteExt(topic=topic, accept_standard_json_only=True)
            request = encode_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque, ext=ext.fields())
            with trio.fail_after(ANSWER_SECONDS_MAX):
                await stream.send_all(request)
                queues = await _receive(stream, topic, opaque)
            self._cache.pop(topic, None)
            if len(self._cache) >= REMEMBERED_MAX:
                del self._cache[next(iter(self._cache))]
            self._cache[topic] = _CachedRoute(queues, self._clock())
            self._tell_waiters(topic, queues)
            self._wake()

    def _tell_waiters(self, topic: str, queues: Queues | None) -> None:
        waiters = self._waiters.pop(topic, [])
        self._waiting_count -= len(waiters)
        assert self._waiting_count >= 0, f"{self._waiting_count} requests wait for routes"
        for on_queues in waiters:
            on_queues(queues)


async def _receive(stream: Stream, topic: str, opaque: int) -> Queues | None:
    """Receive the response to the request in flight. Raises ProtocolError, OSError, trio.BrokenResourceError."""
    response, body = await receive_response(stream, opaque)
    if response.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if response.code != ResponseCode.SUCCESS:
        raise OSError(f"the name server answered code {response.code}: {response.remark}")
    return readable_queues(topic, Route.decode(body))


def readable_queues(topic: str, route: Route) -> Queues | None:
    """Return all readable queues of a route, sorted; None if there are too many."""
    counts = {data.broker_name: max(data.read_queue_nums, 0) for data in route.queue_datas if data.perm & PERM_READ}
    if sum(counts.values()) > QUEUES_MAX:
        return None
    return tuple(QueueRef(topic, name, number) for name in sorted(counts) for number in range(counts[name]))
