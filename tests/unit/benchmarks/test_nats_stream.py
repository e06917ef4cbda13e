"""The client with which benchmarks set up a stream of NATS, against a small server that speaks as NATS does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from benchmarks.wires.nats_stream import NatsError, configuration, open_nats

INFO = {"cluster": {"leader": "n0", "replicas": [{"name": "n1", "current": True}, {"name": "n2", "current": False}]}}


async def serve(stream: trio.SocketStream) -> None:
    """Answers a request about the stream in two pieces, behind an answer to another one; nobody listens to others."""
    await stream.send_all(b'INFO {"version":"fake"}\r\nPING\r\n')
    lines = bytearray()
    while chunk := await stream.receive_some():
        lines += chunk
        while (end := lines.find(b"\r\n")) >= 0:
            line = bytes(lines[:end]).decode()
            del lines[: end + 2]
            if not line.startswith("PUB "):
                continue
            _, subject, inbox, _ = line.split()
            if "STREAM.INFO" in subject:
                told = json.dumps(INFO).encode()
                whole = b"PING\r\nMSG _INBOX.bench.old 1 2\r\n{}\r\n"
                whole += f"MSG {inbox} 1 {len(told)}\r\n".encode() + told + b"\r\n"
            else:
                head = b"NATS/1.0 503\r\n\r\n"
                whole = f"HMSG {inbox} 1 {len(head)} {len(head)}\r\n".encode() + head + b"\r\n"
            await stream.send_all(whole[:40])
            await stream.send_all(whole[40:])


async def test_stream_state_has_the_leader_and_followers() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        with trio.fail_after(30):
            async with open_nats("127.0.0.1", listeners[0].socket.getsockname()[1]) as client:
                assert await client.stream_state() == ("n0", 1)
                with pytest.raises(NatsError, match="503: nobody answers"):
                    await client.create_stream(3)
        nursery.cancel_scope.cancel()


async def test_connection_closed_by_the_server_raises_broken_resource() -> None:
    async with trio.open_nursery() as nursery:

        async def hang_up(stream: trio.SocketStream) -> None:
            await stream.send_all(b"INFO {}\r\n")

        listeners = await nursery.start(trio.serve_tcp, hang_up, 0)
        with trio.fail_after(30), pytest.raises(trio.BrokenResourceError):
            async with open_nats("127.0.0.1", listeners[0].socket.getsockname()[1]) as client:
                await client.stream_state()
        nursery.cancel_scope.cancel()


def test_server_syncs_always_only_if_configured() -> None:
    ports = {"n0": (1, 2), "n1": (3, 4)}
    assert "sync_interval" not in configuration("n0", ports, Path("store"), "default", "1GB")
    told = configuration("n0", ports, Path("store"), "always", "1GB")
    assert "sync_interval: always" in told
    assert 'routes: ["nats://127.0.0.1:4"]' in told
