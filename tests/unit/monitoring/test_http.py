"""The monitoring server over streams in memory and in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager

import h11
import pytest
import trio
import trio.lowlevel
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from trio.testing import MockClock, memory_stream_pair

from mq.monitoring.families import Families, Family, Histogram, Kind
from mq.monitoring.http import (
    CONNECTIONS_MAX,
    KEPT_SECONDS,
    REQUEST_BYTES_MAX,
    REQUEST_SECONDS_MAX,
    SENT_AT_ONCE_BYTES,
    Monitoring,
)

MemoryStream = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]


class Server:
    """A monitoring server of something that counts how often it was asked."""

    def __init__(self, nursery: trio.Nursery, slices: int = 1) -> None:
        self.collected = 0
        self.reason: str | None = None
        self._slices = slices
        self._nursery = nursery
        self.monitoring = Monitoring(self.collect, self.ready)

    def collect(self) -> Generator[None, None, Families]:
        self.collected += 1
        for _ in range(self._slices):
            yield
        return [
            Family("asked", Kind.COUNTER, "How often.", ("who",), [(('a "b"\n\\',), self.collected)]),
            Histogram("took_seconds", "How long.", (), (), (0.1, 1.0), (2, 3, 4), 17.5),
        ]

    async def ready(self) -> str | None:
        await trio.lowlevel.checkpoint()
        return self.reason

    def connect(self) -> MemoryStream:
        client, server = memory_stream_pair()
        self._nursery.start_soon(self.monitoring._serve_connection, server)
        return client

    async def get(self, target: str, *, method: str = "GET", accept: str = "") -> tuple[int, str, bytes]:
        stream = self.connect()
        try:
            return await converse(stream, h11.Connection(h11.CLIENT), target, method=method, accept=accept)
        finally:
            await stream.aclose()


async def converse(
    stream: MemoryStream, connection: h11.Connection, target: str, *, method: str = "GET", accept: str = ""
) -> tuple[int, str, bytes]:
    """One request and its answer: status, content type, body."""
    request = h11.Request(method=method, target=target, headers=[("Host", "x"), ("Accept", accept)])
    await stream.send_all(connection.send(request) or b"")
    await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
    status, content_type, body = 0, "", b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some()))
        elif isinstance(event, h11.Response):
            status, content_type = event.status_code, dict(event.headers)[b"content-type"].decode()
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return status, content_type, body
        else:
            raise AssertionError(event)


@asynccontextmanager
async def serving(slices: int = 1) -> AsyncIterator[Server]:
    async with trio.open_nursery() as nursery:
        yield Server(nursery, slices)
        nursery.cancel_scope.cancel()


async def test_prometheus_parses_the_metrics() -> None:
    async with serving() as server:
        status, content_type, body = await server.get("/metrics?name=x")
    assert status == 200
    assert content_type.startswith("text/plain; version=")
    counter, histogram = parse(body.decode())
    assert [(s.name, s.labels, s.value) for s in counter.samples] == [("asked_total", {"who": 'a "b"\n\\'}, 1.0)]
    assert {(s.name, s.labels.get("le")): s.value for s in histogram.samples} == {
        ("took_seconds_bucket", "0.1"): 2.0,
        ("took_seconds_bucket", "1.0"): 5.0,
        ("took_seconds_bucket", "+Inf"): 9.0,
        ("took_seconds_count", None): 9.0,
        ("took_seconds_sum", None): 17.5,
    }


async def test_metrics_are_sent_as_open_metrics_on_request() -> None:
    async with serving() as server:
        _, content_type, body = await server.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    families = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]
    assert [family.name for family in families] == ["asked", "took_seconds"]


async def test_frequent_scrapes_share_one_collection(mock_clock: MockClock) -> None:
    async with serving() as server:
        for _ in range(50):
            await server.get("/metrics")
            await server.get("/metrics", accept="application/openmetrics-text")
            mock_clock.jump(KEPT_SECONDS / 100)
        assert server.collected == 1
        mock_clock.jump(KEPT_SECONDS)
        await server.get("/metrics")
        assert server.collected == 2


async def test_other_tasks_run_during_a_long_collection(mock_clock: MockClock) -> None:
    """Each slice of this broker takes a millisecond, and a task that waits for a millisecond is not held up."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    def collect() -> Generator[None, None, Families]:
        for _ in range(100):
            mock_clock.jump(0.001)
            yield
        return []

    async def ready() -> None:
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        monitoring = Monitoring(collect, ready)
        mock_clock.rate = 1000
        await monitoring.respond("/metrics", "")
        nursery.cancel_scope.cancel()
    assert turns >= 30


async def test_event_loop_yields_while_an_answer_is_made() -> None:
    entered: list[str] = []

    @contextmanager
    def giving_way() -> Iterator[None]:
        entered.append("begin")
        yield
        entered.append("end")

    def collect() -> Generator[None, None, Families]:
        entered.append("collect")
        yield
        return [Family("long", Kind.GAUGE, "x" * 2 * SENT_AT_ONCE_BYTES, (), [])]

    async def ready() -> None:
        await trio.lowlevel.checkpoint()

    client, server = memory_stream_pair()
    deliver = server.send_stream.send_all_hook
    assert deliver is not None

    async def sent() -> None:
        entered.append("sent")
        await deliver()

    server.send_stream.send_all_hook = sent
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Monitoring(collect, ready, giving_way=giving_way)._serve_connection, server)
        await trio.testing.wait_all_tasks_blocked()
        assert not entered
        _, _, body = await converse(client, h11.Connection(h11.CLIENT), "/metrics")
        await client.aclose()
    assert len(body) > 2 * SENT_AT_ONCE_BYTES
    assert entered == ["begin", "collect", "end", *["sent"] * 4], "the head, and three parts of the body"


async def test_http_server_reports_health_and_readiness() -> None:
    async with serving() as server:
        assert await server.get("/healthz") == (200, "text/plain; charset=utf-8", b"ok\n")
        assert (await server.get("/readyz"))[0] == 200
        server.reason = "no leader has a majority"
        assert await server.get("/readyz") == (503, "text/plain; charset=utf-8", b"no leader has a majority\n")
        assert (await server.get("/healthz"))[0] == 200


async def test_head_has_no_body_and_nothing_is_posted() -> None:
    async with serving() as server:
        assert await server.get("/healthz", method="HEAD") == (200, "text/plain; charset=utf-8", b"")
        assert (await server.get("/metrics", method="POST"))[0] == 405
        assert (await server.get("/etc/passwd"))[0] == 404
        assert server.collected == 0


async def test_one_connection_serves_many_requests() -> None:
    async with serving() as server:
        stream, connection = server.connect(), h11.Connection(h11.CLIENT)
        for _ in range(3):
            assert (await converse(stream, connection, "/healthz"))[0] == 200
            connection.start_next_cycle()


@pytest.mark.parametrize("sent", [b"\x00\x00\x00\xff\x00\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x" * 70_000])
async def test_bytes_that_are_not_http_end_only_their_connection(sent: bytes) -> None:
    assert len(sent) < 100 or len(sent) > REQUEST_BYTES_MAX
    async with serving() as server:
        stream = server.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, sent)
            answer = b""
            while data := await stream.receive_some():
                answer += data
            assert answer.startswith(b"HTTP/1.1 400 ")  # so that a client of another protocol learns what this port is
            nursery.cancel_scope.cancel()
        assert (await server.get("/healthz"))[0] == 200


async def test_silent_client_is_disconnected(autojump_clock: MockClock) -> None:
    async with serving() as server:
        stream = server.connect()
        await stream.send_all(b"GET /metrics HTTP/1.1\r\n")
        before = trio.current_time()
        assert await stream.receive_some() == b""
        assert trio.current_time() - before == pytest.approx(REQUEST_SECONDS_MAX, abs=0.1)


async def test_connections_are_bounded() -> None:
    async with serving() as server:
        streams = [server.connect() for _ in range(CONNECTIONS_MAX)]
        await trio.testing.wait_all_tasks_blocked()
        assert await server.connect().receive_some() == b""
        await streams.pop().aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert (await server.get("/healthz"))[0] == 200
