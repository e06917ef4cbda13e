"""One connection: matching, coalescing, cancellation, loss, and garbage from the other side."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import pytest

from mq.client.errors import BrokerError, ConnectFailed, ConnectionLost, RequestTimeout
from mq.client.net.connection import Connection, ResponseOrLoss, open_connection, split_address
from mq.protocol.frames import split_frames
from mq.protocol.wire.encoding import encode_request, encode_response
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

Peer = Callable[[anyio.abc.SocketStream], Awaitable[None]]


@asynccontextmanager
async def connected(peer: Peer) -> AsyncGenerator[Connection]:
    """A connection to a server whose connections `peer` serves."""

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await peer(stream)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        connection = await open_connection(f"127.0.0.1:{port}")
        tasks.start_soon(connection.run)
        try:
            yield connection
        finally:
            tasks.cancel_scope.cancel()


async def receive_requests(stream: anyio.abc.SocketStream, count: int) -> list[int]:
    """The opaques of the next `count` requests."""
    data, opaques = b"", list[int]()
    while len(opaques) < count:
        data += await stream.receive()
        frames, consumed = split_frames(memoryview(data))
        data = data[consumed:]
        opaques += [json.loads(bytes(header))["opaque"] for _, header, _ in frames]
    return opaques


async def test_answers_find_their_requests_in_any_order() -> None:
    async def answer_backwards(stream: anyio.abc.SocketStream) -> None:
        for opaque in reversed(await receive_requests(stream, 3)):
            await stream.send(encode_response(opaque, 0, ext={"opaque": str(opaque)}, body=b"%d" % opaque))

    async with connected(answer_backwards) as connection:
        answers: dict[int, bytes] = {}

        async def ask(number: int) -> None:
            response, body = await connection.call(105, {"topic": "T"})
            assert response.ext["opaque"] == bytes(body).decode()
            answers[number] = bytes(body)

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(ask, number)
        assert sorted(answers.values()) == [b"0", b"1", b"2"]
        assert connection.in_flight == 0


async def test_requests_queued_together_leave_in_one_write() -> None:
    chunks: list[bytes] = []

    async def collect(stream: anyio.abc.SocketStream) -> None:
        while True:
            chunks.append(await stream.receive())

    async with connected(collect) as connection:
        for _ in range(100):
            connection.request_nowait(105, {"topic": "T"}, b"", lambda answer, body: None)
        await until(lambda: sum(map(len, chunks)) >= 100 * 50)
        assert len(chunks) < 10


@pytest.mark.parametrize("piece", [1, 7, 300])
async def test_answers_arrive_in_any_pieces(piece: int) -> None:
    body = bytes(range(256))

    async def dribble(stream: anyio.abc.SocketStream) -> None:
        opaques = await receive_requests(stream, 2)
        data = b"".join(encode_response(opaque, 0, body=body) for opaque in opaques)
        for start in range(0, len(data), piece):
            await stream.send(data[start : start + piece])

    async with connected(dribble) as connection:
        received: list[bytes] = []
        for _ in range(2):
            connection.request_nowait(105, None, b"", lambda answer, answer_body: received.append(bytes(answer_body)))
        await until(lambda: len(received) == 2)
        assert received == [body, body]


async def test_error_code_is_raised_by_call_and_returned_by_request() -> None:
    async def refuse(stream: anyio.abc.SocketStream) -> None:
        while True:
            for opaque in await receive_requests(stream, 1):
                await stream.send(encode_response(opaque, 17, remark="no route"))

    async with connected(refuse) as connection:
        response, _ = await connection.request(105)
        assert (response.code, response.remark) == (17, "no route")
        with pytest.raises(BrokerError, match="code 17 TOPIC_NOT_EXIST: no route"):
            await connection.call(105)


async def test_late_answer_after_a_timeout_is_ignored() -> None:
    late = anyio.Event()

    async def answer_late(stream: anyio.abc.SocketStream) -> None:
        [first] = await receive_requests(stream, 1)
        await late.wait()
        [second] = await receive_requests(stream, 1)
        await stream.send(encode_response(first, 0) + encode_response(second, 0, body=b"second"))

    async with connected(answer_late) as connection:
        with pytest.raises(RequestTimeout) as timeout:
            await connection.request(105, timeout=0.05)
        assert (timeout.value.stored, connection.in_flight) == ("unknown", 0)
        late.set()
        _, body = await connection.request(105)
        assert bytes(body) == b"second"


async def test_cancelled_request_is_forgotten() -> None:
    async with connected(lambda stream: anyio.sleep_forever()) as connection:
        with anyio.move_on_after(0.02):
            await connection.request(105)
        assert connection.in_flight == 0


async def test_closed_connection_fails_everything_in_flight_as_sent() -> None:
    async def hang_up(stream: anyio.abc.SocketStream) -> None:
        await receive_requests(stream, 2)
        await anyio.aclose_forcefully(stream)

    async with connected(hang_up) as connection:
        lost: list[ResponseOrLoss] = []
        connection.request_nowait(310, None, b"", lambda answer, body: lost.append(answer))
        with pytest.raises(ConnectionLost) as raised:
            await connection.request(310)
        assert raised.value.stored == "unknown"
        assert isinstance(lost[0], ConnectionLost)
        assert lost[0].sent
        with pytest.raises(ConnectionLost) as afterwards:
            await connection.request(310)
        assert (afterwards.value.sent, afterwards.value.stored) == (False, "no")


async def test_unsent_request_is_reported_as_unsent() -> None:
    async with connected(lambda stream: anyio.sleep_forever()) as connection:
        lost: list[ResponseOrLoss] = []
        connection.request_nowait(310, None, b"", lambda answer, body: lost.append(answer))
        connection.close("for the test")  # before the writing task has run
        [answer] = lost
        assert isinstance(answer, ConnectionLost)
        assert not answer.sent


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x00\x0e\x00\x00\x00\x0a{not json}",
    ],
)
async def test_garbage_ends_the_connection(garbage: bytes) -> None:
    async def spoil(stream: anyio.abc.SocketStream) -> None:
        await receive_requests(stream, 1)
        await stream.send(garbage)
        await anyio.sleep_forever()

    async with connected(spoil) as connection:
        with pytest.raises(ConnectionLost, match="unreadable answer"):
            await connection.request(105)


async def test_client_refuses_unknown_server_requests_unless_oneway() -> None:
    answers: list[dict[str, object]] = []

    async def ask(stream: anyio.abc.SocketStream) -> None:
        await stream.send(encode_request(40, 1, ext={"consumerGroup": "g"}, oneway=True))
        await stream.send(encode_request(307, 2, ext={"consumerGroup": "g", "clientId": "c"}))
        frames, _ = split_frames(memoryview(await stream.receive()))
        answers.extend(json.loads(bytes(header)) for _, header, _ in frames)

    async with connected(ask):
        await until(lambda: bool(answers))
    [answer] = answers
    assert (answer["opaque"], answer["code"]) == (2, 3)


async def test_refused_connection_raises_connect_failed() -> None:
    with pytest.raises(ConnectFailed) as failed:
        await open_connection("127.0.0.1:1")
    assert (failed.value.address, failed.value.stored) == ("127.0.0.1:1", "no")
    assert str(failed.value) == "cannot connect to 127.0.0.1:1: Connection refused"


@pytest.mark.parametrize("address", ["localhost", "host:", ":9876", "host:0", "host:65536", "host:port"])
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(address)


def test_addresses_are_split_into_host_and_port() -> None:
    assert split_address("10.0.0.1:9876") == ("10.0.0.1", 9876)
    assert split_address("[::1]:9876") == ("::1", 9876)
