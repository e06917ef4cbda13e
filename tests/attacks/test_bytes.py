"""Bytes that no client sends, on all three ports, by somebody without credentials."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator

import pytest
import trio

from mq.protocol.codes import RequestCode
from mq.protocol.frames import BINARY, FRAME_BYTES_MAX, JSON, encode_frame
from mq.protocol.wire.encoding import encode_request
from raftlog.net import frames as replication
from raftlog.net.frames import Kind
from raftlog.net.versions import HANDSHAKE_VERSION
from tests.attacks.target import HOST, MIB, PRODUCER, Target, connected
from tests.support.running_broker import send_ext

pytestmark = pytest.mark.process

PORTS = ("clients", "replication", "namesrv")
DRIPPERS = 150


def garbage(rng: random.Random) -> Iterator[bytes]:
    """Random bytes, and good frames that were cut, damaged or continued with something else."""
    good = [
        encode_request(RequestCode.SEND_MESSAGE_V2, 1, ext={name: str(value) for name, value in send_ext().items()}),
        encode_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, 2, ext={"topic": "T"}, serialization=BINARY),
        replication.encode_opening(Kind.CALL, rng.randbytes(40)),
        bytes.fromhex("16030100c8010000c40303") + rng.randbytes(194),  # the first bytes of TLS
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    for frame in good:
        yield frame + rng.randbytes(50)
        yield frame[: rng.randrange(1, len(frame))]
        for _ in range(4):
            at = rng.randrange(len(frame))
            yield frame[:at] + bytes([frame[at] ^ (1 << rng.randrange(8))]) + frame[at + 1 :]
    for _ in range(20):
        yield rng.randbytes(rng.choice((1, 4, 8, 100, 5000, 70_000)))


def lengths(rng: random.Random) -> Iterator[bytes]:
    """Frames that claim another length than they have."""
    for length in (0, 3, 4, -1, -(2**31), 2**31 - 1, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, 2**24):
        for header in (0, 2**24 - 1, 2**31 - 1, rng.randrange(2**32)):
            yield struct.pack(">iI", length, header) + rng.randbytes(64)
    for length in (0, 7, 8, 2**32 - 1, replication.FRAME_BYTES_MAX + 1):
        for kind in Kind:
            yield struct.pack(">IBBHI", length, kind, HANDSHAKE_VERSION, 0, 0) + rng.randbytes(64)


def headers(rng: random.Random) -> Iterator[bytes]:
    """Headers that are expensive for whoever reads them carelessly."""
    fields = b",".join(b'"f%d":"x"' % number for number in range(10_000))
    for text in (
        b"[" * 60_000,
        b'{"a":' * 12_000,
        b'{"code":310,"opaque":1,"extFields":{' + fields + b"}}",
        b'{"code":310,"opaque":1,"extFields":{"e":' + b"9" * 60_000 + b"}}",
        b'{"code":' + b"1" * 60_000 + b',"opaque":1}',
        b'{"code":310,"opaque":1e999999,"flag":-0}',
        b'{"code":310,"opaque":1,"remark":"' + b"\\u0000" * 10_000 + b'"}',
        b'{"code":310,"opaque":1,"extFields":{"AccessKey":"' + b"x" * 60_000 + b'","Signature":"x"}}',
        b'{"code":310,"opaque":1,"extFields":{"AccessKey":"producer\\r\\n\\u001b[2J","Signature":"\\ud800"}}',
    ):
        yield encode_frame(JSON, text)
        yield encode_frame(BINARY, text)


ATTACKS: dict[str, Callable[[random.Random], Iterator[bytes]]] = {
    "garbage": garbage,
    "lengths": lengths,
    "headers": headers,
}


async def send_and_read(port: int, data: bytes) -> bytes:
    """What comes back until the server hangs up, or has said nothing more for a moment."""
    answer = bytearray()
    async with await trio.open_tcp_stream(HOST, port) as stream:
        try:
            await stream.send_all(data)
            await stream.send_eof()
            while chunk := await stream.receive_some():
                answer += chunk
        except trio.BrokenResourceError:
            pass
    return bytes(answer)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("port", PORTS)
async def test_random_bytes_change_no_state(target: Target, port: str, attack: str) -> None:
    for data in ATTACKS[attack](random.Random(attack)):
        with trio.fail_after(60):
            answer = await send_and_read(getattr(target, port), data)
        assert len(answer) < 70_000, data[:100]
        if port == "replication":
            assert b"n0" not in answer, "who this is, is told to those only who have the secret"


@pytest.mark.parametrize("port", PORTS)
async def test_endless_requests_use_bounded_memory_and_do_not_delay_clients(target: Target, port: str) -> None:
    """Many connections, each with the beginning of a large request, and then a byte now and then."""
    begun = struct.pack(">iI", FRAME_BYTES_MAX - 4, 100) + bytes(MIB // 2)
    if port == "replication":
        begun = struct.pack(">IBBHI", 40, Kind.CALL, HANDSHAKE_VERSION, 0, 0)

    async def drip(started: trio.Event) -> None:
        try:
            async with await trio.open_tcp_stream(HOST, getattr(target, port)) as stream:
                with trio.move_on_after(1):  # the server stops reading when it has no room
                    await stream.send_all(begun)
                started.set()
                while True:
                    await stream.send_all(b"\0")
                    await trio.sleep(0.1)
        except (OSError, trio.BrokenResourceError):
            pass  # hung up on
        finally:
            started.set()

    async with trio.open_nursery() as nursery:
        events = [trio.Event() for _ in range(DRIPPERS)]
        for event in events:
            nursery.start_soon(drip, event)
        with trio.fail_after(60):
            for event in events:
                await event.wait()
            for _ in range(10):
                await target.serve_somebody()
        nursery.cancel_scope.cancel()


async def test_unread_answers_take_bounded_memory(target: Target) -> None:
    """Requests that cannot be read, with headers as large as they may be, make answers as well."""
    refused = encode_request(RequestCode.SEND_MESSAGE_V2, 1, ext={"a": "x" * 240_000, "AccessKey": "k"})
    asked = encode_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, ext={"topic": "T" * 20_000})

    async def ask(port: int, request: bytes) -> None:
        async with connected(port) as client:
            with trio.move_on_after(1.5):
                try:
                    while True:
                        await client.stream.send_all(request)
                except trio.BrokenResourceError:
                    pass

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask, target.clients, refused)
                nursery.start_soon(ask, target.namesrv, asked)
            async with target.client(PRODUCER) as producer:
                for _ in range(20):
                    await target.send(producer)
                    await trio.sleep(0.05)
